"""Matrix products as blocks, for the makers of every device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.shapes import broadcast_shapes


@dataclass(frozen=True, slots=True)
class ProductBlocks:
    """A product as blocks of [m, k] x [k, n]; the batches of the result, of A and of B."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]

    @property
    def blocks(self) -> int:
        return math.prod(self.batch)

    @property
    def a_blocks(self) -> int:
        return math.prod(self.a_batch)

    @property
    def b_blocks(self) -> int:
        return math.prod(self.b_batch)


def geometry(op: MatMul, a: Sequence[int], b: Sequence[int], *, merged: bool = True) -> ProductBlocks:
    """Operands of rank 1 become a row or a column; rows of a batch that share B become rows of one block.

    merged: whether the latter happens, which needs rows that lie dense one behind the other.
    """
    left = (1, *a) if len(a) == 1 else tuple(a)
    right = (*b, 1) if len(b) == 1 else tuple(b)
    if op.trans_a and len(a) > 1:
        left = (*left[:-2], left[-1], left[-2])
    if op.trans_b and len(b) > 1:
        right = (*right[:-2], right[-1], right[-2])
    (*a_batch, m, k), (*b_batch, _, n) = left, right
    batch = cast("tuple[int, ...]", broadcast_shapes(op, tuple(a_batch), tuple(b_batch)))
    if merged and math.prod(b_batch) == 1 and math.prod(a_batch) == math.prod(batch):
        return ProductBlocks(m * math.prod(batch), n, k, (), (), ())
    return ProductBlocks(m, n, k, batch, tuple(a_batch), tuple(b_batch))


def block_index(batch: tuple[int, ...], own: tuple[int, ...]) -> Array:
    """Which of an operand's own blocks each block of the result reads."""
    index = np.arange(math.prod(own), dtype=np.int64).reshape(own)
    return np.broadcast_to(index, batch).reshape(-1) if batch else np.zeros(1, np.int64)
