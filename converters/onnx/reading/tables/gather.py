"""Readers of gathers, scatters and operators whose result depends on the data."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import (
    Compress,
    Gather,
    GatherElements,
    GatherND,
    NonMaxSuppression,
    NonZero,
    OneHot,
    ScatterElements,
    ScatterND,
    Unique,
)
from bolt_numba.ops.layers.cache import TensorScatter

_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _reduction(b: NodeBuilder, reduction: str) -> str:
    if reduction not in _REDUCTIONS:
        raise b.invalid("reduction", reduction, f"one of {_REDUCTIONS}")
    return reduction


@reader("Gather")
def gather(b: NodeBuilder, x: Value, indices: Value, *, axis: int = 0) -> Any:
    return b(Gather(axis), x, indices)


@reader("GatherElements")
def gather_elements(b: NodeBuilder, x: Value, indices: Value, *, axis: int = 0) -> Any:
    return b(GatherElements(axis), x, indices)


@reader("GatherND")
def gather_nd(b: NodeBuilder, x: Value, indices: Value, *, batch_dims: int = 0) -> Any:
    return b(GatherND(batch_dims), x, indices)


@reader("Scatter", "ScatterElements")
def scatter_elements(
    b: NodeBuilder, x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Any:
    return b(ScatterElements(axis, _reduction(b, reduction)), x, indices, updates)


@reader("ScatterND")
def scatter_nd(b: NodeBuilder, x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Any:
    return b(ScatterND(_reduction(b, reduction)), x, indices, updates)


@reader("OneHot")
def one_hot(b: NodeBuilder, indices: Value, depth: Value, values: Value, *, axis: int = -1) -> Any:
    return b(OneHot(axis), indices, depth, values)


@reader("NonZero")
def non_zero(b: NodeBuilder, x: Value) -> Any:
    return b(NonZero(), x)


@reader("Compress")
def compress(b: NodeBuilder, x: Value, condition: Value, *, axis: int | None = None) -> Any:
    return b(Compress(axis), x, condition)


@reader("Unique")
def unique(b: NodeBuilder, x: Value, *, axis: int | None = None, sorted: bool = True) -> Any:
    return b(Unique(axis, sorted), x)


@reader("NonMaxSuppression")
def non_max_suppression(
    b: NodeBuilder,
    boxes: Value,
    scores: Value,
    max_output_boxes_per_class: Value | None = None,
    iou_threshold: Value | None = None,
    score_threshold: Value | None = None,
    *,
    center_point_box: int = 0,
) -> Any:
    operator = NonMaxSuppression(center_point_box)
    return b(operator, boxes, scores, max_output_boxes_per_class, iou_threshold, score_threshold)


@reader("TensorScatter")
def tensor_scatter(
    b: NodeBuilder, past: Value, update: Value, places: Value | None = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    return b(TensorScatter(axis, mode), past, update, places)
