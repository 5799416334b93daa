"""Matrix products; no integer quantised ones (see `quantize`)."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from bolt_numba.base.budget import BLAS, ask, spend
from bolt_numba.base.types import F32, AnyDType, Array, Dim, Shape, TensorType, dtype_name
from bolt_numba.ops.dtypes import HALVES, NUMBERS, same_dtype, widened
from bolt_numba.ops.registry import Op, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import broadcast_dim, broadcast_shapes, want_dim, want_dims


def matmul_shape(owner: Op, a: Shape | None, b: Shape | None) -> Shape | None:
    """Shape of ``numpy.matmul``; raises ShapeError."""
    if a is None or b is None:
        return None
    owner.fail_if(not a or not b, "rank of operands", f"{len(a)} and {len(b)}", "at least 1")
    k, other = a[-1], b[-2] if len(b) > 1 else b[0]
    want_dim(owner, "rows of b", other, k)
    rows: Shape = (a[-2],) if len(a) > 1 else ()
    columns: Shape = (b[-1],) if len(b) > 1 else ()
    batch = broadcast_shapes(owner, a[:-2], b[:-2])
    return None if batch is None else batch + rows + columns


def multiplied(owner: Op, a: Array, b: Array) -> Array:
    """``numpy.matmul``, once memory and work are granted."""
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    size = math.prod(shape) * rows * columns
    ask(size * a.itemsize, f"{owner.name}: product")
    spend(size * (1 + a.shape[-1] // (BLAS if a.dtype.kind == "f" else 1)), owner.name)
    with np.errstate(invalid="ignore"):  # libraries compute on what lies behind a row, too, and set the flag for that
        return np.asarray(np.matmul(a, b))


def finish(y: Array, residual: Array | None, activation: Op | None) -> Array:
    """The fused tail of a product: add, then activate."""
    if residual is not None:
        y = y + residual.astype(y.dtype, copy=False)
    return y if activation is None else activation.reference(y)


def product_dtype(
    owner: Op, to: AnyDType | None, x: TensorType, w: TensorType, bias: TensorType | None, residual: TensorType | None
) -> tuple[AnyDType, AnyDType]:
    """The dtype that a product computes in and that of its result; raises ShapeError.

    Without ``to`` all have one.  With it, x, the residual and the result are each of the dtype of w or narrower.
    """
    if to is None:
        dtype = same_dtype(owner, x, w, bias, residual)
        return dtype, dtype
    dtype = same_dtype(owner, w, bias)
    want_dtype(owner, "w", dtype, F32)
    want_dtypes(owner, (F32, *HALVES), x=x, residual=residual)
    want_dtype(owner, "to", to, F32, *HALVES)
    return dtype, to


def want_residual(owner: Any, residual: TensorType | None) -> None:
    """Raise ShapeError unless there is a residual exactly where the attribute says so."""
    if owner.residual != (residual is not None):
        raise owner.fail("residual operand", residual, "one exactly when the attribute residual is set")


def want_activation(owner: Op, activation: Op | None, dtype: AnyDType) -> None:
    """Raise ShapeError unless an activation is pointwise, of one operand, and keeps the dtype."""
    if activation is None:
        return
    known: Any = activation
    if not getattr(known, "pointwise", False) or known.arity != 1 or known.result_dtype(dtype) != dtype:
        raise owner.fail("activation", activation, f"a pointwise operator from {dtype_name(dtype)} to the same")


def _swapped(shape: Shape | None, swap: bool) -> Shape | None:
    return (*shape[:-2], shape[-1], shape[-2]) if swap and shape is not None and len(shape) > 1 else shape


@op("MatMul")
class MatMul(Op):
    """y = activation(alpha * a @ b + bias + residual), products as in ``numpy.matmul``.

    a: [..., M, K], [..., K, M] when trans_a · b: [..., K, N], [..., N, K] when trans_b · bias: [N] · residual: like y
    -> y: [..., M, N] of a's dtype, any number.  Operands of rank 1 are never transposed.  f16 and bf16 sum in f32.
    to: dtype of y where values between products are narrow: a, the residual and y are each f32, f16 or bf16 then, b and
    bias f32.
    Source: ONNX MatMul-13 and Gemm-13.
    """

    trans_a: bool = False
    trans_b: bool = False
    alpha: float = 1.0
    activation: Op | None = None
    residual: bool = False
    to: AnyDType | None = None

    def infer(
        self, a: TensorType, b: TensorType, bias: TensorType | None = None, residual: TensorType | None = None
    ) -> TensorType:
        dtype, result = product_dtype(self, self.to, a, b, bias, residual)
        want_dtype(self, "a", dtype, *NUMBERS)
        want_activation(self, self.activation, dtype)
        shape = matmul_shape(self, _swapped(a.shape, self.trans_a), _swapped(b.shape, self.trans_b))
        want_residual(self, residual)
        if shape is not None:
            want_dims(self, "bias", bias, *shape[-1:])
            want_dims(self, "residual", residual, *shape)
        return TensorType(result, shape)

    def reference(self, a: Array, b: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
        left, right = widened(a), widened(b)
        if self.trans_a and a.ndim > 1:
            left = left.swapaxes(-1, -2)
        if self.trans_b and b.ndim > 1:
            right = right.swapaxes(-1, -2)
        y = multiplied(self, left, right)
        if self.alpha != 1.0:
            y = (y * y.dtype.type(self.alpha)).astype(left.dtype, copy=False)
        if bias is not None:
            y = y + bias.astype(y.dtype, copy=False)
        return np.asarray(finish(y, residual, self.activation)).astype(self.to or a.dtype, copy=False)


_TERM = re.compile(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*")


def einsum_terms(owner: Op, equation: str, count: int) -> tuple[list[str], str]:
    """Operand subscripts and the output's, the implicit output written out; raises ShapeError."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    owner.fail_if(len(terms) != count, "number of operands", count, f"{len(terms)} for {equation!r}")
    if not arrow:
        letters = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(letters)
    unknown = [c for c in right if c.isalpha() and c not in left]
    owner.fail_if(unknown, "output subscripts", right, f"letters of {left}")
    if len(set(right) - {"."}) != len(right.replace(".", "")):
        raise owner.fail("output subscripts", right, "each letter once")
    if not all(map(_TERM.fullmatch, (*terms, right))) or ("..." in left) != ("..." in right):
        raise owner.fail("equation", repr(equation), "letters, and an ellipsis on both sides or on none")
    return terms, right


