"""Readers of control flow: subgraphs become graphs of their own that refer to nothing outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.base.types import BOOL, I64, Shape, TensorType
from bolt_numba.converters.builder import Ints, known_scalar
from bolt_numba.converters.loops import stable_body
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.control import If, Loop, Scan


@reader("If")
def if_(b: NodeBuilder, condition: Value, *, then_branch: onnx.GraphProto, else_branch: onnx.GraphProto) -> Any:
    """Both branches take all captures, in one order; of a constant condition only the branch taken is read."""
    known = known_scalar(condition)
    if known is not None:
        results = b.inline(then_branch if known else else_branch)
        b.invalid_if(len(results) != len(b.outputs), "outputs of the branch", len(results), len(b.outputs))
        return results
    graphs, captures = b.branches(then_branch, else_branch)
    counts = [len(g.outputs) for g in graphs]
    b.invalid_if(counts != [len(b.outputs)] * 2, "outputs of the branches", counts, f"{len(b.outputs)} each")
    return b.node(If(*graphs), condition, *captures).outputs


@reader("Loop")
def loop(
    b: NodeBuilder, trip_count: Value | None, condition: Value | None, *carried: Value, body: onnx.GraphProto
) -> list[Value]:
    known = None if condition is None else known_scalar(condition)
    graph, captures = _loop_body(b, body, carried)
    operands = (trip_count, None if known is True else condition, *carried, *captures)
    return b.node(Loop(graph, len(carried)), *operands).outputs


def _loop_body(b: NodeBuilder, body: onnx.GraphProto, carried: Sequence[Value]) -> tuple[Graph, list[Value]]:
    """Exporters declare number and condition as [1], too; onnxruntime gives them the axis that the body declares."""
    fixed = [TensorType(I64, ()), TensorType(BOOL, ())]
    return stable_body(b, carried, lambda types: b.body(body, [*fixed, *types], scalars=2))


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
) -> list[Value]:
    states = len(operands) - num_scan_inputs
    b.invalid_if(num_scan_inputs < 1 or states < 0, "num_scan_inputs", num_scan_inputs, f"1 to {len(operands)}")
    for name, given in (("scan_input_axes", scan_input_axes), ("scan_input_directions", scan_input_directions)):
        b.invalid_if(given and len(given) != num_scan_inputs, name, given, f"{num_scan_inputs} numbers")
    types = [TensorType(v.type.dtype, v.type.shape) for v in operands[:states]]
    for i, v in enumerate(operands[states:]):
        axis = scan_input_axes[i] if scan_input_axes else 0
        types.append(TensorType(v.type.dtype, _without(b, v, axis)))
    graph, captures = b.body(body, types)
    results = len(graph.outputs) - states
    for name, given in (("scan_output_axes", scan_output_axes), ("scan_output_directions", scan_output_directions)):
        b.invalid_if(results < 0 or (given and len(given) != results), name, given, f"{results} numbers")
    operator = Scan(
        graph, states, num_scan_inputs, scan_input_axes, scan_input_directions, scan_output_axes, scan_output_directions
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
) -> list[Value]:
    """Before opset 9 every operand has a batch axis first: a scan along it whose body scans along axis 1."""
    states = len(operands) - num_scan_inputs
    b.unsupported_if(lengths is not None, "sequence_lens")
    b.invalid_if(num_scan_inputs < 1 or states < 0, "num_scan_inputs", num_scan_inputs, f"1 to {len(operands)}")
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
    b.dim_of(x, axis)
    place = axis % b.rank_of(x)
    shape = x.type.shape or ()
    return shape[:place] + shape[place + 1 :]
