"""The kernel language, without Numba: names that kernel bodies use, given a meaning when a kernel first compiles.

``docs/kernels.md`` describes each word.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.kernels.declare import WORDS, elementary
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import (
    CODE,
    F32,
    F64,
    I32,
    I64,
    PTR,
    PTR_OR_0,
    Word,
    inline,
    inline_source,
    native,
    native_source,
)

LANES = target().lanes
"""f32 lanes of a vector."""
BYTES = 4 * LANES
"""Bytes of a vector."""

_words = {name: Word(name) for name in WORDS}


def __getattr__(name: str) -> Any:
    try:
        return _words[name]
    except KeyError:
        raise AttributeError(f"kernel language: word: got {name}") from None


@inline
def split(n: int, tid: int, nthreads: int) -> tuple[int, int]:
    """Share ``tid`` of ``n`` items in ``nthreads`` even parts: first, one past last."""
    return n * tid // nthreads, n * (tid + 1) // nthreads


@inline
def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


__all__ = [
    "BYTES", "CODE", "F32", "F64", "I32", "I64", "LANES", "PTR", "PTR_OR_0", "WORDS", "ceil_div", "elementary",
    "inline", "inline_source", "native", "native_source", "split",
]  # fmt: skip
