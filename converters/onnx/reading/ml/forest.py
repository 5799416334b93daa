"""Decision trees of ai.onnx.ml in any form to the arrays of the operator `TreeEnsemble`.

Every test becomes ``x <= threshold``: the order of the floats turns strict into weak comparisons, swapped branches
negate, an equality is two tests, a set is one equality after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import AnyDType, Array

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""Tests by the numbers that TreeEnsemble-5 gives them."""
LEAF = "LEAF"

Key: TypeAlias = "tuple[Any, ...]"


@record()
class Branch:
    """An inner node of the source: where its branches lead, by keys of other nodes.  members: of a set."""

    mode: str
    feature: int
    value: float
    missing: bool
    true: Key
    false: Key
    members: tuple[float, ...] = ()


@record()
class Leaf:
    """What a leaf says: pairs of target and weight."""

    entries: list[tuple[int, float]] = field(default_factory=list)


Nodes: TypeAlias = "Mapping[Key, Branch | Leaf]"


class Forest:
    """Places nodes one after another, brothers side by side, every child behind its parent."""

    def __init__(self, nodes: Nodes, dtype: AnyDType) -> None:
        self.nodes, self.dtype = nodes, dtype
        self.feature: list[int] = []
        self.threshold: list[float] = []
        self.child: list[int] = []
        self.missing: list[bool] = []
        self.leaf: list[int] = []
        self.roots: list[int] = []
        self.starts: list[int] = [0]
        self.targets: list[int] = []
        self.weights: list[float] = []
        self.seen: set[Key] = set()
        self.queue: deque[tuple[int, Key]] = deque()

    def add_tree(self, root: Key) -> None:
        """Raises InvalidModelError for a node that is not there or that two others lead to."""
        self.roots.append(self._room(1))
        self.queue.append((self.roots[-1], root))
        while self.queue:
            place, key = self.queue.popleft()
            if key in self.seen or key not in self.nodes:
                raise InvalidModelError(f"TreeEnsemble: node {key}: got a missing or shared node, wanted a tree")
            self.seen.add(key)
            node = self.nodes[key]
            if isinstance(node, Leaf):
                self._leaf(place, node)
            else:
                self._test(place, node)

    def arrays(self) -> list[Array]:
        """The operands of `TreeEnsemble` after x.  The last node is an empty leaf: every child has a brother."""
        self._leaf(self._room(1), Leaf())
        ints = [self.feature, self.child, self.leaf, self.roots, self.starts, self.targets]
        feature, child, leaf, roots, starts, targets = (np.array(a, np.int32) for a in ints)
        threshold, weights = np.array(self.threshold, self.dtype), np.array(self.weights, self.dtype)
        return [feature, threshold, child, np.array(self.missing, bool), leaf, roots, starts, targets, weights]

    def _room(self, count: int) -> int:
        place = len(self.feature)
        for name, value in (("feature", 0), ("threshold", np.nan), ("child", -1), ("missing", False), ("leaf", -1)):
            getattr(self, name).extend([value] * count)
        return place

    def _leaf(self, place: int, leaf: Leaf) -> None:
        self.child[place], self.leaf[place] = place - 1, len(self.starts) - 1
        for target, weight in leaf.entries:
            self.targets.append(target)
            self.weights.append(weight)
        self.starts.append(len(self.targets))

    def _test(self, place: int, test: Branch) -> None:
        value, before = test.value, self._below(test.value)
        if test.mode == "BRANCH_MEMBER":
            self._member(place, test)
        elif test.mode not in MODES:
            raise InvalidModelError(f"TreeEnsemble: mode: got {test.mode}, wanted {LEAF} or one of {MODES}")
        elif np.isnan(value):
            self._nan(place, test)
        elif test.mode == "BRANCH_LEQ":
            self._pair(place, test, value, test.missing, test.true, test.false)
        elif test.mode == "BRANCH_LT":
            self._pair(place, test, before, test.missing, test.true, test.false)
        elif test.mode == "BRANCH_GT":
            self._pair(place, test, value, not test.missing, test.false, test.true)
        elif test.mode == "BRANCH_GTE":
            self._pair(place, test, before, not test.missing, test.false, test.true)
        elif test.mode == "BRANCH_EQ":
            self._equal(place, test, test.missing, test.true, test.false)
        else:
            self._equal(place, test, False, test.false, test.true)

    def _below(self, value: float) -> float:
        """The next smaller float: x < value is x <= it; NaN for -inf."""
        lowest = self.dtype.type(-np.inf)
        return float("nan") if value == lowest else float(np.nextafter(self.dtype.type(value), lowest))

    def _nan(self, place: int, test: Branch) -> None:
        """A test against NaN, which only != passes."""
        if test.mode == "BRANCH_NEQ":
            self._always(place, test.true)
        else:
            self._never(place, test, test.missing, test.true, test.false)

    def _always(self, place: int, key: Key) -> None:
        target = self._room(1)
        self._jump(place, target)
        self.queue.append((target, key))

    def _never(self, place: int, test: Branch, missing: bool, left: Key, right: Key) -> None:
        """To the left for NaN, if at all: x <= -inf, then anything but NaN back to the right."""
        if not missing:
            self._always(place, right)
            return
        child = self._room(2)
        second = self._room(2)
        shared = self._room(1)
        self._set(place, test.feature, float("-inf"), True, child)
        self._set(child, test.feature, float("inf"), False, second)
        self._jump(child + 1, shared)
        self._jump(second, shared)
        self.queue.extend(((second + 1, left), (shared, right)))

    def _set(self, place: int, feature: int, threshold: float, missing: bool, child: int) -> None:
        self.feature[place], self.missing[place] = feature, missing
        self.threshold[place], self.child[place] = threshold, child

    def _pair(self, place: int, test: Branch, threshold: float, missing: bool, left: Key, right: Key) -> None:
        if np.isnan(threshold):
            self._never(place, test, missing, left, right)
            return
        child = self._room(2)
        self.queue.extend(((child, left), (child + 1, right)))
        self._set(place, test.feature, threshold, missing, child)

    def _equal(self, place: int, test: Branch, missing: bool, equal: Key, other: Key) -> None:
        """X <= value, then x <= what is below it; the way to ``other`` is taken from two places."""
        before = self._below(test.value)
        if np.isnan(before):
            self._pair(place, test, test.value, missing, equal, other)
            return
        child = self._room(2)
        second = self._room(2)
        shared = self._room(1)
        self._set(place, test.feature, test.value, missing, child)
        self._set(child, test.feature, before, False, second)
        self._jump(child + 1, shared)
        self._jump(second, shared)
        self.queue.extend(((second + 1, equal), (shared, other)))

    def _member(self, place: int, test: Branch) -> None:
        links: list[tuple[int, int]] = []
        equals: list[int] = []
        for value in test.members:
            if np.isnan(self._below(value)):
                raise InvalidModelError(f"TreeEnsemble: membership_values: got {value}, wanted finite numbers")
            child = self._room(2)
            second = self._room(2)
            rest = self._room(1)
            self._set(place, test.feature, value, test.missing, child)
            self._set(child, test.feature, self._below(value), False, second)
            links += [(child + 1, rest), (second, rest)]
            equals.append(second + 1)
            place = rest
        if not test.members:
            self.queue.append((place, test.false))
            return
        for source, target in links:
            self._jump(source, target)
        found = self._room(1)
        for source in equals:
            self._jump(source, found)
        self.queue.extend(((found, test.true), (place, test.false)))

    def _jump(self, place: int, target: int) -> None:
        """A node that leads on whatever x is."""
        self._set(place, 0, float("inf"), True, target)
