"""Readers of sequences and optionals; SequenceMap is read through its function body."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import SequenceType
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, reader
from bolt_numba.converters.onnx.types import type_of_proto
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

add_as_is(SequenceConstruct, SequenceAt, SequenceInsert, SequenceErase, SequenceLength, ConcatFromSequence)
add_as_is(SplitToSequence, OptionalGetElement, SequenceEmpty)


@reader("Optional")
def optional(b: NodeBuilder, x: Value | None = None, *, type: onnx.TypeProto | None = None) -> Value:
    if x is not None:
        return b(Optional(), x)
    if type is None:
        raise b.invalid("operand and attribute type", "neither", "one of them")
    element, depth = type_of_proto(type, "type"), 0
    while isinstance(element, SequenceType):
        element, depth = element.element, depth + 1
    return b(OptionalEmpty(element.dtype, depth))


@reader("OptionalHasElement")
def optional_has_element(b: NodeBuilder, x: Value | None = None) -> Value:
    return b.const(np.array(False)) if x is None else b(OptionalHasElement(), x)
