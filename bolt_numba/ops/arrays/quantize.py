"""Quantised numbers: real = scale * (stored - zero_point).  Products of them are in `integer_products`."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import F32, F64, I8, I16, I32, U8, U16, AnyDType, Array, TensorType, dtype_name
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.dtypes import FLOATS, widened
from bolt_numba.ops.registry import Op, normalise_axis, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import want_dims, want_one

_NARROW = ("int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
           "float4_e2m1fn")  # fmt: skip
STORED: tuple[AnyDType, ...] = (I8, U8, I16, U16, *(np.dtype(getattr(ml_dtypes, n)) for n in _NARROW))
"""What QuantizeLinear can give."""
BYTES = (U8, I8)


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
    owner.fail_if(v.ndim != len(shape) or not block, f"shape of {what}", v.shape, "[], [d] or blocks along the axis")
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
    owner.fail_if(block < 0, "block_size", block, "at least 0")
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
        want_dtypes(self, (x.dtype,), zero_point=zero_point)
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


@op("QuantizeRows")
class QuantizeRows(Op):
    """x quantised to u8 row by row, each by its own range, 0 included; a row lies along the axes from ``axis`` on.

    x: [..., K] f32 -> y: u8 like x, scale, zero_point: f32 and u8, x's shape with these axes of length 1.  A row with a
    NaN or an infinity has the scale NaN, and any bytes.  Source: what XNNPACK makes of operands that are quantised in
    the run, by signed bytes.
    """

    axis: int = -1

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        want_dtype(self, "x", x.dtype, F32)
        if x.shape is None:
            return TensorType(U8, None), TensorType(F32, None), TensorType(U8, None)
        axis = normalise_axis(self, self.axis, len(x.shape))
        ones = (*x.shape[:axis], *(1 for _ in x.shape[axis:]))
        return TensorType(U8, x.shape), TensorType(F32, ones), TensorType(U8, ones)

    def reference(self, x: Array) -> tuple[Array, Array, Array]:
        axes = tuple(range(normalise_axis(self, self.axis, x.ndim), x.ndim))
        with np.errstate(all="ignore"):
            low, high = (f(x, axis=axes, keepdims=True, initial=0) for f in (np.min, np.max))
            factor = F32.type(127.5) / (high * F32.type(0.5) - low * F32.type(0.5))
            wide = np.isfinite(factor) & (factor > 0)
            factor = np.where(wide, factor, F32.type(1))
            least, most = (np.where(wide, v * factor, F32.type(0)) for v in (low, high))
            zero = np.rint(np.clip(np.where(least + most > 1, -128 - least, 127 - most), -128, 127)) + 128
            zero = np.where(wide, zero, 0).astype(F32)
            broken = np.sum(x * F32.type(0), axis=axes, keepdims=True)
            level = np.where(np.isnan(broken), 0, np.rint(x * factor) + zero)
        scale = F32.type(1) / factor + broken
        return np.clip(level, 0, 255).astype(U8), scale.astype(F32), zero.astype(U8)


@op("RangeRounded")
class RangeRounded(Op):
    """x as the bytes of its own range hold it, which products of bytes read; exact sessions leave it as it is.

    x: [...] f32 -> y: f32 like x.  axis: see `QuantizeRows`.  Source: dynamic range quantisation of LiteRT.
    """

    axis: int = -1

    def infer(self, x: TensorType) -> TensorType:
        QuantizeRows(self.axis).infer(x)
        return TensorType(F32, x.shape)

    def reference(self, x: Array) -> Array:
        y, scale, zero = QuantizeRows(self.axis).reference(x)
        return np.asarray((y.astype(F32) - zero.astype(F32)) * scale)


Conversion: TypeAlias = QuantizeLinear | DequantizeLinear
