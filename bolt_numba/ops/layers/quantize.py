"""Quantised numbers: real = scale * (stored - zero_point), and products of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from bolt_numba.errors import DTypeError
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.dtypes import FLOATS, widened
from bolt_numba.ops.layers.conv import Convolution, along_channels
from bolt_numba.ops.layers.matmul import matmul_shape, multiplied
from bolt_numba.ops.layers.windows import as_layout
from bolt_numba.ops.registry import Op, normalise_axis, op, want_dtype
from bolt_numba.ops.shapes import want_dims, want_one, want_within
from bolt_numba.types import F32, F64, I8, I16, I32, U8, U16, AnyDType, Array, TensorType, dtype_name

_NARROW = ("int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
           "float4_e2m1fn")  # fmt: skip
STORED: tuple[AnyDType, ...] = (I8, U8, I16, U16, *(np.dtype(getattr(ml_dtypes, n)) for n in _NARROW))
"""What QuantizeLinear can give."""
BYTES = (U8, I8)
PRODUCTS = (*BYTES, *(d for d in STORED if d.name.startswith("float8")))
"""What QLinearMatMul takes and gives."""


def is_integer(dtype: AnyDType) -> bool:
    """Whether a stored dtype holds integers, also those of fewer than 8 bits."""
    return dtype.kind in "iu" or "int" in dtype.name


def limits(dtype: AnyDType) -> tuple[float, float]:
    """Least and greatest finite value of a stored dtype."""
    describe: Any = ml_dtypes.iinfo if is_integer(dtype) else ml_dtypes.finfo
    info = describe(dtype)
    return float(info.min), float(info.max)


def spread(owner: Op, what: str, v: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Scales or zero points shaped to broadcast against ``shape``: one, one per index of the axis, or one per block."""
    if v.size == 1:
        return v.reshape(())
    axis = normalise_axis(owner, axis, len(shape))
    if v.ndim == 1:
        if v.size != shape[axis]:
            raise owner.fail(f"length of {what}", v.size, shape[axis])
        return v.reshape(-1, *(1,) * (len(shape) - 1 - axis))
    if v.ndim != len(shape) or not block:
        raise owner.fail(f"shape of {what}", v.shape, "[], [d] or blocks along the axis")
    return np.repeat(v, block, axis=axis)[tuple(slice(0, d) for d in shape)]


def saturated(x: Array, dtype: AnyDType, saturate: bool = True) -> Array:
    """Rounded numbers as ``dtype``; those beyond its limits become the limits, of integers NaN the lower one."""
    low, high = limits(dtype)
    if is_integer(dtype):
        wide = np.where(np.isnan(x), low, np.clip(x, low, high))
        return wide.astype(dtype) if dtype.kind in "iu" else wide.astype(I8).astype(dtype)
    return (np.clip(x, low, high) if saturate else x).astype(dtype)


def _check_scale(
    owner: Op, x: TensorType, scale: TensorType, zero_point: TensorType | None, axis: int, block: int, *whole: AnyDType
) -> None:
    """Raise unless scale and zero point are one number, one per index of the axis, or one per block along it."""
    want_dtype(owner, "scale", scale.dtype, *FLOATS, *whole)
    if block < 0:
        raise owner.fail("block_size", block, "at least 0")
    if scale.shape is None or all(d == 1 for d in scale.shape):
        if scale.shape is not None:
            want_one(owner, zero_point=zero_point)
        return
    want_dims(owner, "zero_point", zero_point, *scale.shape)
    if x.shape is None:
        return
    axis = normalise_axis(owner, axis, len(x.shape))
    if len(scale.shape) == 1:
        want_dims(owner, "scale", scale, (1, x.shape[axis]))
    elif not block:
        raise owner.fail("shape of scale", scale, f"[], [{x.shape[axis]}], or blocks with a block_size")
    else:
        blocks = (x.shape[axis] + (block - 1)) // block
        want_dims(owner, "scale", scale, *x.shape[:axis], blocks, *x.shape[axis + 1 :])


