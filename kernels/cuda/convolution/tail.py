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
from bolt_numba.kernels.cuda.language.lang import load4_shared_f32

u32, i64, f32 = np.uint32, np.int64, np.float32

TAIL: dict[str, Any] = {"bias": PTR_OR_0, "res": PTR_OR_0, "y": PTR, "ldy": I64, **ACTIVATION_FIELDS}
"""Fields of every kernel that say what follows the sums.

bias: [groups * n] or 0 · res: like y, or 0 · ldy: elements from one pixel of y to the next, and of res.
"""


@record(frozen=True)
class SliceOfTile:
    """Rows of a tile in shared memory: ``rows`` of ``columns`` f32, ``pitch`` apart, that ``threads`` store.

    Rows come in runs of ``run``, which are ``apart`` rows of the tile from each other.  Other sizes than pitch are
    powers of two.
    """

    rows: int
    columns: int
    pitch: int
    run: int
    apart: int
    threads: int


def tail_extents(a: Any, dtype: str) -> dict[str, int]:
    """Reaches of the addresses of `TAIL`."""
    size, n = lang.SIZES[dtype], a.n * a.groups
    reach = size * (last_pixel(a) * a.ldy + n)
    return {"bias": size * n, "res": reach, "y": reach}


@inline
def of_group(address, nbytes):
    """The address of a group's part; 0 stays."""
    return address + nbytes if address != 0 else address


@functools.cache
def one_finished(dtype: str, activate: Any) -> Any:
    """``finish(sum, column, at, bias, res, act0, act1)`` of one element in f32; at: bytes into res."""
    load, size = getattr(lang, f"load_{dtype}"), lang.SIZES[dtype]

    @inline
    def finish(v, column, at, bias, res, act0, act1):
        if bias != 0:
            v += load(bias + size * column)
        if res != 0:
            v += load(res + at)
        return activate(v, act0, act1)

    return finish


@functools.cache
def drain(part: SliceOfTile, dtype: str, activate: Any, scattered: bool) -> Any:
    """Finishes and stores a slice; every thread of the block calls it, between two barriers.

    scattered: rows are not the pixels of the result in their order · row0, column0: of the slice's first element ·
    bias, res, y: of the group · place, apart: see `place_of` and yn, yd, yh, yw of `reading.READING`.
    """
    finish, size = one_finished(dtype, activate), lang.SIZES[dtype]
    store, store4 = getattr(lang, f"store_{dtype}"), getattr(lang, f"store4_{dtype}")
    THREADS, CHUNKS, PITCH, APART, LOW = (
        part.threads,
        part.rows * part.columns // 4,
        4 * part.pitch,
        part.apart,
        part.run - 1,
    )
    ACROSS, ROW, RUN = part.columns // 4 - 1, (part.columns // 4).bit_length() - 1, part.run.bit_length() - 1

    @inline
    def scatter(row, place, apart):
        image, d, h, w = place_of(row, place[0], place[1], place[2], place[3], place[4], place[5])
        return i64(image) * apart[0] + i64(d) * apart[1] + i64(h) * apart[2] + i64(w) * apart[3]

    @inline
    def in_order(row, place, apart):
        return i64(row)

    pixel_of = scatter if scattered else in_order

    @inline
    def drained(tid, sums, row0, column0, m, n, bias, res, y, ldy, act0, act1, place, apart):
        chunk = u32(tid)
        while chunk < u32(CHUNKS):
            r, q = u32(chunk >> u32(ROW)), u32((chunk & u32(ACROSS)) << u32(2))
            row = u32(row0 + (r >> u32(RUN)) * u32(APART) + (r & u32(LOW)))
            column = i64(column0) + i64(q)
            if row < m and column < n:
                v = load4_shared_f32(u32(sums + r * u32(PITCH) + (q << u32(2))))
                at = size * (pixel_of(row, place, apart) * ldy + column)
                left = i64(n) - column
                a = finish(v[0], column, at, bias, res, act0, act1)
                b = finish(v[1], column + 1, at + size, bias, res, act0, act1) if left > 1 else f32(0)
                c = finish(v[2], column + 2, at + 2 * size, bias, res, act0, act1) if left > 2 else f32(0)
                d = finish(v[3], column + 3, at + 3 * size, bias, res, act0, act1) if left > 3 else f32(0)
                if left > 3 and (y + at) & (4 * size - 1) == 0:
                    store4(y + at, a, b, c, d)
                else:
                    store(y + at, a)
                    if left > 1:
                        store(y + at + size, b)
                    if left > 2:
                        store(y + at + 2 * size, c)
                    if left > 3:
                        store(y + at + 3 * size, d)
            chunk = u32(chunk + u32(THREADS))

    return drained
