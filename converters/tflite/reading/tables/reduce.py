"""Readers of reductions along axes and of searches in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, U8
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, as_i64, cast
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.arrays.shape import Reshape

REDUCTIONS = {
    "MEAN": r.ReduceMean, "SUM": r.ReduceSum, "REDUCE_PROD": r.ReduceProd, "REDUCE_MAX": r.ReduceMax,
    "REDUCE_MIN": r.ReduceMin, "REDUCE_ANY": r.ReduceMax, "REDUCE_ALL": r.ReduceMin,
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


TFLITE.add("CUMSUM", AsIs(r.CumSum))
TFLITE.add("ARG_MAX", _search(r.ArgMax))
TFLITE.add("ARG_MIN", _search(r.ArgMin))


TFLITE.reader("TOPK_V2")(lambda b, x, k: b(r.TopK(), x, b(Reshape(), as_i64(b, k), np.array([1]))))
