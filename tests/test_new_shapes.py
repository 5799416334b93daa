"""New shapes of a session that runs wait for no compiler, and compiling is visible."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base import turns as behind
from bolt_numba.cli.kernels import relatives
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels import compiles, jit, precompile, progress
from bolt_numba.kernels.cpu.language import lang
from bolt_numba.kernels.jit import I64, PTR, Native, native_source
from bolt_numba.kernels.progress import shown
from bolt_numba.runtime import runner
from bolt_numba.runtime.plan import Plan
from bolt_numba.runtime.stand_ins import Serving, computed_now
from tests.harness import served
from tests.rule_cases import graph_of, i64, o

WARM = (1, 6)
TEN = [(2, 6), (1, 1), (3, 9), (1, 16), (8, 2), (1, 5), (2, 1), (4, 4), (1, 200), (5, 33)]
MORE = [(2, n) for n in range(20, 30)]


def gated() -> Graph:
    """Rows scaled by what their means say, and a softmax: each part has other kernels for other shapes."""

    def build(b: Any, x: Any) -> Any:
        gate = b(o("Sigmoid"), b(o("ReduceMean"), x, i64(1)))
        return b(o("Softmax"), b(o("Mul"), x, gate))

    return graph_of(build, {"x": ("n", "s", 24)})


def feed(n: int, s: int) -> np.ndarray:
    return np.random.default_rng(n * 1000 + s).standard_normal((n, s, 24)).astype(np.float32)


def serve() -> dict[str, Any]:
    """Run one shape, then ten others, then all of them and more when what they lacked is there."""
    here: list[str] = []
    session = bn.compile(gated(), threads=1)
    session.warmup(x=(*WARM, 24))
    session(feed(*WARM))
    held = {"first": compiles.heard()}  # nobody notes: None
    stop = compiles.on_compile(lambda name, done: here.append(name))
    with compiles.waited() as waited:
        results = [session(feed(*shape))[0] for shape in TEN]
        runners = [row["runner"] for prepared in session._runner.prepared.values() for row in _rows(prepared)]
    assert precompile.idle()
    assert behind.idle()
    with compiles.waited() as waited_later:
        later = [session(feed(*shape))[0] for shape in TEN]
        assert behind.idle(), "a busy machine has its tapes late"
        more = [session(feed(*shape))[0] for shape in MORE]
    stop()
    patient = bn.compile(gated(), threads=1, stand_ins=False)
    wanted = [patient(feed(*shape))[0] for shape in (WARM, *TEN, *MORE)][1:]
    return held | {
        "served": served(session._runner),
        "waited": [c.name for c in waited],
        "waited later": [c.name for c in waited_later],
        "stand-ins": [runner for runner in runners if runner.endswith("(stand-in)")],
        "behind": sorted(set(here)),
        "stand-ins later": [row for row in session.report() if "stand-in" in row["runner"]],
        "far": max(float(np.abs(a - b).max()) for a, b in zip(results, wanted, strict=False)),
        "same bits later": all(a.tobytes() == b.tobytes() for a, b in zip([*later, *more], wanted, strict=True)),
    }


def _rows(prepared: Any) -> list[dict[str, str]]:
    return [{"runner": job.runner} for job in prepared.plan.jobs]


@pytest.mark.parametrize("compilers", ["1", "2"])
def test_ten_new_shapes_wait_for_no_compiler(tmp_path: Path, compilers: str) -> None:
    own = {"BOLT_NUMBA_CACHE_DIR": str(tmp_path), "BOLT_NUMBA_STAND_INS": "1", "BOLT_NUMBA_COMPILERS": compilers}
    code = "import json; from tests.test_new_shapes import serve; print(json.dumps(serve()))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["waited"] == []
    assert found["waited later"] == []
    assert found["served"], "tapes take part"
    assert found["behind"], "new shapes had nothing to wait for: the test tests nothing"
    assert found["stand-ins"]
    assert found["stand-ins later"] == []
    assert found["far"] < 1e-6
    assert found["same bits later"]


def compiled_by_ten() -> list[str]:
    """Kernels that anybody compiles for eleven shapes."""
    seen: list[str] = []
    compiles.on_compile(lambda name, done: seen.append(name))
    session = bn.compile(gated(), threads=1)
    for shape in (WARM, *TEN):
        session(feed(*shape))
    assert precompile.idle()
    return seen


def test_a_warmed_cache_has_kernels_for_shapes_that_come(tmp_path: Path) -> None:
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(tmp_path / "cache"), "BOLT_NUMBA_STAND_INS": "1"}
    model = tmp_path / "gated.bolt"
    bn.save(gated(), model)
    warm = [sys.executable, "-m", "bolt_numba", "cache", "warm", str(model), "--shape", "x=1,6,24", "--threads", "1"]
    subprocess.run(warm, env=env, check=True, capture_output=True)
    code = "from tests.test_new_shapes import compiled_by_ten; print(compiled_by_ten())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_relatives_change_what_is_free() -> None:
    def build(b: Any, x: Any, y: Any) -> Any:
        return b(o("Relu"), x), b(o("Relu"), y)

    graph = graph_of(build, {"x": ("n", 3, "h", "w"), "y": ("m", 7)})
    found = list(relatives(graph, {"x": (1, 3, 64, 64), "y": (1, 7)}))
    assert {"x": (2, 3, 64, 64), "y": (2, 7)} in found, "two names of a batch"
    assert {"x": (1, 3, 128, 128), "y": (1, 7)} in found
    assert {"x": (1, 3, 64, 32), "y": (1, 7)} in found
    assert {"x": (2, 3, 65, 65), "y": (2, 7)} in found
    assert all(f["x"][1] == 3 and f["y"][1] == 7 for f in found)
    assert not list(relatives(graph_of(build, {"x": (2, 3), "y": (4,)}), {"x": (2, 3), "y": (4,)}))


def probe(factor: int, name: str = "probe") -> Native:
    text = f"def {name}(p, tid, nthreads):\n    store_i64(p.x, load_i64(p.x) * p.n * {factor})\n"
    return native_source(text, name, {"x": PTR, "n": I64}, store_i64=lang.store_i64, load_i64=lang.load_i64)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_kernels_are_shipped_to_assistants(cache: Path) -> None:
    def closed(factor: int) -> Native:
        def closure(p: Any, tid: int, nthreads: int) -> None:
            lang.store_i64(p.x, lang.load_i64(p.x) * factor)

        return jit.native(x=PTR)(closure)

    from bolt_numba.kernels.cpu.executor import copy_rows

    kernels = [probe(101), closed(5), closed(6), Native(copy_rows.given, "again", copy_rows.fields, copy_rows.fastmath)]
    assistant = precompile.Assistant.start()
    assert assistant is not None
    with assistant:
        assert all(assistant.compile(kernel) for kernel in kernels)
        assert not assistant.compile(probe(3, "pass")), "what cannot be compiled is said to be so"
    assert [name.split("-")[0] for name, _ in jit.cache_entries()] == ["again", "closure", "closure", "probe"]
    for kernel, wanted in zip(kernels, (2 * 7 * 101, 35, 42), strict=False):
        x = np.array([7])
        kernel.run(x=x, **({"n": 2} if "n" in kernel.fields else {}))
        assert x[0] == wanted


def test_nobody_waits_for_an_assistant_when_the_process_ends(cache: Path) -> None:
    """One that does not read, with a pipe that is full; and one that another thread is writing to."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with precompile.Assistant(process) as assistant:
        left: list[int] = []
        thread = threading.Thread(
            target=lambda: left.extend(assistant.leave(probe(7), 1 << 15) for _ in range(1000)), daemon=True
        )
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert left[0] < left[-1] == 1 << 15, "the room that is left is gone with the pipe"
        with assistant._sending:
            assert assistant.leave(probe(7), 1 << 14) == 1 << 14


