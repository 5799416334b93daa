"""ScatterElements, ScatterND and TensorScatter: a copy, then updates by indices that only the run knows.

Of several updates of one place the last one stays.  A CPU goes through them in order.  On a GPU every update first
claims its place, in memory of the step, and the highest number is the one that writes.  Sums of f32, i32 and i64 are
atomic additions there, whose order differs from run to run; sessions of ``numerics="strict"`` and the other reductions
go through the updates in order, by a thread for each line of places that have nothing to do with those of another.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache
from typing import Any

from bolt_numba.base.types import BF16, F16, F32, F64, I32, TensorType, dtype_name
from bolt_numba.base.types import I64 as INT64
from bolt_numba.kernels.common.places import (
    Found,
    IndexForm,
    along_args,
    columns_of,
    lines_along,
    of_places,
    tuples_args,
)
from bolt_numba.kernels.declare import I64, PTR, PTR_OR_0, Inline, inline, inline_source
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT, DeviceParts, Elements, elements
from bolt_numba.kernels.geometry.scalars import TYPES
from bolt_numba.kernels.geometry.transfers import Transfer, has_fixed_size, whole
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Scratch, Step, Types, everywhere
from bolt_numba.ops.arrays.gather import ScatterElements, ScatterND
from bolt_numba.ops.layers.attention.cache import TensorScatter
from bolt_numba.ops.registry import normalise_axis

_COMBINED = {"add": "old + new", "mul": "old * new", "max": "most(old, new)", "min": "least(old, new)"}
_REDUCED = (F32, F16, BF16, F64, I32, INT64)
_ADDED = (F32, I32, INT64)
"""Numbers that the memory of a GPU adds up."""


def _number(on: DeviceParts, dtype: str, *more: str) -> Any:
    """What a register has for a dtype."""
    return TYPES.get(dtype, TYPES["f32"])


def _combined(on: DeviceParts, dtype: str, reduction: str) -> Inline:
    """Helper ``(old, new)``; NaN stays, whichever it is; 0 is more than -0."""
    most, least = on.extremes(dtype) if "f" in dtype else (max, min)
    scope = {"number": _number(on, dtype), "most": most, "least": least}
    return inline_source(
        f"def combined(old, new):\n    return number({_COMBINED[reduction]})\n", "combined", **scope
    )  # fmt: skip


_WORDS: dict[str, Any] = {
    "load": lambda on, dtype, *more: on.load(dtype), "store": lambda on, dtype, *more: on.store(dtype),
    "unit": lambda on, dtype, *more: 2 if "16" in dtype else 4 if "32" in dtype else 8, "combined": _combined,
}  # fmt: skip
_JOINED = "store(there, combined(load(there), load(from_)))"


@cache
def write_all(form: IndexForm) -> Elements:
    """Kernel that writes the rows of the updates."""
    return of_places("scatter", form, "move(data + row * run + c, dense + t * run + c, run)")


@cache
def reduce_all(form: IndexForm) -> Elements:
    """Kernel that joins rows of updates with what is there; settings: dtype and reduction."""
    if form.strides:
        return reduce_in_order(form)  # rows of one element
    text = "y, x = view(data + row * run, run // unit, number), view(dense + t * run, run // unit, number)\n"
    text += "for k in range(run // unit):\n    y[k] = combined(y[k], x[k])"
    return of_places("scatter", form, text, **_WORDS, view=lambda on, *more: on.word("view"), number=_number)


@cache
def reduce_in_order(form: IndexForm) -> Elements:
    """The same for one element of each update."""
    text = "there, from_ = data + unit * row, dense + unit * t\n"  # rows of one element, of a size known here
    if "e" in form.over:
        text = "there, from_ = data + row * run + unit * e, dense + t * run + unit * e\n"
    return of_places("scatter", form, text + _JOINED, **_WORDS)


@cache
def clear(form: IndexForm) -> Elements:
    return of_places("clear", form, "store(claims + 4 * row, -1)", store=lambda on: on.store("i32"))


@cache
def claim(form: IndexForm) -> Elements:
    """Kernel whose places are claimed by the highest number."""
    return of_places("claim", form, "most(claims + 4 * row, t)", most=lambda on: on.word("atomic_max_i32"))


@cache
def write_claimed(form: IndexForm) -> Elements:
    """Kernel that writes the rows of the updates that hold their places."""
    text = "if load(claims + 4 * row) == t:\n    move(data + row * run + c, dense + t * run + c, run)"
    return of_places("scatter", form, text, load=lambda on: on.load("i32"))


@cache
def add_all(form: IndexForm) -> Elements:
    """Kernel that adds every element of the updates to its place; setting: dtype."""
    text = "add(data + row * run + c, load(dense + t * run + c))"
    words = {"load": _WORDS["load"], "add": lambda on, dtype: on.word(f"atomic_add_{dtype}")}
    return of_places("scatter_atomically", form, text, **words)


def _claimed_steps(form: IndexForm, args: dict[str, Argument], x: TensorType, on: DeviceParts) -> list[Step]:
    run: Any = args["run"]
    claims = Scratch(4 * (x.nbytes // run))
    each = {n: v for n, v in args.items() if n not in ("data", "dense")} | {"claims": claims}
    made = [on.step(clear(form), (), each), on.step(claim(form), (), each)]
    return [*made, on.step(write_claimed(form), (), args | {"claims": claims})]


def _steps(
    op: ScatterElements | ScatterND, ins: Types, context: Context, on: DeviceParts, found: Found, lines: Found
) -> list[Step]:
    """A copy of x, then the updates; lines: how they are shared where order matters."""
    x, updates = ins[0], ins[2]
    copied = on.carried([Transfer(whole(x.nbytes), In(0), Out(0))])
    if not updates.size:
        return copied
    (form, args), dtype = found, dtype_name(x.dtype)
    args |= {"data": Out(0), "dense": In(2)}
    if op.reduction == "none":
        made = [on.step(write_all(form), (), args, False)] if on.in_order else _claimed_steps(form, args, x, on)
        return [*copied, *made]
    if on.in_order:
        return [*copied, on.step(reduce_all(form), (dtype, op.reduction), args, False)]
    if op.reduction == "add" and x.dtype in _ADDED and (x.dtype != F32 or context.numerics != "strict"):
        return [*copied, on.step(add_all(form), (dtype,), args, unit=x.dtype.itemsize)]
    return [*copied, on.step(reduce_in_order(lines[0]), (dtype, op.reduction), args | lines[1])]


def _accepts(op: ScatterElements | ScatterND, ins: Types) -> bool:
    if not has_fixed_size(op, ins) or not ins[0].dims:
        return False
    return op.reduction == "none" or ins[0].dtype in _REDUCED


def _reduces(op: ScatterElements | ScatterND, ins: Types) -> bool:
    return bool(op.reduction != "none")


@everywhere(ScatterElements, accepts=_accepts, computes=_reduces, inplace=(0,), few=True)
def scatter_elements(op: ScatterElements, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Lines go along the axis: updates of different lines never meet."""
    (form, args), dims = along_args(op, ins), ins[1].dims
    axis = normalise_axis(op, op.axis, len(dims))
    strides = [math.prod(dims[k + 1 :]) for k in range(len(dims))]
    lines: dict[str, Argument] = {"n": dims[axis], "inner": strides[axis], f"n{axis}": 1}
    lines |= {f"d{k}": stride for k, stride in enumerate(strides[:-1])}
    return _steps(op, ins, context, on, (form, args), (lines_along(form), lines))


