"""Run a graph by the references of its operators: the meaning of a graph, and the oracle of every other way to run it.

It is no runtime: it plans nothing, is as slow as NumPy and checks every result against the inferred type.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bolt_numba.base.border import at_node
from bolt_numba.base.errors import BoltError, DTypeError, InvalidModelError, ShapeError
from bolt_numba.base.files.mapped import check_intact
from bolt_numba.base.types import (
    BOOL,
    F64,
    Array,
    Dim,
    MapType,
    NestedType,
    OptionalType,
    SequenceType,
    Sym,
    TensorType,
    dtype_name,
)
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.dtypes import FLOATS, plain_bools
from bolt_numba.ops.evaluate import evaluate


def interpret(
    graph: Graph,
    feeds: Mapping[str, Any],
    want: Sequence[str] | None = None,
    *,
    held: Mapping[str, Array] | None = None,
    wide: bool = False,
) -> dict[str, Array]:
    """Arrays of the wanted tensors, by name.

    feeds: an array for every graph input, by name; a state that has none is as it is before the first run.  want: names
    of outputs, or of any other values; all outputs of the caller when None.  held: what nodes read in the place of what
    is computed, so that each wanted tensor is computed of these alone.  wide: floats are computed and given in f64,
    wherever a reference takes f64.
    Raises ShapeError or DTypeError where a feed or a result does not have its type, and BoltError where a reference
    cannot compute what it was given.
    """
    check_intact([v.const for v in graph.constants()])
    names = [name for name, _ in graph.caller_outputs] if want is None else list(want)
    if graph.states:
        kept = [v.name for v in graph.inputs[len(graph.inputs) - len(graph.states) :]]
        feeds = {**dict(zip(kept, graph.states, strict=True)), **feeds}
    targets, held = _targets(graph, names), held or {}
    fixed = dict(zip(map(id, _targets(graph, list(held))), held.values(), strict=True))
    arrays: dict[int, Array] = {}
    sizes = Sizes()
    for value in graph.inputs:
        if value.name not in feeds:
            raise ShapeError(f"{graph.called}: inputs: got {sorted(feeds)}, wanted '{value.name}' too")
        arrays[id(value)] = array = as_value(feeds[value.name], value.type)
        if not wide:
            sizes.check(f"{graph.called}: input '{value.name}'", array, value.type)
    unknown = set(feeds) - {v.name for v in graph.inputs}
    if unknown:
        raise ShapeError(f"{graph.called}: inputs: got {sorted(unknown)} too, wanted {[v.name for v in graph.inputs]}")
    nodes = nodes_behind(graph, targets, fixed.keys()) if fixed else graph.nodes
    readers = _readers(nodes, targets)
    arrays |= fixed
    found: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for node in nodes:
            results = _run(node, arrays, sizes, wide)
            found |= {key: results.pop(key) for key in fixed.keys() & results}
            arrays |= results
            for operand in (*node.inputs, *node.outputs):
                _release(operand, node, readers, arrays)
    arrays |= found
    return {name: _read(value, arrays) for name, value in zip(names, targets, strict=True)}


def nodes_behind(graph: Graph, targets: Iterable[Value], known: Container[int]) -> list[Node]:
    """The nodes that compute ``targets`` of values whose ids are known, in order."""
    needed: set[int] = set()
    left = [v.node for v in targets if v.node is not None]
    while left:
        node = left.pop()
        if id(node) not in needed:
            needed.add(id(node))
            left += [v.node for v in node.inputs if v is not None and v.node is not None and id(v) not in known]
    return [node for node in graph.nodes if id(node) in needed]


def as_value(found: Any, wanted: TensorType) -> Any:
    """What a reference gave as a value of its type: an array, unless it is a list, a dictionary or None by its type."""
    if isinstance(wanted, OptionalType):
        return None if found is None else as_value(found, wanted.element)
    if isinstance(wanted, SequenceType) and isinstance(found, (list, tuple)):
        if isinstance(wanted.element, MapType):
            return list(found)
        if set(map(type, found)) <= {np.ndarray} and wanted.element.dtype != BOOL:
            return list(found)  # a loop hands the same arrays on again and again
        return [as_value(v, wanted.element) for v in found]
    return found if isinstance(wanted, NestedType) else plain_bools(np.asarray(found))


class Sizes:
    """What the symbols of a run stand for, learnt from the inputs and checked on every result."""

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    def check(self, what: str, array: Array, wanted: TensorType) -> None:
        """Raise unless ``array`` has the dtype and shape of ``wanted``; symbols seen for the first time are learnt."""
        if isinstance(wanted, NestedType):
            self._check_nested(what, array, wanted)
            return
        if array.dtype != wanted.dtype:
            raise DTypeError(f"{what}: dtype: got {dtype_name(array.dtype)}, wanted {dtype_name(wanted.dtype)}")
        if wanted.shape is None:
            return
        fits = len(array.shape) == len(wanted.shape) and all(map(self._fits, array.shape, wanted.shape))
        if not fits:
            raise ShapeError(f"{what}: shape: got {array.shape}, wanted {wanted}")

    def _check_nested(self, what: str, value: Any, wanted: NestedType) -> None:
        """Elements of one sequence may differ in what their symbols stand for."""
        kind = {SequenceType: list, MapType: dict}.get(type(wanted))
        if kind is not None and not isinstance(value, kind):
            raise DTypeError(f"{what}: got a {type(value).__name__}, wanted {wanted}")
        if isinstance(wanted, SequenceType):
            for i, element in enumerate(value):
                Sizes().check(f"{what}: element {i}", element, wanted.element)
        elif isinstance(wanted, OptionalType) and value is not None:
            Sizes().check(what, value, wanted.element)

    def _fits(self, size: int, dim: Dim) -> bool:
        if not isinstance(dim, Sym):
            return size == dim
        if dim.const == 0 and len(dim.terms) == 1 and dim.terms[0][1] == 1:
            return size == self._known.setdefault(dim.terms[0][0], size) or self._known[dim.terms[0][0]] is None
        sizes = [self._known.get(atom) for atom, _ in dim.terms]
        if None in sizes or 0 in sizes:  # formulas of slices hold for sizes from 1 on: of none there is nothing to take
            return True
        return size == dim.const + sum(f * s for (_, f), s in zip(dim.terms, sizes, strict=True) if s is not None)


def _targets(graph: Graph, names: Sequence[str]) -> list[Value]:
    by_name = {v.name: v for v in graph.values()} | dict(zip(graph.output_names, graph.outputs, strict=True))
    missing = [n for n in names if n not in by_name]
    if missing:
        raise InvalidModelError(f"{graph.called}: tensors to return: got {missing}, wanted names of its values")
    return [by_name[n] for n in names]


def _readers(nodes: Sequence[Node], targets: Sequence[Value]) -> dict[int, int]:
    """How many operands are still to read each value; a target is never released."""
    left: dict[int, int] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None:
                left[id(value)] = left.get(id(value), 0) + 1
    for value in targets:
        left[id(value)] = left.get(id(value), 0) + 1
    return left


def _release(value: Value | None, node: Node, readers: dict[int, int], arrays: dict[int, Array]) -> None:
    if value is None:
        return
    if value.node is not node:
        readers[id(value)] -= 1
    if not readers.get(id(value)):
        arrays.pop(id(value), None)


def _read(value: Value, arrays: Mapping[int, Array]) -> Array:
    return value.const if value.const is not None else arrays[id(value)]


def _run(node: Node, arrays: Mapping[int, Array], sizes: Sizes, wide: bool) -> dict[int, Array]:
    args = [None if v is None else _read(v, arrays) for v in node.inputs]
    try:
        results = _wide_results(node, args) if wide else _results(node, args)
    except Exception as error:
        raise at_node(error, node.op, node.name) from error
    if len(results) < len(node.outputs):
        raise ShapeError(
            f"{node.op.name}: results of node '{node.name}': got {len(results)}, wanted {len(node.outputs)}"
        )
    made = {}
    for value, result in zip(node.outputs, results, strict=False):
        made[id(value)] = array = as_value(result, value.type)
        if not wide:
            sizes.check(f"{node.op.name}: result '{value.name}'", array, value.type)
        elif value.type.dtype in FLOATS and isinstance(array, np.ndarray):
            made[id(value)] = array.astype(F64, copy=False)
    return made


def _wide_results(node: Node, args: Sequence[Any]) -> tuple[Any, ...]:
    """Results for floats in f64; where the reference takes none, for operands of the dtypes that they are declared."""
    both = list(zip(args, node.inputs, strict=True))
    plain = [a.astype(v.type.dtype, copy=False) if v is not None and isinstance(a, np.ndarray) else a for a, v in both]
    at = [i for i, a in enumerate(plain) if isinstance(a, np.ndarray) and a.dtype in FLOATS]
    at = [i for i in at if i not in node.op.value_inputs]
    try:
        return _results(node, [a.astype(F64) if i in at else a for i, a in enumerate(plain)], wide=True)
    except BoltError:
        return _results(node, plain)


def _results(node: Node, args: Sequence[Any], wide: bool = False) -> tuple[Any, ...]:
    if isinstance(node.op, ControlFlow):
        return tuple(node.op.execute(args, partial(_run_graph, wide=wide)))
    return evaluate(node.op, args)


def _run_graph(graph: Graph, inputs: Sequence[Any], wide: bool = False) -> list[Array]:
    made = interpret(graph, {v.name: a for v, a in zip(graph.inputs, inputs, strict=True)}, wide=wide)
    return [made[name] for name in graph.output_names]
