"""The command quantize, and quantisation by compile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.errors import BoltError, DeviceError
from bolt_numba.quantize.sensitivity import sqnr
from tests.conftest import Done
from tests.test_quantize import samples, small_net
from tests.test_weights_only import perceptron


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a model, its inputs and their classes."""
    graph, data = small_net(), samples(20)
    surgery.save_onnx(graph, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **data)
    np.save(tmp_path / "labels.npy", bn.compile(graph)(data)["y"].argmax(1))
    return tmp_path


Call = Callable[..., Done]


def test_quantize_writes_a_model_a_report_and_scales(call: Call, files: Path) -> None:
    given = ("quantize", files / "net.onnx", "--data", files / "data.npz")
    bound = ("--labels", files / "labels.npy", "--max-drop", "10%", "--override", "*:method=percentile:99")
    done = call(*given, *bound, "--report", files / "r.svg", "--write-scales", files / "clip.json")
    assert done.code == 0, done.err
    assert "4 of 4 layers quantised" in done.out
    assert (files / "r.svg").read_text().startswith("<svg")
    data = dict(np.load(files / "data.npz"))
    made, wanted = (bn.compile(files / name)(data)["y"] for name in ("net.int8.onnx", "net.onnx"))
    assert sqnr(wanted, made) > 15, "a hundredth of each tensor is cut off at both ends"
    chosen = ("--scales", files / "clip.json", "--keep", "MatMul")
    again = call(*given, *chosen, "-o", files / "b.bolt", "--json")
    assert again.code == 0, again.err
    content = json.loads(again.out)
    assert [layer["stored"] for layer in content["layers"]] == ["u8 x s8"] * 3 + ["float"]
    assert content["bytes"] == (files / "b.bolt").stat().st_size


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-o", "x.tflite"), "got 'x.tflite', wanted a name that ends in .onnx or .bolt"),
        (("--report", "x.pdf"), "got 'x.pdf'"),
        (("--max-drop", "much"), "got 'much', wanted 0.5% or 0.005"),
        (("--override", "layer"), "got 'layer', wanted PATTERN:KEY=VALUE"),
        (("--max-drop", "1%"), "got no metric and no labels"),
        (("--method", "none"), "got 'none', wanted one of min-max"),
        (("--keep", "nothing"), "got pattern 'nothing'"),
        (("--labels", "none.npy"), "No such file"),
        (("--smooth", "much"), "got 'much', wanted auto"),
    ],
)
def test_what_quantize_refuses(call: Call, files: Path, options: tuple[str, ...], words: str) -> None:
    done = call("quantize", files / "net.onnx", "--data", files / "data.npz", *options)
    assert done.code in (1, 2)
    assert words in " ".join(done.err.replace("│", " ").split())
    assert sorted(p.name for p in files.iterdir()) == ["data.npz", "labels.npy", "net.onnx"]


def test_a_bound_that_does_not_hold_keeps_layers(call: Call, files: Path) -> None:
    done = call("quantize", files / "net.onnx", "--data", files / "data.npz", "--min-sqnr", 200, "--threads", 1)
    assert done.code == 0, done.err
    assert "0 of 4 layers quantised" in done.out


def test_compile_quantises_with_calibration() -> None:
    graph, data = small_net(), samples()
    session = bn.compile(graph, precision="int8", calibration=data)
    assert sqnr(bn.compile(graph)(data)["y"], session(data)["y"]) > 28
    assert any(n.op.name == "QuantizeLinear" for n in session.graph.nodes)
    wrong: Any = {"precision": "int8"}
    with pytest.raises(BoltError, match="got no calibration"):
        bn.compile(graph, **wrong)
    with pytest.raises(BoltError, match="got data for precision 'f32'"):
        bn.compile(graph, calibration=data)
    with pytest.raises(DeviceError, match="precision"):
        bn.Session(graph, precision="int8")


def test_weights_alone_need_no_data(call: Call, files: Path) -> None:
    surgery.save_onnx(perceptron(), files / "mlp.onnx")
    done = call("quantize", files / "mlp.onnx", "--weights-only", "4", "--block", "0")
    assert done.code == 0, done.err
    assert "2 weights" in done.out
    x = np.ones((3, 96), np.float32)
    made, wanted = (bn.compile(files / name)(x)[0] for name in ("mlp.int4.onnx", "mlp.onnx"))
    assert 8 < sqnr(wanted, made) < 40
    again = call("quantize", files / "mlp.onnx", "--weights-only", "8", "--json", "--method", "rtn")
    assert [w["shape"] for w in json.loads(again.out)["weights"]] == [[96, 160], [130, 160]]
    for wrong, said in ((("--weights-only", "5"), "got '5', wanted one of 4, 8"), ((), "--data")):
        done = call("quantize", files / "mlp.onnx", *wrong)
        assert done.code
        assert said in done.err
