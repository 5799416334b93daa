"""Which kernel multiplies: makers of MatMul for f32 and halves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.products.choose import choose
from bolt_numba.kernels.cuda.products.combine import combine
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.finish import can_finish, tail_args
from bolt_numba.kernels.cuda.products.simt import SIMT_TILES, simt
from bolt_numba.kernels.cuda.products.tail import TailForm
from bolt_numba.kernels.geometry.products import ProductBlocks, block_index, geometry
from bolt_numba.kernels.registry import Argument, Context, In, Out, Pitch, Scratch, Step, Types, kernel, result_of
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.types import BF16, F16, F32, Array, TensorType, dtype_name

FLOATS = (F32, F16, BF16)
WIDE = 16
"""Bytes of the widest copy."""
LEAST_F32 = 128
"""Terms of a part of a sum."""


@record(frozen=True)
class ProductOperands:
    """A product as a kernel sees it: its blocks, and how the operands lie."""

    g: ProductBlocks
    a_order: Order
    b_order: Order
    args: dict[str, Argument]


def _order(dense: str, run: int, size: int, matrix: int) -> Order:
    """run: elements of a dense run; matrix: elements of a matrix."""
    return Order(dense, run * size % WIDE == 0 and matrix * size % WIDE == 0)


def operands(op: MatMul, a: TensorType, b: TensorType) -> ProductOperands:
    """Both operands as they lie in memory."""
    swap_a, swap_b = op.trans_a and len(a.dims) > 1, op.trans_b and len(b.dims) > 1
    g = geometry(op, a.dims, b.dims, merged=not swap_a or len(a.dims) == 2)
    dense_a, dense_b = "m" if swap_a else "k", "k" if swap_b or len(b.dims) == 1 else "m"
    lda, ldb, size = g.m if swap_a else g.k, g.k if dense_b == "k" else g.n, a.dtype.itemsize
    table, a_block, b_block = _blocks(g, size)
    args: dict[str, Argument] = {
        "a": In(0), "b": In(1), "table": table, "m": g.m, "n": g.n, "k": g.k, "lda": lda, "ldb": ldb,
        "a_block": a_block, "b_block": b_block, "matrices": g.blocks,
    }  # fmt: skip
    return ProductOperands(g, _order(dense_a, lda, size, g.m * g.k), _order(dense_b, ldb, size, g.k * g.n), args)


def _blocks(g: ProductBlocks, size: int) -> tuple[Array | None, int, int]:
    """Bytes from each operand's first matrix to those of all blocks: a table, or steps where they are even."""
    own = (g.a_batch, g.m * g.k * size), (g.b_batch, g.k * g.n * size)
    if all(math.prod(batch) in (1, g.blocks) for batch, _ in own):
        a_block, b_block = (0 if math.prod(batch) == 1 else nbytes for batch, nbytes in own)
        return None, a_block, b_block
    return np.stack([block_index(g.batch, batch) * nbytes for batch, nbytes in own], 1), 0, 0


def accepts(op: Any, ins: Types) -> bool:
    """Operands of one float dtype, a bias of the columns of a matrix, a residual of the result's shape."""
    a, b, bias, residual = (*ins, None, None)[:4]
    if a is None or b is None or op.to is not None or a.dtype not in FLOATS or b.dtype != a.dtype:
        return False
    if any(t is not None and (t.dtype not in FLOATS or not t.is_static) for t in ins) or not can_finish(op.activation):
        return False
    out = result_of(op, ins)
    if bias is not None and (len(b.dims) == 1 or bias.dims != out.dims[-1:]):
        return False
    return residual is None or residual.dims == out.dims


def accepts_f32(op: Any, ins: Types) -> bool:
    return accepts(op, ins) and ins[0] is not None and ins[0].dtype == F32


def _stored(op: Any, ins: Types, y: TensorType) -> TailForm:
    _, _, bias, residual = (*ins, None, None)[:4]
    of_bias, of_residual = ("f32" if t is None else dtype_name(t.dtype) for t in (bias, residual))
    return TailForm(dtype_name(y.dtype), of_bias, of_residual, tail_args(op.activation).act)


def _tail(op: Any, ins: Types, y: TensorType) -> dict[str, Argument]:
    _, b, bias, residual = (*ins, None, None)[:4]
    flat = len(y.dims) == 0 or (b is not None and len(b.dims) == 1)
    return {
        "bias": None if bias is None else In(2), "residual": None if residual is None else In(3), "y": Out(),
        "ldy": 1 if flat else Pitch(Out(0)), "alpha": op.alpha, **tail_args(op.activation).numbers,
    }  # fmt: skip


def split_steps(op: Any, ins: Types, y: TensorType, of: ProductOperands, splits: int, kernel_of: Any) -> list[Step]:
    """The steps of a product whose sums are added in parts; kernel_of: the kernel that stores in a given way."""
    stored, tail = _stored(op, ins, y), _tail(op, ins, y)
    if splits == 1:
        return [Step(kernel_of(stored), {**of.args, **tail, "splits": 1, "split_bytes": 0})]
    rows, n = of.g.m * of.g.blocks, of.g.n
    parts = Scratch(4 * splits * rows * n)
    plain: dict[str, Argument] = {
        "bias": None, "residual": None, "y": parts, "ldy": n, "alpha": 1.0, **tail_args(None).numbers
    }  # fmt: skip
    return [
        Step(kernel_of(TailForm()), {**of.args, **plain, "splits": splits, "split_bytes": 4 * rows * n}),
        Step(combine(stored), {"parts": parts, "rows": rows, "n": n, "splits": splits, **tail}),
    ]


@kernel(MatMul, device="cuda", accepts=accepts_f32, by_types=True)
def matmul(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """f32, on plain cores."""
    a, b, y = ins[0], ins[1], outs[0]
    assert a is not None
    assert b is not None
    if not y.size:
        return []
    of = operands(op, a, b)
    tile, splits = choose(SIMT_TILES, of.g.m, of.g.n, of.g.k, of.g.blocks, LEAST_F32)
    return split_steps(op, ins, y, of, splits, lambda stored: simt(tile, of.a_order, of.b_order, stored))
