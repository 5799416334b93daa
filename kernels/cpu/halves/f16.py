"""Products and convolutions with constant weights in float16, two bytes each; everything else is as in f32.

Half the bytes come from memory, which is what products of few rows wait for.  Weights are widened in registers, where
`sweep` reads them.  Sessions of precision ``f16`` prefer these makers to those of `matmul` and `conv`.  Weights that
float16 cannot hold stay f32.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, BOOL, F16, F32, Array, TensorType
from bolt_numba.kernels.cpu.convolution.conv import accepts_conv, filter_steps
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    tile_rank1_rows_bf16,
    tile_rank1_rows_f16,
    tile_row,
    tile_row_narrow,
    vload,
    vstore_f16,
)
from bolt_numba.kernels.cpu.products.matmul import PanelForm, accepts_matmul, product_steps
from bolt_numba.kernels.cpu.products.pack_narrow import pack_narrow, packing
from bolt_numba.kernels.cpu.products.sweep import (
    MR,
    TILE_ARGUMENTS,
    by_height,
    pairs_of_panels,
    plain_tile,
    sweep,
    sweep_body,
)
from bolt_numba.kernels.cpu.products.sweep_extents import FIELDS, sweep_reach
from bolt_numba.kernels.jit import Inline, Native, inline, native
from bolt_numba.kernels.registry import Context, Outs, Step, Types, kernel, result_of
from bolt_numba.kernels.unseen import content, derived
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul

UNIT = 2
"""Bytes of an element of B."""
MOST_PIXELS = 2 * MR
"""Of all images, for which filters are f16."""


def _sweep(name: str, rank1: Any) -> Native:
    """`sweep` of panels whose elements of 16 bits the word ``rank1`` widens."""

    def tile(mr: int, nv: int, first: Any = tile_row) -> Inline:
        return plain_tile(mr, nv, first, rank1, UNIT)

    narrow = partial(tile, first=tile_row_narrow) if LANES == 16 else None
    tile_any = by_height("tile_any", TILE_ARGUMENTS, tile, narrow=narrow)
    body = sweep_body(name, tile_any, pairs_of_panels(rank1, UNIT), UNIT)
    return native(extents=partial(sweep_reach, unit=UNIT), **FIELDS)(body)


sweep_f16 = _sweep("sweep_f16", tile_rank1_rows_f16)
SWEEPS = {F32: sweep, F16: sweep_f16, BF16: _sweep("sweep_wide_bf16", tile_rank1_rows_bf16)}
"""By what panels hold."""


@inline
def _put_halves(to, rows, width, count):
    for q in range(0, width * count, LANES):
        vstore_f16(to + UNIT * q, vload(rows + 4 * q))


pack_panels_f16 = partial(pack_narrow, packing("pack_halves", 1, _put_halves), F16, 1)
"""As `pack.pack_panels`: [..., K, N] of any strides to [..., K * panel_columns(N)] of float16."""
HALF_PANELS = PanelForm(UNIT, pack_panels_f16, sweep_f16, ("f16",))
LEAST_WEIGHT, GREATEST_WEIGHT = 2.0**-13, float(np.finfo(F16).max)
"""Within these, the greatest weight of a column bounds what rounding takes from the others: 2 ** -12 of it."""


def fits(w: Array, axis: int, alpha: float = 1.0) -> Array:
    """[1]: whether float16 holds weights times alpha as it should; axis: that of the columns."""
    others = tuple(i for i in range(w.ndim) if i != axis % w.ndim)
    top = np.maximum(w.max(others, initial=0), -w.min(others, initial=0)).astype(np.float64) * abs(alpha)
    small = (top < LEAST_WEIGHT) & (top > 0)
    good = bool((top <= GREATEST_WEIGHT).all())
    if good and small.any():
        few = np.compress(small, w, axis).astype(np.float32) * np.float32(alpha)
        good = np.array_equal(few, few.astype(F16))
    return np.array([good])


def unfit(w: TensorType, axis: int, alpha: float, context: Context) -> float:
    """What makers tell as their error: 0, or infinity where weights do not fit."""
    found = derived(w.known, ("fits f16", axis, alpha), lambda w: fits(w, axis, alpha), BOOL)
    return 0.0 if content(found)[0] else np.inf


def _error_of_matrix(op: MatMul, ins: Types, context: Context) -> float:
    return unfit(ins[1], -2 if op.trans_b else -1, op.alpha, context)


def _error_of_filters(op: Conv, ins: Types, context: Context) -> float:
    return unfit(ins[1], 0, 1.0, context)


def accepts_weights(op: MatMul, ins: Types) -> bool:
    """Matrices of constants."""
    b = ins[1]
    return b.known is not None and len(b.dims) > 1 and accepts_matmul(op, ins)


@kernel(MatMul, accepts=accepts_weights, precision="f16", rank=1, error=_error_of_matrix)
def matmul_f16(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """As `matmul`, panels in float16."""
    return product_steps(op, ins, context, HALF_PANELS)


def accepts_filters(op: Conv, ins: Types) -> bool:
    """Constant filters that few pixels see: else the arithmetic takes longer than to read them."""
    out = result_of(op, ins).dims if op.layout == "NHWC" else ()
    return 0 < math.prod(out[:-1]) <= MOST_PIXELS and accepts_conv(op, ins)


@kernel(Conv, accepts=accepts_filters, works=accepts_conv, precision="f16", rank=1, error=_error_of_filters)
def conv_f16(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """As `conv`, panels in float16."""
    return filter_steps(op, ins, outs, context, HALF_PANELS)
