"""MatMul of halves on GPUs of the Hopper kind, by products of warp groups where they take the least time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.kernels.cuda.declare import SM_90A
from bolt_numba.kernels.cuda.products.choose import choose, cycles
from bolt_numba.kernels.cuda.products.matmul import (
    LEAST_HALVES,
    Choice,
    ProductOperands,
    accepts_halves,
    lying,
    product_steps,
)
from bolt_numba.kernels.cuda.products.tensor import TENSOR_TILES
from bolt_numba.kernels.cuda.products.wgmma import GROUP_TILES, wgmma_product
from bolt_numba.kernels.registry import Context, Step, Types, kernel
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.types import TensorType


def fits(of: ProductOperands) -> bool:
    """Whether the GPU can copy boxes of both operands: all rows begin at multiples of 16 bytes, matrices lie evenly."""
    return of.a_order.wide and of.b_order.wide and of.args["table"] is None and of.g.k > 0


def accepts_groups(op: Any, ins: Types) -> bool:
    """As `fits`, where a tile of warp groups is expected to be faster than all tiles of warps."""
    a, b = ins[0], ins[1]
    if not accepts_halves(op, ins) or a is None or b is None:
        return False
    of = lying(op, a, b)
    if not fits(of):
        return False
    size = of.g.m, of.g.n, of.g.k, of.g.blocks
    mine, theirs = (choose(tiles, *size, LEAST_HALVES) for tiles in (GROUP_TILES, TENSOR_TILES))
    return cycles(*mine, *size) < cycles(*theirs, *size)


def works_by_groups(op: Any, ins: Types) -> bool:
    a, b = ins[0], ins[1]
    return accepts_halves(op, ins) and a is not None and b is not None and fits(lying(op, a, b))


def by_groups(of: ProductOperands, dtype: str) -> Choice:
    tile, splits = choose(GROUP_TILES, of.g.m, of.g.n, of.g.k, of.g.blocks, LEAST_HALVES)
    return splits, lambda stored: wgmma_product(tile, dtype, of.a_order, of.b_order, stored)


@kernel(MatMul, device="cuda", arch=SM_90A, accepts=accepts_groups, works=works_by_groups, rank=1, by_types=True)
def matmul_wgmma(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """f16 and bf16, by ``wgmma`` from tiles that the GPU copies by itself."""
    return product_steps(by_groups, op, ins, outs[0], context)
