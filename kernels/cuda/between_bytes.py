"""Operators between bytes on CUDA: bytes become floats, the kernels of floats run, and the result becomes bytes."""

from __future__ import annotations

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import TensorType
from bolt_numba.kernels.extents import Lent, borrowed
from bolt_numba.kernels.registry import Context, In, Operands, Out, Outs, Scratch, Step, Types, kernel, once, select
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.between_bytes import BetweenBytes
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.registry import Op

OTHERS = 5
"""Operands of the operator before those of the inner one."""


class _Operator:
    """One of the three operators: what it is, its operands and result, and its best maker."""

    def __init__(self, op: Op, ins: Types) -> None:
        self.op, self.ins = op, ins
        made = op.infer(*ins)
        assert isinstance(made, TensorType)
        self.out, self.entry = made, select(op, ins, device="cuda")

    def steps(self, context: Context, x: In | Scratch, first: int, y: Out | Scratch) -> list[Step]:
        """Its steps; x, y: where its first operand and its result are; first: which operand is its second."""
        given = [None if t is None else Lent(t, x if i == 0 else In(first + i - 1)) for i, t in enumerate(self.ins)]
        return borrowed(tested(self.entry).make, self.op, given, [Lent(self.out, y)], context)


def _parts_of(op: BetweenBytes, ins: Types) -> tuple[_Operator, _Operator, _Operator] | None:
    """Before, inner and after; None where one of them has no maker."""
    try:
        before = _Operator(DequantizeLinear(), Operands(ins[:3]))
        inner = _Operator(op.op, Operands([before.out, *ins[OTHERS:]]))
        after = _Operator(QuantizeLinear(), Operands([inner.out, *ins[3:OTHERS]]))
    except BoltError:
        return None
    return None if None in (before.entry, inner.entry, after.entry) else (before, inner, after)


parts_of = once(_parts_of)


def _accepts(op: BetweenBytes, ins: Types) -> bool:
    return all(t is None or t.is_static for t in ins) and parts_of(op, ins) is not None


@kernel(BetweenBytes, device="cuda", accepts=_accepts)
def between_bytes(op: BetweenBytes, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Floats in workspace on both sides of the inner operator."""
    if not outs[0].size:
        return []
    before, inner, after = tested(parts_of(op, ins))
    x, y = Scratch(before.out.nbytes), Scratch(inner.out.nbytes)
    return [
        *before.steps(context, In(0), 1, x),
        *inner.steps(context, x, OTHERS, y),
        *after.steps(context, y, 3, Out(0)),
    ]
