"""Weights are in memory once: given up when they are packed, read again from the file when they are needed again."""

from __future__ import annotations

import gc
import pickle
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.base.files.mapped import LEAST_MAPPED, map_of
from bolt_numba.errors import InternalError, InvalidModelError
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels import registry
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Relu
from bolt_numba.passes import pipeline
from bolt_numba.types import Array
from tests.rule_cases import graph_of


def _file(folder: Path, *, batch: int | str, name: str = "model.onnx", seed: int = 0) -> Path:
    """Two convolutions with batch normalization (weights made anew by the passes), a product, a table that is read."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {
        "w1": rng.standard_normal((64, 8, 3, 3)), "w2": rng.standard_normal((64, 64, 5, 5)),
        "m": rng.standard_normal((64, 512)), "table": rng.standard_normal((512, 1024)),
        **{f"{p}{i}": 1 + rng.random(64) for p in "gbav" for i in (1, 2)},
    }  # fmt: skip
    norm = [("w1", "x", 1), ("w2", "r1", 2)]
    nodes = []
    for w, x, i in norm:
        nodes += [
            helper.make_node("Conv", [x, w], [f"c{i}"], pads=[int(w == "w1") or 2] * 4, name=f"conv{i}"),
            helper.make_node("BatchNormalization", [f"c{i}", f"g{i}", f"b{i}", f"a{i}", f"v{i}"], [f"n{i}"]),
            helper.make_node("Relu", [f"n{i}"], [f"r{i}"]),
        ]
    nodes += [
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]), helper.make_node("ArgMax", ["y"], ["i"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "i"], ["z"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, (batch, 8, 12, 12))],
        [helper.make_tensor_value_info(n, 1, None) for n in "yz"],
        [numpy_helper.from_array(a.astype("f4"), n) for n, a in weights.items()],
    )  # fmt: skip
    path = folder / name
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _x(batch: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(1).standard_normal((batch, 8, 12, 12), np.float32)}


def assert_same(got: list[Array], want: list[Array]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_stay_the_same_through_everything_that_needs_the_weights_again(tmp_path: Path) -> None:
    path = _file(tmp_path, batch="n")
    session = bn.compile(path, threads=1)
    one, three = session(_x(1)), session(_x(3))
    fresh = bn.compile(path, threads=1)
    assert_same(list(three), list(fresh(_x(3))))
    assert_same(list(one), list(fresh(_x(1))))
    assert session.run(["y", "r1"], _x(1))[1].shape == (1, 64, 12, 12)
    assert_same(list(pickle.loads(pickle.dumps(session))(_x(2))), list(fresh(_x(2))))
    session.close()
    assert_same(list(session(_x(1))), list(one))
    assert bn.verify(path, feeds=_x(1)).ok


def test_weights_packed_by_the_first_plan_serve_the_second(tmp_path: Path) -> None:
    session = bn.compile(_file(tmp_path, batch="n"), threads=1)
    session(_x(1))
    packed = session.memory()["packed"]
    session(_x(1))
    session(_x(2))
    assert session.memory()["packed"] == packed


def test_another_shape_needs_no_weights_when_it_wants_them_packed_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, batch="n")
    session, want = bn.compile(path, threads=1), bn.compile(path, threads=1)(_x(2))
    session(_x(1))
    monkeypatch.setattr("bolt_numba.passes.pipeline.run_pipeline", lambda graph: pytest.fail("the passes ran again"))
    assert_same(list(session(_x(2))), list(want))


def _passes_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that the passes run from now on."""
    runs: list[int] = []
    plain = pipeline.run_pipeline

    def counted(graph: bn.Graph, **how: Any) -> bn.Graph:
        runs.append(len(runs))
        return plain(graph, **how)

    monkeypatch.setattr("bolt_numba.passes.pipeline.run_pipeline", counted)
    return runs


def _computed(session: bn.Session) -> dict[str, weakref.ref[Array]]:
    """Large constants that are in no file."""
    values = [v for node in session._runner.region.nodes for v in node.inputs if v is not None]
    arrays = {v.name: v.const for v in values if v.const is not None and v.const.nbytes >= LEAST_MAPPED}
    return {name: weakref.ref(a) for name, a in arrays.items() if map_of(a) is None}


def test_what_the_passes_computed_leaves_memory_when_it_is_packed(tmp_path: Path) -> None:
    session = bn.compile(_file(tmp_path, batch="n"), threads=1)
    computed = _computed(session)
    assert computed
    assert all(reference() is not None for reference in computed.values())
    session(_x(1))
    gc.collect()
    assert [name for name, reference in computed.items() if reference() is not None] == []


