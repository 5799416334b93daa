"""The written spec of a graph, as rows: what must hold, and at which stages.  It checks and changes nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bolt_numba.base.errors import BoltError, InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, Dim, NestedType, Sym, TensorType, type_of
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Graph, Node, Value, graph_attributes
from bolt_numba.ops.registry import OPS

STAGES = ("import", "canonical", "recognise", "quantise", "partition", "layout", "fuse", "precision", "plan")


@record(frozen=True)
class Requirement:
    """One line of the spec: ``check`` yields a message for every violation, at stages ``since`` to ``until``."""

    name: str
    check: Callable[[Graph], Iterator[str]]
    since: str = STAGES[0]
    until: str = STAGES[-1]

    def holds_at(self, stage: str) -> bool:
        return STAGES.index(self.since) <= STAGES.index(stage) <= STAGES.index(self.until)


def verify(graph: Graph, stage: str = "import") -> None:
    """Raise InvalidModelError, with every violation, unless ``graph`` obeys the spec of ``stage``."""
    found = violations(graph, stage)
    if found:
        lines = "".join(f"\n  {item}" for item in found)
        raise InvalidModelError(f"{graph.called}: breaks the spec of stage '{stage}':{lines}")


def violations(graph: Graph, stage: str = "import") -> list[str]:
    """``"row: message"`` for everything wrong with the graph and its subgraphs.

    Rows about types run only on a graph whose structure is right.
    """
    if stage not in STAGES:
        raise ValueError(f"stage: got {stage!r}, wanted one of {STAGES}")
    for rows in (STRUCTURE, MEANING):
        found = _violations(graph, stage, rows)
        if found:
            return list(dict.fromkeys(found))
    return []


def _violations(graph: Graph, stage: str, rows: Sequence[Requirement]) -> list[str]:
    """Of these rows; each graph is looked at once, however deep it lies."""
    found = [f"{row.name}: {text}" for row in rows if row.holds_at(stage) for text in row.check(graph)]
    for node, sub in graph.subgraphs():
        inside = STAGES[0] if node.op.opaque else stage  # passes leave it as it came
        found += [f"{node.name}: {text}" for text in _violations(sub, inside, rows)]
    return found


def _unique_names(graph: Graph) -> Iterator[str]:
    counts = Counter(v.name for v in {id(v): v for v in graph.values()}.values())
    for name, count in counts.items():
        if count > 1 or not name:
            yield f"{count} values are named '{name}'"


def _single_assignment(graph: Graph) -> Iterator[str]:
    for value in graph.inputs:
        if value.node is not None or value.const is not None:
            yield f"input '{value.name}' is also a result or a constant"
    if len({id(v) for v in graph.inputs}) != len(graph.inputs):
        yield "an input is listed twice"
    if len({id(n) for n in graph.nodes}) != len(graph.nodes):
        yield "a node is listed twice"
    for node in graph.nodes:
        for i, value in enumerate(node.outputs):
            if value.node is not node or value.index != i or value.const is not None:
                yield f"'{value.name}' is not output {i} of node '{node.name}' alone"


def _defined_before_use(graph: Graph) -> Iterator[str]:
    defined = {id(v) for v in graph.inputs}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None and value.const is None and id(value) not in defined:
                yield f"node '{node.name}' reads '{value.name}', which is defined later or nowhere"
        defined.update(id(v) for v in node.outputs)
    for value in graph.outputs:
        if value.const is None and id(value) not in defined:
            yield f"output '{value.name}' is defined nowhere"


def _use_lists(graph: Graph) -> Iterator[str]:
    read: Counter[tuple[int, int]] = Counter()
    for node in graph.nodes:
        read.update((id(v), id(node)) for v in node.inputs if v is not None)
    listed: Counter[tuple[int, int]] = Counter()
    seen = {id(v): v for v in graph.values()}
    for value in seen.values():
        listed.update((id(value), id(node)) for node in value.uses)
    for key in sorted(read.keys() | listed.keys()):
        if read[key] != listed[key]:
            name = seen[key[0]].name if key[0] in seen else "?"
            yield f"'{name}' is read {read[key]} times by a node that its list has {listed[key]} times"


def _output_names(graph: Graph) -> Iterator[str]:
    if len(graph.outputs) != len(graph.output_names):
        yield f"got {len(graph.output_names)} names for {len(graph.outputs)} outputs"
    for name, count in Counter(graph.output_names).items():
        if count > 1 or not name:
            yield f"{count} outputs are named '{name}'"


def _states(graph: Graph) -> Iterator[str]:
    count = len(graph.states)
    if count > min(len(graph.inputs), len(graph.outputs)):
        yield f"got {count} states, wanted an input and an output for each"
        return
    ends = zip(graph.inputs[-count:], graph.outputs[-count:], graph.states, strict=True) if count else ()
    for before, after, initial in ends:
        wanted = before.type
        if not agree(wanted, type_of(initial), set()) or not agree(wanted, after.type, set()):
            yield f"state '{before.name}' is {wanted}, it begins as {type_of(initial)} and becomes {after.type}"


def _constants(graph: Graph) -> Iterator[str]:
    for value in graph.constants():
        array, kind = value.const, value.type
        if array is None or value.node is not None:
            yield f"'{value.name}' is a constant and a result"
        elif array.dtype != kind.dtype or array.shape != kind.shape:
            yield f"'{value.name}' holds {array.dtype}{list(array.shape)}, its type is {kind}"


def _known_operators(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if OPS.get(getattr(node.op, "name", "")) is not type(node.op):
            yield f"operator of node '{node.name}' is not registered: {type(node.op).__name__}"


def _dimensions(graph: Graph) -> Iterator[str]:
    for value in graph.values():
        if any(not isinstance(d, Sym) and d < 0 for d in value.type.shape or ()):
            yield f"'{value.name}' has a negative dimension: {value.type}"


def _inferred_types(graph: Graph) -> Iterator[str]:
    atoms = {a for v in graph.values() for d in v.type.shape or () if isinstance(d, Sym) for a, _ in d.terms}
    for node in graph.nodes:
        try:
            wanted = infer_types(node.op, [None if v is None else v.type for v in node.inputs])
        except BoltError as error:
            yield f"node '{node.name}': {error}"
            continue
        if len(wanted) != len(node.outputs):
            yield f"node '{node.name}' has {len(node.outputs)} outputs, its operator gives {len(wanted)}"
            continue
        for value, kind in zip(node.outputs, wanted, strict=True):
            if not agree(value.type, kind, atoms):
                yield f"'{value.name}' is {value.type}, its operator gives {kind}"


def agree(stored: TensorType, inferred: TensorType, atoms: set[str]) -> bool:
    """Whether two types may describe one value: the same dtype, rank and dimensions.

    A dimension known to one side only, or a symbol that inference has just made up (not in ``atoms``), is no
    contradiction.
    """
    if isinstance(stored, NestedType) and isinstance(inferred, NestedType):
        return type(stored) is type(inferred) and agree(stored.element, inferred.element, set())
    if stored.dtype != inferred.dtype or isinstance(stored, NestedType) != isinstance(inferred, NestedType):
        return False
    if stored.shape is None or inferred.shape is None:
        return True
    same_rank = len(stored.shape) == len(inferred.shape)
    return same_rank and all(_agree(a, b, atoms) for a, b in zip(stored.shape, inferred.shape, strict=True))


def _agree(stored: Dim, inferred: Dim, atoms: set[str]) -> bool:
    if isinstance(stored, Sym) != isinstance(inferred, Sym):
        return True
    if stored == inferred or not isinstance(inferred, Sym):
        return stored == inferred
    return any(atom not in atoms for atom, _ in inferred.terms) or bool(_FRESH.search(str(stored)))


_FRESH = re.compile(r"_\d+\b")
"""What `ops.registry.fresh_dim` puts behind the symbols that it makes."""


def _branches(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        branches = graph_attributes(node.op)
        if node.op.name == "If":
            yield from _if_branches(node, branches)


def _if_branches(node: Node, branches: dict[str, Graph]) -> Iterator[str]:
    operands = node.inputs
    if not operands or operands[0] is None or operands[0].type.dtype != BOOL:
        yield f"the first operand of node '{node.name}' is no bool"
    for name in ("then_branch", "else_branch"):
        branch = branches.get(name)
        if branch is None:
            yield f"node '{node.name}' has no {name}"
        elif len(branch.outputs) != len(node.outputs):
            yield f"{name} of node '{node.name}' gives {len(branch.outputs)} results, wanted {len(node.outputs)}"
        else:
            yield from _captures(node, name, branch.inputs, operands[1:])


def _captures(node: Node, name: str, wanted: list[Value], got: tuple[Value | None, ...]) -> Iterator[str]:
    if len(wanted) != len(got):
        yield f"{name} of node '{node.name}' takes {len(wanted)} captures, got {len(got)}"
        return
    for inside, outside in zip(wanted, got, strict=True):
        if outside is not None and inside.type.dtype != outside.type.dtype:
            yield f"capture '{inside.name}' of {name} of node '{node.name}' is {inside.type}, got {outside.type}"


def _nothing_dead(graph: Graph) -> Iterator[str]:
    returned = {id(v) for v in graph.outputs}
    for node in graph.nodes:
        if not any(v.uses or id(v) in returned for v in node.outputs):
            yield f"nobody reads a result of node '{node.name}'"


def _nothing_idle(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op.name == "Identity":
            yield f"node '{node.name}' does nothing"


def _channels_last(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        first = node.inputs[0] if node.inputs else None
        movable = getattr(node.op, "layout", "") == "NCHW" and node.op.name != "DeformConv"
        if movable and first is not None and first.type.shape is not None:
            yield f"node '{node.name}' still has its channels first: {node.op.name}"


STRUCTURE = (
    Requirement("single assignment", _single_assignment),
    Requirement("unique names", _unique_names),
    Requirement("defined before use", _defined_before_use),
    Requirement("use lists", _use_lists),
    Requirement("output names", _output_names),
    Requirement("constants", _constants),
    Requirement("known operators", _known_operators),
)
MEANING = (
    Requirement("dimensions", _dimensions),
    Requirement("branches", _branches),
    Requirement("inferred types", _inferred_types),
    Requirement("states", _states),
    Requirement("nothing dead", _nothing_dead, since="canonical"),
    Requirement("nothing idle", _nothing_idle, since="canonical"),
    Requirement("channels last", _channels_last, since="layout"),
)
