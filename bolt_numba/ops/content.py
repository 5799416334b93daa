"""What the content of an operand may ask for: indices, counts and lengths are held against what is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bolt_numba.base.errors import DataError
from bolt_numba.base.types import Array
from bolt_numba.ops.registry import Op

PLANNED = "read when planning, where shapes follow from it; kernels see only what follows"
VALUES = "only computed with"


def bounded(**operands: str) -> dict[str, str]:
    """What the content of each operand may make a kernel read or write, and where that is bounded; see `Op`."""
    return operands


def refusal(owner: Op, operand: int | str, place: Iterable[Any], value: object, low: object, high: object) -> DataError:
    """The error of an element of an operand that is not in low…high; kernels and references say it in the same words.

    operand: its name, or its position among those of `Op.infer`.
    """
    where = ", ".join(str(int(p)) for p in place)
    return DataError(f"{asked_for(owner, operand)}{f'[{where}]' if where else ''}: got {value}, wanted {low} to {high}")


def asked_for(owner: Op, operand: int | str) -> str:
    """An operand for people, with its operator."""
    if isinstance(operand, int):
        names = type(owner).infer.__code__.co_varnames[1 : type(owner).infer.__code__.co_argcount]
        operand = names[operand] if operand < len(names) else f"operand {operand}"
    return f"{owner.name}: {operand}"


def want_between(owner: Op, operand: str, values: Array, low: int | Array, high: int | Array) -> None:
    """Raise a DataError for the first element that is not in low…high; the bounds broadcast to ``values``."""
    outside = ~((values >= low) & (values <= high))  # NaN is outside
    if outside.any():
        place = np.unravel_index(int(np.argmax(outside)), outside.shape)
        bounds = (np.broadcast_to(b, outside.shape)[place] for b in (low, high))
        raise refusal(owner, operand, place, values[place], *bounds)


def want_index(owner: Op, operand: str, indices: Array, size: int) -> None:
    """Raise a DataError for the first index that is not in -size…size - 1."""
    want_between(owner, operand, indices, -size, size - 1)
