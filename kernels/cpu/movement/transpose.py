"""Transpose, DepthToSpace and SpaceToDepth: each is one strided move."""

from __future__ import annotations

from typing import Any

from bolt_numba.kernels.cpu.movement.move import steps
from bolt_numba.kernels.cpu.movement.strides import transpose_move
from bolt_numba.kernels.registry import Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.shape import DepthToSpace, SpaceToDepth, Transpose
from bolt_numba.types import STRING, TensorType


def has_fixed_size(op: Any, ins: Types) -> bool:
    """The elements of the first operand are plain bytes."""
    return ins[0] is not None and ins[0].dtype != STRING


def typed(ins: Types, index: int = 0) -> TensorType:
    """The type of an operand that cannot be omitted."""
    found = ins[index]
    assert found is not None
    return found


@kernel(Transpose, accepts=has_fixed_size, by_types=True)
def transpose(op: Transpose, ins: Types, outs: Any, context: Context) -> list[Step]:
    """Any rank and element size."""
    x = typed(ins)
    return steps([transpose_move(x.dims, op.perm, x.dtype.itemsize)], In(0), Out(0))


@kernel(DepthToSpace, accepts=has_fixed_size, by_types=True)
def depth_to_space(op: DepthToSpace, ins: Types, outs: Any, context: Context) -> list[Step]:
    """A transpose of [n, b, b, c, h, w] (DCR) or [n, c, b, b, h, w] (CRD).  Source: ONNX DepthToSpace-13."""
    x = typed(ins)
    n, c, h, w = x.dims
    b = op.blocksize
    if op.mode == "DCR":
        box, perm = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        box, perm = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    return steps([transpose_move(box, perm, x.dtype.itemsize)], In(0), Out(0))


@kernel(SpaceToDepth, accepts=has_fixed_size, by_types=True)
def space_to_depth(op: SpaceToDepth, ins: Types, outs: Any, context: Context) -> list[Step]:
    """A transpose of [n, c, h, b, w, b].  Source: ONNX SpaceToDepth-13."""
    x = typed(ins)
    n, c, h, w = x.dims
    b = op.blocksize
    return steps([transpose_move((n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4), x.dtype.itemsize)], In(0), Out(0))
