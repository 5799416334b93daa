"""Distances between rows, as nearest neighbours and kernels of Gaussian processes need them."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32, F64, Array, TensorType
from bolt_numba.ops.dtypes import widened
from bolt_numba.ops.registry import Op, op, want_among, want_dtype
from bolt_numba.ops.shapes import shape_of, want_dims


@op("Distances")
class Distances(Op):
    """y[i, j] = sum over k of |x[i, k] - w[k, j]| ** power.

    x: [n, k], w: [k, m] of one float dtype -> y: [n, m].  power: 1 or 2.  The second operand holds a point in each
    column, as the second factor of a product does.  Source: com.microsoft CDist-1 ("sqeuclidean").
    """

    power: int = 2

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, F32, F64)
        want_dtype(self, "w", w.dtype, x.dtype)
        want_among(self, (1, 2), power=self.power)
        a, b = shape_of(self, "x", x, 2), shape_of(self, "w", w, 2)
        if a is None or b is None:
            return TensorType(x.dtype, None)
        want_dims(self, "w", w, a[1], None)
        return TensorType(x.dtype, (a[0], b[1]))

    def reference(self, x: Array, w: Array) -> Array:
        y = np.empty((len(x), w.shape[1]), x.dtype)
        points = widened(w)
        ask(3 * points.nbytes, f"{self.name}: distances of a row")
        for row, to in zip(widened(x), y, strict=True):
            apart = np.abs(row[:, None] - points)
            to[:] = (apart if self.power == 1 else apart * apart).sum(0)
        return y
