"""Readers of onnxruntime's quantised operators (domain com.microsoft): integers around the float operator they mean."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.forks import renew_cached_properties
from bolt_numba.base.types import F32, F64, I32, U8
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ForeignBuilder
from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import microsoft
from bolt_numba.converters.onnx.reading.tables.reduce import gemm
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ReduceMean, Softmax
from bolt_numba.ops.arrays.shape import Concat, Transpose
from bolt_numba.ops.dtypes import FLOATS
from bolt_numba.ops.layers.pool import AveragePool, MaxPool
from bolt_numba.ops.layers.products.integer_products import MatMulInteger
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits, packed_codes, unpacked
from bolt_numba.ops.layers.products.matmul_forms import ROUNDED_TOGETHER
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM
from bolt_numba.ops.pointwise import Add, Cast, Div, LeakyRelu, Mul, Sigmoid, Where

microsoft("QuantizeLinear")(AsIs(QuantizeLinear, lacks=["block_size", "output_dtype", "saturate"]))
microsoft("DequantizeLinear")(AsIs(DequantizeLinear, lacks=["block_size", "output_dtype"]))


def real(b: NodeBuilder, x: Value, scale: Value, zero: Value | None) -> Value:
    """Float values of a quantised operand."""
    return b(DequantizeLinear(), x, scale, zero)


def stored(b: NodeBuilder, y: Value, scale: Value, zero: Value | None) -> Value:
    """Quantised form of a float result."""
    return b(QuantizeLinear(), y, scale, zero)


class OverIntegers:
    """A reader of an operator over integers, made of one over floats.

    operands: names; ":" behind those that come with a scale and a zero point, as the result does.
    """

    def __init__(self, function: Any, operands: str = "x:") -> None:
        self.function, self.names = function, operands.split()

    def __call__(self, b: NodeBuilder, *operands: Any, **attributes: Any) -> Any:
        left = iter((*operands, None))
        reals = [real(b, next(left), next(left), next(left)) if ":" in name else next(left) for name in self.names]
        return stored(b, self.function(b, *reals, **attributes), next(left), next(left))

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        place, maybe = inspect.Parameter.POSITIONAL_OR_KEYWORD, "Value | None"
        made = [inspect.Parameter("b", place)]
        for name in (*self.names, "result:"):
            key = name.rstrip(":")
            made += [inspect.Parameter(key, place, annotation="Value")] if key != "result" else []
            if ":" in name:
                made.append(inspect.Parameter(f"{key}_scale", place, annotation="Value"))
                made.append(inspect.Parameter(f"{key}_zero", place, annotation=maybe))
        made[-1] = made[-1].replace(default=None)
        own = inspect.signature(self.function).parameters.values()
        return inspect.Signature([*made, *(p for p in own if p.kind == p.KEYWORD_ONLY)])


renew_cached_properties(OverIntegers)
microsoft("QLinearAdd")(OverIntegers(AsIs(Add()), "x: y:"))
microsoft("QLinearSigmoid")(OverIntegers(AsIs(Sigmoid())))
microsoft("QLinearLeakyRelu")(OverIntegers(AsIs(LeakyRelu)))
microsoft("QLinearWhere")(OverIntegers(AsIs(Where()), "condition x: y:"))


@microsoft("QLinearMul")
def qlinear_mul(
    b: NodeBuilder,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y: Value,
    y_scale: Value,
    y_zero: Value | None,
    z_scale: Value,
    z_zero: Value | None = None,
) -> Value:
    """Whole numbers are multiplied, which is exact, and the scales apart, in f64: their product may be tiny."""
    one = b.const(np.ones((), F32))
    product = b(Mul(), real(b, x, one, x_zero), real(b, y, one, y_zero))
    scales = [b(Cast(F64), scale) for scale in (x_scale, y_scale, z_scale)]
    ratio = b(Cast(F32), b(Div(), b(Mul(), *scales[:2]), scales[2]))
    return stored(b, b(Mul(), product, ratio), one, z_zero)


@microsoft("QLinearSoftmax")
@OverIntegers
def qlinear_softmax(b: NodeBuilder, x: Value, *, axis: int = -1, opset: int = 13) -> Value:
    last = axis in (-1, b.rank_of(x) - 1)
    b.unsupported_if(opset < 13 and not last, "softmax over several axes")
    return b(Softmax(axis), x)


@microsoft("QLinearConcat")
def qlinear_concat(b: NodeBuilder, y_scale: Value, y_zero: Value, *operands: Value, axis: int) -> Value:
    b.invalid_if(len(operands) % 3, "number of operands", len(operands), "a multiple of 3")
    parts = [real(b, *operands[i : i + 3]) for i in range(0, len(operands), 3)]
    return stored(b, b(Concat(axis), *parts), y_scale, y_zero)


def _averaged(b: NodeBuilder, made: AveragePool, x: Value, *, channels_last: int = 0) -> Any:
    return b(replace(made, layout="NHWC" if channels_last else "NCHW"), x)


microsoft("QLinearAveragePool")(OverIntegers(AsIs(AveragePool, lacks=["dilations"], then=_averaged)))


@microsoft("QLinearGlobalAveragePool")
@OverIntegers
def qlinear_global_average_pool(b: NodeBuilder, x: Value, *, channels_last: int = 0) -> Value:
    return b(ReduceMean(), x, b.spatial_axes(x) - (1 if channels_last else 0))


def _of_last_channels(b: NodeBuilder, made: MaxPool, x: Value) -> Any:
    return b(replace(made, layout="NHWC"), x)


microsoft("NhwcMaxPool")(AsIs(MaxPool, lacks=["storage_order", "indices"], then=_of_last_channels))


@microsoft("QGemm")
def qgemm(
    b: NodeBuilder,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    y: Value,
    y_scale: Value,
    y_zero: Value,
    c: Value | None = None,
    z_scale: Value | None = None,
    z_zero: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> Value:
    """The bias is i32 in units of alpha * x_scale * y_scale."""
    if c is not None:
        c = b(Mul(), b(Cast(F32), c), b(Mul(), b(Mul(), x_scale, y_scale), alpha))
    weight = b(DequantizeLinear(axis=0 if transB else 1), y, y_scale, y_zero)
    made = gemm(b, real(b, x, x_scale, x_zero), weight, c, alpha=alpha, transA=transA, transB=transB)
    return made if z_scale is None else stored(b, made, z_scale, z_zero)


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(
    b: NodeBuilder,
    x: Value,
    y: Value,
    x_scale: Value,
    y_scale: Value,
    x_zero: Value | None = None,
    y_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """The sums are scaled in f32, and the result is of the scales' dtype."""
    product = b(Cast(F32), b(MatMulInteger(), x, y, x_zero, y_zero))
    made = b(Mul(), product, b(Mul(), b(Cast(F32), x_scale), b(Cast(F32), y_scale)))
    return b(Cast(x_scale.type.dtype), made if bias is None else b(Add(), made, b(Cast(F32), bias)))


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    b: NodeBuilder, x: Value, y: Value, y_scale: Value, y_zero: Value | None = None, bias: Value | None = None
) -> Value:
    quantised, x_scale, x_zero = b(DynamicQuantizeLinear(), x)
    return matmul_integer_to_float(b, quantised, y, x_scale, y_scale, x_zero, y_zero, bias)


