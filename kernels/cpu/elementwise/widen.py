"""f16 and bf16 by the kernels of f32: operands are converted before, results after.

That is what the references do, too: they compute in f32 and round the result.  It serves whatever has no kernel of its
own for the narrow dtypes.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import BF16, F16, F32, AnyDType, Array, TensorType, dtype_name
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    ceil_div,
    split,
    vload,
    vload_bf16,
    vload_bf16_n,
    vload_f16,
    vload_f16_n,
    vload_n,
    vstore,
    vstore_bf16,
    vstore_bf16_n,
    vstore_f16,
    vstore_f16_n,
    vstore_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Lent, borrowed
from bolt_numba.kernels.jit import I64, PTR, Native, native
from bolt_numba.kernels.registry import Argument, Context, Entry, In, Out, Outs, Scratch, Step, Types, kernel, select
from bolt_numba.kernels.unseen import derived
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import Op, result_tuple

HALVES = (F16, BF16)


_READ = {F16: (vload_f16, vload_f16_n), BF16: (vload_bf16, vload_bf16_n), F32: (vload, vload_n)}
_WRITE = {F16: (vstore_f16, vstore_f16_n), BF16: (vstore_bf16, vstore_bf16_n), F32: (vstore, vstore_n)}
_PAIRS = {(F16, F32), (BF16, F32), (F32, F16), (F32, BF16)}


@cache
def converter(source: AnyDType, target: AnyDType) -> Native:
    """Kernel that converts n elements."""
    (read, read_n), (write, write_n) = _READ[source], _WRITE[target]
    unit, to = source.itemsize, target.itemsize

    def body(p: Any, tid: int, nthreads: int) -> None:
        x, y, n = p.x, p.y, p.n
        lo, hi = split(ceil_div(n, LANES), tid, nthreads)
        for i in range(lo * LANES, hi * LANES, LANES):
            if n - i >= LANES:
                write(y + to * i, read(x + unit * i))
            else:
                write_n(y + to * i, read_n(x + unit * i, n - i), n - i)

    body.__name__ = f"convert_{dtype_name(source)}_{dtype_name(target)}"
    return native(x=PTR, y=PTR, n=I64, extents=lambda a: {"x": unit * a.n, "y": to * a.n})(body)


def convert_step(source: AnyDType, target: AnyDType, x: Argument, y: Argument, n: int) -> Step:
    return Step(converter(source, target), {"x": x, "y": y, "n": n}, n >= 2 * PAYS_ELEMENTS)


def _converts(op: Pointwise, ins: Types) -> bool:
    x = ins[0]
    return x.is_static and (x.dtype, op.to) in _PAIRS


@kernel(Cast, accepts=_converts)
def convert(op: Pointwise, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Between f32 and f16 or bf16."""
    return [convert_step(ins[0].dtype, op.to, In(0), Out(0), outs[0].size)] if outs[0].size else []


# -------------------------------------------------------------------------------------------- kernels of f32 and around


def _wide(t: TensorType | None) -> TensorType | None:
    """The type in f32; its content, too."""
    if t is None or t.dtype not in HALVES:
        return t
    made = TensorType(F32, t.shape)
    return made if t.known is None else made.with_value(derived(t.known, "f32", _to_f32, F32))


def _wide_op(op: Op) -> Op:
    known: Any = op
    if op.name in ("Conv", "MatMul"):
        return op if known.to is None else replace(known, to=None)
    return Cast(F32, op.saturate, op.round_mode) if isinstance(op, Cast) and op.to in HALVES else op


def _to_f32(array: Array) -> Array:
    return np.ascontiguousarray(array.astype(F32))


def select_wide(op: Op, ins: Types, context: Context) -> Entry | None:
    """The kernel of f32 that runs a node with operands or results of f16 or bf16, with conversions around it."""
    if any(t is not None and not t.is_static for t in ins):
        return None
    made = _wide_op(op)
    wide = [_wide(t) for t in ins]
    try:
        outs, wide_outs = (result_tuple(o.infer(*ts)) for o, ts in ((op, ins), (made, wide)))
    except BoltError:  # an operand has to be narrow
        return None
    if [(F32 if t.dtype in HALVES else t.dtype, t.shape) for t in outs] != [(t.dtype, t.shape) for t in wide_outs]:
        return None
    entry = select(made, wide, context)
    if entry is None:
        return None

    def make(op: Op, ins: Types, outs: Outs, context: Context) -> list[Step]:
        return _steps_around(entry, op, ins, outs, context)

    name = f"{entry.name} (f32)"
    return replace(entry, op=type(op), make=make, name=name, inplace=(), works=None, states=None, error=None)


def _steps_around(entry: Entry, op: Op, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Steps of a kernel of f32 with narrow operands and results led through workspace."""
    given = [None if t is None else _widened(t, In(i), context) for i, t in enumerate(ins)]
    made = [_widened(t, Out(i), context) for i, t in enumerate(outs)]
    middle = borrowed(entry.make, _wide_op(op), given, made, context)
    used = {id(arg) for step in middle for arg in step.args.values()}
    before = [
        convert_step(t.dtype, F32, In(i), lent.at, t.size)
        for i, (t, lent) in enumerate(zip(ins, given, strict=True))
        if t is not None and lent is not None and isinstance(lent.at, Scratch) and id(lent.at) in used
    ]
    after = [
        convert_step(F32, t.dtype, lent.at, Out(i), t.size)
        for i, (t, lent) in enumerate(zip(outs, made, strict=True))
        if isinstance(lent.at, Scratch) and id(lent.at) in used
    ]
    return [*before, *middle, *after]


def _widened(t: TensorType, at: In | Out, context: Context) -> Lent:
    """An operand or result in f32: itself, a constant, or workspace."""
    if t.dtype not in HALVES:
        return Lent(t, at, rows=True)
    if t.known is not None:
        return Lent.constant(derived(t.known, "f32", _to_f32, F32))
    return Lent(TensorType(F32, t.shape), Scratch(2 * t.nbytes))
