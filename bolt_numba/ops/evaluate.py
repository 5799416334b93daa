"""The one way to run a reference on operands that a file or a caller chose: memory and work are asked for first.

And the one way to infer types, which runs references on what is small and known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.border import place_of
from bolt_numba.base.budget import Budget, ask, spend, within
from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.follow import TABLES, LostError
from bolt_numba.base.types import Array, TensorType
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.ops.shapes import want_possible

MAX_KNOWN = 1024
"""Elements up to which an operand's content is shown to `infer`, and results are computed during inference: shapes,
axes, scales; never weights."""
MAX_WORK = 1 << 20
"""Elementary operations that one such result may take: a small one can hide an endless loop or a large product."""

Amounts: TypeAlias = "tuple[int, int, str]"
"""Bytes of results, elements of operands and results, and whose results they are."""


def evaluate(op: Op, args: Sequence[Any], amounts: Amounts | None = None) -> tuple[Any, ...]:
    """Results of the reference for arrays, lists or None.  amounts: what `amounts_of` says, where it is known.

    Raises BudgetError before it takes more memory or work than is granted, and whatever the reference raises.
    """
    if amounts is None and all(a is None or isinstance(a, np.ndarray) for a in args):
        decides = op.value_inputs
        amounts = amounts_of(op, [None if a is None else _type(a, i in decides) for i, a in enumerate(args)])
    if amounts is not None:
        if amounts[0]:
            ask(amounts[0], amounts[2])
        spend(amounts[1], op.name)
    return result_tuple(op.reference(*args))


def _type(array: Array, decides: bool) -> TensorType:
    """Its content is told where shapes follow from it.  What is only computed with, a run does not refuse."""
    return TensorType(array.dtype, array.shape, value=array if decides and array.size <= MAX_KNOWN else None)


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


def _told(error: Exception) -> str:
    """Where the module of another package raised it."""
    place = place_of(error)
    return f" ({place})" if place else ""


def infer_types(op: Op, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    """Output types of ``op``, with the values of small outputs whose inputs are all known.

    Raises ShapeError or DTypeError as `Op.infer` does, for an omitted operand that the operator needs, and for results
    that cannot be; any other failure of `infer` becomes a ShapeError.
    """
    for t in inputs:
        if t is None:
            _want_operands(op, inputs)
            break
    try:
        types = result_tuple(op.infer(*inputs))
    except BoltError:
        raise
    except Exception as error:
        got = ", ".join("-" if t is None else str(t) for t in inputs)
        raise ShapeError(f"{op.name}: cannot infer the result of {op} for ({got}): {error}{_told(error)}") from error
    for made in types:
        if not isinstance(made, TensorType):
            wanted = f"wanted a TensorType for each result from infer of module {type(op).__module__}"
            raise ShapeError(f"{op.name}: got a {type(made).__name__}, {wanted}")
    is_open = not op.has_side_state and len(inputs) > 0
    for made in types:
        want_possible(op, made)
        is_open &= made.value is None
    return _with_values(op, inputs, types) if is_open else types


def _want_operands(op: Op, inputs: Sequence[TensorType | None]) -> None:
    """Raise ShapeError for an omitted operand whose annotation in `Op.infer` does not allow None."""
    kinds = [(name, kind) for name, kind in op.infer.__annotations__.items() if name != "return"]
    for i, t in enumerate(inputs):
        name, kind = kinds[min(i, len(kinds) - 1)] if kinds else ("", "")
        if t is None and kind == "TensorType":
            raise op.fail(f"operand {i} ({name})", "none", "one")


def _with_values(op: Op, inputs: Sequence[TensorType | None], types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    for t in inputs:
        if t is not None and (t.value is None or t.value.size > 64 * MAX_KNOWN):
            return types
    args: list[Array | None] = []
    symbolic = False
    for t in inputs:
        if t is None:
            args.append(None)
            continue
        known = t.known
        known = None if type(known) in TABLES else known
        symbolic |= known is None
        args.append(t.value if known is None else known)
    if symbolic and not op.on_symbols:
        return types
    for t in types:
        if not t.is_static or t.size > MAX_KNOWN:
            return types
    try:
        with within(Budget(MAX_WORK)):
            values = result_tuple(op.reference(*args))
    except (LostError, Exception):  # a value that cannot be computed here is not known; the run will report the error
        return types
    if symbolic:
        return tuple(
            t.with_value(_tidy(v)) if np.shape(v) == t.shape and _is_small(v) else t
            for t, v in zip(types, values, strict=True)
        )
    return tuple(
        t.with_value(v) if np.shape(v) == t.shape and v.dtype == t.dtype else t
        for t, v in zip(types, values, strict=True)
    )


def _is_small(value: Any) -> bool:
    """Whether integers beside symbols fit into 64 bits: those of Python have no end."""
    return all(not isinstance(v, int) or -(1 << 63) <= v < 1 << 64 for v in np.asarray(value, object).flat)


def _tidy(value: Any) -> Array:
    made = np.empty(np.shape(value), dtype=object)
    made[...] = value
    return made
