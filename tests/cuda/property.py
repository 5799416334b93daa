"""Operators on the cases that are drawn for all their kernels, by their CUDA kernels on the simulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba.ir.build import infer_types
from bolt_numba.kernels import registry
from bolt_numba.kernels.registry import QueryContext
from bolt_numba.ops.registry import Op
from bolt_numba.types import F32, AnyDType, Array, type_of
from tests.cases import CASES, Case
from tests.cuda.harness import expect


def known_to_all(case: Case) -> list[int]:
    """Operands that decide shapes."""
    return [i for i in case.op.value_inputs if i < len(case.inputs)]


def accepted(op: Op, arrays: tuple[Array | None, ...], constants: list[int]) -> bool:
    """Whether some CUDA maker takes an operator; constants: operands whose content it sees."""
    types = [None if a is None else type_of(a) for a in arrays]
    ins = [t if t is None or i in constants else t.with_value(None) for i, t in enumerate(types)]
    if not all(t.is_static for t in infer_types(op, ins)):
        return False
    return bool(registry.candidates(op, ins, QueryContext(), "cuda"))


def taken_cases(kind: type[Op], dtype: AnyDType = F32, examples: int = 10, **tolerances: Any) -> int:
    """Check up to ``examples`` drawn cases, whose f32 operands are given as ``dtype``; returns how many were taken."""
    taken = 0

    @settings(
        deadline=None, database=None, derandomize=True, max_examples=examples,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=CASES[kind](), all_known=st.booleans())
    def run(case: Case, all_known: bool) -> None:
        nonlocal taken
        constants = known_to_all(case)
        arrays = tuple(
            a if a is None or a.dtype != F32 or i in constants else a.astype(dtype) for i, a in enumerate(case.inputs)
        )
        if all_known:
            constants += [i for i, a in enumerate(arrays) if i and a is not None and i not in constants]
        if accepted(case.op, arrays, constants):
            with np.errstate(all="ignore"):
                expect(case.op, *arrays, constants=constants, **tolerances)
            taken += 1

    run()
    return taken
