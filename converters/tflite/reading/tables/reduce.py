"""Readers of reductions along axes and of searches in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, U8
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64, cast
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import (
    ArgMax,
    ArgMin,
    CumSum,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    TopK,
)
from bolt_numba.ops.arrays.shape import Reshape

REDUCTIONS = {
    "MEAN": ReduceMean, "SUM": ReduceSum, "REDUCE_PROD": ReduceProd, "REDUCE_MAX": ReduceMax,
    "REDUCE_MIN": ReduceMin, "REDUCE_ANY": ReduceMax, "REDUCE_ALL": ReduceMin,
}  # fmt: skip


def _reduction(operator: Any) -> Any:
    """No axes leave x as it is."""

    def read(b: TfliteBuilder, x: Value, axes: Value, *, keep_dims: bool = False) -> Any:
        return b(operator(keep_dims, True), x, as_i64(b, axes))

    return read


for _name, _operator in REDUCTIONS.items():
    TFLITE.add(_name, _reduction(_operator))


def _search(operator: Any) -> Any:
    def read(b: TfliteBuilder, x: Value, axis: Value, *, output_type: str = "FLOAT32") -> Any:
        axes = b.known_ints(axis, "an axis")
        b.invalid_if(len(axes) != 1, "axis", axes, "one")
        return b(operator(axes[0], keepdims=False), cast(b, x, U8) if x.type.dtype == BOOL else x)

    return read


TFLITE.add("CUMSUM", AsIs(CumSum))
TFLITE.add("ARG_MAX", _search(ArgMax))
TFLITE.add("ARG_MIN", _search(ArgMin))


TFLITE.reader("TOPK_V2")(lambda b, x, k: b(TopK(), x, b(Reshape(), as_i64(b, k), np.array([1]))))
