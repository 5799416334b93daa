"""Casts between all pairs of dtypes on edge values: kernel, reference and folded constant have the same bits."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops import pointwise as ops
from bolt_numba.ops.arrays.conversion import ROUND_MODES
from bolt_numba.ops.arrays.quantize import QuantizeLinear
from bolt_numba.ops.arrays.reduce import ReduceL2, ReduceMean
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import BYTE_FLOATS, FLOATS, INTS
from bolt_numba.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    AnyDType,
    Array,
    TensorType,
)
from tests.harness import plan, run_planned
from tests.lower_isa import IS_LOWER

INT4, UINT4, E8M0 = (np.dtype(getattr(ml_dtypes, n)) for n in ("int4", "uint4", "float8_e8m0fnu"))
DTYPES = (*FLOATS, *INTS, BOOL, *BYTE_FLOATS, INT4, UINT4)
_POWERS = [2.0**n for n in (4, 7, 8, 15, 16, 31, 32, 63, 64)]
EDGES = [
    *(s * (p + d) for p in _POWERS for d in (-1.0, -0.5, 0.0, 0.5, 1.0) for s in (1, -1)),
    *(0.0, -0.0, 0.3, -0.7, 1.5, -1.5, 2.5, 300.0, -300.0, 448.0, 465.0, 57344.0, 61440.0, 65519.0, 65520.0),
    *(3e9, -3e9, 5e9, -5e9, 9.3e18, 1.9e19, -1e19, 1e30, -1e30, 3e38, 3.4e38, 1e300, 1e-8, 3e-8, 6e-5, 1e-40, 1e-300),
    *(np.inf, -np.inf, np.nan, 16777217.0, 2049.0, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 65520 - 2.0**-30),
]
"""Around every integer's ends, halves, limits of the narrow floats, what rounds twice, and what is no number."""
WHOLE = [0, 1, 2, 3, 127, 128, 255, 256, 2049, 16777217, 2**53 + 1, 2**31 - 1, 2**32 - 1, 2**63 - 1]


