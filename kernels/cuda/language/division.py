"""Division of indices by a number that the plan knows: a product and a shift."""

from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cuda.language.lang import mulhi_u32, shift_right_u32
from bolt_numba.kernels.declare import inline


def divider(divisor: int) -> tuple[int, int]:
    """Magic number and shift for `fast_divide`; 1 <= divisor < 2 ** 31.

    Source: Granlund and Montgomery, Division by invariant integers using multiplication, 1994.
    """
    shift = (divisor - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift


@inline
def fast_divide(x, magic, shift):  # type: ignore[no-untyped-def]
    """``x // divisor`` in u32 for 0 <= x < 2 ** 31, where magic and shift are those of `divider`."""
    x = np.uint32(x)
    return shift_right_u32(mulhi_u32(x, magic) + x, shift)
