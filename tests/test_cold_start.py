"""First results of sessions whose kernels nobody has compiled yet: by references, until the kernels are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.kernels import precompile
from bolt_numba.runtime import runner, stand_ins
from tests.test_new_shapes import WARM, feed, gated


def begin() -> dict[str, Any]:
    """The first runs of a session whose kernels nobody has, then one with them."""
    session = bn.compile(gated(), threads=1)
    first = session(feed(*WARM))[0]
    rows = [row["runner"] for row in session.report()]
    imported = "numba" in sys.modules
    assert precompile.idle()
    later = session(feed(*WARM))[0]
    patient = bn.compile(gated(), threads=1, stand_ins=False)
    return {
        "stand-ins": [runner for runner in rows if runner.endswith("(stand-in)")],
        "imported": imported,
        "stand-ins later": [row for row in session.report() if "stand-in" in row["runner"]],
        "imported later": "numba" in sys.modules,
        "far": float(np.abs(first - later).max()),
        "same bits later": later.tobytes() == patient(feed(*WARM))[0].tobytes(),
    }


def cold(cache: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    own = {"BOLT_NUMBA_CACHE_DIR": str(cache), "BOLT_NUMBA_STAND_INS": "1", "BOLT_NUMBA_COMPILERS": "2"}
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | own | env, capture_output=True, text=True, check=True
    )


def test_the_first_run_waits_for_no_compiler(tmp_path: Path) -> None:
    code = "import json; from tests.test_cold_start import begin; print(json.dumps(begin()))"
    found = json.loads(cold(tmp_path, code).stdout)
    assert found["stand-ins"]
    assert not found["imported"], "nor does it share Python's lock with one"
    assert found["stand-ins later"] == []
    assert not found["imported later"]
    assert found["far"] < 1e-6
    assert found["same bits later"]


ONCE = """
import bolt_numba as bn
from tests.test_new_shapes import WARM, feed, gated
session = bn.compile(gated(), threads=1{0})
session(feed(*WARM))
print(any("stand-in" in row["runner"] for row in session.report()))
"""


def test_what_a_process_leaves_is_compiled_for_the_next(tmp_path: Path) -> None:
    done = cold(tmp_path, ONCE.format(""))
    assert (done.stdout, done.stderr) == ("True\n", "")
    end = time.monotonic() + 120
    while cold(tmp_path, ONCE.format("")).stdout == "True\n":
        assert time.monotonic() < end, "assistants went with their process"
        time.sleep(1)


@pytest.mark.parametrize("how", [", stand_ins=False", ", time_limit=60.0"])
def test_first_runs_that_wait(tmp_path: Path, how: str) -> None:
    assert cold(tmp_path, ONCE.format(how)).stdout == "False\n"


def test_without_another_processor_the_first_run_waits(tmp_path: Path) -> None:
    assert cold(tmp_path, ONCE.format(""), BOLT_NUMBA_COMPILERS="1").stdout == "False\n"


def test_a_run_of_references_begins_again_when_kernels_are_there() -> None:
    session = bn.compile(gated(), threads=1, device="host")
    wanted = session(feed(*WARM))[0]
    (prepared,) = session._runner.prepared.values()
    prepared.stands_in = prepared.gives_way = True
    with pytest.raises(stand_ins.ArrivedError), stand_ins.giving_way(prepared):
        runner.run_plan(prepared, [feed(*WARM)])
    begun_again = stand_ins.run_stand_in(session._runner, runner.run_plan, prepared, [feed(*WARM)], None)
    assert begun_again is None
    prepared.gives_way = False
    (result,) = stand_ins.run_stand_in(session._runner, runner.run_plan, prepared, [feed(*WARM)], None) or []
    assert result.tobytes() == wanted.tobytes()
