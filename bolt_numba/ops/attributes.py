"""Frozen dataclasses that cost nothing to declare: what operators are made of.

`dataclasses.dataclass` compiles text for every class, which for two hundred operators took a third of the start-up.
Here all classes share their methods.  `dataclasses.fields`, `replace` and `is_dataclass` work on them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_origin

from bolt_numba.records import dataclass_field

T = TypeVar("T", bound=type)


class _Fields:
    """``__dataclass_fields__``, made when the `dataclasses` module first asks for them."""

    def __get__(self, instance: Any, owner: Any) -> dict[str, Any]:
        return _fields_of(owner)


@functools.cache
def _fields_of(owner: Any) -> dict[str, Any]:
    return {name: dataclass_field(name, owner.__kinds__[name], row) for name, row in owner.__template__.items()}


class Frozen:
    """What `frozen` classes share.

    __template__: names and defaults of the attributes in order (`dataclasses.MISSING` where there is no default).
    __kinds__: their annotations.  __required__: those without a default.
    """

    __template__: ClassVar[dict[str, Any]] = {}
    __kinds__: ClassVar[dict[str, Any]] = {}
    __required__: ClassVar[tuple[str, ...]] = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    __dataclass_fields__: ClassVar[Any] = _Fields()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls, values = type(self), self.__dict__
        values.update(cls.__template__)
        if args:
            given = dict(zip(cls.__match_args__, args, strict=False))
            if len(given) < len(args) or not given.keys().isdisjoint(kwargs):
                raise TypeError(f"{cls.__name__}: attributes: got {args} and {sorted(kwargs)}, wanted each once")
            values.update(given)
        if kwargs:
            if not kwargs.keys() <= cls.__template__.keys():
                raise TypeError(f"{cls.__name__}: attributes: got {sorted(kwargs)}, wanted {cls.__match_args__}")
            values.update(kwargs)
        for name in cls.__required__:
            if values[name] is dataclasses.MISSING:
                raise TypeError(f"{cls.__name__}: attributes: got no {name}, wanted one")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


@dataclass_transform(frozen_default=True)
def frozen(cls: T) -> T:
    """Make the annotated names of a `Frozen` class, after those of its bases, its attributes."""
    made: Any = cls
    template, kinds = dict(made.__template__), dict(made.__kinds__)
    for name, kind in cls.__annotations__.items():
        if (kind if isinstance(kind, str) else str(get_origin(kind))).startswith(("ClassVar", "typing.ClassVar")):
            continue
        template[name], kinds[name] = vars(cls).get(name, dataclasses.MISSING), kind
    made.__template__, made.__kinds__ = template, kinds
    made.__match_args__ = tuple(template)  # type: ignore[misc]
    made.__required__ = tuple(n for n, default in template.items() if default is dataclasses.MISSING)
    return cls
