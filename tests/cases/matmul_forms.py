"""Cases of products with weights as GGUF files have them."""

from __future__ import annotations

import numpy as np
from hypothesis import assume

from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.ops.layers.products.matmul_forms import GatherForm, MatMulForm
from bolt_numba.types import Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, maybe, pick, real, whole
from tests.gguf_files import numbers_of, put_number

LEFT_OF = 24


def stored(draw: Draw, name: str, n: int, blocks: int) -> Array:
    """Bytes of weights: any codes, finite scales."""
    form = FORMS[name]
    raw = whole(draw, (n, blocks * form.size), 0, 255, np.uint8)
    for at in numbers_of(form):
        put_number(form, form.blocks(raw), at, real(draw, (n, blocks), -0.1, 0.1))
    return raw


def width(draw: Draw, name: str) -> int:
    """Blocks of a row."""
    return int(pick(draw, 1, 2) if FORMS[name].block > 32 else pick(draw, 1, 2, 5, 9))


@cases(MatMulForm)
def matmul_form(draw: Draw, op: type[MatMulForm]) -> Case:
    name, m, n = pick(draw, *FORMS), pick(draw, 1, 2, 3, 5, 6, 7, 12, 13, 30), pick(draw, 1, 7, 16, 33, 70)
    blocks = width(draw, name)
    k = blocks * FORMS[name].block
    x, bias = real(draw, pick(draw, (m, k), (1, m, k))), maybe(draw, real(draw, (n,)))
    raw = stored(draw, name, n, blocks)
    weights = FORMS[name].weights(raw)
    # Errors are told of the greatest result, which must not be what is left of much larger products.
    assume(np.abs(x @ weights.T).max() * LEFT_OF >= (np.abs(x) @ np.abs(weights).T).max())
    return Case(op(name), (x, raw, bias), exact=False, rtol=1e-4)


@cases(GatherForm)
def gather_form(draw: Draw, op: type[GatherForm]) -> Case:
    name, n = pick(draw, *FORMS), pick(draw, 1, 3, 20)
    indices = whole(draw, pick(draw, (), (0,), (4,), (2, 3)), -n, n - 1, pick(draw, np.int32, np.int64))
    return Case(op(name), (stored(draw, name, n, width(draw, name)), indices))


@cases(MatMulExperts)
def matmul_experts(draw: Draw, op: type[MatMulExperts]) -> Case:
    name, experts, used = pick(draw, *FORMS), pick(draw, 1, 3, 5), pick(draw, 1, 2)
    rows, n, blocks = pick(draw, (), (1,), (2, 3), (40,)), pick(draw, 7, 33), width(draw, name)
    raw = stored(draw, name, experts * n, blocks).reshape(experts, n, -1)
    x = real(draw, (*rows, pick(draw, 1, used), blocks * FORMS[name].block))
    ids = whole(draw, (*rows, used), 0, experts - 1, pick(draw, np.int32, np.int64))
    return Case(op(name), (x, raw, ids), exact=False, rtol=1e-4)