@microsoft("MatMulNBits")
def matmul_nbits(
    b: NodeBuilder,
    x: Value,
    packed: Value,
    scales: Value,
    zero_points: Value | None = None,
    group_index: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
) -> Value:
    """Weights of 2, 4 or 8 bits in blocks along K, each with a scale; where x is f32 they stay codes.

    packed: [N, blocks, block_size * bits / 8] u8, low codes first · zero_points: packed likewise or floats, half the
    range when absent · group_index: [K], whose scale and zero point an element has, the block it lies in when absent.
    accuracy_level 4 lets x be rounded to 8 bits by groups of 32, which is done where blocks are whole groups; codes of
    2 bits become 4 otherwise.
    """
    if bits not in (2, 4, 8) or block_size < 1 or block_size * bits % 8:
        raise b.unsupported(f"bits {bits}, block_size {block_size}")
    blocks = _held_blocks(b, (x, packed, scales, zero_points, group_index, bias), K, N, bits, block_size)
    codes = unpacked(b.known_array(packed, "weights").reshape(N, blocks * block_size * bits // 8), bits)
    scale = b.known_array(scales, "scales").reshape(N, blocks).astype(F32)
    zero = np.full_like(scale, 1 << (bits - 1))
    if zero_points is not None:
        zero = b.known_array(zero_points, "zero points")
        zero = unpacked(zero.reshape(N, -1), bits)[:, :blocks] if zero.dtype == np.uint8 else zero
        zero = np.ascontiguousarray(zero.reshape(N, blocks).astype(F32))
    in_order = groups = np.arange(K) // block_size
    if group_index is not None:
        groups = b.known_array(group_index, "group_index").reshape(-1)[:K].astype(np.int64)
        if len(groups) < K or groups.min(initial=0) < 0 or groups.max(initial=0) >= blocks:
            raise b.invalid("group_index", groups, f"{K} numbers below {blocks}")
    order = np.argsort(groups, kind="stable")
    if x.type.dtype != F32 or not np.array_equal(groups[order], in_order):
        weight = (codes[:, :K] - zero[:, groups]) * scale[:, groups]
        return b(MatMul(trans_b=True), x, b.const(weight.astype(x.type.dtype)), bias)
    if group_index is not None:
        x = b(Gather(-1), x, b.const(order))
        codes = np.concatenate([codes[:, order], codes[:, K:]], axis=1)
    rounded = accuracy_level == 4 and block_size % ROUNDED_TOGETHER == 0
    width = bits if rounded else max(bits, 4)
    held = b.const(packed_codes(codes, width).reshape(N, blocks, -1)), b.const(scale)
    points = b.const(zero) if zero_points is not None or width != bits else None
    return b(MatMulNBits(width, block_size, rounded), x, *held, points, bias)


def _held_blocks(b: NodeBuilder, operands: Any, K: int, N: int, bits: int, block_size: int) -> int:
    """Blocks of a row of weights; operands of other shapes or dtypes are refused."""
    b.invalid_if(min(K, N) < 1, "K and N", (K, N), "at least 1")
    x, packed, scales, zero_points, group_index, bias = operands
    blocks = -(-K // block_size)
    row = -(-blocks * bits // 8)
    sizes = Forms(b, K=K, N=N, blocks=blocks, bytes=block_size * bits // 8, all=N * blocks, row=row, rows=N * row,
                  padded=blocks * block_size)  # fmt: skip
    sizes.want("A", x, "... K", *FLOATS)
    sizes.want("B", packed, "N blocks bytes", U8)
    sizes.want("scales", scales, "N blocks|all", *FLOATS)
    if zero_points is None or zero_points.type.dtype in FLOATS:
        sizes.want("zero_points", zero_points, "N blocks|all", *FLOATS)
    else:
        sizes.want("zero_points", zero_points, "N row|rows", U8)
    sizes.want("g_idx", group_index, "K|padded", I32)
    sizes.want("bias", bias, "N", x.type.dtype)
    return blocks


class LstmOfBytes(AsIs):
    """LSTM of integer weights; its activations are rounded to 8 bits.

    w: [d, i, 4 h] and r: [d, h, 4 h], transposed to what LSTM takes · scales and zero points: [d] or [d, 4 h].
    """

    def __call__(self, b: ForeignBuilder, *operands: Any, **attributes: Any) -> Any:
        x, w, r, *others = operands
        return super().__call__(b, x, _transposed(b, w), _transposed(b, r), *others, **attributes)


_STATES = "bias? sequence_lens? initial_h? initial_c? peepholes?"
_OPERANDS = f"x w r {_STATES} w_scale w_zero r_scale r_zero"
microsoft("DynamicQuantizeLSTM")(LstmOfBytes(DynamicQuantizeLSTM, _OPERANDS, lacks=["layout"]))


def _transposed(b: ForeignBuilder, w: Value) -> Value:
    """The weights of each direction, rows for columns; constants at once."""
    if w.const is None or w.const.ndim != 3:
        return b(Transpose((0, 2, 1)), w)
    return b.const(np.ascontiguousarray(w.const.swapaxes(1, 2)))