@pytest.mark.parametrize("printed", ["", "hello", "hello\\n", "a line that is longer than eight bytes\\n"])
def test_what_is_printed_while_an_assistant_starts_is_no_answer(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    """Python runs such a module of the environment's first."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(f"print('{printed}', end='', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    assistant = precompile.Assistant.start()
    assert assistant is not None
    with assistant:
        assert assistant.compile(probe(1000 + len(printed)))


def test_paths_that_lead_nowhere_are_not_for_assistants(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Any] = ["", b"bytes", None, *sys.path]
    monkeypatch.setattr(sys, "path", parts)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assistant = precompile.Assistant.start()
        assert assistant is not None
        with assistant:
            assert assistant.compile(probe(1100))
    finally:
        os.chdir(tmp_path)


def test_assistants_keep_kernels_where_their_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", "a folder of kernels")
    own = jit.cache_root()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assistant = precompile.Assistant.start()
    assert assistant is not None
    with assistant:
        assert assistant.compile(probe(1200))
    assert own == tmp_path / "a folder of kernels"
    assert len(list(own.glob("*/*.kernel"))) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_assistant_that_dies_is_done_without(cache: Path) -> None:
    assistant = precompile.Assistant.start()
    assert assistant is not None
    assistant.process.kill()
    with assistant:
        assert not assistant.compile(probe(211))
    assert probe(211).address


@pytest.mark.parametrize("executable", ["", "/usr/sbin/uwsgi", "/nowhere/python3", b"/nowhere/python3"])
def test_without_an_interpreter_this_process_compiles(
    cache: Path, monkeypatch: pytest.MonkeyPatch, executable: Any
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert precompile.Assistant.start() is None
    first = 300 + 10 * len(executable) + isinstance(executable, bytes) * 5
    kernels = [probe(factor) for factor in range(first, first + 3)]
    precompile.prepare(kernels)
    assert len(jit.cache_entries()) == 3


def test_every_compile_is_a_line_in_the_log(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bolt_numba")
    precompile.prepare([probe(factor) for factor in range(401, 405)])
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 4
    assert all(line.startswith("kernel probe: compiled in ") for line in lines)
    assert any("by this process" in line for line in lines)
    caplog.clear()
    precompile.prepare([probe(factor) for factor in range(401, 405)])
    assert not caplog.records, "what is there is not compiled"


def test_a_session_says_what_its_first_plan_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bolt_numba")
    session = bn.compile(gated(), threads=1, stand_ins=False)
    session(feed(*WARM))
    session(feed(*WARM))
    lines = [r.getMessage() for r in caplog.records if "planned in" in r.getMessage()]
    assert len(lines) == 1
    assert " kernels compiled, " in lines[0]


def test_a_request_that_waits_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "bolt_numba")
    session = bn.compile(gated(), threads=1, stand_ins=False)
    session(feed(*WARM))
    device = session._runner.devices[0]
    monkeypatch.setattr(device, "prepare", lambda jobs: compiles.ended(compiles.Compile("slow", 5.0, "")))
    session.warmup(x=(2, 3, 24))
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING], "it was asked to wait"
    session(feed(3, 3))
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "a new shape waited" in line
    assert line.endswith("for 1 kernels: slow")


def test_a_kernel_that_nobody_can_compile_leaves_its_stand_in(
    caplog: pytest.LogCaptureFixture, cache: Path, nothing_swallowed: Counter[str]
) -> None:
    caplog.set_level(logging.WARNING, "bolt_numba")
    called: list[int] = []
    precompile.compile_later([probe(5, "pass"), probe(501)], lambda: called.append(1))
    assert precompile.idle()
    assert called == [1], "the others of a plan serve it"
    assert "kernel pass: cannot be compiled" in caplog.text
    assert [text.partition(": ")[0] for text in nothing_swallowed] == ["kernel 'pass'"]
    nothing_swallowed.clear()
    precompile.compile_later([probe(501), probe(502)], lambda: called.append(2))
    assert precompile.idle()
    assert called == [1, 2]


def test_what_data_size_is_computed_by_its_reference_meanwhile(cache: Path) -> None:
    serving, kernel = Serving("model"), probe(601)
    serving.is_running = True
    assert computed_now(serving, lambda: kernel.address, lambda: -1) == -1
    assert precompile.idle()
    assert computed_now(serving, lambda: kernel.address, lambda: -1) > 0
    patient = Serving("model", stand_ins=False, is_running=True)
    assert computed_now(patient, lambda: probe(602).address, lambda: -1) > 0


def test_stand_ins_that_lack_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    session = bn.compile(gated(), threads=1)
    wanted = session(feed(*WARM))[0]
    (prepared,) = session._runner.prepared.values()

    def short(*args: Any) -> Any:
        monkeypatch.undo()
        raise bn.BudgetError("reference: got too little")

    monkeypatch.setattr(runner, "run_plan", short)
    with pytest.raises(bn.BudgetError):
        session(feed(*WARM))
    monkeypatch.setattr(runner, "run_plan", short)
    prepared.stands_in = True
    assert session(feed(*WARM))[0].tobytes() == wanted.tobytes()
    assert list(session._runner.prepared.values()) != [prepared]


def test_warming_up_waits_for_what_a_plan_does_without() -> None:
    session = bn.compile(gated(), threads=1, max_plans=1)
    session(feed(*WARM))
    (prepared,) = session._runner.prepared.values()
    prepared.stands_in = True
    session(feed(*WARM))
    assert list(session._runner.prepared.values()) == [prepared]
    session.warmup(x=(*WARM, 24))
    (made,) = session._runner.prepared.values()
    assert made is not prepared
    assert not made.stands_in


def test_stand_ins_write_over_no_input() -> None:
    """The plan that takes their place between looking and running may read the input later."""
    session = bn.compile(graph_of(lambda b, x: b(o("Relu"), x), {"x": ("n", "s", 24)}), threads=1)
    x = feed(*WARM)
    wanted = np.maximum(x, 0)
    session(x)
    (prepared,) = session._runner.prepared.values()
    assert prepared.can_overwrite(0, 0)
    prepared.stands_in = True
    assert not prepared.can_overwrite(0, 0)
    session.run_into({session.inputs[0].name: x}, {session.outputs[0].name: x})
    assert np.array_equal(x, wanted)


def test_kernels_that_pack_are_compiled_with_those_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all processes at once; one after the other they took as long as all others."""
    prepared: list[Any] = []
    monkeypatch.setattr(precompile, "prepare", lambda *kernels: prepared.append(kernels))

    class Device:
        def lacking(self, steps: Any) -> list[str]:
            return ["step"]

        def besides(self) -> list[str]:
            return ["tape"]

    class Packs:
        lacking: ClassVar = {1: "packing"}

        def pack(self, jobs: Any) -> None:
            if not compiles.may_wait():
                raise compiles.LackingError(types.SimpleNamespace(name="packing"))
            assert len(prepared) == 1

    plan: Any = types.SimpleNamespace(jobs=[types.SimpleNamespace(steps=(), device=Device())])
    packs: Any = Packs()
    Plan._pack(plan, packs)
    assert prepared == [(["packing", "step"], ["tape"])]
    with compiles.no_compiling(), pytest.raises(compiles.LackingError):
        Plan._pack(plan, packs)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_in_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(to: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stderr", to)
        with shown(["one", "two"]):
            for name in ("one", "two"):
                compiles.begins(name)
                compiles.ended(compiles.Compile(name, 0.1, "here"))
        return to.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    assert "2/2" in written(Terminal())
    assert written(io.StringIO()) == ""
    stop = compiles.on_compile(lambda name, done: None)
    assert written(Terminal()) == "", "somebody else shows it"
    stop()


def test_what_takes_long_is_one_line_where_nobody_sees_a_bar(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    caplog.set_level(logging.WARNING, "bolt_numba")

    one, two = (types.SimpleNamespace(is_ready=ready) for ready in (True, False))

    def wait(seconds: float) -> list[str]:
        caplog.clear()
        with compiles.waited("a model"), shown([one, two]):
            time.sleep(seconds)
        return [r.getMessage() for r in caplog.records]

    assert wait(0.0) == [], "it was quick"
    monkeypatch.setattr(progress, "LONG", 0.05)
    line, *more = wait(1.0)
    assert set(more) == {"a model: compiling kernels: 1 of 2 so far"}
    assert progress.OFTEN <= len(more) + 1 <= 9, "not for ever as often"
    start = "a model: compiling kernels, for the first time on this machine: 1 of 2 so far; they are kept in "
    assert line == f"{start}{jit.cache_root()}"
    stop = compiles.on_compile(lambda name, done: None)
    assert wait(0.2) == [], "somebody else shows it"
    stop()


def test_without_a_log_the_line_is_on_stderr(tmp_path: Path) -> None:
    code = """
import time
from bolt_numba.kernels import compiles, progress
progress.LONG = 0.05
with compiles.waited("a model"), progress.shown([type('Kernel', (), {'is_ready': False})]):
    time.sleep(0.5)
"""
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stderr.startswith(
        f"a model: compiling kernels, for the first time on this machine: 0 of 1 so far; they are kept in {tmp_path}\n"
    )
    quiet = f"import logging; logging.getLogger('bolt_numba').setLevel(logging.ERROR){code}"
    done = subprocess.run([sys.executable, "-c", quiet], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_progress_is_a_line_in_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class ZMQInteractiveShell:
        pass

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Any:
        lines.append(data["text/plain"])
        return types.SimpleNamespace(update=lambda data, raw: lines.append(data["text/plain"]))

    fake = types.SimpleNamespace(get_ipython=ZMQInteractiveShell, display=types.SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", fake)
    with shown(["one"]):
        compiles.begins("one")
        compiles.ended(compiles.Compile("one", 0.1, "here"))
    assert len(lines) == 4
    assert ": 0 of 1, " in lines[1]
    assert ": 1 of 1, " in lines[-1]
