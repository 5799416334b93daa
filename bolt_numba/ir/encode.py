"""Graphs as JSON values and a table of tensors: the writing half of `ir.store`; `ir.decode` reads."""

from __future__ import annotations

import dataclasses
import math
import zlib
from typing import Any

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import STRING, AnyDType, Array, Dim, MapType, NestedType, Sym, TensorType, dtype_name
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.registry import Op

MAX_FILL = 1 << 31
"""Bytes that a constant stored as one repeated element may stand for."""


NIBBLES = ("int4", "uint4")
"""Dtypes of which a file holds two in a byte; in memory each has its own."""


def two_in_a_byte(raw: Array) -> Array:
    """The lower halves of bytes, the first of each two as the lower half of the result."""
    even = np.zeros(-(-raw.size // 2) * 2, np.uint8)
    even[: raw.size] = raw & 15
    return np.asarray(even[::2] | even[1::2] << 4)


def one_in_a_byte(raw: Array, count: int, dtype: AnyDType) -> Array:
    """What `two_in_a_byte` joined, as elements of a dtype."""
    halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count]
    if dtype.name == "int4":
        halves = ((halves ^ 8).astype(np.int8) - 8).view(np.uint8)
    return halves.view(dtype)


class TensorTable:
    """Constant arrays, each memory once, at multiples of ``align`` bytes; of a broadcast one only its element."""

    def __init__(self, align: int) -> None:
        self.align = align
        self.rows: list[dict[str, Any]] = []
        self.arrays: list[tuple[int, Array]] = []
        self.nbytes = 0
        self._indices: dict[Any, int] = {}
        self._kept: list[Array] = []

    def index(self, array: Array) -> int:
        """Row of ``array``, added when it is new."""
        key = (array.ctypes.data, array.shape, array.strides, array.dtype) if array.dtype != STRING else id(array)
        if key not in self._indices:
            self._indices[key] = len(self.rows)
            self._kept.append(array)  # so that its memory stays its own
            self.rows.append(self._row(array))
        return self._indices[key]

    def _row(self, array: Array) -> dict[str, Any]:
        if array.dtype == STRING:
            texts = [t.decode() if isinstance(t, bytes) else str(t) for t in array.ravel().tolist()]
            return {"dtype": "string", "shape": list(array.shape), "strings": texts}
        fill = array.size > 1 and array.nbytes <= MAX_FILL and not any(array.strides)
        raw = np.ascontiguousarray(array.reshape(-1)[:1] if fill else array).reshape(-1).view(np.uint8)
        if array.dtype.name in NIBBLES:
            raw = two_in_a_byte(raw)
        offset = -(-self.nbytes // self.align) * self.align
        self.arrays.append((offset, raw))
        self.nbytes = offset + raw.nbytes
        return {
            "dtype": dtype_name(array.dtype),
            "shape": list(array.shape),
            **({"fill": True} if fill else {}),
            "offset": offset,
            "bytes": raw.nbytes,
            "crc32": zlib.crc32(raw.data),
        }


def graph_json(graph: Graph, table: TensorTable) -> dict[str, Any]:
    """Values are numbered: inputs, then constants, then the outputs of nodes, in order."""
    constants = graph.constants()
    ids: dict[int, int] = {}
    for value in (*graph.inputs, *constants, *(v for node in graph.nodes for v in node.outputs)):
        ids[id(value)] = len(ids)

    def number(value: Value | None) -> int | None:
        return None if value is None else ids[id(value)]

    nodes = [
        {
            "name": node.name,
            **op_json(node.op, table),
            "inputs": [number(v) for v in node.inputs],
            "outputs": [{"name": v.name, **type_json(v.type)} for v in node.outputs],
        }
        for node in graph.nodes
    ]
    return {
        "name": graph.name,
        "metadata": dict(graph.metadata),
        "inputs": [{"name": v.name, **type_json(v.type)} for v in graph.inputs],
        "constants": [{"name": v.name, "tensor": table.index(_array(v))} for v in constants],
        "nodes": nodes,
        "outputs": [[number(v), name] for v, name in zip(graph.outputs, graph.output_names, strict=True)],
        **({"states": [table.index(array) for array in graph.states]} if graph.states else {}),
    }


def type_json(made: TensorType) -> dict[str, Any]:
    if isinstance(made, NestedType):
        kind = type(made).__name__.removesuffix("Type").lower()
        key = {"key": dtype_name(made.key)} if isinstance(made, MapType) else {}
        return {"kind": kind, "element": type_json(made.element), **key}
    shape = None if made.shape is None else [_dim_json(d) for d in made.shape]
    return {"dtype": dtype_name(made.dtype), "shape": shape}


def op_json(op: Op, table: TensorTable) -> dict[str, Any]:
    fields = dataclasses.fields(op)
    return {"op": op.name, "attributes": {f.name: _attribute(op, getattr(op, f.name), table) for f in fields}}


def _array(value: Value) -> Array:
    assert value.const is not None
    return value.const


def _dim_json(dim: Dim) -> Any:
    if not isinstance(dim, Sym):
        return int(dim)
    if dim.const == 0 and len(dim.terms) == 1 and dim.terms[0][1] == 1:
        return dim.terms[0][0]
    return {"terms": [list(term) for term in dim.terms], "const": dim.const}


def _attribute(op: Op, value: Any, table: TensorTable) -> Any:
    """JSON of one attribute: plain values as they are, tuples as lists, the rest as an object with one tag."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, tuple):
        return [_attribute(op, v, table) for v in value]
    if isinstance(value, Op):
        return op_json(value, table)
    if isinstance(value, Graph):
        return {"graph": graph_json(value, table)}
    if isinstance(value, np.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, np.generic):
        return {"scalar": table.index(np.asarray(value))}
    raise InvalidModelError(f"{op.name}: attribute cannot be stored: got {type(value).__name__} {value!r}")
