"""Which row of an array each index of another one means: what gathers and scatters share.

An index that is out of range is reported, and nothing is read or written for it.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.kernels.declare import I64, PTR, Field, Inline, inline, inline_source
from bolt_numba.kernels.extents import Numbers, Reach, box, ends
from bolt_numba.kernels.geometry.elements import FAULT, DeviceParts, Elements, parameters
from bolt_numba.kernels.registry import Argument, Fault, In, Types
from bolt_numba.ops.arrays.gather import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from bolt_numba.ops.registry import normalise_axis


@record(frozen=True, eq=False)
class IndexForm:
    """One form of indices.

    key: names it.  over, strides: as in `Elements`.  fields: numbers that it reads.  find: helper that gives a number,
    negative where an index is out of range, and the row.  reach: bytes of the indices, rows of dense and of data.
    around: a loop around it, and what that sets (``inside``).
    """

    key: str
    over: Mapping[str, str]
    strides: str
    fields: Mapping[str, Field]
    find: Callable[[DeviceParts], Inline]
    reach: Callable[[Any], tuple[int, int, int]]
    around: str = ""
    inside: tuple[str, ...] = ()


NAMES = ("data", "dense", "claims", "run", "t", "c", "d", "e", "n", "inner", "each")
"""What the texts of `of_places` may name besides the words of their scope."""


def of_places(name: str, form: IndexForm, text: str, **scope: Any) -> Elements:
    """A kernel that does ``text`` with every ``row`` that an index means.

    data: what is indexed, rows of ``run`` bytes; dense: rows in the order of the indices; claims: i32 for each
    row.  scope: functions ``(on, *settings)`` that give what the text names.
    """
    named = [n for n in NAMES if re.search(rf"\b{n}\b", form.around + text)]

    def make(on: DeviceParts, *settings: Any) -> Inline:
        find = form.find(on)
        found = {k: give(on, *settings) for k, give in scope.items()} | {"find": find, "move": on.move}
        wanted = [n for n in dict.fromkeys((*named, *parameters(find))) if n not in form.inside]
        indent = "    " * (1 + bool(form.around))
        lines = [f"at, row = find({', '.join(parameters(find))})", "if at >= 0:"]
        body = "".join(f"{indent}{line}\n" for line in (*lines, *(f"    {line}" for line in text.splitlines())))
        body = f"{form.around}{body}    return {'0' if form.around else 'at'}\n"
        return inline_source(f"def element({', '.join(wanted)}):\n{body}", "element", **found)

    def reach(a: Numbers, *settings: Any) -> dict[str, Reach]:
        index, count, rows = form.reach(a)
        most = {"index": index, "data": rows * a.run, "dense": count * a.run, "claims": 4 * rows}
        return {pointer: most[pointer] for pointer in pointers}

    pointers = ["index", *(n for n in named if n in NAMES[:3])]
    numbers = [n for n in named if n in ("n", "inner")]
    fields = dict.fromkeys(pointers, PTR) | {"fault": FAULT, **form.fields}
    fields |= dict.fromkeys(("run", *numbers), I64)
    return Elements(f"{name}_{form.key}", form.over, form.strides, fields, reach, make)


def _tested(on: DeviceParts, step: int) -> Inline:
    """Helper ``(index, position, size, fault)``: index of ``step`` bytes from the begin on; -1 out of range."""
    load, report = on.load(f"i{8 * step}"), on.report

    @inline
    def tested(index, position, size, fault):
        given = load(index + step * position) + 0  # an i64, as a sum
        at = given + size if given < 0 else given
        if (at | (size - 1 - at)) < 0:  # one test for both
            report(fault, position, given, -size, size - 1)
            return -1
        return at

    made: Inline = tested
    return made


@cache
def along_rows(step: int) -> IndexForm:
    """Of Gather: row index[i] of each of ``outer`` slices; indices of ``step`` bytes."""

    def find(on: DeviceParts) -> Inline:
        tested = _tested(on, step)

        @inline
        def row_of(o, i, index, fault, size):
            at = tested(index, i, size, fault)
            return at, o * size + at

        made: Inline = row_of
        return made

    def reach(a: Numbers) -> tuple[int, int, int]:
        return step * a.count, a.outer * a.count, a.outer * a.size

    return IndexForm(f"rows{8 * step}", {"o": "outer", "i": "count"}, "", {"size": I64}, find, reach)


Found = tuple[IndexForm, dict[str, Argument]]


def rows_args(op: Gather, ins: Types) -> Found:
    """For Gather: the form, and its arguments."""
    x, index = ins[0], ins[1]
    axis = normalise_axis(op, op.axis, len(x.dims))
    args: dict[str, Argument] = {"outer": math.prod(x.dims[:axis]), "count": index.size, "size": x.dims[axis]}
    args |= {"run": x.dtype.itemsize * math.prod(x.dims[axis + 1 :]), "fault": Fault(1), "index": In(1)}
    return along_rows(index.dtype.itemsize), args


@cache
def along_axis(step: int, rank: int, last: bool) -> IndexForm:
    """Of GatherElements and ScatterElements: an index for each element, along one of ``rank`` axes.

    s: rows of the data from one index of an axis to the next, 0 along the indexed one, 1 along the last one; sa: of the
    indexed axis; size: its length.
    """

    def find(on: DeviceParts) -> Inline:
        tested = _tested(on, step)

        @inline
        def row_of(t, s, i, index, fault, size, sa):
            at = tested(index, t, size, fault)
            return at, s + at if last else s + i + at * sa

        made: Inline = row_of
        return made

    over = {f"i{k}": f"n{k}" for k in range(rank - 1)} | {"i": f"n{rank - 1}"}

    def reach(a: Numbers) -> tuple[int, int, int]:
        axes = [(getattr(a, n), getattr(a, f"s{k}", int(not last))) for k, n in enumerate(over.values())]
        count = math.prod(n for n, _ in axes)
        return step * count, count, ends(box(1, *axes, (a.size, a.sa)))[1] if count else 0

    return IndexForm(f"along{8 * step}x{rank}{'_last' * last}", over, "s", {"size": I64, "sa": I64}, find, reach)


def along_args(op: GatherElements | ScatterElements, ins: Types) -> Found:
    """For GatherElements and ScatterElements."""
    x, index = ins[0], ins[1]
    rank = len(x.dims)
    axis = normalise_axis(op, op.axis, rank)
    args: dict[str, Argument] = {f"n{k}": n for k, n in enumerate(index.dims)}
    strides = [math.prod(x.dims[k + 1 :]) for k in range(rank)]
    args |= {f"s{k}": 0 if k == axis else stride for k, stride in enumerate(strides[:-1])}
    args |= {"size": x.dims[axis], "sa": strides[axis], "run": x.dtype.itemsize, "fault": Fault(1), "index": In(1)}
    return along_axis(index.dtype.itemsize, rank, axis == rank - 1), args


def lines_along(form: IndexForm) -> IndexForm:
    """Of ScatterElements in order: all updates of a line along the axis, whose size is ``n`` and not 1 here.

    d: place of the first update of a line; inner: from one to the next.
    """
    around = "    for k in range(n):\n        t = d + i + k * inner\n"

    def reach(a: Numbers) -> tuple[int, int, int]:
        index, count, rows = form.reach(a)
        return index * a.n, count * a.n, rows

    return IndexForm(f"{form.key}_lines", form.over, "sd", form.fields, form.find, reach, around, ("t",))


@cache
def tuples(step: int, depth: int) -> IndexForm:
    """Of GatherND and ScatterND: tuples of ``depth`` indices, ``each`` of them for a batch.

    z: length of each indexed axis, r: its rows; batch: rows of a batch.
    """
    own = [f"{letter}{j}" for j in range(depth) for letter in "zr"]
    fields = dict.fromkeys((*own, "batch"), I64)

    def find(on: DeviceParts) -> Inline:
        text = f"def row_of(b, t, index, fault, {', '.join(fields)}):\n    row = b * batch\n"
        for j in range(depth):
            text += f"    at = tested(index, t * {depth} + {j}, z{j}, fault)\n    if at < 0:\n        return -1, 0\n"
            text += f"    row += at * r{j}\n"
        return inline_source(f"{text}    return 0, row\n", "row_of", tested=_tested(on, step))

    def reach(a: Numbers) -> tuple[int, int, int]:
        sizes = [(getattr(a, f"z{j}"), getattr(a, f"r{j}")) for j in range(depth)]
        count = a.batches * a.each
        rows = ends(box(1, (a.batches, a.batch), *sizes))[1] if count else 0
        return step * depth * count, count, rows

    return IndexForm(f"tuples{8 * step}x{depth}", {"b": "batches", "i": "each"}, "", fields, find, reach)


def columns_of(form: IndexForm) -> IndexForm:
    """Of ScatterND in order: all updates of one element of the rows, of ``elements``."""
    around = "    for t in range(each):\n        b = 0\n"
    fields = {**form.fields, "batches": I64, "each": I64}
    return IndexForm(f"{form.key}_columns", {"e": "elements"}, "", fields, form.find, form.reach, around, ("t", "b"))


def tuples_args(op: GatherND | ScatterND, ins: Types) -> Found:
    """For GatherND and ScatterND."""
    x, index = ins[0], ins[1]
    first, depth = getattr(op, "batch_dims", 0), index.dims[-1]
    batches, inner = math.prod(x.dims[:first]), x.dims[first + depth :]
    args: dict[str, Argument] = {"batches": batches, "each": math.prod(index.dims[first:-1])}
    for j in range(depth):
        args |= {f"z{j}": x.dims[first + j], f"r{j}": math.prod(x.dims[first + j + 1 : first + depth])}
    args |= {"batch": math.prod(x.dims[first : first + depth]), "run": x.dtype.itemsize * math.prod(inner)}
    return tuples(index.dtype.itemsize, depth), args | {"fault": Fault(1), "index": In(1)}
