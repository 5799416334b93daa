"""Products and convolutions of bytes: sums in i32, and what follows them until the result is bytes or f32.

The two QLinear operators are fused as the float ones are: an activation, a residual, a result in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from bolt_numba.base.types import F32, F64, I32, AnyDType, Array, Dim, Shape, TensorType
from bolt_numba.ops.arrays.quantize import BYTES, STORED, is_integer, limits, saturated
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.dtypes import FLOATS, widened
from bolt_numba.ops.layers.products.conv import Convolution, along_channels
from bolt_numba.ops.layers.products.matmul import finish, matmul_shape, multiplied, want_activation
from bolt_numba.ops.registry import Op, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import want_dims, want_one, want_within
from bolt_numba.ops.windows import as_layout

PRODUCTS = (*BYTES, *(d for d in STORED if d.name.startswith("float8")))
"""What QLinearMatMul takes and gives."""


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


def _want_stored(
    owner: Op, kinds: Sequence[AnyDType] = BYTES, /, **operands: tuple[TensorType, TensorType | None]
) -> None:
    """Raise DTypeError unless operands are of these kinds, and their zero points of the same dtype."""
    for name, (t, zero) in operands.items():
        want_dtype(owner, name, t.dtype, *kinds)
        want_dtypes(owner, (t.dtype,), **{f"{name}_zero_point": zero})


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
        _want_stored(self, a=(a, a_zero_point), b=(b, b_zero_point))
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


def _want_per_image(owner: Op, x: TensorType, **operands: TensorType) -> None:
    """Raise ShapeError unless operands are one number or one per image of ``x``, of its rank."""
    for what, t in operands.items():
        if x.shape and t.shape is not None and len(t.shape) == len(x.shape):
            want_dims(owner, what, t, (1, x.shape[0]), *(1 for _ in x.shape[1:]))
        else:
            want_one(owner, **{what: t})


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
        _want_stored(self, x=(x, x_zero_point), w=(w, w_zero_point))
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


SMALL_SCALE, RAISED = 2.0**-60, 2.0**100
"""Products of scales below are taken of scales of which the smaller one is multiplied before."""


def scale_ratio(a: Array, b: Array, y: Array) -> Array:
    """``a * b / y`` without a number on the way that is too small for a normal one: powers of two round nothing.

    What is too large is the greatest finite number, so that sums of 0 stay 0.  NaN where a or b is not finite.
    """
    with np.errstate(all="ignore"):
        small, first = np.abs(a * b) < SMALL_SCALE, np.abs(a) < np.abs(b)
        low, high = np.where(first, a, b), np.where(first, b, a)
        up = np.where(small, RAISED, 1).astype(a.dtype)
        most = np.finfo(a.dtype).max
        made = np.clip((low * up) * high / (y * up), -most, most)
        return np.asarray(np.where(np.isfinite(a) & np.isfinite(b), made, a.dtype.type(np.nan)))


MOST_SUM = 2**31 - 1


def sums_fit(
    a: AnyDType, zero_a: Array | None, b: AnyDType, zero_b: Array | None, depth: int, bias: Array | None
) -> bool:
    """Whether sums of ``depth`` products and a bias stay within i32.  A zero point that is None may be any."""
    reach = depth
    for dtype, zero in ((a, zero_a), (b, zero_b)):
        low, high = map(int, limits(dtype))
        zeros = (low, high) if zero is None else (int(zero.min(initial=high)), int(zero.max(initial=low)))
        reach *= max(zeros[1] - low, high - zeros[0])
    return reach + (0 if bias is None else int(np.abs(bias.astype(np.int64)).max(initial=0))) <= MOST_SUM


Tail = Sequence[Any]
"""Operands behind those of a product: y_scale, y_zero_point, bias, residual, residual_scale, residual_zero_point."""


def _all_six(tail: Tail) -> list[Any]:
    """With None for those that are omitted at the end."""
    return [*tail, *(None for _ in range(6 - len(tail)))]


def _want_scales(owner: Op, kinds: Sequence[AnyDType], **scales: TensorType | None) -> None:
    """Raise unless scales are of these dtypes and, as far as they are known, finite; that of y also positive."""
    want_dtypes(owner, kinds, **scales)
    for what, scale in scales.items():
        if scale is not None and scale.known is not None:
            known, positive = widened(scale.known), what == "y_scale"
            wrong = ~np.isfinite(known) | (known <= 0 if positive else False)
            if wrong.any():
                raise owner.fail(what, known[wrong].flat[0], "finite numbers" + " greater than 0" * positive)


def _tail_type(
    owner: Any, shape: Shape | None, columns: Dim | None, kinds: Sequence[AnyDType], tail: Tail
) -> TensorType:
    """Type of the result, bytes of one of ``kinds`` or f32; raises where the operands of the tail do not fit."""
    y_scale, y_zero, bias, residual, residual_scale, residual_zero = tail
    for what, wanted, given in (
        ("y_zero_point", y_scale is not None, y_zero),
        ("residual", owner.residual, residual),
        ("residual_zero_point", residual_scale is not None, residual_zero),
        ("residual_scale", residual is not None and residual.dtype in BYTES, residual_scale),
    ):
        if wanted != (given is not None):
            raise owner.fail(what, "none" if wanted else given, "an operand" if wanted else "none")
    want_activation(owner, owner.activation, F32)
    want_dtypes(owner, (I32, F32), bias=bias)
    want_dims(owner, "bias", bias, columns)
    want_dtypes(owner, (F32, *BYTES), residual=residual)
    want_dtypes(owner, (F32,), residual_scale=residual_scale)
    if shape is not None:
        want_dims(owner, "residual", residual, *shape)
    if residual_scale is not None:
        want_dtype(owner, "residual_zero_point", residual_zero.dtype, residual.dtype)
        want_one(owner, residual_scale=residual_scale, residual_zero_point=residual_zero)
    if y_scale is None:
        return TensorType(F32, shape)
    want_dtype(owner, "y_zero_point", y_zero.dtype, *kinds)
    return TensorType(y_zero.dtype, shape)


def is_fused(op: Any, y_scale: Any, bias: Any) -> bool:
    """Whether a QLinear operator is more than ONNX's: it gives f32, or adds f32, a residual or an activation."""
    return y_scale is None or op.residual or op.activation is not None or (bias is not None and bias.dtype == F32)


