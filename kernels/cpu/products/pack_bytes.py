"""What products of bytes make of weights, zero points and scales: packed panels, and numbers of each column.

With a' as u8 and b' as i8 (see `sweep_bytes`), sum((a' - za)(b' - zb)) is the sum of a' b', less zb times the sum of
the row's a', less za times the sum of the column's (b' - zb).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    all_lanes,
    ceil_div,
    dot_bytes,
    fill_bytes,
    lane,
    lanes_below,
    load_f32,
    load_i32,
    load_u8,
    select,
    shift_right_logical,
    splat,
    split,
    store_f32,
    store_i32,
    store_u8,
    to_i32,
    vabs,
    vload_i32,
    vload_i32_n,
    vload_n,
    vload_u8,
    vload_u8_n,
    vmax,
    vmin,
    vround,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.instructions.isa import own, target
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0, inline, native
from bolt_numba.ops.dtypes import MAX_F32
from bolt_numba.ops.layers.products.integer_products import RAISED, SMALL_SCALE

EXACT = frozenset({"contract", "nsz"})
"""No reciprocals: the scale of a result decides which way a half is rounded."""
ONES, SIGNS = 0x01010101, -0x7F7F7F80

FLIPS = np.repeat(np.array([0, SIGNS], np.int32), LANES).reshape(2, LANES)
"""Vectors of bits that make signed bytes unsigned ones and back, or leave them: by `flips`."""


def flips(flip: bool) -> Array:
    made: Array = FLIPS[int(flip)]
    return made


def whole_vectors(n: int) -> int:
    """Bytes of n i32 in whole vectors."""
    return -(-n // LANES) * BYTES


def _packed(a: Numbers) -> dict[str, Reach]:
    to = a.blocks * whole_vectors(a.n) * (1 + a.runs * -(-a.length // 4))
    return {"b": box(a.n, (a.blocks, a.block), (a.runs * a.length, a.row)), "to": to, "flip": BYTES}


@native(b=PTR, to=PTR, flip=PTR, blocks=I64, block=I64, row=I64, runs=I64, length=I64, n=I64, extents=_packed)
def pack_bytes(p, tid, nthreads):
    """Sums of columns, i32 [blocks][columns of whole vectors], and panels of ``blocks`` matrices.

    These have runs * length rows, ``row`` bytes apart, and are ``block`` bytes apart.  flip: bits (see `FLIPS`).
    """
    runs, length, n, flip = p.runs, p.length, p.n, vload_i32(p.flip)
    fours, columns = ceil_div(length, 4), ceil_div(n, LANES)
    panels = ceil_div(columns, 2)
    lo, hi = split(p.blocks * panels, tid, nthreads)
    for unit in range(lo, hi):
        block, j = unit // panels, unit % panels * PANEL
        source, first = p.b + p.block * block + j, block * columns * LANES + j
        to = p.to + p.blocks * columns * BYTES + first * runs * fours * 4
        total, second = splat(np.int32(0)), splat(np.int32(0))
        for r in range(runs):
            for q in range(0, length, 4):
                at, rest = source + p.row * (r * length + q), splat(np.int32(8 * max(q + 4 - length, 0)))
                four = rows_of_four(at, p.row, length - q, n - j) ^ shift_down(flip, rest)
                vstore(to, four)
                total = add_fours(total, four)
                to += BYTES
                if n - j > LANES:
                    four = rows_of_four(at + LANES, p.row, length - q, n - j - LANES) ^ shift_down(flip, rest)
                    vstore(to, four)
                    second = add_fours(second, four)
                    to += BYTES
        vstore(p.to + 4 * first, total)
        if n - j > LANES:
            vstore(p.to + 4 * (first + LANES), second)


@inline
def rows_of_four(source, row, rows, left):
    """Bytes of up to four rows, ``row`` apart, of up to a vector of columns: those of a column in one i32."""
    if rows >= 4 and left >= LANES:
        low = vload_u8(source) | (vload_u8(source + row) << np.int32(8))
        source += 2 * row
        return low | (vload_u8(source) << np.int32(16)) | (vload_u8(source + row) << np.int32(24))
    four = splat(np.int32(0))
    for i in range(min(rows, 4)):
        four = four | (vload_u8_n(source + row * i, left) << np.int32(8 * i))
    return four


@inline
def add_by_dots(total, four):
    """Total and the sums of the four i8 of each i32."""
    return dot_bytes(total, splat(np.int32(ONES)), four)


@inline
def add_by_shifts(total, four):
    """The same by what all processors have."""
    eight, high = np.int32(8), np.int32(24)
    first, second = (four >> high) + ((four << eight) >> high), (four << np.int32(16)) >> high
    return total + first + second + ((four << high) >> high)


add_fours = add_by_dots if target() is own() else add_by_shifts
"""Weights for other processors are packed on this one, so by no instruction of theirs."""


@inline
def shift_down(bits, n):
    """The bits of whole bytes without the last ``n / 8`` of each four."""
    return bits & shift_right_logical(splat(np.int32(-1)), n)


@native(x=PTR, to=PTR, n=I64, extents=lambda a: {"x": a.n, "to": a.n})
def flip_bytes(p, tid, nthreads):
    """Signed bytes as unsigned ones, 128 more: their highest bit is turned.  x, to: [n]."""
    lo, hi = split(ceil_div(p.n, BYTES), tid, nthreads)
    for v in range(lo, hi):
        x, to = p.x + BYTES * v, p.to + BYTES * v
        if BYTES * (v + 1) <= p.n:
            vstore(to, vload_i32(x) ^ splat(np.int32(SIGNS)))
        else:
            for i in range(p.n - BYTES * v):
                store_u8(to + i, load_u8(x + i) ^ np.uint8(128))


CENTRE = target().centre
COLUMN_ROWS = 5
"""Rows of `prepare_columns` results: addend, with what `CENTRE` took away; zero point of B; factor (f32); sum of
(b' - zb); addend behind the factor (f32)."""
ENDS = 64
"""Bytes in front of the rows: the record of `tile_finish_bytes`, then what follows."""
RESIDUAL_FACTOR, LAST_SCALE, UNSAFE = 16, 20, 24
"""Places in it: what a residual is multiplied by, what an activated number is divided by (f32), and whether numbers
before rounding may be beyond i32 (i32)."""
SAFE_FACTOR, SAFE_ADDEND = 0.25, 2.0**29
"""Sums of 32 bits times the one and two of the other stay within i32."""
LAST = np.float32(128)
"""What signed bytes end before, and begin with, negative."""
SUMS, BYTE_RESULTS, FLOATS = 0, 1, 2
"""Kinds of results: i32, bytes, f32."""


def _prepared(a: Any) -> dict[str, Reach]:
    def each(given: int) -> int:
        """Columns that ``given`` zero points or scales are read for."""
        return 1 if given == 1 else a.n if given <= a.n else a.blocks * a.n

    sums, one = a.blocks * whole_vectors(a.n), 4 if a.scale_b is not None else 0
    return {
        "sums": sums, "to": ENDS + a.images * COLUMN_ROWS * sums, "zero_a": a.zeros_a, "zero_b": each(a.zeros_b),
        "bias": 4 * each(a.biases), "scale_a": one * a.scales_a, "scale_b": one * each(a.scales_b), "scale_y": 4,
        "zero_y": 1, "outside": a.images * a.length, "scale_r": 4, "zero_r": 1,
    }  # fmt: skip


@inline
def ratio(a, b, y):
    """``a * b / y`` where ``a * b`` alone may be too small for a normal number; see `scale_ratio`."""
    small, first = vabs(a * b) < splat(np.float32(SMALL_SCALE)), vabs(a) < vabs(b)
    low, high, up = select(first, a, b), select(first, b, a), splat(np.float32(RAISED))
    most = splat(MAX_F32)
    # No product with 1: it would make a number that is too small for a normal one 0.
    made = select(small, low * up, low) * high / select(small, y * up, y)
    made = select(made > most, most, select(made < -most, -most, made))
    return select((vabs(a) <= most) & (vabs(b) <= most), made, splat(np.float32(np.nan)))


@inline
def limit(bound, scale, zero, without):
    """A bound of the real numbers as a stored signed one, from -128 to 127; ``without`` where it is NaN."""
    steps = vround(splat(bound) / splat(scale)) + splat(np.float32(zero))
    steps = select((steps < splat(LAST)) | (steps > splat(-LAST)), steps, splat(np.float32(without)))
    return lane(to_i32(vmin(vmax(steps, splat(-LAST)), splat(LAST - np.float32(1)))), np.int32(0))


@inline
def write_ends(p):
    """The record in front of the rows; what numbers are divided by before they are rounded, or an activation."""
    scale_y, zero, factor = np.float32(1), np.int32(0), np.float32(1)
    if p.scale_y != 0:
        scale_y = load_f32(p.scale_y)
    if p.zero_y != 0:
        zero = np.int32(load_u8(p.zero_y) ^ p.flip_y ^ 128) - np.int32(128)
    divided = np.float32(1) if p.activated else scale_y
    first, last = p.lo, p.hi
    if scale_y < 0:
        first, last = p.hi, p.lo
    high = limit(last, scale_y, zero, 127)
    low = limit(first, scale_y, zero, -128)
    if low > high:
        low = high
    if p.scale_r != 0:
        factor = load_f32(p.scale_r)
    store_i32(p.to, (high & 0xFF) * ONES)
    store_i32(p.to + 4, (zero & 0xFFFF) | (zero << 16))
    store_i32(p.to + 8, (low & 0xFF) * ONES)
    store_i32(p.to + 12, p.flip_y * ONES)
    store_f32(p.to + RESIDUAL_FACTOR, factor / divided)
    store_f32(p.to + LAST_SCALE, scale_y)
    return divided


@native(
    fastmath=EXACT, sums=PTR, to=PTR, images=I64, blocks=I64, n=I64, k=I64, zero_a=PTR, zeros_a=I64, flip_a=I64,
    zero_b=PTR, zeros_b=I64, flip_b=I64, bias=PTR_OR_0, biases=I64, floats=I64, scale_a=PTR_OR_0, scales_a=I64,
    scale_b=PTR_OR_0, scales_b=I64, scale_y=PTR_OR_0, zero_y=PTR_OR_0, flip_y=I64, lo=F32, hi=F32, activated=I64,
    scale_r=PTR_OR_0, zero_r=PTR_OR_0, flip_r=I64, rows=I64, outside=PTR_OR_0, length=I64, extents=_prepared,
)  # fmt: skip
def prepare_columns(p, tid, nthreads):
    """`ENDS` bytes, then for each image and block of B i32 or f32 [`COLUMN_ROWS`][columns of whole vectors].

    zeros_a, scales_a: how many numbers of A there are, one or one for each image; ``rows``: each row has its own zero
    point, which are left to the sweep.  zeros_b, scales_b, biases: how many there are, one, one a column, or one a
    column of each block.  bias, scales: or 0; floats: the bias is f32.  flip_*: 128 or 0 by the signedness.  lo, hi: a
    clamp of the real numbers.  activated: another activation comes before the division by scale_y.  scale_r, zero_r:
    of a residual.  outside: ``length`` bytes of each image that get its zero point, or 0.
    """
    n, columns = p.n, ceil_div(p.n, LANES)
    divided = write_ends(p)
    zero_r = np.float32(0) if p.zero_r == 0 else np.float32(load_u8(p.zero_r) ^ p.flip_r)
    residual = splat(np.float32(0) if zero_r == 0 else zero_r * load_f32(p.to + RESIDUAL_FACTOR))
    if p.outside != 0:
        for image in range(p.images):
            point = load_u8(p.zero_a + min(image, p.zeros_a - 1)) ^ p.flip_a
            fill_bytes(p.outside + p.length * image, np.uint8(point), p.length)
    safe = abs(load_f32(p.to + RESIDUAL_FACTOR)) * np.float32(256) < np.float32(SAFE_ADDEND)
    for unit in range(p.images * p.blocks * columns):
        image, block, j = unit // columns // p.blocks, unit // columns % p.blocks, unit % columns * LANES
        left, zero_a = n - j, 0 if p.rows else load_u8(p.zero_a + min(image, p.zeros_a - 1)) ^ p.flip_a
        to, width = p.to + ENDS + (image * p.blocks + block) * COLUMN_ROWS * columns * BYTES + 4 * j, columns * BYTES
        place = block * n + j if p.zeros_b > n else j
        zero = splat(np.int32(load_u8(p.zero_b))) if p.zeros_b == 1 else vload_u8_n(p.zero_b + place, left)
        zero = ((zero ^ splat(np.int32(p.flip_b))) << np.int32(24)) >> np.int32(24)
        raw = vload_i32(p.sums + block * columns * BYTES + 4 * j)
        sums = raw - zero * splat(np.int32(p.k))
        first, last = splat(np.int32(0)), splat(np.float32(0))
        place = block * n + j if p.biases > n else j
        if p.bias != 0 and p.floats == 0:
            first = splat(load_i32(p.bias)) if p.biases == 1 else vload_i32_n(p.bias + 4 * place, left)
        elif p.bias != 0:
            last = (splat(load_f32(p.bias)) if p.biases == 1 else vload_n(p.bias + 4 * place, left)) / splat(divided)
        vstore(to, first - sums * splat(np.int32(zero_a)) + raw * splat(np.int32(CENTRE)))
        vstore(to + width, zero)
        vstore(to + 3 * width, sums)
        vstore(to + 4 * width, last - residual)
        safe = safe and all_lanes((vabs(last - residual) < splat(np.float32(SAFE_ADDEND))) | ~lanes_below(left))
        if p.scale_b != 0:
            place = block * n + j if p.scales_b > n else j
            scale = splat(load_f32(p.scale_b)) if p.scales_b == 1 else vload_n(p.scale_b + 4 * place, left)
            factor = ratio(splat(load_f32(p.scale_a + 4 * min(image, p.scales_a - 1))), scale, splat(divided))
            safe = safe and all_lanes((vabs(factor) < splat(np.float32(SAFE_FACTOR))) | ~lanes_below(left))
            vstore(to + 2 * width, factor)
    store_i32(p.to + UNSAFE, np.int32(not safe))
