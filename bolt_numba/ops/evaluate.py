"""The one way to run a reference on operands that a file or a caller chose: memory and work are asked for first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask, spend
from bolt_numba.errors import BoltError
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import Array, TensorType

MAX_KNOWN = 1024
"""Elements up to which an operand's content is shown to `infer`: shapes, axes, sizes."""


def evaluate(op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
    """Results of the reference for arrays, lists or None.

    Raises BudgetError before it takes more memory or work than is granted, and whatever the reference raises.
    """
    if all(a is None or isinstance(a, np.ndarray) for a in args):
        _ask_for(op, args)
    return result_tuple(op.reference(*args))


def _type(array: Array) -> TensorType:
    return TensorType(array.dtype, array.shape, value=array if array.size <= MAX_KNOWN else None)


def _ask_for(op: Op, args: Sequence[Array | None]) -> None:
    types = [None if a is None else _type(a) for a in args]
    try:
        results = [t for t in result_tuple(op.infer(*types)) if t.is_static]
    except BoltError:
        raise
    except Exception:  # the reference says better what is wrong
        return
    ask(sum(t.nbytes for t in results), f"{op.name}: result {', '.join(map(str, results))}")
    spend(sum(t.size for t in results) + sum(a.size for a in args if a is not None), op.name)
