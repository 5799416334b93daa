"""Activations behind a product, as the kernels' tails take them."""

from __future__ import annotations

import math
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.ops.registry import Op


@record(frozen=True)
class Activated:
    """act: see `tail.TailForm`.  numbers: the fields lo, hi and p0 to p3."""

    act: Any
    numbers: dict[str, float]


def _clamp(activation: Op | None) -> tuple[float, float] | None:
    """Bounds, when the activation is nothing but a clamp."""
    known: Any = activation
    if activation is None:
        return -math.inf, math.inf
    if activation.name == "Relu":
        return 0.0, math.inf
    if activation.name == "Clip" and known.lo == known.lo and known.hi == known.hi:
        return -math.inf if known.lo is None else float(known.lo), math.inf if known.hi is None else float(known.hi)
    return None


def can_finish(activation: Op | None) -> bool:
    return _clamp(activation) is not None


def tail_args(activation: Op | None) -> Activated:
    lo, hi = _clamp(activation) or (-math.inf, math.inf)
    return Activated(None, {"lo": lo, "hi": hi, "p0": 0.0, "p1": 0.0, "p2": 0.0, "p3": 0.0})
