"""Readers of control flow: subgraphs become graphs of their own that refer to nothing outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.converters.operands import dim_of, known_scalar, rank_of
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.control import If, Loop, Scan, joined
from bolt_numba.ops.registry import fresh_dim
from bolt_numba.types import BOOL, I64, NestedType, Shape, TensorType, dtype_name

Ints = tuple[int, ...]
TRIES = 4
"""Readings of a loop's body after which the shapes of its carried values count as unknown."""


@reader("If")
def if_(b: NodeBuilder, condition: Value, *, then_branch: onnx.GraphProto, else_branch: onnx.GraphProto) -> Any:
    """Both branches take all captures, in one order; of a constant condition only the branch taken is read."""
    known = known_scalar(condition)
    if known is not None:
        results = b.inline(then_branch if known else else_branch)
        if len(results) != len(b.outputs):
            raise b.invalid("outputs of the branch", len(results), len(b.outputs))
        return results
    graphs, captures = b.branches(then_branch, else_branch)
    counts = [len(g.outputs) for g in graphs]
    if counts != [len(b.outputs)] * 2:
        raise b.invalid("outputs of the branches", counts, f"{len(b.outputs)} each")
    return b.node(If(*graphs), condition, *captures).outputs


@reader("Loop")
def loop(
    b: NodeBuilder, trip_count: Value | None, condition: Value | None, *carried: Value, body: onnx.GraphProto
) -> Any:
    known = None if condition is None else known_scalar(condition)
    graph, captures = _loop_body(b, body, carried)
    operands = (trip_count, None if known is True else condition, *carried, *captures)
    return b.node(Loop(graph, len(carried)), *operands).outputs


def _loop_body(b: NodeBuilder, body: onnx.GraphProto, carried: Sequence[Value]) -> tuple[Graph, list[Value]]:
    """The body for what is true of the carried values in every iteration: dimensions that change become symbols."""
    fixed = [TensorType(I64, ()), TensorType(BOOL, ())]
    types = [v.type.with_value(None) for v in carried]
    for _ in range(TRIES):
        graph, captures = b.body(body, [*fixed, *types])
        results = [v.type for v in graph.outputs[1 : 1 + len(types)]]
        if len(results) != len(types):
            raise b.invalid("outputs of the body", len(graph.outputs), f"at least {1 + len(types)}")
        stable = [_stable(b, t, made) for t, made in zip(types, results, strict=True)]
        if stable == types:
            return graph, captures
        types = stable
    return b.body(body, [*fixed, *map(_shapeless, types)])


def _shapeless(t: TensorType) -> TensorType:
    if isinstance(t, NestedType):
        return replace(t, element=_shapeless(t.element))
    return TensorType(t.dtype, None)


def _stable(b: NodeBuilder, taken: TensorType, given: TensorType) -> TensorType:
    """What is true of a carried value before and after an iteration."""
    if isinstance(taken, NestedType) or isinstance(given, NestedType):
        both = joined(Loop.name, taken, given)
        return taken if both == taken else _shapeless(both)
    if taken.dtype != given.dtype:
        raise b.invalid("dtype of a carried value", dtype_name(given.dtype), dtype_name(taken.dtype))
    if taken.shape is None or given.shape is None or len(taken.shape) != len(given.shape):
        return TensorType(taken.dtype, None)
    dims = zip(taken.shape, given.shape, strict=True)
    return TensorType(taken.dtype, tuple(x if x == y or _is_free(x) else fresh_dim("loop") for x, y in dims))


def _is_free(dim: Any) -> bool:
    """Whether a dimension is a symbol that `_stable` made, which stands for any size."""
    return str(dim).startswith("loop_") and str(dim)[5:].isdigit()


@reader("Scan", since=9)
def scan(
    b: NodeBuilder,
    *operands: Value,
    body: onnx.GraphProto,
    num_scan_inputs: int,
    scan_input_axes: Ints = (),
    scan_input_directions: Ints = (),
    scan_output_axes: Ints = (),
    scan_output_directions: Ints = (),
) -> Any:
    states = len(operands) - num_scan_inputs
    if num_scan_inputs < 1 or states < 0:
        raise b.invalid("num_scan_inputs", num_scan_inputs, f"1 to {len(operands)}")
    for name, given in (("scan_input_axes", scan_input_axes), ("scan_input_directions", scan_input_directions)):
        if given and len(given) != num_scan_inputs:
            raise b.invalid(name, given, f"{num_scan_inputs} numbers")
    types = [TensorType(v.type.dtype, v.type.shape) for v in operands[:states]]
    for i, v in enumerate(operands[states:]):
        axis = scan_input_axes[i] if scan_input_axes else 0
        types.append(TensorType(v.type.dtype, _without(b, v, axis)))
    graph, captures = b.body(body, types)
    results = len(graph.outputs) - states
    for name, given in (("scan_output_axes", scan_output_axes), ("scan_output_directions", scan_output_directions)):
        if results < 0 or (given and len(given) != results):
            raise b.invalid(name, given, f"{results} numbers")
    operator = Scan(
        graph,
        states,
        num_scan_inputs,
        scan_input_axes,
        scan_input_directions,
        scan_output_axes,
        scan_output_directions,
    )
    return b.node(operator, *operands, *captures).outputs


@reader("Scan")
def scan_8(
    b: NodeBuilder,
    lengths: Value | None,
    *operands: Value,
    body: onnx.GraphProto,
    num_scan_inputs: int,
    directions: Ints = (),
) -> Any:
    """Before opset 9 every operand has a batch axis first: a scan along it whose body scans along axis 1."""
    states = len(operands) - num_scan_inputs
    if lengths is not None:
        raise b.unsupported("sequence_lens")
    if num_scan_inputs < 1 or states < 0:
        raise b.invalid("num_scan_inputs", num_scan_inputs, f"1 to {len(operands)}")
    entries = [TensorType(v.type.dtype, _without(b, v, 0)) for v in operands]
    steps = [TensorType(t.dtype, (t.shape or ())[1:]) for t in entries[states:]]
    inner, captures = b.body(body, [*entries[:states], *steps])
    batch = Graph("batch")
    inputs = [batch.add_input(f"entry_{i}", t) for i, t in enumerate([*entries, *(c.type for c in captures)])]
    for value in Builder(batch).node(Scan(inner, states, num_scan_inputs, (), directions), *inputs).outputs:
        batch.add_output(value)
    return b.node(Scan(batch, 0, len(operands)), *operands, *captures).outputs


def _without(b: NodeBuilder, x: Value, axis: int) -> Shape:
    """Shape of one slice along an axis."""
    dim_of(b, x, axis)
    place = axis % rank_of(b, x)
    shape = x.type.shape or ()
    return shape[:place] + shape[place + 1 :]
