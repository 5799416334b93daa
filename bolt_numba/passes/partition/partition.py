"""Stage ``partition``: nodes that a device supports become parts, `Foreign`, as large as they may be.

One device after the other, in order of preference: its nodes are marked and clustered, clusters that are not worth it
are given up, and what is left goes to the next.  Graphs of control flow are looked at each by itself.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from bolt_numba.base.records import record
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.parts import enclose
from bolt_numba.ops.foreign import Foreign
from bolt_numba.passes.partition.clusters import clusters, ordered
from bolt_numba.passes.partition.marking import SHAPES, Taker, reasons_to_stay, refusal
from bolt_numba.passes.partition.placement import Placement, line_of
from bolt_numba.passes.partition.shapes import ShapeNodes
from bolt_numba.passes.rewrite import nested

_log = logging.getLogger(__name__)


@record(frozen=True)
class Candidate:
    """A device of a session: its name, what is open of it, and the fewest nodes that are worth a part."""

    name: str
    device: Taker
    min_nodes: int = 1


@record(frozen=True)
class Decision:
    """Where a node went: the device and the part, "" where it stays with us, and by device why it did not take it.

    line: what names this node in a placement.
    """

    node: str
    line: str
    device: str
    part: str
    reasons: Mapping[str, str]


@record(eq=False)
class Partition:
    """Puts nodes of a graph into parts for devices, in order of preference.

    seconds: roughly what a node takes with us; None: nothing is given up for its cost.  decisions: for all nodes of the
    last graph, in order.
    """

    candidates: Sequence[Candidate]
    placement: Placement = field(default_factory=Placement)
    seconds: Callable[[Node], float] | None = None
    decisions: list[Decision] = field(default_factory=list)

    @property
    def devices(self) -> list[str]:
        """Names of all devices, in order of preference."""
        return [candidate.name for candidate in self.candidates]

    def __call__(self, graph: Graph) -> None:
        """Partition a graph and those of its control flow, in place; warns of lines of the placement that fit nothing.

        Raises BoltError for a line with a device that is none of these.
        """
        self.placement.check(self.devices)
        self.decisions.clear()
        used = set[int]()
        parts = 0
        for each in nested(graph):
            work = _Work(self, each)
            made = work.run(parts)
            parts += len(made)
            used |= work.used
            self.decisions += work.decisions(made)
        for line in self.placement.lines:
            if line.number not in used:
                warnings.warn(f"placement: line {line.number} ({line.text}): no node is like that", stacklevel=2)


class _Work:
    """One graph on its way.  groups: of numbers of nodes, in an order in which what they read comes first."""

    def __init__(self, owner: Partition, graph: Graph) -> None:
        self.owner, self.graph, self.nodes = owner, graph, list(graph.nodes)
        self.lines, self.used = owner.placement.find(self.nodes)
        self.shown = [line_of(node) for node in self.nodes]
        self.devices = [""] * len(self.nodes)
        self.reasons: list[dict[str, str]] = [{} for _ in self.nodes]
        self.place = {id(v): i for i, node in enumerate(self.nodes) for v in node.outputs}
        self.reads = [{self.place[id(v)] for v in node.operands if id(v) in self.place} for node in self.nodes]
        self.groups = [[i] for i in range(len(self.nodes))]
        self.stays = reasons_to_stay(graph)
        free = [node for node, line in zip(self.nodes, self.lines, strict=True) if line is None]
        self.shapes = ShapeNodes([node for node in free if self.stays.get(id(node)) == SHAPES])

    def run(self, parts: int) -> list[Node]:
        """Do it; the nodes that stand for parts.  parts: how many there are already, for names."""
        for candidate in self.owner.candidates:
            self._join_for(candidate)
        groups = self._with_shapes()
        taken = {node.name for node in self.nodes if node.op.opaque}
        names: list[str] = []
        for device in filter(None, (device for device, _ in groups)):
            names.append(next(n for i in itertools.count(parts + len(names)) if (n := f"{device}.{i}") not in taken))
            taken.add(names[-1])
        return enclose(self.graph, groups, names)

    def _with_shapes(self) -> list[tuple[str, list[Node]]]:
        """All groups with their devices, in order; parts with what computes shapes from their values."""
        order = {node: i for i, node in enumerate(self.nodes)}
        takers = {candidate.name: candidate.device for candidate in self.owner.candidates}
        found = []
        for group in self.groups:
            device, own = self.devices[group[0]], {self.nodes[i]: i for i in group}
            along = self.shapes.along(self.graph, list(own), takers[device], order) if device else []
            found.append((device, own | {goes: order[node] for node, goes in along}))
        gone = {i for device, own in found if device for node, i in own.items() if node is self.nodes[i]}
        found = [(device, own) for device, own in found if device or gone.isdisjoint(own.values())]
        home = {id(v): k for k, (_, own) in enumerate(found) for node in own for v in node.outputs}
        reads = [
            {home[id(v)] for node in own for v in node.operands if id(v) in home} - {k}
            for k, (_, own) in enumerate(found)
        ]
        found = [found[k] for k in ordered(reads)]
        self.groups = [sorted(i for node, i in own.items() if node is self.nodes[i]) for _, own in found]
        for (device, _), group in zip(found, self.groups, strict=True):
            for i in group:
                self.devices[i] = device
        return [(device, sorted(own, key=own.__getitem__)) for device, own in found]

    def decisions(self, made: Sequence[Node]) -> list[Decision]:
        """What became of all nodes, in their old order."""
        groups = [group for group in self.groups if self.devices[group[0]]]
        part_of = {i: part.name for part, group in zip(made, groups, strict=True) for i in group}
        return [
            Decision(node.name, self.shown[i], node.op.device, node.name, {})
            if isinstance(node.op, Foreign)
            else Decision(node.name, self.shown[i], self.devices[i], part_of.get(i, ""), self.reasons[i])
            for i, node in enumerate(self.nodes)
        ]

    def _join_for(self, candidate: Candidate) -> None:
        """Mark what a device gets of nodes that none has, and join it."""
        marked = [not self.devices[g[0]] and self._is_taken(candidate, g[0]) for g in self.groups]
        if not any(marked):
            return
        group_of = {i: k for k, group in enumerate(self.groups) for i in group}
        wide = [self._edges(g[0], candidate) if taken else set() for g, taken in zip(self.groups, marked, strict=True)]
        while True:
            real = ({i for own in group for i in self.reads[own]} for group in self.groups)
            both = zip(marked, wide, real, strict=True)
            reads = [{group_of[i] for i in (a if taken else b)} - {k} for k, (taken, a, b) in enumerate(both)]
            found = clusters(reads, marked)
            parts = [c for c in found if marked[c[0]]]
            given_up = [c for c in parts if not self._is_worth(candidate, [self.groups[k][0] for k in c])]
            if not given_up:
                break
            for k in (k for c in given_up for k in c):
                marked[k] = False
        for k, i in ((k, self.groups[k][0]) for k, taken in enumerate(marked) if taken):
            self.devices[i], self.reads[i] = candidate.name, wide[k]
        self.groups = [[i for k in cluster for i in self.groups[k]] for cluster in found]

    def _edges(self, i: int, candidate: Candidate) -> set[int]:
        """What a node reads in a part of a device, which computes shapes by itself."""
        read = self.shapes.reads(self.nodes[i], candidate.device)
        return {self.place[v] for v in read if v in self.place}

    def _is_taken(self, candidate: Candidate, i: int) -> bool:
        """Whether a device gets a node; if not, the reason is kept."""
        line, node = self.lines[i], self.nodes[i]
        reason = self.stays.get(id(node), "")
        if not reason and line is not None and line.device != candidate.name:
            reason = f"line {line.number} of the placement {'puts it elsewhere' if line.device else 'keeps it here'}"
        reason = reason or refusal(node, candidate.device)
        if reason:
            self.reasons[i][candidate.name] = reason
        return not reason

    def _is_worth(self, candidate: Candidate, members: Sequence[int]) -> bool:
        """Whether a part is worth its copies; if not, the reason is kept."""
        if any((line := self.lines[i]) is not None and line.device == candidate.name for i in members):
            return True
        reason = f"its part has fewer nodes than min_nodes: {len(members)} of {candidate.min_nodes}"
        if len(members) >= candidate.min_nodes:
            reason = self._loss(candidate.device, [self.nodes[i] for i in members])
        for i in members if reason else ():
            self.reasons[i][candidate.name] = reason
        return not reason

    def _loss(self, device: Taker, nodes: Sequence[Node]) -> str:
        """Why a part takes longer on a device than with us; empty where it does not, or that is not known."""
        if self.owner.seconds is None:
            return ""
        edges = _boundary(self.graph, nodes)
        try:
            if not all(v.type.is_static for v in edges):
                return ""
            there = sum(device.copy_seconds(v.type.nbytes) for v in edges)
            there += sum(device.seconds(node) or 0.0 for node in nodes)
            here = sum(map(self.owner.seconds, nodes)) if there else 0.0
        except Exception as error:  # an estimate is no reason to fail
            _log.debug("cost of %d nodes: %s", len(nodes), error)
            return ""
        costs = f"its part takes {1e6 * there:.0f} us there with copies, and {1e6 * here:.0f} us here"
        return costs if there > here else ""


def _boundary(graph: Graph, nodes: Sequence[Node]) -> list[Value]:
    """What nodes read from others, and what others read from them, each once."""
    made = {id(v) for node in nodes for v in node.outputs}
    reads = [v for node in nodes for v in node.operands if v is not None and not v.is_const]
    own, returned = set(nodes), set(map(id, graph.outputs))
    given = [v for n in nodes for v in n.outputs if id(v) in returned or not own.issuperset(v.uses.times)]
    return [*{id(v): v for v in reads if id(v) not in made}.values(), *given]
