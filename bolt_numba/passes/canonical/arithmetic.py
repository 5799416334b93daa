"""One spelling per idea for arithmetic: constants on the right, cheap operators for special constants, no identities.

Exact unless said otherwise; `passes.constants` says which constants are merged.

constant_right(c op x)            -> x op c                 commutative operators
drop_neutral(x + 0 | x * 1 ...)   -> x
drop_cast(Cast(x to its dtype))   -> x
merge_casts(Cast(Cast(x)))        -> Cast(x)                when the first loses nothing
sub_to_add(x - c)                 -> x + -c
div_to_mul(x / c)                 -> x * (1 / c)            c a power of two
mul_by_zero(x * 0)                -> 0                      integers
pow_by_floats(x ** integers)      -> x ** floats            where f32 holds them
pow_to_products(x ** c)           -> x * x | Sqrt | Reciprocal ...
merge_add_constants((x + a) + b)  -> x + (a + b)            one rounding less
merge_mul_constants((x * a) * b)  -> x * (a * b)            changes the order of rounding
merge_clips(Clip(Clip | Relu))    -> Clip
drop_double(Neg(Neg(x)))          -> x                      also Not, and idempotent operators
pin_auto_pad(Conv(auto_pad))      -> Conv(pads)             when the sizes are known
pin_axes(Reduce(x))               -> Reduce(x, axes)        all axes written out
drop_reduce(Reduce over nothing)  -> x | Reshape(x)
prelu_to_leaky(PRelu(x, scalar))  -> LeakyRelu(x)
lookup_before_scale(Gather(Cast(w) * s)) -> Cast(Gather(w)) * Gather(s)
drop_where(Where(known, x, y))    -> x | y
select_once(Compress(x, c), Compress(y, c)) -> Gather(x, NonZero(c)), Gather(y, NonZero(c))
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, I64, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays import reduce as r
from bolt_numba.ops.arrays.gather import Compress, Gather, NonZero
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.layers.pool import AveragePool, LpPool, MaxPool
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.windows import per_axis, resolve_pads
from bolt_numba.passes.canonical.views import reshaped
from bolt_numba.passes.constants import joined_product, joined_sum
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule, scalar_of

COMMUTATIVE = (p.Add, p.Mul, p.Max, p.Min, p.And, p.Or, p.Xor, p.Equal, p.BitwiseAnd, p.BitwiseOr, p.BitwiseXor)
REDUCTIONS = (
    r.ReduceSum,
    r.ReduceMean,
    r.ReduceMax,
    r.ReduceMin,
    r.ReduceProd,
    r.ReduceL1,
    r.ReduceL2,
    r.ReduceLogSum,
    r.ReduceLogSumExp,
    r.ReduceSumSquare,
)


def all_equal(value: Value | None, wanted: float) -> bool:
    """Whether a constant holds ``wanted`` everywhere; the first element is looked at first."""
    array = None if value is None else value.const
    if array is None or not array.size or array.dtype == object or array.flat[0] != wanted:
        return False
    return bool(np.all(array == wanted))


@rule(Pat(COMMUTATIVE, (const("c"), Pat(name="x"))))
def constant_right(m: Match, b: Builder) -> Result:
    return None if m["x"].is_const else b(m.root.op, m["x"], m["c"])


NEUTRAL: dict[type[Any], float] = {p.Add: 0, p.Sub: 0, p.Mul: 1, p.Div: 1, p.Pow: 1, p.Or: 0, p.And: 1, p.Xor: 0}


@rule(Pat(tuple(NEUTRAL), (Pat(name="x"), const("c"))))
def drop_neutral(m: Match, b: Builder) -> Result:
    return m["x"] if all_equal(m["c"], NEUTRAL[type(m.root.op)]) and keeps_shape(m, m["x"]) else None


def keeps_shape(m: Match, x: Value, other: Value | None = None) -> bool:
    """Whether the root is as large as ``x`` for certain: no ``other`` operand widens it.

    A symbol against a number may be 1 at run time, so that equal types of the replacement do not suffice.
    """
    if other is not None and other.type.shape == ():
        return True
    shape = m.root.output.type.shape
    return shape is not None and x.type.shape == shape


@rule(Pat(p.Cast, (Pat(name="x"),)))
def drop_cast(m: Match, b: Builder) -> Result:
    return m["x"] if m["x"].type.dtype == m.root.output.type.dtype else None


@rule(Pat(p.Cast, (Pat(p.Cast, (Pat(name="x"),), name="middle"),)))
def merge_casts(m: Match, b: Builder) -> Result:
    start, middle = m["x"].type.dtype, m["middle"].type.dtype
    if start.kind not in "iufb" or middle.kind not in "iuf" or not np.can_cast(start, middle, "safe"):
        return m.refuse("the first cast may lose something")
    return b(m.root.op, m["x"])


@rule(Pat(p.Sub, (Pat(name="x"), const("c"))))
def sub_to_add(m: Match, b: Builder) -> Result:
    array = m["c"].const
    if array is None or array.dtype.kind not in "if":
        return m.refuse("the dtype has no sign")
    return b(p.Add(), m["x"], np.negative(array))


@rule(Pat(p.Sub, (const("c"), Pat(name="x"))))
def zero_sub_to_neg(m: Match, b: Builder) -> Result:
    signed = m["x"].type.dtype.kind in "if"
    return b(p.Neg(), m["x"]) if signed and all_equal(m["c"], 0) and keeps_shape(m, m["x"], m["c"]) else None


@rule(Pat(p.Div, (Pat(name="x"), const("c"))))
def div_to_mul(m: Match, b: Builder) -> Result:
    array = m["c"].const
    if array is None or array.dtype not in (F32, F64) or array.size > 1 << 16:
        return None
    mantissa, _ = np.frexp(array)
    if not np.all(np.abs(mantissa) == 0.5):
        return m.refuse("the divisor is no power of two")
    inverse = 1 / array
    return b(p.Mul(), m["x"], inverse) if np.all(np.isfinite(inverse)) else None


@rule(Pat(p.Div, (const("one"), Pat(name="x"))))
def one_div_to_reciprocal(m: Match, b: Builder) -> Result:
    floats = m["x"].type.dtype.kind == "f"
    return b(p.Reciprocal(), m["x"]) if floats and all_equal(m["one"], 1) and keeps_shape(m, m["x"], m["one"]) else None


@rule(Pat(p.Mul, (Pat(name="x"), const("c"))))
def mul_to_neg(m: Match, b: Builder) -> Result:
    signed = m["x"].type.dtype.kind in "if"
    return b(p.Neg(), m["x"]) if signed and all_equal(m["c"], -1) and keeps_shape(m, m["x"], m["c"]) else None


@rule(Pat(p.Pow, (Pat(name="x"), const("c"))))
def pow_by_floats(m: Match, b: Builder) -> Result:
    """Operands of one dtype run in vectors."""
    c = m["c"].const
    if c is None or c.dtype.kind not in "iu" or m["x"].type.dtype != F32 or np.any(np.abs(c.astype(F64)) > 1 << 24):
        return None
    return b(p.Pow(), m["x"], c.astype(F32))


@rule(Pat(p.Pow, (Pat(name="x"), const("c"))))
def pow_to_products(m: Match, b: Builder) -> Result:
    x, c = m["x"], scalar_of(m["c"])
    if x.type.dtype.kind != "f" or not keeps_shape(m, x):
        return None
    if c == 2:
        return b(p.Mul(), x, x)
    if c == 3:
        return b(p.Mul(), b(p.Mul(), x, x), x)
    if c == 0.5:
        return b(p.Sqrt(), x)
    if c == -1:
        return b(p.Reciprocal(), x)
    return b(p.Reciprocal(), b(p.Sqrt(), x)) if c == -0.5 else None


def _merged_constants(m: Match, b: Builder, join: Callable[[Array, Array], Array | None]) -> Result:
    a, c = m["a"].const, m["c"].const
    if a is None or c is None or a.dtype.kind not in "iuf":
        return None
    if not m.sole(m["inner"]):
        return m.refuse(f"%{m['inner'].name} has another reader")
    made = join(a, c)
    return m.refuse("the constants lose something") if made is None else b(m.root.op, m["x"], made)


@rule(Pat(p.Add, (Pat(p.Add, (Pat(name="x"), const("a")), name="inner"), const("c"))))
def merge_add_constants(m: Match, b: Builder) -> Result:
    return _merged_constants(m, b, joined_sum)


@rule(Pat(p.Mul, (Pat(p.Mul, (Pat(name="x"), const("a")), name="inner"), const("c"))))
def merge_mul_constants(m: Match, b: Builder) -> Result:
    return _merged_constants(m, b, joined_product)


@rule(Pat(p.Clip, (Pat(name="x"),)))
def drop_open_clip(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    if m["x"].type.dtype.kind == "f":
        return m["x"] if op.lo in (None, -math.inf) and op.hi in (None, math.inf) else None
    return m["x"] if op.lo is None and op.hi is None else None


@rule(Pat(p.Clip, (Pat((p.Clip, p.Relu), (Pat(name="x"),), name="inner"),)))
def merge_clips(m: Match, b: Builder) -> Result:
    inner, outer = m.op("inner"), m.root.op
    lo, hi = (0, None) if isinstance(inner, p.Relu) else (inner.lo, inner.hi)
    return b(_clip_of_clip(lo, hi, outer), m["x"])


def _clip_of_clip(lo: Any, hi: Any, outer: Any) -> Any:
    """Bounds of clipping to [lo, hi] and then to the outer bounds; the upper one wins over the lower, NaN always."""
    if any(v != v for v in (lo, hi, outer.lo, outer.hi)):
        return p.Clip(math.nan, None)

    def after(v: Any) -> Any:
        v = v if outer.lo is None else max(v, outer.lo)
        return v if outer.hi is None else min(v, outer.hi)

    return p.Clip(outer.lo if lo is None else after(lo), outer.hi if hi is None else after(hi))


@rule(Pat(p.Relu, (Pat(p.Clip, (Pat(name="x"),), name="inner"),)))
def merge_relu_of_clip(m: Match, b: Builder) -> Result:
    inner = m.op("inner")
    return b(_clip_of_clip(inner.lo, inner.hi, p.Clip(0, None)), m["x"])


@rule(Pat(p.Mul, (Pat(name="x"), const("c"))))
def mul_by_zero(m: Match, b: Builder) -> Result:
    """Integers only: 0 times a float may be NaN."""
    t = m.root.output.type
    if t.dtype.kind not in "iu" or not t.is_static or not m["x"].type.is_static or not all_equal(m["c"], 0):
        return None
    return b.const(np.broadcast_to(np.zeros((), t.dtype), t.dims))


INVOLUTIONS = (p.Neg, p.Not)
IDEMPOTENT = (p.Relu, p.Abs, p.Floor, p.Ceil, p.Round, p.Sign)


@rule(Pat(INVOLUTIONS, (Pat(INVOLUTIONS, (Pat(name="x"),), name="inner"),)))
def drop_double(m: Match, b: Builder) -> Result:
    return m["x"] if type(m.op("inner")) is type(m.root.op) else None


@rule(Pat(IDEMPOTENT, (Pat(IDEMPOTENT, name="inner"),)))
def drop_repeated(m: Match, b: Builder) -> Result:
    return m["inner"] if type(m.op("inner")) is type(m.root.op) else None


WINDOWS = (Conv, ConvTranspose, MaxPool, AveragePool, LpPool)


@rule(Pat(WINDOWS, (Pat(name="x"),), where=lambda op: op.auto_pad != "NOTSET"))
def pin_auto_pad(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    if isinstance(op, ConvTranspose):
        return m.refuse("the pads follow from output_shape")
    kernel = _kernel_of(m)
    x = m["x"].type
    if kernel is None or x.shape is None:
        return m.refuse("the kernel is not known")
    spatial = x.with_shape(x.shape[2:] if op.layout == "NCHW" else x.shape[1:-1])
    if op.auto_pad != "VALID" and not spatial.is_static:
        return m.refuse("the sizes are not known")
    rank = len(kernel)
    strides = per_axis(op, "strides", op.strides, rank)
    dilations = per_axis(op, "dilations", op.dilations, rank)
    sizes = spatial.dims if spatial.is_static else (0,) * rank
    pads = resolve_pads(op.auto_pad, sizes, kernel, strides, dilations, ())
    changes: dict[str, Any] = {"auto_pad": "NOTSET", "pads": pads}
    if op.auto_pad == "VALID" and getattr(op, "ceil_mode", False):
        changes["ceil_mode"] = False
    return b(dataclasses.replace(op, **changes), *m.root.inputs)


def _kernel_of(m: Match) -> tuple[int, ...] | None:
    op: Any = m.root.op
    if not isinstance(op, Conv):
        return tuple(op.kernel_shape)
    w = m.root.inputs[1]
    return w.type.dims[2:] if w is not None and w.type.is_static else None


@rule(Pat(REDUCTIONS, (Pat(name="x"),)))
def pin_axes(m: Match, b: Builder) -> Result:
    """All reduced axes as sorted, non-negative constants."""
    op: Any = m.root.op
    axes = reduced_axes(op, m.root.inputs)
    if axes is None:
        return m.refuse("the axes are not known")
    given = m.root.inputs[1].const if len(m.root.inputs) > 1 and m.root.inputs[1] is not None else None
    if not axes or (given is not None and given.tolist() == axes and not op.noop_with_empty_axes):
        return None
    return b(dataclasses.replace(op, noop_with_empty_axes=False), m["x"], np.array(axes, np.int64))


def reduced_axes(op: Any, inputs: tuple[Value | None, ...]) -> list[int] | None:
    """The axes that a reduction reduces, sorted; None when they are not known."""
    x = inputs[0]
    if x is None or x.type.shape is None:
        return None
    rank = len(x.type.shape)
    if len(inputs) < 2 or inputs[1] is None:
        return [] if op.noop_with_empty_axes else list(range(rank))
    known = inputs[1].type.known
    if known is None:
        return None
    if not known.size:
        return [] if op.noop_with_empty_axes else list(range(rank))
    return sorted(int(a) % rank for a in known.reshape(-1))


@rule(Pat((r.ReduceSum, r.ReduceMean, r.ReduceMax, r.ReduceMin, r.ReduceProd), (Pat(name="x"),)))
def drop_reduce(m: Match, b: Builder) -> Result:
    axes = reduced_axes(m.root.op, m.root.inputs)
    shape = m["x"].type.shape
    if axes is None or shape is None or any(shape[a] != 1 for a in axes):
        return None
    return reshaped(b, m["x"], m.root.output.type.shape)


@rule(Pat(p.PRelu, (Pat(name="x"), const("slope"))))
def prelu_to_leaky(m: Match, b: Builder) -> Result:
    slope = m["slope"].const
    if slope is None or not slope.size or not keeps_shape(m, m["x"]) or not all_equal(m["slope"], slope.flat[0]):
        return m.refuse("the slope is not one number")
    if m["x"].type.dtype.kind != "f":
        return None
    return b(p.LeakyRelu(float(slope.flat[0])), m["x"])


_SCALED_TABLE = Pat(p.Mul, (Pat(p.Cast, (const("w"),), name="cast"), const("scale")))


@rule(Pat(Gather, (_SCALED_TABLE, Pat(name="at")), where=lambda op: op.axis == 0))
def lookup_before_scale(m: Match, b: Builder) -> Result:
    """Keeps a quantised embedding table narrow: only the rows that are read become floats."""
    scale, w = m["scale"].type, m["w"].type
    if len(scale.dims) != len(w.dims) or scale.dims[0] != w.dims[0]:
        return m.refuse("the scale is not per row")
    rows = b(m.op("cast"), b(m.root.op, m["w"], m["at"]))
    return b(p.Mul(), rows, b(m.root.op, m["scale"], m["at"]))


@rule(Pat(Gather, (Pat(p.Cast, (const("w"),), name="table"), Pat(name="at")), where=lambda op: op.axis == 0))
def lookup_before_cast(m: Match, b: Builder) -> Result:
    return b(m.op("table"), b(m.root.op, m["w"], m["at"]))


@rule(Pat(p.Where, (const("cond"), Pat(name="x"), Pat(name="y"))))
def drop_where(m: Match, b: Builder) -> Result:
    for wanted, name in ((1, "x"), (0, "y")):
        if all_equal(m["cond"], wanted) and keeps_shape(m, m[name]):
            return m[name]
    return None


@rule(Pat(Compress, (Pat(name="x"), Pat(name="cond"))))
def select_once(m: Match, b: Builder) -> Result:
    """What several tensors keep is counted once; a plan goes on behind it where each Compress would end it."""
    others = [node for node in m["cond"].uses if node is not m.root and isinstance(node.op, (Compress, NonZero))]
    shape, op = m["x"].type.shape, m.root.op
    assert isinstance(op, Compress)
    if not others or not shape or (op.axis is None and len(shape) != 1):
        return None
    axis = (op.axis or 0) % len(shape)
    if m["cond"].type.shape != (shape[axis],):
        return m.refuse("the condition may be longer than the axis")
    return b(Gather(axis), m["x"], b(Reshape(), b(NonZero(), m["cond"]), np.array([-1], I64)))


RULES: tuple[Rule, ...] = (
    constant_right,
    drop_neutral,
    drop_cast,
    merge_casts,
    sub_to_add,
    zero_sub_to_neg,
    div_to_mul,
    one_div_to_reciprocal,
    mul_to_neg,
    mul_by_zero,
    pow_by_floats,
    pow_to_products,
    merge_add_constants,
    merge_mul_constants,
    drop_open_clip,
    merge_clips,
    merge_relu_of_clip,
    drop_double,
    drop_repeated,
    pin_auto_pad,
    pin_axes,
    drop_reduce,
    prelu_to_leaky,
    lookup_before_scale,
    lookup_before_cast,
    drop_where,
    select_once,
)
