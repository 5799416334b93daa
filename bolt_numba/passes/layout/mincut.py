"""Minimum cut of a small network (Dinic's method): which nodes belong to the source's side.

Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable

INFINITE = 1 << 60


class FlowNetwork:
    """Directed edges with capacities between nodes named by any hashable; edges of capacity 0 are left out."""

    def __init__(self) -> None:
        self.source, self.sink = "source", "sink"
        self._number: dict[Hashable, int] = {self.source: 0, self.sink: 1}
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._room: list[int] = []

    def _at(self, name: Hashable) -> int:
        if name not in self._number:
            self._number[name] = len(self._edges)
            self._edges.append([])
        return self._number[name]

    def _link(self, a: int, z: int, capacity: int) -> None:
        for start, end, room in ((a, z, capacity), (z, a, 0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._room.append(room)

    def _new(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def add(self, a: Hashable, z: Hashable, capacity: int) -> None:
        """Pay ``capacity`` when ``a`` is on the source's side and ``z`` is not."""
        if capacity:
            self._link(self._at(a), self._at(z), capacity)

    def any_sink(self, a: Hashable, group: Iterable[Hashable], capacity: int) -> None:
        """Pay once when ``a`` is on the source's side and any of ``group`` is not."""
        members = list(group)
        if capacity and members:
            hub = self._new()
            self._link(self._at(a), hub, capacity)
            for name in members:
                self._link(hub, self._at(name), INFINITE)

    def any_source(self, group: Iterable[Hashable], z: Hashable, capacity: int) -> None:
        """Pay once when any of ``group`` is on the source's side and ``z`` is not."""
        members = list(group)
        if capacity and members:
            hub = self._new()
            self._link(hub, self._at(z), capacity)
            for name in members:
                self._link(self._at(name), hub, INFINITE)

    def _levels(self) -> list[int]:
        level = [-1] * len(self._edges)
        level[0] = 0
        todo = deque([0])
        while todo:
            a = todo.popleft()
            for e in self._edges[a]:
                if self._room[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[a] + 1
                    todo.append(self._to[e])
        return level

    def _push(self, level: list[int], at: list[int]) -> bool:
        """Find one path to the sink along rising levels and fill it; False when there is none."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self._edges[node]
            while at[node] < len(edges):
                e = edges[at[node]]
                if self._room[e] and level[self._to[e]] == level[node] + 1:
                    break
                at[node] += 1
            if at[node] < len(edges):
                path.append(edges[at[node]])
                node = self._to[path[-1]]
            elif path:
                node = self._to[path.pop() ^ 1]
                at[node] += 1
            else:
                return False
        flow = min(self._room[e] for e in path)
        for e in path:
            self._room[e] -= flow
            self._room[e ^ 1] += flow
        return True

    def source_side(self) -> set[Hashable]:
        """Names on the source's side of a minimum cut, as few as possible."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return {name for name, i in self._number.items() if i > 1 and level[i] >= 0}
            at = [0] * len(self._edges)
            while self._push(level, at):
                pass
