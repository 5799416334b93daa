"""What all formats share serves one that is not ONNX: `tests.tiny_format` joins through `FORMATS` alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.converters import FORMATS
from bolt_numba.converters.readers import Readers
from tests.tiny_format import FORMAT

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((3, 4)).astype("f4")
X = RNG.standard_normal((2, 3)).astype("f4")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "tiny", FORMAT)


def write(folder: Path, *nodes: dict[str, Any], version: int = 2, outputs: tuple[str, ...] = ("y",)) -> Path:
    """A model of these nodes over an input x [2, 3] and a weight w [3, 4]."""
    (folder / "weights.bin").write_bytes(b"head" + WEIGHT.tobytes())
    weights = {"w": {"shape": [3, 4], "at": 4}}
    inputs = {"x": [2, 3]}
    made = {"tiny": version, "inputs": inputs, "weights": weights, "nodes": nodes, "outputs": outputs}
    path = folder / "model.json"
    path.write_text(json.dumps(made))
    return path


DENSE = {"op": "Dense", "in": ["x", "w"], "out": ["y"]}
RELU = {"op": "Relu", "in": ["y"], "out": ["y"]}


def test_names_are_bound_again(tmp_path: Path) -> None:
    twice = {"op": "Sum", "in": ["y", "y"], "out": ["y"]}
    graph = bn.load(write(tmp_path, DENSE, RELU, twice))
    assert [n.op.name for n in graph.nodes] == ["MatMul", "Relu", "Add"]
    assert [n.name for n in graph.nodes] == ["y.0", "y.1", "y"], "the last has the name, as in the original's memory"
    assert len({v.name for v in graph.values()}) == len(list(graph.values()))
    got = bn.compile(graph)(x=X)["y"]
    np.testing.assert_allclose(got, 2 * np.maximum(X @ WEIGHT, 0), rtol=1e-5)


def test_an_input_that_is_written_to_keeps_its_name(tmp_path: Path) -> None:
    graph = bn.load(write(tmp_path, {"op": "Relu", "in": ["x"], "out": ["x"]}, outputs=("x",)))
    assert [v.name for v in graph.inputs] == ["x"] == graph.output_names
    np.testing.assert_array_equal(bn.compile(graph)(x=X)["x"], np.maximum(X, 0))


@pytest.mark.parametrize(("version", "operator"), [(1, "Tanh"), (2, "Sigmoid"), (9, "Sigmoid")])
def test_the_newest_reader_that_a_version_may_use(version: int, operator: str, tmp_path: Path) -> None:
    graph = bn.load(write(tmp_path, {"op": "Squash", "in": ["x"], "out": ["y"]}, version=version))
    assert [n.op.name for n in graph.nodes] == [operator]


def test_domains_are_apart(tmp_path: Path) -> None:
    graph = bn.load(write(tmp_path, {"op": "user.Scale", "in": ["x"], "out": ["y"], "factor": 2.0}))
    np.testing.assert_array_equal(bn.compile(graph)(x=X)["y"], 2 * X)
    with pytest.raises(bn.UnsupportedOpError, match="Scale at node 'y'"):
        bn.load(write(tmp_path, {"op": "Scale", "in": ["x"], "out": ["y"], "factor": 2.0}))


def test_all_that_is_unsupported_is_listed_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"op": "Warp", "in": ["x"], "out": ["a"]},
        {"op": "Squash", "in": ["a"], "out": ["a"], "kind": "cube"},
        {"op": "Squash", "in": ["x"], "out": ["b"], "kind": "cube"},
        DENSE,
        {"op": "Melt", "in": ["y"], "out": ["y"]},
    )
    wanted = ["Warp at node 'a'", "Squash at node 'b': kind cube", "Melt at node 'y'"]
    with pytest.raises(bn.UnsupportedOpError) as caught:
        bn.load(path)
    assert list(caught.value.items) == wanted, "what reads from an unknown result is not a finding of its own"
    assert surgery.unsupported(path) == wanted


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({**DENSE, "in": ["x"]}, r"node 'y' \(Dense\): input 1 'weights': got none, wanted a tensor"),
        ({**DENSE, "in": ["x", "w", "x", "x"]}, "number of inputs: got 4, wanted at most 3"),
        ({**DENSE, "in": ["x", "v"]}, "tensor 'v': got no definition"),
        ({**DENSE, "slope": 1}, r"attribute 'slope': got an unknown name, wanted one of \['transposed'\]"),
        ({**DENSE, "transposed": 2}, "attribute 'transposed': got 2, wanted 0 or 1"),
        ({**DENSE, "out": ["y", "z"]}, "got 2 outputs, wanted at most 1"),
        ({"op": "user.Scale", "in": ["x"], "out": ["y"]}, "attribute 'factor': got none, wanted a value"),
        ({"op": "user.Scale", "in": ["x"], "out": ["y"], "factor": "much"}, "model.json: node 'y'"),
        ({**DENSE, "out": 7}, "model.json: cannot be read: TypeError"),
    ],
)
def test_what_is_wrong_names_file_and_node(node: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(bn.BoltError, match=text) as caught:
        bn.load(write(tmp_path, node))
    assert str(caught.value).startswith("model.json: ")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"shape": [3, -4], "at": 4}, r"weight 'w': dims: got \(3, -4\), wanted none negative"),
        ({"shape": [3, 4], "at": 8}, "got 48 bytes from 8 of 52"),
        ({"shape": [1 << 40, 1 << 40], "at": 0}, "wanted"),
    ],
)
def test_weights_are_bounded(row: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = write(tmp_path, DENSE)
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights": {"w": row}}))
    with pytest.raises(bn.InvalidModelError, match=text):
        bn.load(path)


def test_one_version_has_one_reader() -> None:
    mine = Readers("mine")
    mine.reader("A", "B")(lambda b: None)
    mine.add("A", lambda b: None, since=2)
    with pytest.raises(ValueError, match="mine: operator user::A of version 3: got two readers"):
        mine.reader("A", "A", since=3, domain="user")(lambda b: None)
    assert [r.since for r in mine.table["", "A"]] == [2, 1]