def _finished(op: Any, sums: Array, a_scale: Array, b_scale: Array, tail: Tail) -> Array:
    """The result of sums without their bias.  All but the residual broadcasts to the sums."""
    y_scale, y_zero, bias, residual, residual_scale, residual_zero = tail
    fused = is_fused(op, y_scale, bias)
    y = sums if bias is None or bias.dtype == F32 else sums + bias.astype(F64)
    if not fused:
        return _requantised(y, scale_ratio(a_scale, b_scale, y_scale), y_zero)
    real = y.astype(F32) * scale_ratio(a_scale, b_scale, np.ones((), F32)).astype(F32)
    if bias is not None and bias.dtype == F32:
        real = real + bias
    if residual_scale is not None:
        residual = (residual.astype(F32) - residual_zero.astype(F32).reshape(())) * residual_scale.reshape(())
    real = finish(real, residual, op.activation).astype(F32, copy=False)
    if y_scale is None:
        return real
    with np.errstate(all="ignore"):
        return _requantised(real / y_scale.astype(F32), np.ones((), F32), y_zero)


_BEHIND = bounded(y_zero_point=VALUES, bias=VALUES, residual=VALUES, residual_zero_point=VALUES)


@op("QLinearConv")
class QLinearConv(Convolution):
    """y = quantised convolution of quantised x and w: the i32 sums plus bias, times x_scale * w_scale / y_scale.

    x: [n, c, h, w] or [n, h, w, c] u8 or i8 · w: [k, c/g, r, s] u8 or i8 · x_scale, y_scale: [] f32 · w_scale: [] or
    [k] f32 · zero points: like their scales · bias: [k] i32 -> y: [n, k, oh, ow], y_zero_point's dtype, in x's layout.
    Source: ONNX QLinearConv-10.

    Beyond ONNX: activation((sums + bias) * x_scale * w_scale + residual), in f32, is quantised at the end, or is the
    result where y_scale is omitted.  x_scale, x_zero_point: also [n, 1, 1, 1], one for each image · bias: also f32,
    added to the real numbers · residual: like y, f32, or bytes with residual_scale and residual_zero_point: [].
    """

    activation: Op | None = None
    residual: bool = False
    filters_at: ClassVar[int] = 3
    residual_at: ClassVar[int] = 9
    data_bounds = bounded(x=VALUES, x_zero_point=VALUES, w=VALUES, w_zero_point=VALUES) | _BEHIND

    def infer(
        self,
        x: TensorType,
        x_scale: TensorType,
        x_zero_point: TensorType,
        w: TensorType,
        w_scale: TensorType,
        w_zero_point: TensorType,
        y_scale: TensorType | None = None,
        y_zero_point: TensorType | None = None,
        bias: TensorType | None = None,
        residual: TensorType | None = None,
        residual_scale: TensorType | None = None,
        residual_zero_point: TensorType | None = None,
    ) -> TensorType:
        _want_stored(self, x=(x, x_zero_point), w=(w, w_zero_point))
        _want_scales(self, (F32,), x_scale=x_scale, w_scale=w_scale, y_scale=y_scale)
        _want_per_image(self, x, x_scale=x_scale, x_zero_point=x_zero_point)
        want_one(self, y_scale=y_scale, y_zero_point=y_zero_point)
        _want_per_filter(self, w, w_scale=w_scale, w_zero_point=w_zero_point)
        tail = y_scale, y_zero_point, bias, residual, residual_scale, residual_zero_point
        return _tail_type(self, self.output_shape(x, w), None if w.shape is None else w.shape[0], BYTES, tail)

    def reference(
        self, x: Array, x_scale: Array, x_zero_point: Array, w: Array, w_scale: Array, w_zero_point: Array, *tail: Any
    ) -> Array:
        y_scale, y_zero_point, bias, *residual = _all_six(tail)
        sums = as_layout(_sums(self, x, w, x_zero_point, w_zero_point), self.layout)

        def by_filter(v: Array) -> Array:
            return v.reshape(-1) if self.layout == "NHWC" else along_channels(v, sums.ndim)

        scale, zero = (None if v is None else v.reshape(()) for v in (y_scale, y_zero_point))
        added = None if bias is None else by_filter(bias)
        tail = scale, zero, added, *residual
        return _finished(self, sums, x_scale if x_scale.size > 1 else x_scale.reshape(()), by_filter(w_scale), tail)


