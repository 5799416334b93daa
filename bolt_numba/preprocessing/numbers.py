"""What steps before a model hold their numbers to."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.types import F32

LARGEST = float(np.finfo(F32).max)
_NUMBERS = (int, float, np.integer, np.floating)


def are_finite(*given: Any) -> bool:
    """Whether all are numbers that f32 has: no texts, no truth values, nothing infinite and no NaN."""
    for value in given:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not -LARGEST <= value <= LARGEST:
            return False
    return True


def is_whole(given: Any, least: int, most: int) -> bool:
    """Whether a number is a whole one from ``least`` to ``most``."""
    return bool(isinstance(given, (int, np.integer)) and least <= given <= most)
