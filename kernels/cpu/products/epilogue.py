"""What happens to a finished tile before anyone else sees it: bias, residual and activation of products.

Bias, residual and clamp (none, Relu, Clip) are parameters of every kernel.  Any other activation is a small machine
function that the kernel calls on each tile while it is in the first-level cache, so that no kernel is compiled twice.
Its attributes are numbers in a record, so values do not make functions.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import TensorType
from bolt_numba.codegen.formula import UntranslatableError, activation_text, parameters
from bolt_numba.kernels.cpu.language.lang import (
    CODE,
    F32,
    LANES,
    inline,
    native_source,
    splat,
    vload,
    vload_n,
    vmax,
    vmin,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.language.vmath import vgelu_short, vgelu_tanh_short
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Context, Record
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.registry import Op


@record(frozen=True)
class Finish:
    """lo, hi: clamp; act: None, or for ``call_activation(act, tile, columns + (rows << 32), bytes between rows)``."""

    lo: float
    hi: float
    act: Record | None

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


_BODY = """\
def activate(p, tile, size, pitch):
    n, rows = size & 0xFFFFFFFF, size >> 32
{numbers}
    for r in range(rows):
        at, q = tile + r * pitch, 0
        while q + LANES <= n:
            v = vload(at)
            vstore(at, {text})
            at += 4 * LANES
            q += LANES
        if q < n:
            v = vload_n(at, n - q)
            vstore_n(at, {text}, n - q)
"""

SHORT_FUNCTIONS = {"vgelu": vgelu_short, "vgelu_tanh": vgelu_tanh_short}
"""What stands for exact functions where results will be rounded to bfloat16."""


@lru_cache(maxsize=128)
def tile_function(activation: Any, short: bool = False) -> Native:
    """Machine function that activates a tile in place; what `codegen.formula.parameters` names is in its record.

    short: whether functions of `SHORT_FUNCTIONS` do.
    """
    text, names = activation_text(activation), [f"k_{name}" for name in parameters(activation, np.dtype(np.float32))]
    body = _BODY.format(text=text, numbers="\n".join(f"    {name} = splat(p.{name})" for name in names))
    usual = scope_of(body)
    scope = {**usual, **{name: function for name, function in SHORT_FUNCTIONS.items() if short and name in usual}}
    return native_source(body, "activate", {"function": CODE} | dict.fromkeys(names, F32), **scope)


def _record(activation: Any, short: bool) -> Record:
    """What `call_activation` is given: the address of the function, then its numbers."""
    function = tile_function(activation, short)
    numbers = {f"k_{name}": value for name, value in parameters(activation, np.dtype(np.float32)).items()}
    return Record(function, {"function": function, **numbers})


def can_finish(activation: Op | None) -> bool:
    """Whether `finish` knows this activation."""
    if _clamp(activation) is not None:
        return True
    if activation is None or not getattr(activation, "pointwise", False):
        return False
    try:
        activation_text(activation)
    except (UntranslatableError, KeyError, TypeError):
        return False
    return True


def finish(activation: Op | None, short: bool = False) -> Finish:
    """How a kernel applies this activation; short: see `tile_function`."""
    bounds = _clamp(activation)
    if bounds is not None:
        return Finish(*bounds, None)
    return Finish(-math.inf, math.inf, _record(activation, short))


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


def bias_last(op: Conv | MatMul, bias: TensorType | None, columns: int, context: Context) -> bool:
    """Whether the bias takes the place of a residual of no rows, so that it rounds a sum once and not at every step."""
    return context.numerics == "strict" and bias is not None and bias.size == columns and not op.residual

