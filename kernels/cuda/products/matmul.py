"""Which kernel multiplies: makers of MatMul for f32 and halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, Array, TensorType, dtype_name
from bolt_numba.kernels.cuda.declare import CudaKernel
from bolt_numba.kernels.cuda.products.choose import choose, splits_to_fill
from bolt_numba.kernels.cuda.products.combine import combine
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.few import ROWS, columns_of, few_columns, few_terms
from bolt_numba.kernels.cuda.products.finish import can_finish, tail_args
from bolt_numba.kernels.cuda.products.simt import SIMT_TILES, simt
from bolt_numba.kernels.cuda.products.tail import TailForm
from bolt_numba.kernels.cuda.products.tensor import INTEGERS, SIZES, TENSOR_TILES, tensor
from bolt_numba.kernels.geometry.products import ProductBlocks, block_index, geometry
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel, result_of
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.products.matmul import MatMul

FLOATS = (F32, F16, BF16)
Choice: TypeAlias = "tuple[int, Callable[[Any], CudaKernel]]"
"""Parts of the sums, and the kernel that stores in a given way."""
WIDE = 16
"""Bytes of the widest copy."""
LEAST_F32, LEAST_HALVES, LEAST_FEW = 128, 256, 512
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
    return Order(dense, bool(run * size % WIDE == 0 and matrix * size % WIDE == 0))  # decided, where sizes are followed


def padded_rows(to: int) -> Callable[[Array], Array]:
    """Packs an array so that its rows begin at multiples of ``to`` elements."""

    def pack(array: Array) -> Array:
        return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % to)])

    return pack


def turned(rows: int) -> Callable[[Array], Array]:
    """Packs matrices [..., k, n] of ``rows`` rows as [..., n, k], k padded so that columns begin at multiples of 16."""

    def pack(array: Array) -> Array:
        swapped = np.swapaxes(array, -1, -2)
        return np.ascontiguousarray(np.pad(swapped, [(0, 0)] * (array.ndim - 1) + [(0, turned_row(rows) - rows)]))

    return pack


def turned_row(rows: int) -> int:
    """Elements from one of its columns to the next."""
    return rows + -rows % WIDE


def lying(op: MatMul, a: TensorType, b: TensorType) -> ProductOperands:
    """Both operands as they lie in memory; rows of a constant B count as padded where they would be misaligned."""
    swap_a, swap_b = op.trans_a and len(a.dims) > 1, op.trans_b and len(b.dims) > 1
    g = geometry(op, a.dims, b.dims, merged=not swap_a or len(a.dims) == 2)
    dense_a, dense_b = "m" if swap_a else "k", "k" if swap_b or len(b.dims) == 1 else "m"
    lda, ldb, size = g.m if swap_a else g.k, g.k if dense_b == "k" else g.n, a.dtype.itemsize
    if b.known is not None and len(b.dims) > 1:
        ldb += -ldb % (WIDE // size)
    lines_b = g.n if dense_b == "k" else g.k
    table, a_block, b_block = _blocks(g, size * g.m * g.k, size * ldb * lines_b)
    args: dict[str, Argument] = {
        "a": In(0), "b": In(1), "table": table, "m": g.m, "n": g.n, "k": g.k, "lda": lda, "ldb": ldb,
        "a_block": a_block, "b_block": b_block, "matrices": g.blocks,
    }  # fmt: skip
    return ProductOperands(g, _order(dense_a, lda, size, g.m * g.k), _order(dense_b, ldb, size, ldb * lines_b), args)


def operands(op: MatMul, a: TensorType, b: TensorType, context: Context) -> ProductOperands:
    """The same, and the packed constant where B is padded."""
    of = lying(op, a, b)
    if b.known is None or of.args["ldb"] == b.dims[-1] or len(b.dims) == 1:
        return of
    packed = context.packed(b.known, ("rows of 16 bytes",), padded_rows(WIDE // a.dtype.itemsize))
    return replace(of, args={**of.args, "b": packed})


def _blocks(g: ProductBlocks, a_bytes: int, b_bytes: int) -> tuple[Array | None, int, int]:
    """Bytes from each operand's first matrix to those of all blocks: a table, or steps where they are even."""
    own = (g.a_batch, a_bytes), (g.b_batch, b_bytes)
    if all(math.prod(batch) in (1, g.blocks) for batch, _ in own):
        a_block, b_block = (0 if math.prod(batch) == 1 else nbytes for batch, nbytes in own)
        return None, a_block, b_block
    return np.stack([block_index(g.batch, batch) * nbytes for batch, nbytes in own], 1), 0, 0


def accepts(op: MatMul, ins: Types) -> bool:
    """Operands of one float dtype, a bias of the columns of a matrix, a residual of the result's shape."""
    a, b, bias, residual = (*ins, None, None)[:4]
    if a is None or b is None or op.to is not None or a.dtype not in FLOATS or b.dtype != a.dtype:
        return False
    if any(t is not None and (t.dtype not in FLOATS or not t.is_static) for t in ins) or not can_finish(op.activation):
        return False
    out = result_of(op, ins)
    if bias is not None and (len(b.dims) == 1 or bias.dims != out.dims[-1:]):
        return False
    return (residual is None or residual.dims == out.dims) and can_be_numbered(geometry(op, a.dims, b.dims))


def can_be_numbered(g: ProductBlocks) -> bool:
    """Whether its sizes are within what kernels are given."""
    return all(size <= MAX_I32 for size in (g.m, g.n, g.k, g.blocks))


