"""Readers of sequences and optionals; SequenceMap is read through its function body."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.converters.onnx.types import dtype_of, type_of_proto
from bolt_numba.ir.graph import Value
from bolt_numba.ops.data.sequence import (
    ConcatFromSequence,
    Optional,
    OptionalEmpty,
    OptionalGetElement,
    OptionalHasElement,
    SequenceAt,
    SequenceConstruct,
    SequenceEmpty,
    SequenceErase,
    SequenceInsert,
    SequenceLength,
    SplitToSequence,
)
from bolt_numba.types import SequenceType


@reader("SequenceEmpty")
def sequence_empty(b: NodeBuilder, *, dtype: int = 1) -> Any:
    return b(SequenceEmpty(dtype_of(dtype, "dtype")))


@reader("SequenceConstruct")
def sequence_construct(b: NodeBuilder, *elements: Value) -> Any:
    return b(SequenceConstruct(), *elements)


@reader("SequenceAt")
def sequence_at(b: NodeBuilder, sequence: Value, position: Value) -> Any:
    return b(SequenceAt(), sequence, position)


@reader("SequenceInsert")
def sequence_insert(b: NodeBuilder, sequence: Value, element: Value, position: Value | None = None) -> Any:
    return b(SequenceInsert(), sequence, element, position)


@reader("SequenceErase")
def sequence_erase(b: NodeBuilder, sequence: Value, position: Value | None = None) -> Any:
    return b(SequenceErase(), sequence, position)


@reader("SequenceLength")
def sequence_length(b: NodeBuilder, sequence: Value) -> Any:
    return b(SequenceLength(), sequence)


@reader("ConcatFromSequence")
def concat_from_sequence(b: NodeBuilder, sequence: Value, *, axis: int, new_axis: bool = False) -> Any:
    return b(ConcatFromSequence(axis, new_axis), sequence)


@reader("SplitToSequence")
def split_to_sequence(
    b: NodeBuilder, x: Value, split: Value | None = None, *, axis: int = 0, keepdims: bool = True
) -> Any:
    return b(SplitToSequence(axis, keepdims), x, split)


@reader("Optional")
def optional(b: NodeBuilder, x: Value | None = None, *, type: onnx.TypeProto | None = None) -> Any:
    if x is not None:
        return b(Optional(), x)
    if type is None:
        raise b.invalid("operand and attribute type", "neither", "one of them")
    element, depth = type_of_proto(type, "type"), 0
    while isinstance(element, SequenceType):
        element, depth = element.element, depth + 1
    return b(OptionalEmpty(element.dtype, depth))


@reader("OptionalHasElement")
def optional_has_element(b: NodeBuilder, x: Value | None = None) -> Any:
    return b.const(np.array(False)) if x is None else b(OptionalHasElement(), x)


@reader("OptionalGetElement")
def optional_get_element(b: NodeBuilder, x: Value) -> Any:
    return b(OptionalGetElement(), x)
