"""Readers of onnxruntime's attention over bytes and lookup in tables of few bits (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I8
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.attention import attention
from bolt_numba.converters.onnx.reading.microsoft.quantized import real
from bolt_numba.converters.onnx.reading.registry import microsoft
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.layers.products.matmul_bits import unpacked


@microsoft("QAttention")
def qattention(
    b: NodeBuilder,
    x: Value,
    weights: Value,
    bias: Value,
    x_scale: Value,
    w_scale: Value,
    mask: Value | None = None,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    past: Value | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: bool = False,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
) -> Any:
    """Attention of what x and the projection mean; w_scale: [] or one for each column."""
    projection = b(DequantizeLinear(axis=1), weights, w_scale, w_zero)
    return attention(
        b,
        real(b, x, x_scale, x_zero),
        projection,
        bias,
        mask,
        past,
        num_heads=num_heads,
        mask_filter_value=mask_filter_value,
        scale=scale,
        unidirectional=unidirectional,
        do_rotary=do_rotary,
        past_present_share_buffer=past_present_share_buffer,
    )


@microsoft("GatherBlockQuantized")
def gather_block_quantized(
    b: NodeBuilder,
    data: Value,
    indices: Value,
    scales: Value,
    zero_points: Value | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Rows of a constant table.  Where they are of f32 and quantised along the last axis, the table stays in bytes.

    data: int4 or uint4, or u8 that holds codes of 2, 4 or 8 bits along the last axis, the low ones of a byte first.
    """
    table, scale = b.known_array(data, "data"), b.known_array(scales, "scales")
    zero = None if zero_points is None else b.known_array(zero_points, "zero_points")
    b.unsupported_if(bits not in (2, 4, 8) or block_size < 1, f"bits {bits}, block_size {block_size}")
    middle = 0
    if table.dtype == np.uint8:
        middle = 1 << (bits - 1)
        table, zero = unpacked(table, bits), None if zero is None else unpacked(zero, bits)
    axis = quantize_axis + b.rank_of(data) if quantize_axis < 0 else quantize_axis
    codes = table.astype(np.int16) - middle
    zeros = None if zero is None else np.take(zero, np.arange(scale.shape[axis]), axis=axis).astype(np.int16) - middle
    if scale.dtype == F32 and axis == table.ndim - 1 and gather_axis in (0, -table.ndim):
        held = [codes.astype(I8), scale, *(() if zeros is None else (zeros.astype(I8),))]
        rows = [b(Gather(0), b.const(np.ascontiguousarray(v)), indices) for v in held]
        return b(DequantizeLinear(-1, block_size), *rows)
    spread = [_spread(v, block_size, axis, table.shape[axis]) for v in (scale, zeros) if v is not None]
    lost = spread[1].astype(F32) if zeros is not None else F32.type(0)
    meaning = (codes.astype(F32) - lost) * spread[0].astype(F32)
    return b(Gather(gather_axis), b.const(np.ascontiguousarray(meaning.astype(scale.dtype))), indices)


def _spread(v: Any, block: int, axis: int, size: int) -> Any:
    return np.take(np.repeat(v, block, axis=axis), np.arange(size), axis=axis)
