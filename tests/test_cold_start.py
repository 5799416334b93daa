"""First results of sessions whose kernels nobody has compiled yet: by references, until the kernels are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.kernels import precompile
from bolt_numba.runtime import runner, stand_ins
from bolt_numba.runtime.prepared import Prepared
from tests.test_new_shapes import WARM, feed, gated, probe


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
    end = time.monotonic() + 400
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


def test_the_session_inside_a_reference_does_not_give_way() -> None:
    outer = bn.compile(gated(), threads=1, device="host")
    inner = bn.compile(gated(), threads=1, device="host")
    wanted = outer(feed(*WARM))[0]
    assert inner(feed(*WARM))[0].tobytes() == wanted.tobytes()
    (around,), (within,) = (session._runner.prepared.values() for session in (outer, inner))
    around.stands_in = around.gives_way = True
    with stand_ins.giving_way(around):
        assert inner(feed(*WARM))[0].tobytes() == wanted.tobytes()
        within.stands_in = True
        assert inner(feed(*WARM))[0].tobytes() == wanted.tobytes()
        with pytest.raises(stand_ins.ArrivedError):
            runner.run_plan(around, [feed(*WARM)])


def arrived(session: bn.Session, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """The plan of the first shape, taken for one of stand-ins, when another thread has heard that kernels are there."""

    def at_once(kernels: object, then: Callable[[], None], is_urgent: bool) -> None:
        thread = threading.Thread(target=then)
        thread.start()
        thread.join()

    session(feed(*WARM))
    (prepared,) = session._runner.prepared.values()
    prepared.stands_in, prepared.plan.lacking = True, [object()]
    monkeypatch.setattr(stand_ins, "compile_later", at_once)
    with session._granted():
        stand_ins._compile(session._runner, prepared, session._runner._types([feed(*WARM)]))
    return prepared


def test_who_packs_has_the_limit_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    session = bn.compile(gated(), threads=1, memory_limit=1 << 30)
    made: list[Any] = []
    plan = session._runner.made
    monkeypatch.setattr(session._runner, "made", lambda *args, **how: made.append(plan(*args, **how)) or made[-1])
    monkeypatch.setenv("BOLT_NUMBA_MEMORY", "1")
    assert arrived(session, monkeypatch).gives_way
    assert len(made) == 2
    assert not session._runner.prepared


def test_a_plan_that_fails_behind_a_stand_in_is_made_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    session = bn.compile(gated(), threads=1)
    wanted = session(feed(*WARM))[0]

    def short(*args: object, **how: object) -> None:
        raise bn.BudgetError("plan: got too little")

    monkeypatch.setattr(session._runner, "made", short)
    prepared = arrived(session, monkeypatch)
    assert prepared.gives_way
    with pytest.raises(bn.BudgetError, match="got too little"):
        session(feed(*WARM))
    monkeypatch.undo()
    assert session(feed(*WARM))[0].tobytes() == wanted.tobytes()


def test_nobody_compiles_for_a_fork_but_itself() -> None:
    session = bn.compile(gated(), threads=1)
    wanted = session(feed(*WARM))[0]
    (prepared,) = session._runner.prepared.values()
    prepared.stands_in, prepared.process = True, stand_ins._process
    session(feed(*WARM))
    assert list(session._runner.prepared.values()) == [prepared]
    child = os.fork()
    if not child:
        same = session(feed(*WARM))[0].tobytes() == wanted.tobytes()
        os._exit(0 if same and prepared not in session._runner.prepared.values() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_without_another_interpreter_the_first_run_waits(tmp_path: Path) -> None:
    code = "import sys; sys.executable = ''" + ONCE.format("")
    assert cold(tmp_path, code).stdout == "False\n"


def test_a_kernel_that_cannot_be_compiled_holds_up_no_other(cache: Path, nothing_swallowed: Counter[str]) -> None:
    session = bn.compile(gated(), threads=1)
    session(feed(*WARM))
    (prepared,) = session._runner.prepared.values()
    prepared.plan.lacking = [probe(701, "pass")]
    types = session._runner._types([feed(*WARM)])
    stand_ins._compile(session._runner, prepared, types)
    assert precompile.idle()
    assert prepared.gives_way, "the next run makes a plan of all that is there"
    nothing_swallowed.clear()
    prepared.gives_way = False
    stand_ins._compile(session._runner, prepared, types)
    assert precompile.idle()
    assert not prepared.gives_way, "nor is that plan made again"
