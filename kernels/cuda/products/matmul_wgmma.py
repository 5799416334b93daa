"""Products on GPUs of the Hopper kind: makers by products of warp groups, where these take the least time."""

from __future__ import annotations

from bolt_numba.kernels.cuda.declare import SM_90A, CudaKernel
from bolt_numba.kernels.cuda.products.choose import choose, cycles
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.matmul import (
    WIDE,
    Choice,
    ProductOperands,
    accepts_halves,
    accepts_tf32,
    in_halves,
    lying,
    product_steps,
    tf32_steps,
)
from bolt_numba.kernels.cuda.products.matmul_integer import accepts_bytes, byte_steps
from bolt_numba.kernels.cuda.products.tail_bytes import ByteForm
from bolt_numba.kernels.cuda.products.tensor import TENSOR_TILES
from bolt_numba.kernels.cuda.products.wgmma import GROUP_TILES, wgmma_product
from bolt_numba.kernels.geometry.bytes import places_of, sides
from bolt_numba.kernels.geometry.products import ProductBlocks, geometry
from bolt_numba.kernels.registry import Context, Outs, Step, Types, kernel
from bolt_numba.ops.layers.products.integer_products import ByteMatMul, MatMulInteger, QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul


def is_faster(g: ProductBlocks, kind: str) -> bool:
    """Whether a tile of warp groups is expected to take less time than all tiles of warps."""
    m, n, k, matrices, least = in_halves(g, kind)
    mine, theirs = choose(GROUP_TILES, m, n, k, matrices, least), choose(TENSOR_TILES, m, n, k, matrices, least)
    return cycles(*mine, m, n, k, matrices) < cycles(*theirs, m, n, k, matrices)


def by_groups(of: ProductOperands, dtype: str) -> Choice:
    tile, splits = choose(GROUP_TILES, *in_halves(of.g, dtype))
    return splits, lambda stored: wgmma_product(tile, dtype, of.a_order, of.b_order, stored)


# -------------------------------------------------------------------------------------------------------------- floats


def _fits(of: ProductOperands, turns: bool = False) -> bool:
    """Whether the GPU can copy boxes of both operands: all rows begin at multiples of 16 bytes, matrices lie evenly.

    turns: B is packed anew unless its terms lie dense.
    """
    b_fits = of.b_order.wide or (turns and of.b_order.dense == "m")
    return of.a_order.wide and b_fits and of.args["table"] is None and of.g.k > 0


def works_by_groups(op: MatMul, ins: Types) -> bool:
    """Halves that `_fits`."""
    a, b = ins[0], ins[1]
    return accepts_halves(op, ins) and _fits(lying(op, a, b))


def accepts_groups(op: MatMul, ins: Types) -> bool:
    a, b = ins[0], ins[1]
    return works_by_groups(op, ins) and is_faster(lying(op, a, b).g, "f16")


@kernel(MatMul, device="cuda", arch=SM_90A, accepts=accepts_groups, works=works_by_groups, rank=1)
def matmul_wgmma(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f16 and bf16, by ``wgmma`` from tiles that the GPU copies by itself."""
    return product_steps(by_groups, op, ins, outs[0], context)


def _works_tf32(op: MatMul, ins: Types) -> bool:
    a, b = ins[0], ins[1]
    return accepts_tf32(op, ins) and _fits(lying(op, a, b), turns=True)


def _accepts_tf32(op: MatMul, ins: Types) -> bool:
    a, b = ins[0], ins[1]
    return _works_tf32(op, ins) and is_faster(lying(op, a, b).g, "tf32")


@kernel(
    MatMul, device="cuda", arch=SM_90A, accepts=_accepts_tf32, works=_works_tf32, rank=2, numerics="fast",

)  # fmt: skip
def matmul_tf32_wgmma(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f32 by the same kernel, which reads the first 10 bits of each fraction and adds in f32."""
    return tf32_steps(by_groups, op, ins, outs[0], context)


# --------------------------------------------------------------------------------------------------------------- bytes


def _blocks(op: ByteMatMul, ins: Types) -> ProductBlocks | None:
    """Of a product of bytes whose boxes the GPU can copy; B is packed or copied so that its terms lie dense."""
    if not accepts_bytes(op, ins):
        return None
    a, b = sides(ins, places_of(op))
    g = geometry(MatMul(), a.dims, b.dims)
    return g if g.k % WIDE == 0 else None


def _works_bytes(op: ByteMatMul, ins: Types) -> bool:
    return _blocks(op, ins) is not None


def _accepts_bytes(op: ByteMatMul, ins: Types) -> bool:
    g = _blocks(op, ins)
    return g is not None and is_faster(g, "s8")


def _bytes_by_groups(g: ProductBlocks, kind: str, orders: tuple[Order, Order], form: ByteForm) -> CudaKernel:
    tile, _ = choose(GROUP_TILES, *in_halves(g, kind))
    return wgmma_product(tile, kind, *orders, form)


@kernel(
    MatMulInteger, QLinearMatMul, device="cuda", arch=SM_90A, accepts=_accepts_bytes, works=_works_bytes, rank=1
)  # fmt: skip
def matmul_bytes_wgmma(op: ByteMatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Sums of bytes by the same kernel."""
    return byte_steps(_bytes_by_groups, op, ins, outs[0], context)
