"""Operators along one axis: positions of extremes, running sums and products; and reductions of nothing.

What goes along lines is each device's own (``reductions``): vectors and blocks of columns, or warps.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, F64, TensorType
from bolt_numba.kernels.common.gather import ones_at
from bolt_numba.kernels.geometry import transfers as plans
from bolt_numba.kernels.geometry.elements import DeviceParts
from bolt_numba.kernels.geometry.reduced import around_axis
from bolt_numba.kernels.geometry.transfers import plan_ints
from bolt_numba.kernels.registry import Context, Out, Outs, Scratch, Step, Types, always, everywhere
from bolt_numba.ops.arrays import reduce as ops
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.registry import normalise_axis


def _is_plain(x: TensorType | None) -> bool:
    return x is not None and x.is_static and (x.dtype.kind in "iu" or x.dtype in (F32, F16, BF16, F64))


def _form(op: ops.ArgMax | ops.ArgMin | ops.Hardmax, x: TensorType) -> tuple[int, int, int]:
    """``[outer, n, inner]`` around the axis."""
    return around_axis(x.dims, normalise_axis(op, op.axis, len(x.dims))) if x.dims else (1, 1, 1)


def _has_form(op: ops.ArgMax | ops.ArgMin | ops.Hardmax, ins: Types) -> bool:
    x = ins[0]
    return _is_plain(x) and x.size > 0 and _form(op, x)[1] <= MAX_I32


@everywhere(ops.ArgMax, ops.ArgMin, accepts=_has_form, computes=always, few=True)
def arg(op: ops.ArgMax | ops.ArgMin, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Any number."""
    x, least = ins[0], isinstance(op, ops.ArgMin)
    step: Step = on.own("reductions.arg.step")(x, _form(op, x), Out(0), least, op.select_last_index, context.threads)
    return [step]


@everywhere(ops.Hardmax, accepts=_has_form, computes=always, few=True)
def hardmax(op: ops.Hardmax, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Positions of the greatest, a fill with zeros, the ones."""
    x = ins[0]
    form = _form(op, x)
    places = Scratch(8 * form[0] * form[2])
    first = on.own("reductions.arg.step")(x, form, places, False, False, context.threads)
    return [first, *ones_at(places, x, form, on)]


def _runs(op: ops.CumSum | ops.CumProd, ins: Types) -> bool:
    x, axis = ins[:2]
    return _is_plain(x) and bool(ins[0].dims) and axis is not None and axis.known is not None


@everywhere(ops.CumSum, ops.CumProd, accepts=_runs, computes=always, few=True, inplace=(0,))
def running(op: ops.CumSum | ops.CumProd, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Integers, f32, f64; on GPUs halves in f32, integers in i64."""
    x, (axis,) = ins[0], plan_ints(ins, 1, ())
    form = around_axis(x.dims, normalise_axis(op, axis, len(x.dims)))
    return [on.own("reductions.running.step")(op, x.dtype, form, context.threads)] if x.size else []


def _is_empty(op: ops.Reduction, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or x.size:
        return False
    return all(t is None or t.known is not None for t in ins[1:2])


@everywhere(
    ops.ReduceSum, ops.ReduceMean, ops.ReduceProd, ops.ReduceL1, ops.ReduceL2, ops.ReduceSumSquare, ops.ReduceLogSum,
    ops.ReduceLogSumExp, ops.ReduceMax, ops.ReduceMin, accepts=_is_empty,
)  # fmt: skip
def reduce_nothing(op: ops.Reduction, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """What the reference gives for no element, everywhere."""
    x = ins[0]
    value = np.ascontiguousarray(op.reference(np.empty((0,), x.dtype), np.array([0]))).reshape(-1)
    return on.carried(plans.fill(value, outs[0].dims, x.dtype.itemsize)) if outs[0].size else []
