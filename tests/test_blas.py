"""What tests say of references holds for every order of summation: NumPy multiplies otherwise on other processors."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from bolt_numba.kernels.instructions.isa import target
from tests.lower_isa import LEVELS

NEEDS = {"Prescott": "generic", "Haswell": "avx2", "SkylakeX": "avx512"}
"""Kernels of OpenBLAS, with the least instruction set (of ours) that runs them."""
TESTS = (
    "tests/test_pipeline.py::test_values_are_kept_after_every_stage",
    "tests/test_pipeline.py::test_until_stops_after_a_number_of_rewrites",
    "tests/test_rules.py::test_rule_fires_and_keeps_values",
)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86 processors")
@pytest.mark.parametrize("core", NEEDS)
def test_values_hold_on_other_processors(core: str) -> None:
    if LEVELS.index(NEEDS[core]) > LEVELS.index(target().name):
        pytest.skip(f"{core} needs {NEEDS[core]}")
    env = {**os.environ, "OPENBLAS_CORETYPE": core}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *TESTS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