def test_another_layout_is_packed_of_weights_that_the_passes_compute_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, batch="n")
    session, want = bn.compile(path, threads=1), bn.compile(path, threads=1)(_x(2))
    session(_x(1))
    session._packs._made.clear()
    session._runner.region.choices.clear()
    runs = _passes_run(monkeypatch)
    assert_same(list(session(_x(2))), list(want))
    assert len(runs) == 1
    assert not session._packs._computed
    session(_x(3))
    assert len(runs) == 1


def test_a_shape_that_reads_weights_as_they_are_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that packs its weights runs one shape, the reference another."""
    path = _file(tmp_path, batch="n")
    want = bn.compile(path, threads=1)(_x(2))
    entries = registry.KERNELS[Conv, "cpu"]
    alone = [replace(e, accepts=lambda op, ins, e=e: ins[0].dims[0] == 1 and e.accepts(op, ins)) for e in entries]
    monkeypatch.setitem(registry.KERNELS, (Conv, "cpu"), alone)
    session = bn.compile(path, threads=1)
    session(_x(1))
    runs = _passes_run(monkeypatch)
    for a, b in zip(session(_x(2)), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert len(runs) == 1
    session(_x(3))
    assert len(runs) == 1, "what is read as it is stays"
    assert "reference" in {row["runner"] for row in session.report()}


def test_passes_that_give_another_graph_are_an_error_and_no_other_weights(tmp_path: Path) -> None:
    session = bn.compile(_file(tmp_path, batch="n"), threads=1)
    session(_x(1))
    packs, region = session._packs, session._runner.region
    packs._made.clear()
    region.choices.clear()
    for graph in (bn.Graph(), session.graph):
        packs._compute = lambda graph=graph: graph  # type: ignore[misc]
        with pytest.raises(InternalError, match="from the passes, wanted"):
            session(_x(2))


def test_a_weight_that_two_nodes_read_is_packed_once() -> None:
    w = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    graph, x = graph_of(lambda b, x: b(MatMul(), b(Relu(), b(MatMul(), x, w)), w), {"x": ("n", 256)}), np.ones((2, 256))
    session = bn.compile(graph, threads=1)
    session(x.astype("f4"))
    assert w.nbytes <= session.memory()["packed"] < 1.5 * w.nbytes
    first, *_, last = (row["packs"] for row in session.report())
    assert first == last
    assert [pack.startswith("Pack[('panels'") for pack in first] == [True]


def test_the_optimised_graph_can_be_looked_at_after_a_run(tmp_path: Path) -> None:
    session = bn.compile(_file(tmp_path, batch=1), threads=1)
    want = session(_x(1))
    graph = session.optimised
    names = {row["node"] for row in session.report()}
    assert names <= {n.name for n in graph.nodes}
    session.close()
    session(_x(1))
    got = interpret(graph, _x(1))
    for name in "yz":
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4)


def test_a_file_that_was_written_to_is_not_read_again(tmp_path: Path) -> None:
    path = _file(tmp_path, batch="n")
    session = bn.compile(path, threads=1)
    weight = next(v.const for v in session.graph.constants() if v.const is not None and v.const.nbytes > 1 << 16)
    assert map_of(weight) is not None, "the file is large enough to be mapped"
    before = session(_x(1))
    path.write_bytes(path.read_bytes())
    assert_same(list(session(_x(1))), list(before))
    session.close()
    with pytest.raises(InvalidModelError, match=r"model.onnx: was written to"):
        session(_x(2))


def test_a_file_that_was_replaced_is_of_no_concern(tmp_path: Path) -> None:
    path = _file(tmp_path, batch="n")
    session = bn.compile(path, threads=1)
    want = bn.compile(path, threads=1)(_x(2))
    session(_x(1))
    _file(tmp_path, batch="n", name="other.onnx", seed=5).replace(path)
    assert_same(list(session(_x(2))), list(want))


def test_runs_read_nothing_from_a_file_that_others_may_write_to(tmp_path: Path) -> None:
    path = _file(tmp_path, batch="n")
    session = bn.compile(path, threads=1)
    want = [session(_x(1)), session(_x(3))]
    segments: list[Any] = [s for p in session._runner.prepared.values() for s in p.plan.segments]
    arrays = [a for segment in segments for a in segment.executable.links.arrays]
    tables = {id(a) for a in arrays if a.shape == (512, 1024)}
    assert len(tables) == 1, "plans share what they read as it is"
    assert all(map_of(a) is None for a in arrays)
    with path.open("r+b") as file:
        file.truncate(100)
    assert_same(list(session(_x(1))), list(want[0]))
    assert_same(list(session(_x(3))), list(want[1]))
