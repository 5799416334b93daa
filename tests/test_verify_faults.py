"""Faults that `verify` has to find, and differences that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.arbitration import AMPLIFIED, DRAWN, INPUTS_DIFFER, distance, largest
from bolt_numba.cli.app import app
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.random import RandomNormal
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceMean, Softmax
from bolt_numba.ops.control import If
from bolt_numba.ops.data.sequence import SequenceConstruct
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul, Reciprocal, Relu, Sqrt, Sub
from bolt_numba.sessions.session import Session
from bolt_numba.types import F32, F64, I64, U8, TensorType


def network(pool: float = 1.0, bias: float = 0.0) -> Graph:
    """A classifier of 200 classes, each of which gets less than 0.02, with a pool and a bias that may be wrong."""
    graph, rng = Graph("net"), np.random.default_rng(3)
    x = graph.add_input("x", TensorType(F32, (1, 3, 16, 16)))
    b = Builder(graph)
    w = (rng.standard_normal((8, 3, 3, 3)) / 5).astype(F32)
    y = b(Conv(pads=(1, 1, 1, 1)), x, w, (np.arange(8) / 8 + bias).astype(F32), name="conv")
    y = b(AveragePool(kernel_shape=(4, 4), strides=(4, 4)), b(Relu(), y, name="relu"), name="right")
    y = b(Mul(), y, np.asarray(pool, F32), name="pool")
    y = b(ReduceMean(keepdims=0), y, np.array([2, 3], I64), name="mean")
    logits = b(MatMul(), y, rng.standard_normal((8, 200)).astype(F32) / 20, name="logits")
    graph.add_output(b(Softmax(), logits, name="classes"), "classes")
    return graph


def with_wrong_kernels(monkeypatch: pytest.MonkeyPatch, wrong: Graph) -> None:
    """Sessions compute ``wrong`` in place of the graph that they are given."""
    monkeypatch.setattr("bolt_numba.verification.Session", lambda graph, how: Session(wrong, how))


FAULTS = [({"pool": 1.02}, "pool"), ({"bias": 0.01}, "conv")]


@pytest.mark.parametrize(("wrong", "cause"), FAULTS, ids=["pool", "bias"])
@pytest.mark.parametrize("place", ["kernels", "reader"])
def test_a_fault_is_found_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: dict[str, float], cause: str, place: str
) -> None:
    """Though the last layer makes little of it; the reader's is one that only the other engine can tell."""
    surgery.save_onnx(network(), tmp_path / "net.onnx")
    if place == "kernels":
        with_wrong_kernels(monkeypatch, network(**wrong))
        against = "reference"
    else:
        pytest.importorskip("onnxruntime")
        monkeypatch.setattr("bolt_numba.verification.load", lambda *_, **__: network(**wrong))
        against = "onnxruntime"
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "net.onnx"), "--against", against, "--json"])
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["first_divergent"] == cause
    notes = {t["name"]: t["note"] for t in report["tensors"] if not t["ok"]}
    assert notes.pop(cause).endswith("first cause")
    assert notes
    assert all(note.endswith(f"follows from {cause}") for note in notes.values())


