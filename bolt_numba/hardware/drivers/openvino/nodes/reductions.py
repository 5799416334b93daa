"""Reductions, softmax, running sums, and the greatest of a line."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.table import NUMBER, NotThereError, OvSite, builds
from bolt_numba.types import I64

PLAIN = {
    "ReduceL1": "reduce_l1", "ReduceL2": "reduce_l2", "ReduceMax": "reduce_max", "ReduceMean": "reduce_mean",
    "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod", "ReduceSum": "reduce_sum",
}  # fmt: skip


def _axes(s: OvSite, op: Any) -> Any:
    """The axes as a constant, all where none is given."""
    axes = s.ints(1, "axes") if s.given(1) else []
    if not axes and op.noop_with_empty_axes:
        raise NotThereError("a reduction of no axes")
    return s.i64(*(axes or range(s.rank())))


@builds(*PLAIN)
def plain(s: OvSite, op: Any, x: Any, axes: Any = None) -> Any:
    s.want(s.rank() > 0, "a reduction of a number")
    return getattr(s.v, PLAIN[op.name])(x, _axes(s, op), op.keepdims)


@builds("ReduceSumSquare", "ReduceLogSum")
def composed(s: OvSite, op: Any, x: Any, axes: Any = None) -> Any:
    s.want(s.rank() > 0, "a reduction of a number")
    if op.name == "ReduceSumSquare":
        return s.v.reduce_sum(s.v.multiply(x, x), _axes(s, op), op.keepdims)
    return s.v.log(s.v.reduce_sum(x, _axes(s, op), op.keepdims))


@builds("ReduceLogSumExp")
def log_sum_exp(s: OvSite, op: Any, x: Any, axes: Any = None) -> Any:
    """Behind the greatest element, so that no power is too large."""
    s.want(s.rank() > 0, "a reduction of a number")
    along = _axes(s, op)
    top = s.v.reduce_max(x, along, True)
    total = s.v.log(s.v.reduce_sum(s.v.exp(s.v.subtract(x, top)), along, op.keepdims))
    return s.v.add(total, top if op.keepdims else s.v.reduce_max(x, along, False))


@builds("Softmax", "LogSoftmax")
def softmax(s: OvSite, op: Any, x: Any) -> Any:
    s.want(s.rank() > 0, "a softmax of a number")
    return (s.v.softmax if op.name == "Softmax" else s.v.log_softmax)(x, op.axis)


@builds("CumSum")
def cum_sum(s: OvSite, op: Any, x: Any, axis: Any) -> Any:
    place = s.const(np.array(s.ints(1, "axis")[0], I64))
    return s.v.cum_sum(x, place, op.exclusive, op.reverse)


@builds("ArgMax", "ArgMin", places=(0,))
def arg(s: OvSite, op: Any, x: Any) -> Any:
    """By the first of the sorted elements."""
    s.want(not op.select_last_index, "the last of equals")
    s.want(s.rank() > 0, "the greatest of a number")
    mode = "max" if op.name == "ArgMax" else "min"
    found = s.v.topk(x, s.const(np.array(1, I64)), op.axis % s.rank(), mode, "value", "i64", stable=True).output(1)
    return s.v.squeeze(found, s.i64(op.axis)) if not op.keepdims else [found]


@builds("TopK", dtypes=NUMBER, places=(1,))
def topk(s: OvSite, op: Any, x: Any, k: Any) -> Any:
    count = s.ints(1, "k")[0]
    s.want(count > 0, "a list of none")
    mode = "max" if op.largest else "min"
    return s.v.topk(x, s.const(np.array(count, I64)), op.axis % s.rank(), mode, "value", "i64", stable=True).outputs()
