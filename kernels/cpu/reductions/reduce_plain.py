"""Reductions of integers, bool and f64: scalar loops that LLVM turns into vectors.

As in `reduce`, every reduction is passes over ``[outer, n, inner]``; columns are folded in blocks, row after row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bolt_numba.base.types import BOOL, F64, I64, U8, U64, AnyDType, dtype_name
from bolt_numba.kernels.cpu.language.lang import native_source
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.reduced import passes, reduced_axes
from bolt_numba.kernels.jit import I64 as INT
from bolt_numba.kernels.jit import PTR, PTR_OR_0, Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays import reduce as ops
from bolt_numba.ops.registry import Op

COLUMNS = 512
"""Columns that are folded together."""
ROWS = 4
"""Rows of columns that are folded into their sums at once."""
LINES = 128
"""Partial results of a row where the order does not matter, but LLVM does not know it."""


@dataclass(frozen=True, slots=True)
class PlainFold:
    """``load(v)`` of each element is combined by ``join``; ``finish(s)`` is the result; start None: the first one.

    beside: what else is summed in the same loop, ``{t}`` of finish; its ``total`` is a dtype of 8 bytes, as that of s.
    """

    name: str
    join: str = "{s} + {v}"
    start: int | None = 0
    load: str = "{v}"
    finish: str = "{s}"
    beside: PlainFold | None = None
    total: str = ""


PLAIN_FOLDS: dict[type[Op], PlainFold] = {
    ops.ReduceSum: PlainFold("sum"),
    ops.ReduceMean: PlainFold("mean", finish="{s} / p.count"),
    ops.ReduceProd: PlainFold("prod", "{s} * {v}", 1),
    ops.ReduceL1: PlainFold("l1", load="abs({v})"),
    ops.ReduceL2: PlainFold("l2", load="{v} * {v}", finish="math.sqrt({s})"),
    ops.ReduceSumSquare: PlainFold("sum_square", load="{v} * {v}"),
    ops.ReduceMax: PlainFold("max", "{v} if {v} > {s} else {s}", None),
    ops.ReduceMin: PlainFold("min", "{v} if {v} < {s} else {s}", None),
}
_WHOLE_MEAN = PlainFold("whole_mean", finish="halves_div({s} >> i64(32), {s} & i64(0xFFFFFFFF), p.count)")
_WHOLE_L2 = PlainFold("whole_l2", load="{v} * {v}", finish="whole_root(math.sqrt({s}), {s})")


def fold_of(op: ops.Reduction, dtype: AnyDType) -> tuple[PlainFold, AnyDType]:
    """What is folded, and in which dtype.

    The sum behind a mean of integers, and behind a root, may be longer than they are.  Of 64 bits the high halves are
    summed by themselves, and the root of a sum in f64 is put right by the low bits of the true one.
    """
    if dtype.kind == "f" or not isinstance(op, (ops.ReduceMean, ops.ReduceL2)):
        return PLAIN_FOLDS[type(op)], dtype
    if dtype.itemsize < 8:
        return (_WHOLE_L2, U64) if isinstance(op, ops.ReduceL2) else (_WHOLE_MEAN, I64)
    name = dtype_name(dtype)
    if isinstance(op, ops.ReduceL2):
        most = np.nextafter(float(np.iinfo(dtype).max), 0.0)
        exact = PlainFold("exact", load="{v} * {v}", total=name)
        finish = f"whole_root({name}(whole_{name}(min(math.sqrt({{s}}), {most}))), {{t}})"
        return PlainFold("near_l2", load="f64({v}) * f64({v})", finish=finish, beside=exact), F64
    finish = f"halves_div({{s}}, {{t}} - ({{s}} << {name}(32)), {name}(p.count))"
    all_bits = PlainFold("low", total=name)
    return PlainFold("halves_mean", load=f"{{v}} >> {name}(32)", finish=finish, beside=all_bits), dtype


def _lanes_text(join: str) -> str:
    """Fold the whole parts of `LINES` elements of a row in as many partial results; ``done`` elements are then in s."""
    step = join.format(s="s", v="v")
    return f"""
            done = 0
            if n >= {LINES}:
                parts = view(p.room + {16 * COLUMNS} * tid, {LINES}, f64)
                for j in range({LINES}):
                    parts[j] = x[j]
                done = n - n % {LINES}
                for i in range({LINES}, done, {LINES}):
                    part = view(p.x + 8 * (item * n + i), {LINES}, f64)
                    for j in range({LINES}):
                        v, s = part[j], parts[j]
                        parts[j] = {step}
                half = {LINES // 2}
                while half > 2:
                    for j in range(half):
                        v, s = parts[j + half], parts[j]
                        parts[j] = {step}
                    half //= 2
                s = parts[0]
                for j in range(1, 4):
                    v = parts[j]
                    s = {step}"""


def _rows_text(fold: PlainFold, load: str, join: str, views: str, rows: int) -> str:
    """Fold so many rows of columns, one after the other, into the sums; load, views: of `{r}`, the row behind row i."""
    lines = ["s, t = sums[j], more[j]"] if fold.beside else ["s = sums[j]"]
    for r in range(rows):
        lines += [f"v = {load.format(v=f'x{r}[j]')}", join]
        if fold.beside:
            lines.append(f"t = {fold.beside.total}(t + {fold.beside.load.format(v=f'x{r}[j]', w=f'w{r}[j]')})")
    lines += ["sums[j] = s", *(["more[j] = t"] if fold.beside else [])]
    body = "\n".join(" " * 16 + line for line in lines)
    return f"""
        while i + {rows} <= n:{"".join(views.format(r=r) for r in range(rows))}
            for j in range(width):
{body}
            i += {rows}"""


def _text(fold: PlainFold, name: str, source: str, total: str, result: str) -> str:
    """Text for elements of dtype ``source``, partial results of ``total``, results of ``result``."""
    v = f"{total}({fold.load.format(v='x[j]')})"
    join = fold.join
    if total == "f64" and fold.start is None:
        join = f"float_{fold.name}({{s}}, {{v}})"
    first = f"{total}({fold.start})" if fold.start is not None else None
    lines = ""
    if total == source == "f64" and fold.start is None:
        lines = _lanes_text(join)
    size = {"f64": 8, "i64": 8, "u64": 8, "i32": 4, "u32": 4, "i16": 2, "u16": 2}
    unit, out = size.get(source, 1), size.get(result, 1)
    step = f"s = {total}({join.format(s='s', v='v')})"
    at = "((o * n + i + {r}) * inner + column)"
    views = "\n            x{r} = view(p.x + " + f"{unit} * {at}, width, {source})"
    row = start = more = zero = add = give = give_all = ""
    if fold.beside:
        kind = fold.beside.total
        start = f"\n            t = {kind}(0)"
        add = f"\n                t = {kind}(t + {fold.beside.load.format(v='x[j]', w='w[j]')})"
        more = f"\n        more = view(p.room + {16 * COLUMNS} * tid + {8 * COLUMNS}, width, {kind})"
        zero = f"\n            more[j] = {kind}(0)"
        if "{w}" in fold.beside.load:  # what a pass before has left
            row = f"\n            w = view(p.more_x + 8 * item * n, n, {kind})"
            views += "\n            w{r} = view(p.more_x + " + f"8 * {at}, width, {kind})"
        if fold.finish == "{s}":  # what is left for the next pass
            give = f"\n            z = view(p.more_y + 8 * item, 1, {kind})\n            z[0] = t"
            more += f"\n        z = view(p.more_y + 8 * (o * inner + column), width, {kind})"
            give_all = "\n            z[j] = more[j]"
    load = f"{total}({fold.load})"
    columns = "".join(_rows_text(fold, load, step, views, rows) for rows in (ROWS, 1))
    return f"""
def {name}(p, tid, nthreads):
    n, inner, blocks = p.n, p.inner, p.blocks
    lo, hi = split(p.outer * blocks, tid, nthreads)
    for item in range(lo, hi):
        if inner == 1:
            x, j = view(p.x + {unit} * item * n, n, {source}), 0{row}
            s = {first or v}{start}{lines}
            for j in range({"done" if lines else "0"}, n):
                v = {v}
                {step}{add}
            y = view(p.y + {out} * item, 1, {result})
            y[0] = {result}({fold.finish.format(s="s", t="t")}){give}
            continue
        o = item // blocks
        column = (item - o * blocks) * {COLUMNS}
        width = min({COLUMNS}, inner - column)
        sums = view(p.room + {16 * COLUMNS} * tid, width, {total}){more}
        x = view(p.x + {unit} * (o * n * inner + column), width, {source})
        for j in range(width):
            sums[j] = {first or v}{zero}
        i = 0{columns}
        y = view(p.y + {out} * (o * inner + column), width, {result})
        for j in range(width):
            y[j] = {result}({fold.finish.format(s="sums[j]", t="more[j]")}){give_all}
"""


_FIELDS = {"x": PTR, "y": PTR, "room": PTR, "outer": INT, "n": INT, "inner": INT, "blocks": INT, "count": INT}
_FIELDS |= {"more_x": PTR_OR_0, "more_y": PTR_OR_0}
_FREE = frozenset({"contract", "nsz", "arcp", "reassoc"})


def _reach(unit: int, out: int, a: Numbers) -> dict[str, Reach]:
    lines = a.outer * a.inner
    beside = {"more_x": 8 * lines * a.n, "more_y": 8 * lines}
    return {"x": unit * lines * a.n, "y": out * lines, "room": 16 * COLUMNS * a.threads, **beside}


@functools.cache
def _fold(fold: PlainFold, source: AnyDType, total: AnyDType, result: AnyDType) -> Native:
    names = [dtype_name(d) for d in (source, total, result)]
    name = "_".join(dict.fromkeys((fold.name, *names)))
    text = _text(fold, name, *names)
    free = _FREE if total == F64 and fold.start is not None else None
    extents = functools.partial(_reach, source.itemsize, result.itemsize)
    return native_source(text, name, _FIELDS, free, extents=extents, **scope_of(text))


def _has_plain(op: ops.Reduction, ins: Types) -> bool:
    x = ins[0]
    if reduced_axes(op, ins) is None:
        return False
    return x.dtype.kind in "iu" or x.dtype in (BOOL, F64)


@kernel(*PLAIN_FOLDS, accepts=_has_plain)
def reduce_plain(op: ops.Reduction, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Any integers, bool (greatest and least), f64."""
    axes, x = tested(reduced_axes(op, ins)), ins[0]
    dtype = U8 if x.dtype == BOOL else x.dtype
    return _fold_steps(*fold_of(op, dtype), x.dims, axes, dtype, context)


def _fold_steps(
    fold: PlainFold, total: AnyDType, dims: Sequence[int], axes: Sequence[int], dtype: AnyDType, context: Context
) -> list[Step]:
    """One fold of all reduced axes, a pass for each group of them."""
    forms, made = passes(dims, axes), list[Step]()
    source: Argument = In(0)
    more: Argument = None
    for i, (outer, n, inner) in enumerate(forms):
        final = i == len(forms) - 1
        kind = fold if final else replace(fold, finish="{s}")
        if i:
            kind = replace(kind, load="{v}", beside=kind.beside and replace(kind.beside, load="{w}"))
        target: Argument = Out(0) if final else Scratch(total.itemsize * outer * inner)
        left = None if final or fold.beside is None else Scratch(8 * outer * inner)
        blocks = -(-inner // COLUMNS)
        args: dict[str, Argument] = {"x": source, "y": target, "room": Scratch(16 * COLUMNS * context.threads)}
        args |= {"outer": outer, "n": n, "inner": inner, "blocks": blocks}
        args |= {"count": math.prod(dims[a] for a in axes), "more_x": more, "more_y": left}
        program = _fold(kind, dtype if i == 0 else total, total, dtype if final else total)
        made.append(Step(program, args, (outer * n * inner > PAYS_ELEMENTS) & (outer * blocks > 1)))
        source, more = target, left
    return made
