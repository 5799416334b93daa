"""What of a graph runs in Python before and behind its plans: texts that become numbers, numbers that become texts.

No buffer holds a text, so a plan ends where one comes.  Most models have texts at their ends alone: encoders of columns
come first, names of classes and dictionaries last.  Apart from these, all is one region, which sizes alone decide: it
is planned, compiled and followed by tapes as that of any other model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.border import at_node
from bolt_numba.base.budget import Budget, within
from bolt_numba.base.records import record
from bolt_numba.base.types import only_in_python
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.evaluate import evaluate
from bolt_numba.runtime.region import Region
from bolt_numba.runtime.runner import dense_result


@record(eq=False)
class TextStep:
    """A node by itself.  quick: `Op.quick` of its constants; None: its reference runs.

    reads: cells of the operands that are no constants.  writes: cells of the results.
    """

    node: Node
    quick: Callable[[Any], Any] | None
    reads: list[int]
    writes: list[int]

    def run(self, cells: list[Any]) -> None:
        try:
            if self.quick is not None:
                cells[self.writes[0]] = self.quick(cells[self.reads[0]])
            else:
                self._refer(cells)
        except Exception as error:
            raise at_node(error, self.node.op, self.node.name) from error

    def _refer(self, cells: list[Any]) -> None:
        left = iter(self.reads)
        args = [None if v is None else v.const if v.is_const else cells[next(left)] for v in self.node.operands]
        with np.errstate(all="ignore"):
            results = evaluate(self.node.op, args)
        for i, result, value in zip(self.writes, results, self.node.outputs, strict=True):
            cells[i] = dense_result(result, value.type)


Go: TypeAlias = Callable[[list[Any]], list[Any]]
Do: TypeAlias = Callable[[TextStep, list[Any]], None]


class Texts:
    """The steps before and behind a region.

    A run has cells: inputs of the graph, constants that are outputs, what is computed before, what the region gives,
    what is computed behind.  given: cells that the region takes.  gives: of each output the cell, and whether nobody
    else has that array.  ends: whether that is more than what the region gives.
    """

    def __init__(self, graph: Graph, before: Sequence[Node], behind: Sequence[Node]) -> None:
        apart = {id(node) for node in (*before, *behind)}
        inner = [node for node in graph.nodes if id(node) not in apart]
        mine = {id(v) for node in inner for v in node.outputs}
        read = [v for node in inner for v in node.operands if v is not None]
        wanted = [v for node in behind for v in node.operands if v is not None]
        inputs = _once(v for v in read if not v.is_const and id(v) not in mine)
        outputs = _once(v for v in (*graph.outputs, *wanted) if id(v) in mine)
        known = [v for v in graph.outputs if v.is_const]
        made = [v for node in before for v in node.outputs]
        late = [v for node in behind for v in node.outputs]
        cells = {id(v): i for i, v in enumerate([*graph.inputs, *known, *made, *outputs, *late])}
        self.region = Region(inputs, inner, outputs)
        self.before, self.behind = _steps(before, cells), _steps(behind, cells)
        self.room: list[Any] = [v.const for v in known] + [None] * len(made)
        self.rest: list[Any] = [None] * len(late)
        self.given = [cells[id(v)] for v in inputs]
        own = {cells[id(v)] for v in (*outputs, *late)}
        self.gives: list[tuple[int, bool]] = []
        for value in graph.outputs:
            cell = cells[id(value)]
            self.gives.append((cell, cell in own))
            own.discard(cell)
        self.ends = bool(behind) or [*graph.outputs] != outputs

    def begin(self, arrays: Sequence[Any], do: Do = TextStep.run) -> list[Any]:
        """The cells that are known before the region runs; ``do`` runs a step."""
        cells = [*arrays, *self.room]
        for step in self.before:
            do(step, cells)
        return cells

    def prepared(self, arrays: Sequence[Any]) -> list[Any]:
        """What the region takes for these inputs of the graph."""
        cells = self.begin(arrays)
        return [cells[i] for i in self.given]

    def run(self, go: Go, arrays: Sequence[Any], budget: Budget | None = None, do: Do = TextStep.run) -> list[Any]:
        """Outputs of the graph; ``go`` runs the region, ``do`` a step, ``budget`` holds for the rest."""
        if budget is not None:
            with within(budget):
                return self.run(go, arrays, None, do)
        cells = self.begin(arrays, do)
        given = [cells[i] for i in self.given]
        if not self.ends:
            return go(given)
        cells += go(given) if self.region.outputs else []
        cells += self.rest
        for step in self.behind:
            do(step, cells)
        return [cells[i] if own else _copied(cells[i]) for i, own in self.gives]

    def timed(self, go: Go, arrays: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Seconds of each step before and behind the region, of one run."""
        seconds: list[float] = []

        def timed(step: TextStep, cells: list[Any]) -> None:
            start = time.perf_counter()
            step.run(cells)
            seconds.append(time.perf_counter() - start)

        self.run(go, arrays, do=timed)
        return seconds[: len(self.before)], seconds[len(self.before) :]

    def rows(self, steps: Sequence[TextStep]) -> Iterator[dict[str, Any]]:
        """Rows of a report."""
        for step in steps:
            outs = ", ".join(str(v.type) for v in step.node.outputs)
            node = {"node": step.node.name, "op": step.node.op.name, "output": outs}
            yield {**node, "runner": "text" if step.quick else "reference", "device": "host", "packs": []}


def texts_of(graph: Graph) -> Texts | None:
    """What of a graph runs before and behind its plans; None where nothing does, and where a session keeps states."""
    if graph.states:
        return None
    before = _before(graph)
    behind = _behind(graph, {id(node) for node in before})
    return Texts(graph, before, behind) if before or behind else None


def _before(graph: Graph) -> list[Node]:
    """Nodes that follow from texts of the caller and constants alone."""
    there = {id(v) for v in graph.inputs if only_in_python(v.type)}
    found = []
    for node in graph.nodes:
        given = [v for v in node.operands if v is not None and not v.is_const]
        if not given or not all(id(v) in there for v in given) or not _is_plain(node):
            continue
        if any(only_in_python(v.type) for v in (*given, *node.outputs)):
            found.append(node)
            there |= {id(v) for v in node.outputs}
    return found


def _behind(graph: Graph, before: set[int]) -> list[Node]:
    """Nodes whose results are texts, lists or dictionaries that no plan reads."""
    found: dict[int, Node] = {}
    for node in reversed(graph.nodes):
        is_last = all(id(use) in found for v in node.outputs for use in v.uses.times)
        is_text = all(only_in_python(v.type) for v in node.outputs)
        if is_last and is_text and id(node) not in before and _is_plain(node):
            found[id(node)] = node
    return list(found.values())[::-1]


def _is_plain(node: Node) -> bool:
    return not (isinstance(node.op, ControlFlow) or node.op.has_side_state or node.op.opaque)


def _steps(nodes: Sequence[Node], cells: dict[int, int]) -> list[TextStep]:
    made = []
    for node in nodes:
        quick = node.op.quick(*(None if v is None else v.const for v in node.operands))
        reads = [cells[id(v)] for v in node.operands if v is not None and not v.is_const]
        made.append(TextStep(node, quick, reads, [cells[id(v)] for v in node.outputs]))
    return made


def _once(values: Iterable[Value]) -> list[Value]:
    return list({id(v): v for v in values}.values())


def _copied(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value
