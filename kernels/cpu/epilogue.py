"""What happens to a finished tile before anyone else sees it: bias, residual and activation of products.

Bias, residual and clamp (none, Relu, Clip) are parameters of every kernel.  Any other activation is a small machine
function that the kernel calls on each tile while it is in the first-level cache, so that no kernel is compiled twice.
"""

# mypy: disable-error-code="no-untyped-def"
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.codegen.formula import UntranslatableError
from bolt_numba.kernels.cpu.lang import (
    BYTES,
    LANES,
    address_of,
    inline,
    native,
    splat,
    vload,
    vload_n,
    vmax,
    vmin,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.pointwise import activation as vector_function
from bolt_numba.kernels.jit import Native
from bolt_numba.ops.registry import Op
from bolt_numba.records import record
from bolt_numba.types import Array


@record(frozen=True)
class Finish:
    """lo, hi: clamp; act: address of ``f(tile, columns + (rows << 32), bytes between rows)``, or 0."""

    lo: float
    hi: float
    act: int

    @property
    def args(self) -> dict[str, Any]:
        """As kernel fields."""
        return {"lo": self.lo, "hi": self.hi, "act": self.act}


def _clamp(activation: Op | None) -> tuple[float, float] | None:
    """Bounds, when the activation is nothing but a clamp."""
    if activation is None:
        return -math.inf, math.inf
    if activation.name == "Relu":
        return 0.0, math.inf
    if activation.name == "Clip":
        lo, hi = activation.lo, activation.hi  # type: ignore[attr-defined]
        if lo != lo or hi != hi:  # a bound of NaN leaves nothing but NaN
            return None
        return -math.inf if lo is None else float(lo), math.inf if hi is None else float(hi)
    return None


@lru_cache(maxsize=128)
def tile_function(activation: Op) -> Native:
    """Machine function that activates a tile in place."""
    act: Any = vector_function(activation)

    @native()
    def activate(p, size, ld):
        base, n, rows = address_of(p), size & 0xFFFFFFFF, size >> 32
        for r in range(rows):
            at = base + r * ld
            q = 0
            while q + LANES <= n:
                vstore(at, act(vload(at)))
                at += BYTES
                q += LANES
            if q < n:
                vstore_n(at, act(vload_n(at, n - q)), n - q)

    return activate


def can_finish(activation: Op | None) -> bool:
    """Whether `finish` knows this activation."""
    if _clamp(activation) is not None:
        return True
    if activation is None or not getattr(activation, "pointwise", False):
        return False
    try:
        vector_function(activation)
    except (UntranslatableError, KeyError, TypeError):
        return False
    return True


def finish(activation: Op | None) -> Finish:
    """How a kernel applies this activation; compiles its function where it has one."""
    bounds = _clamp(activation)
    if bounds is not None:
        return Finish(*bounds, 0)
    assert activation is not None
    return Finish(-math.inf, math.inf, tile_function(activation).address)


@inline
def put(v, y, res, has_residual, n, lo, hi):
    """Residual, clamp, store of n channels of one pixel."""
    if n >= LANES:
        if has_residual != 0:
            v = v + vload(res)
        vstore(y, vmin(splat(hi), vmax(splat(lo), v)))
    else:
        if has_residual != 0:
            v = v + vload_n(res, n)
        vstore_n(y, vmin(splat(hi), vmax(splat(lo), v)), n)


def padded_bias(columns: int, width: int, pad: Callable[[int], int]) -> Callable[[Array], Array]:
    """Packs a bias of ``columns`` (or one) values in blocks of ``width``, each padded to ``pad(width)``."""

    def pack(bias: Array) -> Array:
        full = np.broadcast_to(bias.reshape(-1), columns).reshape(-1, width)
        out = np.zeros((columns // max(width, 1), pad(width)), np.float32)
        out[:, :width] = full
        return out

    return pack
