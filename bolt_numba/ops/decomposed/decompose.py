"""What operators are in terms of others, one decomposition each: for devices and formats that lack them, and for tests.

`bolt_numba.plugins.lowering` makes rules of them.  The writer of ONNX files uses them where ONNX has no words.  A
decomposition is a function ``(op, b, *values)`` of `bolt_numba.ops.decomposed`, with None for an omitted operand.  It
gives the results of ``op`` on these values, which have a ``type``; what is known of their content is ``type.known``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from bolt_numba.base.types import F32
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.pointwise import Add, Cast
from bolt_numba.ops.registry import Op, result_tuple

Decomposition: TypeAlias = Callable[..., Any]


class Terms(Protocol):
    """Where a decomposition is built, `bolt_numba.ir.build.Builder` or the writer of a file.

    ``b(Relu(), x)`` is the result of an operator.  Arrays and numbers among the operands become constants; a number
    has the dtype of the first value.
    """

    def __call__(self, op: Op, *operands: Any) -> Any: ...

    def const(self, array: Any) -> Any: ...


class WholeError(Exception):
    """An operator cannot be taken apart as it is used here; the message says why."""


DECOMPOSITIONS: dict[type[Op], Decomposition] = {}
WHOLE: set[type[Op]] = set()
"""Operators whose decomposition has what is fused to them, too."""


def decomposes(*kinds: type[Op], whole: bool = False) -> Callable[[Decomposition], Decomposition]:
    """Register the decomposition of these operators.  whole: it has the residual and the activation, too."""

    def register(function: Decomposition) -> Decomposition:
        for kind in kinds:
            if kind in DECOMPOSITIONS:
                raise ValueError(f"operator {kind.name} has two decompositions")
            DECOMPOSITIONS[kind] = function
        WHOLE.update(kinds if whole else ())
        return function

    return register


@functools.cache
def load_decompositions() -> None:
    """Import every module beside this one; importing it registers what it has."""
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{info.name}")


def decompose(op: Op, b: Terms, *values: Any) -> Any:
    """The operator, with nothing fused to it, in terms of others; raises WholeError."""
    load_decompositions()
    function = DECOMPOSITIONS.get(type(op))
    if function is None:
        raise WholeError("it is not made of others")
    return function(op, b, *values)


def unfused(op: Any, b: Terms, *values: Any) -> Any:
    """The same with residual, activation and dtype of the result as operators behind it; None where it has none."""
    load_decompositions()
    if hasattr(op, "activation") and getattr(op, "to", None) is not None:
        wide = [v if v is None or v.type.dtype == F32 else b(Cast(F32), v) for v in values]
        y = b(dataclasses.replace(op, to=None), *wide)
        return y if op.to == F32 else b(Cast(op.to), y)
    residual, activation = getattr(op, "residual", False), getattr(op, "activation", None)
    if type(op) in WHOLE or not (residual or activation is not None):
        return None
    bare = dataclasses.replace(op, activation=None, **({"residual": False} if hasattr(op, "residual") else {}))
    y = b(bare, *(values[:-1] if residual else values))
    y = b(Add(), y, values[-1]) if residual else y
    return y if activation is None else b(activation, y)


def channels_first(op: Any, b: Terms, *values: Any) -> Any:
    """The same on images whose channels are first, between transposes; None for an operator without channels last."""
    if getattr(op, "layout", "") != "NHWC":
        return None
    if not values[0].type.shape:
        raise WholeError("layout NHWC of an unknown rank")
    rank = len(values[0].type.shape)
    spatial = (0, op.residual_at) if getattr(op, "residual", False) else (0,)
    first = Transpose((0, rank - 1, *range(1, rank - 1)))
    operands = [b(first, v) if v is not None and i in spatial else v for i, v in enumerate(values)]
    made = result_tuple(b(dataclasses.replace(op, layout="NCHW"), *operands))
    return tuple(b(Transpose((0, *range(2, rank), 1)), v) for v in made)