def accepts_f32(op: MatMul, ins: Types) -> bool:
    return accepts(op, ins) and ins[0].dtype == F32


def accepts_halves(op: MatMul, ins: Types) -> bool:
    return accepts(op, ins) and ins[0].dtype in (F16, BF16)


def accepts_tf32(op: MatMul, ins: Types) -> bool:
    """f32 whose terms lie dense, or a constant matrix B, which is packed so."""
    a, b = ins[0], ins[1]
    if not accepts_f32(op, ins) or (op.trans_a and len(a.dims) > 1):
        return False
    return op.trans_b if len(b.dims) > 2 else b.known is not None or op.trans_b or len(b.dims) == 1


def _stored(op: MatMul, ins: Types, y: TensorType) -> TailForm:
    _, _, bias, residual = (*ins, None, None)[:4]
    of_bias, of_residual = ("f32" if t is None else dtype_name(t.dtype) for t in (bias, residual))
    return TailForm(dtype_name(y.dtype), of_bias, of_residual, tail_args(op.activation).act)


def accepts_few(op: MatMul, ins: Types) -> bool:
    """As `accepts`, with few rows that lie dense."""
    a, b = ins[0], ins[1]
    if not accepts(op, ins):
        return False
    return geometry(op, a.dims, b.dims).m <= ROWS[-1] and not (op.trans_a and len(a.dims) > 1)


def _tail(op: MatMul, ins: Types, y: TensorType) -> dict[str, Argument]:
    _, b, bias, residual = (*ins, None, None)[:4]
    flat = len(y.dims) == 0 or (b is not None and len(b.dims) == 1)
    return {
        "bias": None if bias is None else In(2), "residual": None if residual is None else In(3), "y": Out(),
        "ldy": 1 if flat else Pitch(Out(0)), "alpha": op.alpha, **tail_args(op.activation).numbers,
    }  # fmt: skip


def split_steps(op: MatMul, ins: Types, y: TensorType, of: ProductOperands, splits: int, kernel_of: Any) -> list[Step]:
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


def by_simt(of: ProductOperands, dtype: str) -> Choice:
    tile, splits = choose(SIMT_TILES, of.g.m, of.g.n, of.g.k, of.g.blocks, LEAST_F32)
    return splits, lambda stored: simt(tile, of.a_order, of.b_order, stored)


def in_halves(g: ProductBlocks, kind: str) -> tuple[int, int, int, int, int]:
    """What `choose` asks of a product on tensor cores, whose terms take as long as so many of halves.

    Sums of integers are not added in parts.
    """
    least = g.k if kind in INTEGERS else LEAST_HALVES * SIZES[kind] // 2
    return g.m, g.n, g.k * SIZES[kind] // 2, g.blocks, least


def by_tensor(of: ProductOperands, dtype: str) -> Choice:
    tiles = [t for t in TENSOR_TILES if t.serves(of.a_order, of.b_order)]
    tile, splits = choose(tiles, *in_halves(of.g, dtype))
    return splits, lambda stored: tensor(tile, dtype, of.a_order, of.b_order, stored)


def by_few(of: ProductOperands, dtype: str) -> Choice:
    rows, by_columns = next(r for r in ROWS if r >= of.g.m), of.b_order.dense == "k"
    wide = of.b_order.wide and (of.a_order.wide or not by_columns)
    splits = splits_to_fill(-(-of.g.n // columns_of(of.b_order)) * of.g.blocks, of.g.k, LEAST_FEW)
    made = few_columns if by_columns else few_terms
    return splits, lambda stored: made(rows, dtype, wide, stored)


def product_steps(way: Any, op: MatMul, ins: Types, y: TensorType, context: Context) -> list[Step]:
    a, b = ins[0], ins[1]
    if not y.size:
        return []
    of = operands(op, a, b, context)
    return split_steps(op, ins, y, of, *way(of, dtype_name(a.dtype)))


@kernel(MatMul, device="cuda", accepts=accepts_f32)
def matmul(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f32, on plain cores."""
    return product_steps(by_simt, op, ins, outs[0], context)


@kernel(MatMul, device="cuda", accepts=accepts_halves)
def matmul_halves(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f16 and bf16 on tensor cores, with sums in f32."""
    return product_steps(by_tensor, op, ins, outs[0], context)


@kernel(MatMul, device="cuda", accepts=accepts_few, rank=3)
def matmul_few(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Up to 4 rows, at the speed of the memory."""
    return product_steps(by_few, op, ins, outs[0], context)


@kernel(MatMul, device="cuda", accepts=accepts_tf32, rank=1, numerics="fast")
def matmul_tf32(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f32 on tensor cores, which read the first 10 bits of each fraction and add in f32."""
    return tf32_steps(by_tensor, op, ins, outs[0], context)


def tf32_steps(way: Any, op: MatMul, ins: Types, y: TensorType, context: Context) -> list[Step]:
    """The steps of f32 on tensor cores; way: such as `by_tensor`."""
    a, b = ins[0], ins[1]
    if not y.size:
        return []
    of = operands(op, a, b, context)
    if of.b_order.dense == "m":
        packed = context.packed(b.known, ("turned",), turned(of.g.k))
        of = replace(of, b_order=Order("k", True), args={**of.args, "b": packed, "ldb": turned_row(of.g.k)})
    return split_steps(op, ins, y, of, *way(of, "tf32"))
