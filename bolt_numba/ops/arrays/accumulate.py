"""What runs along an axis and keeps something from element to element: running extremes, beams; places in order."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from bolt_numba.base.errors import DataError
from bolt_numba.base.records import record
from bolt_numba.base.types import I64, Array, TensorType
from bolt_numba.ops.arrays.reduce import AlongAxis, running, square
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.dtypes import FLOATS, INDICES, NUMBERS, same_dtype, widened
from bolt_numba.ops.registry import Op, normalise_axis, op, want_dtype
from bolt_numba.ops.shapes import shape_of, want_dims


@record(frozen=True)
class _CumExtreme(Op):
    axis: int = -1
    extreme: ClassVar[Any]

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        want_dtype(self, "x", x.dtype, *NUMBERS)
        if x.shape is not None:
            normalise_axis(self, self.axis, len(x.shape))
        return TensorType(x.dtype, x.shape), TensorType(I64, x.shape)

    def reference(self, x: Array) -> tuple[Array, Array]:
        along = normalise_axis(self, self.axis, x.ndim)
        data = widened(x)
        best = type(self).extreme.accumulate(data, axis=along) if data.size else data
        place = np.arange(x.shape[along], dtype=I64).reshape(-1, *(1,) * (x.ndim - along - 1))
        hits = np.where((data == best) | (data != data), place, 0)
        where = np.maximum.accumulate(hits, axis=along) if hits.size else hits
        return best.astype(x.dtype, copy=False), where.astype(I64, copy=False)


@op("CumMax")
class CumMax(_CumExtreme):
    """Greatest element so far along an axis, and where it was: the last of equals, the last NaN once there is one.

    x: [...] number -> y: like x; where: i64, like x.  Source: `cummax` of Paddle 3.
    """

    extreme = np.maximum


@op("CumMin")
class CumMin(_CumExtreme):
    """Least element so far along an axis, and where it was: the last of equals, the last NaN once there is one.

    x: [...] number -> y: like x; where: i64, like x.  Source: `cummin` of Paddle 3.
    """

    extreme = np.minimum


@op("LogCumSumExp")
class LogCumSumExp(AlongAxis):
    """y = log of the running sum of exp(x) along an axis, without overflow.

    x: [...] float -> y: like x.  exclusive: without the element itself, -inf where nothing is before it; reverse: from
    the end.  Source: `logcumsumexp` of Paddle 3.
    """

    exclusive: bool = False
    reverse: bool = False

    def reference(self, x: Array) -> Array:
        along = normalise_axis(self, self.axis, x.ndim)
        with np.errstate(all="ignore"):
            return running(self, x, along, lambda d: np.logaddexp.accumulate(d, axis=along) if d.size else d, -np.inf)


@op("SearchSorted")
class SearchSorted(Op):
    """Where each value would stand in an ascending row: before its equals, or behind them with ``right``.

    row: [n] or [..., n] number · values: [...] of the same dtype, with the same leading axes where row has any ->
    y: i64 like values.  Source: `searchsorted` of Paddle 3.
    """

    right: bool = False

    def infer(self, row: TensorType, values: TensorType) -> TensorType:
        want_dtype(self, "row", same_dtype(self, row, values), *NUMBERS)
        if row.shape is not None:
            self.fail_if(not row.shape, "rank of row", 0, "at least 1")
            if len(row.shape) > 1:
                want_dims(self, "values", values, *row.shape[:-1], None)
        return TensorType(I64, values.shape)

    def reference(self, row: Array, values: Array) -> Array:
        side: Any = "right" if self.right else "left"
        data, sought = widened(row), widened(values)
        if row.ndim == 1:
            return np.searchsorted(data, sought, side).astype(I64).reshape(values.shape)
        y = np.empty(values.shape, I64)
        for place in np.ndindex(*row.shape[:-1]):
            y[place] = np.searchsorted(data[place], sought[place], side)
        return y


@op("GatherTree")
class GatherTree(Op):
    """Whole beams, found from the last step back: each step's id is that of the parent of the step behind it.

    ids: [t, n, beams] number · parents: like ids, i32 or i64, places of beams -> y: like ids.
    Source: `gather_tree` of Paddle 3.
    """

    data_bounds = bounded(parents="which beams are read; each is tested against their number, else refused")

    def infer(self, ids: TensorType, parents: TensorType) -> TensorType:
        want_dtype(self, "ids", ids.dtype, *NUMBERS)
        want_dtype(self, "parents", parents.dtype, *INDICES)
        shape = shape_of(self, "ids", ids, 3)
        want_dims(self, "parents", parents, *(shape or (None, None, None)))
        return TensorType(ids.dtype, shape)

    def reference(self, ids: Array, parents: Array) -> Array:
        want_between(self, "parents", parents, 0, ids.shape[2] - 1)
        y = ids.copy()
        if len(ids):
            chosen = parents[-1]
            for step in range(len(ids) - 2, -1, -1):
                y[step] = np.take_along_axis(ids[step], chosen, axis=1)
                chosen = np.take_along_axis(parents[step], chosen, axis=1)
        return y


@op("Inverse")
class Inverse(Op):
    """y = inverses of square matrices.  x: [..., M, M] f32 or f64 -> y: like x; a singular one is refused."""

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        return TensorType(x.dtype, square(self, x))

    def reference(self, x: Array) -> Array:
        try:
            return np.asarray(np.linalg.inv(widened(x))).astype(x.dtype, copy=False)
        except np.linalg.LinAlgError:
            raise DataError(f"{self.name}: x: got a singular matrix, wanted matrices that have an inverse") from None
