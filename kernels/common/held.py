"""Integers of an operand that have to be within bounds: they are copied by a step that sees to it."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.kernels.declare import I64, PTR, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT, DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Fault, In, Scratch, Step, Types
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.content import want_between
from bolt_numba.ops.registry import Op


def _numbers(a: Numbers, step: int) -> dict[str, Reach]:
    return dict.fromkeys(("x", "y"), step * a.n)


@elements(over={"i": "n"}, extents=_numbers, x=PTR, y=PTR, fault=FAULT, low=I64, high=I64)
def hold(on: DeviceParts, step: int):
    """Y = the n integers x of ``step`` bytes, of which those outside low…high are brought inside.  x, y: [n]."""
    load, store, report = on.load(f"i{8 * step}"), on.store(f"i{8 * step}"), on.report
    number = np.int64 if step == 8 else np.int32

    @inline
    def element(i, x, y, fault, low, high):
        value = load(x + step * i) + 0
        inside = min(max(value, low), high)
        store(y + step * i, number(inside))
        if value != inside:
            report(fault, i, value, low, high)
            return -1
        return 0

    return element


def within(
    op: Op, ins: Types, operand: int, name: str, count: int, low: int, high: int, on: DeviceParts
) -> tuple[Argument, list[Step]]:
    """The first ``count`` numbers of an operand of i32 or i64, each in low…high, and the step that sees to it.

    What is known is tested here, too, for an early DataError.  The step tests it all the same: a node alike takes over
    the steps with other content, and content that the plan was made for is still memory of the caller's.
    What threads share is read from the operand once.
    """
    t = ins[operand]
    if t.known is not None:
        want_between(op, name, content(t.known), low, high)
    to = Scratch(count * t.dtype.itemsize)
    args: dict[str, Argument] = {"x": In(operand), "y": to, "fault": Fault(operand), "n": count}
    return to, [on.step(hold, (t.dtype.itemsize,), args | {"low": low, "high": high}, False)]
