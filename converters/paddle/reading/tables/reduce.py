"""Readers of reductions, of arg operators and of sums along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, I32, I64, AnyDType
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.arrays.shape import Shape
from bolt_numba.ops.pointwise import Abs, Add, Cast, Div, Mul, Pow, Sqrt, Sub

_REDUCTIONS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "reduce_sum": (r.ReduceSum, ("sum",)),
    "reduce_mean": (r.ReduceMean, ("mean",)),
    "reduce_max": (r.ReduceMax, ("max",)),
    "reduce_min": (r.ReduceMin, ("min",)),
    "reduce_amax": (r.ReduceMax, ("amax",)),
    "reduce_amin": (r.ReduceMin, ("amin",)),
    "reduce_prod": (r.ReduceProd, ("prod",)),
}
DIMS = {"dim": "axis", "AxisTensor": "axis", "AxisTensorList": "axis*", "out_dtype": "dtype"}
TRUTHS = {**DIMS, "out_dtype": "in_dtype"}
"""Of reductions whose dtype follows."""


def reduced(b: PaddleBuilder, operator: Any, x: Value, axes: Ints, keepdim: bool) -> Value:
    """X reduced along axes; all of them where none is named."""
    if not b.rank_of(x):
        x, axes, keepdim = b.shaped(x, [1]), (0,), False
    made: Value = b(operator(keepdim), x, ints(b.axes_of(x, axes)))
    return made


def _over(operator: Any, before: Any = lambda b, x: x, behind: Any = lambda b, y: y) -> Any:
    """A reader of a reduction of what ``before`` makes of x; ``behind`` makes the result of it."""

    def read(
        b: PaddleBuilder, x: Value, axis: Value | None = None, *, keepdim: bool = False, reduce_all: bool = False
    ) -> Value:
        axes = () if reduce_all or axis is None else b.known_ints(axis, "axis")
        made: Value = behind(b, reduced(b, operator, before(b, x), axes, keepdim))
        return made

    return read


def _quantifier(operator: Any) -> Any:
    return _over(operator, lambda b, x: b.to(b.truth(x), I32), lambda b, y: b(Cast(BOOL), y))


def _reduction(name: str) -> Any:
    operator = _REDUCTIONS[name][0]

    def read(
        b: PaddleBuilder,
        x: Value,
        axis: Value | None = None,
        *,
        keepdim: bool = False,
        reduce_all: bool = False,
        dtype: AnyDType | None = None,
    ) -> Value:
        """Along the axes, or all of them; bools and narrow integers are summed as i64."""
        if dtype is not None:
            x = b.to(x, dtype)
        elif x.type.dtype == BOOL or (x.type.dtype == I32 and operator is r.ReduceSum):
            x = b.to(x, I64)
        elif operator is r.ReduceMean:
            x = b.floating(x)
        made: Value = _over(operator)(b, x, axis, keepdim=keepdim, reduce_all=reduce_all)
        return made

    return read


for _name, (_, _pir) in _REDUCTIONS.items():
    PADDLE.reader(legacy=(_name,), pir=_pir, slots=DIMS)(_reduction(_name))


PADDLE.reader(legacy=("reduce_all",), pir=("all",), slots=TRUTHS)(_quantifier(r.ReduceMin))
PADDLE.reader(legacy=("reduce_any",), pir=("any",), slots=TRUTHS)(_quantifier(r.ReduceMax))
PADDLE.reader("logsumexp", slots=TRUTHS)(_over(r.ReduceLogSumExp, lambda b, x: b.floating(x)))
PADDLE.reader("frobenius_norm", slots=TRUTHS)(_over(r.ReduceL2))


@PADDLE.reader(legacy=("mean",), pir=("mean_all",))
def mean_all(b: PaddleBuilder, x: Value) -> Value:
    return reduced(b, r.ReduceMean, b.floating(x), (), False)


@PADDLE.reader("p_norm")
def p_norm(
    b: PaddleBuilder,
    x: Value,
    *,
    porder: float = 2.0,
    axis: int = -1,
    epsilon: float = 1e-12,
    keepdim: bool = False,
    asvector: bool = False,
) -> Value:
    """(sum of |x| ** p) ** (1 / p) along an axis, or over all elements; greatest, least or number for inf, -inf, 0."""
    axes = () if asvector else (axis,)
    return normed(b, x, porder, axes, keepdim)


def normed(b: PaddleBuilder, x: Value, p: float, axes: Ints, keepdim: bool) -> Value:
    """The p-norm along axes."""
    if p == 0:
        return reduced(b, r.ReduceSum, b.to(b.truth(x), x.type.dtype), axes, keepdim)
    if math.isinf(p):
        return reduced(b, r.ReduceMax if p > 0 else r.ReduceMin, b(Abs(), x), axes, keepdim)
    if p in (1, 2):
        return reduced(b, r.ReduceL1 if p == 1 else r.ReduceL2, x, axes, keepdim)
    total = reduced(b, r.ReduceSum, b(Pow(), b(Abs(), x), p), axes, keepdim)
    return b(Pow(), total, 1 / p)


@PADDLE.reader("dist")
def dist(b: PaddleBuilder, x: Value, y: Value, *, p: float = 2.0) -> Value:
    return normed(b, b.flat(b(Sub(), x, y)), p, (), False)


@PADDLE.reader("norm", results=("Out", "Norm"))
def norm(b: PaddleBuilder, x: Value, *, axis: int, epsilon: float = 1e-10) -> tuple[Value, Value]:
    """X / sqrt(sum of squares along an axis + epsilon), and the root."""
    root = b(Sqrt(), b(Add(), reduced(b, r.ReduceSum, b(Mul(), x, x), (axis,), True), epsilon))
    return b(Div(), x, root), root


PADDLE.reader("squared_l2_norm")(lambda b, x: b.shaped(reduced(b, r.ReduceSum, b(Mul(), x, x), (), False), [1]))


@PADDLE.reader("cos_sim", results=("Out", "XNorm", "YNorm"))
def cos_sim(b: PaddleBuilder, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """Cosine between rows, and their lengths."""
    axes = tuple(range(1, b.rank_of(x)))
    first, second = (reduced(b, r.ReduceL2, v, axes, True) for v in (x, y))
    products = reduced(b, r.ReduceSum, b(Mul(), x, y), axes, True)
    return b(Div(), b(Div(), products, first), second), first, second


def _arg(operator: Any) -> Any:
    def read(
        b: PaddleBuilder,
        x: Value,
        axis: Value,
        *,
        keepdim: bool = False,
        flatten: bool = False,
        dtype: AnyDType | None = None,
    ) -> Value:
        wanted = dtype or I64
        if flatten or not b.rank_of(x):
            made = b(operator(0, True), b.flat(x))
            made = b.shaped(made, [1] * b.rank_of(x) if keepdim else ())
        else:
            made = b(operator(b.axis_of(x, b.whole(axis, "axis")), keepdim), x)
        return b.to(made, wanted)

    return read


PADDLE.reader("arg_max", pir=("argmax",))(_arg(r.ArgMax))
PADDLE.reader("arg_min", pir=("argmin",))(_arg(r.ArgMin))


@PADDLE.reader("cumsum")
def cumsum(
    b: PaddleBuilder, x: Value, axis: Value, *, flatten: bool = False, exclusive: bool = False, reverse: bool = False
) -> Value:
    x = b.to(x, I64) if x.type.dtype == BOOL else x
    if flatten or not b.rank_of(x):
        shape = b(Shape(), x)
        made = b(r.CumSum(exclusive, reverse), b.flat(x), b.const(np.array(0)))
        return made if b.rank_of(x) else b.shaped(made, shape)
    return b(r.CumSum(exclusive, reverse), x, b.to(b.as_scalar(axis), I64))


@PADDLE.reader("cumprod", slots={"dim": "dim"})
def cumprod(b: PaddleBuilder, x: Value, *, dim: int, exclusive: bool = False, reverse: bool = False) -> Value:
    return b(r.CumProd(exclusive, reverse), x, b.const(np.array(b.axis_of(x, dim)))) if b.rank_of(x) else x