@op("QuantizeLinear")
class QuantizeLinear(Op):
    """y = saturate(round half to even(x / scale) + zero_point); float results are only scaled and cast.

    x: [...] float or i32 · scale: [], [d along axis], or blocked along axis · zero_point: like scale, decides y's dtype
    (else ``output_dtype``, else u8) -> y: x's shape.  Divides in f32 (f64 for f64).  Source: ONNX QuantizeLinear-25.
    """

    axis: int = 1
    block_size: int = 0
    saturate: bool = True
    output_dtype: AnyDType | None = None
    data_bounds = bounded(zero_point=VALUES)

    def infer(self, x: TensorType, scale: TensorType, zero_point: TensorType | None = None) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS, I32)
        _check_scale(self, x, scale, zero_point, self.axis, self.block_size, I32)
        dtype = self._target(None if zero_point is None else zero_point.dtype)
        want_dtype(self, "y", dtype, *STORED)
        return TensorType(dtype, x.shape)

    def _target(self, zero_point: AnyDType | None) -> AnyDType:
        if zero_point is not None and self.output_dtype not in (None, zero_point):
            raise DTypeError(f"{self.name}: dtype of zero_point: got {dtype_name(zero_point)}, wanted output_dtype")
        return zero_point or self.output_dtype or U8

    def reference(self, x: Array, scale: Array, zero_point: Array | None = None) -> Array:
        dtype = self._target(None if zero_point is None else zero_point.dtype)
        data = widened(x) if x.dtype.kind != "i" else x.astype(F32)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            y = data / spread(self, "scale", widened(scale), x.shape, self.axis, self.block_size).astype(data.dtype)
        if not is_integer(dtype):
            return saturated(y, dtype, self.saturate)
        y = np.rint(y)
        if zero_point is not None:
            y = y + spread(self, "zero_point", zero_point.astype(F32), x.shape, self.axis, self.block_size)
        return saturated(y, dtype)


@op("DequantizeLinear")
class DequantizeLinear(Op):
    """y = (x - zero_point) * scale.

    x: [...] integer or narrow float · scale: [], [d along axis], or blocked along axis · zero_point: like scale, x's
    dtype -> y: x's shape, ``output_dtype`` or scale's dtype.  Source: ONNX DequantizeLinear-25.
    """

    axis: int = 1
    block_size: int = 0
    output_dtype: AnyDType | None = None
    data_bounds = bounded(x=VALUES, zero_point=VALUES)
    widens_integers = True

    def infer(self, x: TensorType, scale: TensorType, zero_point: TensorType | None = None) -> TensorType:
        want_dtype(self, "x", x.dtype, *STORED, I32)
        _check_scale(self, x, scale, zero_point, self.axis, self.block_size)
        if zero_point is not None:
            want_dtype(self, "zero_point", zero_point.dtype, x.dtype)
        want_dtype(self, "y", self.output_dtype or scale.dtype, *FLOATS)
        return TensorType(self.output_dtype or scale.dtype, x.shape)

    def reference(self, x: Array, scale: Array, zero_point: Array | None = None) -> Array:
        data = x.astype(F64) if x.dtype == I32 else x.astype(F32)  # a difference of i32 is exact in f64
        if zero_point is not None:
            zero = spread(self, "zero_point", zero_point.astype(data.dtype), x.shape, self.axis, self.block_size)
            data = data - zero
        factor = spread(self, "scale", widened(scale), x.shape, self.axis, self.block_size)
        return np.asarray(data.astype(factor.dtype) * factor).astype(self.output_dtype or scale.dtype, copy=False)


