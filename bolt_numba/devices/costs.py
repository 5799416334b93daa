"""Roughly what a node takes: to tell work that pays for copies to a GPU from work that does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bolt_numba.base.types import TensorType
from bolt_numba.kernels.registry import Given
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.registry import Op

_PRODUCTS = "bolt_numba.ops.layers."
"""Where the operators stand that may compute more than they read and write."""


def bytes_of(ins: Given, outs: Sequence[TensorType]) -> int:
    """What a node reads and writes."""
    return sum(t.nbytes for t in (*ins, *outs) if t is not None)


def work_of(op: Op, ins: Given, outs: Sequence[TensorType]) -> float:
    """Multiply-adds of a node, within a factor of three; one for each result of what is no product."""
    results = sum(t.size for t in outs)
    if not type(op).__module__.startswith(_PRODUCTS):
        return results
    if isinstance(op, Conv) and ins[1] is not None:
        return results * ins[1].size / max(ins[1].dims[0], 1)
    one, two, *_ = *sorted((t.size for t in ins if t is not None), reverse=True), 1, 1
    return max(math.sqrt(one * two * results), results)  # exact for products of matrices
