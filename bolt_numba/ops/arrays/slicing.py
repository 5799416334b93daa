"""Parts of an array and surroundings of it: Slice and Pad."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import Array, Dim, Sym, TensorType
from bolt_numba.ops.content import PLANNED, bounded, want_between
from bolt_numba.ops.dtypes import INDICES, nothing
from bolt_numba.ops.registry import Op, fresh_dim, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import (
    distinct_axes,
    known_dims,
    known_ints,
    known_length,
    unknown_shape,
    want_dims,
    want_one,
)

END_BOUND = 2**31 - 1
"""A slice bound of at least this (or of at most minus this) means the end, whatever the length."""


def slice_bounds(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """First index and number of indices of a slice, clamped to ``size``.  Source: ONNX Slice-13."""
    first, last = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        first, last = (min(max(v, 0), size) for v in (first, last))
        return first, max(-(-(last - first) // step), 0)
    first, last = min(max(first, 0), size - 1), min(max(last, -1), size - 1)
    return first, max(-(-(first - last) // -step), 0)


def _is_least(size: Dim, number: int) -> bool:
    """Whether a symbolic size is at least a number that is not negative, whatever the run brings."""
    return isinstance(size, Sym) and 0 <= number <= size.const and size.is_count


def _symbolic_length(size: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """Length of a slice of a symbolic axis when a formula gives it for every length from 1 on."""
    if isinstance(start, Sym) or abs(step) != 1:
        whole = start == 0 and not isinstance(end, Sym) and end >= END_BOUND and step > 0
        return (size + step - 1) // step if whole else None
    if step == -1:
        return size if (start == -1 or start >= END_BOUND) and not isinstance(end, Sym) and end <= -END_BOUND else None
    if end == size or (isinstance(end, int) and end >= END_BOUND):
        return size - start if start in (0, 1) or _is_least(size, start) else 1 if start == -1 else None
    if isinstance(end, Sym) or not isinstance(size, Sym):
        return None
    if end < 0 <= start and _is_least(size, start - end):
        return size - start + end
    if start == 0 and end == -1:
        return size - 1
    return 0 if 0 <= end <= start else None


@op("Slice")
class Slice(Op):
    """y = every step-th element from start to end (not included) along some axes; negative bounds count from the end.

    x: [...] any · starts, ends, axes, steps: [m] i32 or i64; axes 0…m-1 and steps 1 without them; bounds out of range
    are clamped -> y: x's dtype.  Source: ONNX Slice-13.
    """

    on_symbols = True
    value_inputs = (1, 2, 3, 4)
    moves_memory = True
    data_bounds = bounded(starts=PLANNED, ends=PLANNED, axes=PLANNED, steps=PLANNED)

    def infer(
        self,
        x: TensorType,
        starts: TensorType,
        ends: TensorType,
        axes: TensorType | None = None,
        steps: TensorType | None = None,
    ) -> TensorType:
        want_dims(self, "starts", starts, None)
        bounds = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
        want_dtypes(self, INDICES, **bounds)
        for what, t in bounds.items():
            want_dims(self, what, t, None if starts.shape is None else starts.shape[0])
        if x.shape is None:
            return TensorType(x.dtype, None)
        rank = len(x.shape)
        count = next((n for n in map(known_length, (starts, ends)) if n is not None), None)
        if count is not None and count > rank:
            raise self.fail("length of starts", count, f"at most {rank}")
        where = list(range(count or 0)) if axes is None else known_ints(axes)
        if count is None or where is None:
            return TensorType(x.dtype, unknown_shape(rank))
        unknown: list[None] = [None] * count
        first, last = known_dims(starts) or unknown, known_dims(ends) or unknown
        by = [1] * count if steps is None else known_ints(steps) or unknown
        dims = list(x.shape)
        for axis, start, end, step in zip(distinct_axes(self, where, rank), first, last, by, strict=True):
            dims[axis] = self._length(x.shape[axis], start, end, step)
        return TensorType(x.dtype, tuple(dims))

    def _length(self, size: Dim, start: Dim | None, end: Dim | None, step: int | None) -> Dim:
        self.fail_if(step == 0, "steps", 0, "not 0")
        if start is None or end is None or step is None:
            return fresh_dim("slice")
        if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
            return slice_bounds(size, start, end, step)[1]
        length = _symbolic_length(size, start, end, step)
        return fresh_dim("slice") if length is None else length

    def reference(
        self, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
    ) -> Array:
        index: list[Any] = [slice(None)] * x.ndim
        where = distinct_axes(self, range(starts.size) if axes is None else [int(a) for a in axes], x.ndim)
        by = [1] * starts.size if steps is None else [int(s) for s in steps]
        for a, start, end, step in zip(where, starts, ends, by, strict=True):
            size = x.shape[a]
            self._length(size, None, None, step)
            first, count = slice_bounds(size, int(start), int(end), step)
            stop = first + count * step
            index[a] = slice(first, None if stop < 0 else stop, step) if count else slice(0, 0)
        return np.array(x[tuple(index)], order="C")


@op("Pad")
class Pad(Op):
    """y = x with elements added around it, or cut off where a pad is negative (cut first, then added).

    x: [...] any · pads: [2 m] i64, begins then ends · value: scalar of x's dtype, 0 without it · axes: [m], all without
    it -> y: x's dtype.  mode: constant, reflect (without the edge), edge, wrap.  Source: ONNX Pad-25.
    """

    mode: str = "constant"
    value_inputs = (1, 3)
    moves_memory = True
    data_bounds = bounded(pads=PLANNED, axes=PLANNED)

    def infer(
        self, x: TensorType, pads: TensorType, value: TensorType | None = None, axes: TensorType | None = None
    ) -> TensorType:
        want_among(self, ("constant", "reflect", "edge", "wrap"), mode=self.mode)
        want_dtypes(self, INDICES, pads=pads, axes=axes)
        want_dtypes(self, (x.dtype,), value=value)
        want_one(self, value=value)
        want_dims(self, "axes", axes, None)
        shape = x.shape
        if shape is None:
            return TensorType(x.dtype, None)
        count = len(shape) if axes is None else known_length(axes)
        want_dims(self, "pads", pads, None if count is None else 2 * count)
        widths = known_dims(pads)
        where = list(range(len(shape))) if axes is None else known_ints(axes)
        if widths is None or where is None:
            return TensorType(x.dtype, unknown_shape(len(shape)))
        dims = list(shape)
        for i, axis in enumerate(distinct_axes(self, where, len(shape))):
            dims[axis] = self._padded(shape[axis], widths[i], widths[len(where) + i])
        return TensorType(x.dtype, tuple(dims))

    def _padded(self, size: Dim, begin: Dim, end: Dim) -> Dim:
        """The length of an axis of x with its pads."""
        total = size + begin + end
        if isinstance(size, int) and isinstance(begin, int) and isinstance(end, int):
            kept = size + min(begin, 0) + min(end, 0)
            self.fail_if(kept < 0, "pads", (begin, end), f"no more cut off than {size}")
            if kept == 0 and self.mode != "constant" and max(begin, end) > 0:
                raise self.fail("pads", (begin, end), f"none around no elements in mode {self.mode}")
        return total

    def reference(self, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
        where = distinct_axes(self, range(x.ndim) if axes is None else [int(a) for a in axes], x.ndim)
        added = [(0, 0)] * x.ndim
        index: list[Any] = [slice(None)] * x.ndim
        for i, a in enumerate(where):
            begin, end = int(pads[i]), int(pads[len(where) + i])
            self._padded(x.shape[a], begin, end)
            added[a] = (max(begin, 0), max(end, 0))
            index[a] = slice(max(-begin, 0), x.shape[a] - max(-end, 0))
        kept = x[tuple(index)]
        if self.mode != "constant":
            return np.pad(kept, added, mode=self.mode)  # type: ignore[call-overload, no-any-return]
        fill = nothing(x.dtype) if value is None else value.reshape(-1)[0]
        y = np.full([d + b + e for d, (b, e) in zip(kept.shape, added, strict=True)], fill, dtype=x.dtype)
        y[tuple(slice(b, b + d) for d, (b, _) in zip(kept.shape, added, strict=True))] = kept
        return y


@op("ReverseSequence")
class ReverseSequence(Op):
    """y = x with the first ``sequence_lens[b]`` elements of each batch entry in reverse order along the time axis.

    x: [...] any, rank at least 2 · sequence_lens: [batch] i64.  Source: ONNX ReverseSequence-10.
    """

    batch_axis: int = 1
    time_axis: int = 0
    data_bounds = bounded(
        sequence_lens=(
            "which steps are read; tested against the time axis on a copy that the kernel reads, else refused"
        ),
    )

    def infer(self, x: TensorType, sequence_lens: TensorType) -> TensorType:
        want_dtype(self, "sequence_lens", sequence_lens.dtype, *INDICES)
        if {self.batch_axis, self.time_axis} != {0, 1}:
            raise self.fail("batch_axis and time_axis", (self.batch_axis, self.time_axis), "0 and 1")
        if x.shape is not None and len(x.shape) < 2:
            raise self.fail("rank of x", len(x.shape), "at least 2")
        want_dims(self, "sequence_lens", sequence_lens, None if x.shape is None else x.shape[self.batch_axis])
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, sequence_lens: Array) -> Array:
        want_between(self, "sequence_lens", sequence_lens, 0, x.shape[self.time_axis])
        y = x.copy()
        into, data = (np.moveaxis(a, self.batch_axis, 0) for a in (y, x))
        for target, source, length in zip(into, data, sequence_lens, strict=True):
            target[:length] = source[:length][::-1]
        return y
