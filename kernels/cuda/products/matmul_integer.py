"""MatMulInteger and QLinearMatMul on tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I8, I32, U8, Array, TensorType, dtype_name
from bolt_numba.kernels.cuda.declare import CudaKernel
from bolt_numba.kernels.cuda.movement.moves import steps as moved
from bolt_numba.kernels.cuda.products.choose import choose
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.finish import can_finish, tail_args
from bolt_numba.kernels.cuda.products.matmul import WIDE, can_be_numbered, in_halves, turned, turned_row
from bolt_numba.kernels.cuda.products.prepare_bytes import numbers_of_columns, sums_of_rows
from bolt_numba.kernels.cuda.products.tail_bytes import BYTES, FUSED, HEAD, SUMS, ByteForm, columns_at, table_bytes
from bolt_numba.kernels.cuda.products.tensor import TENSOR_TILES, tensor
from bolt_numba.kernels.geometry.products import ProductBlocks, geometry
from bolt_numba.kernels.geometry.strides import transpose_move
from bolt_numba.kernels.geometry.unseen import content, tested
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.integer_products import ByteMatMul, MatMulInteger, QLinearMatMul, is_fused, sums_fit
from bolt_numba.ops.layers.products.matmul import MatMul

BYTE_DTYPES = (U8, I8)
_LETTER = {U8: "u8", I8: "s8"}


@record(frozen=True)
class BytePositions:
    """Where a node has its operands; None for what its operator does not have."""

    a: int = 0
    b: int = 1
    a_zero: int = 2
    b_zero: int = 3
    a_scale: int | None = None
    b_scale: int | None = None
    y_scale: int | None = None
    y_zero: int | None = None
    bias: int | None = None
    residual: int | None = None
    rest_scale: int | None = None
    rest_zero: int | None = None


SUMS_AT, QLINEAR_AT = BytePositions(), BytePositions(0, 3, 2, 5, 1, 4, 6, 7, 8, 9, 10, 11)


def _of(ins: Types, index: int | None) -> TensorType | None:
    return None if index is None or index >= len(ins) else ins[index]


def positions(op: ByteMatMul) -> BytePositions:
    return QLINEAR_AT if isinstance(op, QLinearMatMul) else SUMS_AT


def _exact(at: BytePositions, ins: Types, k: int) -> bool:
    """Whether sums stay within i32; those of MatMulInteger wrap around."""
    if at.a_scale is None:
        return True
    bias = _of(ins, at.bias)
    whole = bias is not None and bias.dtype == I32
    if whole and bias is not None and bias.known is None:
        return False
    added = content(bias.known) if whole and bias is not None else None
    zeros = tested(_of(ins, at.a_zero)).known, content(tested(_of(ins, at.b_zero)).known)
    return sums_fit(ins[at.a].dtype, zeros[0], ins[at.b].dtype, zeros[1], k, added)


def accepts_bytes(op: ByteMatMul, ins: Types) -> bool:
    """Bytes with one scale and zero point of A and of the result, and one or one for each column of B."""
    at = positions(op)
    a, b, y_zero = (_of(ins, i) for i in (at.a, at.b, at.y_zero))
    if a is None or b is None or any(t is not None and not t.is_static for t in ins):
        return False
    if (
        a.dtype not in BYTE_DTYPES
        or b.dtype not in BYTE_DTYPES
        or min(len(a.dims), len(b.dims)) < 2
        or not a.size
        or not b.size
    ):
        return False
    if (y_zero is not None and y_zero.dtype not in BYTE_DTYPES) or not can_finish(getattr(op, "activation", None)):
        return False
    ones = [_of(ins, i) for i in (at.a_zero, at.a_scale, at.y_scale, at.y_zero)]
    along = [_of(ins, i) for i in (at.b_zero, at.b_scale)]
    scales = [_of(ins, i) for i in (at.a_scale, at.b_scale, at.y_scale)]
    if any(t is not None and t.dtype != F32 for t in scales) or any(t is not None and t.size != 1 for t in ones):
        return False
    columns = b.dims[-1]
    if any(t is not None and t.size != 1 and (t.size != columns or t.dims[-1] != columns) for t in along):
        return False
    g = geometry(MatMul(), a.dims, b.dims)
    evenly = g.a_blocks == g.blocks and g.b_blocks in (1, g.blocks)
    return evenly and can_be_numbered(g) and _exact(at, ins, g.k)


def _columns_of_b(array: Array) -> Array:
    return np.ascontiguousarray(array.astype(np.int64).sum(axis=-2).astype(np.int32))


def _b_steps(at: BytePositions, b: TensorType, g: ProductBlocks, context: Context) -> tuple[Any, Any, int, list[Step]]:
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
    op: ByteMatMul, ins: Types, at: BytePositions, g: ProductBlocks, table: Scratch, sums: Any, form: ByteForm
) -> list[Step]:
    """The steps that fill the table."""
    b_zero, b_scale = _of(ins, at.b_zero), _of(ins, at.b_scale)
    rows, names = g.m * g.blocks, [_name(_of(ins, i), "u8") for i in (at.a, at.b, at.y_zero)]
    rest = _name(_of(ins, at.residual), "u8")
    made = numbers_of_columns(*names, _name(_of(ins, at.bias), "f32"), "u8" if rest == "f32" else rest)
    given = {
        name: None if _of(ins, getattr(at, name)) is None else In(getattr(at, name))
        for name in ("a_zero", "b_zero", "a_scale", "b_scale", "y_scale", "y_zero", "bias", "rest_scale", "rest_zero")
    }
    numbers: dict[str, Argument] = {
        **given, "sums": sums, "table": table, "columns": g.b_blocks * g.n, "n": g.n, "k": g.k,
        "zero_step": int(b_zero is not None and b_zero.size > 1), "first": columns_at(rows),
        "scale_step": int(b_scale is not None and b_scale.size > 1), "fused": int(form.result == FUSED),
    }  # fmt: skip
    of_rows: dict[str, Argument] = {"x": In(at.a), "to": table, "rows": rows, "k": g.k, "pitch": g.k, "skip": HEAD}
    found = [Step(made, numbers)]
    return [*found, Step(sums_of_rows(dtype_name(ins[at.a].dtype), g.k % WIDE == 0), of_rows)] if form.offset else found


def _form(op: ByteMatMul, ins: Types, at: BytePositions, g: ProductBlocks, y: TensorType) -> ByteForm:
    residual, bias, y_scale = (_of(ins, i) for i in (at.residual, at.bias, at.y_scale))
    result = SUMS if at.a_scale is None else FUSED if is_fused(op, y_scale, bias) else BYTES
    act = tail_args(getattr(op, "activation", None)).act
    zero = _of(ins, at.b_zero)
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
    at = positions(op)
    a, b = ins[at.a], ins[at.b]
    g = geometry(MatMul(), a.dims, b.dims)
    form = _form(op, ins, at, g, y)
    columns, sums, ldb, made = _b_steps(at, b, g, context)
    table = Scratch(table_bytes(g.m * g.blocks, g.b_blocks * g.n))
    made += _table_steps(op, ins, at, g, table, sums, form)
    orders = Order("k", g.k % WIDE == 0), Order("k", ldb % WIDE == 0)
    residual = _of(ins, at.residual)
    args: dict[str, Argument] = {
        "a": In(at.a), "b": columns, "table": None, "m": g.m, "n": g.n, "k": g.k, "lda": g.k, "ldb": ldb,
        "a_block": g.m * g.k, "b_block": g.n * ldb if form.each else 0, "matrices": g.blocks,
        "splits": 1, "split_bytes": 0, "bias": table,
        "residual": None if residual is None else In(at.residual or 0), "y": Out(), "ldy": Pitch(Out(0)), "alpha": 1.0,
        **tail_args(getattr(op, "activation", None)).numbers,
    }  # fmt: skip
    kind = "s8" if a.dtype == b.dtype == I8 else _LETTER[a.dtype] + _LETTER[b.dtype]
    return [*made, Step(way(g, kind, orders, form), args)]


def samples() -> dict[str, CudaKernel]:
    """Kernels whose registers and instructions tests look at."""
    order, form = Order("k", True), ByteForm("u8", "u8", FUSED, False, True)
    columns = numbers_of_columns("u8", "i8", "u8", "i32", "u8")
    return {"128x256": tensor(TENSOR_TILES[0], "s8", order, order, form), "columns": columns}
