"""What happens to a tile of sums of bytes that does not become bytes in registers: i32, f32, other activations.

The tile is in workspace, in the first-level cache.  Bias and zero points are in it already.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    call_activation,
    fma,
    load_f32,
    load_i8,
    load_i16,
    load_u8,
    select,
    splat,
    to_f32,
    to_i32,
    vload,
    vload_i32,
    vload_n,
    vload_u8_n,
    vmax,
    vmin,
    vround,
    vstore,
    vstore_n,
    vstore_u8_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.pack_bytes import FLOATS, LAST_SCALE, RESIDUAL_FACTOR, SUMS
from bolt_numba.kernels.jit import CODE, F32, I64, PTR_OR_0, inline
from bolt_numba.ops.dtypes import MAX_F32

NO_RESIDUAL, BYTE_RESIDUAL, FLOAT_RESIDUAL = 0, 1, 2

FIELDS: dict[str, Any] = {
    "kind": I64, "quick": I64, "res": PTR_OR_0, "ldr": I64, "residual": I64, "flip_r": I64, "lo": F32, "hi": F32,
    "act": CODE, "scale_a": PTR_OR_0, "scales_a": I64,
}  # fmt: skip
"""Fields of kernels that end so.  kind: of the results, see `pack_bytes.SUMS`.  quick: whether they become bytes in
registers.  res: residual, rows ``ldr`` elements apart; residual: `NO_RESIDUAL`, bytes with the bits of ``flip_r``
turned, or f32.  lo, hi, act: see `epilogue.Finish`, for results of f32.  scale_a: ``scales_a`` scales
of rows, or 0 where `prepare_columns` has used the one."""


@inline
def store_bytes(to, v, n, ends):
    """As `tile_finish_bytes`, one vector of any numbers; NaN becomes the least byte, whatever the limits."""
    high, zero, low, flip = load_i8(ends), load_i16(ends + 4), load_i8(ends + 8), load_u8(ends + 12)
    near = vmin(vmax(vround(v), splat(np.float32(-1e6))), splat(np.float32(1e6)))
    made = vmin(vmax(to_i32(near) + splat(np.int32(zero)), splat(np.int32(low))), splat(np.int32(high)))
    made = select(v == v, made, splat(np.int32(-128)))
    vstore_u8_n(to, made ^ splat(np.int32(flip)), n)


@inline
def row_scale(p, row):
    """The scale of a row of A, 1 where the columns' numbers have it; NaN where it is not finite (`scale_ratio`)."""
    scale = np.float32(1) if p.scale_a == 0 else load_f32(p.scale_a + 4 * row)
    return scale if abs(scale) <= MAX_F32 else np.float32(np.nan)


@inline
def scaled(columns, row):
    """Scales of columns times the one of a row; the greatest finite number where that is more, as in `scale_ratio`."""
    by, most = columns * row, splat(MAX_F32)
    return select(by > most, most, select(by < -most, -most, by))


@inline
def finish_stored(p, tile, mr, n, columns, width, c, res, row):
    """A tile of i32 in workspace, rows ``2 * BYTES`` apart, to results; row: the number of its first.

    columns: numbers of its columns, see `prepare_columns`, rows ``width`` bytes apart.
    """
    factor, ldc, act = splat(load_f32(p.columns + RESIDUAL_FACTOR)), p.ldc, p.act
    for i in range(mr):
        scale = row_scale(p, 0 if p.scale_a == 0 else (row + i) % p.scales_a)
        for v in range(0, n, LANES):
            at, m = tile + 2 * BYTES * i + 4 * v, min(n - v, LANES)
            if p.kind == SUMS:
                vstore_n(c + 4 * (ldc * i + v), vload_i32(at), m)
                continue
            by = scaled(vload(columns + 2 * width + 4 * v), scale)
            y = fma(to_f32(vload_i32(at)), by, vload(columns + 4 * width + 4 * v))
            if p.residual == BYTE_RESIDUAL:
                seen = vload_u8_n(res + p.ldr * i + v, m) ^ splat(np.int32(p.flip_r))
                y = fma(to_f32(seen), factor, y)
            elif p.residual == FLOAT_RESIDUAL:
                y = fma(vload_n(res + 4 * (p.ldr * i + v), m), factor, y)
            if act != 0:
                vstore(at, y)
            elif p.kind == FLOATS:
                vstore_n(c + 4 * (ldc * i + v), vmin(splat(p.hi), vmax(splat(p.lo), y)), m)
            else:
                store_bytes(c + ldc * i + v, y, m, p.columns)
    if act != 0 and p.kind != SUMS:
        call_activation(act, tile, n + (mr << 32), 2 * BYTES)
        last = splat(load_f32(p.columns + LAST_SCALE))
        for i in range(mr):
            for v in range(0, n, LANES):
                y, m = vload(tile + 2 * BYTES * i + 4 * v), min(n - v, LANES)
                if p.kind == FLOATS:
                    vstore_n(c + 4 * (ldc * i + v), y, m)
                else:
                    store_bytes(c + ldc * i + v, y / last, m, p.columns)
