"""Indexing: gather, scatter, and selections whose size depends on the data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, I64, STRING, AnyDType, Array, Dim, Shape, Sym, TensorType
from bolt_numba.ops.content import PLANNED, bounded, want_between, want_index
from bolt_numba.ops.dtypes import INDICES, NUMBERS, same_dtype, widened
from bolt_numba.ops.registry import Op, fresh_dim, normalise_axis, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import known_dims, product, shape_of, want_dims, want_one

_REDUCTIONS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _place(y: Array, index: Any, updates: Array, reduction: str) -> Array:
    """``y[index] = updates``, combined by ``reduction``; later updates of one place come after earlier ones."""
    if reduction == "none":
        y[index] = updates
        return y
    wide = widened(y).copy() if widened(y) is y else widened(y)
    _REDUCTIONS[reduction].at(wide, index, widened(updates))
    return wide.astype(y.dtype, copy=False)


def _want_reduction(owner: Op, reduction: str, dtype: AnyDType) -> None:
    if reduction != "none" and reduction not in _REDUCTIONS:
        raise owner.fail("reduction", reduction, "none, " + ", ".join(_REDUCTIONS))
    if dtype == STRING and reduction not in ("none", "add"):
        raise owner.fail("reduction of strings", reduction, "none or add")


@op("Gather")
class Gather(Op):
    """y = slices of x along an axis, one for each index; negative indices count from the end.

    x: [a..., d, b...] any · indices: [i...] i32 or i64 -> y: [a..., i..., b...].  Source: ONNX Gather-13.
    """

    axis: int = 0
    on_symbols = True
    data_bounds = bounded(
        indices="which slices are read; each index is tested against the axis before it is used, else refused",
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        want_dtype(self, "indices", indices.dtype, *INDICES)
        if x.shape is None:
            return TensorType(x.dtype, None)
        axis = normalise_axis(self, self.axis, len(x.shape))
        if indices.shape is None:
            return TensorType(x.dtype, None)
        want_places(self, indices.shape, x.shape[axis])
        return TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])

    def reference(self, x: Array, indices: Array) -> Array:
        want_index(self, "indices", indices, x.shape[self.axis])
        return np.asarray(np.take(x, indices.astype(I64, copy=False), axis=self.axis), x.dtype)

    def quick(self, *known: Array | None) -> Callable[[Array], Array] | None:
        x, indices = known
        if (x is None) == (indices is None):
            return None

        def picked(given: Array) -> Array:
            of: Array
            at: Any
            of, at = (given, indices) if x is None else (x, given)
            try:
                return np.asarray(of.take(at, self.axis), of.dtype)
            except IndexError:
                return self.reference(of, at)  # says what is wrong

        return picked


@op("GatherElements")
class GatherElements(Op):
    """y[i][j] = x[indices[i][j]][j] for axis 0, likewise for the others.

    x: [...] any · indices: [...] of x's rank, i32 or i64, not longer than x except along the axis -> y: indices' shape.
    Source: ONNX GatherElements-13.
    """

    axis: int = 0
    data_bounds = bounded(
        indices="which elements are read; each index is tested against the axis before it is used, else refused",
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        want_dtype(self, "indices", indices.dtype, *INDICES)
        _elementwise_index(self, x, indices)
        return TensorType(x.dtype, indices.shape)

    def reference(self, x: Array, indices: Array) -> Array:
        axis = normalise_axis(self, self.axis, x.ndim)
        want_index(self, "indices", indices, x.shape[axis])
        return np.take_along_axis(_cropped(x, indices.shape, axis), indices.astype(I64, copy=False), axis)


def _elementwise_index(owner: Any, x: TensorType, indices: TensorType) -> None:
    """Check ranks and sizes of operands of GatherElements and ScatterElements; raises ShapeError."""
    if x.shape is None:
        return
    axis = normalise_axis(owner, owner.axis, len(x.shape))
    shape = shape_of(owner, "indices", indices, len(x.shape))
    for i, (d, size) in enumerate(zip(shape or (), x.shape, strict=shape is not None)):
        if i != axis and isinstance(d, int) and isinstance(size, int) and d > size:
            raise owner.fail(f"dimension {i} of indices", d, f"at most {size}")
    if shape is not None:
        want_places(owner, shape, x.shape[axis])


def want_places(owner: Op, indices: Shape, *sizes: Dim) -> None:
    """Raise ShapeError for indices into axes of which one has no elements."""
    if 0 in sizes and all(isinstance(d, int) and d for d in indices):
        raise owner.fail("shape of indices", list(indices), "none, as x has no elements along the axis")


def _want_tuples(owner: Op, indices: Array, sizes: tuple[int, ...]) -> None:
    """Raise a DataError for the first index of a tuple that is outside of its axis."""
    limits = np.array(sizes, I64)
    want_between(owner, "indices", indices, -limits, limits - 1)


def _cropped(x: Array, shape: tuple[int, ...], axis: int) -> Array:
    return x[tuple(slice(None) if i == axis else slice(0, d) for i, d in enumerate(shape))]


@op("GatherND")
class GatherND(Op):
    """y = slices of x at index tuples, which are the last axis of indices.

    x: [b..., s...] any · indices: [b..., i..., m] i64 with batch_dims leading axes b -> y: [b..., i..., s[m:]...].
    Source: ONNX GatherND-13.
    """

    batch_dims: int = 0
    data_bounds = bounded(
        indices="which slices are read; each number is tested against its axis before it is used, else refused",
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        want_dtype(self, "indices", indices.dtype, *INDICES)
        if x.shape is None or indices.shape is None:
            return TensorType(x.dtype, None)
        b, depth = self.batch_dims, indices.shape[-1] if indices.shape else 0
        if not 0 <= b < min(len(x.shape), len(indices.shape)):
            raise self.fail("batch_dims", b, f"0 to {min(len(x.shape), len(indices.shape)) - 1}")
        if isinstance(depth, Sym):
            return TensorType(x.dtype, None)
        self.fail_if(not 1 <= depth <= len(x.shape) - b, "last dimension of indices", depth, f"1 to {len(x.shape) - b}")
        want_dims(self, "indices", indices, *x.shape[:b], *(None,) * (len(indices.shape) - b))
        want_places(self, indices.shape, *x.shape[b : b + depth])
        return TensorType(x.dtype, indices.shape[:-1] + x.shape[b + depth :])

    def reference(self, x: Array, indices: Array) -> Array:
        b, depth = self.batch_dims, indices.shape[-1]
        _want_tuples(self, indices, x.shape[b : b + depth])
        batch = indices.shape[:b]
        grid = np.ogrid[tuple(slice(0, d) for d in batch)] if b else []
        extra = (1,) * (indices.ndim - 1 - b)
        leading = [np.reshape(g, g.shape + extra) for g in grid]
        return np.array(x[(*leading, *(indices[..., i] for i in range(depth)))])


@op("ScatterElements")
class ScatterElements(Op):
    """y = x with y[indices[i][j]][j] = updates[i][j] for axis 0, likewise for the others.

    x: [...] any · indices: of x's rank, i32 or i64 · updates: indices' shape, x's dtype -> y: like x.
    reduction: none, add, mul, max, min with what is there; strings are added by putting one behind the other.
    Source: ONNX ScatterElements-18, onnxruntime.
    """

    axis: int = 0
    reduction: str = "none"
    data_bounds = bounded(
        indices="which elements are written; each index is tested against the axis before it is used, else refused",
    )

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        want_dtype(self, "indices", indices.dtype, *INDICES)
        _want_reduction(self, self.reduction, x.dtype)
        same_dtype(self, x, updates)
        _elementwise_index(self, x, indices)
        if indices.shape is not None:
            want_dims(self, "updates", updates, *indices.shape)
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        axis = normalise_axis(self, self.axis, x.ndim)
        want_index(self, "indices", indices, x.shape[axis])
        index: list[Any] = list(np.ogrid[tuple(slice(0, d) for d in indices.shape)])
        index[axis] = indices
        return _place(x.copy(), tuple(index), updates, self.reduction)


@op("ScatterND")
class ScatterND(Op):
    """y = x with slices at index tuples replaced by updates.

    x: [s...] any · indices: [i..., m] i64 · updates: [i..., s[m:]...] of x's dtype -> y: like x.
    reduction: none, add, mul, max, min with what is there; strings are added by putting one behind the other.
    Source: ONNX ScatterND-18, onnxruntime.
    """

    reduction: str = "none"
    data_bounds = bounded(
        indices="which slices are written; each number is tested against its axis before it is used, else refused",
    )

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        want_dtype(self, "indices", indices.dtype, *INDICES)
        _want_reduction(self, self.reduction, x.dtype)
        same_dtype(self, x, updates)
        if x.shape is not None and indices.shape is not None:
            depth = indices.shape[-1] if indices.shape else 0
            if isinstance(depth, int):
                self.fail_if(not 1 <= depth <= len(x.shape), "last dimension of indices", depth, f"1 to {len(x.shape)}")
                want_dims(self, "updates", updates, *indices.shape[:-1], *x.shape[depth:])
                want_places(self, indices.shape, *x.shape[:depth])
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        _want_tuples(self, indices, x.shape[: indices.shape[-1]])
        index = tuple(indices[..., i] for i in range(indices.shape[-1]))
        return _place(x.copy(), index, updates, self.reduction)


@op("OneHot")
class OneHot(Op):
    """y = values[1] at the index along a new axis of length depth, else values[0].

    indices: [i...] number; out of -depth…depth-1: no hot element · depth: scalar or [1] number · values: [2] any
    -> y: [i..., depth with the axis put in], values' dtype.  Source: ONNX OneHot-11.
    """

    axis: int = -1
    value_inputs = (1,)
    data_bounds = bounded(
        indices="which element gets the hot value; an index beyond the depth gives none", depth=PLANNED
    )

    def infer(self, indices: TensorType, depth: TensorType, values: TensorType) -> TensorType:
        want_dtype(self, "indices", indices.dtype, *NUMBERS)
        want_dtype(self, "depth", depth.dtype, *NUMBERS)
        want_one(self, depth=depth)
        want_dims(self, "values", values, 2)
        if indices.shape is None:
            return TensorType(values.dtype, None)
        axis = normalise_axis(self, self.axis, len(indices.shape) + 1)
        count = known_dims(depth)
        size: Dim = fresh_dim("depth") if count is None else count[0]
        if isinstance(size, int) and size < 0:
            raise self.fail("depth", size, "at least 0")
        return TensorType(values.dtype, (*indices.shape[:axis], size, *indices.shape[axis:]))

    def reference(self, indices: Array, depth: Array, values: Array) -> Array:
        size = int(depth.reshape(-1)[0])
        axis = normalise_axis(self, self.axis, indices.ndim + 1)
        spot = np.expand_dims(indices.astype(I64), axis)
        places = np.arange(size).reshape(-1, *(1,) * (indices.ndim - axis))
        hot = (spot == places) | (spot + size == places)
        return np.asarray(np.where(hot, values[1], values[0]), dtype=values.dtype)


@op("NonZero")
class NonZero(Op):
    """y = indices of the elements that are not zero, one column each, in row-major order.

    x: [...] any; a string is nothing if it is empty -> y: [rank of x, count] i64, of a scalar [0, 0 or 1].
    Source: ONNX NonZero-13.
    """

    data_bounds = bounded(
        x="how many columns are written; they are counted first, and the writer stops where more turn up",
    )

    def infer(self, x: TensorType) -> TensorType:
        rank: Dim = fresh_dim("rank") if x.shape is None else len(x.shape)
        return TensorType(I64, (rank, fresh_dim("nonzero")))

    def reference(self, x: Array) -> Array:
        found = np.nonzero(np.atleast_1d(x))
        return np.array(found[: x.ndim], I64).reshape(x.ndim, len(found[0]))


@op("Compress")
class Compress(Op):
    """y = the slices along an axis (None: the elements of flattened x) where the condition holds.

    x: [...] any · condition: [m] bool, what is beyond m is left out; a longer one is cut off -> y: x's dtype.
    Source: ONNX Compress-11, onnxruntime.
    """

    axis: int | None = None
    value_inputs = (1,)
    data_bounds = bounded(
        condition="how many slices are written; they are counted first, and the writer stops where more turn up",
    )

    def infer(self, x: TensorType, condition: TensorType) -> TensorType:
        want_dtype(self, "condition", condition.dtype, BOOL)
        shape_of(self, "condition", condition, 1)
        if self.axis is None:
            return TensorType(x.dtype, (self._count(condition, None if x.shape is None else product(x.shape)),))
        if x.shape is None:
            return TensorType(x.dtype, None)
        axis = normalise_axis(self, self.axis, len(x.shape))
        return TensorType(x.dtype, (*x.shape[:axis], self._count(condition, x.shape[axis]), *x.shape[axis + 1 :]))

    @staticmethod
    def _count(condition: TensorType, size: Dim | None) -> Dim:
        known = condition.known
        if known is None or (not isinstance(size, int) and known.any()):
            return fresh_dim("kept")
        return int(known[:size].sum()) if isinstance(size, int) else 0

    def reference(self, x: Array, condition: Array) -> Array:
        return np.compress(condition[: x.size if self.axis is None else x.shape[self.axis]], x, axis=self.axis)


@op("Unique")
class Unique(Op):
    """The different elements of flattened x, or its different slices along an axis.

    x: [...] any -> y: x's dtype; first: index in x of the first occurrence of each; inverse: index in y of each of x's;
    counts: occurrences; i64 [m].  Ascending when sorted, else in order of first occurrence.  NaN is one
    element, but slices with a NaN are all different, as in NumPy.  Source: ONNX Unique-11.
    """

    axis: int | None = None
    sorted: bool = True
    data_bounds = bounded(x="how many results are written; there is room for all different")

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        count = fresh_dim("unique")
        size: Dim = fresh_dim()
        shape: Shape | None = (count,)
        if self.axis is not None:
            shape = None
            if x.shape is not None:
                axis = normalise_axis(self, self.axis, len(x.shape))
                shape, size = (*x.shape[:axis], count, *x.shape[axis + 1 :]), x.shape[axis]
        elif x.is_static:
            size = x.size
        i64 = [TensorType(I64, (d,)) for d in (count, size, count)]
        return (TensorType(x.dtype, shape), *i64)

    def reference(self, x: Array) -> tuple[Array, ...]:
        compared = x
        if x.dtype == STRING and self.axis is not None:  # which NumPy does not compare as slices: their places do
            compared = np.unique(x, return_inverse=True)[1].reshape(x.shape)
        _, first, inverse, counts = np.unique(
            compared, return_index=True, return_inverse=True, return_counts=True, axis=self.axis
        )
        inverse = inverse.reshape(-1)
        if not self.sorted:
            order = np.argsort(first, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(order.size)
            first, counts = first[order], counts[order]
            inverse = rank[inverse]
        y = np.take(x, first, axis=self.axis)
        return (y, *(v.astype(I64, copy=False) for v in (first, inverse, counts)))


def _corners(boxes: Array, center_point_box: int) -> Array:
    """Boxes [n, 4] as (y1, x1, y2, x2) with y1 <= y2 and x1 <= x2."""
    if center_point_box:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=1)
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.concatenate([low, high], axis=1)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of one box with others, 0 where the union is empty."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), axis=1)
    union = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


@op("NonMaxSuppression")
class NonMaxSuppression(Op):
    """Boxes kept when in order of score each box removes those that overlap it too much.

    boxes: [n, b, 4] f32, two corners (y, x, y, x) or with center_point_box=1 (x, y, w, h) · scores: [n, c, b] f32 ·
    max_output_boxes_per_class: i64, 0 without it · iou_threshold: f32, 0 without it; above it a box goes ·
    score_threshold: f32; only scores above it count -> y: [m, 3] i64 of (image, class, box).
    Source: ONNX NonMaxSuppression-11.
    """

    center_point_box: int = 0
    data_bounds = bounded(
        max_output_boxes_per_class=(
            "how many boxes are written; held to 0 and the number of boxes, for which there is room"
        ),
    )

    def infer(
        self,
        boxes: TensorType,
        scores: TensorType,
        max_output_boxes_per_class: TensorType | None = None,
        iou_threshold: TensorType | None = None,
        score_threshold: TensorType | None = None,
    ) -> TensorType:
        thresholds = {"iou_threshold": iou_threshold, "score_threshold": score_threshold}
        want_dtypes(self, (F32,), boxes=boxes, scores=scores, **thresholds)
        want_dtypes(self, (I64,), max_output_boxes_per_class=max_output_boxes_per_class)
        want_among(self, (0, 1), center_point_box=self.center_point_box)
        shape = shape_of(self, "scores", scores, 3)
        want_dims(self, "boxes", boxes, *((None, None) if shape is None else (shape[0], shape[2])), 4)
        want_one(self, max_output_boxes_per_class=max_output_boxes_per_class, **thresholds)
        return TensorType(I64, (fresh_dim("boxes"), 3))

    def reference(
        self,
        boxes: Array,
        scores: Array,
        max_output_boxes_per_class: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
    ) -> Array:
        most = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.reshape(-1)[0])
        overlap = F32.type(0) if iou_threshold is None else iou_threshold.reshape(-1)[0]
        rows: list[tuple[int, int, int]] = []
        corners = [_corners(b, self.center_point_box) for b in boxes]
        for n, c in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
            order = np.argsort(-scores[n, c], kind="stable")
            if score_threshold is not None:
                order = order[scores[n, c][order] > score_threshold.reshape(-1)[0]]
            kept = 0
            while order.size and kept < most:
                rows.append((n, c, int(order[0])))
                kept += 1
                rest = order[1:]
                order = rest[_overlaps(corners[n][order[0]], corners[n][rest]) <= overlap]
        return np.array(rows, dtype=I64).reshape(-1, 3)
