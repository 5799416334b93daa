"""Functions of one byte as tables: 256 results stand for any chain of unary operators between two conversions."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import I8, U8, Array, TensorType
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.registry import Op, op, want_dtypes
from bolt_numba.ops.shapes import want_dims

ENTRIES = 256
"""Elements of a table: one for each pattern of bits."""


@op("ByteTable")
class ByteTable(Op):
    """y = table[bits of x].

    x: [...] u8 or i8, of which -1 is entry 255 · table: [256] u8 or i8 -> y: x's shape, table's dtype.  Internal: made
    by stage ``quantise`` of what stands between a DequantizeLinear and a QuantizeLinear.
    """

    data_bounds = bounded(x="every byte is an index of the table", table=VALUES)

    def infer(self, x: TensorType, table: TensorType) -> TensorType:
        want_dtypes(self, (U8, I8), x=x, table=table)
        want_dims(self, "table", table, ENTRIES)
        return TensorType(table.dtype, x.shape)

    def reference(self, x: Array, table: Array) -> Array:
        return np.asarray(table[x.view(U8)])
