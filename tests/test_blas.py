"""NumPy's BLAS: it has one thread while references stand in, and its order of summation is that of the processor."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bolt_numba.base import blas
from bolt_numba.kernels.compiles import LackingError
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.runtime import stand_ins
from bolt_numba.runtime.stand_ins import ArrivedError, Serving, computed_now, run_stand_in
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


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A BLAS that notes how many threads it has: four, as a user has said."""
    have = {"now": 4}
    monkeypatch.setattr(blas, "_counter", lambda: (lambda: have["now"], lambda count: have.update(now=count)))
    return have


def test_references_that_stand_in_have_one_thread(threads: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def run_plan(*_: Any) -> list[Any]:
        seen.append(threads["now"])
        if len(seen) == 1:
            run()  # as a branch does, or a signal handler
        seen.append(threads["now"])
        raise ArrivedError

    def run() -> Any:
        return run_stand_in(cast("Any", None), run_plan, prepared, [], None)

    def lacking() -> Any:
        raise LackingError(SimpleNamespace(name="kernel"))

    seen: list[int] = []
    prepared = cast("Any", SimpleNamespace(process=None))
    assert run() is None
    assert (seen, threads["now"]) == ([1, 1, 1, 1], 4)
    monkeypatch.setattr(stand_ins, "compile_later", lambda *_: None)
    assert computed_now(Serving("model", is_running=True), lacking, lambda: threads["now"]) == 1
    assert threads["now"] == 4


def test_others_have_their_threads_back_when_the_last_is_done(threads: dict[str, int]) -> None:
    other = blas.one_thread()
    with blas.one_thread(), ThreadPoolExecutor(1) as pool:
        pool.submit(other.__enter__).result()
    assert threads["now"] == 1, "another thread stands in still"
    other.__exit__(None, None, None)
    assert threads["now"] == 4
    with blas.one_thread():
        assert blas._restored().wanted == 0
        assert threads["now"] == 4, "nobody stands in in a child of fork"
        threads["now"] = 2  # by somebody else, who is not overruled
    assert threads["now"] == 2


def test_openblas_of_numpy_is_found() -> None:
    counter = blas._counter()
    kind = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    assert (counter is not None) == ("openblas" in kind)
    if counter is not None:
        before = counter[0]()
        with blas.one_thread():
            assert counter[0]() == 1
        assert counter[0]() == before
