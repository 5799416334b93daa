"""Activations behind a product: clamps are numbers, others a helper that is generated."""

from __future__ import annotations

import math
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.elementwise.epilogue import activation, activation_args, can_activate
from bolt_numba.ops.registry import Op


@record(frozen=True)
class Activated:
    """act: see `tail.TailForm`.  numbers: the fields lo, hi, act0 and act1."""

    act: Any
    numbers: dict[str, float]


def _clamp(given: Op | None) -> tuple[float, float] | None:
    """Bounds, when the activation is nothing but a clamp."""
    known: Any = given
    if given is None:
        return -math.inf, math.inf
    if given.name == "Relu":
        return 0.0, math.inf
    if given.name == "Clip" and known.lo == known.lo and known.hi == known.hi:
        return -math.inf if known.lo is None else float(known.lo), math.inf if known.hi is None else float(known.hi)
    return None


def can_finish(given: Op | None) -> bool:
    return _clamp(given) is not None or can_activate(given)


def tail_args(given: Op | None) -> Activated:
    """What the kernel of a product takes for an activation."""
    bounds = _clamp(given)
    lo, hi = bounds or (-math.inf, math.inf)
    own = None if bounds is not None else given
    return Activated(None if own is None else activation(own), {"lo": lo, "hi": hi, **activation_args(own)})
