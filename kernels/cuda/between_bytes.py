"""Operators between bytes on CUDA: bytes become floats, the kernels of floats run, and the result becomes bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bolt_numba.errors import BoltError
from bolt_numba.kernels.registry import (
    Argument,
    Context,
    Fault,
    In,
    Out,
    Pitch,
    Scratch,
    Step,
    Types,
    kernel,
    remember_last,
    select,
)
from bolt_numba.ops.layers.between_bytes import BetweenBytes
from bolt_numba.ops.layers.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.registry import Op
from bolt_numba.types import TensorType

OTHERS = 5
"""Operands of the operator before those of the inner one."""


class _Part:
    """One of the three operators: what it is, its operands and result, and its best maker."""

    def __init__(self, op: Op, ins: Types) -> None:
        self.op, self.ins = op, ins
        made = op.infer(*ins)
        assert isinstance(made, TensorType)
        self.out, self.entry = made, select(op, ins, device="cuda")

    def steps(self, context: Context, led: Callable[[In | Out], Argument]) -> list[Step]:
        """Its steps; led: where its operands and its result are."""
        assert self.entry is not None

        def placed(arg: Any) -> Argument:
            if isinstance(arg, Pitch):
                t = self.out if isinstance(arg.of, Out) else self.ins[arg.of.index]
                return t.dims[-1] if t is not None and t.dims else 1
            if isinstance(arg, Fault):
                return Fault(arg.operand + OTHERS - 1)
            return led(arg) if isinstance(arg, (In, Out)) else arg

        made = self.entry.make(self.op, self.ins, [self.out], context)
        return [replace(step, args={name: placed(arg) for name, arg in step.args.items()}) for step in made]


def _parts_of(op: BetweenBytes, ins: Types) -> tuple[_Part, _Part, _Part] | None:
    """Before, inner and after; None where one of them has no maker."""
    try:
        before = _Part(DequantizeLinear(), ins[:3])
        inner = _Part(op.op, [before.out, *ins[OTHERS:]])
        after = _Part(QuantizeLinear(), [inner.out, *ins[3:OTHERS]])
    except BoltError:
        return None
    return None if None in (before.entry, inner.entry, after.entry) else (before, inner, after)


parts_of = remember_last(_parts_of)


def _accepts(op: Any, ins: Types) -> bool:
    return all(t is None or t.is_static for t in ins) and parts_of(op, ins) is not None


@kernel(BetweenBytes, device="cuda", accepts=_accepts)
def between_bytes(op: BetweenBytes, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Floats in workspace on both sides of the inner operator."""
    if not outs[0].size:
        return []
    parts = parts_of(op, ins)
    assert parts is not None
    before, inner, after = parts
    x, y = Scratch(before.out.nbytes), Scratch(inner.out.nbytes)

    def around(arg: In | Out) -> Argument:
        if arg.index == 0:
            assert not arg.offset, "operators between bytes read and write their floats from the begin"
            return x if isinstance(arg, In) else y
        return In(arg.index + OTHERS - 1, arg.offset)

    return [
        *before.steps(context, lambda arg: x if isinstance(arg, Out) else arg),
        *inner.steps(context, around),
        *after.steps(context, lambda arg: arg if isinstance(arg, Out) else In(arg.index + 2) if arg.index else y),
    ]
