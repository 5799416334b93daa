"""Which row of an array each index of another one means: text that gathers and scatters share.

``u`` (u32) is the number of an index, or of a tuple of them.  The text sets ``row`` (i64): rows of ``run`` bytes from
the begin of the data, or -1 where an index is out of range, which it reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import I64, PTR
from bolt_numba.kernels.cuda.faults import FAULT_AT, report
from bolt_numba.kernels.cuda.language.division import divider
from bolt_numba.kernels.cuda.language.lang import load_i32, load_i64
from bolt_numba.kernels.cuda.movement.index import SCOPE, axes_of, axis_args, axis_fields, axis_text
from bolt_numba.kernels.declare import Field
from bolt_numba.kernels.extents import box, ends
from bolt_numba.kernels.registry import Argument, Fault, In, Types
from bolt_numba.ops.registry import normalise_axis


@record(frozen=True, eq=False)
class IndexForm:
    """One form of indices, for which a kernel is made.

    key: names it.  text: lines.  fields: those that the text reads, but for the address ``index``.
    reach: bytes of ``index`` and rows of the data, of a step's arguments.
    """

    key: str
    text: tuple[str, ...]
    fields: dict[str, Field]
    reach: Callable[[Any], tuple[int, int]]

    def lines(self, indent: int) -> str:
        return "".join(f"{'    ' * indent}{line}\n" for line in self.text)


SCOPE_OF_PLACES: dict[str, Any] = {**SCOPE, "report": report, "load_i32": load_i32, "load_i64": load_i64}
FIELDS = {"data": PTR, "dense": PTR, "index": PTR, "fault": FAULT_AT, "run": I64}
"""Of every kernel of places: data is what is indexed, dense what lies in the order of the indices."""


def _tested(position: str, size: str, step: int) -> list[str]:
    """Lines that set ``at`` to the index at a position, counted from the begin; -1 where it is out of range."""
    return [
        f"given = np.int64(load_i{8 * step}(index + {step} * ({position})))",
        f"at = given + {size} if given < 0 else given",
        f"if at < 0 or at >= {size}:",
        f"    report(fault, {position}, given, -{size}, {size} - 1)",
        "    at = np.int64(-1)",
    ]


@cache
def along_rows(step: int) -> IndexForm:
    """Of Gather: row index[i] of slice o, where u counts [outer, count]; indices of ``step`` bytes."""
    text = (
        "o = fast_divide(u, mc, hc)",
        "i = np.int64(np.uint32(u - o * np.uint32(count)))",
        *_tested("i", "size", step),
        "row = np.int64(o) * size + at if at >= 0 else at",
    )
    fields = dict.fromkeys(("outer", "count", "mc", "hc", "size"), I64)
    return IndexForm(f"rows{8 * step}", text, fields, lambda a: (step * a.count, a.outer * a.size))


def rows_args(op: Any, ins: Types) -> tuple[IndexForm, dict[str, Argument], int]:
    """For Gather: how places are found, its arguments, and the number of indices."""
    x, index = ins[0], ins[1]
    assert x is not None
    assert index is not None
    axis = normalise_axis(op, op.axis, len(x.dims))
    outer, count = math.prod(x.dims[:axis]), index.size
    args: dict[str, Argument] = {"outer": outer, "count": count, "size": x.dims[axis]}
    args["mc"], args["hc"] = divider(max(count, 1))
    args |= {"run": x.dtype.itemsize * math.prod(x.dims[axis + 1 :]), "fault": Fault(1), "index": In(1)}
    return along_rows(index.dtype.itemsize), args, outer * count


@cache
def along_axis(step: int, rank: int) -> IndexForm:
    """Of GatherElements and ScatterElements: u counts an array of ``rank`` axes, of which one is indexed.

    s: elements of the data from one index to the next, 0 along that axis; sa: its own; size: its length.
    """
    text = (
        "rest, row = u, np.int64(0)",
        *axis_text(rank, ["row += i * s{k}"], 0).splitlines(),
        *_tested("np.int64(u)", "size", step),
        "row = row + at * sa if at >= 0 else at",
    )

    def reach(a: Any) -> tuple[int, int]:
        count = math.prod(getattr(a, f"n{k}") for k in range(rank))
        rows = ends(box(1, *axes_of(a, rank, "s"), (a.size, a.sa)))[1] if count else 0
        return step * count, rows

    return IndexForm(f"along{8 * step}x{rank}", text, axis_fields(rank, "s") | {"size": I64, "sa": I64}, reach)


def along_args(op: Any, ins: Types) -> tuple[IndexForm, dict[str, Argument], int]:
    """For GatherElements and ScatterElements."""
    x, index = ins[0], ins[1]
    assert x is not None
    assert index is not None
    axis = normalise_axis(op, op.axis, len(x.dims))
    strides = [math.prod(x.dims[i + 1 :]) for i in range(len(x.dims))]
    args: dict[str, Argument] = dict(axis_args(index.dims, s=[0 if i == axis else s for i, s in enumerate(strides)]))
    args |= {"size": x.dims[axis], "sa": strides[axis], "run": x.dtype.itemsize, "fault": Fault(1), "index": In(1)}
    return along_axis(index.dtype.itemsize, len(x.dims)), args, index.size


@cache
def tuples(step: int, depth: int) -> IndexForm:
    """Of GatherND and ScatterND: u counts tuples of ``depth`` indices, ``each`` of them for a batch.

    z: length of each indexed axis, s: its rows; batch: rows of a batch.
    """
    text = ["row = np.int64(fast_divide(u, mb, hb)) * batch"]
    for j in range(depth):
        text += _tested(f"np.int64(u) * {depth} + {j}", f"z{j}", step)
        text.append(f"row = row + at * s{j} if at >= 0 and row >= 0 else np.int64(-1)")
    own = [f"{letter}{j}" for j in range(depth) for letter in "zs"]
    fields = dict.fromkeys((*own, "each", "mb", "hb", "batch", "tuples"), I64)

    def reach(a: Any) -> tuple[int, int]:
        sizes = [(getattr(a, f"z{j}"), getattr(a, f"s{j}")) for j in range(depth)]
        rows = ends(box(1, (-(-a.tuples // a.each), a.batch), *sizes))[1] if a.tuples else 0
        return step * depth * a.tuples, rows

    return IndexForm(f"tuples{8 * step}x{depth}", tuple(text), fields, reach)


def tuples_args(op: Any, ins: Types) -> tuple[IndexForm, dict[str, Argument], int]:
    """For GatherND and ScatterND."""
    x, index = ins[0], ins[1]
    assert x is not None
    assert index is not None
    first, depth, count = getattr(op, "batch_dims", 0), index.dims[-1], math.prod(index.dims[:-1])
    batches, inner = math.prod(x.dims[:first]), x.dims[first + depth :]
    args: dict[str, Argument] = {"tuples": count, "each": max(count // max(batches, 1), 1)}
    args["mb"], args["hb"] = divider(int(args["each"]))  # type: ignore[arg-type]
    for j in range(depth):
        args |= {f"z{j}": x.dims[first + j], f"s{j}": math.prod(x.dims[first + j + 1 : first + depth])}
    args |= {"batch": math.prod(x.dims[first : first + depth]), "run": x.dtype.itemsize * math.prod(inner)}
    return tuples(index.dtype.itemsize, depth), args | {"fault": Fault(1), "index": In(1)}, count
