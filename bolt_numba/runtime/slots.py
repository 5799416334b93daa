"""What the planner works on: slots (one per value of a concrete plan) and jobs (one per node that computes)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.files.mapped import for_runs
from bolt_numba.base.records import record
from bolt_numba.base.types import Array, TensorType
from bolt_numba.ir.graph import Value
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import HOST, Device, Memory

if TYPE_CHECKING:
    from bolt_numba.kernels.registry import Step
    from bolt_numba.kernels.unseen import Packed

INPUT, CONST, TEMP = "input", "const", "temp"


@record(eq=False)
class Slot:
    """A value with a concrete type, and where it lives.

    base: the slot whose memory this one shares, ``offset`` bytes further on; None for an own buffer.
    pitch: elements between rows (last axis) when they are not dense.  result: index of the output array that this
    buffer *is*; such buffers are the caller's memory, not the arena's.  memory: of the devices that compute and read
    it; of inputs, constants and results the host's.  place: bytes into the arena of that memory.  source: the constant
    of the graph that it is.  is_room: whether it has room for a result as long as data say, which is a view of it.
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
    memory: Memory = HOST
    source: Value | None = None
    is_room: bool = False

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
    """One node to run: steps of its device, or what that does without (the host: the operator's reference).

    runner: what does it, for people.  inplace: operands that the only result may take the memory of.  states: pairs of
    an operand and a result that may be one buffer of the caller's.  stage: how many stops come before it
    (`runtime.stops`).  lacking: kernels for which it stands in.  leaving: constants that need not stay in memory once
    all is packed.  arrays: what is packed, once the plan is linked.
    """

    name: str
    op: Op
    device: Device
    ins: list[Slot | None]
    outs: list[Slot]
    steps: list[Step] | None = None
    runner: str = "reference"
    inplace: tuple[int, ...] = ()
    states: frozenset[tuple[int, int]] = frozenset()
    stage: int = 0
    leaving: Sequence[Slot] = ()
    lacking: Sequence[Any] = ()
    scratch: dict[int, int] = field(default_factory=dict)
    """id(Scratch) -> arena offset."""
    arrays: dict[Packed, Array] = field(default_factory=dict)


def own(slots: Iterable[Slot | None]) -> None:
    """Take out of files what Python reads in every run; `build_program` does so for kernels."""
    for slot in slots:
        root = None if slot is None else slot.root()[0]
        if root is not None and root.kind == CONST:
            root.const = for_runs(root.const)


def view(slot: Slot, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Array:
    """The buffer of a slot in the host's memory as an array; arena: the buffer there of one run."""
    root, offset = slot.root()
    dims = slot.type.dims
    if root.kind == CONST:
        assert root.const is not None
        return root.const.reshape(dims)
    if root.kind == INPUT:
        data: Array = inputs[root.index].reshape(-1).view(np.uint8)
    elif root.result >= 0:
        data = outputs[root.result].reshape(-1).view(np.uint8)
    else:
        data = arena[root.place :]
    if slot.pitch is not None:
        item = slot.type.dtype.itemsize
        strides = [slot.pitch * item] * len(dims)
        strides[-1] = item
        for axis in range(len(dims) - 3, -1, -1):
            strides[axis] = strides[axis + 1] * dims[axis + 1]
        return np.ndarray(dims, slot.type.dtype, data.data, offset, strides)
    return data[offset : offset + slot.type.nbytes].view(slot.type.dtype).reshape(dims)
