"""A message by the names of its fields, as text and binary files both become one, and what its values say.

A message is a dictionary from a field's name to the list of its values.  A value is a message, or a scalar: text as it
was written, or a number or bytes of a binary file.  What a scalar means is known to who asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from bolt_numba.base.errors import InvalidModelError

Message: TypeAlias = dict[str, list[Any]]

_FLAGS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def messages(message: Message, name: str, what: str) -> Iterator[Message]:
    """The messages of a field; raises InvalidModelError for a scalar."""
    for value in message.get(name, ()):
        if not isinstance(value, dict):
            raise InvalidModelError(f"{what}: {name}: got {str(value)[:40]!r}, wanted a message")
        yield value


def text(value: Any, what: str) -> str:
    """A scalar as text."""
    if isinstance(value, (dict, float)):
        raise InvalidModelError(f"{what}: got {_shown(value)}, wanted text")
    return value if isinstance(value, str) else str(value)


def integer(value: Any, what: str) -> int:
    """A scalar as an integer of 64 bits; text may be decimal, 0x hexadecimal or 0 octal."""
    made: int | None = None
    if isinstance(value, int):
        made = int(value)
    elif isinstance(value, str) and len(value) < 30:
        digits = value.lstrip("-")
        try:
            base = 8 if len(digits) > 1 and digits[0] == "0" and digits.isdigit() else 0
            made = int(value, base) if "_" not in value else None
        except ValueError:
            made = None
    if made is None or not -(1 << 63) <= made < 1 << 64:
        raise InvalidModelError(f"{what}: got {_shown(value)}, wanted an integer")
    return made


def number(value: Any, what: str) -> float:
    """A scalar as a float."""
    if isinstance(value, (int, float)):
        return float(value)
    try:
        if isinstance(value, str) and len(value) < 400 and "_" not in value:
            short = value.lower().removesuffix("f") if value[-1:] in "fF" and "inf" not in value.lower() else value
            return float(short) if not short.lower().startswith(("0x", "-0x")) else float(integer(short, what))
    except ValueError:
        pass
    raise InvalidModelError(f"{what}: got {_shown(value)}, wanted a number")


def flag(value: Any, what: str) -> bool:
    """A scalar as true or false."""
    made = _FLAGS.get(str(value).lower())
    if made is None or isinstance(value, (dict, float)):
        raise InvalidModelError(f"{what}: got {_shown(value)}, wanted true or false")
    return made


def last(message: Message, name: str, default: Any = None) -> Any:
    """The value of a field that is there once: of several the last, as protobuf has it."""
    values = message.get(name)
    return values[-1] if values else default


def named(message: Message, name: str, what: str) -> list[str]:
    """The values of a field of texts."""
    return [text(v, f"{what}: {name}") for v in message.get(name, ())]


def dims(message: Message, what: str) -> tuple[int, ...]:
    """The sizes of a BlobShape; raises InvalidModelError for a message of anything else."""
    return tuple(integer(v, f"{what}: dim") for v in message.get("dim", ()))


def _shown(value: Any) -> str:
    return "a message" if isinstance(value, dict) else repr(value)[:40]