def test_the_output_alone_tells_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes get less than 0.02: a fault of 2 % of them is less than the absolute tolerance of other tensors."""
    right = network()
    with_wrong_kernels(monkeypatch, network(pool=1.05))
    report = bn.verify(right, "reference", intermediates=False)
    assert report.max_abs < 1e-4
    assert report.first_divergent == "pool"


def centred(gain: float = 1.0) -> Graph:
    """Rows that are nearly equal, over their deviation: what rounding left of them becomes large."""
    graph = Graph("norm")
    x = graph.add_input("x", TensorType(F32, (4, 64)))
    b = Builder(graph)
    mean = b(ReduceMean(), x, np.array([1], I64), name="mean")
    rest = b(Sub(), x, mean, name="rest")
    var = b(ReduceMean(), b(Mul(), rest, rest, name="squares"), np.array([1], I64), name="var")
    scale = b(Reciprocal(), b(Sqrt(), b(Add(), var, np.asarray(1e-16, F32), name="more"), name="root"), name="scale")
    graph.add_output(b(Mul(), b(Mul(), rest, np.asarray(gain, F32), name="gained"), scale, name="y"), "y")
    return graph


NEAR = {"x": (100 + 1e-3 * np.random.default_rng(5).standard_normal((4, 64))).astype(F32)}


def test_rounding_that_a_model_amplifies_is_no_fault() -> None:
    pytest.importorskip("onnxruntime")
    report = bn.verify(centred(), feeds=NEAR)
    assert report.ok
    assert AMPLIFIED in {c.explained for c in report.checks}
    assert report.float64 is not None
    assert "nearer to it" in str(report)


def test_a_fault_beside_amplified_rounding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with_wrong_kernels(monkeypatch, centred(gain=1.1))
    report = bn.verify(centred(), "reference", feeds=NEAR)
    assert report.first_divergent == "gained"


def drawing(b: Builder, x: Value) -> None:
    """Outputs of random numbers: floats, their places, a list of them, and what a branch drew."""
    noise = b(RandomNormal(), np.array([4, 64], I64), name="noise")
    b.graph.add_output(b(Add(), noise, x), "sum")
    b.graph.add_output(b(ArgMax(axis=1), noise), "place")
    b.graph.add_output(b(SequenceConstruct(), noise, x), "list")
    branch = Graph("branch")
    branch.add_output(Builder(branch)(RandomNormal(), np.array([4, 64], I64)), "drawn")
    b.graph.add_output(b(If(branch, branch), np.asarray(True)), "branched")


def test_random_numbers_are_no_rounding() -> None:
    """Two engines draw other numbers: neither is wrong, and what is computed of none is held against it as before."""
    graph = Graph("noise")
    x = graph.add_input("x", TensorType(F32, (4, 64)))
    b = Builder(graph)
    drawing(b, x)
    graph.add_output(b(Relu(), x), "plain")
    report = bn.verify(graph, "reference", feeds=NEAR)
    assert report.ok, str(report)
    outputs = {c.name: c.explained for c in report.checks if c.kind == "output"}
    assert outputs == dict.fromkeys(("sum", "place", "list", "branched"), DRAWN) | {"plain": ""}
    assert "nan" not in str(report)


@pytest.mark.parametrize("intermediates", [True, False])
def test_a_fault_behind_random_numbers_is_found(monkeypatch: pytest.MonkeyPatch, intermediates: bool) -> None:
    """Each engine is held against what it drew itself."""

    def noisy(gain: float) -> Graph:
        graph = Graph("noise")
        b = Builder(graph)
        noise = b(RandomNormal(), np.array([4, 64], I64), name="noise")
        graph.add_output(b(Relu(), b(Mul(), noise, np.asarray(gain, F32), name="gained"), name="y"), "y")
        return graph

    assert bn.verify(noisy(1.0), "reference", intermediates=intermediates).ok
    with_wrong_kernels(monkeypatch, noisy(1.02))
    report = bn.verify(noisy(1.0), "reference", intermediates=intermediates)
    assert report.first_divergent == "gained", str(report)


def test_feeds_of_a_wrong_shape_are_told_as_calls_tell_it() -> None:
    with pytest.raises(bn.ShapeError, match=r"input 'x': got shape \(4, 3\), wanted"):
        bn.verify(centred(), "reference", feeds={"x": np.ones((4, 3), F32)})


def test_lists_are_as_far_apart_as_what_is_in_them() -> None:
    one, two = np.ones(2, F32), np.array([1, 3], F32)
    assert distance([one, two], [one, one]) == 2
    assert distance([one], [one, one]) == np.inf
    assert distance([], []) == 0
    assert largest([one, two]) == 3


def levels(graph: Graph, scale: float) -> Graph:
    """Bytes of x, and their sums, as bytes of a finer scale."""
    x = graph.add_input("x", TensorType(F32, (1, 64)))
    b = Builder(graph)
    zero = np.asarray(128, U8)
    stored = b(QuantizeLinear(), x, np.asarray(0.1, F32), zero, name="stored")
    near = b(DequantizeLinear(), stored, np.asarray(0.1, F32), zero, name="near")
    total = b(MatMul(), near, np.full((64, 4), scale, F32), name="total")
    graph.add_output(b(QuantizeLinear(), total, np.asarray(0.4, F32), zero, name="bytes"), "bytes")
    return graph


def test_levels_behind_levels_may_be_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine rounds the middle of two levels up: that is one level there, and more behind it."""
    feeds = {"x": np.linspace(-1, 2, 64, dtype=F32)[None]}
    graph = levels(Graph("q"), 1.0)

    def values(self: object, names: list[str]) -> dict[str, np.ndarray]:
        stored = interpret(graph, feeds, ["stored"])["stored"].copy()
        stored[0, :12] += 1
        found = interpret(graph, feeds, names, held={"stored": stored})
        return found | ({"stored": stored} if "stored" in found else {})

    monkeypatch.setattr("bolt_numba.judges.Reference.values", values)
    report = bn.verify(graph, "reference", feeds=feeds)
    assert max(c.levels or 0 for c in report.checks) > 2
    assert report.ok
    assert INPUTS_DIFFER in {c.explained for c in report.checks}
    with_wrong_kernels(monkeypatch, levels(Graph("q"), 1.02))
    report = bn.verify(graph, "reference", feeds=feeds)
    assert not report.ok
    assert report.first_divergent == "total"


def test_floats_are_computed_in_f64() -> None:
    """What is held is read in place of what is computed, which is still given."""
    x = {"x": np.ones((4, 64), F32)}
    wide = interpret(centred(), x, ["mean", "rest"], held={"mean": np.full((4, 1), 0.1, F32)}, wide=True)
    assert wide["rest"].dtype == F64
    assert np.array_equal(wide["rest"], np.full((4, 64), 1 - np.float64(F32.type(0.1))))
    assert np.array_equal(wide["mean"], np.ones((4, 1)))
