"""DynamicQuantizeLinear, and operators between bytes: parts that other makers make, through memory."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels import registry
from bolt_numba.kernels.cuda.declare import PTR, CudaKernel, cuda_kernel
from bolt_numba.kernels.cuda.elementwise.chains import LIMIT, chain_steps
from bolt_numba.kernels.cuda.language.lang import load_f32, max_f32, min_f32, rint_f32, store_f32, store_u8
from bolt_numba.kernels.cuda.reductions.fold import FOLDS, fold_all
from bolt_numba.kernels.registry import (
    Argument,
    Context,
    Entry,
    In,
    Out,
    Pitch,
    QueryContext,
    Scratch,
    Step,
    Types,
    kernel,
)
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceMin
from bolt_numba.ops.chain import Chain
from bolt_numba.ops.layers.between_bytes import BetweenBytes
from bolt_numba.ops.layers.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.types import F32, U8, TensorType

_CODE = Chain(((QuantizeLinear(), (0, 1, 2)),), (3,))
_NUMBER = Chain(((DequantizeLinear(), (0, 1, 2)),), (3,))


@cuda_kernel(
    threads=32, blocks=lambda a: 1, least=PTR, most=PTR, scale=PTR, zero=PTR,
    extents=lambda a: {"least": 4, "most": 4, "scale": 4, "zero": 1},
)  # fmt: skip
def scale_of_range(least, most, scale, zero):
    """Scale and zero point of u8 for numbers from least to most, and 0; every thread stores the same."""
    low, high = load_f32(least), load_f32(most)
    is_number = (low == low) & (high == high)
    low, high = min_f32(low, np.float32(0)), max_f32(high, np.float32(0))
    step = (high - low) / np.float32(255) if is_number and high > low else np.float32(1)
    place = rint_f32(-low / step)
    place = min_f32(place, np.float32(255)) if is_number and place > np.float32(0) else np.float32(0)
    store_f32(scale, step)
    store_u8(zero, np.uint8(place))


@kernel(
    DynamicQuantizeLinear, device="cuda", by_types=True,
    accepts=lambda op, ins: ins[0] is not None and ins[0].is_static and 0 < ins[0].size < LIMIT,
)  # fmt: skip
def dynamic_quantize(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """The least and the greatest, what they make of scale and zero point, then the codes."""
    x = ins[0]
    assert x is not None, "accepts() has tested this"
    least, most = Scratch(4), Scratch(4)
    steps = []
    for fold, to in ((FOLDS[ReduceMin], least), (FOLDS[ReduceMax], most)):
        steps += fold_all(fold, In(0), to, (x.size,), (0,), F32, F32)
    steps.append(Step(scale_of_range, {"least": least, "most": most, "scale": Out(1), "zero": Out(2)}))
    types = [TensorType(F32, (x.size,)), TensorType(F32, ()), TensorType(U8, ())]
    return steps + chain_steps(_CODE, types, (x.size,), [In(0), Out(1), Out(2)], Out(0))


def _inner(op: Any, ins: Types, context: Context) -> tuple[Entry, list[TensorType | None], TensorType] | None:
    """The maker of the operator between the conversions, with its operands and its result."""
    x = ins[0]
    if x is None or not x.is_static or not 0 < x.size < LIMIT:
        return None
    given = [TensorType(F32, x.shape), *ins[5:]]
    made = op.op.infer(*given)
    entry = registry.select(op.op, given, context, "cuda") if isinstance(made, TensorType) and made.is_static else None
    return None if entry is None or not made.size else (entry, given, made)


def _moved(arg: Argument, x: Scratch, y: Scratch) -> Argument:
    """An argument of the inner operator as one of the whole; raises NotImplementedError for parts of x and y."""
    match arg:
        case In(index=0, offset=0):
            return x
        case In(index=index, offset=offset) if index:
            return In(index + 4, offset)
        case Out(index=0, offset=0):
            return y
        case In() | Out() | Pitch():
            raise NotImplementedError(repr(arg))
    return arg


def _accepts(op: Any, ins: Types) -> bool:
    found, room = _inner(op, ins, QueryContext()), Scratch(0)
    if found is None:
        return False
    entry, given, made = found
    try:
        _between(entry.make(op.op, given, [made], QueryContext()), room, room)
    except NotImplementedError:
        return False
    return True


def _between(steps: Sequence[Step], x: Scratch, y: Scratch) -> list[Step]:
    return [Step(step.kernel, {name: _moved(arg, x, y) for name, arg in step.args.items()}) for step in steps]


@kernel(BetweenBytes, device="cuda", accepts=_accepts)
def between_bytes(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Numbers of the bytes, what the operator makes of them, its bytes."""
    found = _inner(op, ins, context)
    assert found is not None, "accepts() has tested this"
    entry, given, made = found
    x, y = Scratch(4 * given[0].size), Scratch(4 * made.size)  # type: ignore[union-attr]
    kinds = [t.dtype for t in ins[:5] if t is not None]
    count, size = (given[0].size,), (made.size,)  # type: ignore[union-attr]
    before = [TensorType(kinds[0], count), TensorType(F32, ()), TensorType(kinds[2], ())]
    behind = [TensorType(F32, size), TensorType(F32, ()), TensorType(kinds[4], ())]
    return [
        *chain_steps(_NUMBER, before, count, [In(0), In(1), In(2)], x),
        *_between(entry.make(op.op, given, [made], context), x, y),
        *chain_steps(_CODE, behind, size, [y, In(3), In(4)], Out(0)),
    ]


def samples() -> list[CudaKernel]:
    """The one that is not generated."""
    return [scale_of_range]
