"""Requests that run as one: batches, padding, priorities, deadlines, queues that are full, clients that go away."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.errors import DataError
from bolt_numba.flow import Flow, FlowDeadlineError, FlowError, FlowFullError
from bolt_numba.serve import ModelSettings, RequestError, SettingsError, models
from bolt_numba.serve.errors import kind_of
from bolt_numba.serve.models import QUICK_S, RequestTerms, ServedModel, StoredVersion
from tests.small import add, look_up, softmax


def served(path: Path, **settings: Any) -> ServedModel:
    return ServedModel("m", "1", StoredVersion(path, None, ModelSettings(**settings), ()))


def together(model: ServedModel, requests: list[dict[str, Any]], **parameters: Any) -> list[Any]:
    """What requests that come at once get: results, or errors."""

    async def main() -> list[Any]:
        asked = [model.infer(feeds, [], RequestTerms(parameters)) for feeds in requests]
        found = await asyncio.gather(*asked, return_exceptions=True)
        await model.retire()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_answers_of_batches_are_those_of_single_requests(
    numerics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rng = softmax(tmp_path / "m.onnx"), np.random.default_rng(0)
    requests = [{"x": rng.normal(size=(1 + i % 3, 4 + i % 2)).astype("f4")} for i in range(40)]
    model = served(path, max_batch=8, max_wait_us=2000, compile={"numerics": numerics})
    monkeypatch.setattr(models, "QUICK_S", 0.0)  # no quick run
    found = together(model, requests)
    alone = bn.compile(path, numerics=numerics)
    for feeds, made in zip(requests, found, strict=True):
        assert np.array_equal(made["y"], alone(feeds)["y"])
    stats = model.flow.statistics().nodes["m"]
    assert stats.pieces == 40
    assert 1 < max(stats.batches) <= 8


def test_requests_of_other_shapes_run_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(softmax(tmp_path / "m.onnx"), max_batch=4, max_wait_us=100_000)
    monkeypatch.setattr(models, "QUICK_S", 0.0)  # no quick run
    together(model, [{"x": np.ones((1, 2 + i % 2), "f4")} for i in range(4)])
    assert model.flow.statistics().nodes["m"].batches == {2: 2}


def test_a_request_at_fault_does_not_spoil_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(look_up(tmp_path / "m.onnx", [10, 20]), max_batch=4, max_wait_us=100_000)
    monkeypatch.setattr(models, "QUICK_S", 0.0)  # no quick run
    found = together(model, [{"x": np.full((1, 1), i, "f4"), "i": np.array([i])} for i in (0, 1, 7, 0)])
    assert isinstance(found[2], DataError)
    assert str(found[2]).startswith("model 'm': ")
    assert [float(found[i]["y"][0, 0]) for i in (0, 1, 3)] == [10, 21, 10]
    assert max(model.flow.statistics().nodes["m"].batches) == 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_rows_of_other_lengths_are_filled_up(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> None:
    path = tmp_path_factory.mktemp("pad") / "m.onnx"
    add(path, "n", "m")
    model = served(path, max_batch=4, max_wait_us=1000, pad={"a": 0, "b": 0.5})
    requests = [{"a": np.full((1, n), n, "f4"), "b": np.arange(n, dtype="f4")[None]} for n in lengths]
    for feeds, made in zip(requests, together(model, requests), strict=True):
        assert np.array_equal(made["y"], feeds["a"] + feeds["b"])


def test_ragged_rows_run_together_and_each_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(softmax(tmp_path / "m.onnx"), max_batch=4, max_wait_us=100_000, ragged=True)
    model.expected.clear()  # no quick run
    ran: list[int] = []
    model.flow.engine.watch = lambda waits, seconds: ran.append(len(waits))
    (node,) = model.flow.nodes
    alone, run = list[Any](), node.run
    monkeypatch.setattr(node, "run", lambda feeds, *args: alone.append(feeds["x"].shape) or run(feeds, *args))
    shapes = [(1, 1), (0, 3), (1, 2), (2, 4)]
    made = together(model, [{"x": np.ones(shape, "f4")} for shape in shapes])
    assert ran == [4]
    assert alone == [(0, 3)]
    assert [found["y"].shape for found in made] == shapes
    assert all(np.allclose(found["y"], 1 / n) for found, (_, n) in zip(made, shapes, strict=True))
    with pytest.raises(SettingsError, match="ragged: got it with max_batch 1"):
        ModelSettings(ragged=True)


def test_what_is_filled_up_is_what_pad_says(tmp_path: Path) -> None:
    """A softmax sees what its rows are filled up with: nothing of it where that is very small."""
    path, rows = softmax(tmp_path / "m.onnx"), [{"x": np.ones((1, n), "f4")} for n in (1, 2, 4, 4, 4)]
    for fill, wanted in ((-1e9, 0.5), (1.0, 0.25)):
        model = served(path, max_batch=4, max_wait_us=100_000, pad={"x": fill})
        model.expected.clear()  # no quick run
        made = together(model, rows[1:])
        assert made[0]["y"].shape == (1, 2)
        assert np.allclose(made[0]["y"], wanted)


def test_padding_that_cannot_be_cut_off_is_refused(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "k"])
    graph = helper.make_graph([helper.make_node("Concat", ["x", "x"], ["y"], axis=1)], "two", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(FlowError, match="pad: output 'y'"):
        served(tmp_path / "m.onnx", max_batch=4, pad={"x": 0})
    with pytest.raises(FlowError, match="pad"):
        served(softmax(tmp_path / "s.onnx"), max_batch=4, pad={"other": 0})
    with pytest.raises(FlowError, match=r"pad: got .* for a function"):
        Flow(inputs="x", outputs="y").function(abs, "x", "y", max_batch=4, pad={"x": 0})


def slow_flow(seconds: float, **options: Any) -> Callable[[Path], ServedModel]:
    def make(folder: Path) -> ServedModel:
        module = "late_" + folder.name
        (folder / f"{module}.py").write_text(
            "import time\n\nDONE = []\n\n\n"
            f"def f(x):\n    time.sleep({seconds})\n    DONE.append(float(x[0]))\n    return x\n"
        )
        (folder / "flow.toml").write_text(
            "inputs = { x = 'f32[n]' }\noutputs = 'y'\nworkers = 1\n"
            f"[nodes.f]\nfunction = '{module}:f'\ninputs = 'x'\noutputs = 'y'\n"
        )
        return ServedModel("m", "1", StoredVersion(folder / "flow.toml", None, ModelSettings(**options), ()))

    return make


def test_requests_beyond_the_queue_are_refused(tmp_path: Path) -> None:
    model = slow_flow(0.05, queue=3)(tmp_path)
    found = together(model, [{"x": np.full(1, i, "f4")} for i in range(10)])
    refused = [e for e in found if isinstance(e, FlowFullError)]
    assert len(refused) == 7
    assert {kind_of(e) for e in refused} == {"busy"}
    assert [float(made["y"][0]) for made in found[:3]] == [0, 1, 2]


def test_deadlines_end_requests(tmp_path: Path) -> None:
    model = slow_flow(0.3)(tmp_path)
    begin = time.monotonic()
    found = together(model, [{"x": np.zeros(1, "f4")}] * 3, timeout=100_000)
    assert [kind_of(e) for e in found] == ["late"] * 3
    assert all(isinstance(e, FlowDeadlineError) for e in found)
    assert time.monotonic() - begin < 5


def test_lower_priorities_go_first(tmp_path: Path) -> None:
    model = slow_flow(0.05)(tmp_path)

    async def main() -> list[float]:
        numbers = [2, 3, 2, 1, 3, 1]
        await asyncio.gather(
            *[model.infer({"x": np.full(1, p, "f4")}, [], RequestTerms({"priority": p})) for p in numbers]
        )
        await model.retire()
        return list(sys.modules["late_" + tmp_path.name].DONE[-len(numbers) :])

    done = asyncio.run(main())
    assert done[1:] == sorted(done[1:])


def test_a_request_that_is_cancelled_leaves_the_others(tmp_path: Path) -> None:
    model = slow_flow(0.1)(tmp_path)

    async def main() -> tuple[Any, ...]:
        tasks = [asyncio.ensure_future(model.infer({"x": np.full(1, i, "f4")}, [], RequestTerms({}))) for i in range(4)]
        await asyncio.sleep(0.02)
        tasks[2].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await model.retire()
        return tuple(found)

    found = asyncio.run(main())
    assert isinstance(found[2], asyncio.CancelledError)
    assert [float(found[i]["y"][0]) for i in (0, 1, 3)] == [0, 1, 3]
    assert sys.modules["late_" + tmp_path.name].DONE == [0, 1, 3]
    assert model.under_way == 0


def test_quick_models_run_where_the_request_came(tmp_path: Path) -> None:
    model = served(add(tmp_path / "m.onnx"))
    model.expected = {((1, 3), (1, 3)): 0.0}
    x = np.ones((1, 3), "f4")
    assert np.array_equal(together(model, [{"a": x, "b": x}])[0]["y"], x + x)
    assert model.flow.statistics().tasks == 0


def test_a_run_that_was_held_up_sends_few_away(tmp_path: Path) -> None:
    model = served(add(tmp_path / "m.onnx"))
    key = ((1, 3), (1, 3))
    model.expected = {key: QUICK_S / 2}
    for seconds, is_quick in ((1.0, True), (QUICK_S / 2, True), *[(1.0, True)] * 6, (1.0, False)):
        model.latest = seconds
        model._learn(key)
        assert (model.expected[key] < QUICK_S) == is_quick


@pytest.mark.parametrize(("settings", "wanted"), [({}, 3), ({"instances": 1}, 1), ({"instances": 2}, 2)])
def test_as_many_runs_at_once_as_a_run_has_threads(settings: dict[str, Any], wanted: int, tmp_path: Path) -> None:
    told = {"threads": 3, "device": ["cpu"]}  # as the command line tells the device
    model = served(add(tmp_path / "m.onnx"), compile=told, **settings)
    assert sum(len(crew.workers) for crew in model.flow.engine.crews) == wanted


def test_wrong_names_are_told(tmp_path: Path) -> None:
    (error,) = together(served(add(tmp_path / "m.onnx")), [{"a": np.ones((1, 3), "f4")}])
    assert isinstance(error, RequestError)
    assert "wanted ['a', 'b']" in str(error)


def summing(folder: Path, seconds: float = 0.0) -> ServedModel:
    """A flow that keeps a sum for each sequence."""
    module = "sums_" + folder.name
    (folder / f"{module}.py").write_text(
        f"import time\n\n\ndef f(x, total):\n    time.sleep({seconds})\n    return total + x, total + x\n"
    )
    (folder / "flow.toml").write_text(
        "inputs = { x = 'f32[n]' }\noutputs = 'y'\n"
        f"[nodes.f]\nfunction = '{module}:f'\ninputs = 'x'\noutputs = 'y'\n"
        "states = { total = { output = 'total', initial = 0.0 } }\n"
    )
    return ServedModel("m", "1", StoredVersion(folder / "flow.toml", None, ModelSettings(), ()))


def test_sequences_keep_their_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = summing(tmp_path)

    async def main() -> list[Any]:
        async def total(key: Any, x: float, **more: Any) -> Any:
            terms = RequestTerms({"sequence_id": key, **more})
            try:
                return float((await model.infer({"x": np.full(1, x, "f4")}, [], terms))["y"][0])
            except RequestError as error:
                return kind_of(error)

        found = [await total(key, x) for key, x in ((1, 1), ("a", 10), (1, 2), ("a", 20))]
        found += [await total(1, 5, sequence_start=True), await total(1, 1, sequence_end=True), await total(1, 1)]
        found += [await total(None, 1), await total([1], 1)]
        monkeypatch.setattr(models, "MOST_SEQUENCES", 2)
        found.append(await total("new", 1))
        monkeypatch.setattr(models, "IDLE_S", -1.0)
        found.append(await total("new", 1))
        await model.retire()
        return found

    assert asyncio.run(main()) == [1, 10, 3, 30, 5, 6, 1, "invalid", "invalid", "busy", 1]
    assert list(model.sequences) == ["new"]


def test_a_sequence_goes_on_without_what_was_cancelled(tmp_path: Path) -> None:
    model = summing(tmp_path, 0.1)

    async def main() -> list[Any]:
        asked = [
            asyncio.ensure_future(model.infer({"x": np.full(1, x, "f4")}, [], RequestTerms({"sequence_id": 1})))
            for x in (1, 2, 4)
        ]
        await asyncio.sleep(0.02)
        asked[1].cancel()
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 30)
        await model.retire()
        return found

    found = asyncio.run(main())
    assert isinstance(found[1], asyncio.CancelledError)
    assert [float(found[i]["y"][0]) for i in (0, 2)] == [1, 5]


def test_a_sequence_ends_with_the_request_that_says_so(tmp_path: Path) -> None:
    """Also where a request comes before that one is answered."""
    model = summing(tmp_path)

    async def main() -> list[float]:
        asked = [
            model.infer({"x": np.full(1, x, "f4")}, [], RequestTerms({"sequence_id": 1, "sequence_end": ends}))
            for x, ends in ((1, False), (2, True), (4, False), (8, False))
        ]
        found = [float(made["y"][0]) for made in await asyncio.gather(*asked)]
        await model.retire()
        return found

    assert asyncio.run(main()) == [1, 3, 4, 12]


def test_shapes_that_were_never_run_go_to_another_thread(tmp_path: Path) -> None:
    model = served(add(tmp_path / "m.onnx"))
    model.expected = {((1, 3), (1, 3)): 0.0}
    x = np.ones((5, 3), "f4")
    assert np.array_equal(together(model, [{"a": x, "b": x}])[0]["y"], x + x)
    assert model.flow.statistics().tasks == 1
    assert model.expected.keys() == {((1, 3), (1, 3)), ((5, 3), (5, 3))}
