"""Loops that read and write the rows of a tensor, one in each iteration: what TensorFlow writes for a TensorArray.

row_by_gather(Loop)      -> in the body, Slice(x, [k], [k + n]) is Gather(x, [k, …]), of which the shape is known
row_as_scatter(Loop)     -> in the body, Concat(Slice(x, [0], [k]), row, Slice(x, [k + 1], [end])) is a scatter
list_as_result(Loop)     -> a carried sequence to which each iteration only adds a tensor becomes a list of results
rows_as_results(Loop)    -> a carried tensor of which each iteration only writes a row becomes a scanned result

A number k out of range gives another shape: Concat would make a longer tensor of it.  So these rules want it shown that
k is in range in every iteration; `Course` does so by the number of trips.  The sizes of a carried tensor are those that
it has before the loop where no iteration changes them: what writes a row gives the sizes that it gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import I64, Shape
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.gather import Gather, ScatterElements, ScatterND
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Squeeze, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.pointwise import Add
from bolt_numba.ops.shapes import known_ints
from bolt_numba.passes.loops.bodies import Instead, LoopParts, Rebuilt, place_of
from bolt_numba.passes.loops.course import Course, Progress
from bolt_numba.passes.rewrite import Match, Result

MOST_ROWS = 64
"""Rows of a slice up to which their numbers become a constant."""
_LAST = int(np.iinfo(I64).max)


def _shape_in(course: Course, x: Value) -> Shape | None:
    """Sizes of an operand of the body: of a carried value those that it has before the loop, if it keeps them."""
    inner = course.body.inputs[2 : 2 + course.op.carried]
    if all(x is not value for value in inner):
        return x.type.shape
    if course.kept is None:  # by induction: all that are left give what they get
        course.kept = {id(value): course.initial(i).type.shape for i, value in enumerate(inner)}
        while gone := [v for i, v in enumerate(inner) if id(v) in course.kept and not _keeps(course, i)]:
            for value in gone:
                del course.kept[id(value)]
    return course.kept.get(id(x))


def _keeps(course: Course, number: int) -> bool:
    """Whether an iteration gives a carried value the sizes that it has before the loop, where it gets them."""
    x, made, shape = course.body.inputs[2 + number], course.result(number), course.initial(number).type.shape
    if shape is None or made is x or (made.type.is_static and made.type.shape == shape):
        return shape is not None
    write = None if made.node is None else row_write(course, made.node)
    return write is not None and write.shape == shape


def taken(course: Course, node: Node | None, shape: Shape) -> dict[int, tuple[Progress, Progress]] | None:
    """First and last + 1 of what a Slice of step 1 takes along each axis that it does not take whole."""
    if node is None or not isinstance(node.op, Slice) or any(d == 0 for d in shape):
        return None
    _, starts, ends, axes, steps = (*node.inputs, None, None)[:5]
    first, last = course.known(starts), course.known(ends)
    if first is None or last is None or len(first) != len(last):
        return None
    where = list(range(len(first))) if axes is None else known_ints(axes.type)
    by = [1] * len(first) if steps is None else known_ints(steps.type)
    if where is None or by is None or any(step != 1 for step in by):
        return None
    found: dict[int, tuple[Progress, Progress]] = {}
    for axis, start, end in zip(where, first, last, strict=True):
        axis, size = axis % len(shape), shape[axis]
        if not isinstance(start, Progress) or not isinstance(end, Progress):
            return None
        if end == Progress(0, _LAST) or (isinstance(size, int) and course.is_within(end, size, _LAST)):
            end = Progress(0, size)
        if start != Progress(0, 0) or end != Progress(0, size):
            found[axis] = start, end
    return found


@record(frozen=True)
class RowWrite:
    """Row ``place`` of ``x`` along ``axis`` becomes ``row``, whose size is 1 there; place is in range."""

    x: Value
    row: Value
    axis: int
    place: Progress
    shape: Shape


def row_write(course: Course, node: Node) -> RowWrite | None:
    """What a Concat writes, where it is a tensor with one row replaced in every iteration."""
    op = node.op
    if isinstance(op, ScatterND) and op.reduction == "none":
        return _scattered(course, node)
    if not isinstance(op, Concat) or len(node.inputs) != 3:
        return None
    before, row, after = node.inputs
    if before is None or row is None or after is None or before.node is None or after.node is None:
        return None
    x = before.node.inputs[0]
    if x is None or after.node.inputs[0] is not x or (shape := _shape_in(course, x)) is None or not shape:
        return None
    axis, wanted = op.axis % len(shape), list(shape)
    wanted[axis] = 1
    if row.type.shape != tuple(wanted) or (axis and not row.type.is_static):
        return None
    place = _place(course, before.node, after.node, axis, shape)
    fixed = place is not None and isinstance(place.offset, int)
    return RowWrite(x, row, axis, place, shape) if place is not None and fixed else None


def _scattered(course: Course, node: Node) -> RowWrite | None:
    x, places, row = node.inputs
    shape, place = None if x is None else _shape_in(course, x), course.one(places)
    if x is None or places is None or row is None or not shape or place is None:
        return None
    if places.type.shape != (1, 1) or row.type.shape != (1, *shape[1:]) or not course.is_within(place, 0, shape[0] - 1):
        return None
    return RowWrite(x, row, 0, place, shape) if isinstance(place.offset, int) else None


def _place(course: Course, before: Node, after: Node, axis: int, shape: Shape) -> Progress | None:
    """The number of the row between two slices of a tensor, where it is in range in every iteration."""
    size = shape[axis]
    head, tail = taken(course, before, shape), taken(course, after, shape)
    if head is None or tail is None or len(head) > 1 or len(tail) > 1:
        return None
    start, place = head.get(axis, (Progress(0, 0), Progress(0, size)))
    behind, end = tail.get(axis, (Progress(0, 0), Progress(0, size)))
    if (head.keys() | tail.keys()) != {axis} or start != Progress(0, 0) or end != Progress(0, size):
        return None
    if behind != place.plus(Progress(0, 1)) or not course.is_within(place, 0, size - 1):
        return None
    return place


def rows_as_results(m: Match, b: Builder) -> Result:
    """The result is what was before the first row that is written, the rows, and what is behind the last one."""
    course = Course(m.root)
    for i in range(course.op.carried if course.is_exact else 0):
        made = course.result(i).node
        found = None if made is None else row_write(course, made)
        if made is None or found is None or found.x is not course.body.inputs[2 + i] or found.place.slope != 1:
            continue
        if set(found.x.uses) != set(_readers(found.x, made)) or course.body.is_output(found.x):
            continue
        if made.output.uses or course.body.outputs.count(made.output) > 1:
            continue
        first, trips, size = found.place.offset, course.trips, found.shape[found.axis]
        if isinstance(first, int) and (isinstance(trips, int) or (first, trips) == (0, size)):
            return _collected(course, i, found, b)
    return None


def _readers(x: Value, write: Node) -> list[Node]:
    """The nodes of a write that read the tensor: a scatter, or two slices that nothing else reads."""
    if isinstance(write.op, ScatterND):
        return [write]
    parts = [v.node for v in (write.inputs[0], write.inputs[2]) if v is not None and v.node is not None]
    return [part for part in parts if set(part.output.uses) == {write}]


def _collected(course: Course, number: int, found: RowWrite, b: Builder) -> Result:
    """The loop with ``found`` as a scanned result in the place of carried value ``number``."""
    parts, write = LoopParts(course, drop=[number]), course.result(number).node
    assert write is not None
    dead = [write, *_readers(found.x, write)]
    parts.body.build(n for n in course.body.nodes if n not in dead)
    flat = [d for i, d in enumerate(found.row.type.shape or ()) if i != found.axis]
    row = parts.body.b(Squeeze(), parts.body.of(found.row), np.array([found.axis], I64))
    results, scanned = parts.finished(b, scanned=[row])
    stacked, axis = scanned[0], found.axis
    if axis:
        stacked = b(Transpose((*range(1, axis + 1), 0, *range(axis + 1, len(flat) + 1))), stacked)
    results[number] = _between(b, course, course.initial(number), stacked, found)
    return tuple(results)


def _between(b: Builder, course: Course, x: Value, rows: Value, found: RowWrite) -> Value:
    """The rows, with what stays of x before and behind them."""
    first, trips, size = found.place.offset, course.trips, found.shape[found.axis]
    axes, parts = np.array([found.axis], I64), [rows]
    assert isinstance(first, int)
    assert trips is not None
    if first:
        parts.insert(0, b(Slice(), x, np.array([0], I64), np.array([first], I64), axes))
    if first + trips != size:
        parts.append(b(Slice(), x, np.array([first + trips], I64), np.array([_LAST], I64), axes))
    return b(Concat(found.axis), *parts) if len(parts) > 1 else rows


def list_as_result(m: Match, b: Builder) -> Result:
    """The body then has tensors only, so that its plans need not end where a sequence gets longer."""
    course = Course(m.root)
    for i in range(course.op.carried):
        first, inner, made = course.initial(i).node, course.body.inputs[2 + i], course.result(i).node
        if first is None or made is None or (first.op.name, made.op.name) != ("SequenceEmpty", "SequenceInsert"):
            continue
        others = course.body.is_output(inner) or made.output.uses or course.body.outputs.count(made.output) > 1
        if list(inner.uses) == [made] and made.inputs[0] is inner and len(made.inputs) == 2 and not others:
            parts, element = LoopParts(course, drop=[i]), made.inputs[1]
            assert element is not None
            parts.body.build(n for n in course.body.nodes if n is not made)
            results, more = parts.finished(b, listed=[parts.body.of(element)])
            results[i] = more[0]
            return tuple(results)
    return None


def row_by_gather(m: Match, b: Builder) -> Result:
    course = Course(m.root)
    found = {id(node): _rows_read(course, node) for node in course.body.nodes if isinstance(node.op, Slice)}

    def instead(body: Rebuilt, node: Node) -> Sequence[Value] | None:
        read = found.get(id(node))
        if read is None:
            return None
        axis, start, count = read
        places = place_of(body, start, (1,))
        if count > 1:
            places = body.b(Add(), places, np.arange(count, dtype=I64))
        return [body.b(Gather(axis), body.operand(node.inputs[0]), places, name=node.name)]

    return _with_nodes(course, b, instead) if any(found.values()) else None


def _rows_read(course: Course, node: Node) -> tuple[int, Progress, int] | None:
    """Axis, first row and number of rows of a Slice that takes other rows in each iteration, all in range."""
    x = node.inputs[0]
    shape = None if x is None else _shape_in(course, x)
    bounds = None if shape is None else taken(course, node, shape)
    if shape is None or bounds is None or len(bounds) != 1:
        return None
    ((axis, (start, end)),) = bounds.items()
    count = end.plus(start, -1)
    if not start.slope or count.slope or not isinstance(count.offset, int) or not isinstance(start.offset, int):
        return None
    if not 0 < count.offset <= MOST_ROWS or not course.is_within(start, 0, shape[axis] - count.offset):
        return None
    return axis, start, count.offset


def row_as_scatter(m: Match, b: Builder) -> Result:
    course = Course(m.root)
    found = {id(node): row_write(course, node) for node in course.body.nodes if isinstance(node.op, Concat)}

    def instead(body: Rebuilt, node: Node) -> Sequence[Value] | None:
        write = found.get(id(node))
        if write is None:
            return None
        x, row = body.of(write.x), body.of(write.row)
        if write.shape[write.axis] == 1:  # all of it
            return [row]
        place = body.b(Reshape(), place_of(body, write.place, ()), np.array([1] * max(2, len(write.shape)), I64))
        if write.axis == 0:
            place = body.b(Reshape(), place, np.array([1, 1], I64))
            return [body.b(ScatterND(), x, place, row, name=node.name)]
        place = body.b(Expand(), place, np.array(row.type.dims, I64))
        return [body.b(ScatterElements(write.axis), x, place, row, name=node.name)]

    return _with_nodes(course, b, instead) if any(found.values()) else None


def _with_nodes(course: Course, b: Builder, instead: Instead) -> Result:
    """The loop with other nodes in its body."""
    parts = LoopParts(course)
    parts.body.build(course.body.nodes, instead)
    results, _ = parts.finished(b)
    return tuple(results)