@op("DynamicQuantizeLinear")
class DynamicQuantizeLinear(Op):
    """x quantised to u8 by its own range, 0 included.

    x: [...] f32 -> y: u8 like x, scale: f32 [], zero_point: u8 [].  Source: ONNX DynamicQuantizeLinear-11.
    """

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        want_dtype(self, "x", x.dtype, F32)
        return TensorType(U8, x.shape), TensorType(F32, ()), TensorType(U8, ())

    def reference(self, x: Array) -> tuple[Array, Array, Array]:
        low, high = np.min(x, initial=0), np.max(x, initial=0)
        scale = np.asarray((high - low) / F32.type(255) if high > low else 1, dtype=F32)
        zero = saturated(np.rint(-low / scale), U8)
        return saturated(np.rint(x / scale) + zero.astype(F32), U8), scale, np.asarray(zero)


def _centred(x: Array, zero_point: Array | None, axis: int) -> Array:
    """Operand less its zero point (one, or one per index of the axis) in f64, where sums of byte products are exact."""
    if zero_point is None:
        return x.astype(F64)
    zero = zero_point.astype(F64)
    if zero.ndim == 1 and zero.size > 1:
        zero = np.expand_dims(zero, -1) if axis == -2 else zero
    return x.astype(F64) - (zero.reshape(()) if zero.size == 1 else zero)


def _want_along(owner: Op, x: TensorType, axis: int, **operands: TensorType | None) -> None:
    """Raise ShapeError unless operands are one number or one per row (axis -2) or column (-1) of the matrices ``x``."""
    for what, t in operands.items():
        if t is None or t.shape is None or x.shape is None or all(d == 1 for d in t.shape):
            continue
        along, other = x.shape[axis] if len(x.shape) > 1 else 1, -1 if axis == -2 else -2
        if len(t.shape) == 1:
            want_dims(owner, what, t, (1, along))
        else:
            want_within(owner, what, t, (*x.shape[:-2], along, 1) if other == -1 else (*x.shape[:-2], 1, along))


def _wrapped(x: Array) -> Array:
    """Exact sums in f64 as i32, modulo 2 ** 32."""
    return x.astype(np.int64).astype(I32)


@op("MatMulInteger")
class MatMulInteger(Op):
    """y = (a - a_zero_point) @ (b - b_zero_point) in i32.

    a: [..., M, K] u8 or i8 · b: [..., K, N] u8 or i8 · a_zero_point: [], [M] or [..., M, 1] of a's dtype ·
    b_zero_point: [], [N] or [..., 1, N] of b's dtype -> y: [..., M, N] i32.  Source: ONNX MatMulInteger-10.
    """

    data_bounds = bounded(a=VALUES, b=VALUES, a_zero_point=VALUES, b_zero_point=VALUES)

    def infer(
        self,
        a: TensorType,
        b: TensorType,
        a_zero_point: TensorType | None = None,
        b_zero_point: TensorType | None = None,
    ) -> TensorType:
        for name, t, zero in (("a", a, a_zero_point), ("b", b, b_zero_point)):
            want_dtype(self, name, t.dtype, *BYTES)
            if zero is not None:
                want_dtype(self, f"{name}_zero_point", zero.dtype, t.dtype)
        _want_along(self, a, -2, a_zero_point=a_zero_point)
        _want_along(self, b, -1, b_zero_point=b_zero_point)
        return TensorType(I32, matmul_shape(self, a.shape, b.shape))

    def reference(
        self, a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
    ) -> Array:
        return _wrapped(multiplied(self, _centred(a, a_zero_point, -2), _centred(b, b_zero_point, -1)))


def _want_per_filter(owner: Op, w: TensorType, **operands: TensorType | None) -> None:
    """Raise ShapeError unless operands are one number or one per filter of ``w``."""
    for what, t in operands.items():
        if t is not None and t.shape is not None and not all(d == 1 for d in t.shape):
            want_dims(owner, what, t, None if w.shape is None else w.shape[0])


