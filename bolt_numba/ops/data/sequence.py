"""Sequences and optionals: lists of values, and values that may be missing.  They exist in Python only."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import (
    BOOL,
    F32,
    I64,
    AnyDType,
    Array,
    NestedType,
    OptionalType,
    SequenceType,
    Sym,
    TensorType,
    optional_of,
    sequence_of,
)
from bolt_numba.ops.content import bounded, refusal
from bolt_numba.ops.control import joined
from bolt_numba.ops.dtypes import INDICES
from bolt_numba.ops.registry import Op, fresh_dim, normalise_axis, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import known_ints, shape_of, want_one


def element_of(owner: Op, sequence: TensorType) -> TensorType:
    """Type of one element: what a symbol stands for differs from element to element, so it gets fresh ones."""
    if not isinstance(sequence, SequenceType):
        raise DTypeError(f"{owner.name}: type of the sequence: got {sequence}, wanted seq(...)")
    element = sequence.element
    if isinstance(element, NestedType) or element.shape is None:
        return element
    return TensorType(element.dtype, tuple(fresh_dim("at") if isinstance(d, Sym) else d for d in element.shape))


def _place(owner: Op, position: Array, count: int) -> int:
    """Index 0…count-1 for one of -count…count-1."""
    index = int(position.reshape(-1)[0])
    if not -count <= index < count:
        raise refusal(owner, "position", (), index, -count, count - 1)
    return index % count


@op("SequenceEmpty")
class SequenceEmpty(Op):
    """An empty sequence of tensors of a dtype.  Source: ONNX SequenceEmpty-11."""

    dtype: AnyDType = F32

    def infer(self) -> TensorType:
        return sequence_of(TensorType(self.dtype, None))

    def reference(self) -> Any:
        return ([],)


@op("SequenceConstruct")
class SequenceConstruct(Op):
    """The sequence of all operands, tensors of one dtype and any shapes.  Source: ONNX SequenceConstruct-11."""

    def infer(self, *elements: TensorType) -> TensorType:
        self.fail_if(not elements, "number of operands", 0, "at least 1")
        made = elements[0].with_value(None)
        for other in elements[1:]:
            made = joined(self.name, made, other)
        return sequence_of(made)

    def reference(self, *elements: Any) -> Any:
        return (list(elements),)


@op("SequenceAt")
class SequenceAt(Op):
    """The element at a position, which counts from the end when negative.

    sequence: seq(any) · position: scalar i32 or i64 -> any.  Source: ONNX SequenceAt-11.
    """

    data_bounds = bounded(position="which element is taken; tested, else refused")

    def infer(self, sequence: TensorType, position: TensorType) -> TensorType:
        want_dtype(self, "position", position.dtype, *INDICES)
        want_one(self, position=position)
        return element_of(self, sequence)

    def reference(self, sequence: list[Any], position: Array) -> Any:
        return (sequence[_place(self, position, len(sequence))],)


@op("SequenceInsert")
class SequenceInsert(Op):
    """A sequence with one more element before a position, or at the end.

    sequence: seq(any) · element: any · position: scalar i32 or i64, -n to n.  Source: ONNX SequenceInsert-11.
    """

    data_bounds = bounded(position="where the element goes; tested, else refused")

    def infer(self, sequence: TensorType, element: TensorType, position: TensorType | None = None) -> TensorType:
        want_dtypes(self, INDICES, position=position)
        want_one(self, position=position)
        element_of(self, sequence)
        return sequence_of(joined(self.name, sequence.element, element.with_value(None)))  # type: ignore[attr-defined]

    def reference(self, sequence: list[Any], element: Any, position: Array | None = None) -> Any:
        count = len(sequence)
        place = count if position is None else int(position.reshape(-1)[0])
        if not -count <= place <= count:
            raise refusal(self, "position", (), place, -count, count)
        place = place + count if place < 0 else place
        return ([*sequence[:place], element, *sequence[place:]],)


@op("SequenceErase")
class SequenceErase(Op):
    """A sequence without the element at a position, the last one by default.

    sequence: seq(any) · position: scalar i32 or i64.  Source: ONNX SequenceErase-11.
    """

    data_bounds = bounded(position="which element goes; tested, else refused")

    def infer(self, sequence: TensorType, position: TensorType | None = None) -> TensorType:
        want_dtypes(self, INDICES, position=position)
        want_one(self, position=position)
        element_of(self, sequence)
        return sequence

    def reference(self, sequence: list[Any], position: Array | None = None) -> Any:
        place = _place(self, np.array(-1) if position is None else position, len(sequence))
        return ([*sequence[:place], *sequence[place + 1 :]],)


@op("SequenceLength")
class SequenceLength(Op):
    """Number of elements.  sequence: seq(any) -> scalar i64.  Source: ONNX SequenceLength-11."""

    def infer(self, sequence: TensorType) -> TensorType:
        element_of(self, sequence)
        return TensorType(I64, ())

    def reference(self, sequence: list[Any]) -> Array:
        return np.array(len(sequence), I64)


@op("ConcatFromSequence")
class ConcatFromSequence(Op):
    """All tensors of a sequence joined along an axis, with ``new_axis`` along one that is made for it.

    sequence: seq(tensor), not empty -> tensor.  Source: ONNX ConcatFromSequence-11.
    """

    axis: int
    new_axis: bool = False

    def infer(self, sequence: TensorType) -> TensorType:
        element = element_of(self, sequence)
        if element.shape is None:
            return TensorType(element.dtype, None)
        axis = normalise_axis(self, self.axis, len(element.shape) + self.new_axis)
        dims = list(element.shape)
        if self.new_axis:
            dims.insert(axis, fresh_dim("stacked"))
        else:
            dims[axis] = fresh_dim("joined")
        return TensorType(element.dtype, tuple(dims))

    def reference(self, sequence: list[Array]) -> Array:
        self.fail_if(not sequence, "length of the sequence", 0, "at least 1")
        return np.stack(sequence, self.axis) if self.new_axis else np.concatenate(sequence, self.axis)


@op("SplitToSequence")
class SplitToSequence(Op):
    """The parts of x along an axis.

    x: [...] any · split: scalar, the size of every part but a smaller last one, or [parts] sizes; omitted: parts of
    size 1, without the axis unless keepdims -> seq(tensor).  Source: ONNX SplitToSequence-24.
    """

    axis: int = 0
    keepdims: bool = True
    data_bounds = bounded(split="where the parts begin; tested, else refused")

    def infer(self, x: TensorType, split: TensorType | None = None) -> TensorType:
        want_dtypes(self, INDICES, split=split)
        shape_of(self, "split", split, 0, 1)
        if x.shape is None:
            return sequence_of(TensorType(x.dtype, None))
        axis = normalise_axis(self, self.axis, len(x.shape))
        rest = x.shape[axis + 1 :]
        if split is None:
            return sequence_of(TensorType(x.dtype, (*x.shape[:axis], *((1,) if self.keepdims else ()), *rest)))
        sizes = set(known_ints(split) or ()) if split.shape != () else set()
        size = sizes.pop() if len(sizes) == 1 else fresh_dim("part")
        return sequence_of(TensorType(x.dtype, (*x.shape[:axis], size, *rest)))

    def reference(self, x: Array, split: Array | None = None) -> Any:
        axis = normalise_axis(self, self.axis, x.ndim)
        size = x.shape[axis]
        if split is None:
            parts = np.split(x, size, axis) if size else []
            return ([np.ascontiguousarray(p) if self.keepdims else np.squeeze(p, axis) for p in parts],)
        if split.ndim:
            ends = np.cumsum(split)
            if split.min(initial=0) < 0 or (ends[-1] if len(ends) else 0) != size:
                raise self.fail("split", split.tolist(), f"sizes whose sum is {size}")
        else:
            self.fail_if(split < 1, "split", int(split), "at least 1")
            ends = np.minimum(np.arange(1, -(-size // int(split)) + 1) * int(split), size)
        return ([np.ascontiguousarray(p) for p in np.split(x, ends[:-1], axis)] if len(ends) else [],)


@op("Optional")
class Optional(Op):
    """An optional that holds the operand.  x: tensor or sequence -> optional.  Source: ONNX Optional-15."""

    def infer(self, x: TensorType) -> TensorType:
        if isinstance(x, OptionalType):
            raise DTypeError(f"{self.name}: type of x: got {x}, wanted a tensor or sequence")
        return optional_of(x.with_value(None))

    def reference(self, x: Any) -> Any:
        return (x,)


@op("OptionalEmpty")
class OptionalEmpty(Op):
    """An optional that holds nothing; its element has ``depth`` levels of sequences over tensors of ``dtype``."""

    dtype: AnyDType = F32
    depth: int = 0

    def infer(self) -> TensorType:
        element = TensorType(self.dtype, None)
        for _ in range(self.depth):
            element = sequence_of(element)
        return optional_of(element)

    def reference(self) -> Any:
        return (None,)


@op("OptionalHasElement")
class OptionalHasElement(Op):
    """Whether an optional holds something; a tensor or sequence counts as held.

    x: any -> scalar bool.  Source: ONNX OptionalHasElement-28.
    """

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(BOOL, (), value=None if isinstance(x, OptionalType) else np.array(True))

    def reference(self, x: Any) -> Array:
        return np.array(x is not None)


@op("OptionalGetElement")
class OptionalGetElement(Op):
    """What an optional holds; a tensor or sequence is given as it is.  Source: ONNX OptionalGetElement-28."""

    def infer(self, x: TensorType) -> TensorType:
        return x.element if isinstance(x, OptionalType) else x.with_value(None)

    def reference(self, x: Any) -> Any:
        if x is None:
            raise self.fail("content of the optional", "nothing", "a value")
        return (x,)
