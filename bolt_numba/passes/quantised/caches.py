"""Caches of keys and values of another kind than a graph has: its inputs, what it gives for them, and all between."""

from __future__ import annotations

from bolt_numba.base.errors import OptionError
from bolt_numba.base.options import INT8
from bolt_numba.base.types import F16, F32, I8, AnyDType, TensorType
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.sizes import inferred
from bolt_numba.ops.arrays.shape import Shape
from bolt_numba.ops.layers.attention.cache import SCALE_BYTES, GroupQueryAttention

_DTYPES: dict[str, AnyDType] = {"f16": F16, "f32": F32, INT8: I8}


def with_caches(graph: Graph, kind: str) -> Graph:
    """A graph whose caches are of this kind, one of `bolt_numba.base.options.CACHES`; bytes stay as they are.

    Raises OptionError for a graph without caches that come from outside, or with others beside attention to read them.
    """
    attending = [node for node in graph.nodes if isinstance(node.op, GroupQueryAttention)]
    held = {id(v) for node in attending for v in node.inputs[3:5]} & {id(v) for v in graph.caller_inputs}
    made = {id(v) for node in attending for v in node.outputs[1:]}
    others = [n for n in graph.nodes if not isinstance(n.op, (GroupQueryAttention, Shape))]
    caches = [v.type for v in graph.inputs if id(v) in held]
    are_read = any(id(v) in held | made for node in others for v in node.inputs)
    if not caches or are_read or any(t.dtype == I8 and kind != INT8 for t in caches):
        found = "none" if not caches else f"{caches[0]}" + (" that others read, too" if are_read else "")
        raise OptionError(f"cache: got {kind!r} for {graph.called}, whose caches are {found}, wanted caches of floats")
    return inferred(graph, [_recast(v.type, kind) if id(v) in held else v.type for v in graph.inputs])


def _recast(given: TensorType, kind: str) -> TensorType:
    if given.dtype == I8 or given.shape is None:
        return given
    *lead, size = given.shape
    more = SCALE_BYTES if kind == INT8 and isinstance(size, int) else 0
    return TensorType(_DTYPES[kind], (*lead, size + more if isinstance(size, int) else size))
