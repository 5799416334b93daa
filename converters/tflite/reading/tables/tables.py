"""Hash tables.  What one holds is two constants, which a subgraph sets once when the model begins."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import I64, U8
from bolt_numba.converters.builder import ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import TFLITE, exact
from bolt_numba.converters.tflite.reading.scope import Handle
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, Reshape, Shape
from bolt_numba.ops.data.ml import LabelEncoder
from bolt_numba.ops.pointwise import Cast, Less


@TFLITE.reader("HASHTABLE")
@exact
def hashtable(b: TfliteBuilder, *, table_id: int = 0) -> Value:
    return Handle(b.graph, ("table", table_id))


def _parts(b: TfliteBuilder, handle: Value) -> tuple[Any, Any]:
    """Keys of what stands for a table's own keys and values."""
    if not isinstance(handle, Handle):
        raise b.unsupported("a handle that is computed")
    return (handle.key, "keys"), (handle.key, "values")


@TFLITE.reader("HASHTABLE_IMPORT")
@exact
def hashtable_import(b: TfliteBuilder, handle: Value, keys: Value, values: Value) -> Any:
    """A table that holds something already is left as it is."""
    for part, content in zip(_parts(b, handle), (keys, values), strict=True):
        if part not in b.owner.variables.initial:
            b.owner.variables.fixed.add(part)
            b.owner.variables.write(b.scope, part, content)
    return []


@TFLITE.reader("HASHTABLE_FIND")
@exact
def hashtable_find(b: TfliteBuilder, handle: Value, x: Value, default: Value) -> Value:
    keys, values = (b.owner.variables.read(b.scope, part) for part in _parts(b, handle))
    return b(LabelEncoder(), x, keys, values, b(Reshape(), default, ints([1])))


@TFLITE.reader("HASHTABLE_SIZE")
@exact
def hashtable_size(b: TfliteBuilder, handle: Value) -> Value:
    return b(Shape(), b.owner.variables.read(b.scope, _parts(b, handle)[0]))


@TFLITE.reader("HASHTABLE_LOOKUP")
@exact
def hashtable_lookup(b: TfliteBuilder, x: Value, keys: Value, values: Value) -> tuple[Value, Value]:
    """x: [k] i32, keys: [n] i32, values: [n, ...] -> the row of each, zeros for what has none; hits: [k] u8."""
    count = b.static_dim(keys, 0)
    rows = b(LabelEncoder(), x, keys, np.arange(count), ints([count]))
    more = np.zeros((1, *(b.static_dim(values, i) for i in range(1, len(values.type.shape or ())))), values.type.dtype)
    hits = b(Cast(U8), b(Less(), rows, np.array(count, I64)))
    return b(Gather(0), b(Concat(0), values, more), rows), hits
