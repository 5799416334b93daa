"""The graph: typed values in single static assignment form, nodes whose operator is a frozen dataclass.

It is plain data with use lists; it infers nothing (`ir.build` does) and optimises nothing (`passes` does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bolt_numba.base.records import field_rows
from bolt_numba.base.types import Array, TensorType
from bolt_numba.ops.registry import Op

if TYPE_CHECKING:
    from bolt_numba.ir.packed import PackedWeights


class Uses:
    """Nodes that read a value, in the order in which they began to, once per operand; all in constant time.

    times: the nodes, and how many of each one's operands; total: of all.  Both are for reading, where a call is dear.
    """

    __slots__ = ("times", "total")

    def __init__(self) -> None:
        self.times: dict[Node, int] = {}
        self.total = 0

    def append(self, node: Node) -> None:
        self.times[node] = self.times.get(node, 0) + 1
        self.total += 1

    def remove(self, node: Node) -> None:
        """Take one operand of ``node`` away; raises KeyError when there is none."""
        times = self.times[node]
        if times == 1:
            del self.times[node]
        else:
            self.times[node] = times - 1
        self.total -= 1

    def __len__(self) -> int:
        return self.total

    def __bool__(self) -> bool:
        return self.total > 0

    def __iter__(self) -> Iterator[Node]:
        for node, times in self.times.items():
            for _ in range(times):
                yield node


class Value:
    """One tensor: a graph input, a constant, or the output of a node.

    ``uses`` holds every node that reads it, once per operand; being a graph output is not a use.
    """

    __slots__ = ("const", "index", "name", "node", "type", "uses")

    def __init__(
        self, name: str, type: TensorType, *, node: Node | None = None, index: int = 0, const: Array | None = None
    ) -> None:
        self.name, self.type, self.node, self.index, self.const = name, type, node, index, const
        self.uses = Uses()

    @property
    def is_const(self) -> bool:
        return self.const is not None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One operation; its operands are changed only through `set_input`, so that use lists stay right.

    operands: what `inputs` gives, for reading where a call is dear.
    """

    __slots__ = ("name", "op", "operands", "outputs")

    def __init__(self, op: Op, inputs: Sequence[Value | None], types: Sequence[TensorType], name: str) -> None:
        self.op, self.name = op, name
        self.operands: list[Value | None] = list(inputs)
        for value in self.operands:
            if value is not None:
                value.uses.append(self)
        self.outputs = [Value(name if i == 0 else f"{name}:{i}", t, node=self, index=i) for i, t in enumerate(types)]

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        return tuple(self.operands)

    @property
    def output(self) -> Value:
        """The first output, the only one of most operators."""
        return self.outputs[0]

    def set_input(self, index: int, value: Value | None) -> None:
        old = self.operands[index]
        if old is not None:
            old.uses.remove(self)
        self.operands[index] = value
        if value is not None:
            value.uses.append(self)

    def replace_input(self, old: Value, new: Value, times: int) -> None:
        """Read ``new`` in all places where ``old`` is read, which are so many."""
        at = -1
        for _ in range(times):
            at = self.operands.index(old, at + 1)
            self.set_input(at, new)

    def detach(self) -> None:
        """Give up all operands; the node must be dropped from its graph by the caller."""
        for value in self.operands:
            if value is not None:
                value.uses.remove(self)
        self.operands = [None] * len(self.operands)

    def __repr__(self) -> str:
        args = ", ".join("-" if v is None else f"%{v.name}" for v in self.operands)
        outs = ", ".join(map(repr, self.outputs))
        return f"{outs} = {self.op}({args})"