@op("ConvInteger")
class ConvInteger(Convolution):
    """y = correlation of x - x_zero_point with w - w_zero_point, in i32; pads count as x_zero_point.

    x: [n, c, h, w] or [n, h, w, c] u8 or i8 · w: [k, c/g, r, s] u8 or i8 · x_zero_point: [] of x's dtype ·
    w_zero_point: [] or [k] of w's dtype -> y: [n, k, oh, ow] i32 in x's layout.  Source: ONNX ConvInteger-10.
    """

    data_bounds = bounded(x=VALUES, w=VALUES, x_zero_point=VALUES, w_zero_point=VALUES)

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        x_zero_point: TensorType | None = None,
        w_zero_point: TensorType | None = None,
    ) -> TensorType:
        for name, t, zero in (("x", x, x_zero_point), ("w", w, w_zero_point)):
            want_dtype(self, name, t.dtype, *BYTES)
            if zero is not None:
                want_dtype(self, f"{name}_zero_point", zero.dtype, t.dtype)
        want_one(self, x_zero_point=x_zero_point)
        _want_per_filter(self, w, w_zero_point=w_zero_point)
        return TensorType(I32, self.output_shape(x, w))

    def reference(
        self, x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None
    ) -> Array:
        return as_layout(_wrapped(_sums(self, x, w, x_zero_point, w_zero_point)), self.layout)


