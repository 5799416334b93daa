"""Which nodes a device may get: what none may get and why, what it says of the rest, and what it lacks taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import STRING, NestedType, Sym, TensorType
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Graph, Node, Value, graph_attributes
from bolt_numba.ops.foreign import deciding
from bolt_numba.passes.canonical.fold import FoldConstant
from bolt_numba.passes.rewrite import Match, Pat, Rule, rewrite

TRIED = 64
"""Size that stands for symbols where a node is tried with sizes: most windows and pads fit into it."""
SHAPES = "it computes with shapes"
"""Why nodes stay that go along with parts, at most (`shapes`)."""
REASON_LETTERS = 400
"""Characters of a reason that are kept, of which each node may have one."""
_MADE_UP = re.compile(r"[a-z]+_\d+")
"""A symbol that `ops.registry.fresh_dim` makes."""


class Taker(Protocol):
    """What partition needs of an opened device, `bolt_numba.plugins.interface.Accelerator`."""

    lowerings: Sequence[Rule]

    @property
    def shapes(self) -> str: ...

    def supports(self, node: Node) -> bool | str: ...

    def seconds(self, node: Node) -> float | None: ...

    def copy_seconds(self, nbytes: int) -> float: ...


def reasons_to_stay(graph: Graph) -> dict[int, str]:
    """By ``id`` of a node, why no device gets it."""
    wanted = deciding(graph)
    found = {}
    for node in graph.nodes:
        reason = _reason(node)
        if not reason and any(id(v) in wanted for v in node.outputs):
            reason = "its result decides shapes"
        if reason:
            found[id(node)] = reason
    return found


def _reason(node: Node) -> str:
    op, given = node.op, [v for v in node.operands if v is not None]
    if op.opaque:
        return "it is a part of a device already"
    if graph_attributes(op):
        return "control flow: what is in its graphs is looked at by itself"
    if op.has_side_state:
        return "its results are random or depend on earlier runs"
    if any(isinstance(v.type, NestedType) or v.type.dtype == STRING for v in (*given, *node.outputs)):
        return "not all of its values are arrays of numbers"
    if all(v.is_const for v in given):
        return "all of its operands are constants"
    if op.reads_only_shape or all(v.type.value is not None for v in node.outputs):
        return SHAPES
    for i in op.value_inputs:
        value = node.operands[i] if i < len(node.operands) else None
        if value is not None and value.type.value is None and not value.is_const:
            return f"what operand {i} holds decides its shape"
    return "" if _has_size(node) else "sizes of its operands do not tell that of its result"


def _atoms(types: Sequence[TensorType | None]) -> Iterator[str]:
    for t in filter(None, types):
        for dim in (*(t.shape or ()), *(() if t.value is None or t.value.dtype != STRING else t.value.flat)):
            if isinstance(dim, Sym):
                yield from (name for name, _ in dim.terms)


def _has_size(node: Node) -> bool:
    """Whether shapes of the operands tell those of the results."""
    given = [None if v is None else v.type for v in node.operands]
    results = [v.type for v in node.outputs]
    if all(t.shape is not None for t in results):
        new = set(_atoms(results)) - set(_atoms(given))
        if not any(_MADE_UP.fullmatch(atom) for atom in new):
            return True
    try:
        found = infer_types(node.op, [None if t is None else tried(t) for t in given])
    except BoltError:
        return False
    return all(t.is_static for t in found)


def tried(t: TensorType) -> TensorType:
    """The type with a size for each symbol."""

    def size(dim: Any) -> Any:
        return dim.const + sum(TRIED * factor for _, factor in dim.terms) if isinstance(dim, Sym) else dim

    value = t.value
    if value is not None and t.known is None:
        value = value.copy()
        value.reshape(-1)[:] = [size(v) for v in value.flat]
        value = value.astype(t.dtype)
    return TensorType(t.dtype, None if t.shape is None else tuple(map(size, t.shape)), value)


def refusal(node: Node, device: Taker) -> str:
    """Why a device does not take a node, not even taken apart by its lowerings; empty where it does."""
    reason = _refusal(node, device)
    if not reason or not any(_may_apply(rule, node) for rule in device.lowerings):
        return reason
    alone = _graph_of(node)
    try:
        made = lowered(alone, device)
    except BoltError as error:
        return f"{reason}; taken apart: {error}"
    lacking = next(((n, why) for n in made.nodes if (why := _refusal(n, device))), None)
    if lacking is None:
        return ""
    same = lacking[0].op == node.op
    return reason if same else f"{reason}; taken apart: {lacking[0].op.name}: {lacking[1]}"


def _refusal(node: Node, device: Taker) -> str:
    try:
        answer: Any = device.supports(node)
    except Exception as error:
        return f"it fails to say: {type(error).__name__}: {error}"
    if answer is True:
        return ""
    if isinstance(answer, str):
        return answer[:REASON_LETTERS] or "it does not support it"
    what = f"it says a {type(answer).__name__}, wanted True or a reason"
    return "it does not support it" if answer is False else what


def _may_apply(rule: Rule, node: Node) -> bool:
    return rule.pattern.op is None or isinstance(node.op, rule.pattern.op)


def _graph_of(node: Node) -> Graph:
    """A graph of a node alone, whose operands are inputs or constants."""
    made = Graph(node.name)
    twin: dict[int, Value] = {}
    for v in node.operands:
        if v is not None and id(v) not in twin:
            fresh = Value(made.unique_name(v.name), v.type, const=v.const) if v.is_const else None
            twin[id(v)] = fresh or made.add_input(v.name, v.type)
    operands = [None if v is None else twin[id(v)] for v in node.operands]
    copy = Node(node.op, operands, [v.type for v in node.outputs], node.name)
    made.nodes.append(copy)
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name = made.unique_name(old.name)
        made.add_output(new)
    return made


def lowered(graph: Graph, device: Taker) -> Graph:
    """A copy in which what a device does not support is taken apart by its lowerings, in their order.

    What no rule applies to stays.  Raises BoltError where the rules do not come to an end.
    """
    made = graph.clone()
    if device.lowerings:
        folding = FoldConstant()
        folding.integers_stay = False  # a device that lacks the operator wants the weights as it computes with them
        fold = Rule("fold_constant", Pat(all_const=True), folding)
        rewrite(made, [*(Rule(r.name, r.pattern, _where_needed(r, device)) for r in device.lowerings), fold])
        made.drop_dead()
    return made


def _where_needed(rule: Rule, device: Taker) -> Any:
    def run(match: Match, build: Any) -> Any:
        reason = _refusal(match.root, device)
        return rule.rewrite(match, build) if reason else match.refuse("the device supports it")

    return run
