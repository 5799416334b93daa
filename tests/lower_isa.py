"""Runs tests again on a lower instruction set than this machine has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bolt_numba.kernels.cpu.isa import target

LEVELS = ["generic", "avx2", "avx512"]
IS_LOWER = "BOLT_NUMBA_TEST_LOWER" in os.environ
"""Whether this process is such a run: a few dtypes stand for all, as only the compiler makes their code another."""


def run_on(isa: str, *arguments: str, **environment: str) -> None:
    """Run pytest with ``arguments`` in a new process that is held to ``isa``; skip where that is nothing new."""
    if LEVELS.index(isa) >= (LEVELS.index(target().name) if target().name in LEVELS else 0):
        pytest.skip(f"{isa} is what the other tests run on, or more than this machine has")
    env = {**os.environ, "BOLT_NUMBA_ISA": isa, "BOLT_NUMBA_TEST_LOWER": "1", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
