"""TEMPORARY until the generated epilogues: clamps."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

from bolt_numba.kernels.cuda.declare import inline


@inline
def clamped(v, lo, hi):
    """NaN stays."""
    v = lo if v < lo else v
    return hi if v > hi else v


def clamp_of(activation: Any) -> tuple[float, float] | None:
    """Bounds, when the activation is nothing but a clamp."""
    if activation is None:
        return -math.inf, math.inf
    if activation.name == "Relu":
        return 0.0, math.inf
    return None
