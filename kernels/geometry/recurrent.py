"""Recurrent layers, for the makers of every device: sizes of a node, and how far its steps and states lie apart."""

from __future__ import annotations

from bolt_numba.base.records import record
from bolt_numba.kernels.registry import Argument, In, Types
from bolt_numba.ops.layers.recurrent import Recurrent


@record(frozen=True)
class RecurrentSizes:
    """One node and its sizes: steps, batch, inputs, hidden units."""

    op: Recurrent
    ins: Types
    t: int
    n: int
    i: int
    h: int

    @staticmethod
    def sizes_of(op: Recurrent, ins: Types) -> tuple[int, int, int, int]:
        """The sizes in this order."""
        x, r = ins[0], ins[2]
        t, n = x.dims[:2] if op.layout == 0 else (x.dims[1], x.dims[0])
        return t, n, x.dims[2], r.dims[2]

    def optional(self, index: int) -> In | None:
        """An operand that may be omitted."""
        return In(index) if len(self.ins) > index and self.ins[index] is not None else None

    def state_strides(self, itemsize: int) -> dict[str, Argument]:
        """Bytes of y and of states between steps, directions and sequences."""
        d, row = self.op.directions, itemsize * self.h
        if self.op.layout == 0:
            return {"yt": d * self.n * row, "yd": self.n * row, "yb": row, "sd": self.n * row, "sb": row}
        return {"yt": d * row, "yd": row, "yb": self.t * d * row, "sd": row, "sb": d * row}
