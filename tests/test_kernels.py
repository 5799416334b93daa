"""Every registered kernel against its operator's reference, on the operator's cases, for each instruction set.

A kernel is tested by being registered; one that accepts no drawn case fails, for its test would prove nothing.
"""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.registry import KERNELS, Entry, load
from bolt_numba.ops.arrays.reduce import ReduceProd
from bolt_numba.ops.arrays.signal import DFT
from bolt_numba.ops.layers.conv import Conv
from bolt_numba.ops.layers.integer_products import ConvInteger, QLinearConv
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import F16, F32, I8, U8, Array
from tests.cases import CASES, Case
from tests.harness import plans, run_planned
from tests.lower_isa import run_on
from tests.missing import no_cases
from tests.near import assert_near

F8 = np.dtype(ml_dtypes.float8_e4m3fn)
EXAMPLES = int(os.environ.get("BOLT_NUMBA_TEST_EXAMPLES", "25"))
MORE = 400
"""Cases drawn at most until a kernel that is chosen rarely has accepted one."""
NEAR: dict[type[Op], float] = {AveragePool: 1e-6}
"""Operators whose kernels round even whole numbers: AveragePool multiplies by the reciprocal of the count."""

NEVER = {f"{op}-pointwise_in_place" for op in ("IsNaN", "IsInf")} | {"MatMul-matmul_strassen"}
"""The first are registered with all pointwise operators, but their results are never as wide as their operands; the
last is taken by tuning alone."""
if not target().has_bf16:
    NEVER.add("FusedAttention-attention_bf16")  # it pays where the processor multiplies pairs


def winograd(size: int) -> Case:
    """A convolution large enough to be worth the transforms, whose rounding is relative to its greatest result."""
    rng = np.random.default_rng(size)
    x, w = rng.integers(-4, 5, (1, size, size, 64)), rng.integers(-4, 5, (64, 64, 3, 3))
    op = Conv(pads=(1, 1, 1, 1), layout="NHWC")
    return Case(op, (x.astype(np.float32), w.astype(np.float32)), exact=False, rtol=1e-5)


def pointwise_conv(op: Op, filters: tuple[int, ...]) -> Case:
    """A product large enough for sums of tiles to pay: 256 x 192 x 128."""
    rng = np.random.default_rng(5)
    x, w = rng.integers(-4, 5, (1, 16, 16, 128)), rng.integers(-4, 5, filters)
    return Case(op, (x.astype(np.float32), w.astype(np.float32)))


EXTRA: dict[str, Case] = {
    "Cast-convert": Case(Cast(F16), (np.arange(40, dtype=F32),)),
    "Cast-cast_by_table": Case(Cast(F8), (np.arange(40, dtype=F32),)),
    "Conv-conv_strassen": pointwise_conv(Conv(layout="NHWC"), (192, 128, 1, 1)),
    "Conv-winograd_6": winograd(24),
    "Conv-winograd_4": winograd(16),
    "Conv-winograd_2": winograd(6),
    "ConvInteger-conv_bytes_pixels": Case(
        ConvInteger(group=40, layout="NHWC"),
        ((7 * np.arange(1200)).astype(U8).reshape(1, 5, 6, 40), np.arange(360).reshape(40, 1, 3, 3).astype(I8)),
    ),
    "QLinearConv-conv_bytes_pixels": Case(
        QLinearConv(group=40, layout="NHWC"),
        (
            (7 * np.arange(1200)).astype(U8).reshape(1, 5, 6, 40), np.float32(0.5), U8.type(3),
            np.arange(360).reshape(40, 1, 3, 3).astype(I8), np.float32(0.25), I8.type(0), np.float32(64), U8.type(5),
        ),
    ),
    "DFT-long_dft": Case(
        DFT(onesided=True), (np.random.default_rng(0).random((1, 1350, 2, 1), F32), None, np.array(1)), exact=False
    ),
    "ReduceProd-reduce_plain": Case(ReduceProd(), (np.arange(1, 11).reshape(2, 5), np.array([1]))),
}
"""Cases of kernels that no drawn case is large or rare enough for."""

load("cpu")
NOTHING = [op for (op, _), rows in KERNELS.items() if any(e.name == "reduce_nothing" for e in rows)]
EXTRA |= {f"{op.__name__}-reduce_nothing": Case(op(), (np.ones((3, 0, 2), F32), np.array([1]))) for op in NOTHING}
ENTRIES = [e for (_, device), rows in KERNELS.items() if device == "cpu" for e in rows]


def name_of(entry: Entry) -> str:
    return f"{entry.op.__name__}-{entry.name}"


def constants(case: Case, all_known: bool) -> list[bool]:
    """Which operands the maker sees: all but the first, or only those that decide shapes."""
    return [(i > 0 and all_known) or i in case.op.value_inputs for i in range(len(case.inputs))]


def assert_close(got: Array, wanted: Array, case: Case, least: float = 0.0) -> None:
    """Bit-equal up to the sign of zero where the case is exact, else within its tolerance, or ``least`` if larger."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    rtol = NEAR.get(type(case.op), 0.0) if case.exact else max(case.rtol, least)
    if not rtol or got.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, wanted)
        return
    assert_near(got, wanted, rtol)


def check(entry: Entry, case: Case, all_known: bool) -> bool:
    """Run one case at every level of numerics and precision; False when the kernel does not take it."""
    found = plans(entry, case.inputs, constants(case, all_known), instance=case.op)
    if not found or not all(t.is_static for t in found[0].outs):
        return False
    results = result_tuple(case.op.reference(*case.inputs))
    for planned in found:
        for got, wanted in zip(run_planned(planned, case.inputs), results, strict=True):
            assert_close(got, wanted, case, 0.0 if entry.precision == "f32" else 2e-2)
    return True


def taken_cases(entry: Entry, examples: int) -> int:
    """Check up to ``examples`` cases; returns how many the kernel took."""
    assert entry.op in CASES, no_cases(entry.op)
    taken = 0

    @settings(
        deadline=None,
        database=None,
        derandomize=True,
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=CASES[entry.op](), all_known=st.booleans())
    def run(case: Case, all_known: bool) -> None:
        nonlocal taken
        taken += check(entry, case, all_known)

    run()
    return taken


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_kernel_equals_reference(entry: Entry) -> None:
    name = name_of(entry)
    taken = taken_cases(entry, EXAMPLES) + (name in EXTRA and check(entry, EXTRA[name], True))
    if name in NEVER:
        assert not taken, f"{name} accepts cases: take it off the list"
    else:
        assert taken or taken_cases(entry, MORE), (
            f"{name}: accepts none of the cases: add one that it takes to tests/cases, or to EXTRA of {__file__}: "
            f'"{name}": Case({entry.op.__name__}(...), (operand, ...)),'
        )


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_lower_instruction_sets(isa: str) -> None:
    run_on(isa, f"{__file__}::{test_kernel_equals_reference.__name__}", BOLT_NUMBA_TEST_EXAMPLES="3")
