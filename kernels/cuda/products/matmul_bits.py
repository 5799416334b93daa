"""Products with constant weights of 4 or 8 bits: they become floats in workspace, which the other kernels multiply."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, TensorType, dtype_name
from bolt_numba.kernels.cuda.declare import F32 as FLOAT
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, ceil_div, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language.lang import load_f32_nc, load_u8_nc
from bolt_numba.kernels.cuda.products.few import ROWS
from bolt_numba.kernels.cuda.products.matmul import FLOATS, by_few, by_simt, by_tensor, operands, split_steps
from bolt_numba.kernels.cuda.products.tail import size_of
from bolt_numba.kernels.extents import Lent, borrowed
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits

u32, i64, f32 = np.uint32, np.int64, np.float32


def _reach(a: Any, bits: int, dtype: str) -> Any:
    numbers = 4 * a.n * a.blocks_of_row
    return {
        "codes": a.n * a.row, "scales": numbers, "zeros": 0 if a.zeros is None else numbers,
        "to": size_of(dtype) * a.n * a.k,
    }  # fmt: skip


@elements(
    over={"column": "n", "pair": "pairs"}, extents=_reach, codes=PTR, scales=PTR, zeros=PTR_OR_0, to=PTR, k=I64,
    row=I64, blocks_of_row=I64, block=I64, middle=FLOAT,
)  # fmt: skip
def floats_of_bits(on: DeviceParts, bits: int, dtype: str):
    """to[n, k] = (codes - zeros) * scales; a thread takes two neighbours.

    row: bytes of the codes of a column · blocks_of_row: of ``block`` codes each · middle: the zero where none is given.
    """
    SIZE, store = size_of(dtype), on.store(dtype)

    @inline
    def element(column, pair, codes, scales, zeros, to, k, row, blocks_of_row, block, middle):
        term = 2 * pair
        at = column * blocks_of_row + i64(u32(term) // u32(block))
        scale, zero = load_f32_nc(scales + 4 * at), load_f32_nc(zeros + 4 * at) if zeros != 0 else middle
        if bits == 4:
            both = u32(load_u8_nc(codes + column * row + pair))
            low, high = u32(both & u32(15)), u32(both >> u32(4))
        else:
            low = u32(load_u8_nc(codes + column * row + term))
            high = u32(load_u8_nc(codes + column * row + term + 1))
        there = to + SIZE * (column * k + term)
        store(there, (f32(low) - zero) * scale)
        if term + 1 < k:
            store(there + SIZE, (f32(high) - zero) * scale)

    return element


def _accepts(op: MatMulNBits, ins: Types) -> bool:
    x = ins[0]
    if not x.dims or any(t is not None and not t.is_static for t in ins) or x.dtype not in FLOATS or op.bits == 2:
        return False
    return math.prod(x.dims[:-1]) <= MAX_I32 and ins[1].dims[0] * ceil_div(x.dims[-1], 2) <= MOST_LAUNCHED


@kernel(MatMulNBits, device="cuda", accepts=_accepts)
def matmul_bits(op: MatMulNBits, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Codes become floats of the dtype of x, then a product follows."""
    x, codes = ins[0], ins[1]
    _, zeros, bias = (*ins, None, None)[2:5]
    if not outs[0].size:
        return []
    (n, blocks, packed), k, plain = codes.dims, x.dims[-1], MatMul(trans_b=True)
    weights, dtype = TensorType(x.dtype, (n, k)), dtype_name(x.dtype)
    of, to = operands(plain, x, weights, context), Scratch(weights.nbytes)
    args: dict[str, Argument] = {
        "codes": In(1), "scales": In(2), "zeros": None if zeros is None else In(3), "to": to, "n": n, "k": k,
        "pairs": ceil_div(k, 2), "row": blocks * packed, "blocks_of_row": blocks, "block": op.block,
        "middle": op.middle,
    }  # fmt: skip
    way = by_few if of.g.m <= ROWS[-1] else by_simt if x.dtype == F32 else by_tensor

    def make(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
        return split_steps(op, ins, outs[0], of, *way(of, dtype))

    given = Lent(x, In(0)), Lent(weights, to), None if bias is None else Lent(bias, In(4))
    steps = borrowed(make, plain, given, [Lent(outs[0], Out(0), rows=True)], context)
    return [PARTS.step(floats_of_bits, (op.bits, dtype), args), *steps]
