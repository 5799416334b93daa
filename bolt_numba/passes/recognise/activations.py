"""Finds the operators that exporters spell out as small graphs.  All of them change rounding, none the formula.

recognise_gelu(0.5 x (1 + erf(x / sqrt 2)))       -> Gelu(x)            every order of the factors; tanh form too
recognise_swish(x sigmoid(c x))                   -> Swish(x)
recognise_hard_swish(x clip(x + 3, 0, 6) / 6)     -> HardSwish(x)       also x * HardSigmoid(x)
recognise_mish(x tanh(softplus(x)))               -> Mish(x)
recognise_hard_sigmoid(clip(a x + b, 0, 1))       -> HardSigmoid(x)     also clip(a x + b, 0, c) / c
recognise_clip(Max(x, c) | Min(x, c))             -> Clip(x)
recognise_relu(Clip(x, 0, inf))                   -> Relu(x)
recognise_leaky_relu(Max(x, c x))                 -> LeakyRelu(x)       0 < c < 1
recognise_prelu(Relu(x) - c Relu(-x))             -> PRelu(x, c)
recognise_softplus(log(exp(x) + 1))               -> Softplus(x)        also Relu(x) + Softplus(-|x|)
recognise_softsign(x / (1 + |x|))                 -> Softsign(x)
recognise_softmax(e / sum(e)), e = exp(x - max)   -> Softmax(x)
recognise_log_softmax(Log(Softmax(x)))            -> LogSoftmax(x)
recognise_global_pool(pool of the whole image)    -> ReduceMean | ReduceMax
recognise_l2(sqrt(sum(x x)))                      -> ReduceL2(x)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, TensorType
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.layers.pool import AveragePool, MaxPool
from bolt_numba.ops.pointwise import (
    Abs,
    Add,
    Clip,
    Div,
    Erf,
    Exp,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Log,
    Max,
    Min,
    Mish,
    Mul,
    Neg,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Softsign,
    Sqrt,
    Sub,
    Swish,
    Tanh,
)
from bolt_numba.passes.canonical.arithmetic import all_equal, keeps_shape, reduced_axes
from bolt_numba.passes.constants import is_mild
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule, scalar, scalar_of

PRODUCT = (Mul, Div)
CLOSE = 1e-6
"""Relative tolerance for constants that exporters round, such as 0.7071068 or 0.044715: a few roundings of f32."""


def near(a: float, b: float, tolerance: float = CLOSE) -> bool:
    return abs(a - b) <= tolerance * max(abs(b), 1e-3)


def factors(m: Match) -> tuple[list[Value], float] | None:
    """The product that the root is, as non-constant factors and one number; None when it is no such product."""
    todo: list[Value] = [m.root.output]
    found: list[Value] = []
    number = 1.0
    while todo:
        v = todo.pop()
        c = scalar_of(v)
        if c is not None:
            number *= c
            continue
        node = v.node
        inner = node is not None and (node is m.root or m.sole(v))
        if node is None or not inner or not isinstance(node.op, PRODUCT):
            found.append(v)
        elif isinstance(node.op, Mul):
            todo += [w for w in node.inputs if w is not None]
        else:
            c = scalar_of(node.inputs[1])
            if not c or node.inputs[0] is None:
                found.append(v)
                continue
            number /= c
            todo.append(node.inputs[0])
        if len(found) > 4:
            return None
    return found, number


def polynomial(value: Value, x: Value, depth: int = 8) -> dict[int, float] | None:
    """Coefficients by power of an expression of Add, Sub, Mul, Div and numbers over ``x``; None for anything else.

    Where terms take each other back or a factor is far from 1, the expression rounds on purpose or overflows: None.
    """
    if value is x:
        return {1: 1.0}
    c = scalar_of(value)
    if c is not None:
        return {0: c}
    node = value.node
    if node is None or depth == 0 or not isinstance(node.op, (Add, Sub, Mul, Div)):
        return None
    a, z = (None if v is None else polynomial(v, x, depth - 1) for v in node.inputs)
    if a is None or z is None:
        return None
    if isinstance(node.op, Div):
        mild = z.keys() == {0} and bool(is_mild(z[0], F32))
        return {p: v / z[0] for p, v in a.items()} if mild else None
    if isinstance(node.op, Mul):
        return _collected((p + q, v * w) for p, v in a.items() for q, w in z.items())
    sign = 1.0 if isinstance(node.op, Add) else -1.0
    return _collected((*a.items(), *((p, sign * v) for p, v in z.items())))


def _collected(terms: Iterable[tuple[int, float]]) -> dict[int, float] | None:
    made: dict[int, float] = {}
    for power, v in terms:
        before = made.get(power, 0.0)
        if before * v < 0 or (v and not is_mild(v, F32)):
            return None
        made[power] = before + v
    return made


def is_polynomial(value: Value, x: Value, wanted: dict[int, float]) -> bool:
    """Whether ``value`` is the polynomial ``wanted`` of ``x``, up to the rounding of exporters."""
    got = polynomial(value, x)
    return got is not None and all(near(got.get(p, 0.0), wanted.get(p, 0.0)) for p in got.keys() | wanted.keys())


def _two_factors(m: Match) -> list[tuple[Value, Value, float]]:
    """Both ways to read the root as ``number * x * f``."""
    made = factors(m)
    if made is None or len(made[0]) != 2 or made[0][0].type.shape != made[0][1].type.shape:
        return []
    (a, z), number = made
    return [(a, z, number), (z, a, number)]


def _made_by(value: Value | None, *ops: Any) -> tuple[Value, ...] | None:
    """Operands of the node that makes ``value`` when its operator is one of ``ops``."""
    if value is None or value.node is None or not isinstance(value.node.op, ops):
        return None
    return tuple(v for v in value.node.inputs if v is not None)


SQRT_HALF = math.sqrt(0.5)
TANH_FORM = {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}


@rule(Pat(PRODUCT))
def recognise_gelu(m: Match, b: Builder) -> Result:
    for x, f, number in _two_factors(m):
        total = _made_by(f, Add)
        if total is None or len(total) != 2 or not all_equal(total[1], 1):
            continue
        if not near(number, 0.5):
            continue
        for op, form, name in ((Erf, {1: SQRT_HALF}, "none"), (Tanh, TANH_FORM, "tanh")):
            inner = _made_by(total[0], op)
            if inner is not None and is_polynomial(inner[0], x, form):
                return b(Gelu(approximate=name), x)
    return None


@rule(Pat(Mul))
def recognise_swish(m: Match, b: Builder) -> Result:
    for x, f, number in _two_factors(m):
        inner = _made_by(f, Sigmoid)
        found = None if inner is None else polynomial(inner[0], x)
        if found is not None and number == 1 and {p for p, v in found.items() if v} == {1}:
            return b(Swish(alpha=found[1]), x)
    return None


@rule(Pat(PRODUCT))
def recognise_hard_swish(m: Match, b: Builder) -> Result:
    for x, f, number in _two_factors(m):
        node = f.node
        if node is None or node.inputs[0] is None:
            continue
        inner, op = node.inputs[0], node.op
        if isinstance(op, HardSigmoid) and inner is x and near(op.alpha, 1 / 6) and near(op.beta, 0.5) and number == 1:
            return b(HardSwish(), x)
        clip = isinstance(op, Clip) and op.lo == 0 and op.hi is not None and near(op.hi, 6) and near(number, 1 / 6)
        if clip and is_polynomial(inner, x, {0: 3.0, 1: 1.0}):
            return b(HardSwish(), x)
    return None


@rule(Pat(Mul))
def recognise_mish(m: Match, b: Builder) -> Result:
    for x, f, number in _two_factors(m):
        inner = _made_by(f, Tanh)
        plus = None if inner is None else _made_by(inner[0], Softplus)
        if plus is not None and plus[0] is x and number == 1:
            return b(Mish(), x)
    return None


def _line(value: Value) -> tuple[Value, float, float] | None:
    """``value`` as a * x + b; x is what is left when scalar Mul and one Add are stripped."""
    a, c = 1.0, 0.0
    for _ in range(4):
        node = value.node
        number = None if node is None or len(node.inputs) != 2 else scalar_of(node.inputs[1])
        if node is None or number is None or node.inputs[0] is None:
            break
        if isinstance(node.op, Add) and not c:
            c = a * number
        elif isinstance(node.op, Mul):
            a *= number
        elif isinstance(node.op, Div) and number:
            a /= number
        else:
            break
        value = node.inputs[0]
    return None if (a, c) == (1.0, 0.0) else (value, a, c)


@rule(Pat((*PRODUCT, Clip)))
def recognise_hard_sigmoid(m: Match, b: Builder) -> Result:
    """Needs an inner line a * x + b with b near 1/2, so that an ordinary clip to [0, 1] stays one."""
    if m.root.output.type.dtype.kind != "f":
        return None
    clip, number = m.root.output, 1.0
    if not isinstance(m.root.op, Clip):
        made = factors(m)
        if made is None or len(made[0]) != 1:
            return None
        (clip,), number = made
    op: Any = clip.node.op if clip.node is not None else None
    if not isinstance(op, Clip) or op.lo != 0 or op.hi is None or not near(op.hi * number, 1):
        return None
    line = None if clip.node is None or clip.node.inputs[0] is None else _line(clip.node.inputs[0])
    if line is None or not near(line[2] * number, 0.5):
        return None
    x, slope, offset = line
    return b(HardSigmoid(slope * number, offset * number), x)


@rule(Pat((Max, Min), (Pat(name="x"), const("c"))))
def recognise_clip(m: Match, b: Builder) -> Result:
    bound = m["c"].const
    if bound is None or not bound.size or bound.dtype.kind not in "iuf" or not all_equal(m["c"], bound.flat[0]):
        return m.refuse("the bound is not one number")
    if not keeps_shape(m, m["x"], m["c"]):
        return m.refuse("the bound may widen the result")
    number = bound.flat[0].item()
    return b(Clip(number, None) if isinstance(m.root.op, Max) else Clip(None, number), m["x"])


@rule(Pat(Clip, (Pat(name="x"),)))
def recognise_relu(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    if op.lo != 0 or op.hi not in (None, math.inf) or m["x"].type.dtype.kind not in "fi":
        return None
    return b(Relu(), m["x"])


@rule(Pat(Max, (Pat(name="x"), Pat(Mul, (Pat(name="x"), const("c")))), commutative=True))
def recognise_leaky_relu(m: Match, b: Builder) -> Result:
    c = scalar_of(m["c"])
    if c is None or not 0 < c < 1 or m["x"].type.dtype.kind != "f":
        return m.refuse("the slope is not a number between 0 and 1")
    return b(LeakyRelu(c), m["x"])


@rule(Pat(Sub, (Pat(Relu, (Pat(name="x"),)), Pat(Mul, (Pat(Relu, (Pat(Neg, (Pat(name="x"),)),)), const("c"))))))
def recognise_prelu(m: Match, b: Builder) -> Result:
    return b(PRelu(), m["x"], m["c"]) if m["x"].type.dtype.kind == "f" else None


@rule(Pat(Log, (Pat(Add, (Pat(Exp, (Pat(name="x"),)), scalar(1.0))),)))
def recognise_softplus(m: Match, b: Builder) -> Result:
    return b(Softplus(), m["x"])


_OF_ABS = Pat(Softplus, (Pat(Neg, (Pat(Abs, (Pat(name="x"),)),)),))


@rule(Pat(Add, (Pat(Relu, (Pat(name="x"),)), _OF_ABS), commutative=True))
def recognise_safe_softplus(m: Match, b: Builder) -> Result:
    return b(Softplus(), m["x"])


@rule(Pat(Div, (Pat(name="x"), Pat(Add, (Pat(Abs, (Pat(name="x"),)), scalar(1.0))))))
def recognise_softsign(m: Match, b: Builder) -> Result:
    return b(Softsign(), m["x"])


_BELOW = Pat(Sub, (Pat(name="x"), Pat(r.ReduceMax, (Pat(name="x"),), name="top")))


@rule(Pat(Div, (Pat(Exp, (_BELOW,), name="e"), Pat(r.ReduceSum, (Pat(name="e"),), name="sum"))))
def recognise_softmax(m: Match, b: Builder) -> Result:
    nodes = m.node("top"), m.node("sum")
    axes = [reduced_axes(node.op, node.inputs) for node in nodes]
    if axes[0] is None or axes[0] != axes[1] or len(axes[0]) != 1 or not all(m.op(n).keepdims for n in ("top", "sum")):
        return m.refuse("not along one axis")
    return b(r.Softmax(axes[0][0]), m["x"])


@rule(Pat(Log, (Pat(r.Softmax, (Pat(name="x"),), name="softmax", sole_use=True),)))
def recognise_log_softmax(m: Match, b: Builder) -> Result:
    return b(r.LogSoftmax(m.op("softmax").axis), m["x"])


@rule(Pat((AveragePool, MaxPool), (Pat(name="x"),)))
def recognise_global_pool(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x: TensorType = m["x"].type
    if x.shape is None or any(op.pads) or op.auto_pad not in ("NOTSET", "VALID") or len(m.root.outputs) > 1:
        return None
    first = 2 if op.layout == "NCHW" else 1
    rank = len(op.kernel_shape)
    if tuple(x.shape[first : first + rank]) != tuple(op.kernel_shape) or any(d != 1 for d in op.dilations):
        return None
    reduce = r.ReduceMean() if isinstance(op, AveragePool) else r.ReduceMax()
    return b(reduce, m["x"], np.arange(first, first + rank, dtype=np.int64))


@rule(Pat(Sqrt, (Pat((r.ReduceSum, r.ReduceSumSquare), name="sum", sole_use=True),)))
def recognise_l2(m: Match, b: Builder) -> Result:
    op: Any = m.op("sum")
    x, *axes = m.node("sum").inputs
    if isinstance(op, r.ReduceSum):
        x, other = _made_by(x, Mul) or (None, x)
        if x is not other:
            return None
    return b(r.ReduceL2(keepdims=op.keepdims, noop_with_empty_axes=op.noop_with_empty_axes), x, *axes)


RULES: tuple[Rule, ...] = (
    recognise_gelu,
    recognise_swish,
    recognise_hard_swish,
    recognise_mish,
    recognise_hard_sigmoid,
    recognise_clip,
    recognise_relu,
    recognise_leaky_relu,
    recognise_prelu,
    recognise_softplus,
    recognise_safe_softplus,
    recognise_softsign,
    recognise_softmax,
    recognise_log_softmax,
    recognise_global_pool,
    recognise_l2,
)
