"""Products and what holds several, recurrent layers, rotations; integer products as floats between conversions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I8, I32, I64, U8
from bolt_numba.ops.arrays.between_bytes import BetweenBytes
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import ConstantOfShape, Trilu
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear, limits
from bolt_numba.ops.arrays.reduce import ReduceSum, ReduceSumSquare, Softmax
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Split, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.decomposed.decompose import Terms, WholeError, decomposes
from bolt_numba.ops.layers.attention.attention import FusedAttention, swapped
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.distances import Distances
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.ops.pointwise import Abs, Add, Cast, Clip, Div, Mul, Round, Sub
from bolt_numba.ops.pointwise.chain import Chain

MASKED = -1e30
"""What keeps a query from a key; -inf would make NaN of a line of them."""
SHARED = ("strides", "pads", "dilations", "group", "auto_pad", "layout")
"""Attributes of both convolutions."""


def _i64(*numbers: int) -> Any:
    return np.array(numbers, I64)


@decomposes(Chain)
def chain(op: Chain, b: Terms, *given: Any) -> Any:
    """Its operators."""
    values = list(given)
    for step, operands in op.steps:
        values.append(b(step, *(values[i] for i in operands)))
    return tuple(values[i] for i in op.results)


@decomposes(MatMul)
def product(op: MatMul, b: Terms, x: Any, y: Any, bias: Any = None) -> Any:
    """``MatMul(Transpose(a), Transpose(b)) * alpha + c``."""
    if op == MatMul() and bias is None:
        raise WholeError("it is a product and nothing else")
    made = b(MatMul(), _turned(b, x, op.trans_a), _turned(b, y, op.trans_b))
    made = made if op.alpha == 1 else b(Mul(), made, op.alpha)
    return made if bias is None else b(Add(), made, bias)


def _turned(b: Terms, x: Any, swap: bool) -> Any:
    """The last two axes exchanged; a vector stays."""
    if not swap:
        return x
    if x.type.shape is None:
        raise WholeError("the rank is not known")
    rank = len(x.type.shape)
    return x if rank < 2 else b(Transpose((*range(rank - 2), rank - 1, rank - 2)), x)


@decomposes(ConvTranspose)
def sized(op: Any, b: Terms, x: Any, w: Any, *bias: Any) -> Any:
    """``ConvTranspose`` with the pads and the room that follow from the sizes of its result."""
    if not (op.output_shape or op.auto_pad.startswith("SAME")) or not (x.type.is_static and w.type.is_static):
        raise WholeError("its pads are given, or follow from sizes that only the run tells")
    sizes, kernel = x.type.dims[2:] if op.layout == "NCHW" else x.type.dims[1:-1], w.type.dims[2:]
    windows, pads = op.windows(kernel), op.resolved_pads(sizes, kernel)
    room = []
    for i, (size, out) in enumerate(zip(sizes, op.output_dims(sizes, kernel), strict=True)):
        room.append(out - (size - 1) * windows.strides[i] - windows.spans[i] + pads[i] + pads[len(sizes) + i])
        if not 0 <= room[-1] < windows.strides[i]:
            raise WholeError("a result that is larger than what its input reaches")
    plain = {"output_shape": (), "auto_pad": "NOTSET", "pads": pads, "output_padding": tuple(room)}
    return b(dataclasses.replace(op, **plain), x, w, *bias)


@decomposes(Distances)
def distances(op: Distances, b: Terms, x: Any, points: Any) -> Any:
    """``ReduceSumSquare(Unsqueeze(x) - Unsqueeze(w))``, or of Abs where the power is 1."""
    apart = b(Sub(), b(Unsqueeze(), x, _i64(2)), b(Unsqueeze(), points, _i64(0)))
    if op.power == 2:
        return b(ReduceSumSquare(keepdims=False), apart, _i64(1))
    return b(ReduceSum(keepdims=False), b(Abs(), apart), _i64(1))


@decomposes(FusedAttention)
def attention(op: FusedAttention, b: Terms, q: Any, k: Any = None, v: Any = None, mask: Any = None) -> Any:
    """``MatMul(Softmax(MatMul(q, k^T) * scale + mask), v)``."""
    if op.packed:
        q, k, v = b(Split(-2, 3), q)
    if not all(x.type.shape for x in (q, k, v)):
        raise WholeError("the rank is not known")
    given = zip((q, k, v), op.layouts, strict=True)
    q, k, v = (_heads_exchanged(b, x) if layout == "SHD" else x for x, layout in given)
    scores = b(MatMul(trans_b=True), q, k)
    scores = scores if op.scale == 1 else b(Mul(), scores, op.scale)
    scores = scores if mask is None else b(Add(), scores, mask)
    scores = b(Add(), scores, _causal(b, scores)) if op.causal else scores
    y = b(MatMul(), b(Softmax(-1), scores), v)
    return _heads_exchanged(b, y) if op.y_layout == "SHD" else y


def _heads_exchanged(b: Terms, x: Any) -> Any:
    return b(Transpose(swapped(tuple(range(len(x.type.shape))))), x)


def _causal(b: Terms, scores: Any) -> Any:
    """0 where the key is not after the query, else a number that no score outweighs."""
    dtype = scores.type.dtype
    low = max(MASKED, float(np.finfo(dtype).min) / 2) if dtype.kind == "f" else MASKED
    return b(Trilu(upper=True), b(ConstantOfShape(low, dtype), b(Shape(start=-2), scores)), np.array(1, I64))


@decomposes(RotaryEmbedding)
def rotary(op: RotaryEmbedding, b: Terms, x: Any, cos: Any, sin: Any, positions: Any = None) -> Any:
    """``Concat(x1 * cos - x2 * sin, x1 * sin + x2 * cos)`` of the halves of each head, or the neighbours in it."""
    half, size = (() if t.type.shape is None else t.type.shape[-1:] for t in (cos, x))
    if not half or not size or not isinstance(half[0], int) or not isinstance(size[0], int):
        raise WholeError("heads of a size that is not known")
    turning, rest = 2 * half[0], size[0] - 2 * half[0]
    x, *tail = b(Split(-1, 2), x, _i64(turning, rest)) if rest else (x,)
    tables = [t if positions is None else b(Gather(0), t, positions) for t in (cos, sin)]
    c, s = (b(Unsqueeze(), t, _i64(1 if op.layout == "HSD" else 2)) for t in tables)
    if op.interleaved:
        pairs = b(Split(-1, 2), b(Reshape(), x, _i64(0, 0, 0, half[0], 2)), _i64(1, 1))
        first, second = (b(Squeeze(), pair, _i64(-1)) for pair in pairs)
    else:
        first, second = b(Split(-1, 2), x, _i64(half[0], half[0]))
    turned = [b(Sub(), b(Mul(), first, c), b(Mul(), second, s)), b(Add(), b(Mul(), first, s), b(Mul(), second, c))]
    if op.interleaved:
        y = b(Concat(-1), *(b(Unsqueeze(), t, _i64(-1)) for t in turned))
        turned = [b(Reshape(), y, _i64(0, 0, 0, turning))]
    return b(Concat(-1), *turned, *tail) if len(turned) + len(tail) > 1 else turned[0]


@decomposes(LSTM, GRU, RNN)
def steps_first(op: Any, b: Terms, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, *rest: Any) -> Any:
    """``Transpose`` of the layer whose steps stand first, before the batch."""
    if not op.layout:
        raise WholeError("the steps stand first already")
    turn = Transpose((1, 0, 2))
    states = [v if v is None or i >= op.states else b(turn, v) for i, v in enumerate(rest)]
    y, *last = b(dataclasses.replace(op, layout=0), b(turn, x), w, r, bias, lengths, *states)
    return b(Transpose((2, 0, 1, 3)), y), *(b(turn, v) for v in last)


# --- bytes -----------------------------------------------------------------------------------------------------------


@decomposes(ByteTable)
def byte_table(op: ByteTable, b: Terms, x: Any, table: Any) -> Any:
    """``Gather(table, Cast(x))``: negative indices count from the end, as the entries of negative bytes do."""
    return b(Gather(0), table, b(Cast(I32), x))


@decomposes(BetweenBytes)
def between_bytes(op: Any, b: Terms, x: Any, scale: Any, zero: Any, y_scale: Any, y_zero: Any, *others: Any) -> Any:
    """``QuantizeLinear(op(DequantizeLinear(x)))``."""
    return b(QuantizeLinear(), b(op.op, b(DequantizeLinear(), x, scale, zero), *others), y_scale, y_zero)


@decomposes(QLinearConv, QLinearMatMul, whole=True)
def real_product(op: QLinearConv | QLinearMatMul, b: Terms, *given: Any) -> Any:
    """``QuantizeLinear(Conv(DequantizeLinear(x), ...))``, or MatMul; a byte may differ by one."""
    operands = [*given, *[None] * 6][:12]
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias, residual, r_scale, r_zero = operands
    if any(len(v.type.shape or ()) > 1 for v in (x_scale, x_zero, w_scale, y_scale) if v is not None):
        raise WholeError("scales for each row of each matrix, or each image")
    if not all(v is None or v.type.is_static for v in (x_scale, x_zero, w_scale, w_zero)):
        raise WholeError("scales of a number that only the run tells")
    if bias is not None and bias.type.dtype == I32:
        bias = _real_bias(b, bias, x_scale, w_scale)
    is_conv = isinstance(op, QLinearConv)
    left, right = _real(b, x, x_scale, x_zero, -2), _real(b, w, w_scale, w_zero, 0 if is_conv else -1)
    if is_conv:
        plain: Any = Conv(**{name: getattr(op, name) for name in SHARED})
        y = b(plain, left, right, *([] if bias is None else [bias]))
    else:
        y = b(MatMul(), left, right)
        y = y if bias is None else b(Add(), y, bias)
    if residual is not None:
        y = b(Add(), y, residual if r_scale is None else _real(b, residual, r_scale, r_zero, 0))
    y = y if op.activation is None else b(op.activation, y)
    return y if y_scale is None else b(QuantizeLinear(axis=-2), y, y_scale, y_zero)


def _real_bias(b: Terms, bias: Any, x_scale: Any, w_scale: Any) -> Any:
    """The numbers that i32 sums stand for: of each column, or of each row and column where rows have scales."""
    if x_scale.type.size > 1:
        return b(Mul(), b(Cast(F32), bias), b(Mul(), b(Reshape(), x_scale, _i64(-1, 1)), w_scale))
    return _real(b, bias, b(Mul(), _expanded(b, x_scale, []), w_scale), None, 0)


def _real(b: Terms, x: Any, scale: Any, zero: Any, axis: int) -> Any:
    """The numbers that integers stand for; scale and zero point may be one number and several."""
    operands = [v for v in (scale, zero) if v is not None]
    length = max(v.type.size for v in operands)
    shape = [length] if length > 1 else []
    return b(DequantizeLinear(axis=axis), x, *(_expanded(b, v, shape) for v in operands))


def _expanded(b: Terms, v: Any, shape: list[int]) -> Any:
    """One number as several, or in the shape of one."""
    if v.type.shape == tuple(shape) or v.type.size > 1:
        return v
    if v.type.known is not None:
        return b.const(np.broadcast_to(v.type.known.reshape(()), shape).copy())
    return b(Expand() if shape else Reshape(), v, np.array(shape, I64))


def _along(op: Any, b: Terms, v: Any, x: Any) -> Any:
    """One number, or one for each index of the axis shaped to broadcast against ``x``."""
    if not x.type.shape or op.block_size or v.type.shape is None or len(v.type.shape) > 1:
        raise WholeError("scales in blocks, or of one number alone")
    behind = len(x.type.shape) - 1 - op.axis % len(x.type.shape)
    one = v.type.shape in ((), (1,))
    return v if one or not behind else b(Reshape(), v, _i64(-1, *[1] * behind))


@decomposes(DequantizeLinear)
def dequantise(op: DequantizeLinear, b: Terms, x: Any, scale: Any, zero: Any = None) -> Any:
    """``(Cast(x) - zero_point) * scale``."""
    if scale.type.dtype != F32 or x.type.dtype not in (I8, U8):
        raise WholeError("other numbers than bytes")
    y = b(Cast(F32), x)
    y = y if zero is None else b(Sub(), y, _along(op, b, b(Cast(F32), zero), x))
    return b(Mul(), y, _along(op, b, scale, x))


@decomposes(QuantizeLinear)
def quantise(op: QuantizeLinear, b: Terms, x: Any, scale: Any, zero: Any = None) -> Any:
    """``Cast(Clip(Round(x / scale) + zero_point))``."""
    target = op.infer(*(v.type for v in (x, scale, zero) if v is not None)).dtype
    if target not in (I8, U8) or x.type.dtype != F32 or scale.type.dtype != F32:
        raise WholeError("other numbers than bytes")
    y = b(Round(), b(Div(), x, _along(op, b, scale, x)))
    y = y if zero is None else b(Add(), y, _along(op, b, b(Cast(F32), zero), x))
    return b(Cast(target), b(Clip(*limits(target)), y))
