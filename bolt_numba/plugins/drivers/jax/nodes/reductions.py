"""Reductions, softmax, running sums, sums of neighbours, and the greatest of a line."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, I64, U64
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.arrays.accumulate import CumMax, CumMin, LogCumSumExp
from bolt_numba.ops.layers.norm import LRN
from bolt_numba.plugins.drivers.jax.table import FLOATS, NUMBERS, JaxSite, builds


def _along(s: JaxSite, op: Any) -> dict[str, Any]:
    """The axes that go, and whether they stay as 1."""
    axes = s.ints(1, "axes") if s.given(1) else []
    return {"axis": op.reduced(axes, s.rank()), "keepdims": op.keepdims}


@builds("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare", dtypes=NUMBERS)
def sums(s: JaxSite, op: Any, x: Any, axes: Any = None) -> Any:
    x = {"ReduceL1": lambda: s.np.abs(x), "ReduceSumSquare": lambda: x * x}.get(op.name, lambda: x)()
    return (s.np.prod if op.name == "ReduceProd" else s.np.sum)(x, dtype=x.dtype, **_along(s, op))


@builds("ReduceMax", "ReduceMin", dtypes=(*NUMBERS, BOOL))
def extremes(s: JaxSite, op: r.ReduceMax | r.ReduceMin, x: Any, axes: Any = None) -> Any:
    return (s.np.max if op.name == "ReduceMax" else s.np.min)(x, **_along(s, op))


@builds("ReduceMean", dtypes=tuple(d for d in NUMBERS if d not in (I64, U64)))
def mean(s: JaxSite, op: r.ReduceMean, x: Any, axes: Any = None) -> Any:
    """Of integers the quotient of a sum in 64 bits, cut."""
    along = _along(s, op)
    count = int(np.prod([s.dims()[a] for a in along["axis"]], dtype=np.int64))
    if x.dtype.kind == "f":
        return s.np.sum(x, dtype=x.dtype, **along) / count
    total = s.np.sum(x, dtype=I64, **along)
    return (s.np.sign(total) * (s.np.abs(total) // max(count, 1))).astype(x.dtype)


@builds("ReduceL2", "ReduceLogSum", dtypes=FLOATS)
def functions_of_sums(s: JaxSite, op: Any, x: Any, axes: Any = None) -> Any:
    along = _along(s, op)
    return s.np.sqrt(s.np.sum(x * x, **along)) if op.name == "ReduceL2" else s.np.log(s.np.sum(x, **along))


@builds("ReduceLogSumExp", dtypes=FLOATS)
def log_sum_exp(s: JaxSite, op: r.ReduceLogSumExp, x: Any, axes: Any = None) -> Any:
    along = _along(s, op)
    if not along["axis"]:
        return x
    return s.jax.nn.logsumexp(x, **along)


@builds("Softmax", "LogSoftmax", dtypes=FLOATS)
def softmax(s: JaxSite, op: r.LogSoftmax | r.Softmax, x: Any) -> Any:
    below = x - s.np.max(x, axis=op.axis, keepdims=True)
    powers = s.np.exp(below)
    total = s.np.sum(powers, axis=op.axis, keepdims=True)
    return powers / total if op.name == "Softmax" else below - s.np.log(total)


@builds("ArgMax", "ArgMin", dtypes=NUMBERS, places=(0,))
def arg(s: JaxSite, op: r.ArgMax | r.ArgMin, x: Any) -> Any:
    """The first of equals, or the last."""
    find = s.np.argmax if op.name == "ArgMax" else s.np.argmin
    if not op.select_last_index:
        return find(x, axis=op.axis, keepdims=op.keepdims).astype(I64)
    mirrored = find(s.np.flip(x, op.axis), axis=op.axis, keepdims=op.keepdims)
    return (s.dims()[op.axis] - 1 - mirrored).astype(I64)


@builds("Hardmax", dtypes=FLOATS)
def hardmax(s: JaxSite, op: r.Hardmax, x: Any) -> Any:
    return s.jax.nn.one_hot(s.np.argmax(x, op.axis), s.dims()[op.axis], dtype=x.dtype, axis=s.axis(op.axis))


@builds("TopK", dtypes=NUMBERS, places=(1,))
def topk(s: JaxSite, op: r.TopK, x: Any, k: Any) -> Any:
    """By a stable order, so that of equals the first comes first."""
    axis, count = s.axis(op.axis), s.ints(1, "k")[0]
    if op.largest:
        order = s.np.argsort(s.np.flip(x, axis), axis=axis, stable=True)
        order = s.dims()[axis] - 1 - s.np.flip(order, axis)
    else:
        order = s.np.argsort(x, axis=axis, stable=True)
    first = s.lax.slice_in_dim(order, 0, count, axis=axis)
    return s.np.take_along_axis(x, first, axis=axis), first.astype(I64)


def _running(s: JaxSite, op: r.CumProd | r.CumSum | LogCumSumExp, x: Any, axis: int, run: Any, start: Any) -> Any:
    """A running sum or product, from the end, or without the element itself."""
    x = s.np.flip(x, axis) if op.reverse else x
    y = run(x)
    if op.exclusive:
        y = s.np.roll(y, 1, axis)
        y = y.at[(slice(None),) * axis + (slice(0, 1),)].set(start)
    return s.np.flip(y, axis) if op.reverse else y


@builds("CumSum", "CumProd", dtypes=NUMBERS)
def cumulative(s: JaxSite, op: r.CumProd | r.CumSum, x: Any, axis: Any) -> Any:
    along, is_sum = s.axis(s.ints(1, "axis")[0]), op.name == "CumSum"
    run = s.np.cumsum if is_sum else s.np.cumprod
    return _running(s, op, x, along, lambda v: run(v, axis=along, dtype=x.dtype), 0 if is_sum else 1)


@builds("LogCumSumExp", dtypes=FLOATS)
def log_cum_sum_exp(s: JaxSite, op: LogCumSumExp, x: Any) -> Any:
    along = s.axis(op.axis)
    return _running(s, op, x, along, lambda v: s.lax.cumlogsumexp(v, axis=along), -np.inf)


@builds("CumMax", "CumMin", dtypes=NUMBERS, places=(1,))
def running_extremes(s: JaxSite, op: CumMax | CumMin, x: Any) -> Any:
    """And where they were: the last of equals, the last NaN once there is one."""
    along = s.axis(op.axis)
    best = (s.lax.cummax if op.name == "CumMax" else s.lax.cummin)(x, axis=along)
    place = np.arange(s.dims()[along]).reshape(-1, *(1,) * (s.rank() - along - 1))
    hits = s.np.where((x == best) | (x != x), place, 0)
    return best, s.lax.cummax(hits.astype(I64), axis=along)


@builds("Det", dtypes=FLOATS)
def det(s: JaxSite, op: r.Det, x: Any) -> Any:
    return s.np.linalg.det(x)


@builds("LRN", dtypes=FLOATS)
def lrn(s: JaxSite, op: LRN, x: Any) -> Any:
    before = (op.size - 1) // 2
    squares = s.np.pad(x * x, [(0, 0), (before, op.size - 1 - before)] + [(0, 0)] * (s.rank() - 2))
    total = sum(squares[:, i : i + s.dims()[1]] for i in range(op.size))
    return x / (op.bias + op.alpha / op.size * total) ** op.beta


@builds("LayerNormalization", dtypes=FLOATS, by_rank=True)
def layer_norm(s: JaxSite, op: Any, x: Any, scale: Any, bias: Any = None) -> Any:
    """Also with its statistics, which its parts would not give."""
    along: dict[str, Any] = {"axis": tuple(range(s.axis(op.axis), s.rank())), "keepdims": True}
    mean = s.np.mean(x, **along)
    centred = x - mean
    inverse = 1 / s.np.sqrt(s.np.mean(centred * centred, **along) + float(op.epsilon))
    y = centred * inverse * scale
    y = y if bias is None else y + bias
    return (y, mean.astype(F32), inverse.astype(F32)) if op.stats else y