def _sums(conv: Convolution, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    """Exact sums of the products of centred bytes, [n, k, outs...] f64."""
    filters = w.astype(F64)
    if w_zero is not None:
        filters -= w_zero.astype(F64).reshape(-1, *(1,) * (w.ndim - 1))
    return conv.sums(_centred(x, x_zero, -1), filters)


def _requantised(y: Array, factor: Array, zero_point: Array) -> Array:
    """Of sums in i32: round(y * factor) + zero_point, saturated to the dtype of zero_point; the product is in f32."""
    if not is_integer(zero_point.dtype):
        return saturated(y.astype(F32) * factor.astype(F32), zero_point.dtype)
    return saturated(np.rint(y.astype(F32) * factor.astype(F32)) + zero_point.astype(F32), zero_point.dtype)


SMALL_SCALE, RAISED = 2.0**-60, 2.0**50
"""Products of scales below are taken of scales that are multiplied before."""


def scale_ratio(a: Array, b: Array, y: Array) -> Array:
    """``a * b / y`` without a number on the way that is too small for a normal one: powers of two round nothing."""
    with np.errstate(all="ignore"):
        up = np.where(np.abs(a * b) < SMALL_SCALE, RAISED, 1).astype(a.dtype)
        return np.asarray((a * up) * (b * up) / (y * up * up))


@op("QLinearConv")
class QLinearConv(Convolution):
    """y = quantised convolution of quantised x and w: the i32 sums plus bias, times x_scale * w_scale / y_scale.

    x: [n, c, h, w] or [n, h, w, c] u8 or i8 · w: [k, c/g, r, s] u8 or i8 · x_scale, y_scale: [] f32 · w_scale: [] or
    [k] f32 · zero points: like their scales · bias: [k] i32 -> y: [n, k, oh, ow], y_zero_point's dtype, in x's layout.
    Source: ONNX QLinearConv-10.
    """

    data_bounds = bounded(
        x=VALUES,
        x_zero_point=VALUES,
        w=VALUES,
        w_zero_point=VALUES,
        y_zero_point=VALUES,
        bias=VALUES,
    )

    def infer(
        self,
        x: TensorType,
        x_scale: TensorType,
        x_zero_point: TensorType,
        w: TensorType,
        w_scale: TensorType,
        w_zero_point: TensorType,
        y_scale: TensorType,
        y_zero_point: TensorType,
        bias: TensorType | None = None,
    ) -> TensorType:
        for name, t, zero in (("x", x, x_zero_point), ("w", w, w_zero_point)):
            want_dtype(self, name, t.dtype, *BYTES)
            want_dtype(self, f"{name}_zero_point", zero.dtype, t.dtype)
        for scale in (x_scale, w_scale, y_scale):
            want_dtype(self, "scales", scale.dtype, F32)
        want_dtype(self, "y_zero_point", y_zero_point.dtype, *BYTES)
        if bias is not None:
            want_dtype(self, "bias", bias.dtype, I32)
        want_one(self, x_scale=x_scale, x_zero_point=x_zero_point, y_scale=y_scale, y_zero_point=y_zero_point)
        _want_per_filter(self, w, w_scale=w_scale, w_zero_point=w_zero_point)
        return TensorType(y_zero_point.dtype, self.output_shape(x, w, bias))

    def reference(
        self,
        x: Array,
        x_scale: Array,
        x_zero_point: Array,
        w: Array,
        w_scale: Array,
        w_zero_point: Array,
        y_scale: Array,
        y_zero_point: Array,
        bias: Array | None = None,
    ) -> Array:
        y = _sums(self, x, w, x_zero_point, w_zero_point)
        if bias is not None:
            y = y + along_channels(bias.astype(F64), y.ndim)
        y = _wrapped(y)
        factor = along_channels(scale_ratio(x_scale.reshape(()), w_scale.reshape(-1), y_scale.reshape(())), y.ndim)
        return as_layout(_requantised(y, factor, y_zero_point.reshape(())), self.layout)


def _by_row(v: Array) -> Array:
    """One number, or one per row, shaped to broadcast against matrices."""
    return v.reshape(()) if v.size == 1 else v[:, None] if v.ndim == 1 else v


@op("QLinearMatMul")
class QLinearMatMul(Op):
    """y = quantised product of quantised a and b: the i32 sums times a_scale * b_scale / y_scale.

    a: [..., M, K], b: [..., K, N], of 8 bits · scales: f32, [] or (a) [M], [..., M, 1], (b) [N], [..., 1, N] ·
    zero points: like their scales -> y: [..., M, N] of y_zero_point's dtype.  Source: ONNX QLinearMatMul-21.
    """

    data_bounds = bounded(a=VALUES, a_zero_point=VALUES, b=VALUES, b_zero_point=VALUES, y_zero_point=VALUES)

    def infer(
        self,
        a: TensorType,
        a_scale: TensorType,
        a_zero_point: TensorType,
        b: TensorType,
        b_scale: TensorType,
        b_zero_point: TensorType,
        y_scale: TensorType,
        y_zero_point: TensorType,
    ) -> TensorType:
        for name, t, zero in (("a", a, a_zero_point), ("b", b, b_zero_point)):
            want_dtype(self, name, t.dtype, *PRODUCTS)
            want_dtype(self, f"{name}_zero_point", zero.dtype, t.dtype)
        for scale in (a_scale, b_scale, y_scale):
            want_dtype(self, "scales", scale.dtype, *FLOATS)
        want_dtype(self, "y_zero_point", y_zero_point.dtype, *PRODUCTS)
        _want_along(self, a, -2, a_scale=a_scale, a_zero_point=a_zero_point)
        _want_along(self, b, -1, b_scale=b_scale, b_zero_point=b_zero_point)
        y = TensorType(y_zero_point.dtype, matmul_shape(self, a.shape, b.shape))
        _want_along(self, y, -2, y_scale=y_scale, y_zero_point=y_zero_point)
        return y

    def reference(
        self,
        a: Array,
        a_scale: Array,
        a_zero_point: Array,
        b: Array,
        b_scale: Array,
        b_zero_point: Array,
        y_scale: Array,
        y_zero_point: Array,
    ) -> Array:
        sums = _wrapped(multiplied(self, _centred(a, a_zero_point, -2), _centred(b, b_zero_point, -1)))
        rows, target, zero = (_by_row(v) for v in (widened(a_scale), widened(y_scale), y_zero_point))
        columns = widened(b_scale)
        columns = columns.reshape(()) if columns.size == 1 else columns
        return _requantised(sums, scale_ratio(rows, columns, target), zero)
