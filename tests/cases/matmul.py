"""Cases of matrix products."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.layers.products.distances import Distances
from bolt_numba.ops.layers.products.matmul import Einsum, MatMul
from bolt_numba.types import F32, F64, Array
from tests.cases import Case, cases
from tests.cases.draw import (
    ACTIVATIONS,
    EXACT_ACTIVATIONS,
    Draw,
    around_tiles,
    flags,
    maybe,
    pick,
    real,
    small,
    whole,
)

EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "bhid,bhjd->bhij", "bhij,bhjd->bhid", "ij->ji", "ii->i", "ij->", "i,j->ij", "ij,ij->i",
    "...ij,...jk->...ik", "bthd,bshd->bhts", "ij,jk,kl->il", "i,i", "abc,cd",
)  # fmt: skip


@cases(MatMul)
def matmul(draw: Draw, op: type[MatMul]) -> Case:
    m, n, k = draw(around_tiles), draw(around_tiles), draw(around_tiles)
    trans_a, trans_b, residual = draw(flags), draw(flags), pick(draw, False, False, True)
    batch = pick(
        draw, ((), ()), ((), ()), ((), ()), ((3,), ()), ((3,), (3,)), ((), (2,)), ((2, 1), (3,)), ((2, 3), (2, 3))
    )
    a = whole(draw, (*batch[0], *((k, m) if trans_a else (m, k))))
    b = whole(draw, (*batch[1], *((n, k) if trans_b else (k, n))))
    bias = maybe(draw, whole(draw, (n,)))
    if pick(draw, False, False, False, True):
        return plain(draw, op(trans_a, trans_b), a, b, bias)
    activation = pick(draw, *(EXACT_ACTIVATIONS if draw(flags) else ACTIVATIONS))
    exact = activation in EXACT_ACTIVATIONS
    made = op(trans_a, trans_b, pick(draw, 1.0, 1.0, 0.5, -2.0), activation, residual)
    if not exact:
        a, b = a / np.float32(8), b / np.float32(8)
    if not residual:
        return Case(made, (a, b) if bias is None else (a, b, bias), exact)
    wide = np.broadcast_shapes(*batch)
    return Case(made, (a, b, bias, whole(draw, (*wide, m, n))), exact)


def plain(draw: Draw, op: MatMul, a: Array, b: Array, bias: Array | None) -> Case:
    """Of another dtype, for integers with sums beyond it."""
    dtype = np.dtype(pick(draw, "f8", "i4", "u4", "i8", "u8"))
    factor = 1 if dtype.kind == "f" else 1 << (8 * dtype.itemsize - 4)
    operands = [(v.astype(np.int64) * f).astype(dtype) for v, f in ((a, factor), (b, 1))]
    return Case(op, (*operands, *(() if bias is None else (bias.astype(np.int64).astype(dtype),))))


@cases(Distances)
def distances(draw: Draw, op: type[Distances]) -> Case:
    n, m, k = pick(draw, 1, 1, 2, 4, 5, 9), draw(around_tiles), draw(around_tiles)
    dtype = pick(draw, F32, F32, F32, F64)
    x, w = whole(draw, (n, k)).astype(dtype), whole(draw, (k, m)).astype(dtype)
    return Case(op(pick(draw, 2, 2, 1)), (x, w))


@cases(Einsum)
def einsum(draw: Draw, op: type[Einsum]) -> Case:
    equation = pick(draw, *EQUATIONS)
    size = {c: draw(small) for c in "abcdefghijklmnopqrst"}
    batch = tuple(draw(small) for _ in range(pick(draw, 0, 1, 2)))
    terms = equation.partition("->")[0].split(",")
    operands = []
    for term in terms:
        head, dots, tail = term.partition("...")
        dims = [size[c] for c in head] + list(batch if dots else ()) + [size[c] for c in tail]
        operands.append(whole(draw, dims, -2, 2) if draw(flags) else np.rint(real(draw, dims)))
    return Case(op(equation), tuple(operands))
