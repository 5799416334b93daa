"""Surgery from the command line: convert cuts, fixes shapes, simplifies, writes ONNX; inspect lists what is lacking."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import bolt_numba as bn
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.store import load_bolt
from tests.conftest import Done
from tests.near import assert_near
from tests.rule_cases import graph_of, o, whole
from tests.test_states import counter, runs
from tests.test_surgery import DIGITS, MIXED, names

Call = Callable[..., Done]


def test_convert(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "d.onnx"
    done = call("convert", DIGITS, "-o", target, "--simplify", "--shapes", "image=2,1,8,8", "--opset", 15, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["nodes_before"] == 10
    model = onnx.load(target)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [2, 1, 8, 8]
    assert model.opset_import[0].version == 15
    x = whole(2, 1, 8, 8)
    assert_near(bn.compile(target)(x), bn.compile(DIGITS)(x), 1e-6)


def test_convert_cuts(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "d.bolt"
    assert call("convert", DIGITS, "-o", target, "--extract", "relu1:pool,logits").code == 0
    assert names(load_bolt(target)) == (["relu1"], ["pool", "logits"])
    assert call("convert", DIGITS, "-o", target, "--extract", ":pool", "--outputs", "pool,relu1").code == 0
    assert names(load_bolt(target)) == (["image"], ["pool", "relu1"])
    assert "3 nodes (of 10)" in call("convert", DIGITS, "-o", target, "--extract", "relu1:pool").out
    done = call("convert", DIGITS, "-o", target, "--extract", "relux:pol")
    assert done.code == 1
    assert "got 'relux', wanted 'relu" in done.err
    assert "got 'pol', wanted 'pool'" in done.err


def test_images_with_their_channels_first(tmp_path: Path, call: Call) -> None:
    """The digits are [n, 1, 8, 8], so as if they had one row and eight channels."""
    target = tmp_path / "d.bolt"
    assert call("convert", DIGITS, "-o", target, "--channels-first").code == 0
    assert bn.load(target).inputs[0].type.shape[1:] == (8, 1, 8)


def test_convert_renames(call: Call, tmp_path: Path) -> None:
    """Other options have the names of the file; one tensor cannot get two names."""
    target = tmp_path / "d.onnx"
    done = call("convert", DIGITS, "-o", target, "--outputs", "pool,logits", "--rename", "image=x,pool=p")
    assert done.code == 0, done.err
    assert names(bn.load(target)) == (["x"], ["p", "logits"])
    refused = call("convert", DIGITS, "-o", target, "--rename", "imagee=x")
    assert (refused.code, "got 'imagee', wanted 'image'" in refused.err) == (1, True)
    for wrong in ("image", "image=x,image=y"):
        refused = call("convert", DIGITS, "-o", target, "--rename", wrong)
        assert (refused.code, "wanted OLD=NEW, once for a name" in refused.err) == (2, True)


@pytest.mark.parametrize("args", [["--extract", "pool"], ["-o", "d.txt"], ["--shapes", "image"], ["--opset", "x"]])
def test_wrong_usage(call: Call, tmp_path: Path, args: list[str]) -> None:
    assert call("convert", DIGITS, "-o", tmp_path / "d.onnx", *args).code == 2


def test_names_with_colons_and_commas(call: Call, tmp_path: Path) -> None:
    graph = graph_of(lambda b, x: b(o("Neg"), b(o("Relu"), x, name="a:0,1"), name="b:0"), {"x": (2,)})
    bn.save(graph, tmp_path / "g.bolt")
    target = tmp_path / "h.bolt"
    assert call("convert", tmp_path / "g.bolt", "-o", target, "--extract", "a:0,1:out0").code == 0
    assert names(load_bolt(target)) == (["a:0,1"], ["out0"])
    assert call("convert", tmp_path / "g.bolt", "-o", target, "--outputs", "a:0,1").code == 0
    assert names(load_bolt(target)) == (["x"], ["a:0,1"])


def test_inspect_unsupported(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MIXED), path)
    done = call("inspect", path, "--unsupported", "--json")
    assert done.code == 1
    facts = json.loads(done.out)
    assert not facts["supported"]
    text = call("inspect", path, "--unsupported").out
    assert all(item in text for item in facts["unsupported"])
    fine = call("inspect", DIGITS, "--unsupported")
    assert (fine.code, fine.out) == (0, f"{DIGITS}: nothing unsupported\n")


@pytest.mark.parametrize("command", ["run", "profile", "convert"])
def test_free_sizes_are_guessed(call: Call, tmp_path: Path, command: str) -> None:
    """A picture of one pixel has no room for a pool of two."""
    graph = graph_of(lambda b, x: (b(o("MaxPool", (2, 2)), x),), {"x": (1, 3, "h", "w")})
    bn.save(graph, tmp_path / "g.bolt")
    args = (command, tmp_path / "g.bolt", *(("--pack", "-o", tmp_path / "p.bolt") if command == "convert" else ()))
    assert call(*args).code == 0
    assert call(*args, "--shape", "x=1,3,1,4").code == 1
    assert call(*args, "--shape", "x=1,3,4,4").code == 0


def test_convert_makes_states(call: Call, tmp_path: Path) -> None:
    model, target = tmp_path / "counter.onnx", tmp_path / "counter.bolt"
    onnx.save(to_onnx(counter()), model)
    assert call("convert", model, "-o", target, "--states", "s=s/next").code == 0
    assert runs(bn.compile(target), 3) == [2, 4, 6]
    assert "state   s       f32" in call("inspect", target).out
    for text in ("s", "s=y,s=s/next"):
        assert "INPUT=OUTPUT" in call("convert", model, "-o", target, "--states", text).err
    assert "state: output: got 'z', wanted" in call("convert", model, "-o", target, "--states", "s=z").err
    done = call("convert", model, "-o", tmp_path / "kept.onnx", "--states", "s=s/next")
    assert (done.code, "wanted a .bolt file" in done.err) == (2, True)
