"""What steps before a model hold their numbers to."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, dtype_from_name
from bolt_numba.ops.dtypes import MAX_F32

_MAX_F32 = float(MAX_F32)
_NUMBERS = (int, float, np.integer, np.floating)


def are_finite(*given: Any) -> bool:
    """Whether all are numbers that f32 has: no texts, no truth values, nothing infinite and no NaN."""
    for value in given:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not -_MAX_F32 <= value <= _MAX_F32:
            return False
    return True


def is_whole(given: Any, least: int, most: int) -> bool:
    """Whether a number is a whole one from ``least`` to ``most``."""
    return bool(isinstance(given, (int, np.integer)) and not isinstance(given, bool) and least <= given <= most)


def dtype_of(given: Any) -> np.dtype[Any] | None:
    """A dtype of numbers: ours by its name, such as "f16", or what NumPy takes for one; None where it is neither."""
    for read in (dtype_from_name, np.dtype) if isinstance(given, str) else (np.dtype,):
        with suppress(KeyError, TypeError, ValueError):
            made: np.dtype[Any] = np.dtype(read(given))
            return made if made.kind in "iuf" or made == BF16 else None
    return None
