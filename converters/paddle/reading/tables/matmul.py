"""Readers of products, and of linear algebra."""

from __future__ import annotations

import functools

import numpy as np

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.paddle.reading.tables.conv import activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.accumulate import Inverse
from bolt_numba.ops.arrays.generate import EyeLike, Trilu
from bolt_numba.ops.arrays.reduce import Det, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Reshape, Shape, Transpose
from bolt_numba.ops.layers.products.matmul import Einsum, MatMul
from bolt_numba.ops.pointwise import Abs, Add, Log, Mul, Sign, Sub

PADDLE.reader("bmm")(AsIs(MatMul(), "x y"))
PADDLE.reader("mv", slots={"Vec": "vec"})(AsIs(MatMul(), "x vec"))
PADDLE.reader("inverse", slots={"Input": "x"})(AsIs(Inverse()))
PADDLE.reader("determinant", pir=("det",), slots={"Input": "x"})(AsIs(Det()))


def product(b: PaddleBuilder, x: Value, y: Value, trans_x: bool, trans_y: bool, alpha: float = 1.0) -> Value:
    """Alpha * x @ y as `numpy.matmul` has it; a vector is not transposed."""
    return b(MatMul(trans_x and b.rank_of(x) > 1, trans_y and b.rank_of(y) > 1, alpha), x, y)


@PADDLE.reader("matmul", legacy=("matmul_v2",))
def matmul(
    b: PaddleBuilder,
    x: Value,
    y: Value,
    *,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    head_number: int = 1,
) -> Value:
    b.unsupported_if(head_number != 1, f"head_number {head_number}")
    return product(b, x, y, transpose_x, transpose_y, alpha)


@PADDLE.reader("mul", pir=("matmul_with_flatten",))
def mul(b: PaddleBuilder, x: Value, y: Value, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1) -> Value:
    """X and y as matrices, whose rows are the first axes; the product has the axes of both."""
    first, second = b.rank_of(x), b.rank_of(y)
    if not (1 <= x_num_col_dims < first and 1 <= y_num_col_dims < second):
        raise b.invalid("x_num_col_dims, y_num_col_dims", (x_num_col_dims, y_num_col_dims), "axes of both operands")
    return matrices(b, x, y, x_num_col_dims, y_num_col_dims)


def matrices(b: PaddleBuilder, x: Value, y: Value, rows: int, inner: int) -> Value:
    """The product of x, whose rows are its axes before ``rows``, and y, whose rows are those before ``inner``."""
    first, second = b.rank_of(x), b.rank_of(y)
    right = y if second == 2 else b.shaped(y, b.elements(b.lengths(y, range(inner))), [-1])
    left = x if first == rows + 1 else b.shaped(x, [0] * rows, b.length(right, 0))
    made: Value = b(MatMul(), left, right)
    return made if second == 2 else b.shaped(made, [0] * rows, b.lengths(y, range(inner, second)))


# Sums of products along the last axis.
PADDLE.reader("dot")(lambda b, x, y: b(ReduceSum(False), b(Mul(), x, y), ints([-1])))


@PADDLE.reader("addmm", pir=("baddbmm",))
def addmm(b: PaddleBuilder, input: Value, x: Value, y: Value, *, alpha: float = 1.0, beta: float = 1.0) -> Value:
    """Beta * input + alpha * x @ y."""
    made = b(MatMul(alpha=alpha), x, y)
    return b(Add(), made, input if beta == 1 else b(Mul(), input, beta))


@PADDLE.reader("einsum", results=("Out",))
def einsum(b: PaddleBuilder, operands: Values, *, equation: str) -> tuple[Value, None, None]:
    return b(Einsum(equation.replace(" ", "")), *operands), None, None


@PADDLE.reader("cross", slots={"dim": "axis"})
def cross(b: PaddleBuilder, x: Value, y: Value, *, axis: int = 9) -> Value:
    """Cross products along an axis of length 3, the first such one where none is named."""
    rank = b.rank_of(x)
    if axis == 9:
        axis = next((i for i in range(rank) if b.static_dim(x, i) == 3), rank)
    at = b.axis_of(x, axis)
    p, q = ([b.column(v, at, i) for i in range(3)] for v in (x, y))
    parts = [b(Sub(), b(Mul(), p[i - 2], q[i - 1]), b(Mul(), p[i - 1], q[i - 2])) for i in range(3)]
    return b(Concat(at), *(b.unsqueezed(v, at) for v in parts))


