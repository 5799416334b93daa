"""Dataclasses that cost little to declare: what operators, steps, plans and settings are made of.

`dataclasses.dataclass` compiles up to seven functions for every class, 0.5 to 1 ms.  Here all classes share methods.
Only a class of which many objects are made gets a compiled ``__init__``.  `dataclasses.fields` and `replace` work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any, TypeVar, dataclass_transform, get_origin

T = TypeVar("T", bound=type)

_MISSING = dataclasses.MISSING
_FIELDS = "__record_fields__"
"""Name of a class's fields: annotation and default of each."""
_NO_FIELD = "ClassVar", "typing.ClassVar"
_COMPILED_FROM = 64
"""Objects of a class from which on ``__init__`` is compiled: compiling takes as long as making so many without."""


@dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)
class _ShownFields:
    """Shows what `dataclasses` writes into a field."""

    field: None


def field_rows(cls: Any) -> dict[str, tuple[Any, Any]]:
    """Annotation, as it is written, and default of each field of a record; none where the class is no record."""
    rows: dict[str, tuple[Any, Any]] = getattr(cls, _FIELDS, {})
    return rows


def field_metadata(cls: Any) -> dict[str, Any]:
    """What the fields of a record say of themselves, ``field(metadata=...)``, by their names."""
    rows = getattr(cls, _FIELDS).items()
    return {name: row.metadata for name, (_, row) in rows if isinstance(row, dataclasses.Field)}


def _dataclass_field(name: str, kind: Any, default: Any) -> Any:
    """What `dataclasses` keeps of a field; ``default`` is MISSING, a value, or a `field`."""
    made: Any = default if isinstance(default, dataclasses.Field) else field(default=default)
    made.name, made.type, made.kw_only = name, kind, False
    made._field_type = _ShownFields.__dataclass_fields__["field"]._field_type  # type: ignore[attr-defined]
    return made


class _Fields:
    """``__dataclass_fields__``, made when the `dataclasses` module first asks for them."""

    def __get__(self, instance: Any, owner: Any) -> dict[str, Any]:
        rows = getattr(owner, _FIELDS).items()
        found = owner.__dataclass_fields__ = {name: _dataclass_field(name, kind, row) for name, (kind, row) in rows}
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


def _plain(default: Any) -> Any:
    """The default itself; MISSING where there is none, or each object has its own."""
    return default.default if isinstance(default, dataclasses.Field) else default


def _is_made(default: Any) -> bool:
    """Whether each object has a default of its own."""
    return isinstance(default, dataclasses.Field) and default.default_factory is not _MISSING


def _first(self: Any, *args: Any, **kwargs: Any) -> None:
    """``__init__`` of every record whose first object is being made."""
    owner: Any = next(cls for cls in type(self).__mro__ if _FIELDS in vars(cls))
    owner.__init__ = _general(owner)
    owner.__init__(self, *args, **kwargs)


def _general(cls: Any) -> Callable[..., None]:
    """``__init__`` for the fields of a class, which needs no compiling and gives way to the compiled one."""
    rows = {name: default for name, (_, default) in getattr(cls, _FIELDS).items()}
    template = {name: _plain(default) for name, default in rows.items()}
    factories = [(name, row.default_factory) for name, row in rows.items() if _is_made(row)]
    required = [name for name, default in template.items() if default is _MISSING]
    finish = getattr(cls, "__post_init__", None)
    made = 0

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal made
        made += 1
        if made == _COMPILED_FROM:
            cls.__init__ = _compiled(cls)
        values = self.__dict__
        values.update(template)
        if args:
            given = dict(zip(template, args, strict=False))
            if len(given) < len(args) or not given.keys().isdisjoint(kwargs):
                wanted = f"{[*template]}, each once" if template else "none, as nothing in the class has an annotation"
                raise TypeError(f"{cls.__name__}: fields: got {args}, {[*kwargs]}, wanted {wanted}")
            values.update(given)
        if kwargs:
            values.update(kwargs)
            if len(values) > len(template):
                unknown = [name for name in kwargs if name not in template]
                raise TypeError(f"{cls.__name__}: fields: got {unknown}, wanted some of {[*template]}")
        for name, make in factories:
            if values[name] is _MISSING:
                values[name] = make()
        for name in required:
            if values[name] is _MISSING:
                raise TypeError(f"{cls.__name__}: fields: got no {name}, wanted one")
        if finish is not None:
            finish(self)

    return init


def _compiled(cls: Any) -> Callable[..., None]:
    """``__init__`` for the fields of a class as text would have it."""
    scope: dict[str, Any] = {"_missing": _MISSING}
    head, body = ["self"], ["_values = self.__dict__"]
    for name, (_, default) in getattr(cls, _FIELDS).items():
        value = name
        if _is_made(default):
            scope[f"_make_{name}"] = default.default_factory
            head.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        elif _plain(default) is _MISSING:
            head.append(name)
        else:
            scope[f"_default_{name}"] = _plain(default)
            head.append(f"{name}=_default_{name}")
        body.append(f"_values[{name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(head)}):\n " + "\n ".join(body), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


@dataclass_transform(field_specifiers=(field,))
def record(*, frozen: bool = False, eq: bool = True) -> Callable[[T], T]:
    """Make the annotated names of a class, after those of its bases, its fields, as `dataclasses.dataclass` does.

    Defaults may be ``field(default_factory=...)`` or ``field(default=..., metadata=...)``.
    Methods that a class or a base of it has stay.  Raises TypeError
    for a `functools.cached_property`: what it keeps beside the fields would make equal records unequal.
    """

    def make(cls: T) -> T:
        made: Any = cls
        own = (base for base in cls.__mro__ if base is cls or _FIELDS not in vars(base))
        for name in (name for base in own for name, value in vars(base).items() if isinstance(value, cached_property)):
            raise TypeError(
                f"{cls.__name__}: {name}: got a cached property, wanted a property, or a field with a default"
            )
        fields = dict(getattr(cls, _FIELDS, {}))
        for name, kind in cls.__annotations__.items():
            if not (kind if isinstance(kind, str) else str(get_origin(kind))).startswith(_NO_FIELD):
                fields[name] = kind, default = kind, vars(cls).get(name, _MISSING)
                if isinstance(default, dataclasses.Field):
                    delattr(cls, name) if default.default is _MISSING else setattr(cls, name, default.default)
        setattr(cls, _FIELDS, fields)
        made.__match_args__ = tuple(fields)  # type: ignore[misc]
        made.__dataclass_fields__ = _Fields()
        made.__init__ = _first
        if made.__repr__ is object.__repr__:
            made.__repr__ = _repr
        if eq and made.__eq__ is object.__eq__:
            made.__eq__ = _eq
            made.__hash__ = _hash if frozen else None
        if frozen:
            made.__setattr__, made.__delattr__ = _setattr, _delattr
        return cls

    return make
