"""Rotary position embedding: a thread for each pair of elements, and for each element behind them."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.declare import Inline, inline


def turns(dtype: str, neighbours: bool) -> Inline:
    """Helper that turns the pair of which one element is ``c`` bytes behind the begin, or copies one behind them."""
    load, store, size = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}"), lang.SIZES[dtype]

    @inline
    def turn(x, y, cos, sin, c, half, d):
        if c >= size * half:
            store(y + size * half + c, load(x + size * half + c))
        else:
            one, two = (2 * c, 2 * c + size) if neighbours else (c, c + size * half)
            a, b, w, s = load(x + one), load(x + two), load(cos + c), load(sin + c)
            store(y + one, a * w - b * s)
            store(y + two, a * s + b * w)

    made: Inline = turn
    return made