@op("Einsum")
class Einsum(Op):
    """Sum of products over named axes, as ``numpy.einsum``.

    xs: any number of operands, of the same number dtype -> y: the axes after ``->``.  Source: ONNX Einsum-12.
    """

    equation: str

    def infer(self, *xs: TensorType) -> TensorType:
        dtype = same_dtype(self, *xs)
        want_dtype(self, "operands", dtype, *NUMBERS)
        terms, out = einsum_terms(self, self.equation, len(xs))
        size: dict[str, Dim] = {}
        ellipsis: Shape = ()
        for term, x in zip(terms, xs, strict=True):
            if x.shape is None:
                return TensorType(dtype, None)
            head, dots, tail = term.partition("...")
            extra = len(x.shape) - len(head) - len(tail)
            self.fail_if(extra < 0 or (extra and not dots), "rank of an operand", x, f"{term!r} of {self.equation!r}")
            middle = broadcast_shapes(self, ellipsis, x.shape[len(head) : len(head) + extra])
            ellipsis = () if middle is None else middle
            dims = x.shape[: len(head)] + x.shape[len(head) + extra :]
            own: dict[str, Dim] = {}
            for letter, d in zip(head + tail, dims, strict=True):
                want_dim(self, f"dimension {letter} of an operand", d, own.setdefault(letter, d))
                size[letter] = broadcast_dim(self, size.get(letter, 1), d)
        head, dots, tail = out.partition("...")
        shape = tuple(size[c] for c in head) + (ellipsis if dots else ()) + tuple(size[c] for c in tail)
        return TensorType(dtype, shape)

    def _ask_for(self, equation: str, arrays: list[Array], path: Any) -> None:
        """Every step of the path makes an array over the letters that are still wanted."""
        terms, out = einsum_terms(self, equation, len(arrays))
        size = {"": 1}
        for term, x in zip(terms, arrays, strict=True):
            head, _, tail = term.partition("...")
            middle = math.prod(x.shape[len(head) : x.ndim - len(tail)])
            dims = (*x.shape[: len(head)], *x.shape[x.ndim - len(tail) :])
            for letter, d in (*zip(head + tail, dims, strict=True), (".", middle)):
                size[letter] = max(size.get(letter, 1), d)
        left = [set(term) for term in terms]
        for step in path[1:] if path else [tuple(range(len(left)))]:
            parts = [left.pop(i) for i in sorted(step, reverse=True)]
            seen = set[str]().union(*parts)
            kept = seen & set[str]().union(set(out), *left)
            left.append(kept)
            ask(math.prod(size[c] for c in kept) * arrays[0].itemsize, f"{self.name}: {equation!r}")
            spend(math.prod(size[c] for c in seen), self.name)

    def reference(self, *xs: Array) -> Array:
        arrays: list[Any] = [widened(x) for x in xs]
        equation = self.equation.replace(" ", "")
        path, _ = np.einsum_path(equation, *arrays) if len(xs) > 1 else (False, "")
        self._ask_for(equation, arrays, path)
        y = np.einsum(equation, *arrays, optimize=path)
        return np.array(y, dtype=xs[0].dtype)
