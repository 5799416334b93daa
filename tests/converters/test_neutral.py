"""What all formats share serves one that is not ONNX: `tests.tiny_format` joins through `FORMATS` alone."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.cli import app
from bolt_numba.converters.formats import FORMATS
from bolt_numba.converters.readers import Readers
from tests.tiny_format import FORMAT

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((3, 4)).astype("f4")
X = RNG.standard_normal((2, 3)).astype("f4")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "tiny", FORMAT)


def write(folder: Path, *nodes: dict[str, Any], version: int = 2, outputs: tuple[str, ...] = ("y",)) -> Path:
    """A model of these nodes over an input x [2, 3] and a weight w [3, 4]; its signature ``small`` has the first."""
    (folder / "weights.bin").write_bytes(b"head" + WEIGHT.tobytes())
    weights = {"w": [[3, 4], 4]}
    graphs = {"main": {"nodes": nodes, "outputs": outputs}}
    if len(nodes) > 1:
        graphs["small"] = {"nodes": nodes[:1], "outputs": nodes[0]["out"]}
    made = {"tiny": version, "inputs": {"x": [2, 3]}, "weights": weights, "graphs": graphs}
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
        ([[3, -4], 4], r"weight 'w': dims: got \(3, -4\), wanted none negative"),
        ([[3, 4], 8], "weight 'w': data: got 44 bytes, wanted 48"),
        ([[1 << 40, 1 << 40], 0], "wanted"),
    ],
)
def test_weights_are_bounded(row: list[Any], text: str, tmp_path: Path) -> None:
    path = write(tmp_path, DENSE)
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights": {"w": row}}))
    with pytest.raises(bn.InvalidModelError, match=text):
        bn.load(path)


def test_graphs_share_constants(tmp_path: Path) -> None:
    model = bn.load_model(write(tmp_path, DENSE, RELU))
    assert model.signatures == ("main", "small")
    (first,), (second,) = ([v.const for v in model.graph(name).constants()] for name in model.signatures)
    assert first is second
    np.testing.assert_array_equal(
        bn.compile(model)(x=X)["y"], np.maximum(bn.compile(model, signature="small")(X)[0], 0)
    )


def test_weights_in_a_second_file(tmp_path: Path) -> None:
    path = write(tmp_path, DENSE)
    other = tmp_path / "other.bin"
    other.write_bytes(b"head" + (2 * WEIGHT).tobytes())
    wanted = 2 * bn.compile(path)(x=X)["y"]
    for source in (path, path.read_bytes(), tmp_path):
        for weights in (other, str(other), other.read_bytes(), io.BytesIO(other.read_bytes())):
            assert len(bn.load(source, weights=weights).nodes) == 1
        np.testing.assert_array_equal(bn.compile(source, weights=other)(x=X)["y"], wanted)
    with pytest.raises(
        bn.InvalidModelError, match=r"model: weights\.bin: got 'weights\.bin', wanted a model that is read from"
    ):
        bn.load(path.read_bytes())
    with pytest.raises(FileNotFoundError):
        bn.load(path, weights=tmp_path / "none.bin")


def test_a_format_without_a_second_file_refuses_one(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(bn.InvalidModelError, match=r"digits\.onnx: weights: got w\.bin, wanted no second file"):
        bn.load(digits, weights=tmp_path / "w.bin")
    with pytest.raises(bn.BoltError, match="weights: got a file for a Graph"):
        bn.compile(bn.load(digits), weights=tmp_path / "w.bin")


def test_folders(tmp_path: Path) -> None:
    path = write(tmp_path, DENSE)
    np.testing.assert_array_equal(bn.compile(tmp_path)(x=X)["y"], bn.compile(path)(x=X)["y"])
    for format in ("onnx", "bolt"):
        with pytest.raises(bn.InvalidModelError, match=f"format: got a folder, wanted a file of {format}"):
            bn.load(tmp_path, format)


@pytest.mark.parametrize("name", ["net", "net.onnx", "net.bolt"])
def test_a_folder_of_no_format_is_named_with_what_it_holds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for format in [key for key, entry in FORMATS.items() if entry.folders and key != "tiny"]:
        monkeypatch.delitem(FORMATS, format)
    nothing = rf"{name}: format: got a folder with nothing, wanted a file, or a folder of tiny"
    for call in (bn.load, bn.compile, surgery.unsupported):
        with pytest.raises(bn.InvalidModelError, match=nothing):
            call(folder)
    for i in range(10):
        (folder / f"part{i}").write_bytes(b"")
    with pytest.raises(bn.InvalidModelError, match=r"got a folder with part0, part1, .*, part7 and 2 more, wanted"):
        bn.load(folder)
    monkeypatch.delitem(FORMATS, "tiny")
    with pytest.raises(bn.InvalidModelError, match=rf"wanted a file of {re.escape(str(list(FORMATS)))}"):
        bn.load(folder)


def test_commands_take_weights_and_signatures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*args: object) -> str:
        assert app.run([str(a) for a in args]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    path = write(tmp_path, DENSE, RELU)
    other = (tmp_path / "weights.bin").rename(tmp_path / "other.bin")
    which = ("--weights", other, "--signature", "small")
    assert json.loads(call("inspect", path, *which, "--json"))["signatures"] == ["main", "small"]
    assert "signatures: main, small; this is small" in call("inspect", path, *which)
    assert "nothing unsupported" in call("inspect", path, "--unsupported", *which[:2])
    assert "MatMul" in call("viz", path, "--text", *which)
    assert json.loads(call("run", path, "--json", *which))["outputs"][0]["shape"] == [2, 4]
    assert "agrees with reference" in call("verify", path, "--against", "reference", *which)
    call("profile", path, "--runs", 1, *which)
    call("bench", path, "--seconds", 0.1, "--no-processes", *which)
    for names, extra in ((("main", "small"), which[:2]), (("small",), which)):
        target = tmp_path / "all.bolt"
        call("convert", path, "-o", target, "--simplify", *extra)
        assert bn.load_model(target).signatures == names
    call("convert", path, "-o", tmp_path / "small.onnx", *which)
    assert bn.load(tmp_path / "small.onnx").output_names == ["y"]
    assert app.run(["convert", str(path), "-o", str(tmp_path / "a.onnx"), "--weights", str(other)]) == 2
    assert "wanted one of main, small" in " ".join(capsys.readouterr().err.split())
    assert app.run(["run", str(path), "--weights", str(other), "--signature", "none"]) == 1


def test_one_version_has_one_reader() -> None:
    mine = Readers("mine")
    mine.reader("A", "B")(lambda b: None)
    mine.add("A", lambda b: None, since=2)
    with pytest.raises(ValueError, match="mine: operator user::A of version 3: got two readers"):
        mine.reader("A", "A", since=3, domain="user")(lambda b: None)
    assert [r.since for r in mine.table["", "A"]] == [2, 1]


def test_a_module_whose_import_was_broken_off_registers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt leaves some readers of a file behind; the next import brings all of them."""
    (tmp_path / "broken_off").mkdir()
    (tmp_path / "broken_off" / "__init__.py").write_text("")
    (tmp_path / "broken_off" / "first.py").write_text(
        "from tests.converters.test_neutral import TURNS\n"
        "READERS = TURNS['readers']\n"
        "READERS.add('One', lambda b, x: x)\n"
        "if TURNS.pop('interrupt', False):\n"
        "    raise KeyboardInterrupt\n"
        "READERS.add('Two', lambda b, x: x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    readers = Readers("broken", ("broken_off",))
    TURNS.update(readers=readers, interrupt=True)
    with pytest.raises(KeyboardInterrupt):
        readers.find("", "One")
    assert readers.find("", "Two") is not None
    assert len(readers.table["", "One"]) == 1
    with pytest.raises(ValueError, match="operator One of version 1: got two readers, wanted one"):
        readers.add("One", write)


TURNS: dict[str, Any] = {}
"""What the module of the test above finds."""


def test_an_operator_whose_import_was_broken_off_registers_again() -> None:
    from bolt_numba.ops.registry import OPS, Op, op

    def declare() -> None:
        @op("BrokenOff")
        class BrokenOff(Op):
            pass

    try:
        declare()
        declare()
        with pytest.raises(ValueError, match="operator BrokenOff is registered twice"):

            @op("BrokenOff")
            class Another(Op):
                pass
    finally:
        del OPS["BrokenOff"]
