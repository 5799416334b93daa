"""Activations of finished sums, for the kernels of products and convolutions.

`activation(op)` is a helper ``(v, act0, act1) -> v`` of f32, the identity for None.  A factory of kernels takes it as a
closure constant, so equal helpers make one kernel.  The op's attributes are the kernel's fields `ACTIVATION_FIELDS`,
with the values of `activation_args(op)`; they make no kernel of their own.  `can_activate(op)` is for ``accepts``.

    activate = activation(op.activation)
    value = activate(sum * scale + bias + residual, act0, act1)      # in the body
    Step(kernel(activate), {..., **activation_args(op.activation)})  # in the maker

Results of bytes are ``scalars.quantised(value, scale, zero, low, high)``.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools

from bolt_numba.base.types import F16
from bolt_numba.base.types import F32 as FLOAT
from bolt_numba.codegen.formula import Term, UntranslatableError, parameters
from bolt_numba.codegen.threads import thread_text
from bolt_numba.kernels.cuda.declare import F32, inline, inline_source
from bolt_numba.kernels.cuda.elementwise.scalars import scope_of
from bolt_numba.kernels.declare import Inline
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import Op

ACTIVATION_FIELDS = {"act0": F32, "act1": F32}


@inline
def no_activation(v, act0, act1):
    return v


@functools.lru_cache(maxsize=256)
def _text(op: Pointwise, short: bool = False) -> str:
    """Text of a function; raises `UntranslatableError`."""
    if op.arity != 1:
        raise UntranslatableError(f"{op.name} is not unary")
    names = [f"k_{name}" for name in parameters(op, FLOAT)]
    if len(names) > len(ACTIVATION_FIELDS):
        raise UntranslatableError(f"{op.name} has {len(names)} numbers")
    lines = [f"    {name} = act{i}" for i, name in enumerate(names)]
    made = thread_text(op, [Term("v", F16 if short else FLOAT)], "k_")
    return "\n".join(["def activate(v, act0, act1):", *lines, f"    return {made}"]) + "\n"


@functools.lru_cache(maxsize=256)
def _function(text: str) -> Inline:
    return inline_source(text, "activate", **scope_of(text))


def activation(op: Op | None, short: bool = False) -> Inline:
    """The helper of an activation; equal ones are one object.  short: whether its results will be halves."""
    if op is None:
        return no_activation
    assert isinstance(op, Pointwise), "can_activate() has tested this"
    return _function(_text(op, short))


def activation_args(op: Op | None) -> dict[str, float]:
    """Values of `ACTIVATION_FIELDS`."""
    given = parameters(op, FLOAT) if isinstance(op, Pointwise) else {}
    values = [float(v) for v in given.values()]
    return dict(zip(ACTIVATION_FIELDS, [*values, 0.0, 0.0], strict=False))


def can_activate(op: Op | None) -> bool:
    if op is None:
        return True
    if not isinstance(op, Pointwise) or op.result != "same":
        return False
    try:
        _text(op)
    except (UntranslatableError, KeyError, TypeError):
        return False
    return True
