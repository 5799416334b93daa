"""QuantizeLinear and DequantizeLinear alone: chains of one step, whose scales are broadcast along axes or blocks."""

from __future__ import annotations

import math

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import TensorType
from bolt_numba.codegen.threads import thread_lines
from bolt_numba.kernels.cuda.elementwise.chains import chain_steps
from bolt_numba.kernels.registry import Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.arrays.quantize import Conversion, DequantizeLinear, QuantizeLinear
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.registry import normalise_axis


def _shapes(op: Conversion, x: TensorType, scale: TensorType) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Of x and of the scale, so that one is broadcast to the other; None where the last block is not whole."""
    if scale.size == 1:
        return (x.size,), ()
    axis = normalise_axis(op, op.axis, len(x.dims))
    outer, n, inner = math.prod(x.dims[:axis]), x.dims[axis], math.prod(x.dims[axis + 1 :])
    if len(scale.dims) == 1 and n == scale.size:
        return (outer, n, inner), (n, 1)
    if n % op.block_size:
        return None
    return (outer, n // op.block_size, op.block_size, inner), (outer, n // op.block_size, 1, inner)


def _chain(op: Conversion, ins: Types) -> Chain:
    count = sum(t is not None for t in ins)
    return Chain(((op, tuple(range(count))),), (count,))


def _accepts(op: QuantizeLinear | DequantizeLinear, ins: Types) -> bool:
    known = [t for t in ins if t is not None]
    if len(known) < 2 or not all(t.is_static for t in known) or not known[0].size <= MAX_I32:
        return False
    try:
        lines = thread_lines(_chain(op, ins), tuple([t.dtype for t in known]), ())
    except DTypeError:
        return False
    return lines is not None and _shapes(op, known[0], known[1]) is not None


@kernel(QuantizeLinear, DequantizeLinear, device="cuda", accepts=_accepts)
def convert_codes(op: Conversion, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Per tensor, per axis, or by blocks that are whole."""
    known = [t for t in ins if t is not None]
    shapes = tested(_shapes(op, known[0], known[1]))
    dims = (shapes[0], *(shapes[1] for _ in known[1:]))
    types = [TensorType(t.dtype, d) for t, d in zip(known, dims, strict=True)]
    return chain_steps(_chain(op, ins), types, shapes[0], [In(k) for k in range(len(known))], Out(0))
