"""Functions in processes of their own: what goes there and back, what becomes of errors, ends, and memory."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.flow import Flow, FlowDeadlineError, FlowError, State, Workers, load, processes
from tests.flow import heavy
from tests.flow.test_nodes import DIGITS
from tests.flow.test_tasks import LONG

SHARED = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="shared memory is looked at in /dev/shm")


def segments(owner: int = os.getpid()) -> set[str]:
    return {path.name for path in SHARED.glob(f"bolt-{owner}-*")}


def becomes(condition: Callable[[], bool]) -> bool:
    """Whether something is so within a while."""
    until = time.monotonic() + LONG
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves shared memory or processes behind."""
    yield
    assert not segments()
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("bolt-numba")]


def flow_of(function: Callable[..., Any], *, options: Any = None, **more: Any) -> Flow:
    flow = Flow("f", inputs="x", outputs="y", **{"workers": 1, **more})
    return flow.function(function, "x", "y", name="node", **{"process": True, **(options or {})})


def gone(pid: int) -> bool:
    """Whether a process ends within a while."""

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return becomes(is_gone)


def test_arrays_and_all_else_go_there_and_back() -> None:
    image = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    given = {
        "plain": image, "part": image[:, ::2, 1:], "turned": image.T, "empty": np.zeros((0, 3)),
        "texts": np.array(["a", None], object), "list": [image[0], (image[1], "text", None)], "large": np.ones(300_000),
        "bytes": b"abc", "half": np.arange(5, dtype=np.float16), "times": np.array(["2020-01-01"], "M8[D]"),
    }  # fmt: skip
    with flow_of(heavy.turned) as flow:
        for scale in (1, 3, 1):  # segments grow, and serve again
            given["large"] = np.arange(300_000.0 * scale)
            found = flow(x=given)["y"]
            for name in ("plain", "part", "turned", "empty", "texts", "large", "half", "times"):
                np.testing.assert_array_equal(found[name], given[name][::-1])
                assert found[name].dtype == given[name].dtype
                assert found[name].flags.writeable
            np.testing.assert_array_equal(found["list"][1][0], image[1][::-1])
            assert found["bytes"] == b"abc"
            kept = found["plain"]
        np.testing.assert_array_equal(kept, image[::-1])
        assert len(segments()) == 2


def test_arrays_that_a_function_keeps_stay_as_they_were() -> None:
    with flow_of(heavy.keeps) as flow:
        for i in range(4):
            assert flow(x=np.full(50_000, float(i)))["y"] == [49_999.0 * j for j in range(i + 1)]


def test_an_error_comes_back_with_its_trace() -> None:
    with flow_of(heavy.fails) as flow:
        task = flow.submit(x=-3)
        error = task.exception(LONG)
        assert isinstance(error, FlowError)
        assert str(error) == "node 'node': ValueError: negative: -3"
        assert isinstance(error.__cause__, ValueError)
        text = "".join(traceback.format_exception(error))
        assert "heavy.py" in text
        assert "In its process:" in text
        assert flow(x=1)["y"] == 1
    with flow_of(heavy.strange) as flow:
        error = flow.submit(x=-3).exception(LONG)
        assert "process: StrangeError: strange" in str(error)
    with flow_of(heavy.mute) as flow:
        error = flow.submit(x=-3).exception(LONG)
        assert "ended by" not in str(error)
        assert type(error and error.__cause__).__name__ == "MuteError"
    with flow_of(heavy.missing) as flow:  # it is not taken for a broken pipe
        error = flow.submit(x=-3).exception(LONG)
        assert isinstance(error and error.__cause__, FileNotFoundError)


@pytest.mark.parametrize(("x", "said"), [(13, "ended by SIGKILL"), (14, "ended by code 5")])
def test_a_process_that_ends_fails_its_task_and_another_takes_its_place(x: int, said: str) -> None:
    with flow_of(heavy.dies) as flow:
        _, first = flow(x=np.zeros((1, 3)))["y"]
        bad = flow.submit(x=np.full((1, 3), x))
        error = bad.exception(LONG)
        assert isinstance(error, FlowError)
        assert f"node 'node': process: {said}, wanted a result" in str(error)
        _, second = flow(x=np.zeros((1, 3)))["y"]
        assert second != first
        assert gone(first)


