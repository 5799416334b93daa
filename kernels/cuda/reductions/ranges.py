"""DynamicQuantizeLinear: the least and the greatest number make a scale and a zero point, and those the codes."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32, U8, TensorType
from bolt_numba.kernels.cuda.declare import PTR, cuda_kernel
from bolt_numba.kernels.cuda.elementwise.chains import chain_steps
from bolt_numba.kernels.cuda.language.lang import load_f32, max_f32, min_f32, rint_f32, store_f32, store_u8
from bolt_numba.kernels.cuda.reductions.fold import FOLDS, fold_all
from bolt_numba.kernels.registry import Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.quantize import DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceMin
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.pointwise.chain import Chain

_CODE = Chain(((QuantizeLinear(), (0, 1, 2)),), (3,))


@cuda_kernel(
    threads=32, blocks=lambda a: 1, least=PTR, most=PTR, scale=PTR, zero=PTR,
    extents=lambda a: {"least": 4, "most": 4, "scale": 4, "zero": 1},
)  # fmt: skip
def scale_of_range(least, most, scale, zero):
    """Scale and zero point of u8 for numbers from least to most, and 0; every thread stores the same.

    least, most, scale: f32 [1] · zero: u8 [1].
    """
    low, high = load_f32(least), load_f32(most)
    is_number = (low == low) & (high == high)
    low, high = min_f32(low, np.float32(0)), max_f32(high, np.float32(0))
    step = (high - low) / np.float32(255) if is_number and high > low else np.float32(1)
    place = rint_f32(-low / step)
    place = min_f32(place, np.float32(255)) if is_number and place > np.float32(0) else np.float32(0)
    store_f32(scale, step)
    store_u8(zero, np.uint8(place))


@kernel(
    DynamicQuantizeLinear, device="cuda",
    accepts=lambda op, ins: ins[0] is not None and ins[0].is_static and 0 < ins[0].size <= MAX_I32,
)  # fmt: skip
def dynamic_quantize(op: DynamicQuantizeLinear, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """The least and the greatest, what they make of scale and zero point, then the codes."""
    x = ins[0]
    least, most = Scratch(4), Scratch(4)
    steps = []
    for fold, to in ((FOLDS[ReduceMin], least), (FOLDS[ReduceMax], most)):
        steps += fold_all(fold, In(0), to, (x.size,), (0,), F32, F32)
    steps.append(Step(scale_of_range, {"least": least, "most": most, "scale": Out(1), "zero": Out(2)}))
    types = [TensorType(F32, (x.size,)), TensorType(F32, ()), TensorType(U8, ())]
    return steps + chain_steps(_CODE, types, (x.size,), [In(0), Out(1), Out(2)], Out(0))
