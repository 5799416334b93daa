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
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, CudaKernel, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.elementwise.epilogue import ACTIVATION_FIELDS, activation
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, load_f32

u32, i64 = np.uint32, np.int64

_ACTIVATION: dict[str, Any] = {**ACTIVATION_FIELDS}
TAIL: dict[str, Any] = {"bias": PTR_OR_0, "res": PTR_OR_0, "y": PTR, "ldy": I64, **ACTIVATION_FIELDS}
"""Fields of every kernel that say what follows the sums.

bias: [groups * n] or 0 · res: like y, or 0 · ldy: elements from one pixel of y to the next, and of res.
"""


BYTE_TAIL: dict[str, Any] = {"columns": PTR_OR_0, "factors": PTR_OR_0, "outside": PTR_OR_0, "scales": PTR_OR_0}
"""Further fields, for products of bytes.

columns: i32 that are added to sums of a column · factors: f32 of columns · outside: what 16 bytes outside the image are
· scales: f32 [4], scale and zero point of the result and those of the residual.
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


def tail_extents(a: Any, y: int, bias: int, residual: int) -> dict[str, int]:
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
def drain(part: SliceOfTile, ending: Ending, scattered: bool) -> Any:
    """Finishes and stores a slice; every thread of the block calls it, between two barriers.

    scattered: rows are not the pixels of the result in their order · row0, column0: of the slice's first element ·
    before: columns of the groups before this one · place, apart: see `place_of` and yn, yd, yh, yw of `READING`.
    """
    finish, size = ending.finish, lang.SIZES[ending.y]
    store, store4 = getattr(lang, f"store_{ending.y}"), getattr(lang, f"store4_{ending.y}")
    load4 = getattr(lang, f"load4_shared_{ending.sums}")
    THREADS, CHUNKS, PITCH = part.threads, part.rows * part.columns // 4, 4 * part.pitch
    APART, LOW, RUN = part.apart, part.run - 1, part.run.bit_length() - 1
    ACROSS, ROW = part.columns // 4 - 1, (part.columns // 4).bit_length() - 1

    @inline
    def scatter(row, place, apart):
        image, d, h, w = place_of(row, place[0], place[1], place[2], place[3], place[4], place[5])
        return i64(image) * apart[0] + i64(d) * apart[1] + i64(h) * apart[2] + i64(w) * apart[3]

    @inline
    def in_order(row, place, apart):
        return i64(row)

    pixel_of = scatter if scattered else in_order

    @inline
    def drained(tid, sums, row0, column0, m, n, before, tail, y, ldy, act0, act1, place, apart):
        chunk = u32(tid)
        while chunk < u32(CHUNKS):
            r, q = u32(chunk >> u32(ROW)), u32((chunk & u32(ACROSS)) << u32(2))
            row = u32(row0 + (r >> u32(RUN)) * u32(APART) + (r & u32(LOW)))
            left = i64(n) - i64(column0) - i64(q)
            if row < m and left > 0:
                v = load4(u32(sums + r * u32(PITCH) + (q << u32(2))))
                column = i64(before) + i64(column0) + i64(q)
                at = pixel_of(row, place, apart) * ldy + column
                to = y + size * at
                if left > 3:
                    a = finish(v[0], column, at, tail, act0, act1)
                    b = finish(v[1], column + 1, at + 1, tail, act0, act1)
                    c = finish(v[2], column + 2, at + 2, tail, act0, act1)
                    d = finish(v[3], column + 3, at + 3, tail, act0, act1)
                    if to & (4 * size - 1) == 0:
                        store4(to, a, b, c, d)
                    else:
                        store(to, a)
                        store(to + size, b)
                        store(to + 2 * size, c)
                        store(to + 3 * size, d)
                else:
                    for i in range(left):
                        one = v[0] if i == 0 else v[1] if i == 1 else v[2]
                        store(to + size * i, finish(one, column + i, at + i, tail, act0, act1))
            chunk = u32(chunk + u32(THREADS))

    return drained


@functools.cache
def added_parts(ending: Ending, sizes: int) -> CudaKernel:
    """What ``splits`` parts, f32 [splits, rows, n], become.  sizes: bytes of bias and residual."""
    finish, SIZE = ending.finish, lang.SIZES[ending.y]
    store = getattr(lang, f"store_{ending.y}")

    def extents(a: Any) -> dict[str, int]:
        count = a.rows * a.n
        return {"parts": 4 * a.splits * count, "bias": sizes * a.n, "res": sizes * count, "y": SIZE * count}

    @cuda_kernel(
        threads=256, blocks=lambda a: ceil_div(a.rows * a.n, 256), extents=extents, parts=PTR, rows=I64, n=I64,
        splits=I64, bias=PTR_OR_0, res=PTR_OR_0, y=PTR, **_ACTIVATION,
    )  # fmt: skip
    def add_parts(parts, rows, n, splits, bias, res, y, act0, act1):
        i = u32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
        if i < u32(rows * n):
            total, at = np.float32(0), parts + 4 * i64(i)
            for _ in range(splits):
                total += load_f32(at)
                at += 4 * rows * n
            store(y + SIZE * i64(i), finish(total, i64(u32(i % u32(n))), i64(i), (bias, res), act0, act1))

    return add_parts


def samples() -> dict[str, CudaKernel]:
    return {"parts": added_parts(float_ending("f16", activation(None)), 2)}
