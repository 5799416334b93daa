"""f16 and bf16 by the kernels of f32: operands are converted before, results after.

That is what the references do, too: they compute in f32 and round the result.  It serves whatever has no kernel of its
own for the narrow dtypes.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.errors import BoltError
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
from bolt_numba.kernels.jit import I64, PTR, Native, native
from bolt_numba.kernels.registry import (
    Argument,
    Context,
    Entry,
    In,
    Out,
    Pitch,
    Scratch,
    Step,
    Types,
    kernel,
    select,
)
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import BF16, F16, F32, AnyDType, Array, TensorType, dtype_name

HALVES = (F16, BF16)
PARALLEL_ELEMENTS = 2 * PAYS_ELEMENTS
"""Elements from which a second thread pays."""


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
    return Step(converter(source, target), {"x": x, "y": y, "n": n}, n >= PARALLEL_ELEMENTS)


def _converts(op: Any, ins: Types) -> bool:
    x = ins[0]
    return x is not None and x.is_static and (x.dtype, op.to) in _PAIRS


@kernel(Cast, accepts=_converts)
def convert(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Between f32 and f16 or bf16."""
    assert ins[0] is not None
    return [convert_step(ins[0].dtype, op.to, In(0), Out(0), outs[0].size)] if outs[0].size else []


# -------------------------------------------------------------------------------------------- kernels of f32 and around


def _wide(t: TensorType | None) -> TensorType | None:
    """The type in f32; its content, too."""
    if t is None or t.dtype not in HALVES:
        return t
    made = TensorType(F32, t.shape)
    return made if t.known is None else made.with_value(t.known.astype(F32))


def _wide_op(op: Op) -> Op:
    known: Any = op
    if op.name in ("Conv", "MatMul"):
        return op if known.to is None else replace(known, to=None)
    return replace(op, to=F32) if isinstance(op, Cast) and op.to in HALVES else op


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

    def make(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
        return _Around(_wide_op(op), ins, outs, context).steps(entry)

    name = f"{entry.name} (f32)"
    return replace(entry, op=type(op), make=make, name=name, inplace=(), works=None, by_types=False, states=None)


class _Around:
    """Steps of a kernel of f32 with narrow operands and results led through workspace."""

    def __init__(self, op: Op, ins: Types, outs: Sequence[TensorType], context: Context) -> None:
        self.op, self.ins, self.outs, self.context = op, ins, outs, context
        self.before: dict[tuple[int, int], tuple[Scratch, Step]] = {}
        self.after: dict[tuple[int, int], tuple[Scratch, Step]] = {}

    def steps(self, entry: Entry) -> list[Step]:
        wide: list[TensorType | None] = []
        for t in self.ins:
            made = _wide(t)
            if made is not None and t is not None and made is not t and t.known is not None:
                made = made.with_value(self.context.packed(t.known, "f32", _to_f32))
            wide.append(made)
        outs = [TensorType(F32, t.shape) if t.dtype in HALVES else t for t in self.outs]
        middle = [
            replace(step, args={name: self._led(a, wide, outs) for name, a in step.args.items()})
            for step in entry.make(self.op, wide, outs, self.context)
        ]
        return [*(s for _, s in self.before.values()), *middle, *(s for _, s in self.after.values())]

    def _led(self, arg: Argument, wide: Sequence[TensorType | None], outs: Sequence[TensorType]) -> Argument:
        """The argument of the inner kernel, of f32."""
        if isinstance(arg, Pitch):
            t = (wide if isinstance(arg.of, In) else outs)[arg.of.index]
            narrow = (self.ins if isinstance(arg.of, In) else self.outs)[arg.of.index]
            return arg if narrow is t or t is None else (t.dims[-1] if t.dims else 1)
        if isinstance(arg, In):
            given = self.ins[arg.index]
            if given is None or given.dtype not in HALVES:
                return arg
            known = wide[arg.index].known  # type: ignore[union-attr]
            if known is not None and not arg.offset:
                return known
            return self._place(self.before, arg, given, True)
        if isinstance(arg, Out) and self.outs[arg.index].dtype in HALVES:
            return self._place(self.after, arg, self.outs[arg.index], False)
        return arg

    def _place(
        self, places: dict[tuple[int, int], tuple[Scratch, Step]], arg: In | Out, t: TensorType, reads: bool
    ) -> Scratch:
        found = places.get((arg.index, arg.offset))
        if found is None:
            n, there = t.size - arg.offset // 4, type(arg)(arg.index, arg.offset // 2)
            room = Scratch(4 * n)
            ends: tuple[Any, Any] = (there, room) if reads else (room, there)
            source, target = (t.dtype, F32) if reads else (F32, t.dtype)
            found = places[arg.index, arg.offset] = room, convert_step(source, target, *ends, n)
        return found[0]