@everywhere(ScatterND, accepts=_accepts, computes=_reduces, inplace=(0,), few=True)
def scatter_nd(op: ScatterND, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Where order matters, a thread takes one element of every row."""
    form, args = tuples_args(op, ins)
    elements: dict[str, Argument] = {"elements": args["run"] // ins[0].dtype.itemsize}  # type: ignore[operator]
    return _steps(op, ins, context, on, (form, args), (columns_of(form), elements))


# ------------------------------------------------------------------------------------------------ rows at given starts


def _scattered(a: Numbers, step: int, circular: bool) -> dict[str, Reach]:
    lines = a.batches * a.middle
    return {
        "new": lines * a.count * a.run, "y": lines * a.size * a.run, "starts": step * a.batches if a.middle else 0,
    }  # fmt: skip


@elements(
    over={"b": "batches", "m": "middle", "i": "count"}, extents=_scattered, new=PTR, y=PTR, starts=PTR_OR_0,
    fault=FAULT, size=I64, run=I64,
)  # fmt: skip
def scatter_rows(on: DeviceParts, step: int, circular: bool):
    """Kernel of y [batches, middle, size] rows, which get new [batches, middle, count] from starts[b] on.

    starts 0: none given.  A start that leaves no room for ``count`` rows is reported.
    """
    load, report, move = on.load(f"i{8 * step}"), on.report, on.move

    @inline
    def element(b, m, i, c, t, new, y, starts, fault, middle, count, size, run):
        start = load(starts + step * b) + 0 if starts != 0 else 0
        if not circular and (start < 0 or start > size - count):
            report(fault, b, start, 0, size - count)
            return -1
        place = (start + i) % size if circular else start + i
        move(y + ((b * middle + m) * size + place) * run + c, new + t * run + c, run)
        return 0

    return element


@everywhere(TensorScatter, accepts=has_fixed_size, inplace=(0,), few=True)
def tensor_scatter(op: TensorScatter, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """A copy of the cache where it does not take over its memory, then the new rows."""
    past, new = ins[0], ins[1]
    copied = on.carried([Transfer(whole(past.nbytes), In(0), Out(0))])
    if not new.size:
        return copied
    axis = normalise_axis(op, op.axis, len(past.dims))
    starts = ins[2] if len(ins) > 2 else None
    args: dict[str, Argument] = {"new": In(1), "y": Out(0), "starts": None if starts is None else In(2)}
    args |= {"fault": None if starts is None else Fault(2), "batches": past.dims[0]}
    args |= {"middle": math.prod(past.dims[1:axis]), "count": new.dims[axis], "size": past.dims[axis]}
    args["run"] = past.dtype.itemsize * math.prod(past.dims[axis + 1 :])
    step = 8 if starts is None else starts.dtype.itemsize
    return [*copied, on.step(scatter_rows, (step, op.mode == "circular"), args, on.pays(new.nbytes))]
