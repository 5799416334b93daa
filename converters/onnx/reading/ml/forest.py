"""Decision trees of ai.onnx.ml in any form to the arrays of the operator `TreeEnsemble`.

Every test becomes ``x <= threshold``: the order of the floats turns strict into weak comparisons, swapped branches
negate, an equality is two tests, a set is one equality after another.  A forest has 100,000 nodes soon, so all is
arithmetic on columns; only the nodes whose tests are rare are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import AnyDType, Array

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""Tests by the numbers that TreeEnsemble-5 gives them."""
LEAF = len(MODES)
"""What stands for a test at a leaf."""
NOWHERE = -1
"""Place of a node that is not there."""
_LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(1, LEAF)


@record()
class Nodes:
    """The nodes of the source, [nodes] each.

    mode: numbers of `MODES`, or `LEAF`.  true, false: rows of the nodes that branches lead to, `NOWHERE` where there
    are none.  members: the sets of the nodes of mode BRANCH_MEMBER, in their order.
    """

    mode: Array
    feature: Array
    value: Array
    missing: Array
    true: Array
    false: Array
    members: Sequence[Sequence[float]] = ()


@record()
class Entries:
    """What leaves say, [entries] each: the row of a leaf, a target, a weight.  Those of a leaf are in order."""

    node: Array
    target: Array
    weight: Array

    def first(self) -> Entries:
        """The first entry of each leaf."""
        _, kept = np.unique(self.node, return_index=True)
        return Entries(self.node[kept], self.target[kept], self.weight[kept])


def forest(nodes: Nodes, roots: Array, entries: Entries, dtype: AnyDType) -> list[Array]:
    """The operands of `TreeEnsemble` after x.  The last node is an empty leaf: every child has a brother.

    Raises InvalidModelError for a node that is not there or that two others lead to, and for features beyond i32.
    """
    tests = _Tests(nodes, dtype)
    if (odd := tests.feature != tests.feature.astype(np.int32)).any():
        raise InvalidModelError(f"TreeEnsemble: features: got {tests.feature[odd][0]}, wanted numbers of columns")
    order = tests.placed(np.unique(roots))  # a tree may come several times
    place = np.full(len(tests.left), NOWHERE)
    place[order] = np.arange(len(order))
    leaf = tests.is_leaf[order]
    child = np.where(leaf, np.arange(len(order)) - 1, place[tests.left[order]])
    number = np.where(leaf, np.cumsum(leaf) - 1, -1)
    count = int(leaf.sum())
    said = np.append(number, count)[place[entries.node]]  # those of no tree, whose place is -1, come last
    kept = np.argsort(said, kind="stable")[: np.count_nonzero(said < count)]
    ends = np.cumsum(np.bincount(said[kept], minlength=count + 1))
    ints = (
        np.append(tests.feature[order], 0), np.append(child, len(order) - 1), np.append(number, count), place[roots],
        np.append(0, ends), entries.target[kept],
    )  # fmt: skip
    feature, child, number, first, starts, targets = (a.astype(np.int32) for a in ints)
    threshold = np.append(tests.threshold[order], np.array(np.nan, dtype))
    missing = np.append(tests.missing[order], False)
    return [feature, threshold, child, missing, number, first, starts, targets, entries.weight[kept].astype(dtype)]


def _below(value: Array) -> Array:
    """The next smaller floats: x < value is x <= it; NaN for -inf."""
    lowest = value.dtype.type(-np.inf)
    return np.asarray(np.where(value == lowest, value.dtype.type(np.nan), np.nextafter(value, lowest)))


