"""Normalisations of rows and of groups of channels; those with given statistics are chains (`channels`).

The variance is that of the differences from the mean, whose own mean puts the rounding of the first right.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.types import dtype_name
from bolt_numba.kernels.cuda.declare import F32 as FLOAT
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, CudaKernel, cuda_kernel, inline
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, store_f32
from bolt_numba.kernels.cuda.reductions.fold import FLOATS
from bolt_numba.kernels.cuda.reductions.lines import LONGEST_ROW, Held, held, row_access
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.norm import LayerNormalization, RMSNormalization, RowNorm
from bolt_numba.ops.registry import normalise_axis

ITEMS = {"f32": 4, "f16": 2, "bf16": 2}
_ROWS: dict[str, Any] = {
    **dict.fromkeys(("x", "scale", "y"), PTR), **dict.fromkeys(("bias", "mean", "inverse"), PTR_OR_0),
    "rows": I64, "n": I64, "epsilon": FLOAT,
}  # fmt: skip


def _reach(x: int, scale: int, y: int, a: Numbers) -> dict[str, int]:
    found = {"x": x * a.rows * a.n, "scale": scale * a.n, "bias": scale * a.n, "y": y * a.rows * a.n}
    return found | {"mean": 4 * a.rows, "inverse": 4 * a.rows}


@inline
def spread_of(squares, off, epsilon):
    """Root of a variance plus epsilon; squares: their mean around a point ``off`` from the mean, infinite or not."""
    variance = squares if squares == np.float32(math.inf) else squares - off * off
    return math.sqrt(variance + epsilon)


@functools.cache
def normalise_rows(is_centred: bool, x_kind: str, kind: str, row: Held) -> CudaKernel:
    """LayerNormalization, or RMSNormalization (not centred); scale, bias and result are of ``kind``."""
    x_unit, unit, lanes, per, rows_of_block = ITEMS[x_kind], ITEMS[kind], row.lanes, row.per, row.rows
    load_row, _ = row_access(x_kind, x_unit, row)
    load_factors, store_row = row_access(kind, unit, row)
    row_sum = row.sum

    def body(x, scale, y, bias, mean, inverse, rows, n, epsilon):
        thread = np.uint32(cuda.threadIdx.x)
        at = np.int64(np.uint32(cuda.blockIdx.x) * np.uint32(rows_of_block) + thread // np.uint32(lanes))
        lane = np.int64(thread % np.uint32(lanes))
        if at < rows:
            v, factors = cuda.local.array(per, np.float32), cuda.local.array(per, np.float32)
            load_row(v, x + at * n * x_unit, n, lane, np.float32(0))
            share, middle, off = np.float32(1) / np.float32(n), np.float32(0), np.float32(0)
            if is_centred:
                for e in range(per):
                    middle += v[e]
                middle = row_sum(middle) * share
                for e in range(per):
                    held_here = ((e // run) * lanes + lane) * run + e % run < n
                    v[e] = v[e] - middle if held_here else np.float32(0)
                    off += v[e]
                off = row_sum(off) * share
            squares = np.float32(0)
            for e in range(per):
                squares += v[e] * v[e]
            factor = np.float32(1) / spread_of(row_sum(squares) * share, off, epsilon)
            load_factors(factors, scale, n, lane, np.float32(0))
            for e in range(per):
                v[e] = (v[e] - off) * factor * factors[e]
            if bias != 0:
                load_factors(factors, bias, n, lane, np.float32(0))
                for e in range(per):
                    v[e] += factors[e]
            store_row(v, y + at * n * unit, n, lane)
            if mean != 0 and lane == 0:
                store_f32(mean + at * 4, middle + off)
                store_f32(inverse + at * 4, factor)

    run = row.run
    body.__name__ = f"{'layer' if is_centred else 'rms'}_norm_rows_{x_kind}_{kind}_{lanes}x{per}"
    return cuda_kernel(
        threads=row.threads, blocks=lambda a: row.blocks(a.rows),
        extents=functools.partial(_reach, x_unit, unit, unit), **_ROWS,
    )(body)  # fmt: skip


@functools.cache
def normalise_long_rows(is_centred: bool, x_kind: str, kind: str) -> CudaKernel:
    """A block for each row, which is read again for each sum."""
    x_unit, unit, row = ITEMS[x_kind], ITEMS[kind], Held(512, 1, 1)
    load, load_factor = getattr(lang, f"load_{x_kind}"), getattr(lang, f"load_{kind}")
    store, row_sum, lanes = getattr(lang, f"store_{kind}"), row.sum, row.lanes

    def body(x, scale, y, bias, mean, inverse, rows, n, epsilon):
        lane, at = np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.x)
        start, to = x + at * n * x_unit, y + at * n * unit
        share, middle, off, squares = np.float32(1) / np.float32(n), np.float32(0), np.float32(0), np.float32(0)
        if is_centred:
            for i in range(lane, n, lanes):
                middle += load(start + i * x_unit)
            middle = row_sum(middle) * share
        for i in range(lane, n, lanes):
            v = load(start + i * x_unit) - middle
            off += v
            squares += v * v
        off = row_sum(off) * share if is_centred else np.float32(0)
        factor = np.float32(1) / spread_of(row_sum(squares) * share, off, epsilon)
        for i in range(lane, n, lanes):
            v = (load(start + i * x_unit) - middle - off) * factor * load_factor(scale + i * unit)
            store(to + i * unit, v + load_factor(bias + i * unit) if bias != 0 else v)
        if mean != 0 and lane == 0:
            store_f32(mean + at * 4, middle + off)
            store_f32(inverse + at * 4, factor)

    body.__name__ = f"{'layer' if is_centred else 'rms'}_norm_long_rows_{x_kind}_{kind}"
    return cuda_kernel(
        threads=lanes, blocks=lambda a: a.rows, extents=functools.partial(_reach, x_unit, unit, unit), **_ROWS
    )(body)


def _row_length(op: RowNorm, ins: Types) -> int | None:
    """Elements of a normalised row when all operands are floats of known and full length, along the same axes."""
    x = ins[0]
    if not x.is_static or not 0 < x.size <= MAX_I32 or not x.dims or x.dtype not in FLOATS:
        return None
    row = x.dims[normalise_axis(op, op.axis, len(x.dims)) :]
    n, k = math.prod(row), len(row)
    for t in ins[1:]:
        if t is not None and not (t.is_static and t.dtype in FLOATS and t.size == n == math.prod(t.dims[-k:])):
            return None
    return n


@kernel(
    LayerNormalization, RMSNormalization, device="cuda", accepts=lambda op, ins: _row_length(op, ins) is not None,
    inplace=(0,),
)  # fmt: skip
def row_normalisation(op: RowNorm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rows in registers, longer ones by blocks that read them again."""
    n, x = tested(_row_length(op, ins)), ins[0]
    has_bias, stats = len(ins) > 2 and ins[2] is not None, len(outs) > 1
    args: dict[str, Argument] = {"x": In(0), "scale": In(1), "bias": In(2) if has_bias else None, "y": Out(0)}
    args |= {"mean": Out(1) if stats else None, "inverse": Out(2) if stats else None}
    args |= {"rows": x.size // n, "n": n, "epsilon": op.epsilon}
    forms = isinstance(op, LayerNormalization), dtype_name(x.dtype), dtype_name(outs[0].dtype)
    if n > LONGEST_ROW:
        return [Step(normalise_long_rows(*forms), args)]
    return [Step(normalise_rows(*forms, held(n, max(x.dtype.itemsize, outs[0].dtype.itemsize))), args)]