def _by_row(v: Array) -> Array:
    """One number, or one per row, shaped to broadcast against matrices."""
    return v.reshape(()) if v.size == 1 else v[:, None] if v.ndim == 1 else v


@op("QLinearMatMul")
class QLinearMatMul(Op):
    """y = quantised product of quantised a and b: the i32 sums times a_scale * b_scale / y_scale.

    a: [..., M, K], b: [..., K, N], of 8 bits · scales: f32, [] or (a) [M], [..., M, 1], (b) [N], [..., 1, N] ·
    zero points: like their scales -> y: [..., M, N] of y_zero_point's dtype.  Source: ONNX QLinearMatMul-21.

    Beyond ONNX: activation((sums + bias) * a_scale * b_scale + residual), in f32, is quantised at the end, or is the
    result where y_scale is omitted.  bias: [N], i32, or f32 that is added to the real numbers · residual: like y, f32,
    or bytes with residual_scale and residual_zero_point: [].
    """

    activation: Op | None = None
    residual: bool = False
    data_bounds = bounded(a=VALUES, a_zero_point=VALUES, b=VALUES, b_zero_point=VALUES) | _BEHIND

    def infer(
        self,
        a: TensorType,
        a_scale: TensorType,
        a_zero_point: TensorType,
        b: TensorType,
        b_scale: TensorType,
        b_zero_point: TensorType,
        y_scale: TensorType | None = None,
        y_zero_point: TensorType | None = None,
        bias: TensorType | None = None,
        residual: TensorType | None = None,
        residual_scale: TensorType | None = None,
        residual_zero_point: TensorType | None = None,
    ) -> TensorType:
        _want_stored(self, PRODUCTS, a=(a, a_zero_point), b=(b, b_zero_point))
        _want_scales(self, FLOATS, a_scale=a_scale, b_scale=b_scale, y_scale=y_scale)
        _want_along(self, a, -2, a_scale=a_scale, a_zero_point=a_zero_point)
        _want_along(self, b, -1, b_scale=b_scale, b_zero_point=b_zero_point)
        shape = matmul_shape(self, a.shape, b.shape)
        tail = y_scale, y_zero_point, bias, residual, residual_scale, residual_zero_point
        y = _tail_type(self, shape, shape[-1] if shape else None, PRODUCTS, tail)
        _want_along(self, y, -2, y_scale=y_scale, y_zero_point=y_zero_point)
        return y

    def reference(
        self, a: Array, a_scale: Array, a_zero_point: Array, b: Array, b_scale: Array, b_zero_point: Array, *tail: Any
    ) -> Array:
        y_scale, y_zero_point, *rest = _all_six(tail)
        sums = multiplied(self, _centred(a, a_zero_point, -2), _centred(b, b_zero_point, -1))
        columns = widened(b_scale)
        columns = columns.reshape(()) if columns.size == 1 else columns
        target = None if y_scale is None else _by_row(widened(y_scale))
        zero = None if y_zero_point is None else _by_row(y_zero_point)
        return _finished(self, sums, _by_row(widened(a_scale)), columns, (target, zero, *rest))


ByteConv: TypeAlias = ConvInteger | QLinearConv
ByteMatMul: TypeAlias = MatMulInteger | QLinearMatMul
ByteProduct: TypeAlias = ByteConv | ByteMatMul
