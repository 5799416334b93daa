"""Readers of sums and of greatest elements."""

from __future__ import annotations

from bolt_numba.base.types import F32, Sym
from bolt_numba.converters.builder import ints
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ReduceL1, ReduceMean, ReduceSum, ReduceSumSquare, TopK
from bolt_numba.ops.arrays.shape import Concat, Flatten, Reshape, Unsqueeze
from bolt_numba.ops.pointwise import Cast, Mul

_OPERATIONS = {"SUM": ReduceSum, "ASUM": ReduceL1, "SUMSQ": ReduceSumSquare, "MEAN": ReduceMean}


@reader("Reduction")
def reduction(b: LayerBuilder, x: Value, *, operation: str = "SUM", axis: int = 0, coeff: float = 1.0) -> Value:
    """All axes from ``axis`` on become one number, times the coefficient."""
    b.invalid_if(operation not in _OPERATIONS, "operation", operation, f"one of {list(_OPERATIONS)}")
    y = b(_OPERATIONS[operation](keepdims=False), x, ints(range(b.axis_of(x, axis), b.rank_of(x))))
    return y if coeff == 1 else b(Mul(), y, coeff)


@reader("ArgMax")
def argmax(b: LayerBuilder, x: Value, *, out_max_val: bool = False, top_k: int = 1, axis: int | None = None) -> Value:
    """Where the greatest numbers are, as f32, or what they are; along an axis, or over each whole image.

    Without an axis the result is [n, 1, k], with values [n, 2, k]: indices, then values; as many axes as the bottom.
    """
    rank = b.rank_of(x)
    flat = x if axis is not None else b(Flatten(1), x)
    at = 1 if axis is None else axis
    size = b.dim_of(flat, at)
    if not 1 <= top_k < 1 << 31 or (not isinstance(size, Sym) and top_k > size):
        raise b.invalid("top_k", top_k, f"1 to {size}")
    values, indices = b(TopK(at), flat, ints([top_k]))
    places = b(Cast(F32), indices)
    if axis is not None:
        return values if out_max_val else places
    if out_max_val:
        both = b(Concat(1), b(Unsqueeze(), places, ints([1])), b(Unsqueeze(), values, ints([1])))
    else:
        both = b(Unsqueeze(), places, ints([1]))
    return b(Reshape(), both, ints([0, 0, 0, *(1,) * (rank - 3)])) if rank > 3 else both
