"""Operators on f16 and bf16 run by kernels of f32 between conversions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba.errors import BoltError
from bolt_numba.kernels.cpu.elementwise.widen import HALVES, converter
from bolt_numba.kernels.registry import KERNELS, load
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import F32, AnyDType, Array
from tests.cases import CASES, Case
from tests.harness import plans, run_planned, types_of
from tests.level import few
from tests.near import assert_near

load("cpu")
OPERATORS = sorted({op for (op, _), rows in KERNELS.items() if rows and op in CASES}, key=lambda op: op.__name__)


def converted(array: Array, target: AnyDType) -> Array:
    made = np.empty(array.shape, target)
    as_bits = [a.view(np.uint16) if a.dtype in HALVES else a for a in (array, made)]
    converter(array.dtype, target).run(nthreads=2, x=as_bits[0], y=as_bits[1], n=array.size)
    return made


@pytest.mark.parametrize("half", HALVES)
def test_conversions_of_every_number_and_beside_it(half: AnyDType) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(half)
    wide = converted(every, F32)
    np.testing.assert_array_equal(wide, every.astype(F32))
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(every.astype(F32)))
    finite = np.unique(wide[np.isfinite(wide)])
    between = finite[:-1] / 2 + finite[1:] / 2
    rng = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(F32)
    with np.errstate(all="ignore"):
        for x in (rng, between, np.nextafter(between, F32.type(np.inf)), np.nextafter(between, F32.type(-np.inf))):
            np.testing.assert_array_equal(converted(x, half).astype(F32), x.astype(half).astype(F32))


def narrowed(case: Case, half: AnyDType) -> tuple[Array | None, ...] | None:
    """Operands with those of f32, or only the first, in ``half``; None where the operator takes neither."""
    for which in (range(len(case.inputs)), (0,)):
        halved = [i in which and a is not None and a.dtype == F32 for i, a in enumerate(case.inputs)]
        with np.errstate(over="ignore"):  # what is too large is infinite
            made = [a.astype(half) if a is not None and yes else a for a, yes in zip(case.inputs, halved, strict=True)]
        with suppress(BoltError):
            case.op.infer(*types_of(made, [i in case.op.value_inputs for i in range(len(made))]))
            return tuple(made)
    return None


def taken_cases(op: type[Op], half: AnyDType, examples: int = few(8, 2)) -> tuple[int, int]:
    """Run cases of an operator in ``half``; how many it allows, how many a kernel took."""
    allowed = taken = 0

    @settings(
        deadline=None, database=None, derandomize=True, max_examples=examples, suppress_health_check=list(HealthCheck)
    )
    @given(case=CASES[op](), known=st.booleans())
    def run(case: Case, known: bool) -> None:
        nonlocal allowed, taken
        inputs = narrowed(case, half)
        if inputs is None or not any(a is not None and a.dtype == half for a in inputs):
            return
        allowed += 1
        constants = [(i > 0 and known) or i in case.op.value_inputs for i in range(len(inputs))]
        found = plans(case.op, inputs, constants)
        if not found:
            return
        taken += 1
        with np.errstate(all="ignore"):
            wanted = result_tuple(case.op.reference(*inputs))
        for planned in found:
            for got, want in zip(run_planned(planned, inputs), wanted, strict=True):
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                if got.dtype.kind in "iub":
                    step = int(isinstance(case.op, Chain))  # nothing is rounded between the operators of a chain
                    np.testing.assert_allclose(got, want, rtol=0, atol=step)
                    continue
                assert_near(got, want, 0.01 if half != HALVES[0] else 0.002)

    run()
    return allowed, taken


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_operators(op: Any, half: AnyDType) -> None:
    allowed, taken = taken_cases(op, half)
    assert taken or not allowed or taken_cases(op, half, 80)[1]


def test_the_usual_operators_have_kernels_for_both() -> None:
    wanted = ("Add", "MatMul", "Conv", "Softmax", "LayerNormalization", "ReduceMean", "Exp", "Resize", "Concat")
    found = {op.__name__: op for op in OPERATORS}
    for half in HALVES:
        assert [name for name in wanted if not taken_cases(found[name], half)[1]] == []
