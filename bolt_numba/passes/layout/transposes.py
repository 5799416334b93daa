"""Chooses where transposes stand: connected operators that may run on permuted axes are cut where it is cheapest.

For every transpose, the operators that could run on its other side are collected with the permutation that each would
get (`permuted`).  Which of them do is a minimum cut: an edge costs the elements that a transpose there would move.  A
choice is taken only when it really moves fewer elements and has no more transposes than before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import field

from bolt_numba.base.records import record
from bolt_numba.base.types import Dim, Sym
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.passes.layout.mincut import FlowNetwork
from bolt_numba.passes.layout.permuted import Perm, PermutedNode, compose, identity, inverse, moves_data, permuted

UNKNOWN_DIM = 32
"""Stands for one symbol when sizes are compared."""
OVERHEAD = 256
"""Elements that the mere existence of a transpose is worth."""
PRODUCTS = (Conv, ConvTranspose, MatMul)
BARRIER = 16
"""Elements that it is worth not to stand between a product and what could be fused into it."""
FREE = 1
"""Cost of a transpose that moves only axes of length 1: a Reshape, but one that keeps its neighbours from fusing."""


@record()
class Port:
    """An operand (or, with node None, a graph output) that reads ``root`` permuted by ``perm``."""

    root: Value
    perm: Perm
    node: Node | None = None
    index: int = 0


@record()
class Wiring:
    """Who reads what through which permutation; Transposes are seen through."""

    ports: dict[int, list[Port]] = field(default_factory=dict)
    reads: dict[tuple[int, int], Port] = field(default_factory=dict)
    roots: dict[int, Value] = field(default_factory=dict)


def _size(d: Dim) -> int:
    if not isinstance(d, Sym):
        return d
    return max(1, d.const + sum(f * UNKNOWN_DIM for _, f in d.terms))


def cost(value: Value, have: Perm, want: Perm) -> int:
    """Elements that must move to get from one order of axes to another; constants are free."""
    shape = value.type.shape
    if value.const is not None or shape is None or have == want:
        return 0
    step = tuple([have.index(a) for a in want])
    total = BARRIER if value.node is not None and isinstance(value.node.op, PRODUCTS) else 0
    if not moves_data(step, tuple([shape[a] for a in have])):
        return FREE + total
    elements = 1
    for d in shape:
        elements *= _size(d)
    return OVERHEAD + elements + total


def wiring(graph: Graph) -> Wiring:
    made = Wiring()
    source: dict[int, tuple[Value, Perm]] = {}

    def seen(v: Value) -> tuple[Value, Perm]:
        return source.get(id(v)) or (v, identity(len(v.type.shape or ())))

    def add(port: Port) -> None:
        made.ports.setdefault(id(port.root), []).append(port)
        made.roots[id(port.root)] = port.root

    for node in graph.nodes:
        if isinstance(node.op, Transpose) and node.inputs[0] is not None and node.inputs[0].type.shape is not None:
            root, p = seen(node.inputs[0])
            source[id(node.output)] = root, compose(p, node.op.perm)
            continue
        for i, v in enumerate(node.inputs):
            if v is not None and v.type.shape is not None:
                port = Port(*seen(v), node, i)
                add(port)
                made.reads[id(node), i] = port
    for i, v in enumerate(graph.outputs):
        if v.type.shape is not None:
            add(Port(*seen(v), None, i))
    return made


Plans = dict[int, tuple[Node, PermutedNode]]


def _stored(value: Value, plans: Plans) -> Perm:
    """The order in which a value is kept under ``plans``."""
    rank = len(value.type.shape or ())
    if value.node is not None and id(value.node) in plans:
        return plans[id(value.node)][1].outs[value.index] or identity(rank)
    return identity(rank)


def _wanted(port: Port, plans: Plans) -> Perm:
    """The order in which a port reads its root under ``plans``."""
    if port.node is None or id(port.node) not in plans:
        return port.perm
    q = plans[id(port.node)][1].ins[port.index]
    return port.perm if q is None else compose(port.perm, q)


def _touched(wires: Wiring, plans: Plans) -> dict[int, Value]:
    """The values that the nodes of ``plans`` read or make."""
    roots: dict[int, Value] = {}
    for node, plan in plans.values():
        for i in range(len(plan.ins)):
            port = wires.reads.get((id(node), i))
            if port is not None:
                roots[id(port.root)] = port.root
        roots.update((id(v), v) for v in node.outputs if id(v) in wires.ports)
    return roots


def total_cost(wires: Wiring, roots: Iterable[Value], plans: Plans) -> tuple[int, int]:
    """Elements moved by the transposes of ``roots``, and the number of those that move any."""
    moved = count = 0
    for root in roots:
        ports = wires.ports[id(root)]
        have = _stored(root, plans)
        for want in {_wanted(port, plans) for port in ports}:
            c = cost(root, have, want)
            moved += c
            count += c >= OVERHEAD
    return moved, count


def _seeds(wires: Wiring) -> list[tuple[Node, str, int, Perm]]:
    """Nodes on either side of a transpose, with the permutation that would swallow it."""
    found = []
    for ports in wires.ports.values():
        for port in ports:
            root = port.root
            if not cost(root, identity(len(port.perm)), port.perm):
                continue
            if port.node is not None:
                found.append((port.node, "in", port.index, inverse(port.perm)))
            if root.node is not None:
                found.append((root.node, "out", root.index, port.perm))
    return found


def _component(wires: Wiring, seed: tuple[Node, str, int, Perm], closed: set[int]) -> Plans:
    """Operators that hang together around the seed without a transpose between them, with their plans.

    Empty when one of them is closed: it must wait.
    """
    plans: Plans = {}
    todo = deque([seed])
    while todo:
        node, place, index, p = todo.popleft()
        if id(node) in plans:
            continue
        plan = permuted(node, place, index, p)
        if plan is None:
            continue
        if id(node) in closed:
            return {}
        plans[id(node)] = node, plan
        for i, q in enumerate(plan.ins):
            port = wires.reads.get((id(node), i))
            if q is None or port is None or port.root.const is not None or port.perm != identity(len(port.perm)):
                continue
            todo.extend(_around(wires, port.root, q))
        for v, s in zip(node.outputs, plan.outs, strict=True):
            if s is not None:
                todo.extend(_around(wires, v, s))
    return plans


def _around(wires: Wiring, value: Value, p: Perm) -> list[tuple[Node, str, int, Perm]]:
    """Where the permutation ``p`` of a value goes next: to the node that makes it and to its direct readers."""
    plain = identity(len(p))
    direct = [port for port in wires.ports.get(id(value), ()) if port.perm == plain]
    made: list[tuple[Node, str, int, Perm]] = [(q.node, "in", q.index, p) for q in direct if q.node is not None]
    return made if value.node is None else [(value.node, "out", value.index, p), *made]


def _cut(wires: Wiring, plans: Plans) -> Plans:
    """The part of the component that is worth permuting."""
    net = FlowNetwork()
    for root in _touched(wires, plans).values():
        _edges_of(net, root, wires.ports[id(root)], plans)
    chosen = net.source_side()
    return {k: v for k, v in plans.items() if k in chosen}


def _edges_of(net: FlowNetwork, root: Value, ports: list[Port], plans: Plans) -> None:
    """Edges for the transposes of one value: one for each order of axes in which it may be wanted."""
    alone: Plans = {}
    plain = identity(len(root.type.shape or ()))
    maker = id(root.node) if root.node is not None and id(root.node) in plans else None
    kept = _stored(root, plans)
    wants: dict[Perm, tuple[set[int], set[int], bool]] = {}
    for port in ports:
        inside = port.node is not None and id(port.node) in plans
        off, on = _wanted(port, alone), _wanted(port, plans)
        for form, slot in ((off, 1), (on, 0)) if inside else ((off, 2),):
            pos, neg, _ = wants.setdefault(form, (set(), set(), False))
            if slot == 2:
                wants[form] = pos, neg, True
            elif off != on:
                (pos if slot == 0 else neg).add(id(port.node))
            else:
                wants[form] = pos, neg, True
    for form, (pos, neg, always) in wants.items():
        _edges_of_form(net, maker, (cost(root, plain, form), cost(root, kept, form)), pos, neg, always)


def _edges_of_form(
    net: FlowNetwork, maker: int | None, costs: tuple[int, int], pos: set[int], neg: set[int], always: bool
) -> None:
    """Edges for one order of axes: ``costs`` when the maker is not, and is, permuted; source side means permuted."""
    off, on = costs
    if maker is None:
        if not always and off:
            net.any_sink(net.source, neg, off)
            net.any_source(pos, net.sink, off)
        return
    if on:  # wanted although the maker is permuted
        if always:
            net.add(maker, net.sink, on)
        else:
            net.any_sink(maker, neg, on)
    if off:
        if always:
            net.add(net.source, maker, off)
        else:
            net.any_source(pos, maker, off)


def move_transposes(graph: Graph) -> int:
    """Move transposes to where they are cheapest, and drop those that meet their inverse; returns how many rounds."""
    changed = 0
    last: tuple[int, int] | None = None
    if Transpose not in {type(node.op) for node in graph.nodes}:
        return 0
    while True:
        wires = wiring(graph)
        now = total_cost(wires, wires.roots.values(), {})
        taken = {} if last is not None and now >= last else _round(wires)
        last = now
        if not taken:
            return changed
        changed += 1
        _Rebuild(graph, wires, taken).run()


def _round(wires: Wiring) -> Plans:
    """Regions worth permuting that share no value with each other."""
    taken: Plans = {}
    closed: set[int] = set()
    failed: set[tuple[int, Perm | None]] = set()
    for seed in _seeds(wires):
        component = _component(wires, seed, closed)
        keys = {(key, plan.ins[0] if plan.ins else None) for key, (_, plan) in component.items()}
        if keys <= failed:
            continue
        failed |= keys
        chosen = _cut(wires, component)
        roots = _touched(wires, chosen).values()
        before, after = total_cost(wires, roots, {}), total_cost(wires, roots, chosen)
        if after[0] < before[0] and after[1] <= before[1]:
            taken.update(chosen)
            _close(wires, chosen, closed)
    return taken


def _close(wires: Wiring, chosen: Plans, closed: set[int]) -> None:
    """Nodes that share a value with a chosen component wait for the next round: costs of components must add up."""
    closed.update(chosen)
    for root in _touched(wires, chosen).values():
        if root.node is not None:
            closed.add(id(root.node))
        closed.update(id(port.node) for port in wires.ports[id(root)])


class _Rebuild:
    """Builds the nodes of ``plans`` again and the transposes between them and the rest."""

    def __init__(self, graph: Graph, wires: Wiring, plans: Plans) -> None:
        self.graph, self.wires, self.plans = graph, wires, plans
        self.b = Builder(graph, [])
        self.kept: dict[int, Value] = {}
        self.made: dict[tuple[int, Perm], Value] = {}

    def read(self, port: Port) -> Value:
        """The value that a port reads now."""
        have, want = _stored(port.root, self.plans), _wanted(port, self.plans)
        root = self.kept.get(id(port.root), port.root)
        if have == want:
            return root
        key = id(port.root), want
        if key not in self.made:
            step = tuple(have.index(a) for a in want)
            self.made[key] = self.b(Transpose(step), root)
            if want == identity(len(want)):
                self.made[key].name, port.root.name = port.root.name, self.made[key].name
        return self.made[key]

    def _rebuilt(self, root: Value) -> bool:
        return root.node is not None and id(root.node) in self.plans

    def run(self) -> None:
        for node in self.graph.nodes:
            if id(node) in self.plans:
                self._node(node)
                continue
            for i, v in enumerate(node.inputs):
                port = self.wires.reads.get((id(node), i))
                if port is not None and v is not None and self._rebuilt(port.root):
                    node.set_input(i, self.read(port))
            self.b.nodes.append(node)
        outputs = list(self.graph.outputs)
        for ports in self.wires.ports.values():
            for port in ports:
                if port.node is None and self._rebuilt(port.root):
                    outputs[port.index] = self.read(port)
        self.graph.outputs = outputs
        self.graph.nodes = self.b.nodes
        for node, _ in self.plans.values():
            node.detach()
        self.graph.drop_dead()

    def _node(self, node: Node) -> None:
        plan = self.plans[id(node)][1]
        operands: list[Value | None] = []
        for i, v in enumerate(node.inputs):
            port = self.wires.reads.get((id(node), i))
            operands.append(v if port is None or v is None else self.read(port))
        made = plan.build(self.b, operands)
        made.name = node.name
        for old, new in zip(node.outputs, made.outputs, strict=True):
            self.kept[id(old)] = new
            if new.type.shape == old.type.shape and _stored(old, self.plans) == identity(len(old.type.shape or ())):
                new.name, old.name = old.name, new.name
