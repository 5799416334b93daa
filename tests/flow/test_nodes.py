"""Nodes of a flow: models, batches, lists, streams, copies, workers; what is refused when a graph is made."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.flow import Flow, FlowError, State, Workers
from bolt_numba.flow.batching import key_of
from tests.flow.test_tasks import LONG, Gate
from tests.small import softmax
from tests.test_states import ONE, counter

DIGITS = Path(__file__).parent.parent.parent / "examples" / "digits" / "digits.onnx"


def images(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((count, 1, 8, 8), np.float32)


def test_a_model_is_a_node() -> None:
    session = bn.compile(DIGITS, threads=1)
    flow = Flow(inputs={"image": "f32[n,1,8,8]"}, outputs="digit").model(session, name="digits")
    flow.function(lambda p: p.argmax(1), "probabilities", "digit", name="best")
    x = images(3)
    with flow:
        np.testing.assert_array_equal(flow(image=x)["digit"], np.asarray(session(x)).argmax(1))
        with pytest.raises(bn.ShapeError):
            flow(image=x[0])


def test_a_model_file_serves_several_workers_and_devices() -> None:
    flow = Flow(inputs="image", outputs="p")
    workers = [Workers(2, threads=1), Workers(device="host", threads=1)]
    flow.model(DIGITS, "image", "p", name="digits", workers=workers, numerics="strict")
    want = np.asarray(bn.compile(DIGITS)(images(1)))
    with flow:
        for task in [flow.submit(image=images(1)) for _ in range(12)]:
            np.testing.assert_allclose(task.result(LONG)["p"], want, rtol=1e-5, atol=1e-6)
        node: Any = flow.nodes[0]
        assert sorted((s.device, s.threads, s.numerics) for s in node.sessions.values()) == [
            ("cpu", 1, "strict"), ("host", 1, "strict"),
        ]  # fmt: skip


def test_an_error_of_a_model_names_the_node() -> None:
    with Flow(inputs="image", outputs="p").model(DIGITS, "image", "p", name="digits") as flow:
        with pytest.raises(bn.ShapeError, match="node 'digits': input 'image'"):
            flow(image=images(1)[0])
        with pytest.raises(bn.DTypeError, match="node 'digits': input 'image'"):
            flow(image=images(1).astype("f8"))


def test_pieces_of_one_shape_run_as_a_batch() -> None:
    gate = Gate()
    seen: list[tuple[int, ...]] = []

    def double(x: Any) -> Any:
        seen.append(x.shape)
        return gate(x) * 2

    flow = Flow(inputs="x", outputs="y", workers=1).function(double, "x", "y", name="double", max_batch=4)
    with flow:
        arrays = [np.full((rows, size), i, np.float32) for i, (rows, size) in enumerate(
            [(1, 2), (1, 2), (1, 3), (2, 2), (1, 2), (1, 2), (1, 3), (1, 2)])]  # fmt: skip
        tasks = [flow.enqueue(x=arrays[0])]
        assert gate.begun.acquire(timeout=LONG)
        tasks += [flow.enqueue(x=a) for a in arrays[1:]]
        gate.open.set()
        for task, array in zip(tasks, arrays, strict=True):
            np.testing.assert_array_equal(task.result(LONG)["y"], array * 2)
    assert seen == [(1, 2), (5, 2), (2, 3), (1, 2)]
    assert flow.statistics().nodes["double"].batches == {1: 2, 2: 1, 4: 1}


def test_pieces_share_a_batch_where_their_other_inputs_are_equal() -> None:
    rows = np.zeros((1, 2))

    def key(other: Any) -> Any:
        return key_of({"x": rows, "other": other}, ["x"])

    assert key(np.zeros((2, 3))) == key(np.zeros((2, 3)))
    assert key(np.zeros((2, 3))) != key(np.zeros((3, 2))), "in shape, too"


def test_the_first_of_a_batch_waits_for_others() -> None:
    flow = Flow(inputs="x", outputs="y", workers=2)
    flow.function(lambda x: x, "x", "y", name="n", max_batch=3, max_wait=LONG)
    with flow:
        tasks = [flow.submit(x=np.zeros((1, 1))) for _ in range(3)]
        assert all(t.result(LONG / 2)["y"].shape == (1, 1) for t in tasks)
    assert flow.statistics().nodes["n"].batches == {3: 1}


def test_the_first_of_a_batch_does_not_wait_for_ever() -> None:
    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(lambda x: x, "x", "y", name="n", max_batch=3, max_wait=0.01)
    with flow:
        assert flow(x=np.zeros((1, 1)))["y"].shape == (1, 1)
    assert flow.statistics().nodes["n"].waiting_s["p50"] >= 0.01


def test_batches_of_a_model_give_what_single_runs_give() -> None:
    flow = Flow(inputs="image", outputs="p", workers=1)
    flow.model(DIGITS, "image", "p", name="digits", max_batch=8, max_wait=0.05, threads=1)
    session = bn.compile(DIGITS, threads=1)
    with flow:
        tasks = [flow.submit(image=images(1, i)) for i in range(11)]
        for i, task in enumerate(tasks):
            np.testing.assert_allclose(task.result(LONG)["p"], np.asarray(session(images(1, i))), rtol=1e-5, atol=1e-6)
    batches = flow.statistics().nodes["digits"].batches
    assert all(size in (1, 2, 4, 8) for size in batches)
    assert max(batches) == 8


def test_rows_of_different_lengths_run_together(tmp_path: Path) -> None:
    path, options = softmax(tmp_path / "m.onnx"), {"max_batch": 8, "max_wait": LONG}
    flow = Flow(inputs="x", outputs="y", workers=1).model(path, "x", "y", name="m", ragged=True, **options)
    given = [np.random.default_rng(i).normal(size=(1 + i % 2, 1 + i % 3)).astype("f4") for i in range(8)]
    session = bn.compile(path)
    with flow:
        for x, task in zip(given, [flow.submit(x=x) for x in given], strict=True):
            np.testing.assert_allclose(task.result(LONG)["y"], np.asarray(session(x)), rtol=1e-6)
    assert flow.statistics().nodes["m"].batches == {8: 1}
    with pytest.raises(FlowError, match="ragged: got it with max_batch 1"):
        Flow(inputs="x", outputs="y").model(path, "x", "y", ragged=True)
    with pytest.raises(FlowError, match=r"ragged: got rows of \('x',\), wanted them of all inputs, and no pad"):
        Flow(inputs="x", outputs="y").model(path, "x", "y", ragged=True, pad={"x": 0}, **options)
    with pytest.raises(FlowError, match="ragged: got True for a function"):
        Flow(inputs="x", outputs="y").function(abs, "x", "y", ragged=True, max_batch=2)


def test_a_batch_that_fails_fails_only_who_is_at_fault() -> None:
    def node(x: Any) -> Any:
        if (x < 0).any():
            raise ValueError("negative")
        return x

    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(node, "x", "y", name="n", max_batch=4, max_wait=LONG)
    with flow:
        tasks = [flow.submit(x=np.full((1,), v)) for v in (1, -1, 2, 3)]
        assert "negative" in str(tasks[1].exception(LONG))
        assert [int(t.result(LONG)["y"][0]) for t in (tasks[0], tasks[2], tasks[3])] == [1, 2, 3]


def test_results_that_cannot_be_taken_apart_are_an_error() -> None:
    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(lambda x: x.sum(keepdims=True), "x", "y", name="n", max_batch=2, max_wait=LONG)
    with flow:
        tasks = [flow.submit(x=np.ones((1,))) for _ in range(2)]
        for task in tasks:
            with pytest.raises(FlowError, match=r"node 'n': output 'y': got \(1,\) for a batch of 2 .* no max_batch"):
                task.result(LONG)
        with pytest.raises(bn.ShapeError, match="node 'n': input 'x': got a list"):
            flow(x=[1])


@pytest.mark.parametrize("how", [{"workers": 2}, {"copies": 2}])
def test_lists_are_taken_item_by_item(how: dict[str, int]) -> None:
    flow = Flow(inputs=["page", "scale"], outputs="texts", **how)  # type: ignore[arg-type]
    flow.function(lambda page: [np.full((1, 2), ord(c)) for c in page], "page", "crops", name="crop")
    flow.function(lambda x: x + 0, "crops", "read", name="read", each="crops", max_batch=4)
    flow.function(
        lambda p, scale: chr(p[0, 0]) * scale, ["read", "scale"], "letters", name="letter", each="read",
    ).function("".join, "letters", "texts", name="join")  # fmt: skip
    with flow:
        tasks = [flow.submit(page=page, scale=i) for i, page in enumerate(["abc", "", "hello world"], 1)]
        assert [t.result(LONG)["texts"] for t in tasks] == ["abc", "", "".join(c * 3 for c in "hello world")]


def test_an_item_that_fails_fails_its_task() -> None:
    flow = Flow(inputs="xs", outputs="ys").function(lambda x: 1 / x, "xs", "ys", name="n", each="xs")
    with flow:
        with pytest.raises(FlowError, match="node 'n': ZeroDivisionError"):
            flow(xs=[1, 0, 2, 0])
        assert flow(xs=[1, 2]) == {"ys": [1.0, 0.5]}
        with pytest.raises(FlowError, match="node 'n': input 'xs': got a int, wanted a list"):
            flow(xs=3)


def counted(x: int, seen: int) -> tuple[tuple[int, int], int]:
    if x < 0:
        raise ValueError("bad")
    return (x, seen), seen + 1


@pytest.mark.parametrize("how", [{"workers": 4}, {"copies": 4}])
def test_a_stream_keeps_its_state_and_its_order(how: dict[str, int]) -> None:
    flow = Flow(inputs="x", outputs="y", capacity=400, **how)  # type: ignore[arg-type]
    flow.function(lambda x: x, "x", "z", name="before")
    flow.function(counted, "z", "y", name="count", states={"seen": State("next", 0)})
    with flow:
        tasks = [flow.enqueue(x=i, stream=i % 7) for i in range(200)]
        for i, task in enumerate(tasks):
            assert task.result(LONG)["y"] == (i, i // 7)
        assert flow.submit(x=1).result(LONG)["y"] == (1, 0)  # no stream: it begins anew
        flow.end_stream(3)
        assert flow.submit(x=1, stream=3).result(LONG)["y"] == (1, 0)
        assert flow.submit(x=1, stream=4).result(LONG)["y"] == (1, 28)


def test_a_task_that_fails_or_is_cancelled_leaves_its_stream_as_it_was() -> None:
    gate = Gate()
    flow = Flow(inputs="x", outputs="y", workers=3)
    flow.function(lambda x: gate(x) if x == 100 else x, "x", "z", name="before")
    flow.function(counted, "z", "y", name="count", states={"seen": State("next", 0)})
    with flow:
        assert flow.submit(x=0, stream="s").result(LONG)["y"] == (0, 0)
        slow = flow.submit(x=100, stream="s")
        parked = [flow.submit(x=x, stream="s") for x in (1, -1, 2, 3)]
        other = flow.submit(x=5, stream="t")
        assert other.result(LONG)["y"] == (5, 0)
        assert parked[2].cancel()
        assert not any(t.done() for t in (slow, *parked[:2], parked[3]))
        assert slow.cancel()  # those behind it go on
        assert parked[0].result(LONG)["y"] == (1, 1)
        assert "bad" in str(parked[1].exception(LONG))
        assert parked[3].result(LONG)["y"] == (3, 2)
        gate.open.set()


@pytest.mark.parametrize("how", [{"workers": 3}, {"copies": 3}])
def test_a_model_that_keeps_variables_keeps_them_for_each_stream(how: dict[str, int]) -> None:
    """What the model keeps grows by x with each run, and y is twice that."""
    flow = Flow(inputs="x", outputs="y", **how)  # type: ignore[arg-type]
    flow.model(counter(), ["x"], name="sum", fixed={"unused": ONE})
    with flow:
        tasks = [flow.submit(x=ONE * (key + 1), stream=key) for _ in range(5) for key in range(3)]
        for i, task in enumerate(tasks):
            assert task.result(LONG)["y"].tolist() == [2 * (i // 3 + 1) * (i % 3 + 1)] * 3
        assert flow.submit(x=ONE).result(LONG)["y"].tolist() == [2] * 3
        flow.end_stream(0)
        assert flow.submit(x=ONE, stream=0).result(LONG)["y"].tolist() == [2] * 3


def test_a_worker_is_pinned() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the system does not pin threads")
    cpu = min(os.sched_getaffinity(0))
    flow = Flow(inputs="x", outputs="y", workers=Workers(cpus=[cpu, {cpu}]))
    flow.function(lambda x: (os.sched_getaffinity(0), threading.get_ident()), "x", "y", name="n")
    with flow:
        assert all(flow(x=0)["y"][0] == {cpu} for _ in range(4))
    assert os.sched_getaffinity(0) >= {cpu}


def test_a_trace_and_statistics_show_who_worked(tmp_path: Path) -> None:
    flow = Flow("mine", inputs="x", outputs="z", workers=1)
    flow.function(lambda x: x, "x", "y", name="a").function(lambda y: y, "y", "z", name="b", workers=2)
    flow.trace()
    with flow:
        for _ in range(5):
            flow(x=1)
    flow.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sorted(e["name"] for e in events if e["ph"] == "X") == ["a"] * 5 + ["b"] * 5
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} <= {"workers 0", "b 0", "b 1"}
    found = flow.statistics()
    assert (found.tasks, found.done, found.failed) == (5, 5, 0)
    assert found.nodes["a"].runs == 5
    assert set(found.latency_s) == {"p50", "p90", "p99"}
    assert "5 tasks: 5 done" in found.table()


def test_copies_count_their_nodes(tmp_path: Path) -> None:
    flow = Flow(inputs="x", outputs="y", copies=2).function(lambda x: x, "x", "y", name="a")
    flow.trace()
    with flow:
        for _ in range(3):
            flow(x=1)
    assert flow.statistics().nodes["a"].runs == 3


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda f: f.function(len, "nothing", "y"), "node 'len': inputs: got ['nothing'], that nothing makes"),
        (lambda f: f.function(len, "b", "y", name="1").function(len, "y", "b", name="2"), "that depend on the node"),
        (lambda f: f.function(len, "x", "other"), "outputs: got ['y'], wanted values of ['other', 'x']"),
        (lambda f: f.function(len, "x", "x"), "node 'len': output 'x': got a value that is made already"),
        (lambda f: f.function(len, "x", "y").function(len, "x", "z"), "of this name, wanted another: name="),
        (lambda f: f.function(3, "x", "y", name="n"), "node 'n': function: got 3, wanted a function"),
        (lambda f: f.function(len, "x", "y", max_batch=0), "node 'len': max_batch: got 0, wanted a whole number"),
        (lambda f: f.function(len, "x", "y", batch=2), "node 'len': options: got ['batch'], wanted some of"),
        (lambda f: f.function(len, "x", "y", max_wait=1), "max_wait: got a time to wait for others with max_batch 1"),
        (lambda f: f.function(len, "x", "y", each="z"), "node 'len': each: got 'z', wanted one of the inputs ['x']"),
        (lambda f: f.function(len, {"a": ["x"]}, "y"), "node 'len': inputs: got {'a': ['x']}, wanted names of values"),
        (lambda f: f.function(len, "x", {"y": {}}), "node 'len': outputs: got {'y': {}}, wanted names of values"),
        (lambda f: f.function(len, "x", "y", workers=0), "workers: got 0, wanted a whole number above 0"),
        (lambda f: f.function(len, "x", "y", workers=Workers(cpus=[])), "workers: cpus: got []"),
        (lambda f: f.function(len, "x", "y", types={"y": "f99[2]"}), "type of 'y': got 'f99[2]', wanted a text"),
        (lambda f: f.model(DIGITS, "x", {"q": "y"}, name="m"), "node 'm': outputs: got 'q', wanted one of"),
        (lambda f: f.model(DIGITS, ["x", "x2"], "y", name="m"), "node 'm': inputs: got 2, wanted at most 1"),
        (lambda f: f.function(len, "x", "y", states={"s": "t"}, max_batch=2), "states: got them with max_batch"),
        (
            lambda f: f.function(len, "x", "z", types={"z": "f32[n,3,8,8]"}).model(DIGITS, "z", "y", name="m"),
            "node 'm': input 'image': got f32[n,3,8,8] from node 'len', wanted f32[batch,1,8,8]",
        ),
        (
            lambda f: f.model(DIGITS, "x", "z", name="a").model(DIGITS, "z", "y", name="m"),
            "node 'm': input 'image': got f32[batch,10] from node 'a', wanted f32[batch,1,8,8]",
        ),
    ],
)  # fmt: skip
def test_a_graph_that_is_not_sound_is_refused(build: Any, said: str) -> None:
    flow = Flow("g", inputs="x", outputs="y")
    with pytest.raises(FlowError) as raised:
        build(flow).submit(x=1)
    assert said in str(raised.value)
    assert str(raised.value).startswith("flow 'g': ")


def test_inputs_of_a_task_are_checked() -> None:
    with Flow("g", inputs=["a", "b"], outputs="a") as flow:
        with pytest.raises(FlowError, match=r"inputs: got \['a'\], wanted \['a', 'b'\]"):
            flow.submit(a=1)
        assert flow(a=1, b=2) == {"a": 1}
        with pytest.raises(FlowError, match="after the first task"):
            flow.function(len, "a", "c")