class _Tests:
    """Nodes of which each is a leaf, a test ``x <= threshold`` with two ways, or a jump, which has only the left one.

    Several jumps may lead to one node, which stands behind the one that `follows` it, the farthest from the root.
    """

    def __init__(self, nodes: Nodes, dtype: AnyDType) -> None:
        self.is_leaf = nodes.mode == LEAF
        value = nodes.value.astype(dtype)
        strict, swapped = (nodes.mode == _LT) | (nodes.mode == _GTE), (nodes.mode == _GT) | (nodes.mode == _GTE)
        limit = np.where(strict, _below(value), value)
        self.threshold = np.where(self.is_leaf, dtype.type(np.nan), limit)
        self.feature = np.where(self.is_leaf, 0, nodes.feature)
        self.missing = (nodes.missing.astype(bool) ^ swapped) & ~self.is_leaf
        self.left = np.where(swapped, nodes.false, nodes.true)
        self.right = np.where(swapped, nodes.true, nodes.false)
        self.follows = np.repeat(~self.is_leaf[:, None], 2, 1)
        rare = ~self.is_leaf & ((nodes.mode >= _EQ) | np.isnan(limit))
        if rare.any():
            self._replace(nodes, value, np.flatnonzero(rare))

    def _replace(self, nodes: Nodes, value: Array, rare: Array) -> None:
        """Have each of the nodes ``rare`` be several."""
        made, sets = _Several(self), iter(nodes.members)
        for at in rare.tolist():
            mode, feature, limit = int(nodes.mode[at]), int(nodes.feature[at]), value[at]
            true, false, missing = int(nodes.true[at]), int(nodes.false[at]), bool(nodes.missing[at])
            if mode == _MEMBER:
                made.member(at, feature, np.array(next(sets), value.dtype), missing, true, false)
            elif mode == _NEQ and np.isnan(limit):
                made.jump(at, true)
            elif mode == _NEQ:
                made.equal(at, feature, limit, False, false, true)
            elif np.isnan(limit):
                made.never(at, feature, missing, true, false)
            elif mode == _EQ:
                made.equal(at, feature, limit, missing, true, false)
            else:  # nothing is less than -inf
                made.never(at, feature, bool(self.missing[at]), int(self.left[at]), int(self.right[at]))
        made.write()

    def placed(self, roots: Array) -> Array:
        """The nodes in the order of their places: tree after tree, by their distance from the root, brothers together.

        All trees are gone down at once, step by step.
        """
        front, tree = roots, np.arange(len(roots))
        fronts, trees, left = [front], [tree], len(self.left)
        while front.size and front.min() >= 0 and left >= len(front):
            left -= len(front)
            inner = ~self.is_leaf[front]
            front, tree = front[inner], tree[inner]
            follows = self.follows[front].reshape(-1)
            front = np.stack([self.left[front], self.right[front]], 1).reshape(-1)[follows]
            tree = np.repeat(tree, 2)[follows]
            fronts.append(front)
            trees.append(tree)
        order = np.concatenate(fronts)
        if front.size or np.bincount(order, minlength=1).max() > 1:
            raise InvalidModelError("TreeEnsemble: nodes: got one that is missing or shared, wanted trees")
        return np.asarray(order[np.argsort(np.concatenate(trees), kind="stable")])


class _Several:
    """Replaces nodes of `_Tests` by several that say the same, which stand behind all others."""

    def __init__(self, tests: _Tests) -> None:
        self.tests, self.count = tests, len(tests.left)
        self.rows: dict[int, tuple[int, float, bool, int, int, bool, bool]] = {}

    def write(self) -> None:
        """Put the rows into the columns."""
        tests, at = self.tests, np.array(list(self.rows))
        more = self.count - len(tests.left)
        columns = [np.array(column) for column in zip(*self.rows.values(), strict=True)]
        for name, column in zip(("feature", "threshold", "missing", "left", "right"), columns, strict=False):
            old = getattr(tests, name)
            made = np.append(old, np.zeros(more, old.dtype))
            made[at] = column
            setattr(tests, name, made)
        tests.is_leaf = np.append(tests.is_leaf, np.zeros(more, bool))
        tests.follows = np.concatenate([tests.follows, np.zeros((more, 2), bool)])
        tests.follows[at] = np.stack(columns[-2:], 1)

    def _more(self, count: int) -> range:
        self.count += count
        return range(self.count - count, self.count)

    def _test(self, at: int, feature: int, threshold: float, missing: bool, left: int, right: int) -> None:
        self.rows[at] = feature, threshold, missing, left, right, True, True

    def jump(self, at: int, target: int, follows: bool = True) -> None:
        """Lead on whatever x is; of several that lead to one node, the last ``follows`` it."""
        self.rows[at] = 0, np.inf, True, target, NOWHERE, follows, False

    def never(self, at: int, feature: int, missing: bool, left: int, right: int) -> None:
        """To the left for NaN, if at all: x <= -inf, then anything but NaN back to the right."""
        if not missing:
            self.jump(at, right)
            return
        nan, early, late = self._more(3)
        self._test(at, feature, -np.inf, True, nan, early)
        self._test(nan, feature, np.inf, False, late, left)
        self.jump(early, right, follows=False)
        self.jump(late, right)

    def equal(self, at: int, feature: int, value: Array, missing: bool, equal: int, other: int) -> None:
        """X <= value, then x <= what is below it; the way to ``other`` is taken from two places."""
        if value == -np.inf:
            self._test(at, feature, -np.inf, missing, equal, other)
            return
        least, early, late = self._more(3)
        self._test(at, feature, float(value), missing, least, early)
        self._test(least, feature, float(_below(value)), False, late, equal)
        self.jump(early, other, follows=False)
        self.jump(late, other)

    def member(self, at: int, feature: int, members: Array, missing: bool, true: int, false: int) -> None:
        """One equality after another; each leads to ``true``, or to the next one and from the last to ``false``."""
        if not len(members):
            self.jump(at, false)
        for left, value in zip(range(len(members))[::-1], members, strict=True):
            if np.isnan(_below(value)):
                raise InvalidModelError(f"TreeEnsemble: membership_values: got {value}, wanted finite numbers")
            found, rest = self._more(2)
            self.jump(found, true, follows=not left)
            self.equal(at, feature, value, missing, found, rest if left else false)
            at = rest
