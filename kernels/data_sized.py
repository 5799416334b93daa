"""Which kernel runs an operator whose result's size depends on data.  No numba here.

Such an operator ends a plan in a cut.  What is registered here takes the operands when they are there, calls a native
kernel on buffers of the greatest size the result can have, and returns the part that was filled.

Where nothing of Python runs, the same kernels are steps (`sized`): they write what there is to the beginning of memory
for the greatest result, and beside it how much that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from bolt_numba.base.records import record
from bolt_numba.base.types import Array, TensorType, only_in_python
from bolt_numba.kernels.registry import Accepts, Given, Step, always, load
from bolt_numba.ops.registry import Op

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


def select_data_sized(op: Op, ins: Given, device: str = "cpu") -> DataSized | None:
    """What computes this node, or None (the reference will, as it does wherever an operand holds Python's objects)."""
    load(device)
    found = None if any(map(only_in_python, ins)) else DATA_SIZED.get((type(op), device))
    return found if found is not None and found.accepts(op, ins) else None


@record(eq=False)
class Sized:
    """An operator as steps whose results are as long as data say.

    results: types of the greatest.  axes: of each the axis that is shorter, None of one that is not; what there is lies
    dense.  steps: ``Out(i)`` is result i, and ``Out(len(results))`` takes the length, one i64.
    """

    results: tuple[TensorType, ...]
    axes: tuple[int | None, ...]
    steps: list[Step]


MakeSized: TypeAlias = Callable[[Any, Any], "Sized | None"]
SIZED: dict[tuple[type[Op], str], MakeSized] = {}


def sized(op: type[Op], device: str = "cpu") -> Callable[[MakeSized], MakeSized]:
    """Register ``make(op, types of the operands)``: the steps, or None where these operands are not for it."""

    def register(make: MakeSized) -> MakeSized:
        SIZED[op, device] = make
        return make

    return register


def select_sized(op: Op, ins: Given, device: str = "cpu") -> Sized | None:
    """The steps of a node whose results are as long as data say, or None."""
    load(device)
    make = None if any(map(only_in_python, ins)) else SIZED.get((type(op), device))
    return None if make is None else make(op, ins)
