"""Plug-ins on the command line: listed, chosen, set, compared, timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bolt_numba as bn
from bolt_numba import benchmark
from bolt_numba.errors import BoltError
from bolt_numba.plugins import blobs
from tests.plugins.plain_driver import PlainDriver
from tests.plugins.two_parts import BROKEN, GRAPH, cache, driver, expect, session_of

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")
ROOT = Path(__file__).parents[2]
ON = ("--device", "plain,cpu", "--shape", "x=3,8", "--threads", "1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    bn.save(GRAPH, tmp_path / "m.bolt")
    return tmp_path / "m.bolt"


def test_devices_are_listed(driver: PlainDriver, call: Any) -> None:
    rows = {row["device"]: row for row in json.loads(call("devices", "--json").out)}
    assert {"cpu", "host", "cuda-sim", "plain"} <= rows.keys()
    plain = rows["plain"]
    assert (plain["vendor"], plain["version"], plain["state"]) == ("tests", driver.version, "ready")
    assert plain["properties"][0] == {"name": "chip", "default": "one", "choices": ["one", "two"], "what": "which one"}
    assert not +driver.live, "what was opened for its version is closed"
    text = call("devices").out
    assert "--property plain.NAME=VALUE" in text
    assert "self_check" in text


@pytest.mark.parametrize("what", ["absent", "open"])
def test_devices_that_do_not_work_say_why(driver: PlainDriver, call: Any, what: str) -> None:
    if what == "absent":
        driver.absent = "the package plain-sdk is not installed"
    else:
        driver.fails["open"] = BROKEN
    (row,) = [row for row in json.loads(call("devices", "--json").out) if row["device"] == "plain"]
    assert row["state"] == (driver.absent or "RuntimeError: no answer")


def test_a_model_runs_on_a_plug_in(driver: PlainDriver, call: Any, model: Path) -> None:
    assert call("run", str(model), *ON, "--property", "plain.chip=two", "--property", "plain.speed=5").code == 0
    assert driver.opened_with == {"chip": "two", "speed": 5}
    assert driver.calls["run"] == 2


def test_a_failure_may_be_told_or_forbidden(driver: PlainDriver, call: Any, model: Path) -> None:
    driver.fails["run"] = BROKEN
    assert call("run", str(model), *ON).code == 0
    done = call("run", str(model), *ON, "--fallback", "forbid")
    assert done.code == 1
    assert "device 'plain': part 'plain.0' (MatMul, Relu): run: RuntimeError: no answer" in " ".join(done.err.split())
    assert call("run", str(model), *ON, "--fallback", "never").code == 2


def test_wrong_properties_are_refused(driver: PlainDriver, call: Any, model: Path) -> None:
    assert call("run", str(model), *ON, "--property", "chip=two").code == 2
    assert "got 'chap'" in call("run", str(model), *ON, "--property", "plain.chap=two").err
    assert "got 'three'" in call("run", str(model), *ON, "--property", "plain.chip=three").err


def test_a_placement_keeps_nodes_here(driver: PlainDriver, call: Any, model: Path, tmp_path: Path) -> None:
    rules = tmp_path / "placement.txt"
    rules.write_text("# stays\nAdd\n")
    args = ("--device", "plain", "--placement", str(rules))
    found = json.loads(call("inspect", str(model), *args, "--json").out)
    assert [row["state"] for row in found["devices"]] == ["open"]
    parts = {node["node"]: node["part"] for node in found["nodes"]}
    assert parts == {"MatMul": "plain.0", "Relu": "plain.0", "Softmax": "", "MatMul.1": "plain.1", "Add": ""}
    text = call("inspect", str(model), *args).out
    assert "3 nodes on plain, 2 nodes here" in text
    line = next(node["line"] for node in found["nodes"] if node["node"] == "Relu")
    rules.write_text(line + "\n")
    again = json.loads(call("inspect", str(model), *args, "--json").out)
    assert {node["node"]: node["part"] for node in again["nodes"]}["Relu"] == "", "lines are shown as they are read"


def test_a_device_is_compared_with_the_cpu(driver: PlainDriver, call: Any, model: Path) -> None:
    on = ("--device", "plain", "--shape", "x=3,8", "--against", "cpu", "--json")
    found = json.loads(call("verify", str(model), *on).out)
    assert found["ok"]
    assert {row["name"] for row in found["tensors"]} == {"MatMul", "Relu", "Softmax", "MatMul.1", "Add", "y"}
    driver.wrong = 0.5
    done = call("verify", str(model), *on)
    assert done.code == 1
    assert json.loads(done.out)["first_divergent"] == "MatMul", "inside a part, too"


def test_only_known_judges_are_taken() -> None:
    with pytest.raises(BoltError, match="wanted one of 'onnxruntime', 'reference', 'cpu'"):
        bn.verify(GRAPH, "nobody")


def test_a_missing_judge_says_what_else_there_is(
    driver: PlainDriver, call: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    on = ("--device", "plain", "--shape", "x=3,8")
    done = call("verify", str(model), *on)
    assert done.code == 1
    said = " ".join(done.err.split())
    assert "onnxruntime is not installed, wanted it (pip install onnxruntime), or against=" in said
    assert call("verify", str(model), *on, "--against", "cpu").code == 0


def test_a_device_is_timed(driver: PlainDriver, call: Any, model: Path) -> None:
    text = call("profile", str(model), *ON, "--runs", "2").out
    assert "plain.0 (2 copies, 100 bytes)" in text
    report = benchmark.bench(model, shapes={"x": (3, 8)}, seconds=0.1, processes=False, device=["plain"])
    assert report.engines[0].latencies
    assert driver.calls["run"] > 10


def test_the_cache_tells_of_graphs_and_is_cleared(
    driver: PlainDriver, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "own"))
    for name in "ab":
        blobs.write(f"plain-{name}.blob", b"compiled")
    assert "2 graphs that plug-ins compiled" in call("cache", "list").out
    assert "removed 2 graphs that plug-ins compiled" in call("cache", "clear").out
    assert "that plug-ins" not in call("cache", "clear").out


def test_parts_that_a_file_holds_are_on_their_device(driver: PlainDriver, call: Any, tmp_path: Path) -> None:
    driver.only = {"MatMul", "Relu"}
    with session_of() as session:
        bn.save(session.optimised, tmp_path / "parts.bolt")
    driver.only = {"Softmax"}
    found = json.loads(call("inspect", str(tmp_path / "parts.bolt"), "--device", "plain", "--json").out)
    got = [(row["device"], row["reasons"]) for row in found["nodes"]]
    assert got == [("plain", {})] * 3 + [("", {"plain": "Add is none of ['Softmax']"})]
    parts = [row["part"] for row in found["nodes"]]
    assert len(set(parts)) == len(parts), "a part that is made now has no name of one that the file holds"
    assert "3 nodes on plain, 1 node here" in call("inspect", str(tmp_path / "parts.bolt"), "--device", "plain").out
    with bn.compile(tmp_path / "parts.bolt", device=["plain", "cpu"], threads=1) as session:
        expect(session)
        assert [row["device"] for row in session.report()] == ["plain", "plain", "plain", "cpu"]


def test_a_warning_is_one_line_that_says_it(tmp_path: Path, model: Path) -> None:
    (tmp_path / "placement.txt").write_text("Foo\n")
    code = "import tests.plugins.plain_driver as p; import bolt_numba.__main__ as m; p.register_plain(); m.main()"
    args = ["inspect", str(model), "--device", "plain", "--placement", str(tmp_path / "placement.txt")]
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "warning: placement: line 1 (Foo): no node is like that\n"
