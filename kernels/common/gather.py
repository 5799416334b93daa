"""Gathers by indices that only the run knows, rows of any element size; ReverseSequence and OneHot."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I32, STRING, TensorType
from bolt_numba.base.types import I64 as INT64
from bolt_numba.kernels.common.places import Found, IndexForm, along_args, of_places, rows_args, tuples_args
from bolt_numba.kernels.declare import I64, PTR, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT, DeviceParts, Elements, elements
from bolt_numba.kernels.geometry.strides import broadcast_move
from bolt_numba.kernels.geometry.transfers import MAX_TABLE, Transfer, gather_tables, has_fixed_size
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Step, Types, everywhere
from bolt_numba.ops.arrays.gather import Gather, GatherElements, GatherND, OneHot
from bolt_numba.ops.arrays.slicing import ReverseSequence
from bolt_numba.ops.registry import normalise_axis


@cache
def gather_places(form: IndexForm) -> Elements:
    """Kernel that copies the rows that the indices mean, in their order."""
    return of_places("gather", form, "move(dense + t * run + c, data + row * run + c, run)")


def _steps(found: Found, outs: Outs, on: DeviceParts) -> list[Step]:
    form, args = found
    run: Any = args["run"]
    args |= {"data": In(0), "dense": Out(0)}
    return [on.step(gather_places(form), (), args, on.pays(outs[0].nbytes, outs[0].nbytes // run))]


@everywhere(Gather, accepts=has_fixed_size, few=True)
def gather(op: Gather, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Constant indices: a table; others: rows along the axis."""
    if not outs[0].size:
        return []
    known = ins[1].known
    if known is not None and known.size <= MAX_TABLE:
        return on.table_gather_steps(*gather_tables(op, ins), ins[0].dtype.itemsize)
    return _steps(rows_args(op, ins), outs, on)


def _has_axes(op: GatherElements, ins: Types) -> bool:
    return has_fixed_size(op, ins) and ins[0].shape != ()


@everywhere(GatherElements, accepts=_has_axes, few=True)
def gather_elements(op: GatherElements, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Element by element."""
    return _steps(along_args(op, ins), outs, on) if outs[0].size else []


@everywhere(GatherND, accepts=has_fixed_size, few=True)
def gather_nd(op: GatherND, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Rows of index tuples."""
    return _steps(tuples_args(op, ins), outs, on) if outs[0].size else []


# --------------------------------------------------------------------------------------------------- reversed sequences


def _reversed(a: Numbers, step: int, time_first: bool) -> dict[str, Reach]:
    rows = a.first * a.second * a.run
    return {"x": rows, "y": rows, "lengths": step * (a.second if time_first else a.first)}


@elements(over={"i": "first", "j": "second"}, extents=_reversed, x=PTR, y=PTR, lengths=PTR, fault=FAULT, run=I64)
def reverse_rows(on: DeviceParts, step: int, time_first: bool):
    """Kernel of x, y [first, second] rows of ``run`` bytes, of which one axis is time; lengths: of the other.

    A length outside of 0 to the times is reported, and taken for 0.
    """
    load, report, move = on.load(f"i{8 * step}"), on.report, on.move

    @inline
    def element(i, j, c, t, x, y, lengths, fault, run, first, second):
        time, line, times = (i, j, first) if time_first else (j, i, second)
        length = load(lengths + step * line) + 0
        if length < 0 or length > times:
            report(fault, line, length, 0, times)
            length = -1
        source = length - 1 - time if time < length else time
        row = source * second + line if time_first else line * second + source
        move(y + t * run + c, x + row * run + c, run)
        return length

    return element


@everywhere(ReverseSequence, accepts=has_fixed_size, few=True)
def reverse_sequence(op: ReverseSequence, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """The first rows of each sequence in reverse order."""
    x, lengths = ins[0], ins[1]
    if not x.size:
        return []
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "lengths": In(1), "fault": Fault(1), "first": x.dims[0]}
    args |= {"second": x.dims[1], "run": x.dtype.itemsize * math.prod(x.dims[2:])}
    return [on.step(reverse_rows, (lengths.dtype.itemsize, op.time_axis == 0), args, on.pays(x.nbytes))]


# ------------------------------------------------------------------------------------------------------------- one-hot

_INDEX = {F32: "f32", I32: "i32", INT64: "i64"}


def _hot(a: Numbers, dtype: str) -> dict[str, Reach]:
    count = a.outer * a.inner
    return {"index": (8 if dtype == "i64" else 4) * count, "hot": a.run, "dst": count * a.depth * a.run}


@elements(over={"o": "outer", "i": "inner"}, extents=_hot, index=PTR, hot=PTR, dst=PTR, depth=I64, run=I64)
def set_hot(on: DeviceParts, dtype: str):
    """Kernel of dst[o, index[o, i], i] = hot, elements of ``run`` bytes; dtype: of the indices, i32, i64 or f32."""
    load, move, step, is_float = on.load(dtype), on.move, 8 if dtype == "i64" else 4, dtype == "f32"

    @inline
    def element(o, i, c, t, index, hot, dst, depth, inner, run):
        number = load(index + step * t)
        # NaN and what no integer holds are nowhere.
        given = np.int64(number) if not is_float or abs(number) < np.float32(1 << 62) else depth
        place = given + depth if given < 0 else given
        if place >= 0 and place < depth:
            move(dst + ((o * depth + place) * inner + i) * run + c, hot + c, run)

    return element


def hot_args(outer: int, depth: int, inner: int, run: int) -> dict[str, Argument]:
    """Arguments of `set_hot` but for the addresses: In(0) to Out(0)."""
    return {"dst": Out(0), "outer": outer, "inner": inner, "depth": depth, "run": run}


def ones_at(places: Argument, x: TensorType, form: tuple[int, int, int], on: DeviceParts) -> list[Step]:
    """Zeros of ``[outer, n, inner]`` in Out(0), and a one at each of the places (i64) along axis 1."""
    outer, n, inner = form
    unit = x.dtype.itemsize
    args = hot_args(outer, n, inner, unit) | {"index": places, "hot": np.ones(1, x.dtype)}
    zeros = on.carried([Transfer(broadcast_move((), (x.size,), unit), np.zeros(1, x.dtype), Out(0))])
    return [*zeros, on.step(set_hot, ("i64",), args, False)]


def _one_hot(op: OneHot, ins: Types) -> bool:
    index, depth, values = ins[0], ins[1], ins[2]
    if depth.known is None:
        return False
    return index.dtype in _INDEX and values.dtype != STRING


@everywhere(OneHot, accepts=_one_hot, few=True)
def one_hot(op: OneHot, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """A fill with the off value, then the hot elements."""
    out, unit = outs[0], ins[2].dtype.itemsize
    if not out.size:
        return []
    axis = normalise_axis(op, op.axis, len(out.dims))
    args = hot_args(math.prod(out.dims[:axis]), out.dims[axis], math.prod(out.dims[axis + 1 :]), unit)
    args |= {"index": In(0), "hot": In(2, unit)}
    fill = on.carried([Transfer(broadcast_move((), out.dims, unit), In(2), Out(0))])
    return [*fill, on.step(set_hot, (_INDEX[ins[0].dtype],), args, False)]
