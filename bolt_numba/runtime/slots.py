"""What the planner works on: slots (one per value of a concrete plan) and jobs (one per node that computes)."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from bolt_numba.ops.registry import Op
from bolt_numba.records import record
from bolt_numba.types import Array, TensorType

if TYPE_CHECKING:
    from bolt_numba.kernels.registry import Step

INPUT, CONST, TEMP = "input", "const", "temp"


@record(eq=False)
class Slot:
    """A value with a concrete type, and where it lives.

    base: the slot whose memory this one shares, ``offset`` bytes further on; None for an own buffer.
    pitch: elements between rows (last axis) when they are not dense.  result: index of the output array that this
    buffer *is*; such buffers are the caller's memory, not the arena's.
    """

    name: str
    type: TensorType
    kind: str
    index: int = -1
    const: Array | None = None
    base: Slot | None = None
    offset: int = 0
    pitch: int | None = None
    result: int = -1
    place: int = -1

    def root(self) -> tuple[Slot, int]:
        """The slot that owns the memory, and this slot's byte offset in it."""
        slot, offset = self, 0
        while slot.base is not None:
            offset += slot.offset
            slot = slot.base
        return slot, offset

    @property
    def row(self) -> int:
        """Elements from one row to the next."""
        if self.pitch is not None:
            return self.pitch
        dims = self.type.dims
        return dims[-1] if dims else 1


@record(eq=False)
class Job:
    """One node to run: native steps, or the operator's reference when ``steps`` is None."""

    name: str
    op: Op
    ins: list[Slot | None]
    outs: list[Slot]
    steps: list[Step] | None = None
    runner: str = "reference"
    inplace: tuple[int, ...] = ()
    scratch: dict[int, int] = field(default_factory=dict)
    """id(Scratch) -> arena offset."""
