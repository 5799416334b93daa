"""Transpose, DepthToSpace and SpaceToDepth: each is one strided move."""

from __future__ import annotations

from typing import Any

from bolt_numba.kernels.cpu.movement.move import carried
from bolt_numba.kernels.geometry.transfers import has_fixed_size, transpose_transfers
from bolt_numba.kernels.registry import Context, Step, Types, kernel
from bolt_numba.ops.arrays.shape import DepthToSpace, SpaceToDepth, Transpose


@kernel(Transpose, accepts=has_fixed_size, by_types=True)
def transpose(op: Transpose, ins: Types, outs: Any, context: Context) -> list[Step]:
    """Any rank and element size."""
    return carried(transpose_transfers(op, ins, outs))


@kernel(DepthToSpace, accepts=has_fixed_size, by_types=True)
def depth_to_space(op: DepthToSpace, ins: Types, outs: Any, context: Context) -> list[Step]:
    """A transpose of [n, b, b, c, h, w] (DCR) or [n, c, b, b, h, w] (CRD)."""
    return carried(transpose_transfers(op, ins, outs))


@kernel(SpaceToDepth, accepts=has_fixed_size, by_types=True)
def space_to_depth(op: SpaceToDepth, ins: Types, outs: Any, context: Context) -> list[Step]:
    """A transpose of [n, c, h, b, w, b]."""
    return carried(transpose_transfers(op, ins, outs))
