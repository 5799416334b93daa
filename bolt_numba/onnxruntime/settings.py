"""Fields of option classes: each has a type and a default, and a name that is not one of them is an AttributeError."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Generic, TypeVar, overload

import numpy as np

from bolt_numba.onnxruntime.errors import OrtDTypeError, OrtOptionError

T = TypeVar("T")

MAX_KEY, MAX_ENTRY = 1024, 2048
"""Characters of a configuration's key and value."""


class Setting(Generic[T]):
    """A typed field.  ``take`` checks what is set: it gets the field's name and the value."""

    def __init__(self, take: Callable[[str, Any], T], default: T) -> None:
        self._take, self._default = take, default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Setting[T]: ...
    @overload
    def __get__(self, owner: Configured, kind: type) -> T: ...
    def __get__(self, owner: Configured | None, kind: type) -> Setting[T] | T:
        if owner is None:
            return self
        found: T = owner._settings.get(self._name, self._default)
        return found

    def __set__(self, owner: Configured, value: Any) -> None:
        owner._settings[self._name] = self._take(self._name, value)


class Configured:
    """Options: fields that are `Setting`, and entries of text by key."""

    __slots__ = ("_entries", "_settings")

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._entries: dict[str, str] = {}

    def _add_entry(self, key: Any, value: Any) -> None:
        for text in (key, value):
            if not isinstance(text, str):
                raise OrtDTypeError(f"configuration: got {text!r:.80}, wanted a text")
        if not 0 < len(key) <= MAX_KEY or len(value) > MAX_ENTRY:
            raise OrtOptionError(
                f"configuration: got {len(key)} and {len(value)} characters, "
                f"wanted 1 to {MAX_KEY} of the key and at most {MAX_ENTRY} of the value"
            )
        self._entries[key] = value

    def _entry(self, key: str) -> str:
        if key not in self._entries:
            said = f"{type(self).__name__} does not have configuration with key: {key}"
            raise OrtOptionError(f"{said}, wanted one of {sorted(self._entries)}")
        return self._entries[key]


def count(name: str, value: Any) -> int:
    if isinstance(value, (int, np.integer)):
        return int(value)
    raise OrtDTypeError(f"{name}: got {value!r:.80}, wanted an integer")


def flag(name: str, value: Any) -> bool:
    if isinstance(value, (int, float, np.bool_)):
        return bool(value)
    raise OrtDTypeError(f"{name}: got {value!r:.80}, wanted True or False")


def text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise OrtDTypeError(f"{name}: got {value!r:.80}, wanted a text")


def one_of(kind: type[IntEnum]) -> Callable[[str, Any], Any]:
    """Takes members of an enumeration, and not their numbers."""

    def take(name: str, value: Any) -> Any:
        if isinstance(value, kind):
            return value
        raise OrtDTypeError(f"{name}: got {value!r:.80}, wanted a member of {kind.__name__}")

    return take