def edges(dtype: AnyDType) -> Array:
    """Edge values in a dtype, repeated so that each is met by whole vectors and by their tails."""
    if dtype == BOOL:
        return np.tile([True, False, True], 30)
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        numbers = [n for v in WHOLE for n in (v, -v, v - 2**63, 2**bits - 1 - v)]
        made = np.array([n % 2**bits for n in numbers], np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
    elif dtype.itemsize == 1 and dtype not in (INT4, UINT4):
        made = np.arange(256, dtype=np.uint8).view(dtype)
    elif dtype in (INT4, UINT4):
        made = (np.arange(16) - (8 if dtype == INT4 else 0)).astype(np.int8).astype(dtype)
    else:
        with np.errstate(all="ignore"):
            made = np.array(EDGES).astype(dtype)
    return np.concatenate([made, made[::-1], made[:5]])


def same_bits(got: Array, wanted: Array) -> None:
    """Equal bits, where NaN is NaN whatever its payload."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    unit = f"u{got.dtype.itemsize}"
    number = ~(np.isnan(got) & np.isnan(wanted)) if got.dtype.kind in "fV" else np.ones(got.shape, bool)
    bad = np.flatnonzero((got.view(unit) != wanted.view(unit)) & number)
    shown = [(got.flat[i], wanted.flat[i]) for i in bad[:3]]
    assert not bad.size, f"{bad.size} of {got.size}, first at {bad[0]}: got, wanted: {shown}"


def check(op: Any, x: Array) -> bool:
    """The kernel, where there is one, gives the reference's bits; neither warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = op.reference(x)
    planned = plan(op, [x])
    if planned is None:
        return False
    same_bits(run_planned(planned, [x])[0], wanted)
    return True


@pytest.mark.parametrize("source", [F32, F64, F16, U64] if IS_LOWER else DTYPES, ids=str)
def test_every_pair(source: Any) -> None:
    x = edges(source)
    native = [to for to in DTYPES if check(ops.Cast(to=to), x)]
    assert {F32, I32, U8, BOOL} <= set(native)


@pytest.mark.parametrize("source", [F32, F16, BF16], ids=str)
def test_saturation_and_rounding_of_bytes(source: Any) -> None:
    for to in BYTE_FLOATS:
        assert check(ops.Cast(to=to, saturate=False), edges(source))
    for mode in ROUND_MODES:
        assert check(ops.Cast(to=E8M0, round_mode=mode), edges(source))


def test_the_rule() -> None:
    """What x86 gives, also where NumPy leaves it to the processor."""
    x = np.array([-300.0, 300.0, 3e9, -3e9, 5e9, 9.3e18, 1.9e19, -1e30, np.inf, np.nan], F32)
    least = -(2**31)
    wanted = {
        I8: [-44, 44, 0, 0, 0, 0, 0, 0, 0, 0],
        U8: [212, 44, 0, 0, 0, 0, 0, 0, 0, 0],
        I32: [-300, 300, *[least] * 8],
        U32: [2**32 - 300, 300, 3_000_000_000, 2**32 - 3_000_000_000, 705032704, 0, 0, 0, 0, 0],
        I64: [-300, 300, 3_000_000_000, -3_000_000_000, 5_000_000_000, *[-(2**63)] * 5],
        U64: [2**64 - 300, 300, 3_000_000_000, 2**64 - 3_000_000_000, 5_000_000_000, int(x[5]), 0, 2**63, 0, 2**63],
    }
    for to, numbers in wanted.items():
        np.testing.assert_array_equal(ops.Cast(to=to).reference(x), np.array(numbers, to))


def test_fused() -> None:
    """A cast within a chain follows the same rule."""
    x = edges(F32)
    for to in (I8, U8, U32, I64, U64):
        chain = Chain(((ops.Mul(), (0, 0)), (ops.Cast(to=to), (1,)), (ops.Cast(to=F32), (2,))), (3,))
        with np.errstate(all="ignore"):
            assert check(chain, x)


@pytest.mark.parametrize("source", [F32, F64, F16], ids=str)
def test_folded_as_run(source: Any) -> None:
    """A constant's cast, folded when loading, has the bits of the same cast at run time."""
    x = edges(source)
    x = x[(np.abs(x) > 1e-5) | (x == 0) | np.isnan(x)]  # what is flushed to zero is another matter
    graph = Graph("casts")
    build = Builder(graph)
    given = graph.add_input("x", TensorType(source, x.shape))
    targets = [d for d in (*FLOATS, *INTS, BOOL, *BYTE_FLOATS) if d != source]
    for to in targets:
        graph.add_output(build(ops.Cast(to=to), given), f"run_{to.name}")
        graph.add_output(build(ops.Cast(to=to), build.const(x)), f"folded_{to.name}")
    results = bn.compile(graph)({"x": x})
    for to in targets:
        same_bits(results[f"run_{to.name}"], results[f"folded_{to.name}"])


@pytest.mark.parametrize("to", [I8, U8, I16, U16], ids=str)
def test_quantized(to: Any) -> None:
    """QuantizeLinear saturates; NaN becomes the lower limit, as in onnxruntime."""
    x = edges(F32)
    x = x[np.abs(x) != 1e-40]  # NumPy and the kernel may round a quotient of it differently when it is flushed
    for scale, zero in ((np.float32(0.5), 3), (np.full(x.size, 0.25, F32), np.full(x.size, 1))):
        inputs = [x, np.asarray(scale), np.asarray(zero).astype(to)]
        planned = plan(QuantizeLinear(axis=0), inputs)
        assert planned is not None
        got = run_planned(planned, inputs)[0]
        same_bits(got, QuantizeLinear(axis=0).reference(*inputs))
        assert (got[np.isnan(x)] == np.iinfo(to).min).all()


@pytest.mark.parametrize("op", [ReduceMean(), ReduceL2()], ids=lambda op: op.name)
def test_integer_reductions_that_end_in_a_float(op: Any) -> None:
    for dtype in (I32, I64, U64):
        x = edges(dtype).reshape(1, -1)[:, :40]
        if isinstance(op, ReduceL2):  # longer roots are only near, and that of all edges does not fit
            x = x.clip(max(-(2**48), np.iinfo(dtype).min), min(2**48, np.iinfo(dtype).max))
        wanted = op.reference(x, np.array([1]))
        planned = plan(op, [x, np.array([1])])
        assert planned is not None
        same_bits(run_planned(planned, [x, np.array([1])])[0], wanted)
