"""Reductions along axes: passes over ``[outer, n, inner]`` that fold the middle axis.

Where inner is 1 a warp or a block folds a row by loads of 16 bytes; else each thread folds a column, so that
neighbours read neighbours.  Few and long rows or columns are folded in parts first.  Floats are summed in f32 (f64 in
f64), integers in i64; the order depends on shapes alone.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, BOOL, F16, F32, F64, I64, U8, U64, AnyDType, dtype_name
from bolt_numba.codegen.threads import register
from bolt_numba.kernels.cuda.declare import F64 as DOUBLE
from bolt_numba.kernels.cuda.declare import I64 as INT
from bolt_numba.kernels.cuda.declare import PTR, WIDE_BLOCK, CudaKernel, ceil_div, cuda_kernel, inline, inline_source
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elementwise.scalars import scope_of
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda
from bolt_numba.kernels.cuda.language.warp import block_reduction, warp_reduction
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.geometry.reduced import passes, reduced_axes
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays import reduce as ops
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.registry import Op

SHORT_ROW = 8
"""Elements of rows that single threads fold."""
WARP_ROW = 2048
"""Elements of rows that warps fold."""
PART = 1024
"""Least elements of a part of a row; of a column a sixteenth of it."""
BUSY = 128 * 1024
"""Threads that keep a large GPU busy."""
_TYPES: dict[AnyDType, Any] = {F32: np.float32, F64: np.float64, I64: np.int64}
FLOATS = (F32, F16, BF16)


@record(frozen=True)
class Folding:
    """``load`` of each element v is joined to a total (``join`` of a and b, from ``neutral`` on), then finished."""

    name: str
    join: str = "a + b"
    neutral: float = 0
    load: str = "v"
    finish: str = "s"

    def __str__(self) -> str:
        return self.name


_MAXIMUM = Folding("max", "maximum(a, b)", -np.inf)
_MINIMUM = Folding("min", "minimum(a, b)", np.inf)
FOLDS: dict[type[Op], Folding] = {
    ops.ReduceSum: Folding("sum"),
    ops.ReduceMean: Folding("mean", finish="s / {float}(count)"),
    ops.ReduceProd: Folding("prod", "a * b", 1),
    ops.ReduceL1: Folding("l1", load="abs(v)"),
    ops.ReduceL2: Folding("l2", load="v * v", finish="math.sqrt({float}(s))"),
    ops.ReduceSumSquare: Folding("sum_square", load="v * v"),
    ops.ReduceLogSum: Folding("log_sum", finish="math.log(s)"),
    ops.ReduceMax: _MAXIMUM,
    ops.ReduceMin: _MINIMUM,
}
_WHOLE = {
    ops.ReduceMax: Folding("max", "max(a, b)", -(2**63)),
    ops.ReduceMin: Folding("min", "min(a, b)", 2**63 - 1),
}
"""Extremes of integers."""
_DOUBLE = {
    ops.ReduceMax: Folding("max", "float_max(a, b)", -np.inf),
    ops.ReduceMin: Folding("min", "float_min(a, b)", np.inf),
}
"""And of f64."""


def fold_of(op: ops.Reduction, dtype: AnyDType) -> Folding:
    """How an operator folds elements of a dtype."""
    if dtype.kind in "iu":
        made = _WHOLE.get(type(op), FOLDS[type(op)])
        if dtype == U64 and made.name in ("max", "min"):  # in the order of i64, which its highest bit turns round
            return Folding(f"{made.name}_u64", made.join, made.neutral, f"v ^ {-(2**63)}", f"s ^ {-(2**63)}")
        return made
    return _DOUBLE.get(type(op), FOLDS[type(op)]) if dtype == F64 else FOLDS[type(op)]


def total_of(dtype: AnyDType) -> AnyDType:
    """What partial results are."""
    return I64 if dtype.kind in "iub" else register(dtype)


@functools.lru_cache(maxsize=256)
def function(name: str, arguments: str, text: str) -> Inline:
    """A helper of one expression; equal ones are one object."""
    made = f"def {name}({arguments}):\n    return {text}\n"
    return inline_source(made, name, **scope_of(made))


def kind_of(dtype: AnyDType) -> str:
    """As words of memory name it."""
    return "u8" if dtype == BOOL else dtype_name(dtype)


def _load(fold: Folding, source: AnyDType) -> Inline:
    """Element to total."""
    total = dtype_name(total_of(source))
    return function("load", "v", f"{total}({fold.load.replace('v', f'{total}(v)')})")


def _finish(fold: Folding, source: AnyDType, result: AnyDType) -> Inline:
    """Total s of ``count`` elements of ``source`` to a register of ``result``."""
    name = kind_of(register(result))
    if total_of(source) != I64 or "{float}" not in fold.finish:
        text = fold.finish.format(float=dtype_name(total_of(source)))
        return function("finish", "s, count", f"{name}({text})")
    text = "whole_root(math.sqrt(f64(u64(s))), s)" if "sqrt" in fold.finish else "integer_div(s, i64(count))"
    return function("finish", "s, count", f"{name}({text})")


@functools.lru_cache(maxsize=256)
def _joined(kind: str, count: int, load: Any, join: Any) -> Inline:
    """``joined(total, address)``: a total joined with the elements of one wide load."""
    if count == 1:
        text = f"    return join(total, load(load_{kind}(address)))\n"
    else:
        steps = "".join(f"    total = join(total, load(q[{i}]))\n" for i in range(count))
        text = f"    q = load{count}_{kind}(address)\n{steps}    return total\n"
    text = f"def joined(total, address):\n{text}"
    return inline_source(text, "joined", **{**scope_of(text), "load": load, "join": join})


def _reach(unit: int, out: int, a: Numbers) -> dict[str, Any]:
    return {"x": unit * a.outer * a.n * a.inner, "y": out * a.outer * a.parts * a.inner}


_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("x", "y"), PTR),
    **dict.fromkeys(("outer", "n", "inner", "parts", "part", "magic", "shift"), INT),
    "count": DOUBLE,
}
"""Axis 1 of ``[outer, n, inner]`` in ``parts`` of ``part`` elements; magic, shift: of parts."""


@functools.lru_cache(maxsize=256)
def fold_rows(fold: Folding, source: AnyDType, result: AnyDType, lanes: int) -> CudaKernel:
    """lanes: threads of a row, a warp or a block."""
    unit, out, wide = source.itemsize, result.itemsize, max(1, min(8, 16 // source.itemsize))
    load, finish = _load(fold, source), _finish(fold, source, result)
    store = getattr(lang, f"store_{kind_of(result)}")
    join = function("join", "a, b", fold.join)
    wide_joined, joined = (_joined(kind_of(source), count, load, join) for count in (wide, 1))
    number = _TYPES[total_of(source)]
    neutral, rows = number(fold.neutral), WIDE_BLOCK // lanes
    gather = warp_reduction(join) if lanes == 32 else block_reduction(join, number, fold.neutral)

    def body(x, y, outer, n, inner, parts, part, magic, shift, count):
        thread = np.uint32(cuda.threadIdx.x)
        item = np.uint32(cuda.blockIdx.x) * np.uint32(rows) + thread // np.uint32(lanes)
        lane = np.int64(thread % np.uint32(lanes))
        if np.int64(item) < outer * parts:
            row = np.int64(fast_divide(item, np.uint32(magic), np.uint32(shift)))
            first = (np.int64(item) - row * parts) * part
            at, left = x + (row * n + first) * unit, min(part, n - first)
            total, i = neutral, lane
            if at & (wide * unit - 1) == 0:
                i = lane * wide
                while i + wide <= left:
                    total = wide_joined(total, at + i * unit)
                    i += lanes * wide
                i = left - left % wide + lane
            while i < left:
                total = joined(total, at + i * unit)
                i += lanes
            total = gather(total)
            if lane == 0:
                store(y + np.int64(item) * out, finish(total, count))

    body.__name__ = f"{fold.name}_rows{lanes}_{kind_of(source)}_{kind_of(result)}"
    return cuda_kernel(
        threads=WIDE_BLOCK, blocks=lambda a: ceil_div(a.outer * a.parts, rows),
        extents=functools.partial(_reach, unit, out), **_FIELDS,
    )(body)  # fmt: skip


@elements(
    over={"o": "outer", "p": "parts", "j": "inner"},
    extents=lambda a, fold, source, result: _reach(source.itemsize, result.itemsize, a), x=PTR, y=PTR, n=INT, part=INT,
    count=DOUBLE,
)  # fmt: skip
def fold_columns(on: DeviceParts, fold: Folding, source: AnyDType, result: AnyDType):
    """A thread for each line, or for a part of one: x [outer, n, inner] -> y [outer, parts, inner]."""
    unit, out = source.itemsize, result.itemsize
    load, finish, store = _load(fold, source), _finish(fold, source, result), on.store(kind_of(result))
    joined = _joined(kind_of(source), 1, load, function("join", "a, b", fold.join))
    neutral = _TYPES[total_of(source)](fold.neutral)

    @inline
    def element(o, p, j, t, x, y, n, part, inner, count):
        first, total = p * part, neutral
        at = x + ((o * n + first) * inner + j) * unit
        for _ in range(min(part, n - first)):
            total = joined(total, at)
            at += inner * unit
        store(y + t * out, finish(total, count))

    return element


def _parts(outer: int, n: int, inner: int) -> int:
    """Into how many an axis is cut, so that there are threads enough."""
    if inner == 1 and n > SHORT_ROW:
        return 1 if n <= WARP_ROW else max(1, min(n // (4 * PART), BUSY // (WIDE_BLOCK * outer), 1024))
    return max(1, min(n // (PART // 16), BUSY // (outer * inner), 1024))


def fold_steps(
    fold: Folding,
    x: Argument,
    y: Argument,
    source: AnyDType,
    result: AnyDType,
    form: tuple[int, int, int],
    count: float,
) -> list[Step]:
    """Folding axis 1 of ``x [outer, n, inner]``.  count: what `Folding.finish` calls so."""
    outer, n, inner = form
    parts = _parts(*form)
    if parts > 1:
        part = ceil_div(ceil_div(n, parts), 16) * 16
        parts = ceil_div(n, part)
        total = total_of(source)
        room = Scratch(total.itemsize * outer * parts * inner)
        first = Folding(f"{fold.name}_part", fold.join, fold.neutral, fold.load)
        rest = Folding(f"{fold.name}_rest", fold.join, fold.neutral, finish=fold.finish)
        return [
            _fold_step(first, x, room, source, total, form, parts, part, count),
            *fold_steps(rest, room, y, total, result, (outer, parts, inner), count),
        ]
    return [_fold_step(fold, x, y, source, result, form, 1, n, count)]


def _fold_step(
    fold: Folding, x: Argument, y: Argument, source: AnyDType, result: AnyDType, form: tuple[int, int, int], parts: int,
    part: int, count: float,
) -> Step:  # fmt: skip
    outer, n, inner = form
    is_row = inner == 1 and n > SHORT_ROW
    args: dict[str, Argument] = {"x": x, "y": y, "outer": outer, "n": n, "inner": inner, "parts": parts, "part": part}
    args["count"] = float(count)
    if is_row:
        args["magic"], args["shift"] = divider(parts)
        return Step(fold_rows(fold, source, result, 32 if n <= WARP_ROW else WIDE_BLOCK), args)
    return PARTS.step(fold_columns, (fold, source, result), args)


def fold_all(
    fold: Folding,
    x: Argument,
    y: Argument,
    dims: Sequence[int],
    axes: Sequence[int],
    source: AnyDType,
    result: AnyDType,
) -> list[Step]:
    """Steps of a whole reduction, a pass for each group of reduced axes."""
    count = float(np.prod([dims[a] for a in axes], dtype=np.int64))
    forms, made = passes(dims, axes), []
    for i, form in enumerate(forms):
        final = i == len(forms) - 1
        kind = Folding(fold.name, fold.join, fold.neutral, "v" if i else fold.load, fold.finish if final else "s")
        target: Argument = y if final else Scratch(total_of(source).itemsize * form[0] * form[2])
        goal = result if final else total_of(source)
        made += fold_steps(kind, x, target, source, goal, form, count)
        x, source = target, total_of(source)
    return made


def is_reduced(op: ops.Reduction, ins: Types) -> bool:
    """Whether axes and shape are known, and indices are 32 bits."""
    x = ins[0]
    return reduced_axes(op, ins) is not None and x.size <= MAX_I32


def _accepts(op: ops.Reduction, ins: Types) -> bool:
    x = ins[0]
    if not is_reduced(op, ins):
        return False
    if x.dtype in (*FLOATS, F64):
        return x.dtype != F64 or not isinstance(op, ops.ReduceLogSum)
    if x.dtype.kind in "iu" and not isinstance(op, ops.ReduceLogSum):  # means and roots of 64 bits want sums of more
        return x.dtype.itemsize < 8 or not isinstance(op, (ops.ReduceMean, ops.ReduceL2))
    return x.dtype == BOOL and isinstance(op, (ops.ReduceMax, ops.ReduceMin))


@kernel(*FOLDS, device="cuda", accepts=_accepts)
def reduce(op: ops.Reduction, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Floats, integers, and extremes of bool."""
    axes, x = tested(reduced_axes(op, ins)), ins[0]
    dtype = U8 if x.dtype == BOOL else x.dtype
    return fold_all(fold_of(op, dtype), In(0), Out(0), x.dims, axes, dtype, dtype)