@PADDLE.reader("kron")
def kron(b: PaddleBuilder, x: Value, y: Value) -> Value:
    """Every element of x times y, as blocks."""
    rank = max(b.rank_of(x), b.rank_of(y))
    x, y = (b.unsqueezed(v, *range(rank - b.rank_of(v))) for v in (x, y))
    products = b(Mul(), b.unsqueezed(x, *range(1, 2 * rank, 2)), b.unsqueezed(y, *range(0, 2 * rank, 2)))
    return b(Reshape(), products, b(Mul(), b(Shape(), x), b(Shape(), y)))


PADDLE.reader("outer")(lambda b, x, y: b(Mul(), b.shaped(x, [-1, 1]), b.shaped(y, [1, -1])))


@PADDLE.reader("multi_dot")
def multi_dot(b: PaddleBuilder, x: Values) -> Value:
    return functools.reduce(lambda p, q: b(MatMul(), p, q), x)


PADDLE.reader("t")(lambda b, input: b(Transpose((1, 0)), input) if b.rank_of(input) == 2 else input)


@PADDLE.reader("bilinear_tensor_product", pir=("bilinear",), slots={"Weight": "weight", "Bias": "bias"})
def bilinear(b: PaddleBuilder, x: Value, y: Value, weight: Value, bias: Value | None = None) -> Value:
    """x^T w_k y for each k, plus bias."""
    made = b(Einsum("bi,kij,bj->bk"), x, weight, y)
    return made if bias is None else b(Add(), made, bias)


@PADDLE.reader("fc", slots={"W": "w"})
def fc(
    b: PaddleBuilder,
    input: Value,
    w: Value,
    bias: Value | None = None,
    *,
    in_num_col_dims: int = 1,
    activation_type: str = "",
    padding_weights: bool = False,
) -> Value:
    """activation(x @ w + bias), x as a matrix whose rows are its first axes."""
    b.unsupported_if(padding_weights, "padded weights")
    made = matrices(b, input, w, in_num_col_dims, 1)
    if bias is not None:
        made = b(Add(), made, b.shaped(bias, [-1]))
    return activated(b, made, activation_type)


@PADDLE.reader("linear", pir=("linear_v2",))
def linear(b: PaddleBuilder, input: Value, weight: Value, bias: Value | None = None) -> Value:
    made = b(MatMul(), input, weight)
    return made if bias is None else b(Add(), made, bias)


@PADDLE.reader("slogdeterminant", pir=("slogdet",), slots={"Input": "x"})
def slogdet(b: PaddleBuilder, x: Value) -> Value:
    """Sign of the determinant and the logarithm of its size, along a new first axis."""
    made = b(Det(), x)
    return b(Concat(0), b.unsqueezed(b(Sign(), made), 0), b.unsqueezed(b(Log(), b(Abs(), made)), 0))


@PADDLE.reader("matrix_power")
def matrix_power(b: PaddleBuilder, x: Value, *, n: int) -> Value | None:
    """X @ x @ ..., of the inverse for a negative n."""
    b.unsupported_if(n == 0 or abs(n) > MOST_FACTORS, f"n = {n}")
    base = x if n > 0 else b(Inverse(), x)
    left, made = abs(n), None
    while left:
        if left & 1:
            made = base if made is None else b(MatMul(), made, base)
        left >>= 1
        base = b(MatMul(), base, base) if left else base
    return made


MOST_FACTORS = 1 << 16
"""Of a power of a matrix."""


# What x times gives y; a vector y is one column.
PADDLE.reader("solve")(lambda b, x, y: b(MatMul(), b(Inverse(), x), y))


@PADDLE.reader("triangular_solve")
def triangular_solve(
    b: PaddleBuilder, x: Value, y: Value, *, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Value:
    """What one triangle of x times gives y."""
    triangle = b(Trilu(upper), x)
    if unitriangular:
        one = b(EyeLike(), b.column(x, 0, 0) if b.rank_of(x) == 3 else x)
        triangle = b(Add(), b(Mul(), triangle, b(Sub(), b.const(np.ones((), x.type.dtype)), one)), one)
    return b(MatMul(trans_a=transpose), b(Inverse(), triangle), y)
