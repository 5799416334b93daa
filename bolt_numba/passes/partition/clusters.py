"""Clusters of marked items of an acyclic graph, as large as they may be.  It knows numbers alone.

Items are 0, 1, ... in an order in which what an item reads comes before it.  Clusters are joined along edges between
marked items, as long as no path leaves a cluster and comes back: the graph of clusters stays acyclic.  In the end no
two clusters with an edge between them could be joined.

Two steps: *levels* give large clusters in linear time, and sets of bits tell exactly what else may be joined.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


def clusters(reads: Sequence[Collection[int]], marked: Sequence[bool]) -> list[list[int]]:
    """Clusters, and each other item by itself, in an order in which what they read comes first.

    reads: by item, the items whose results it reads.
    """
    groups = _Groups(reads, marked, _by_levels(reads, marked))
    while groups.join():
        pass
    return [sorted(groups.items[g]) for g in groups.in_order()]


def ordered(reads: Sequence[Collection[int]]) -> list[int]:
    """Items, those that others read first, else by number."""
    return _Groups(reads, [False] * len(reads), range(len(reads))).in_order()


def _by_levels(reads: Sequence[Collection[int]], marked: Sequence[bool]) -> list[int]:
    """By item, the first item of its group.

    The level of an item is how often the longest path to it leaves marked items.  A path that leaves a group of one
    level only leads to higher ones, so all groups of marked items of one level, joined by edges, keep to the rule.
    """
    levels = [0] * len(marked)
    group = list(range(len(marked)))
    for item, operands in enumerate(reads):
        own = marked[item]
        levels[item] = level = max((levels[i] + (marked[i] and not own) for i in operands), default=0)
        if own:
            for i in operands:
                if marked[i] and levels[i] == level:
                    _unite(group, i, item)
    return [_root(group, item) for item in range(len(marked))]


def _root(group: list[int], item: int) -> int:
    while group[item] != item:
        group[item] = item = group[group[item]]
    return item


def _unite(group: list[int], a: int, b: int) -> None:
    a, b = _root(group, a), _root(group, b)
    group[max(a, b)] = min(a, b)


class _Groups:
    """The graph of groups; a group is known by one of its items."""

    def __init__(self, reads: Sequence[Collection[int]], marked: Sequence[bool], group: Sequence[int]) -> None:
        self.marked = marked
        self.items: dict[int, list[int]] = {}
        for item, own in enumerate(group):
            self.items.setdefault(own, []).append(item)
        self.before: dict[int, set[int]] = {g: set() for g in self.items}
        self.after: dict[int, set[int]] = {g: set() for g in self.items}
        for item, operands in enumerate(reads):
            for i in operands:
                if group[i] != group[item]:
                    self.after[group[i]].add(group[item])
                    self.before[group[item]].add(group[i])
        pairs = [(g, other) for g in self.items if marked[g] for other in self.after[g] if marked[other]]
        self.bits = dict.fromkeys(self.items, 0)
        """Of groups that might be joined, a bit each."""
        self.bits |= {g: 1 << i for i, g in enumerate(sorted({g for pair in pairs for g in pair}))}
        self.reach = dict.fromkeys(self.items, 0)
        """Bits of the groups that paths lead to."""
        for g in reversed(self.in_order()) if pairs else ():
            for other in self.after[g]:
                self.reach[g] |= self.reach[other] | self.bits[other]

    def join(self) -> bool:
        """Join what an edge joins and nothing forbids, looking at each group once; whether there was any."""
        count = len(self.items)
        for g in sorted(self.items):
            while g in self.items and self.marked[g] and self._join_next(g):
                pass
        return len(self.items) < count

    def _join_next(self, g: int) -> bool:
        for other in sorted(self.after[g]):
            if self.marked[other] and not self._is_apart(g, other):
                self._join(g, other)
                return True
        return False

    def _is_apart(self, g: int, other: int) -> bool:
        """Whether a path leads from one to the other by way of a third group."""
        bit = self.bits[other]
        return any(self.reach[between] & bit for between in self.after[g] if between != other)

    def _join(self, g: int, other: int) -> None:
        self.items[g] += self.items.pop(other)
        for ways, back in ((self.before, self.after), (self.after, self.before)):
            for neighbour in ways.pop(other):
                back[neighbour].discard(other)
                if neighbour != g:
                    back[neighbour].add(g)
                    ways[g].add(neighbour)
        self.bits[g] |= self.bits.pop(other)
        self.reach[g] = (self.reach[g] | self.reach.pop(other)) & ~self.bits[g]
        reached = self.reach[g] | self.bits[g]
        todo = list(self.before[g])
        while todo:
            above = todo.pop()
            if self.reach[above] | reached != self.reach[above]:
                self.reach[above] |= reached
                todo += self.before[above]

    def in_order(self) -> list[int]:
        """All groups, those that others read first, else in the order of their first items."""
        waiting = {g: len(before) for g, before in self.before.items()}
        first = {g: min(items) for g, items in self.items.items()}
        ready = [(first[g], g) for g, count in waiting.items() if not count]
        heapq.heapify(ready)
        done: list[int] = []
        while ready:
            _, g = heapq.heappop(ready)
            done.append(g)
            for other in self.after[g]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (first[other], other))
        return done
