"""The one way to run a reference on operands that a file or a caller chose: memory and work are asked for first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.budget import ask, spend
from bolt_numba.errors import BoltError
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import Array, TensorType

MAX_KNOWN = 1024
"""Elements up to which an operand's content is shown to `infer`: shapes, axes, sizes."""


Amounts: TypeAlias = "tuple[int, int, str]"
"""Bytes of results, elements of operands and results, and whose results they are."""


def evaluate(op: Op, args: Sequence[Any], amounts: Amounts | None = None) -> tuple[Any, ...]:
    """Results of the reference for arrays, lists or None.  amounts: what `amounts_of` says, where it is known.

    Raises BudgetError before it takes more memory or work than is granted, and whatever the reference raises.
    """
    if amounts is None and all(a is None or isinstance(a, np.ndarray) for a in args):
        amounts = amounts_of(op, [None if a is None else _type(a) for a in args])
    if amounts is not None:
        if amounts[0]:
            ask(amounts[0], amounts[2])
        spend(amounts[1], op.name)
    return result_tuple(op.reference(*args))


def _type(array: Array) -> TensorType:
    return TensorType(array.dtype, array.shape, value=array if array.size <= MAX_KNOWN else None)


def amounts_of(op: Op, types: Sequence[TensorType | None]) -> Amounts | None:
    """What a reference takes for operands of these static types; None where it says better what is wrong with them."""
    try:
        results = [t for t in result_tuple(op.infer(*types)) if t.is_static]
    except BoltError:
        raise
    except Exception:
        return None
    what = f"{op.name}: result {', '.join(map(str, results))}"
    return sum(t.nbytes for t in results), sum(t.size for t in (*results, *filter(None, types))), what
