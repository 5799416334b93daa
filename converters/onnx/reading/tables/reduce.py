"""Readers of products, reductions and operators along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ArgMax, ArgMin, CumProd, CumSum, Det, Hardmax, LogSoftmax, Softmax, TopK
from bolt_numba.ops.arrays.shape import Flatten, Reshape, Shape
from bolt_numba.ops.layers.products.matmul import Einsum, MatMul
from bolt_numba.ops.pointwise import Add, Mul
from bolt_numba.ops.registry import OPS

REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)


for _name in REDUCTIONS:
    add_as_is(OPS[_name], since=13 if _name == "ReduceSum" else 18)
    add_reader(_name, AsIs(OPS[_name], "x axes=?", keepdims=True))


_ALONG_AXIS: dict[str, Any] = {"Softmax": Softmax, "LogSoftmax": LogSoftmax, "Hardmax": Hardmax}


def _flattened(operator: Any) -> Any:
    """Before opset 13 all axes from ``axis`` on are one."""

    def read(b: NodeBuilder, x: Value, *, axis: int = 1) -> Any:
        rank = b.rank_of(x)
        first = axis + rank if axis < 0 else axis
        b.invalid_if(not 0 <= first <= rank, "axis", axis, f"{-rank} to {rank}")
        if all(b.dim_of(x, i) == 1 for i in range(first + 1, rank)) and first < rank:
            return b(operator(first), x)
        flat = b(operator(1), b(Flatten(first), x))
        return b(Reshape(allowzero=True), flat, b(Shape(), x))

    return read


for _name, _operator in _ALONG_AXIS.items():
    add_as_is(_operator, since=13)
    add_reader(_name, _flattened(_operator))

add_as_is(ArgMax, ArgMin, CumSum, CumProd, Det, Einsum)
add_as_is(TopK, since=10)
add_reader("TopK", AsIs(TopK, "x k=", axis=-1))
add_reader("MatMul", AsIs(MatMul(), "x y"))


@reader("Gemm")
def gemm(
    b: NodeBuilder,
    x: Value,
    y: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    broadcast: int = 0,
) -> Value:
    """Alpha * a @ b + beta * c; a row vector c becomes the bias of the product.  Before opset 7: ``broadcast``."""
    for operand in (x, y):
        b.invalid_if(b.rank_of(operand) != 2, f"rank of '{operand.name}'", b.rank_of(operand), 2)
    operator = MatMul(transA, transB, alpha)
    if c is None or beta == 0:
        return b(operator, x, y)
    if c.type.shape is not None and len(c.type.shape) > 2:
        raise b.invalid(f"rank of '{c.name}'", len(c.type.shape), "at most 2")
    if beta != 1.0:
        factor = np.array(beta, c.type.dtype)
        scaled = None if c.const is None else b.const((c.const * factor).astype(c.type.dtype), f"{b.prefix}c")
        c = scaled or b(Mul(), c, factor)
    if c.type.shape == (b.dim_of(y, 0 if transB else 1),):
        return b(operator, x, y, c)
    product = b(operator, x, y)
    summed = b(Add(), product, c)
    if c.type.is_static and summed.type.shape == product.type.shape:
        return summed
    return b(Reshape(), summed, b(Shape(), product))  # c is broadcast to the product, never the other way