class Graph:
    """Inputs, nodes in topological order, outputs.

    Constants are values with ``const`` and no node; they live in the operands that read them.  Subgraphs of control
    flow are attributes of their operator; what they capture are explicit operands, in the order of the subgraph's
    inputs, so a graph never refers to a value outside itself.

    packed: set when the graph is what the passes leave; holds weights packed for a machine.  Copies do not have it.
    anew: where a format lets sizes of inputs be others than its file says: reads the graph again for such sizes by the
    inputs' names, -1 for those that only the run tells.  Copies do not have it.
    source: the file that it was read from, "" if from none.
    states: what a session keeps from run to run, as it is at first.  The last inputs, as many, take it, and the last
    outputs give it anew; a caller sees neither.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.source = ""
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.output_names: list[str] = []
        self.nodes: list[Node] = []
        self.metadata: dict[str, str] = {}
        self.packed: PackedWeights | None = None
        self.anew: Callable[[Mapping[str, Sequence[int]]], Graph] | None = None
        self.states: list[Array] = []
        self._names: set[str] = set()
        self._serial = 0

    @property
    def called(self) -> str:
        """What messages call it: its file, whose exporter gave it the name that it has inside."""
        return self.source or self.name

    def unique_name(self, hint: str) -> str:
        """A name no other value of this graph has: ``hint`` itself when it is free."""
        name = hint
        while name in self._names or not name:
            name = f"{hint}.{self._serial}"
            self._serial += 1
        self._names.add(name)
        return name

    def release_names(self, names: Iterable[str]) -> None:
        """Let other values have names whose own are no longer of this graph."""
        self._names.difference_update(names)

    def reserve_names(self, names: Iterable[str]) -> None:
        """Let no other value have these names."""
        self._names.update(names)

    def add_input(self, name: str, type: TensorType) -> Value:
        value = Value(self.unique_name(name), type)
        self.inputs.insert(len(self.inputs) - len(self.states), value)
        return value

    def add_output(self, value: Value, name: str | None = None) -> None:
        """Declare an output; one value may be an output under several names."""
        place = len(self.outputs) - len(self.states)
        self.outputs.insert(place, value)
        self.output_names.insert(place, name or value.name)

    def add_state(self, before: Value, after: Value, initial: Array) -> None:
        """Declare that a session keeps a value from run to run: ``before`` takes it and ``after`` gives it anew.

        before: a value without a node, of this graph's names, which becomes an input.
        """
        self.inputs.append(before)
        self.outputs.append(after)
        self.output_names.append(self.unique_name(f"{before.name}/next"))
        self.states.append(initial)

    @property
    def caller_inputs(self) -> list[Value]:
        """Inputs that a caller gives: all but states."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def caller_outputs(self) -> list[tuple[str, Value]]:
        """Outputs that a caller gets, with their names."""
        return list(zip(self.output_names, self.outputs, strict=True))[: len(self.outputs) - len(self.states)]

    def set_outputs(self, values: Sequence[Value], names: Sequence[str]) -> None:
        """Declare other outputs in the place of those that a caller gets."""
        place = len(self.outputs) - len(self.states)
        self.outputs[:place], self.output_names[:place] = values, names

    def constants(self) -> list[Value]:
        """Every constant read by a node or returned, once, in order of first use."""
        seen: dict[int, Value] = {}
        for value in self._reads():
            if value.const is not None:
                seen.setdefault(id(value), value)
        return list(seen.values())

    def weights(self) -> list[Array]:
        """What all constants hold, those of graphs within this one too."""
        own = [value.const for value in self.constants() if value.const is not None]
        return own + [array for _, graph in self.subgraphs() for array in graph.weights()]

    def _reads(self) -> Iterator[Value]:
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    yield value
        yield from self.outputs

    def values(self) -> Iterator[Value]:
        """Inputs, constants and node outputs, each once."""
        yield from self.inputs
        yield from self.constants()
        for node in self.nodes:
            yield from node.outputs

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every reader of ``old``, and the graph outputs, read ``new``."""
        for node, times in list(old.uses.times.items()):
            node.replace_input(old, new, times)
        if self.is_output(old):
            self.outputs = [new if v is old else v for v in self.outputs]

    def is_output(self, value: Value) -> bool:
        return value in self.outputs

    def sole_use(self, value: Value) -> Node | None:
        """The only reader of a value that is no graph output; else None."""
        if value.uses.total != 1 or self.is_output(value):
            return None
        return next(iter(value.uses.times))

    def drop_dead(self) -> int:
        """Remove nodes whose outputs nobody reads; returns how many."""
        outputs = set(map(id, self.outputs))
        kept: list[Node] = []
        dropped = 0
        for node in reversed(self.nodes):
            if node.outputs[0].uses.times or any(v.uses.times or id(v) in outputs for v in node.outputs):
                kept.append(node)
            else:
                node.detach()
                dropped += 1
        self.nodes = kept[::-1]
        return dropped

    def clone(self) -> Graph:
        """An independent copy; constants' arrays are shared."""
        return self.rebuilt(lambda value: value.type)

    def rebuilt(self, type_of_value: Callable[[Value], TensorType]) -> Graph:
        made = Graph(self.name)
        made.source = self.source
        made.metadata = dict(self.metadata)
        made._names = set(self._names)
        made._serial = self._serial + 1
        twin: dict[int, Value] = {}

        def copy_of(value: Value | None) -> Value | None:
            if value is None:
                return None
            if id(value) not in twin:
                twin[id(value)] = Value(value.name, type_of_value(value), const=value.const)
            return twin[id(value)]

        for value in self.inputs:
            made.inputs.append(copy_of(value))  # type: ignore[arg-type]
        for node in self.nodes:
            types = [type_of_value(v) for v in node.outputs]
            copied = Node(node.op, [copy_of(v) for v in node.inputs], types, node.name)
            for old, new in zip(node.outputs, copied.outputs, strict=True):
                new.name = old.name
                twin[id(old)] = new
            made.nodes.append(copied)
        made.outputs = [copy_of(v) for v in self.outputs]  # type: ignore[misc]
        made.output_names, made.states = list(self.output_names), list(self.states)
        return made

    def subgraphs(self) -> Iterator[tuple[Node, Graph]]:
        """Subgraphs of control flow, and those of opaque operators, one level down."""
        for node in self.nodes:
            for attribute in graph_attributes(node.op).values():
                yield node, attribute

    def _repr_html_(self) -> str:
        return str(import_module("bolt_numba.ir.drawing").to_figure(self))  # by name: pictures know graphs

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.nodes)} nodes)"


def graph_attributes(op: Any) -> dict[str, Graph]:
    """The subgraph attributes of an operator."""
    kind: Any = type(op)
    if _HOLDS.get(kind) is False or not may_hold_graphs(kind):
        return {}
    return {k: v for k, v in vars(op).items() if isinstance(v, Graph)}


def subgraphs_of(nodes: Iterable[Node]) -> list[Graph]:
    """The subgraphs of all nodes, one level down, but for opaque ones: passes ask for them again and again."""
    kinds = {type(node.op) for node in nodes}
    holding = [kind for kind in kinds if _HOLDS.get(kind) is not False and may_hold_graphs(kind) and not kind.opaque]
    if not holding:
        return []
    return [sub for node in nodes if type(node.op) in holding for sub in graph_attributes(node.op).values()]


def may_hold_graphs(cls: type[Op]) -> bool:
    """Whether a kind of operator has subgraphs: passes ask this of every node again and again."""
    found = _HOLDS.get(cls)
    if found is None:
        found = _HOLDS[cls] = _holds_graphs(cls)
    return found


_HOLDS: dict[type[Op], bool] = {}


def _holds_graphs(cls: type[Op]) -> bool:
    return any("Graph" in str(kind) for kind, _ in field_rows(cls).values())
