"""Weights of GGUF files that are floats, as other operators have them; those of few bits stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I8, I64
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.arrays.shape import Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.decomposed.decompose import Terms, WholeError, decomposes
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.ops.layers.products.matmul_forms import GatherForm, MatMulForm
from bolt_numba.ops.pointwise import Add, Cast

SYMMETRIC = {"Q4_0": 8, "Q8_0": 128}
"""Forms of scales alone, by the code of 0."""


@decomposes(MatMulForm)
def product_of_floats(op: MatMulForm, b: Terms, x: Any, raw: Any, bias: Any = None) -> Any:
    """``MatMul(x, Cast(w)^T) + bias``, where w is of floats."""
    y = b(MatMul(), x, b(Transpose((1, 0)), b(Cast(F32), _floats(op, b, raw))))
    return y if bias is None else b(Add(), y, bias)


@decomposes(GatherForm)
def rows_of_floats(op: GatherForm, b: Terms, raw: Any, indices: Any) -> Any:
    """``Cast(Gather(w, indices))``."""
    return b(Cast(F32), b(Gather(), _floats(op, b, raw), indices))


@decomposes(MatMulExperts)
def product_of_experts(op: MatMulExperts, b: Terms, x: Any, raw: Any, ids: Any) -> Any:
    """``MatMul(x, Gather(w, ids)^T)``, dequantised behind the Gather where w is of bytes and scales."""
    form = FORMS[op.form]
    if form.plain is not None:
        w = b(Cast(F32), b(Gather(), _floats(op, b, raw), ids))
    elif raw.type.known is None or op.form not in SYMMETRIC:
        raise WholeError("its weights are no bytes with scales, or only the run tells them")
    else:
        held = raw.type.known
        codes, scales, _ = form.parts(held.reshape(-1, held.shape[2]))
        signed = (codes.astype(np.int16) - SYMMETRIC[op.form]).astype(I8)
        parts = (b(Gather(), b.const(v.reshape(*held.shape[:2], -1)), ids) for v in (signed, scales))
        w = b(DequantizeLinear(-1, form.group), *parts)
    row = np.array([-2], I64)
    return b(Squeeze(), b(MatMul(trans_b=True), b(Unsqueeze(), x, row), w), row)


def _floats(op: MatMulForm | GatherForm | MatMulExperts, b: Terms, raw: Any) -> Any:
    dtype = FORMS[op.form].plain
    if dtype is None or raw.type.known is None:
        raise WholeError("its weights are no floats, or only the run tells them")
    return b.const(np.ascontiguousarray(raw.type.known).view(dtype))
