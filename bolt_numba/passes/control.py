"""Control flow whose course is known.

inline_if(If(constant))             -> the nodes of the branch taken
sink_if_constants(If(c, constants)) -> If(c) with the constants inside its branches; unused captures go too
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.control import If
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


RULES: tuple[Rule, ...] = (inline_if, sink_if_constants)
