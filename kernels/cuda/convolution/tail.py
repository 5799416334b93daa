"""What happens to the sums of a tile before anyone else sees them: bias, residual, activation, store.

A tile goes through shared memory a slice of rows at a time.  So neighbours of a warp store neighbours of memory,
whatever places of the tile their registers hold, and an activation is written out four times and not once for each sum.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.convolution.reading import last_pixel, place_of
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, inline
from bolt_numba.kernels.cuda.elementwise.epilogue import ACTIVATION_FIELDS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.products.tail import TileSlice, four_stored, slice_in_fours
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers

u32, i64 = np.uint32, np.int64

TAIL: dict[str, Any] = {"bias": PTR_OR_0, "res": PTR_OR_0, "y": PTR, "ldy": I64, **ACTIVATION_FIELDS}
"""Fields of every kernel that say what follows the sums.

bias: [groups * n] or 0 · res: like y, or 0 · ldy: elements from one pixel of y to the next, and of res.
"""


BYTE_TAIL: dict[str, Any] = {"columns": PTR_OR_0, "factors": PTR_OR_0, "outside": PTR_OR_0, "scales": PTR_OR_0}
"""Further fields, for products of bytes.

columns: i32 that are added to sums of a column · factors: f32 of columns · outside: what 16 bytes outside the image are
· scales: f32 [4], scale and zero point of the result and those of the residual.
"""


def tail_extents(a: Numbers, y: int, bias: int, residual: int) -> dict[str, int]:
    """Reaches of the addresses of `TAIL`; bytes of an element of each."""
    n = a.n * a.groups
    reach = last_pixel(a) * a.ldy + n
    return {"bias": bias * n, "res": residual * reach, "y": y * reach + (a.splits - 1) * a.split_bytes}


@inline
def of_group(address, nbytes):
    """The address of a group's part; 0 stays."""
    return address + nbytes if address != 0 else address


@record(frozen=True)
class Ending:
    """What becomes of sums.

    sums: "f32" or "i32" · y: dtype of the results · finish: an `inline` ``(sum, column, at, tail, act0, act1)`` of one
    element, whose place in y and in the residual is ``at``.
    """

    sums: str
    y: str
    finish: Any


@functools.cache
def float_ending(dtype: str, activate: Any) -> Ending:
    """tail: addresses of bias and residual, of the dtype, or 0."""
    load, size = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype]

    @inline
    def finish(v, column, at, tail, act0, act1):
        if tail[0] != 0:
            v += load(tail[0] + size * column)
        if tail[1] != 0:
            v += load(tail[1] + size * at)
        return activate(v, act0, act1)

    return Ending("f32", dtype, finish)


@functools.cache
def drain(part: TileSlice, ending: Ending, scattered: bool) -> Inline:
    """Finishes and stores a slice, as `products.tail.slice_in_fours` does.

    scattered: rows are not the pixels of the result in their order.  given: before, columns of the groups before this
    one; n; tail; y; ldy; act0; act1; place and apart, see `place_of` and yn, yd, yh, yw of `READING`.
    """
    finish, keep, size = ending.finish, four_stored(ending.y), lang.SIZES[ending.y]

    @inline
    def scatter(row, place, apart):
        image, d, h, w = place_of(u32(row), place[0], place[1], place[2], place[3], place[4], place[5])
        return i64(image) * apart[0] + i64(d) * apart[1] + i64(h) * apart[2] + i64(w) * apart[3]

    @inline
    def in_order(row, place, apart):
        return row

    pixel_of = scatter if scattered else in_order

    @inline
    def four(v, row, column, given):
        before, n, tail, y, ldy, act0, act1, place, apart = given
        left = i64(n) - column
        column = before + column
        at = pixel_of(row, place, apart) * ldy + column
        i, j, k = min(left, 2) - 1, min(left, 3) - 1, min(left, 4) - 1
        a, b = finish(v[0], column, at, tail, act0, act1), finish(v[1], column + i, at + i, tail, act0, act1)
        c, d = finish(v[2], column + j, at + j, tail, act0, act1), finish(v[3], column + k, at + k, tail, act0, act1)
        keep(y + size * at, a, b, c, d, left)

    return slice_in_fours(part, ending.sums, four)
