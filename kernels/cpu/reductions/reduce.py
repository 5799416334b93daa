"""Reductions along axes, positions of extremes, running sums and the k greatest.

Every reduction becomes passes over ``[outer, n, inner]`` that fold the middle axis: along contiguous rows where inner
is 1, else in columns, a vector of neighbours at a time.  Partial sums are kept short (blocks of `FOLD` vectors), which
bounds the rounding error; the split into passes and blocks does not depend on the threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.base.selects import divisor, either
from bolt_numba.base.types import F32
from bolt_numba.kernels.cpu.language.lang import LANES, native_source
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_BYTES, PAYS_ELEMENTS
from bolt_numba.kernels.extents import Extents, Numbers, Reach, box
from bolt_numba.kernels.geometry.reduced import around_axis, passes, reduced_axes
from bolt_numba.kernels.jit import F32 as FLOAT
from bolt_numba.kernels.jit import I64 as INT
from bolt_numba.kernels.jit import PTR, Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays import reduce as ops
from bolt_numba.ops.layers.norm import LpNormalization
from bolt_numba.ops.registry import Op, normalise_axis

FOLD = 64
"""Vectors that one partial result takes in."""
CHUNK_ELEMENTS = 16384
"""A quarter of the elements from which a single line is folded in parts."""


@record(frozen=True)
class Fold:
    """``load(v)`` of each element is combined by ``join``, starting from ``start``; ``finish(v)`` is the result."""

    name: str
    start: float
    join: str
    load: str = "{v}"
    finish: str = "{v}"
    across: str = "reduce_add"

    @property
    def inner_pass(self) -> Fold:
        """The first of two passes: no finish."""
        return Fold(f"{self.name}_part", self.start, self.join, self.load, "{v}", self.across)

    @property
    def outer_pass(self) -> Fold:
        """The second of two passes: elements are partial results already."""
        return Fold(f"{self.name}_rest", self.start, self.join, "{v}", self.finish, self.across)


_SUM = "{a} + {b}"
FOLDS: dict[type[Op], Fold] = {
    ops.ReduceSum: Fold("sum", 0.0, _SUM),
    ops.ReduceMean: Fold("mean", 0.0, _SUM, finish="{v} * scale"),
    ops.ReduceL1: Fold("l1", 0.0, _SUM, "vabs({v})"),
    ops.ReduceL2: Fold("l2", 0.0, _SUM, "{v} * {v}", "vsqrt({v})"),
    ops.ReduceSumSquare: Fold("sum_square", 0.0, _SUM, "{v} * {v}"),
    ops.ReduceLogSum: Fold("log_sum", 0.0, _SUM, finish="vlog({v})"),
    ops.ReduceProd: Fold("prod", 1.0, "{a} * {b}", across="reduce_mul"),
    ops.ReduceMax: Fold("max", math.inf, "vminimum({a}, {b})", "-{v}", "-{v}", across="reduce_min"),
    ops.ReduceMin: Fold("min", math.inf, "vminimum({a}, {b})", across="reduce_min"),
}


def _rows_text(fold: Fold) -> str:
    """Fold contiguous rows of ``n``, ``gap`` elements apart."""

    def join(a: str, b: str) -> str:
        return f"{a} = {fold.join.format(a=a, b=fold.load.format(v=b))}"

    return f"""
def {fold.name}_rows(p, tid, nthreads):
    x, y, n, gap, scale = p.x, p.y, p.n, p.gap, p.scale
    first, last = split(p.rows, tid, nthreads)
    for row in range(first, last):
        at = x + 4 * row * gap
        total = splat({fold.start!r})
        whole = n // (4 * LANES)
        done = 0
        while done < whole:
            stop = min(done + {FOLD}, whole)
            a = splat({fold.start!r})
            b, c, d = a, a, a
            for _ in range(done, stop):
                e = vload(at)
                {join("a", "e")}
                e = vload(at + 4 * LANES)
                {join("b", "e")}
                e = vload(at + 8 * LANES)
                {join("c", "e")}
                e = vload(at + 12 * LANES)
                {join("d", "e")}
                at += 16 * LANES
            done = stop
            a = {fold.join.format(a="a", b="b")}
            c = {fold.join.format(a="c", b="d")}
            a = {fold.join.format(a="a", b="c")}
            total = {fold.join.format(a="total", b="a")}
        left = n - whole * 4 * LANES
        while left > 0:
            e = vload_n(at, left)
            e = {fold.load.format(v="e")}
            e = select(lanes_below(left), e, splat({fold.start!r}))
            total = {fold.join.format(a="total", b="e")}
            at += 4 * LANES
            left -= LANES
        v = splat({fold.across}(total))
        store_f32(y + 4 * row, lane({fold.finish.format(v="v")}, 0))
