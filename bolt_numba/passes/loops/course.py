"""What is known of the iterations of a `Loop`: how many there are, and which integers its body computes in each.

Most integers of a body are ``slope * trip + offset`` in iteration number ``trip``: counters, the places of rows that
are read and written, limits.  `Course` finds them, and answers comparisons that come out the same in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, Dim, Shape
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.control import Loop

MOST_PLACES = 64
"""Elements of a tensor of integers that is looked at: places and lengths along axes."""


@record(frozen=True)
class Progress:
    """An integer that is ``slope * trip + offset`` in iteration number ``trip``; offset may hold sizes."""

    slope: int
    offset: Dim

    def at(self, trip: Dim) -> Dim:
        return self.offset + trip * self.slope if self.slope else self.offset

    def plus(self, other: Progress, sign: int = 1) -> Progress:
        return Progress(self.slope + sign * other.slope, self.offset + other.offset * sign)

    def times(self, factor: int) -> Progress:
        return Progress(self.slope * factor, self.offset * factor)


Known: TypeAlias = "Progress | bool | None"
"""What is known of one element: an integer, a truth that is the same in every iteration, or nothing."""


class Course:
    """The iterations of a loop.

    trips: how many there are at most, None when the loop says nothing of it.  is_exact: there are as many.
    condition: what may keep the loop from beginning.  kept: sizes of carried values that keep them (`loops.rows`).
    """

    def __init__(self, node: Node, trips: Dim | None = None) -> None:
        op: Any = node.op
        assert isinstance(op, Loop)
        self.node, self.op, self.body = node, op, op.body
        self.trip, self.going_on = op.body.inputs[:2]
        self.trips = _trips(node.inputs[0]) if trips is None else trips
        again: Value = op.body.outputs[0]
        while again.node is not None and again.node.op.name == "Identity":
            (again,) = again.node.operands  # type: ignore[assignment]
        self.condition = None if node.inputs[1] is None or _is_true(node.inputs[1]) else node.inputs[1]
        endless = again is self.going_on or _is_true(again)
        self.is_exact = self.trips is not None and endless and self.condition is None
        self.counters = {id(op.body.inputs[2 + i]): line for i, line in counters(node).items()}
        self._found: dict[int, list[Known] | None] = {}
        self.kept: dict[int, Shape | None] | None = None

    def initial(self, index: int) -> Value:
        """What carried value ``index`` is before the first iteration."""
        value = self.node.inputs[2 + index]
        assert value is not None
        return value

    def result(self, index: int) -> Value:
        """What an iteration makes of carried value ``index``."""
        return self.body.outputs[1 + index]

    def one(self, value: Value | None) -> Progress | None:
        """An integer of one element."""
        found = self.known(value)
        return found[0] if found is not None and len(found) == 1 and isinstance(found[0], Progress) else None

    def known(self, value: Value | None) -> list[Known] | None:
        """What is known of each element of an operand, of rank 0 or 1 or of one element; None for others."""
        if value is None:
            return None
        if id(value) not in self._found:
            found = self._look(value)
            self._found[id(value)] = None if found is None else [self._fitting(value, x) for x in found]
        return self._found[id(value)]

    def _look(self, value: Value) -> list[Known] | None:
        t = value.type
        if t.shape is None or (len(t.shape) > 1 and {*t.shape} != {1}) or t.dtype.kind not in "iub":
            return None
        content = value.const if value.const is not None else t.value
        if content is not None:
            return _lines(content) if content.size <= MOST_PLACES else None
        if value is self.trip:
            return [Progress(1, 0)]
        if id(value) in self.counters:
            return [self.counters[id(value)]]
        size = t.shape[0] if t.shape else 1
        node = value.node
        rule = None if node is None else RULES.get(node.op.name)
        if node is None or rule is None or not isinstance(size, int) or size > MOST_PLACES:
            return None
        found = rule(self, node)
        return found if found is not None and len(found) == size else None

    def _fitting(self, value: Value, x: Known) -> Known:
        """Nothing where an integer might not fit its dtype in some iteration."""
        if not isinstance(x, Progress) or value.type.dtype == BOOL:
            return x
        low, high = self.least(x), self.most(x)
        if not isinstance(low, int) or not isinstance(high, int):
            return x if value.type.dtype.itemsize == 8 else None
        limits = np.iinfo(value.type.dtype)
        return x if limits.min <= low and high <= limits.max else None

    def most(self, x: Progress) -> Dim | None:
        """What a line is at most in an iteration; None where nobody knows how many there are."""
        if x.slope <= 0:
            return x.offset
        return None if self.trips is None else x.at(self.trips - 1)

    def least(self, x: Progress) -> Dim | None:
        below = self.most(x.times(-1))
        return None if below is None else below * -1

    def is_within(self, x: Progress, first: Dim, last: Dim) -> bool:
        """Whether a line stays between two sizes, both included."""
        above, below = self.least(x.plus(Progress(0, first), -1)), self.most(x.plus(Progress(0, last), -1))
        return isinstance(above, int) and isinstance(below, int) and above >= 0 and below <= 0

    def compared(self, x: Known, y: Known, name: str) -> bool | None:
        """How a comparison comes out in every iteration."""
        if not isinstance(x, Progress) or not isinstance(y, Progress):
            return None
        apart = x.plus(y, -1)
        ends = self.least(apart), self.most(apart)
        low, high = (e if isinstance(e, int) else None for e in ends)
        above, below = low is not None and low > 0, high is not None and high < 0
        not_below, not_above = low is not None and low >= 0, high is not None and high <= 0
        always, never = {
            "Less": (below, not_below),
            "LessOrEqual": (not_above, above),
            "Greater": (above, not_above),
            "GreaterOrEqual": (not_below, below),
            "Equal": (not_below and not_above, above or below),
        }[name]
        return True if always else False if never else None


def counters(node: Node) -> dict[int, Progress]:
    """Carried integers to which each iteration adds the same, by their numbers."""
    op: Any = node.op
    found: dict[int, Progress] = {}
    for i in range(op.carried):
        inner, start, after = op.body.inputs[2 + i], node.inputs[2 + i], op.body.outputs[1 + i].node
        if start is None or inner.type.dtype.kind != "i" or after is None or after.op.name not in ("Add", "Sub"):
            continue
        first = _number(start)
        left, right = after.inputs
        steps = right if left is inner else left if right is inner and after.op.name == "Add" else None
        step = None if steps is None else _number(steps)
        same = inner.type.shape == start.type.shape == op.body.outputs[1 + i].type.shape
        if first is not None and step is not None and same and inner.type.shape in ((), (1,)):
            found[i] = Progress(step if after.op.name == "Add" else -step, first)
    return found


def _number(value: Value) -> int | None:
    """The integer that a constant of one element holds."""
    content = value.const if value.const is not None else value.type.known
    return int(content.reshape(-1)[0]) if content is not None and content.size == 1 else None


def _is_true(value: Value) -> bool:
    content = value.const if value.const is not None else value.type.known
    return content is not None and content.size == 1 and bool(content.reshape(-1)[0])


def _trips(count: Value | None) -> Dim | None:
    content = None if count is None else count.const if count.const is not None else count.type.value
    if content is None or content.size != 1:
        return None
    number = content.reshape(-1)[0]
    return max(0, int(number)) if isinstance(number, (int, np.integer)) else number


def _lines(content: Any) -> list[Known]:
    if content.dtype == BOOL:
        return [bool(x) for x in content.reshape(-1)]
    return [Progress(0, int(x) if isinstance(x, (int, np.integer)) else x) for x in content.reshape(-1)]


def _same(course: Course, node: Node) -> list[Known] | None:
    return course.known(node.inputs[0])


def _cast(course: Course, node: Node) -> list[Known] | None:
    """Of integers to integers; the result is looked at like any other."""
    x = node.inputs[0]
    kinds = "" if x is None else x.type.dtype.kind + node.outputs[0].type.dtype.kind
    return _same(course, node) if kinds in ("ii", "iu", "ui", "uu", "bb") else None


def _concat(course: Course, node: Node) -> list[Known] | None:
    parts = [course.known(v) for v in node.inputs]
    return None if None in parts else [x for part in parts for x in part or ()]


def _gather(course: Course, node: Node) -> list[Known] | None:
    x, places = course.known(node.inputs[0]), course.known(node.inputs[1])
    if x is None or places is None:
        return None
    found: list[Known] = []
    for place in places:
        fixed = isinstance(place, Progress) and not place.slope and isinstance(place.offset, int)
        if not fixed or not -len(x) <= place.offset < len(x):  # type: ignore[union-attr, operator]
            return None
        found.append(x[place.offset])  # type: ignore[union-attr, index]
    return found


def _each(make: Callable[..., Known]) -> Callable[[Course, Node], list[Known] | None]:
    """A rule for operators that compute each element by itself."""

    def look(course: Course, node: Node) -> list[Known] | None:
        operands = [course.known(v) for v in node.inputs]
        if None in operands:
            return None
        count = max(len(x or ()) for x in operands)
        if any(len(x or ()) not in (1, count) for x in operands):
            return None
        rows: Sequence[list[Known]] = [(x or []) * (count if len(x or ()) == 1 else 1) for x in operands]
        return [make(course, node.op.name, *row) for row in zip(*rows, strict=True)]

    return look


def _sum(course: Course, name: str, x: Known, y: Known) -> Known:
    if isinstance(x, Progress) and isinstance(y, Progress):
        return x.plus(y, -1 if name == "Sub" else 1)
    return None


def _product(course: Course, name: str, x: Known, y: Known) -> Known:
    for a, b in ((x, y), (y, x)):
        if isinstance(a, Progress) and isinstance(b, Progress) and not b.slope and isinstance(b.offset, int):
            return a.times(b.offset)
    return None


def _negated(course: Course, name: str, x: Known) -> Known:
    return x.times(-1) if isinstance(x, Progress) else None


def _less(course: Course, name: str, x: Known, y: Known) -> Known:
    return course.compared(x, y, name)


def _smaller(course: Course, name: str, x: Known, *others: Known) -> Known:
    """The operand that is the least, or the greatest, in every iteration."""
    for y in others:
        first = course.compared(x, y, "LessOrEqual" if name == "Min" else "GreaterOrEqual")
        if first is None:
            return None
        x = x if first else y
    return x


def _chosen(course: Course, name: str, which: Known, x: Known, y: Known) -> Known:
    return None if not isinstance(which, bool) else x if which else y


def _and(course: Course, name: str, x: Known, y: Known) -> Known:
    absorbing = name == "Or"
    if x is absorbing or y is absorbing:
        return absorbing
    return not absorbing if isinstance(x, bool) and isinstance(y, bool) else None


def _not(course: Course, name: str, x: Known) -> Known:
    return not x if isinstance(x, bool) else None


_COMPARED = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
RULES: dict[str, Callable[[Course, Node], list[Known] | None]] = {
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _same),
    **dict.fromkeys(_COMPARED, _each(_less)),
    **dict.fromkeys(("Add", "Sub"), _each(_sum)),
    **dict.fromkeys(("Min", "Max"), _each(_smaller)),
    **dict.fromkeys(("And", "Or"), _each(_and)),
    "Cast": _cast,
    "Concat": _concat,
    "Gather": _gather,
    "Mul": _each(_product),
    "Neg": _each(_negated),
    "Not": _each(_not),
    "Where": _each(_chosen),
}
"""How the elements of a result follow from those of the operands, by the operator's name."""


def conjuncts(value: Value) -> list[Value]:
    """The conditions that must all hold for this one."""
    node = value.node
    if node is None or node.op.name != "And":
        return [value]
    return [each for v in node.inputs if v is not None for each in conjuncts(v)]


def bound(course: Course, condition: Value) -> int | None:
    """After how many trips at the latest a comparison at the end of the body ends a loop; None when it may not."""
    node = condition.node
    if node is None or node.op.name not in _COMPARED[:4]:
        return None
    x, y = (course.one(v) for v in node.inputs)
    if x is None or y is None:
        return None
    apart = x.plus(y, -1) if node.op.name.startswith("Less") else y.plus(x, -1)  # goes on while below 0, or at most 0
    if not isinstance(apart.offset, int) or apart.slope < 0:
        return None
    room = -apart.offset + (1 if node.op.name.endswith("OrEqual") else 0)
    if apart.slope == 0:
        return 1 if room <= 0 else None
    return 1 + max(0, -(-room // apart.slope))
