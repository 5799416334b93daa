"""Operators of rows and windows whose first operand and result are bytes: softmax, norms, means."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.ops.arrays.quantize import BYTES, DequantizeLinear, QuantizeLinear
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.registry import Op, op, want_dtypes
from bolt_numba.ops.shapes import want_one

MOST_IN_ROW = 1 << 15
"""Elements of which the sum of squares of bytes fits an i32."""


@op("BetweenBytes")
class BetweenBytes(Op):
    """y = QuantizeLinear(op(DequantizeLinear(x), others)), in one pass or two over the bytes.

    op: one operand of floats first, one result · x: [...] u8 or i8 · x_scale, y_scale: [] f32 · x_zero_point,
    y_zero_point: [] of x's and y's dtype · others: further operands of ``op``, or None -> y: of y_zero_point's
    dtype.  A kernel may give the neighbour of a code at the boundary between two.  Internal: made by fusion only.
    """

    op: Op
    data_bounds = bounded(x=VALUES, x_zero_point=VALUES, y_zero_point=VALUES, others="as ``op`` says")

    def infer(
        self,
        x: TensorType,
        x_scale: TensorType,
        x_zero_point: TensorType,
        y_scale: TensorType,
        y_zero_point: TensorType,
        *others: TensorType | None,
    ) -> TensorType:
        wanted = [kind == "TensorType" for kind in list(self.op.infer.__annotations__.values())[1:]]
        if None in (x_zero_point, y_zero_point, *(t for t, want in zip(others, wanted, strict=False) if want)):
            raise self.fail("operands", "None among them", "all that op needs")
        want_dtypes(self, BYTES, x=x, y_zero_point=y_zero_point)
        want_dtypes(self, (F32,), x_scale=x_scale, y_scale=y_scale)
        want_one(self, x_scale=x_scale, x_zero_point=x_zero_point, y_scale=y_scale, y_zero_point=y_zero_point)
        made: Any = self.op.infer(DequantizeLinear().infer(x, x_scale, x_zero_point), *others)
        if isinstance(made, tuple):
            raise self.fail("results of op", len(made), 1)
        return QuantizeLinear().infer(made, y_scale, y_zero_point)

    def reference(
        self, x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *others: Array | None
    ) -> Array:
        made = self.op.reference(DequantizeLinear().reference(x, x_scale, x_zero_point), *others)
        return QuantizeLinear().reference(made, y_scale, y_zero_point)
