"""Attention within rows of unequal lengths that lie one after another."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import I64, Array, TensorType
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.registry import Op, op, want_dtype
from bolt_numba.ops.shapes import want_dims


@op("RaggedAttention")
class RaggedAttention(Op):
    """y = ``op`` of each row by itself, where positions are those of all rows, one row after another.

    op: a FusedAttention · lengths: [rows] i64, positions of each row, together all there are · q, k, v: as ``op`` wants
    them, without a mask and with batch axes of 1 -> y: as that of ``op``.  Internal: made for packed rows only.
    """

    op: Op
    data_bounds = bounded(
        lengths="which positions are read and written; each is tested against those that are left, else refused"
    )

    def infer(
        self, lengths: TensorType, q: TensorType, k: TensorType | None = None, v: TensorType | None = None
    ) -> TensorType:
        if not isinstance(self.op, FusedAttention):
            raise self.fail("op", self.op.name, "FusedAttention")
        want_dtype(self, "lengths", lengths.dtype, I64)
        want_dims(self, "lengths", lengths, None)
        made = self.op.infer(q, k, v)
        operands = [t for t in (q, k, v) if t is not None]
        for t, axis in zip(operands, self.axes, strict=False):
            if t.shape is not None:
                if any(d != 1 for d in t.shape[:-3]):
                    raise self.fail("batch axes", list(t.shape[:-3]), "ones")
                if t.shape[axis] != q.shape[self.axes[0]]:  # type: ignore[index]
                    raise self.fail("positions of q, k and v", [t.shape[axis], q.shape], "as many of each")
        return made

    @property
    def axes(self) -> tuple[int, int, int, int]:
        """The axis of positions in q, k, v and y."""
        of = self.op
        assert isinstance(of, FusedAttention), "infer() has tested this"
        return tuple(-3 if at == "SHD" else -2 for at in (*of.layouts, of.y_layout))  # type: ignore[return-value]

    def reference(self, lengths: Array, q: Array, k: Array | None = None, v: Array | None = None) -> Array:
        left = q.shape[self.axes[0]] - np.cumsum(lengths) + lengths
        want_between(self, "lengths", lengths, np.where(np.arange(len(left)) == len(left) - 1, left, 0), left)
        ends = np.cumsum(lengths)
        found = [
            self.op.reference(*[_cut(x, axis, end - n, end) for x, axis in zip((q, k, v), self.axes, strict=False)])
            for n, end in zip(lengths, ends, strict=True)
            if n
        ]
        return np.concatenate(found, self.axes[-1]) if found else self.op.reference(q, k, v)


def _cut(x: Array | None, axis: int, begin: int, end: int) -> Array | None:
    return None if x is None else x.take(np.arange(begin, end), axis)
