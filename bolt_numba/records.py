"""Dataclasses that cost little to declare.

`dataclasses.dataclass` compiles up to seven functions for every class; for the seventy classes that a small model needs
this took a quarter of the start-up.  Here all classes share their methods but ``__init__``, which is compiled when the
first object is made.  `dataclasses.fields`, `replace` and `asdict` work on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T", bound=type)

_MISSING = dataclasses.MISSING
_FIELDS = "__record_fields__"
"""Name of a class's fields: annotation and default of each."""


@dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)
class _Model:
    """Shows what `dataclasses` writes into a field."""

    field: None


def dataclass_field(name: str, kind: Any, default: Any) -> Any:
    """What `dataclasses` keeps of a field; ``default`` is MISSING, a value, or a `field` of a factory."""
    made: Any = default if isinstance(default, dataclasses.Field) else field(default=default)
    made.name, made.type, made.kw_only = name, kind, False
    made._field_type = _Model.__dataclass_fields__["field"]._field_type  # type: ignore[attr-defined]
    return made


class _Fields:
    """``__dataclass_fields__``, made when the `dataclasses` module first asks for them."""

    def __get__(self, instance: Any, owner: Any) -> dict[str, Any]:
        rows = getattr(owner, _FIELDS).items()
        found = owner.__dataclass_fields__ = {name: dataclass_field(name, kind, row) for name, (kind, row) in rows}
        return found


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in getattr(self, _FIELDS))
    return f"{type(self).__qualname__}({values})"


def _eq(self: Any, other: object) -> Any:
    return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(tuple(self.__dict__.values()))


def _setattr(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _initialiser(cls: Any) -> Callable[..., None]:
    """``__init__`` for the fields of a class."""
    scope: dict[str, Any] = {"_missing": _MISSING}
    head, body = ["self"], ["values = self.__dict__"]
    for name, (_, default) in getattr(cls, _FIELDS).items():
        value = name
        if isinstance(default, dataclasses.Field):
            scope[f"_make_{name}"] = default.default_factory
            head.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        elif default is _MISSING:
            head.append(name)
        else:
            scope[f"_default_{name}"] = default
            head.append(f"{name}=_default_{name}")
        body.append(f"values[{name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(head)}):\n " + "\n ".join(body), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


@dataclass_transform(field_specifiers=(field,))
def record(*, frozen: bool = False, eq: bool = True) -> Callable[[T], T]:
    """Make the annotated names of a class its fields, as `dataclasses.dataclass` does with these two options.

    Defaults may be ``field(default_factory=...)``.  No annotation may be a ClassVar; a base must be no record.
    """

    def make(cls: T) -> T:
        made: Any = cls
        fields = {name: (kind, vars(cls).get(name, _MISSING)) for name, kind in cls.__annotations__.items()}
        for name, (_, default) in fields.items():
            if isinstance(default, dataclasses.Field):
                delattr(cls, name)
        setattr(cls, _FIELDS, fields)
        made.__match_args__ = tuple(fields)  # type: ignore[misc]
        made.__dataclass_fields__ = _Fields()

        def first(self: Any, *args: Any, **kwargs: Any) -> None:
            made.__init__ = _initialiser(cls)
            made.__init__(self, *args, **kwargs)

        made.__init__ = first
        given = vars(cls)
        if "__repr__" not in given:
            made.__repr__ = _repr
        if eq and "__eq__" not in given:
            made.__eq__ = _eq
            made.__hash__ = _hash if frozen else None
        if frozen:
            made.__setattr__, made.__delattr__ = _setattr, _delattr
        return cls

    return make
