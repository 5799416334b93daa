"""MatMulInteger and QLinearMatMul on tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import I8, U8, Array, TensorType, dtype_name
from bolt_numba.kernels.cuda.declare import CudaKernel
from bolt_numba.kernels.cuda.movement.moves import steps as moved
from bolt_numba.kernels.cuda.products.choose import choose
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.finish import can_finish, tail_args
from bolt_numba.kernels.cuda.products.matmul import WIDE, can_be_numbered, in_halves, turned, turned_row
from bolt_numba.kernels.cuda.products.prepare_bytes import numbers_of_columns, sums_of_rows
from bolt_numba.kernels.cuda.products.tail_bytes import BYTES, FUSED, HEAD, SUMS, ByteForm, columns_at, table_bytes
from bolt_numba.kernels.cuda.products.tensor import TENSOR_TILES, tensor
from bolt_numba.kernels.geometry.bytes import (
    OperandPlaces,
    are_plain,
    are_single,
    given,
    operand,
    places_of,
    sides,
    sums_are_exact,
)
from bolt_numba.kernels.geometry.products import ProductBlocks, geometry
from bolt_numba.kernels.geometry.strides import transpose_move
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.layers.products.integer_products import ByteMatMul, MatMulInteger, QLinearMatMul, is_fused
from bolt_numba.ops.layers.products.matmul import MatMul

_LETTER = {U8: "u8", I8: "s8"}


def accepts_bytes(op: ByteMatMul, ins: Types) -> bool:
    """Bytes with one scale and zero point of A and of the result, and one or one for each column of B."""
    at = places_of(op)
    if not are_plain(ins, at) or not can_finish(getattr(op, "activation", None)):
        return False
    a, b = sides(ins, at)
    if min(len(a.dims), len(b.dims)) < 2 or not a.size or not are_single(ins, at.zero_a, at.scale_a):
        return False
    along = [given(ins, i) for i in (at.zero_b, at.scale_b)]
    columns = b.dims[-1]
    if any(t is not None and t.size != 1 and (t.size != columns or t.dims[-1] != columns) for t in along):
        return False
    g = geometry(MatMul(), a.dims, b.dims)
    evenly = g.a_blocks == g.blocks and g.b_blocks in (1, g.blocks)
    return evenly and can_be_numbered(g) and sums_are_exact(ins, at, g.k)


def _columns_of_b(array: Array) -> Array:
    return np.ascontiguousarray(array.astype(np.int64).sum(axis=-2).astype(np.int32))


def _b_steps(at: OperandPlaces, b: TensorType, g: ProductBlocks, context: Context) -> tuple[Any, Any, int, list[Step]]:
    """B by columns, the sums of its columns, bytes from column to column, and the steps that make both at run time."""
    if b.known is not None:
        packed = context.packed(b.known, ("columns of bytes",), turned(g.k))
        return packed, context.packed(b.known, ("sums of columns",), _columns_of_b), turned_row(g.k), []
    rank, to, sums = len(b.dims), Scratch(b.nbytes), Scratch(4 * g.b_blocks * g.n)
    made = moved(transpose_move(b.dims, (*range(rank - 2), rank - 1, rank - 2), 1), In(at.b), to)
    args: dict[str, Argument] = {"x": to, "to": sums, "rows": g.b_blocks * g.n, "k": g.k, "pitch": g.k, "skip": 0}
    return to, sums, g.k, [*made, Step(sums_of_rows(dtype_name(b.dtype), g.k % WIDE == 0), args)]


def _name(t: TensorType | None, default: str) -> str:
    return default if t is None else dtype_name(t.dtype)


def _table_steps(
    op: ByteMatMul, ins: Types, at: OperandPlaces, g: ProductBlocks, table: Scratch, sums: Any, form: ByteForm
) -> list[Step]:
    """The steps that fill the table."""
    b_zero, b_scale = given(ins, at.zero_b), given(ins, at.scale_b)
    rows, names = g.m * g.blocks, [_name(given(ins, i), "u8") for i in (at.a, at.b, at.zero_y)]
    rest = _name(given(ins, at.residual), "u8")
    made = numbers_of_columns(*names, _name(given(ins, at.bias), "f32"), "u8" if rest == "f32" else rest)
    numbers: dict[str, Argument] = {
        "a_zero": operand(ins, at.zero_a), "b_zero": operand(ins, at.zero_b), "a_scale": operand(ins, at.scale_a),
        "b_scale": operand(ins, at.scale_b), "y_scale": operand(ins, at.scale_y), "y_zero": operand(ins, at.zero_y),
        "bias": operand(ins, at.bias), "rest_scale": operand(ins, at.scale_r), "rest_zero": operand(ins, at.zero_r),
        "sums": sums, "table": table, "columns": g.b_blocks * g.n, "n": g.n, "k": g.k,
        "zero_step": int(b_zero is not None and b_zero.size > 1), "first": columns_at(rows),
        "scale_step": int(b_scale is not None and b_scale.size > 1), "fused": int(form.result == FUSED),
    }  # fmt: skip
    of_rows: dict[str, Argument] = {"x": In(at.a), "to": table, "rows": rows, "k": g.k, "pitch": g.k, "skip": HEAD}
    found = [Step(made, numbers)]
    return [*found, Step(sums_of_rows(dtype_name(ins[at.a].dtype), g.k % WIDE == 0), of_rows)] if form.offset else found


def _form(op: ByteMatMul, ins: Types, at: OperandPlaces, g: ProductBlocks, y: TensorType) -> ByteForm:
    residual, bias, y_scale = (given(ins, i) for i in (at.residual, at.bias, at.scale_y))
    result = SUMS if at.scale_a is None else FUSED if is_fused(op, y_scale, bias) else BYTES
    act = tail_args(getattr(op, "activation", None)).act
    zero = given(ins, at.zero_b)
    offset = zero is not None and (zero.known is None or bool(content(zero.known).any()))
    return ByteForm(dtype_name(y.dtype), _name(residual, "f32"), result, g.b_blocks > 1, offset, act)


def bytes_by_tensor(g: ProductBlocks, kind: str, orders: tuple[Order, Order], form: ByteForm) -> CudaKernel:
    tile, _ = choose(TENSOR_TILES, *in_halves(g, kind))
    return tensor(tile, kind, *orders, form)


@kernel(MatMulInteger, QLinearMatMul, device="cuda", accepts=accepts_bytes)
def matmul_bytes(op: ByteMatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Sums by mma of bytes; zero points by sums of rows and columns."""
    return byte_steps(bytes_by_tensor, op, ins, outs[0], context)


