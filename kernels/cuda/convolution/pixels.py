"""Convolutions of one tap, channels last: their pixels are the rows of a product, which has kernels of its own."""

from __future__ import annotations

import math

from bolt_numba.base.types import TensorType
from bolt_numba.kernels.cuda.convolution.axes import axes_of
from bolt_numba.kernels.cuda.convolution.conv import accepts_channels_last
from bolt_numba.kernels.cuda.declare import SM_90A
from bolt_numba.kernels.cuda.products.matmul import product_steps
from bolt_numba.kernels.cuda.products.matmul_wgmma import accepts_groups, by_groups, works_by_groups
from bolt_numba.kernels.extents import Lent, borrowed
from bolt_numba.kernels.registry import Context, In, Operands, Out, Outs, Step, Types, kernel, once, result_of
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul


def _product(op: Conv, ins: Types) -> tuple[MatMul, Operands] | None:
    """The product of pixels [p, c] and filters [k, c] that a convolution is, operand by operand, or None."""
    x, w = ins[0], ins[1]
    bias, residual = (*ins, None, None)[2:4]
    if not accepts_channels_last(op, ins) or op.group > 1 or math.prod(w.dims[2:]) > 1:
        return None
    y = result_of(op, ins)
    axes = axes_of(op, x, w.dims[2:], y)
    if y.dims[:-1] != x.dims[:-1] or any(axis.pad or (axis.stride > 1 and axis.size > 1) for axis in axes):
        return None
    pixels, channels, filters = math.prod(x.dims[:-1]), x.dims[-1], y.dims[-1]
    rows = None if residual is None else TensorType(residual.dtype, (pixels, filters))
    given = TensorType(x.dtype, (pixels, channels)), TensorType(w.dtype, (filters, channels))
    return MatMul(trans_b=True, residual=op.residual, activation=op.activation), Operands([*given, bias, rows])


product = once(_product)


def _accepts(op: Conv, ins: Types) -> bool:
    found = product(op, ins)
    return found is not None and accepts_groups(*found)


def _works(op: Conv, ins: Types) -> bool:
    found = product(op, ins)
    return found is not None and works_by_groups(*found)


@kernel(Conv, device="cuda", arch=SM_90A, accepts=_accepts, works=_works, rank=1)
def pixels_wgmma(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f16 and bf16, by ``wgmma``."""
    inner, types = tested(product(op, ins))
    y = outs[0]
    rows = TensorType(y.dtype, (y.size // y.dims[-1], y.dims[-1]))

    def make(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
        return product_steps(by_groups, op, ins, outs[0], context)

    given = [None if t is None else Lent(t, In(i), rows=i != 1) for i, t in enumerate(types)]
    return borrowed(make, inner, given, [Lent(rows, Out(0), rows=True)], context)
