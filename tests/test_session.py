"""The public API: ways to call, errors, intermediates, caller's buffers, threads, fork, spawn, pickle."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.gather import NonZero
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Identity, Reshape, Shape
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Exp, Relu, Tanh
from bolt_numba.runtime.reports import profile
from bolt_numba.types import F32, I64, Sym, TensorType

RNG = np.random.default_rng(7)


def two_layers() -> Graph:
    """X [batch, 8] -> hidden -> (y [batch, 4], total [])."""
    g = Graph("two_layers")
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (Sym("batch"), 8)))
    w1, w2 = (RNG.integers(-3, 4, s).astype("f4") for s in ((8, 16), (16, 4)))
    hidden = b(Relu(), b(Add(), b(MatMul(), x, w1), np.ones(16, "f4")), name="hidden")
    y = b(MatMul(), hidden, w2)
    g.add_output(y, "y")
    g.add_output(b(ReduceSum(keepdims=False), y), "total")
    return g


@pytest.fixture(scope="module")
def graph() -> Graph:
    return two_layers()


@pytest.fixture(scope="module")
def sess(graph: Graph) -> bn.Session:
    return bn.compile(graph, threads=2)


def want(graph: Graph, x: np.ndarray) -> dict[str, np.ndarray]:
    from bolt_numba.ir.interpret import interpret

    return interpret(graph, {"x": x})


def data(n: int) -> np.ndarray:
    return RNG.integers(-4, 5, (n, 8)).astype("f4")


def test_every_way_to_call(sess: bn.Session, graph: Graph) -> None:
    x = data(3)
    expected = want(graph, x)
    for outputs in (sess(x=x), sess({"x": x}), sess(x)):
        np.testing.assert_array_equal(outputs["y"], expected["y"])
        np.testing.assert_array_equal(outputs[1], expected["total"])
        y, total = outputs
        assert len(outputs) == 2
        assert "y" in outputs
        assert dict(outputs)["y"] is y
        assert total.shape == ()
    listed = sess.run(["total", "y"], {"x": x})
    np.testing.assert_array_equal(listed[1], expected["y"])


def test_specs(sess: bn.Session) -> None:
    assert sess.inputs[0] == bn.TensorSpec("x", F32, ("batch", 8))
    assert [s.name for s in sess.outputs] == ["y", "total"]


def test_intermediates_by_name(sess: bn.Session, graph: Graph) -> None:
    x = data(2)
    hidden, y = sess.run(["hidden", "y"], {"x": x})
    assert hidden.shape == (2, 16)
    np.testing.assert_array_equal(y, want(graph, x)["y"])
    with pytest.raises(bn.BoltError, match=r"output: 'nothing' is not one of \['y', 'total' and \d+ more\]"):
        sess.run(["nothing"], {"x": x})


def test_fractions_are_not_cut_off() -> None:
    graph = Graph("counts")
    graph.add_output(Builder(graph)(Identity(), graph.add_input("n", TensorType(I64, (2,)))), "y")
    sess = bn.compile(graph)
    for whole in ([1, 2], [1.0, 2.0]):
        assert list(sess(whole)[0]) == [1, 2]
    with pytest.raises(bn.DTypeError, match="input 'n': got a list, wanted i64: a number is no integer"):
        sess([1, 2.5])


def test_many_shapes_share_one_session(sess: bn.Session, graph: Graph) -> None:
    for n in (*range(1, 40), 0, 3):
        x = data(n)
        np.testing.assert_array_equal(sess(x)["y"], want(graph, x)["y"])


def test_run_into(sess: bn.Session, graph: Graph) -> None:
    x = data(4)
    y, total = np.zeros((4, 4), "f4"), np.zeros((), "f4")
    sess.run_into({"x": x}, {"y": y, "total": total})
    np.testing.assert_array_equal(y, want(graph, x)["y"])
    np.testing.assert_array_equal(total, want(graph, x)["total"])
    with pytest.raises(bn.ShapeError, match=r"buffer for output 'y': got shape \(3, 4\), wanted \(4, 4\)"):
        sess.run_into({"x": x}, {"y": np.zeros((3, 4), "f4")})
    with pytest.raises(bn.DTypeError, match="got f64, wanted f32"):
        sess.run_into({"x": x}, {"y": np.zeros((4, 4))})


def test_buffer_may_be_the_input() -> None:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (4, 4)))
    g.add_output(b(MatMul(), x, x), "y")
    a = RNG.integers(-3, 4, (4, 4)).astype("f4")
    expected = a @ a
    bn.compile(g).run_into({"x": a}, {"y": a})
    np.testing.assert_array_equal(a, expected)


@pytest.mark.parametrize(
    ("feeds", "error", "message"),
    [
        ({}, bn.ShapeError, r"missing \['x'\]"),
        ({"x": np.zeros((2, 8))}, bn.DTypeError, r"got f64, wanted f32: x.astype\(np.float32\) makes it"),
        ({"x": np.zeros((2, 9), "f4")}, bn.ShapeError, r"got shape \(2, 9\), wanted \(batch, 8\)"),
        ({"x": np.zeros(8, "f4")}, bn.ShapeError, "got shape"),
        (
            {"x": np.zeros((2, 8), ">f4")},
            bn.DTypeError,
            r"got f32 in the byte order of another machine \(>f4\), wanted f32",
        ),
        ({"x": np.zeros((2, 8), "f4"), "z": 1}, bn.ShapeError, r"'z' is not one of \['x'\]"),
    ],
)
def test_wrong_inputs(sess: bn.Session, feeds: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sess(feeds)


def test_inputs_may_be_strided_or_lists(sess: bn.Session, graph: Graph) -> None:
    x = data(6)
    np.testing.assert_array_equal(sess(x[::2])["y"], want(graph, x[::2].copy())["y"])
    np.testing.assert_array_equal(sess(x.T.copy().T)["y"], want(graph, x)["y"])
    np.testing.assert_array_equal(sess(x.tolist())["y"], want(graph, x)["y"])


def test_bad_options() -> None:
    for options in ({"device": "tpu"}, {"precision": "fp3"}):
        with pytest.raises(bn.DeviceError):
            bn.compile(two_layers(), **options)  # type: ignore[arg-type]


def test_threads_give_the_same_bits() -> None:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (257, 300)))
    w = RNG.standard_normal((300, 130)).astype("f4")
    g.add_output(b(Tanh(), b(MatMul(), b(Exp(), x), w)), "y")
    a = RNG.standard_normal((257, 300)).astype("f4")
    one, two = (bn.compile(g, threads=n)(a)["y"] for n in (1, 2))
    np.testing.assert_array_equal(one.view("i4"), two.view("i4"))


def test_eight_python_threads_at_once(sess: bn.Session, graph: Graph) -> None:
    inputs = [data(n) for n in (1, 2, 3, 5, 8, 13, 21, 34)]
    expected = [want(graph, x)["y"] for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(100) if not np.array_equal(sess(inputs[i])["y"], expected[i]))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_pickle(sess: bn.Session, graph: Graph) -> None:
    x = data(5)
    again = pickle.loads(pickle.dumps(sess))
    np.testing.assert_array_equal(again(x)["y"], want(graph, x)["y"])
    assert again.threads == sess.threads


def _child(sess: bn.Session, x: np.ndarray, queue: Any) -> None:
    queue.put(sess(x)["y"])


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_other_processes(sess: bn.Session, graph: Graph, method: str) -> None:
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork on this platform")
    x = data(9)
    sess(x)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_child, args=(sess, x, queue))
    child.start()
    result = queue.get(timeout=600)
    child.join(600)
    assert child.exitcode == 0
    np.testing.assert_array_equal(result, want(graph, x)["y"])


def test_shapes_that_depend_on_data() -> None:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (Sym("n"),)))
    found = b(NonZero(), x)
    count = b(Slice(), b(Shape(), found), np.array([1]), np.array([2]))
    doubled = b(Add(), b(Reshape(), found, np.array([-1])), b(Reshape(), found, np.array([-1])))
    g.add_output(doubled, "y")
    g.add_output(count, "count")
    sess = bn.compile(g)
    for values in ([0, 1, 0, 2], [1, 1, 1], [0, 0], [5]):
        y, count_got = sess(np.array(values, "f4"))
        np.testing.assert_array_equal(y, 2 * np.nonzero(values)[0])
        assert count_got.tolist() == [np.count_nonzero(values)]


def test_shapes_given_as_inputs() -> None:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (6,)))
    shape = g.add_input("shape", TensorType(I64, (2,)))
    g.add_output(b(Exp(), b(Reshape(), x, shape)), "y")
    sess = bn.compile(g)
    for dims in ((2, 3), (3, 2), (6, 1), (-1, 2)):
        y = sess(x=np.zeros(6, "f4"), shape=np.array(dims))["y"]
        assert y.shape == np.zeros(6).reshape(dims).shape
    assert all(row["runner"] != "reference" for row in sess.report())


def test_profile_and_memory(sess: bn.Session, tmp_path: Any) -> None:
    found = sess.profile(data(16), runs=3)
    assert {row.op for row in found.rows} >= {"MatMul"}
    assert sum(r.seconds for r in found.rows) > 0
    found.save(tmp_path / "trace.json")
    assert "MatMul" in found.table()
    memory = sess.memory()
    assert memory["weights"] >= 4 * (8 * 16 + 16 + 16 * 4)
    assert memory["arena"] <= memory["naive"]


def test_a_profile_of_a_slow_model_ends(sess: bn.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "LONGEST_S", 0.0)
    found = sess.profile(data(16), runs=50)
    assert found.runs == 1
    assert found.table().endswith("median of 1 run(s)")


def test_drop_in_for_onnxruntime(graph: Graph) -> None:
    options = bn.SessionOptions()
    options.intra_op_num_threads = 1
    sess = bn.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    x = data(2)
    np.testing.assert_array_equal(sess.run(None, {"x": x})[0], want(graph, x)["y"])
    assert sess.get_inputs()[0].type == "tensor(float)"
    assert sess.get_inputs()[0].shape == ["batch", 8]
    assert [o.name for o in sess.get_outputs()] == ["y", "total"]
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        bn.InferenceSession(graph, providers=["CUDAExecutionProvider"])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": None}, bn.DTypeError, "model: got None, wanted a path, bytes, a binary file or a graph"),
        ({"model": 3}, bn.DTypeError, "model: got a int, wanted a path"),
        ({"threads": "2"}, bn.DTypeError, "threads: got the text '2', wanted a whole number from 1 to"),
        ({"threads": 2.5}, bn.DTypeError, "threads: got 2.5, wanted a whole number"),
        ({"threads": True}, bn.DTypeError, "threads: got True, wanted a whole number"),
        ({"max_plans": 2.5}, bn.BoltError, "max_plans: got 2.5, wanted a whole number from 1"),
    ],
)
def test_wrong_options(given: dict[str, Any], error: type[Exception], message: str) -> None:
    whole: dict[str, Any] = {"model": bn.Graph("empty"), **given}
    with pytest.raises(error, match=message):
        bn.compile(whole.pop("model"), **whole)