def byte_steps(way: Any, op: ByteMatMul, ins: Types, y: TensorType, context: Context) -> list[Step]:
    """The steps of a product of bytes; way: such as `bytes_by_tensor`."""
    at = places_of(op)
    a, b = sides(ins, at)
    g = geometry(MatMul(), a.dims, b.dims)
    form = _form(op, ins, at, g, y)
    columns, sums, ldb, made = _b_steps(at, b, g, context)
    table = Scratch(table_bytes(g.m * g.blocks, g.b_blocks * g.n))
    made += _table_steps(op, ins, at, g, table, sums, form)
    orders = Order("k", g.k % WIDE == 0), Order("k", ldb % WIDE == 0)
    args: dict[str, Argument] = {
        "a": In(at.a), "b": columns, "table": None, "m": g.m, "n": g.n, "k": g.k, "lda": g.k, "ldb": ldb,
        "a_block": g.m * g.k, "b_block": g.n * ldb if form.each else 0, "matrices": g.blocks,
        "splits": 1, "split_bytes": 0, "bias": table,
        "residual": operand(ins, at.residual), "y": Out(), "ldy": Pitch(Out(0)), "alpha": 1.0,
        **tail_args(getattr(op, "activation", None)).numbers,
    }  # fmt: skip
    kind = "s8" if a.dtype == b.dtype == I8 else _LETTER[a.dtype] + _LETTER[b.dtype]
    return [*made, Step(way(g, kind, orders, form), args)]
