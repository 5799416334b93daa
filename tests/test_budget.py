"""No small file and no data take memory or time without a clear error; each model runs in a child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base import budget
from bolt_numba.base.budget import Budget, ask, free_memory, spend, within
from bolt_numba.ops.arrays.random import RandomNormal, RandomUniform
from bolt_numba.types import Sym
from tests.budget_cases import CASES, F3, model, node, value

ROOT = Path(__file__).parent.parent
LIMIT = 1 << 30
SECONDS = 15.0
SLOW = {"long_chain": 40.0, "one_value_read_often": 40.0}
"""Planning is linear in nodes; of processor time, as machines are busy; kernels that are not in the cache included."""


def _child(names: list[str], seconds: float) -> list[dict[str, Any]]:
    env = os.environ | {"BOLT_NUMBA_MEMORY": "1G", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.budget_child", *names]
    try:
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
        text, said = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        text, said = (error.stdout or b"").decode(), "timeout"
    return [{"name": names[0], "ended": said[-2000:]}, *map(json.loads, text.splitlines())]


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """The last line of each model: an unfinished one ends the child, and the rest run in the next."""
    found: dict[str, dict[str, Any]] = {}
    left = list(CASES)
    while left:
        lines = _child(left, 120 + 3 * sum(SLOW.get(n, SECONDS) for n in left))
        found.update((row["name"], row) for row in lines)
        left = left[left.index(lines[-1]["name"]) + 1 :]
    return found


@pytest.mark.parametrize("name", CASES)
def test_small_models_take_little_or_are_refused(rows: dict[str, dict[str, Any]], name: str) -> None:
    row, wanted = rows[name], CASES[name][1]
    assert "seconds" in row, f"did not end: {row}"
    assert not wanted or row["ended"] == wanted, row
    assert row["seconds"] < SLOW.get(name, SECONDS), row
    assert row["bytes"] < LIMIT + (1 << 28), row
    if row["ended"] == "BudgetError":
        for part in ("node '", "got", "wanted at most 1024 MiB", "BOLT_NUMBA_MEMORY"):
            assert part in row["said"], row


def test_a_session_has_its_own_limit() -> None:
    made = model([node("Expand", ["x", "n"], ["y"])], [value("x", "f", (3,)), value("n", "i", (2,))], [value("y", "f")])
    feeds = {"x": F3, "n": np.array([1000, 3])}
    assert bn.compile(made.SerializeToString(), memory_limit=20_000)(feeds)[0].shape == (1000, 3)
    sess = bn.compile(made.SerializeToString(), memory_limit=10_000)
    with pytest.raises(bn.BudgetError, match=r"node 'y': Expand: .*got 12000 bytes, wanted at most 10000 bytes"):
        sess(feeds)
    with pytest.raises(MemoryError):
        sess(feeds)
    with pytest.raises(bn.BoltError, match="memory_limit"):
        bn.compile(made.SerializeToString(), memory_limit=0)


@pytest.mark.parametrize("kind", [RandomNormal, RandomUniform])
def test_random_numbers_ask_for_what_they_are_drawn_in(kind: Any) -> None:
    op = kind(dtype=np.dtype(np.float16))
    with within(Budget(memory=1000)):
        op.reference(np.array([125]))
        said = f"{kind.name}: numbers before they are rounded: memory: got 1008 bytes"
        with pytest.raises(bn.BudgetError, match=said):
            op.reference(np.array([2, 63]))


def test_the_system_saying_no_is_a_bolt_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model([node("Neg", ["x"], ["y"])], [value("x", "f", (3,))], [value("y", "f", (3,))])
    sess = bn.compile(made.SerializeToString())

    def none_left(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sess._runner, "run", none_left)
    with pytest.raises(bn.BudgetError, match="g: memory: the system gave no more"):
        sess(x=F3)


def test_budgets() -> None:
    with within(Budget(work=100, memory=1000)) as outer:
        ask(1000, "this")
        with pytest.raises(bn.BudgetError, match="this: memory: got 1001 bytes, wanted at most 1000 bytes"):
            ask(1001, "this")
        with within(Budget(work=5)), pytest.raises(bn.BudgetError, match="wanted at most 1000"):
            ask(1001, "what stands inside keeps the limit")
        spend(60, "this")
        assert outer.work == 40
        with pytest.raises(bn.BudgetError, match="this: work: got 41 operations, wanted at most 40"):
            spend(41, "this")
    spend(1 << 80, "no limit")
    assert 0 < free_memory() < budget.UNBOUNDED
    with pytest.raises(bn.BudgetError, match="BOLT_NUMBA_MEMORY"):
        ask(1 << 60, "this")


def group(folder: Path, version: int, limit: object, used: int = 0, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, held in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{held}\n")
    row = "total_inactive_file" if version == 1 else "inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\n{row} {cached}\nfile 7\n")


def test_the_control_group_of_the_process_decides(tmp_path: Path) -> None:
    """Of its own group and of those around it, the one that leaves the least."""
    own, groups = tmp_path / "own", tmp_path / "groups"
    assert budget._control_group(own, groups) == budget.UNBOUNDED
    own.write_text("0::/a/b/c\n")
    assert budget._control_group(own, groups) == budget.UNBOUNDED
    group(groups / "a/b/c", 2, "max", 10)
    assert budget._control_group(own, groups) == budget.UNBOUNDED
    group(groups / "a/b", 2, 5000, 3000, 500)
    assert budget._control_group(own, groups) == 2500
    group(groups / "a", 2, 9000, 7000)
    assert budget._control_group(own, groups) == 2000
    group(groups, 2, 1900, 0)
    assert budget._control_group(own, groups) == 1900
    own.write_text("0::/elsewhere\n")  # a container that sees the path outside of it
    assert budget._control_group(own, groups) == 1900
    own.write_text("0::/../b\n")
    assert budget._control_group(own, groups) == 1900


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    own, groups = tmp_path / "own", tmp_path / "groups"
    own.write_text("9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n")
    group(groups / "memory/x", 1, 1)
    group(groups / "memory", 1, (1 << 63) - 4096, 100)
    assert budget._control_group(own, groups) == budget.UNBOUNDED
    group(groups / "memory/a/b", 1, 5000, 3000, 500)
    group(groups / "memory/a", 1, 4000, 1000)
    assert budget._control_group(own, groups) == 2500


@pytest.mark.parametrize(("text", "nbytes"), [("5", 5), ("3k", 3072), ("2M", 2 << 20), ("1G", 1 << 30), ("", None)])
def test_the_switch_knows_units(monkeypatch: pytest.MonkeyPatch, text: str, nbytes: int | None) -> None:
    monkeypatch.setenv("BOLT_NUMBA_MEMORY", text)
    assert budget.memory_limit() == nbytes


@pytest.mark.parametrize("text", ["0", "x", "1Q", "-1", "1.5G", "G"])
def test_the_switch_refuses_nonsense(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BOLT_NUMBA_MEMORY", text)
    with pytest.raises(bn.BoltError, match="BOLT_NUMBA_MEMORY"):
        budget.memory_limit()


def test_symbols_stay_small() -> None:
    same: list[Any] = [Sym("n"), Sym("n")]
    for _ in range(40):
        same = [d * d for d in same]
    assert same[0] == same[1]
    assert len(str(same[0])) < 1000
    wide: Any = 0
    for i in range(2000):
        wide = wide + Sym(f"d{i}")
    assert len(str(wide)) < 1000
    high: Any = Sym("n") + 3
    for _ in range(100):
        high = high * (1 << 40)
    assert len(str(high)) < 1000
    assert Sym("a") * Sym("b") != Sym("a") * Sym("c")


def test_a_loop_without_end_can_be_interrupted() -> None:
    """The child asks for its own interruption, as control-C would; again, as compilers may swallow one."""
    code = (
        "import os, signal, threading, time\nimport bolt_numba as bn\nfrom tests.budget_cases import endless_loop\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job begins deaf to it
        "made, feeds = endless_loop()\nsess = bn.compile(made.SerializeToString())\n"
        "def ask():\n  while True:\n    time.sleep(3)\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=ask, daemon=True).start()\n"
        "try: sess(feeds)\nexcept KeyboardInterrupt: print('interrupted', flush=True); os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == "interrupted\n", done.stderr
    assert done.returncode != -signal.SIGINT


def test_pixels_of_filters_are_asked_for() -> None:
    """Where filters look is a table with a number for each product, of sizes that are planned or followed."""
    made = model(
        [node("Conv", ["x", "w"], ["y"], pads=[7, 7, 7, 7])], [value("x", "f", (1, 1, "h", "w"))], [value("y", "f")],
        {"w": np.ones((1, 1, 15, 15), np.float32)},
    )  # fmt: skip
    session = bn.compile(made.SerializeToString(), memory_limit=2 << 20, threads=1, stand_ins=False)
    with pytest.raises(bn.BudgetError, match=r"Conv.: input pixels of filters: .*got 3 MiB, wanted at most 2 MiB"):
        session.warmup(x=(1, 1, 60, 60))
    for size in range(30, 40):
        session.warmup(x=(1, 1, size, size))
    with pytest.raises(bn.BudgetError, match=r"plan of 1 steps: .*got 3 MiB, wanted at most 2 MiB"):
        session(x=np.zeros((1, 1, 60, 60), np.float32))
