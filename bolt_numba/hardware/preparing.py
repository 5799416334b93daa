"""A part of a graph as an accelerator gets it: for the types at hand, taken apart where it lacks an operator."""

from __future__ import annotations

from collections.abc import Sequence

from bolt_numba.base.digest import sha256
from bolt_numba.base.records import record
from bolt_numba.errors import BoltError
from bolt_numba.hardware.interface import Accelerator
from bolt_numba.ir.build import Builder, infer_types
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.store import chunks
from bolt_numba.passes.rewrite import Match, Result, Rule, rewrite
from bolt_numba.types import TensorType


@record(frozen=True)
class Key:
    """What a compiled graph is for: the shape of each input, and the content of those that decide shapes inside."""

    shapes: tuple[tuple[object, ...], ...]
    contents: tuple[bytes | None, ...]


def key_of(types: Sequence[TensorType]) -> Key:
    """By types of the inputs, whose content is known where it decides shapes inside."""
    knowns = [t.known for t in types]
    return Key(tuple([t.shape or () for t in types]), tuple([None if k is None else k.tobytes() for k in knowns]))


def concrete(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """A copy for these types of the inputs; what becomes known is a constant.  Inputs and outputs stay as they are.

    Raises BoltError where a node does not take the types.
    """
    made = graph.clone()
    for value, t in zip(made.inputs, types, strict=True):
        value.type = t
        _make_known(value)
    for node in made.nodes:
        for value, t in zip(node.outputs, infer_types(node.op, _types(node)), strict=True):
            value.type = t
            _make_known(value)
    made.drop_dead()
    return made


def _types(node: Node) -> list[TensorType | None]:
    return [None if v is None else v.type for v in node.operands]


def _make_known(value: Value) -> None:
    """Let nodes read a constant in the place of a value whose content is known."""
    known = value.type.known
    if known is None:
        return
    constant = Value(value.name, value.type.with_value(known), const=known)
    for node, times in list(value.uses.times.items()):
        node.replace_input(value, constant, times)


def lowered(graph: Graph, accelerator: Accelerator) -> Graph:
    """The graph in operators that the accelerator has: what it refuses is taken apart by its lowerings.

    Changes the graph in place.  Raises BoltError that names the first node which it refuses all the same, and why.
    """
    if all(accelerator.supports(node) is True for node in graph.nodes):
        return graph
    rewrite(graph, lowerings_of(accelerator))
    for node in graph.nodes:
        reason = accelerator.supports(node)
        if reason is not True:
            raise BoltError(f"{node.op.name}: node {node.name!r} is refused: {reason or 'without a reason'}")
    return graph


def lowerings_of(accelerator: Accelerator) -> list[Rule]:
    """Its rules, but that they leave alone what it supports."""

    def guarded(rule: Rule) -> Rule:
        def apply(match: Match, build: Builder) -> Result:
            if accelerator.supports(match.root) is True:
                return match.refuse("the accelerator has the operator")
            return rule.rewrite(match, build)

        return Rule(rule.name, rule.pattern, apply)

    return [guarded(rule) for rule in accelerator.lowerings]


def digest(graph: Graph, *more: object) -> str:
    """Of all that a graph is, weights too, and of what is written as text behind it."""
    made = sha256()
    for chunk in chunks(graph):
        made.update(chunk)
    for each in more:
        text = str(each).encode()
        made.update(len(text).to_bytes(8, "little"))
        made.update(text)
    return made.hexdigest()
