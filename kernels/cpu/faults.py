"""How a kernel says that the content of an operand asks for what is not there.

A step that takes indices, counts or lengths from an operand has a field `registry.Fault`: the address of a record of
`FAULT` words.  It reads each number once, tests that, and where it is out of range it calls `report` and goes on
without the access, so memory is safe also while another thread writes the operand.  The runner looks at one
counter a run.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    atomic_add,
    atomic_compare_exchange,
    inline,
    load_i32,
    load_i64,
    store_i32,
    store_i64,
)
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.unseen import content
from bolt_numba.kernels.jit import I64, PTR, Field, native
from bolt_numba.kernels.registry import Argument, Fault, In, Scratch, Step, Types
from bolt_numba.ops.content import want_between
from bolt_numba.ops.registry import Op

FAULT = 8
"""Words (i64) of a record, a cache line: whether it is taken, position, value, low, high, address of the counter."""
COUNTER = 5
FAULT_AT = Field("fault", "i8")
"""Address of a record, which is no operand's."""


@inline
def report(fault, position, value, low, high):
    """Say that the ``value`` at a flat ``position`` of the operand is not in low…high; the first to say so stays."""
    if atomic_compare_exchange(fault, 0, 1):
        store_i64(fault + 8, position)
        store_i64(fault + 16, value)
        store_i64(fault + 24, low)
        store_i64(fault + 32, high)
        atomic_add(load_i64(fault + 8 * COUNTER), 1)


def _numbers(a: Numbers) -> dict[str, Reach]:
    return {"x": (8 if a.wide else 4) * a.n, "y": (8 if a.wide else 4) * a.n}


@native(x=PTR, y=PTR, fault=FAULT_AT, n=I64, wide=I64, low=I64, high=I64, extents=_numbers)
def hold(p, tid, nthreads):
    """Y = the n integers x, i64 (``wide``) or i32, none of them outside low…high.  x, y: [n]."""
    for i in range(p.n):
        value = load_i64(p.x + 8 * i) if p.wide else np.int64(load_i32(p.x + 4 * i))
        if value < p.low or value > p.high:
            report(p.fault, i, value, p.low, p.high)
            value = min(max(value, p.low), p.high)
        if p.wide:
            store_i64(p.y + 8 * i, value)
        else:
            store_i32(p.y + 4 * i, np.int32(value))


def within(op: Op, ins: Types, operand: int, name: str, count: int, low: int, high: int) -> tuple[Argument, list[Step]]:
    """The first ``count`` numbers of an operand of i32 or i64, each in low…high, and the step that sees to it.

    What is known is tested here, too, for an early DataError.  The step tests it all the same: a node alike takes over
    the steps with other content, and content that the plan was made for is still memory of the caller's.
    What threads share is read from the operand once.
    """
    t = ins[operand]
    if t.known is not None:
        want_between(op, name, content(t.known), low, high)
    to, wide = Scratch(count * t.dtype.itemsize), int(t.dtype.itemsize == 8)
    args: dict[str, Any] = {"x": In(operand), "y": to, "fault": Fault(operand), "n": count, "wide": wide}
    return to, [Step(hold, args | {"low": low, "high": high}, False)]
