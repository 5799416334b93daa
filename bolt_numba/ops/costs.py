"""Roughly what a node takes: to tell work that pays for copies to a GPU from work that does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bolt_numba.base.types import TensorType
from bolt_numba.ops.registry import Op

Given = Sequence[TensorType | None]

_PRODUCTS = "bolt_numba.ops.layers."
"""Where the operators stand that may compute more than they read and write."""
FILTERS = {"Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3}
"""By operator which operand holds the filters."""
MATRICES = ("MatMul", "MatMulInteger", "QLinearMatMul")


def bytes_of(ins: Given, outs: Sequence[TensorType]) -> int:
    """What a node reads and writes."""
    return sum(t.nbytes for t in (*ins, *outs) if t is not None)


def work_of(op: Op, ins: Given, outs: Sequence[TensorType]) -> float:
    """Multiply-adds of a node, within a factor of three; one for each result of what is no product."""
    results = sum(t.size for t in outs)
    if not type(op).__module__.startswith(_PRODUCTS):
        return results
    one, two, *_ = *sorted((t.size for t in ins if t is not None), reverse=True), 1, 1
    return products_of(op, ins, outs) or max(math.sqrt(one * two * results), results)


def products_of(op: Op, ins: Given, outs: Sequence[TensorType]) -> float:
    """Multiply-adds of a convolution or a product of matrices, exactly; 0 of other nodes and of sizes not known."""
    if not all(t.is_static for t in (*ins, *outs) if t is not None):
        return 0
    x, results = ins[0], outs[0].size
    if op.name in FILTERS and x is not None:
        w = ins[FILTERS[op.name]]
        often = x.size if op.name == "ConvTranspose" else results
        return 0 if w is None else often * w.size / max(w.dims[0], 1)
    if op.name in MATRICES and x is not None and x.dims:
        is_turned = getattr(op, "trans_a", False) and len(x.dims) > 1
        return results * x.dims[-2 if is_turned else -1]
    return 0