def test_a_batch_of_which_one_ends_the_process_fails_that_one() -> None:
    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(heavy.only, "x", "y", process=True, max_batch=3, max_wait=LONG, name="node")
    with flow:
        tasks = [flow.submit(x=np.full((1, 2), v)) for v in (1, 13, 2)]
        assert "ended by SIGKILL" in str(tasks[1].exception(LONG))
        assert [int(tasks[i].result(LONG)["y"][0, 0]) for i in (0, 2)] == [1, 2]


@pytest.mark.parametrize("how", [{"workers": 1}, {"copies": 1}])
def test_what_is_given_up_ends_its_process(how: dict[str, int]) -> None:
    with Flow("f", inputs="x", outputs="y", **how) as flow:  # type: ignore[arg-type]
        flow.function(heavy.sleeps, "x", "y", process=True, name="node")
        first = flow(x=0)["y"]
        begin = time.monotonic()
        late = flow.submit(x=LONG, deadline=0.05)
        assert isinstance(late.exception(LONG), FlowDeadlineError)
        assert time.monotonic() - begin < 5
        second = flow(x=0)["y"]
        assert second != first
        slow = flow.submit(x=LONG)
        time.sleep(0.05)
        assert slow.cancel()
        third = flow(x=0)["y"]
        assert third != second
        quick = flow.submit(x=0.05, deadline=0.01)  # its process may go on for as long as another takes to start
        assert isinstance(quick.exception(LONG), FlowDeadlineError)
        assert flow(x=0)["y"] == third
        assert time.monotonic() - begin < LONG / 2


def test_closing_ends_processes_at_once_or_after_their_tasks() -> None:
    flow = flow_of(heavy.sleeps)
    task = flow.submit(x=0.2)
    flow.close()
    assert gone(task.result(0)["y"])
    flow = flow_of(heavy.sleeps, options={"process": 2}, workers=None)
    pids = [flow.submit(x=0.1) for _ in range(2)]
    assert len({task.result(LONG)["y"] for task in pids}) == 2
    slow = [flow.submit(x=LONG) for _ in range(3)]
    begin = time.monotonic()
    flow.close(cancel=True)
    assert time.monotonic() - begin < LONG / 3
    assert all(task.cancelled() for task in slow)
    assert all(gone(task.result(0)["y"]) for task in pids)


def test_a_flow_that_nobody_has_leaves_nothing() -> None:
    before = segments(), {*multiprocessing.active_children()}  # of other tests in this process
    flow = flow_of(heavy.with_pid)
    _, pid = flow(x=np.zeros(100))["y"]
    flow.submit(x=np.zeros(100))
    del flow
    assert gone(pid)

    def left() -> tuple[set[str], set[Any]]:
        return segments() - before[0], {*multiprocessing.active_children()} - before[1]

    assert becomes(lambda: left() == (set(), set())), left()


def test_states_pins_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(inputs="x", outputs=["y", "z"], workers=2)
    flow.function(heavy.counted, "x", "y", process=True, states={"seen": State("next", 0)}, name="count")
    cpu = min(os.sched_getaffinity(0))
    flow.function(heavy.cpus, "x", "z", process=True, workers=Workers(cpus=[cpu]), name="cpus")
    with flow:
        found = [flow.submit(x=0, stream="s").result(LONG) for _ in range(3)]
    assert [f["y"] for f in found] == [0, 1, 2]
    assert found[0]["z"] == {cpu}


def test_a_server_of_processes_serves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "forkserver")
    with flow_of(heavy.twice) as flow:
        np.testing.assert_array_equal(flow(x=np.ones(10))["y"], np.full(10, 2.0))


def test_nothing_spins_while_it_waits() -> None:
    with flow_of(heavy.sleeps) as flow:
        pid = flow(x=0)["y"]

        def used() -> float:
            ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            return time.process_time() + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

        before = used()
        flow(x=0.5)
        time.sleep(0.2)
        assert used() - before < 0.2


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda f: f.function(lambda x: x, "x", "y", name="n", process=True), "node 'n': process: got <function"),
        (lambda f: f.function(heavy.twice, "x", "y", name="n", process=0), "node 'n': process: got 0, wanted a whole"),
        (lambda f: f.function(heavy.twice, "x", "y", name="n", process=2, workers=2), "process: got 2 with workers"),
        (lambda f: f.model(DIGITS, "x", "y", name="n", process=True), "process: got True for a model, wanted it for"),
    ],
)
def test_what_cannot_run_in_a_process_is_refused(build: Any, said: str) -> None:
    with pytest.raises(FlowError, match="flow 'g': ") as raised:
        build(Flow("g", inputs="x", outputs="y"))
    assert said in str(raised.value)


