"""From a `PaddleProgram` to a `Graph`: the operations of a block in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import F32, Array, TensorType, sequence_of
from bolt_numba.converters.bounded import Measure
from bolt_numba.converters.builder import ForeignNode
from bolt_numba.converters.nodes import NodeReader
from bolt_numba.converters.paddle.reading.binding import bind
from bolt_numba.converters.paddle.reading.parts import PaddleParts
from bolt_numba.converters.paddle.reading.program import LEGACY, Operation, PaddleBlock, PaddleProgram, Slots
from bolt_numba.converters.paddle.reading.ragged import SHARING, taken_apart
from bolt_numba.converters.paddle.reading.registry import PADDLE, Spelling
from bolt_numba.converters.scope import Scope
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.data.sequence import SequenceEmpty, SplitToSequence

MAIN = ("Out", "Output", "Y", "Result")
"""Slots of the result of an operator whose reader names none."""


class PaddleBuilder(PaddleParts):
    """The builder that a reader gets.

    owner, scope: for readers of control flow.  operation: as the file has it.  outputs: whether each result, or any
    of a list of results, is used.
    """

    def __init__(self, owner: PaddleReader, scope: Scope, node: ForeignNode, what: str) -> None:
        operation: Operation
        operation, results = node.raw
        super().__init__(scope.graph, node, what, version=operation.version, prefix=scope.prefix)
        self.owner, self.scope, self.operation, self.results = owner, scope, operation, results
        self.outputs = tuple(any(names) for _, names in results)

    @property
    def is_legacy(self) -> bool:
        """Whether the program is of the kind that Paddle 2 writes."""
        return self.owner.program.dialect == LEGACY

    def count(self, index: int) -> int:
        """How many tensors result ``index`` is a list of."""
        return len(self.results[index][1]) if index < len(self.results) else 0

    def declared(self, index: int = 0) -> TensorType | None:
        """The type that the file declares of a result, None where it tells none."""
        names = self.results[index][1] if index < len(self.results) else ()
        found = self.owner.program.variable(names[0]) if names else None
        return None if found is None else found.type


class PaddleReader(NodeReader[Scope]):
    """Reads one program.  used: names that something reads; what nobody reads gets no value.

    lengths: of the sequences of ragged values, by id; see `ragged`.
    """

    def __init__(self, file: str, program: PaddleProgram, weights: Mapping[str, Array]) -> None:
        super().__init__(file)
        self.program, self.weights = program, weights
        self.used = {name for block in program.all_blocks() for o in block.operations for name in o.reads}
        self.used |= {name for _, name in program.fetches}
        for block in program.all_blocks():
            self.used.update(block.results)
            for operation in block.operations:
                for name in ("then", "otherwise") if operation.type == "if_else" else ():
                    self.used.update(operation.attributes[name])
        self.lengths: dict[int, Value] = {}
        self._measure = Measure(file)

    def read(self) -> Graph:
        """The graph of the first block."""
        scope = Scope(Graph(self.file))
        for shown, name in self.program.feeds:
            self._add_feed(scope, shown, name)
        for shown, name in self.program.weights:
            if name in self.used:
                self.add_constant(scope, shown, self.weights[shown])
                scope.values[name] = scope.values[shown]
        for name in self.program.empty:
            declared = self.program.variable(name)
            if name in self.used and declared is not None and declared.type is not None:
                ask(declared.type.nbytes, f"{self.file}: variable {name!r}")
                self.add_constant(scope, name, np.zeros(declared.type.dims, declared.type.dtype))
        block = self.program.blocks[0]
        scope.reserve(name for operation in block.operations for name in operation.writes if name in self.used)
        self.read_block(block, scope)
        for shown, name in self.program.fetches:
            value = self.find(scope, name, f"{self.file}: output '{shown}'")
            if value is None:
                raise InvalidModelError(f"{self.file}: output '{shown}': got nothing, wanted a tensor")
            if id(value) in self.lengths:
                value = Builder(scope.graph)(SplitToSequence(), value, self.lengths[id(value)])
            scope.graph.add_output(value, shown)
        return scope.graph

    def _add_feed(self, scope: Scope, shown: str, name: str) -> None:
        found = self.program.variable(name)
        if found is None or found.type is None:
            raise InvalidModelError(f"{self.file}: input '{shown}': got no type, wanted that of a tensor")
        if found.lod:
            if found.lod > 1:
                raise UnsupportedOpError(self.file, [f"input '{shown}' with {found.lod} levels of ragged structure"])
            self.add_input(scope, shown, sequence_of(found.type))
            rows, lengths = taken_apart(Builder(scope.graph, prefix=f"{shown}/"), scope.graph.inputs[-1])
            scope.values[name], self.lengths[id(rows)] = rows, lengths
            return
        self.add_input(scope, shown, found.type)
        scope.values[name] = scope.values[shown]

    def find(self, scope: Scope, name: str, what: str) -> Value | None:
        """The value of a name; an array of tensors that nothing was written to yet is empty."""
        try:
            return scope.find(name)
        except KeyError:
            declared = self.program.variable(name)
            if declared is None or not declared.is_array:
                return super().find(scope, name, what)
        dtype = F32 if declared.type is None else declared.type.dtype
        made: Value = Builder(scope.graph)(SequenceEmpty(dtype), name=name)
        scope.values[name] = made
        return made

    def body(
        self, block: PaddleBlock, outer: Scope, types: Mapping[str, TensorType], scope: Scope | None = None
    ) -> Scope:
        """What reading a block as a graph of its own gives, whose last inputs are names of these types.

        scope: with the inputs before them.
        """
        scope = scope or Scope(Graph("body"), outer=outer, depth=outer.depth + 1)
        self._measure.add(len(block.operations), scope.depth, scope.graph.name)
        for name, type in types.items():
            self.add_input(scope, name, type)
        self.read_block(block, scope)
        return scope

    def inline(self, block: PaddleBlock, outer: Scope) -> Scope:
        """What reading a block as a part of the graph around it gives: of what is certain to run."""
        scope = Scope(outer.graph, outer=outer, prefix=outer.prefix, depth=outer.depth + 1, shares_graph=True)
        self._measure.add(len(block.operations), scope.depth, "block")
        self.read_block(block, scope)
        return scope

    def read_node(self, node: ForeignNode, scope: Scope, what: str) -> None:
        before = [scope.values.get(name) for name in node.inputs] if self.lengths else []
        super().read_node(node, scope, what)
        ragged = [v for v in before if v is not None and id(v) in self.lengths]
        for name in node.outputs if ragged else ():
            made = scope.values.get(name)
            if made is None or id(made) in self.lengths:
                continue
            like = next((v for v in ragged if _has_rows(made, v, node.op)), None)
            if like is not None:
                self.lengths[id(made)] = self.lengths[id(like)]

    def read_block(self, block: PaddleBlock, scope: Scope) -> None:
        """Read the operations of a block in order."""
        self.read_nodes(map(self.node, block.operations), scope)

    def node(self, operation: Operation) -> ForeignNode:
        """An operation as the shared reading takes it: names of what it reads, and of its results that are used."""
        reader = PADDLE.find(self.program.dialect, operation.type, operation.version)
        spelling = Spelling() if reader is None else PADDLE.spellings[reader.function]
        results = self._results(operation, spelling)
        inputs = [name for _, names in operation.inputs for name in names]
        outputs = [name for _, names in results for name in names]
        label = next((name for name in outputs if name), next(operation.writes, operation.type))
        return ForeignNode(label, operation.type, inputs, outputs, (operation, results))

    def _results(self, operation: Operation, spelling: Spelling) -> Slots:
        """Slots of the results in the reader's order; "" for what nobody reads."""
        slots = operation.outputs
        if self.program.dialect == LEGACY:
            by_name = dict(slots)
            order = spelling.results or [next((s for s in MAIN if s in by_name), next(iter(by_name), ""))]
            slots = [(slot, by_name.pop(slot, ())) for slot in order]
            slots += [(slot, names) for slot, names in by_name.items() if self.used.intersection(names)]
        return [(slot, tuple(name if name in self.used else "" for name in names)) for slot, names in slots]

    def results(self, node: ForeignNode, inputs: list[Value | None], scope: Scope, what: str) -> Sequence[Value | None]:
        operation, results = node.raw
        reader = PADDLE.find(self.program.dialect, operation.type, operation.version)
        if reader is None:
            raise UnsupportedOpError(self.file, [self.describe(node, scope)])
        b = PaddleBuilder(self, scope, node, what)
        values = iter([*inputs, *[None] * (len(node.inputs) - len(inputs))])
        slots = [(slot, [next(values) for _ in names]) for slot, names in operation.inputs]
        operands, attributes = bind(b, reader, PADDLE.spellings[reader.function], slots, operation.attributes)
        made = reader.read(b, operands, attributes, what)
        if operation.changed and not operation.blocks:
            scope.values[operation.changed[0]] = made[0] if isinstance(made, tuple) else made
        return _flat(b, made, results)


def _has_rows(made: Value, x: Value, type: str) -> bool:
    """Whether a result has the rows of a ragged operand."""
    shape, rows = made.type.shape, x.type.shape
    if not shape or not rows:
        return False
    return shape[0] == rows[0] or type in SHARING or type.startswith("elementwise_")


def _flat(b: PaddleBuilder, made: Any, results: Slots) -> list[Value | None]:
    """What a reader gives, a value or a list for each slot, by name: as many as the slot has names."""
    parts = made if isinstance(made, tuple) else (made,)
    flat: list[Value | None] = []
    for place, (_, names) in enumerate(results):
        part = parts[place] if place < len(parts) else None
        values = list(part) if isinstance(part, list) else [part] * min(1, len(names))
        if isinstance(part, list) and not any(names):
            values = [None] * len(names)
        if part is None:
            values = [None] * len(names)
        b.invalid_if(len(values) != len(names), f"number of results {place}", len(names), len(values))
        flat += values
    return flat
