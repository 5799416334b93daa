"""Weights of GGUF files that are floats, as other operators have them; those of few bits stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.decomposed.decompose import Terms, WholeError, decomposes
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_forms import GatherForm, MatMulForm
from bolt_numba.ops.pointwise import Add, Cast


@decomposes(MatMulForm)
def product_of_floats(op: MatMulForm, b: Terms, x: Any, raw: Any, bias: Any = None) -> Any:
    """``MatMul(x, Cast(w)^T) + bias``, where w is of floats."""
    y = b(MatMul(), x, b(Transpose((1, 0)), b(Cast(F32), _floats(op, b, raw))))
    return y if bias is None else b(Add(), y, bias)


@decomposes(GatherForm)
def rows_of_floats(op: GatherForm, b: Terms, raw: Any, indices: Any) -> Any:
    """``Cast(Gather(w, indices))``."""
    return b(Cast(F32), b(Gather(), _floats(op, b, raw), indices))


def _floats(op: MatMulForm | GatherForm, b: Terms, raw: Any) -> Any:
    dtype = FORMS[op.form].plain
    if dtype is None or raw.type.known is None:
        raise WholeError("its weights are no floats, or only the run tells them")
    return b.const(np.ascontiguousarray(raw.type.known).view(dtype))
