"""How movement reads and writes memory on CUDA: whole sectors, no bank conflicts, few instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, Transpose
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.types import AnyDType
from bolt_numba_simulator.ptx import Module, SimulationReport
from tests.cuda.harness import expect

RNG = np.random.default_rng(0)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> SimulationReport:
    """Of all launches of the test."""
    made, plain = SimulationReport(), Module.launch

    def launch(self: Any, *args: Any, **settings: Any) -> Any:
        return plain(self, *args, **{**settings, "report": made})

    monkeypatch.setattr(Module, "launch", launch)
    return made


@pytest.mark.parametrize("dtype", [np.dtype(np.uint8), np.dtype(np.float16), np.dtype(np.float32)], ids=str)
def test_turned_tiles_read_and_write_whole_sectors_without_conflicts(report: SimulationReport, dtype: AnyDType) -> None:
    """Of halves and bytes by words, which is what a thread moves at once."""
    x = RNG.integers(0, 200, (2, 128, 256)).astype(dtype)
    expect(Transpose(perm=(0, 2, 1)), x)
    shared = report.total("ld.shared", "st.shared")
    assert shared.wavefronts == shared.ideal
    assert report.efficiency() == 1
    words = x.nbytes // 4 // 32
    assert report.executed("ld.global") == report.executed("st.global") == words


def test_runs_move_by_sixteen_bytes(report: SimulationReport) -> None:
    a, b = (RNG.standard_normal((8, n)).astype(np.float16) for n in (64, 32))
    expect(Concat(axis=1), a, b)
    assert report.efficiency() == 1
    assert report.executed("st.global") == -(-a.nbytes // 512) + -(-b.nbytes // 512)


def test_rows_of_a_table_are_read_by_sixteen_bytes(report: SimulationReport) -> None:
    table = RNG.standard_normal((50, 128)).astype(np.float16)
    expect(Gather(), table, RNG.integers(0, 50, (16,)))
    assert report.efficiency("ld.global.v4", "st.global") == 1


def test_pools_with_channels_last_read_whole_sectors(report: SimulationReport) -> None:
    expect(MaxPool((2, 2), (2, 2), layout="NHWC"), RNG.standard_normal((1, 8, 8, 64)).astype(np.float16))
    assert report.efficiency() == 1
