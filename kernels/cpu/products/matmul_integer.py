"""MatMulInteger and QLinearMatMul: products of bytes by `sweep_bytes`."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.types import TensorType
from bolt_numba.kernels.cpu.products.epilogue import can_finish
from bolt_numba.kernels.cpu.products.products_bytes import RowTables, pack_step, panels_of, product_steps
from bolt_numba.kernels.geometry.bytes import are_plain, given, places_of, sides, sums_are_exact
from bolt_numba.kernels.geometry.products import block_index, geometry
from bolt_numba.kernels.registry import Argument, Context, Outs, Step, Types, kernel
from bolt_numba.ops.layers.products.integer_products import ByteMatMul, MatMulInteger, QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul


def _fits(t: TensorType | None, axis: int, length: int, lead: tuple[int, ...]) -> bool:
    """Whether scales or zero points are one, one for each index of an axis, or one of these in each matrix."""
    if t is None or t.size == 1:
        return True
    whole = (*lead, length, 1) if axis == -2 else (*lead, 1, length)
    return t.dims in ((length,), whole) or (math.prod(lead) == 1 and t.size == length and t.dims[axis] == length)


def _accepts(op: MatMulInteger | QLinearMatMul, ins: Types) -> bool:
    at = places_of(op)
    scale = given(ins, at.scale_a)
    if not are_plain(ins, at) or not can_finish(getattr(op, "activation", None)):
        return False
    a, b = sides(ins, at)
    if scale is not None and scale.size > 1 and given(ins, at.scale_y) is not None:
        return False
    if len(a.dims) < 2 or len(b.dims) < 2 or not a.size:
        return False
    left, right = ([given(ins, i) for i in pair] for pair in ((at.zero_a, at.scale_a), (at.zero_b, at.scale_b)))
    g = geometry(MatMul(), a.dims, b.dims)
    if not sums_are_exact(ins, at, g.k) or not all(_fits(t, -2, a.dims[-2], a.dims[:-2]) for t in left):
        return False
    if any(t is not None and t.size > a.dims[-2] for t in left) and g.a_blocks != g.blocks:
        return False  # rows of a matrix that several results share would not be numbered like theirs
    return all(_fits(t, -1, b.dims[-1], b.dims[:-2]) for t in right)


@kernel(MatMulInteger, QLinearMatMul, accepts=_accepts)
def matmul_bytes(op: ByteMatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of B (packed once when constant) under row tiles of A."""
    at = places_of(op)
    a, b = sides(ins, at)
    g = geometry(MatMul(), a.dims, b.dims)
    offsets = np.zeros((g.blocks, 5), np.int64)
    offsets[:, 0] = block_index(g.batch, g.a_batch) * (g.m * g.k)
    offsets[:, 1] = block_index(g.batch, g.b_batch)
    offsets[:, 3] = np.arange(g.blocks) * g.m
    rows = RowTables(offsets, g.m, g.k, g.k, depth=g.k)
    panels = panels_of(rows, g.b_blocks, g.n)
    steps: list[Step] = []
    if b.known is not None:
        packed: Argument = panels.packed(context, b, "matrix", lambda array: array)
    else:
        steps.append(pack_step(panels, at.b, b, context))
        packed = steps[0].args["to"]
    return [*steps, *product_steps(op, ins, at, rows, panels, packed, context)]
