"""A limit of time ends loops whose count is fed, says so, and costs nothing where there is none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import bolt_numba as bn
import bolt_numba.onnxruntime as ort
from bolt_numba.cli.app import run
from bolt_numba.ir.graph import Graph
from bolt_numba.passes.pipeline import Stage, with_stage
from tests.budget_cases import endless_loop, ints, model, node, value

LIMIT = 0.2
COUNT = 1 << 40


def looping(kind: str) -> onnx.ModelProto:
    """A Loop of x + 1 whose count is fed; "scan": around it a Scan of one such loop for each number."""
    body = helper.make_graph(
        [node("Add", ["a", "one"], ["b"]), node("Identity", ["c"], ["d"])], "body",
        [value("i", "i", ()), value("c", "b", ()), value("a", "f", [3])],
        [value("d", "b", ()), value("b", "f", [3])],
        [onnx.numpy_helper.from_array(np.ones(3, np.float32), "one")],
    )  # fmt: skip
    loop = node("Loop", ["n", "", "x"], ["y"], body=body)
    if kind == "loop":
        return model([loop], [value("n", "i", ()), value("x", "f", [3])], [value("y", "f", [3])])
    inner = helper.make_graph([loop], "inner", [value("x", "f", [3]), value("n", "i", ())], [value("y", "f", [3])])
    outer = node("Scan", ["s", "m"], ["z"], body=inner, num_scan_inputs=1)
    return model([outer], [value("m", "i", [2]), value("s", "f", [3])], [value("z", "f", [3])])


def feeds(kind: str, count: int) -> dict[str, Any]:
    x = np.zeros(3, np.float32)
    return {"n": np.array(count), "x": x} if kind == "loop" else {"m": ints(0, count), "s": x}


@pytest.mark.parametrize("kind", ["loop", "scan"])
def test_a_loop_ends_in_time_and_the_session_goes_on(kind: str) -> None:
    session = bn.compile(looping(kind).SerializeToString(), time_limit=LIMIT)
    for _ in range(2):  # each run has the whole time
        started = time.monotonic()
        with pytest.raises(bn.TimeLimitError, match=r"Loop.*: time: got a run of more than 0.2 s") as caught:
            session(feeds(kind, COUNT))
        assert isinstance(caught.value, TimeoutError)
        assert LIMIT <= time.monotonic() - started < 20
        np.testing.assert_array_equal(session(feeds(kind, 5))[0], np.full(3, 5, np.float32))


def test_every_way_to_run_is_limited() -> None:
    session = bn.compile(looping("loop").SerializeToString(), time_limit=LIMIT)
    given, buffer = feeds("loop", COUNT), np.empty(3, np.float32)
    for way in (
        lambda: session.run(None, given),
        lambda: session.run_into(given, {"y": buffer}),
        lambda: session.clone(threads=1)(given),
        lambda: session.profile(given),
    ):
        with pytest.raises(bn.TimeLimitError):
            way()
    assert session.clone().options.time_limit == LIMIT


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 2}, {"device": "host"}])
def test_a_long_program_without_loops_ends_too(options: dict[str, Any]) -> None:
    layers, side = 400, 384
    nodes = [node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"]) for i in range(layers)]
    made = model(nodes, [value("v0", "f", [side, side])], [value(f"v{layers}", "f", [side, side])],
                 {"w": np.eye(side, dtype=np.float32)}).SerializeToString()  # fmt: skip
    x, short = np.ones((side, side), np.float32), bn.compile(made, time_limit=0.002, stand_ins=False, **options)
    for _ in range(3):
        with pytest.raises(bn.TimeLimitError, match=r"time: got a run of more than 0.002 s"):
            short(x)
    np.testing.assert_array_equal(bn.compile(made, time_limit=1e300, **options)(x)[0], x)


def test_what_is_planned_takes_no_time_of_the_run() -> None:
    def slow(graph: Graph, run: Any) -> None:
        time.sleep(2 * LIMIT)

    stages = with_stage(Stage("slow", (slow,)), after="partition")
    session = bn.compile(looping("loop").SerializeToString(), time_limit=LIMIT, stages=stages)
    np.testing.assert_array_equal(session(feeds("loop", 5))[0], np.full(3, 5, np.float32))


def test_without_a_limit_a_loop_runs_on() -> None:
    made = looping("loop").SerializeToString()
    np.testing.assert_array_equal(bn.compile(made)(feeds("loop", 2000))[0], np.full(3, 2000, np.float32))
    np.testing.assert_array_equal(
        bn.compile(made, time_limit=600)(feeds("loop", 2000))[0], np.full(3, 2000, np.float32)
    )


def test_an_endless_condition_ends() -> None:
    made, given = endless_loop()
    with pytest.raises(bn.TimeLimitError):
        bn.compile(made.SerializeToString(), time_limit=LIMIT)(given)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), 10**400, "2", True])
def test_other_limits_are_refused(wrong: Any) -> None:
    made = model([node("Identity", ["x"], ["y"])], [value("x", "f", [3])], [value("y", "f", [3])])
    with pytest.raises(bn.BoltError, match=r"time_limit: got .*, wanted a number of seconds above 0"):
        bn.compile(made.SerializeToString(), time_limit=wrong)


def test_the_drop_in_and_the_command_line_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("bolt_numba.time_limit", str(LIMIT))
    session = ort.InferenceSession(looping("loop").SerializeToString(), options)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="time_limit"):
        session.run(None, feeds("loop", COUNT))
    (tmp_path / "loop.onnx").write_bytes(looping("loop").SerializeToString())
    np.savez(tmp_path / "in.npz", **feeds("loop", COUNT))
    command = ["run", str(tmp_path / "loop.onnx"), "--input", str(tmp_path / "in.npz"), "--time-limit", str(LIMIT)]
    assert run(command) == 1
    assert "got a run of more than 0.2 s" in capsys.readouterr().err