"""


def _columns_text(fold: Fold) -> str:
    """Fold axis 1 of ``[outer, n, inner]``, four vectors of neighbouring columns at a time."""
    loads = "\n".join(f"                e{j} = vload_n(at + {4 * j} * LANES, width - {j} * LANES)" for j in range(4))
    full = "\n".join(f"                    e{j} = vload(at + {4 * j} * LANES)" for j in range(4))
    joins = "\n".join(
        f"                {'    '}a{j} = {fold.join.format(a=f'a{j}', b=fold.load.format(v=f'e{j}'))}" for j in range(4)
    )
    short = joins.replace("                    ", "                ")
    ends = "\n".join(f"            t{j} = {fold.join.format(a=f't{j}', b=f'a{j}')}" for j in range(4))
    stores = "\n".join(
        f"        vstore_n(to + {4 * j} * LANES, {fold.finish.format(v=f't{j}')}, width - {j} * LANES)"
        for j in range(4)
    )
    return f"""
def {fold.name}_columns(p, tid, nthreads):
    x, y, n, inner, blocks, scale = p.x, p.y, p.n, p.inner, p.blocks, p.scale
    first, last = split(p.outer * blocks, tid, nthreads)
    for item in range(first, last):
        o = item // blocks
        column = (item - o * blocks) * 4 * LANES
        width = min(inner - column, 4 * LANES)
        at = x + 4 * (o * n * inner + column)
        to = y + 4 * (o * inner + column)
        t0 = splat({fold.start!r})
        t1, t2, t3 = t0, t0, t0
        done = 0
        while done < n:
            stop = min(done + {2 * FOLD}, n)
            a0 = splat({fold.start!r})
            a1, a2, a3 = a0, a0, a0
            if width == 4 * LANES:
                for _ in range(done, stop):
{full}
{joins}
                    at += 4 * inner
            else:
              for _ in range(done, stop):
{loads}
{short}
                at += 4 * inner
            done = stop
{ends}
{stores}
"""


_ROWS = {"x": PTR, "y": PTR, "rows": INT, "n": INT, "gap": INT, "scale": FLOAT}
_COLUMNS = {"x": PTR, "y": PTR, "outer": INT, "n": INT, "inner": INT, "blocks": INT, "scale": FLOAT}


def _rows_reach(a: Numbers) -> dict[str, Reach]:
    return {"x": box(4 * a.n, (a.rows, 4 * a.gap)), "y": 4 * a.rows}


def _columns_reach(a: Numbers) -> dict[str, Reach]:
    return {"x": 4 * a.outer * a.n * a.inner, "y": 4 * a.outer * a.inner}


def fold_step(fold: Fold, x: Argument, y: Argument, form: tuple[int, int, int], scale: float = 1.0) -> Step:
    """Fold axis 1 of ``x [outer, n, inner]``; ``scale`` is for folds whose finish names it."""
    outer, n, inner = form
    parallel = 4 * outer * n * inner > 4 * PAYS_BYTES
    if inner == 1:
        text, name = _rows_text(fold), f"{fold.name}_rows"
        args: dict[str, Argument] = {"x": x, "y": y, "rows": outer, "n": n, "gap": n, "scale": scale}
        made = native_source(text, name, _ROWS, extents=_rows_reach, **scope_of(text))
        return Step(made, args, parallel & (outer > 1))
    blocks = -(-inner // (4 * LANES))
    text, name = _columns_text(fold), f"{fold.name}_columns"
    args = {"x": x, "y": y, "outer": outer, "n": n, "inner": inner, "blocks": blocks, "scale": scale}
    made = native_source(text, name, _COLUMNS, extents=_columns_reach, **scope_of(text))
    return Step(made, args, parallel & (outer * blocks > 1))


def _share_few(forms: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Fold few and long lines in two passes, so that threads can share them."""
    outer, n, inner = forms[0]
    lines = outer * -(-inner // (4 * LANES)) if inner > 1 else outer
    if len(forms) > 1 or lines >= 4:
        return forms
    parts = _even_parts(n, n * inner >= 4 * CHUNK_ELEMENTS)
    return [(outer * parts, n // parts, inner), (outer, parts, inner)]


def _even_parts(n: int, pays: bool) -> int:
    """The most parts of one length, from 4 to 64, or 1; that is so where no threads can share, too."""
    parts = divisor(n, 64)
    made: int = either((parts >= 4) & pays, parts, 1)
    return made


def _is_f32(op: ops.Reduction, ins: Types) -> bool:
    return reduced_axes(op, ins) is not None and ins[0].dtype == F32


def _fold_all(
    fold: Fold, x: Argument, y: Argument, dims: Sequence[int], axes: Sequence[int], scale: float = 1.0
) -> list[Step]:
    """Steps of a whole reduction, through workspace when it takes several passes."""
    forms = _share_few(passes(dims, axes))
    steps = []
    source = x
    for i, form in enumerate(forms):
        final = i == len(forms) - 1
        kind = fold if len(forms) == 1 else fold.inner_pass if i == 0 else fold.outer_pass
        if 0 < i < len(forms) - 1:
            kind = kind.inner_pass
        target: Argument = y if final else Scratch(4 * form[0] * form[2])
        steps.append(fold_step(kind, source, target, form, scale))
        source = target
    return steps


@kernel(*FOLDS, accepts=_is_f32)
def reduce_f32(op: ops.Reduction, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Vector folds, a pass for each group of reduced axes."""
    axes, dims = tested(reduced_axes(op, ins)), ins[0].dims
    scale = 1.0 / math.prod(dims[a] for a in axes)
    return _fold_all(FOLDS[type(op)], In(0), Out(0), dims, axes, scale)


# ------------------------------------------------------------------------------------------------- log of sum of exp


_LOG_SUM_EXP = """
def log_sum_exp(p, tid, nthreads):
    x, y, n, inner, blocks = p.x, p.y, p.n, p.inner, p.blocks
    first, last = split(p.outer * blocks, tid, nthreads)
    for item in range(first, last):
        if inner == 1:
            at = x + 4 * item * n
            a = splat(-inf)
            b = a
            for i in range(0, n - 2 * LANES + 1, 2 * LANES):
                a, b = vmaximum(a, vload(at + 4 * i)), vmaximum(b, vload(at + 4 * i + 4 * LANES))
            for i in range(n - n % (2 * LANES), n, LANES):
                a = vmaximum(a, select(lanes_below(n - i), vload_n(at + 4 * i, n - i), splat(-inf)))
            top = reduce_max(vmaximum(a, b))
            if not (top > -inf and top < inf):
                store_f32(y + 4 * item, top)
                continue
            base = splat(top)
            a = splat(0.0)
            b = a
            for i in range(0, n - 2 * LANES + 1, 2 * LANES):
                a = a + exp_negative(vload(at + 4 * i) - base)
                b = b + exp_negative(vload(at + 4 * i + 4 * LANES) - base)
            for i in range(n - n % (2 * LANES), n, LANES):
                v = exp_negative(vload_n(at + 4 * i, n - i) - base)
                a = a + select(lanes_below(n - i), v, splat(0.0))
            store_f32(y + 4 * item, lane(vlog(splat(reduce_add(a + b))), 0) + top)
            continue
        o = item // blocks
        column = (item - o * blocks) * LANES
        width = min(inner - column, LANES)
        at = x + 4 * (o * n * inner + column)
        top = splat(-inf)
        for i in range(n):
            top = vmaximum(top, vload_n(at + 4 * i * inner, width))
        base = select(vabs(top) < inf, top, splat(0.0))
        total = splat(0.0)
        for i in range(n):
            total = total + vexp(vload_n(at + 4 * i * inner, width) - base)
        vstore_n(y + 4 * (o * inner + column), vlog(total) + base, width)
"""


@kernel(ops.ReduceLogSumExp, accepts=_is_f32)
def log_sum_exp_f32(op: ops.ReduceLogSumExp, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """The maximum, then the sum of what is left of it; a pass for each group of reduced axes."""
    axes, dims = tested(reduced_axes(op, ins)), ins[0].dims
    fields = {k: v for k, v in _COLUMNS.items() if k != "scale"}
    made = native_source(_LOG_SUM_EXP, "log_sum_exp", fields, extents=_columns_reach, **scope_of(_LOG_SUM_EXP))
    forms = _share_few(passes(dims, axes))
    steps: list[Step] = []
    source: Argument = In(0)
    for i, (outer, n, inner) in enumerate(forms):
        target: Argument = Out(0) if i == len(forms) - 1 else Scratch(4 * outer * inner)
        blocks = -(-inner // LANES)
        args: dict[str, Argument] = {"x": source, "y": target, "outer": outer, "n": n, "inner": inner, "blocks": blocks}
        steps.append(Step(made, args, outer * blocks > 1 and outer * n * inner > PAYS_ELEMENTS // 2))
        source = target
    return steps


# ------------------------------------------------------------------------------------------------ forms of other files


def axis_form(op: ops.LogSoftmax | LpNormalization | ops.Softmax, ins: Types) -> tuple[int, int, int] | None:
    """``[outer, n, inner]`` for an operator with ``axis`` on a static f32 operand that is not empty."""
    x = ins[0]
    if not x.is_static or x.dtype != F32 or not x.size:
        return None
    if not x.dims:
        return 1, 1, 1
    return around_axis(x.dims, normalise_axis(op, op.axis, len(x.dims)))


def generated(text: str, name: str, extents: Extents, **fields: Any) -> Native:
    """Kernel of fixed text."""
    return native_source(text, name, fields, extents=extents, **scope_of(text))
