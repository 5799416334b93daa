"""Models of several graphs that share constants: in memory, in files, in sessions."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError
from bolt_numba.ir import store
from bolt_numba.ir.build import Builder
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Relu
from bolt_numba.surgery import packed
from bolt_numba.types import F32, Array, TensorType
from tests.test_store import with_document

RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-4, 5, (256, 256)).astype(F32)
X = RNG.integers(-4, 5, (3, 256)).astype(F32)
WANTED: Mapping[str, Array] = {"encode": X @ WEIGHT, "score": np.maximum(X @ WEIGHT, 0) @ WEIGHT}


def graph(name: str, weight: Array) -> bn.Graph:
    """``encode``: one product; ``score``: two with the same weight."""
    made = bn.Graph(name)
    b = Builder(made)
    y = b(MatMul(), made.add_input("x", TensorType(F32, (3, 256))), weight)
    made.add_output(b(MatMul(), b(Relu(), y), weight) if name == "score" else y, "y")
    return made


@pytest.fixture
def model() -> bn.Model:
    return bn.Model({name: graph(name, WEIGHT) for name in WANTED})


def constants(model: bn.Model) -> list[Any]:
    return [v.const for g in model.graphs.values() for v in g.constants()]


def test_signatures(model: bn.Model) -> None:
    assert model.signatures == ("encode", "score")
    assert model.graph().name == "encode"
    assert model.graph("score").name == "score"
    with pytest.raises(BoltError, match=r"signature: got 'train', wanted one of \['encode', 'score'\]"):
        model.graph("train")
    assert bn.Model(model.graph()).signatures == ("main",)
    assert "'score': Graph('score', 3 nodes)" in repr(model)
    with pytest.raises(BoltError, match="got none"):
        bn.Model({})
    with pytest.raises(TypeError, match="got a str, wanted graphs"):
        bn.Model({"main": "a graph"})  # type: ignore[dict-item]


def test_what_is_saved_as_onnx_is_onnx(model: bn.Model, tmp_path: Path) -> None:
    """A path says what is written; an ONNX file has one graph."""
    for path, given in (
        (tmp_path / "one.onnx", model.graph("score")),
        (str(tmp_path / "TWO.ONNX"), bn.Model(model.graph("score"))),
    ):
        bn.save(given, path)
        onnx.checker.check_model(onnx.load(path))
        np.testing.assert_array_equal(bn.compile(path)(x=X)["y"], WANTED["score"])
    with pytest.raises(BoltError, match=r"many.onnx': got a model of 2 graphs, wanted one, or a .bolt file for all"):
        bn.save(model, tmp_path / "many.onnx")
    assert not (tmp_path / "many.onnx").exists()


def test_a_file_holds_shared_constants_once(model: bn.Model, tmp_path: Path) -> None:
    path = tmp_path / "model.bolt"
    bn.save(model, path)
    assert WEIGHT.nbytes < path.stat().st_size < 1.1 * WEIGHT.nbytes
    again = bn.load_model(path)
    assert again.signatures == model.signatures
    first, *others = constants(again)
    assert all(other is first for other in others)
    assert store.to_bytes(again) == path.read_bytes()
    for name, wanted in WANTED.items():
        np.testing.assert_array_equal(bn.compile(again, signature=name)(x=X)["y"], wanted)
        np.testing.assert_array_equal(bn.compile(path, signature=name)(x=X)["y"], wanted)
        assert bn.load(path, signature=name).name == name
    assert bn.load(path).name == "encode", "without a name it is the first"


def test_views_of_one_memory_are_one_constant() -> None:
    both = bn.Model({name: graph(name, WEIGHT[:]) for name in WANTED})
    assert len({id(a) for a in constants(both)}) > 1
    assert len(store.to_bytes(both)) < 1.1 * WEIGHT.nbytes
    halves = bn.Model({"a": graph("a", WEIGHT), "b": graph("b", WEIGHT.T)})
    assert len(store.to_bytes(halves)) > 2 * WEIGHT.nbytes, "the same memory in another order is another constant"


def test_sessions_know_all_signatures(model: bn.Model) -> None:
    session = bn.compile(model, signature="score", threads=1)
    assert session.signatures == ("encode", "score")
    again = pickle.loads(pickle.dumps(session))
    assert again.signatures == session.signatures
    np.testing.assert_array_equal(again(x=X)["y"], WANTED["score"])
    assert bn.compile(model.graph()).signatures == ("main",)
    with pytest.raises(BoltError, match="signature: got 'train'"):
        bn.compile(model, signature="train")
    with pytest.raises(BoltError, match="signature: got 'score', wanted one of"):
        bn.compile(model.graph(), signature="score")


def test_packed_graphs_stay_packed(model: bn.Model, tmp_path: Path) -> None:
    """One graph has packed weights, one has not: each runs, and what only the other vouches for is checked."""
    path = tmp_path / "packed.bolt"
    bn.save(bn.Model({"encode": packed(model.graph(), threads=[1]), "score": model.graph("score")}), path)
    again = bn.load_model(path)
    found = again.graph().packed
    assert found is not None
    assert found.rows
    assert again.graph("score").packed is None
    for name, wanted in WANTED.items():
        np.testing.assert_array_equal(bn.compile(path, signature=name, threads=1)(x=X)["y"], wanted)
    damaged = bytearray(path.read_bytes())
    place = bytes(damaged).index(WEIGHT.tobytes()[:64])
    damaged[place] ^= 1
    with pytest.raises(bn.InvalidModelError, match="checksum"):
        bn.load_model(bytes(damaged))


@pytest.mark.parametrize("names", [[], ["a"], ["a", "a"], ["a", 3], "ab", None])
def test_hostile_signatures_are_refused(model: bn.Model, names: object) -> None:
    with pytest.raises(bn.InvalidModelError, match="signatures"):
        bn.load_model(with_document(store.to_bytes(model), lambda d: d.update(signatures=names)))
