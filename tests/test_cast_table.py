"""Cast from and to the narrowest dtypes by tables."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bolt_numba.kernels.registry import select
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise import Cast
from bolt_numba.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, AnyDType, Array
from tests.harness import run_kernel, types_of

FLOATS = [
    np.dtype(getattr(ml_dtypes, n))
    for n in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn", "float8_e8m0fnu")
]
INTEGERS = [np.dtype(getattr(ml_dtypes, n)) for n in ("int4", "uint4", "int2", "uint2")]


def equal(op: Cast, x: Array) -> None:
    entry = select(op, types_of((x,)))
    assert entry is not None
    assert entry.name == "cast_by_table"
    with np.errstate(all="ignore"):
        wanted = np.asarray(op.reference(x))
    got = run_kernel(op, (x,))[0]
    assert got.dtype == wanted.dtype
    if op.to in FLOATS or op.to.kind == "V":
        np.testing.assert_array_equal(got.astype(F32), wanted.astype(F32))
    else:
        np.testing.assert_array_equal(got, wanted)


def near_ties(target: AnyDType) -> Array:
    """Every number of a narrow float, those between two of them, and their neighbours in f32."""
    every = np.arange(256, dtype=np.uint8).view(target).astype(F32)
    finite = np.unique(every[np.isfinite(every)])
    between = finite[:-1] / 2 + finite[1:] / 2
    points = np.concatenate([finite, between])
    beside = [np.nextafter(points, F32.type(end)) for end in (-np.inf, np.inf)]
    extremes = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e-45, -1e-45, 3e38, -3e38], F32)
    return np.concatenate([points, *beside, extremes, points * 1.5]).astype(F32)


@pytest.mark.parametrize("target", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("saturate", [True, False])
def test_floats_round_as_the_reference_does(target: Any, saturate: bool) -> None:
    modes = ("up", "down", "nearest") if target.name == "float8_e8m0fnu" else ("up",)
    for mode in modes:
        op = Cast(target, saturate, mode)
        x = near_ties(target)
        equal(op, x if target.name != "float8_e8m0fnu" else np.abs(x))
        for source in (F16, BF16):
            with np.errstate(all="ignore"):
                equal(op, np.abs(x).astype(source))


@pytest.mark.parametrize("source", FLOATS + INTEGERS, ids=lambda d: d.name)
@pytest.mark.parametrize("target", [F32, F16, BF16, F64, I32, I8], ids=lambda d: d.name)
def test_widening(source: Any, target: Any) -> None:
    numbers = np.arange(0, 8 if source in FLOATS else 2).astype(F32) / 2
    equal(Cast(target), numbers.astype(source))


@pytest.mark.parametrize("target", INTEGERS, ids=lambda d: d.name)
@pytest.mark.parametrize("source", [F32, F64, I32, I64, F16, I8], ids=lambda d: d.name)
def test_integers_keep_their_low_bits(source: Any, target: Any) -> None:
    equal(Cast(target), np.linspace(-120, 120, 977).astype(source))


@pytest.mark.parametrize("dtype", [U8, I16, U16, *INTEGERS, *FLOATS[:5]], ids=lambda d: d.name)
@pytest.mark.parametrize(("scale_shape", "axis", "block"), [((), 1, 0), ((6,), 1, 0), ((7,), 2, 0), ((4, 3, 7), 1, 2)])
def test_quantized(dtype: Any, scale_shape: tuple[int, ...], axis: int, block: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 2, (4, 6, 7)).astype(F32)
    scale = rng.uniform(0.1, 0.9, scale_shape).astype(F32)
    zero = np.ones(scale_shape, F32).astype(dtype) if dtype not in FLOATS else np.zeros(scale_shape, F32).astype(dtype)
    for zeros in ((), (zero,)):
        to = QuantizeLinear(axis, block, True, dtype)
        given = (x, scale, *zeros)
        stored = to.reference(*given)
        got = run_kernel(to, given)[0]
        np.testing.assert_array_equal(got.astype(F32), stored.astype(F32))
        back = DequantizeLinear(axis, block)
        given = (stored, scale, *zeros)
        np.testing.assert_array_equal(run_kernel(back, given)[0], back.reference(*given))
