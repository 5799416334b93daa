"""A whole graph as one node: each worker is a copy of the graph, and a task stays with one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bolt_numba.base.errors import BoltError
from bolt_numba.flow.batching import BatchError, key_of
from bolt_numba.flow.crew import Worker
from bolt_numba.flow.node import FlowNode
from bolt_numba.flow.parts import NodeOptions


class GraphNode(FlowNode):
    """All nodes of a graph, one after another.  Items of a task's lists are batched with each other."""

    def __init__(self, name: str, inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[FlowNode]) -> None:
        super().__init__(name, {n: n for n in inputs}, {n: n for n in outputs}, NodeOptions())
        self.nodes, self.keeps = list(nodes), any(node.keeps for node in nodes)

    def prepare(self, workers: Iterable[Worker]) -> None:
        workers = list(workers)
        for node in self.nodes:
            node.prepare(workers)

    def stop(self, worker: Worker) -> None:
        for node in self.nodes:
            node.stop(worker)

    def close(self, kill: bool = False) -> None:
        for node in self.nodes:
            node.close(kill)

    def run(
        self, feeds: Mapping[str, Any], worker: Worker, kept: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        values = dict(feeds)
        after: dict[str, Any] = {}
        for node in self.nodes:
            try:
                values |= self._run(node, values, worker, kept, after)
            except BaseException as error:
                fault = node.fault(error)
                raise fault from fault.__cause__
        return {name: values[name] for name in self.outputs}, after

    def _run(
        self, node: FlowNode, values: Mapping[str, Any], worker: Worker, kept: dict[str, Any], after: dict[str, Any]
    ) -> dict[str, Any]:
        pieces = node.expand(values)
        made: list[dict[str, Any]] = []
        for group in _groups(node, pieces):
            begin = time.perf_counter()
            if len(group) > 1:
                made += _together(node, group, worker)
            else:
                own = kept.setdefault(node.name, {}) if node.keeps else {}
                outputs, states = node.run(group[0], worker, own)
                if node.keeps:
                    after[node.name] = own | states
                made.append(outputs)
            worker.inner.append((node.name, begin, time.perf_counter(), len(group)))
        if not node.each:
            return made[0]
        return {value: [outputs[value] for outputs in made] for value in node.outputs.values()}

    def fault(self, error: BaseException) -> BoltError:
        """As the inner node made it."""
        return error if isinstance(error, BoltError) else super().fault(error)


def _together(node: FlowNode, group: list[dict[str, Any]], worker: Worker) -> list[dict[str, Any]]:
    try:
        return node.run_together(group, worker)
    except BatchError:
        raise
    except Exception:  # one of them fails by itself
        return [node.run(feeds, worker, {})[0] for feeds in group]


def _groups(node: FlowNode, pieces: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Neighbours that may run as one."""
    most = node.options.max_batch
    if most == 1:
        return [[piece] for piece in pieces]
    groups: list[list[dict[str, Any]]] = []
    last = None
    for piece in pieces:
        key = key_of(piece, node.batched)
        if key != last or len(groups[-1]) == most:
            groups.append([])
        groups[-1].append(piece)
        last = key
    return groups