def test_what_cannot_be_sent_is_an_error_of_its_task() -> None:
    with flow_of(heavy.twice) as flow:
        assert "pickle" in str(flow.submit(x=(i for i in "ab")).exception(LONG))
        assert flow(x=2)["y"] == 4


def test_a_file_names_functions_for_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "process_steps.py").write_text("import os\n\ndef pid(x):\n    return x, os.getpid()\n")
    text = 'inputs = "x"\noutputs = "y"\n[nodes.n]\nfunction = "process_steps:pid"\ninputs = "x"\noutputs = "y"\n'
    (tmp_path / "flow.toml").write_text(text + "process = 1\n")
    with load(tmp_path / "flow.toml") as flow:
        assert flow(x="a")["y"][1] != os.getpid()


def test_no_task_is_lost_among_errors_ends_and_time_limits() -> None:
    chance = random.Random(0)
    flow = Flow(inputs="x", outputs="y", capacity=8)
    flow.function(heavy.dies, "x", "z", process=2, name="dies")
    flow.function(lambda z: int(z[0][0]), "z", "y", name="number")
    seen: dict[int, Any] = {}

    def fill() -> None:
        for _ in range(150):
            kind = chance.choice((1, 1, 1, 1, 1, 1, 1, 1, 13, "text"))
            x = np.full(chance.choice((1, 100_000)), kind) if kind != "text" else kind
            task = flow.enqueue(x=x, deadline=chance.choice((None, None, None, 1e-3)))
            seen[task.number] = kind
            if chance.random() < 0.1:
                task.cancel()
        flow.finish()

    filling = threading.Thread(target=fill)
    with flow:
        filling.start()
        for number, task in enumerate(flow):
            assert task.number == number
            if task.cancelled():
                continue
            error = task.exception()
            if seen[number] == 1:
                assert error is None or isinstance(error, FlowDeadlineError), error
                assert error is not None or task.result() == {"y": 1}
            else:
                assert error is not None
        filling.join()
    assert number == 149
    found = flow.statistics()
    assert found.done + found.failed + found.cancelled == 150
    assert min(found.done, found.failed, found.cancelled) > 0


PARENT = """
import os, signal, sys, time
import numpy as np
from bolt_numba.flow import Flow
from tests.flow import heavy

if __name__ == "__main__":
    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(heavy.with_pid, "x", "y", process=True)
    _, pid = flow(x=np.zeros(100_000))["y"]
    print(pid, os.getpid(), flush=True)
    if sys.argv[1] == "fork":
        child = os.fork()
        if not child:
            flow.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert flow(x=np.zeros(100_000))["y"][1] == pid
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["exit", "kill", "fork"])
def test_a_parent_that_ends_leaves_nothing(tmp_path: Path, end: str) -> None:
    """Also one that is killed, or has forked; and it has nothing to complain of."""
    (tmp_path / "parent.py").write_text(PARENT)
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, tmp_path / "parent.py", end]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 0), done.stderr
    child, parent = map(int, done.stdout.split())
    assert gone(child)
    if end != "kill":
        assert done.stderr == ""
        assert not segments(parent)
    assert becomes(lambda: not segments(parent))  # what tracks memory for Python sees to it


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    text = PARENT.replace('if __name__ == "__main__":', "if True:")
    (tmp_path / "parent.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    command = [sys.executable, tmp_path / "parent.py", "exit"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "process: ended by code 1 before it was ready (flows of a script are to start below `if __" in done.stderr
    assert "process: got a start while a process imports the script, wanted it below `if __name__ == " in done.stderr
    assert "fault of bolt-numba" not in done.stderr


def test_a_call_that_shared_memory_cannot_hold_is_an_error() -> None:
    """The system would promise it, and end the process that writes to it."""
    total = shutil.disk_usage(SHARED).total
    if not 0 < total < 1 << 50:
        pytest.skip("shared memory has no limit here")
    with pytest.raises(FlowError, match="process: shared memory: got no"):
        processes._segment(2 * total)
    assert not segments()
