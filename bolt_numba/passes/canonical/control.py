"""Control flow whose course is known.

inline_if(If(constant))             -> the nodes of the branch taken
sink_if_constants(If(c, constants)) -> If(c) with the constants inside its branches; unused captures go too
loops.bodies, loops.rows             -> what loops count, hand on and write row by row
scan_of_distances(Scan over points) -> Transpose(Distances(x, Transpose(points))): a body that hands x on and sums
                                       squares, or absolute values, of x - point; sums are added in another order
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from bolt_numba.base.types import F32, F64
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.reduce import ReduceSum, ReduceSumSquare
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.control import If, Loop, Scan
from bolt_numba.ops.pointwise import Abs, Sub
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule


@rule(Pat(If, (const("cond"),)))
def inline_if(m: Match, b: Builder) -> Result:
    cond = m["cond"].const
    op: Any = m.root.op
    if cond is None or cond.size != 1:
        return None
    branch: Graph = op.then_branch if cond.reshape(())[()] else op.else_branch
    return _inlined(branch, m.root.inputs[1:], b)


def _inlined(branch: Graph, captures: Sequence[Value | None], b: Builder) -> tuple[Value | None, ...]:
    """Build the nodes of a branch again, reading the captures; types are inferred from what they really are."""
    given = [*captures, *[None] * (len(branch.inputs) - len(captures))]
    twin: dict[int, Value | None] = {id(v): c for v, c in zip(branch.inputs, given, strict=True)}

    def operand(v: Value | None) -> Value | None:
        if v is None:
            return None
        if id(v) not in twin and v.const is not None:
            twin[id(v)] = b.const(v.const, v.name)
        return twin[id(v)]

    for node in branch.nodes:
        made = b.node(node.op, *(operand(v) for v in node.inputs), name=node.name)
        for old, new in zip(node.outputs, made.outputs, strict=False):
            twin[id(old)] = new
    return tuple(operand(v) for v in branch.outputs)


@rule(Pat(If, (Pat(name="cond"),)))
def sink_if_constants(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    captures = m.root.inputs[1:]
    branches = (op.then_branch, op.else_branch)
    kept = [i for i, v in enumerate(captures) if v is not None and v.const is None and _is_read(branches, i)]
    if len(kept) == len(captures):
        return None
    then_branch, else_branch = (_with_constants(g, captures, kept) for g in branches)
    made = dataclasses.replace(op, then_branch=then_branch, else_branch=else_branch)
    return tuple(b.node(made, m["cond"], *(captures[i] for i in kept)).outputs)


def _is_read(branches: Sequence[Graph], index: int) -> bool:
    return any(g.inputs[index].uses or g.is_output(g.inputs[index]) for g in branches)


def _with_constants(branch: Graph, captures: Sequence[Value | None], kept: Sequence[int]) -> Graph:
    made = branch.clone()
    for i, v in enumerate(captures):
        if v is not None and v.const is not None:
            made.replace_uses(made.inputs[i], Value(made.inputs[i].name, v.type.with_value(v.const), const=v.const))
    made.inputs = [made.inputs[i] for i in kept]
    return made


@rule(Pat(Scan))
def scan_of_distances(m: Match, b: Builder) -> Result:
    op, operands = m.root.op, m.root.inputs
    assert isinstance(op, Scan)
    x, points = operands[:2] if len(operands) == 2 else (None, None)
    if x is None or points is None or (op.states, op.scans) != (1, 1):
        return None
    a, p = x.type.shape, points.type.shape
    if a is None or p is None or len(a) != 2 or len(p) != 2 or a[1] != p[1] or x.type.dtype not in (F32, F64):
        return None
    places = (*op.input_axes, *op.input_directions, *op.output_axes, *op.output_directions)
    power = _power(op.body)
    if any(places) or power is None:
        return None
    from bolt_numba.ops.layers.products.distances import Distances  # few models need it

    turned = b(Transpose((1, 0)), points)
    return x, b(Transpose((1, 0)), b(Distances(power), x, turned))


def _power(body: Graph) -> int | None:
    """Of which power a body (x, point) -> (x, distances of the rows of x) sums the differences; None for others."""
    kept, found = body.outputs if len(body.outputs) == 2 else (None, None)
    total = None if found is None else found.node
    if total is None or kept is not body.inputs[0] or len(body.inputs) != 2:
        return None
    op: Any = total.op
    inner = total.inputs[0]
    assert inner is not None
    if not isinstance(op, (ReduceSum, ReduceSumSquare)) or op.keepdims or not _along_the_last(total.inputs[1:]):
        return None
    if isinstance(op, ReduceSum):
        if inner.node is None or not isinstance(inner.node.op, Abs):
            return None
        inner = inner.node.inputs[0]
        assert inner is not None
    difference = inner.node
    if difference is None or not isinstance(difference.op, Sub) or set(difference.inputs) != set(body.inputs):
        return None
    return 1 if isinstance(op, ReduceSum) else 2


def _along_the_last(axes: Any) -> bool:
    """Whether operands of a reduction are one list of axes that holds the last one of a matrix."""
    known = axes[0].type.known if len(axes) == 1 and axes[0] is not None else None
    return known is not None and known.tolist() in ([1], [-1])


def _of_loops(module: str, *names: str) -> tuple[Rule, ...]:
    """Rules that rewrite a Loop, by the functions' names; few models need the module."""

    def rewriting(name: str) -> Callable[[Match, Builder], Result]:
        return lambda m, b: getattr(import_module(f"bolt_numba.passes.loops.{module}"), name)(m, b)

    return tuple(Rule(name, Pat(Loop), rewriting(name)) for name in names)


RULES: tuple[Rule, ...] = (inline_if, sink_if_constants)
LOOPS: tuple[Rule, ...] = (
    *_of_loops("bodies", "hand_on_as_capture", "trips_of_conditions", "counters_by_trip"),
    *_of_loops("rows", "list_as_result", "row_by_gather", "rows_as_results", "row_as_scatter"),
    *_of_loops("bodies", "carried_twice", "fixed_sizes"),
)
RECOGNISED: tuple[Rule, ...] = (scan_of_distances, *_of_loops("recurrent", "loop_of_layer"))
