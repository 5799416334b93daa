"""The bench by MLPerf's load generator: its summary is read; where it is installed, a run gives a row of figures."""

from __future__ import annotations

import re

import pytest

from bench import loadgen

SUMMARY = """
================================================
SUT name : PySUT
Samples per second: 28.5
90.00 percentile latency (ns)   : 61900000
99.00 percentile latency (ns)   : 70000000
"""


@pytest.mark.parametrize(("scenario", "wanted"), [("SingleStream", 61.9), ("Offline", 28.5), ("Server", 61.9)])
def test_the_figure_of_a_scenario(scenario: str, wanted: float) -> None:
    assert loadgen.figure(SUMMARY, scenario) == pytest.approx(wanted)


def test_a_summary_without_its_figure_is_told() -> None:
    with pytest.raises(ValueError, match="no line 'Samples per second'"):
        loadgen.figure("RESULT: INVALID\n", "Offline")


def test_a_model_is_measured() -> None:
    pytest.importorskip("mlperf_loadgen")
    rows = loadgen.compare("mlp", 0.2, 1)
    assert len(rows) == len(loadgen.SCENARIOS)
    assert all(re.fullmatch(r"\| mlp \| \w+, .+ \| \d+\.\d \| \d+\.\d \|", row) for row in rows)
