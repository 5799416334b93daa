"""Kernels of the twins for AArch64 under an emulator: a few of each kind here, all of them in ``make aarch64``."""

from __future__ import annotations

import numpy as np
import pytest

from bolt_numba.kernels.targets import twin
from tests.aarch64 import all_kernels
from tests.aarch64.remote import LACKING, Call, at_length
from tests.test_kernels import name_of

pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not installed: {LACKING}")

FEW = {
    "aarch64": ("Softmax-softmax_f32", "Erf-pointwise", "Cast-cast_by_table", "TopK-topk", "Sin-pointwise"),
    "aarch64_dot": ("MatMulInteger-matmul_bytes",),
}


@pytest.mark.parametrize(("target", "name"), [(target, name) for target, names in FEW.items() for name in names])
def test_kernels_equal_references(target: str, name: str) -> None:
    found = [entry for entry in all_kernels.entries(target) if name_of(entry) == name]
    assert found
    for entry in found:
        assert all_kernels.taken_cases(entry, 3)


@at_length
@pytest.mark.parametrize("target", ["aarch64", "aarch64_dot", "aarch64_i8mm"])
def test_all_kernels_equal_references(target: str) -> None:
    assert all_kernels.main([target, "--examples", "2"]) == 0


def test_the_executor_runs_steps_there() -> None:
    """With its atomics, its clock and no floating-point control."""
    found = twin("aarch64").executor
    busy, ticks = np.zeros(32, np.int64), np.zeros(2, np.int64)
    none, x, y = np.zeros(1, np.int64), np.arange(99, dtype=np.uint8), np.zeros(99, np.uint8)
    call = Call()
    for array in (busy, ticks, y):
        call.array(array, is_written=True, align=64)
    sizes = {"rows": 1, "nbytes": 99, "x_pitch": 0, "y_pitch": 0, "itemsize": 1}
    copy = call.record(found.copy_rows, {"x": x, "y": y, **sizes})
    kernels, params = np.zeros(1, np.int64), np.zeros(1, np.int64)
    call.patches.append((call.array(kernels, align=8), 0, 1, call.code(found.copy_rows), 0))
    call.patches.append((call.array(params, align=8), 0, 0, copy, 0))
    record = call.record(found.run_steps, {
        "kernels": kernels, "params": params, "flags": none, "ticks": ticks, "steps": 1, "timed": 1, "stop": 0
    })  # fmt: skip
    call.calls.append((call.code(found.run_steps), record, 0, 2, call.array(busy)))
    call.run()
    np.testing.assert_array_equal(x, y)
    assert 0 < ticks[0] <= ticks[1]
    assert busy[0] == 0
