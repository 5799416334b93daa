"""Elements that a thread moves at once, of any size and up to 16 bytes."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache
from typing import Any

from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import load4_u32, store4_u32
from bolt_numba.kernels.declare import inline

UNITS = (16, 8, 4, 2, 1)
"""Bytes of an element."""


def several(unit: int) -> int:
    """Elements of a thread: one alone of under 16 bytes would leave the memory idle."""
    return 1 if unit == 16 else 4


@inline
def move_16(x, y):
    a, b, c, d = load4_u32(x)
    store4_u32(y, a, b, c, d)


@cache
def mover(unit: int) -> Any:
    """Helper ``(from, to)`` that moves one element."""
    if unit == 16:
        return move_16
    load, store = getattr(lang, f"load_u{8 * unit}"), getattr(lang, f"store_u{8 * unit}")

    @inline
    def move(x, y):
        store(y, load(x))

    return move


def widest(*numbers: int) -> int:
    """Bytes of the widest element whose size divides all of these numbers of bytes."""
    return next(unit for unit in UNITS if all(n % unit == 0 for n in numbers))
