"""Products of f64 and of integers: a thread a sum.  They are rare and small where models have them."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F64, I32, U32, U64, dtype_name
from bolt_numba.base.types import I64 as WHOLE
from bolt_numba.kernels.cuda.declare import PTR, PTR_OR_0, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.matmul import can_be_numbered, operands
from bolt_numba.kernels.cuda.products.place import PLACE, matrix, operand_extents
from bolt_numba.kernels.cuda.products.place import element as index_of
from bolt_numba.kernels.cuda.products.tail import size_of
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, DeviceParts, elements
from bolt_numba.kernels.geometry.products import geometry
from bolt_numba.kernels.registry import Context, In, Out, Outs, Step, Types, kernel, result_of
from bolt_numba.ops.layers.products.matmul import MatMul

i64 = np.int64
KINDS = (F64, I32, U32, WHOLE, U64)
FIELDS: dict[str, Any] = {
    **{name: field for name, field in PLACE.items() if name not in ("splits", "split_bytes", "matrices", "m", "n")},
    "bias": PTR_OR_0, "y": PTR,
}  # fmt: skip


def _reach(a: Any, dtype: str, a_dense: str, b_dense: str) -> Any:
    size = size_of(dtype)
    found = operand_extents(a, size, Order(a_dense, False), Order(b_dense, False))
    return {**found, "bias": 0 if a.bias is None else size * a.n, "y": size * a.matrices * a.m * a.n}


@elements(over={"block": "matrices", "row": "m", "column": "n"}, extents=_reach, **FIELDS)
def product_wide(on: DeviceParts, dtype: str, a_dense: str, b_dense: str):
    """y[matrices, m, n]; integers are i64 in registers, which wraps as their dtypes do."""
    SIZE, number = size_of(dtype), np.float64 if dtype == "f64" else np.int64
    load, store = on.load(dtype), on.store(dtype)
    made = getattr(np, {"f": "float", "i": "int", "u": "uint"}[dtype[0]] + dtype[1:])
    of_a, of_b = index_of(Order(a_dense, False)), index_of(Order(b_dense, False))

    @inline
    def element(block, row, column, t, a, b, table, k, lda, ldb, a_block, b_block, bias, y):
        pa, pb = a + matrix(table, block, a_block, 0), b + matrix(table, block, b_block, 8)
        total = number(0)
        for q in range(i64(k)):
            total += number(load(pa + SIZE * of_a(row, q, lda))) * number(load(pb + SIZE * of_b(column, q, ldb)))
        if bias != 0:
            total += number(load(bias + SIZE * column))
        store(y + SIZE * t, made(total))

    return element


def _accepts(op: MatMul, ins: Types) -> bool:
    """One of the dtypes; a bias along the last axis; no factor, activation or residual."""
    a, b, bias = (*ins, None)[:3]
    if a is None or b is None or any(t is not None and not t.is_static for t in ins) or a.dtype not in KINDS:
        return False
    if op.alpha != 1.0 or op.activation is not None or op.residual or op.to is not None:
        return False
    if not can_be_numbered(geometry(op, a.dims, b.dims)) or result_of(op, ins).size > MOST_LAUNCHED:
        return False
    return bias is None or (len(b.dims) > 1 and bias.dims == result_of(op, ins).dims[-1:])


@kernel(MatMul, device="cuda", accepts=_accepts)
def matmul_wide(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f64, i32, u32, i64 and u64."""
    a, b, bias = ins[0], ins[1], (*ins, None)[2]
    if not outs[0].size:
        return []
    of = operands(op, a, b, context)
    settings = dtype_name(a.dtype), of.a_order.dense, of.b_order.dense
    return [PARTS.step(product_wide, settings, {**of.args, "bias": None if bias is None else In(2), "y": Out()})]
