"""Loops whose course is known: their number of trips, their counters, what they only hand on.

hand_on_as_capture(Loop) -> a carried value that each iteration hands on as it is becomes a capture
trips_of_conditions(Loop) -> a counter in the loop's condition becomes the number of trips; the condition goes
counters_by_trip(Loop)    -> a carried counter becomes slope * trip + offset in the body, its end a constant
carried_twice(Loop)       -> a carried value that no iteration reads, and that is another one after each, is that one
fixed_sizes(Loop)         -> carried values whose sizes no iteration changes have these sizes in the body
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import I64, TensorType
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.control import Loop
from bolt_numba.ops.pointwise import Add, And, Cast, Mul
from bolt_numba.passes.loops.course import Course, Progress, bound, conjuncts
from bolt_numba.passes.rewrite import Match, Result

Instead: TypeAlias = "Callable[[Rebuilt, Node], Sequence[Value | None] | None]"
"""Builds what takes the place of a node of a body; None: the node itself."""


class Rebuilt:
    """A body built anew: types follow from those of its inputs, and some values are others.

    twin: what stands for a value of the old body, by its id.
    """

    def __init__(self, old: Graph) -> None:
        self.old, self.made = old, Graph(old.name)
        self.made.metadata = dict(old.metadata)
        self.b, self.twin = Builder(self.made), dict[int, "Value | None"]()

    def add_input(self, old: Value, t: TensorType | None = None) -> Value:
        value = self.made.add_input(old.name, old.type if t is None else t)
        self.twin[id(old)] = value
        return value

    def operand(self, value: Value | None) -> Value | None:
        """What stands for an operand of the old body."""
        if value is None:
            return None
        if id(value) not in self.twin:
            self.twin[id(value)] = self.constant(value)
        return self.twin[id(value)]

    def constant(self, value: Value) -> Value:
        """A constant of another graph as one of this body."""
        return Value(self.made.unique_name(value.name), value.type, const=value.const)

    def of(self, value: Value) -> Value:
        """What stands for a value that is there."""
        found = self.operand(value)
        assert found is not None
        return found

    def build(self, nodes: Iterable[Node], instead: Instead | None = None) -> None:
        """Add the nodes, or what ``instead`` puts in their place."""
        for node in nodes:
            if id(node.outputs[0]) in self.twin:
                continue
            made = None if instead is None else instead(self, node)
            if made is None:
                made = self.b.node(node.op, *map(self.operand, node.inputs), name=node.name).outputs
            for old, new in zip(node.outputs, made, strict=False):
                self.twin[id(old)] = new

    def ends(self, outputs: Iterable[Value]) -> Graph:
        """The body with these results."""
        for value in outputs:
            self.made.add_output(value, self.made.unique_name("result"))
        self.made.drop_dead()
        return self.made


class LoopParts:
    """A loop that is being put together: its carried values, captures and results, each by its number before.

    carried: their numbers, in order.  captures: operands and what each is in the body.
    """

    def __init__(self, course: Course, types: Mapping[int, TensorType] | None = None, drop: Iterable[int] = ()) -> None:
        self.course, op = course, course.op
        self.body, dropped = Rebuilt(op.body), set(drop)
        for value in op.body.inputs[:2]:
            self.body.add_input(value)
        self.carried = [i for i in range(op.carried) if i not in dropped]
        for i in self.carried:
            self.body.add_input(op.body.inputs[2 + i], (types or {}).get(i))
        self.captures = list(course.node.inputs[2 + op.carried :])
        for inner in op.body.inputs[2 + op.carried :]:
            self.body.add_input(inner)

    def capture(self, inner: Value, outer: Value) -> None:
        """Let the body read a value from outside in the place of one of its own; a constant moves in."""
        if outer.const is not None:
            self.body.twin[id(inner)] = self.body.constant(outer)
            return
        self.captures.append(outer)
        self.body.add_input(inner, outer.type.with_value(None))

    def finished(
        self,
        b: Builder,
        trips: Any = None,
        condition: Value | None = None,
        scanned: Sequence[Value] = (),
        listed: Sequence[Value] = (),
    ) -> tuple[list[Value | None], Sequence[Value]]:
        """The loop's results that stand for those of the old one, None for carried values that went; the further ones.

        scanned, listed: further results of the new body, to be stacked and as sequences.
        """
        course, op = self.course, self.course.op
        node, body = course.node, op.body
        again = self.body.b.const(np.array(True)) if course.is_exact else condition
        ends = [self.body.of(body.outputs[0]) if again is None else again]
        ends += [self.body.of(course.result(i)) for i in self.carried]
        rest = [self.body.of(v) for v in body.outputs[1 + op.carried :]]
        stacked = len(rest) - op.listed
        ends += [*rest[:stacked], *scanned, *rest[stacked:], *listed]
        count = node.inputs[0] if trips is None else np.array(trips, I64)
        initial = [course.initial(i) for i in self.carried]
        loop = Loop(self.body.ends(ends), len(initial), op.listed + len(listed))
        made = b.node(loop, count, course.condition, *initial, *self.captures, name=node.name).outputs
        by_number: list[Value | None] = [None] * op.carried
        for i, value in zip(self.carried, made, strict=False):
            by_number[i] = value
        first, last = len(initial) + stacked, len(made) - len(listed)
        behind = first + len(scanned)
        return [*by_number, *made[len(initial) : first], *made[behind:last]], [*made[first:behind], *made[last:]]


def hand_on_as_capture(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    same = [i for i in range(op.carried) if op.body.outputs[1 + i] is op.body.inputs[2 + i]]
    if not same:
        return None
    parts = LoopParts(Course(m.root), drop=same)
    given = {i: parts.course.initial(i) for i in same}
    for i, outer in given.items():
        parts.capture(op.body.inputs[2 + i], outer)
    parts.body.build(op.body.nodes)
    if len(same) == len(op.body.outputs) - 1:  # nothing is left to do
        again = op.body.outputs[0].type
        return tuple(given.values()) if again.is_static and again.size == 1 else m.refuse("a condition of any shape")
    results, _ = parts.finished(b)
    return tuple(given.get(i, v) for i, v in enumerate(results))


def trips_of_conditions(m: Match, b: Builder) -> Result:
    """A comparison that ends the loop after so many trips is a number of trips.  The others stay its condition."""
    first = Course(m.root, 1)  # of one trip, as nothing is known of more
    conditions = conjuncts(first.body.outputs[0])
    found = [bound(first, c) for c in conditions]
    limits = [n for n in found if n is not None]
    given, is_any = Course(m.root).trips, m.root.inputs[0] is None
    if not limits or not (is_any or isinstance(given, int)):  # a number that the run is given may be less
        return None
    least = min(limits)
    course = Course(m.root, min(least, given) if isinstance(given, int) else least)
    if any(n is not None and bound(course, c) != n for n, c in zip(found, conditions, strict=True)):
        return m.refuse("a counter may not fit its dtype")
    parts = LoopParts(course)
    parts.body.build(course.body.nodes)
    rest = [parts.body.of(c) for n, c in zip(found, conditions, strict=True) if n is None]
    condition = rest[0] if rest else parts.body.b.const(np.array(True))
    for c in rest[1:]:
        condition = parts.body.b(And(), condition, c)
    results, _ = parts.finished(b, course.trips, condition)
    return tuple(results)


def counters_by_trip(m: Match, b: Builder) -> Result:
    course = Course(m.root)
    lines = {i: course.counters[id(course.body.inputs[2 + i])] for i in range(course.op.carried)
             if id(course.body.inputs[2 + i]) in course.counters}
    gone: dict[int, Value | None] = {}
    for i, line in lines.items():
        inner, last = course.body.inputs[2 + i], m.root.outputs[i]
        if course.known(inner) != [line]:
            continue
        if not last.uses and not m.graph.is_output(last):
            gone[i] = None
        elif course.is_exact and isinstance(course.trips, int):
            end = line.at(course.trips)
            limits = np.iinfo(inner.type.dtype)
            if not limits.min <= end <= limits.max:  # type: ignore[operator]
                continue
            gone[i] = b.const(np.full(last.type.dims, end, inner.type.dtype))
    if not gone or len(gone) == len(course.body.outputs) - 1:
        return None
    parts = LoopParts(course, drop=gone)
    wide: dict[int, Value] = {}
    for i in gone:
        inner = course.body.inputs[2 + i]
        wide[id(inner)] = number = place_of(parts.body, lines[i], inner.type.shape)
        is_wide = inner.type.dtype == I64
        parts.body.twin[id(inner)] = number if is_wide else parts.body.b(Cast(inner.type.dtype), number)

    def instead(body: Rebuilt, node: Node) -> Sequence[Value] | None:
        """What widens a counter reads it as wide as it was."""
        found = wide.get(id(node.inputs[0])) if node.op == Cast(I64) else None
        return None if found is None else [found]

    parts.body.build(course.body.nodes, instead)
    results, _ = parts.finished(b)
    return tuple(gone.get(i, v) for i, v in enumerate(results))


def place_of(body: Rebuilt, line: Progress, shape: Any) -> Value:
    """The number that a line stands for, i64 of rank 0 or of shape [1], in a body that is being built."""
    made = body.of(body.old.inputs[0])
    if line.slope != 1:
        made = body.b(Mul(), made, np.array(line.slope, I64))
    if line.offset != 0:
        made = body.b(Add(), made, np.array(line.offset, I64))
    return made if shape == () else body.b(Reshape(), made, np.array([1], I64))


def carried_twice(m: Match, b: Builder) -> Result:
    course = Course(m.root)
    inner, count = course.body.inputs[2 : 2 + course.op.carried], course.op.carried
    if not course.is_exact or not isinstance(course.trips, int) or not course.trips:
        return None
    same = [shown(course.result(i)) for i in range(count)]
    for i, value in enumerate(inner):
        if value.uses or course.body.is_output(value) or not course.result(i).type.is_static:
            continue
        j = next((j for j in range(count) if j != i and course.result(j) is same[i]), None)
        if j is not None:
            parts = LoopParts(course, drop=[i])
            parts.body.build(course.body.nodes)
            results, _ = parts.finished(b)
            results[i] = b(Reshape(), results[j], np.array(course.result(i).type.dims, I64))
            return tuple(results)
    return None


def shown(value: Value) -> Value | None:
    """What a value shows in another shape, or itself."""
    return value.node.inputs[0] if value.node is not None and value.node.op.name in ("Reshape", "Unsqueeze") else value


def fixed_sizes(m: Match, b: Builder) -> Result:
    """By induction: the first iteration gets these sizes, and each that gets them gives them to the next."""
    course = Course(m.root)
    types: dict[int, TensorType] = {}
    for i in range(course.op.carried):
        inner, given = course.body.inputs[2 + i].type, course.initial(i).type
        if given.shape is None or given.is_static is False or inner.is_static or inner.dtype != given.dtype:
            continue
        if inner.shape is None or len(inner.shape) == len(given.shape):
            types[i] = given.with_value(None)
    while types:
        parts = LoopParts(course, types)
        try:
            parts.body.build(course.body.nodes)
        except BoltError as error:
            return m.refuse(str(error))
        changed = [i for i, t in types.items() if parts.body.of(course.result(i)).type.shape != t.shape]
        if not changed:
            results, _ = parts.finished(b)
            return tuple(results)
        for i in changed:
            del types[i]
    return None
