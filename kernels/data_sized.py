"""Which kernel runs an operator whose result's size depends on data.  No numba here.

Such an operator ends a plan in a cut.  What is registered here takes the operands when they are there, calls a native
kernel on buffers of the greatest size the result can have, and returns the part that was filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from bolt_numba.base.records import record
from bolt_numba.kernels.registry import Accepts, Types, always, load
from bolt_numba.ops.registry import Op
from bolt_numba.types import Array

Empty: TypeAlias = Callable[..., Array]
"""``empty(shape, dtype)``: memory for a result or for workspace, as ``numpy.empty``."""
Compute: TypeAlias = Callable[[Any, Sequence[Any], Empty], tuple[Array, ...]]


@record(frozen=True)
class DataSized:
    """One registered function ``compute(op, operands, empty) -> results``; omitted operands are None."""

    op: type[Op]
    device: str
    compute: Compute
    accepts: Accepts
    name: str


DATA_SIZED: dict[tuple[type[Op], str], DataSized] = {}


def data_sized(op: type[Op], device: str = "cpu", accepts: Accepts = always) -> Callable[[Compute], Compute]:
    """Register the function that computes an operator on arrays; ``accepts`` sees the operands' types."""

    def register(compute: Compute) -> Compute:
        DATA_SIZED[op, device] = DataSized(op, device, compute, accepts, compute.__name__)
        return compute

    return register


def select_data_sized(op: Op, ins: Types, device: str = "cpu") -> DataSized | None:
    """What computes this node, or None (the reference will)."""
    load(device)
    found = DATA_SIZED.get((type(op), device))
    return found if found is not None and found.accepts(op, ins) else None
