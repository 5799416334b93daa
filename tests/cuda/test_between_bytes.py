"""Operators between bytes on CUDA: the reference's bytes, or their neighbours where a float lies on a boundary."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from bolt_numba.ops.arrays.between_bytes import BetweenBytes
from bolt_numba.types import NUMERICS, PRECISIONS
from tests.cases import CASES, Case
from tests.cuda.harness import run_op
from tests.cuda.property import accepted, known_to_all
from tests.harness import contexts


def test_results_between_bytes_are_at_most_a_level_apart() -> None:
    taken = set()

    @settings(deadline=None, database=None, derandomize=True, max_examples=20, suppress_health_check=list(HealthCheck))
    @given(case=CASES[BetweenBytes]())
    def run(case: Case) -> None:
        constants = [*known_to_all(case), *range(5, len(case.inputs))]
        if accepted(case.op, case.inputs, constants):
            wanted = case.op.reference(*case.inputs)
            for context in contexts(NUMERICS, PRECISIONS, threads=1):
                (got,) = run_op(case.op, *case.inputs, constants=constants, context=context)
                assert got.dtype == wanted.dtype
                assert np.abs(got.astype(int) - wanted.astype(int)).max(initial=0) <= 1
            taken.add(case.op.op.name)

    run()
    assert len(taken) > 2, taken
