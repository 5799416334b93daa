"""The backend interface, and the project's scorer on a part of the public suite."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import bolt_numba as bn
from bolt_numba.errors import DeviceError, ShapeError
from bolt_numba.onnx_backend import Backend
from tests import onnx_score

MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> g (float[3] x, float[3] w) => (float[3] y, float[3] z) {
        y = Add(x, w) z = Sub(x, w) }"""
)
X, W = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)


def test_prepare_and_run() -> None:
    prepared = Backend.prepare(MODEL)
    for inputs in ([X, W], {"x": X, "w": W}):
        y, z = prepared.run(inputs)
        np.testing.assert_array_equal(y, X + W)
        np.testing.assert_array_equal(z, X - W)
    np.testing.assert_array_equal(Backend.run_model(MODEL, [X, W])[0], X + W)


def test_run_node() -> None:
    node = helper.make_node("Softmax", ["a"], ["b"], axis=1)
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    (new,) = Backend.run_node(node, [x])
    np.testing.assert_allclose(new.sum(1), 1, rtol=1e-6)
    (old,) = Backend.run_node(node, [x], opset_version=9)
    np.testing.assert_allclose(old.sum((1, 2)), 1, rtol=1e-6)
    (alone,) = Backend.run_node(helper.make_node("Neg", ["a"], ["b"]), X)
    np.testing.assert_array_equal(alone, -X)


def test_devices_and_errors() -> None:
    assert Backend.supports_device("CPU")
    assert Backend.supports_device("CPU:0")
    assert not Backend.supports_device("CUDA")
    assert Backend.is_compatible(MODEL)
    with pytest.raises(DeviceError):
        Backend.prepare(MODEL, "CUDA")
    with pytest.raises(ShapeError, match="number of inputs: got 3, wanted 2"):
        Backend.prepare(MODEL).run([X, W, X])
    blob = helper.make_node("Blob", ["a"], ["b"], domain="acme")
    with pytest.raises(NotImplementedError, match="Blob"):
        Backend.run_node(blob, [X])


def test_options_that_do_not_exist_are_told_with_those_that_do() -> None:
    model = MODEL.SerializeToString()
    for call in (lambda: bn.verify(model, thread=2), lambda: Backend.prepare(MODEL, thread=2)):
        with pytest.raises(bn.BoltError, match=r"(verify|prepare): options: 'thread' is not one of .* mean 'threads'"):
            call()
    assert bn.verify(model, "reference", tune=True, device="cpu").ok


@pytest.mark.timeout(1800)
def test_score_of_a_part_of_the_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old PyTorch exports of opset 6, which need readers for old forms."""
    table = tmp_path / "score.json"
    options = ["--include", "pytorch-.*(Linear|Softmax|PReLU|addmm|chunk|pow)", "--json", str(table), "--workers", "1"]
    assert onnx_score.main(options) == 0
    rows = json.loads(table.read_text())
    assert len(rows) >= 12
    assert {r["state"] for r in rows} == {"passed"}, [r for r in rows if r["state"] != "passed"]
    assert f"total {len(rows)}/{len(rows)}" in capsys.readouterr().out


def test_requirements_are_checked() -> None:
    results = [onnx_score.Result("node", "a", "passed", "", 0.0), onnx_score.Result("node", "b", "failed", "", 0.0)]
    assert onnx_score.short_of(results, ["node=1", "total=1"]) == []
    assert onnx_score.short_of(results, ["node=2", "total=1", "light=1"]) == ["node=2", "light=1"]
    assert "node 1/2" in onnx_score.report(results, 1.0, listed=True)
    assert "failed      node/b" in onnx_score.report(results, 1.0, listed=True)


def test_workers_cannot_use_other_engines() -> None:
    refuse = onnx_score.Refuse()
    with pytest.raises(ImportError, match="onnxruntime"):
        refuse.find_spec("onnxruntime.capi")
    refuse.find_spec("numpy.linalg")


@pytest.mark.parametrize(("state", "error"), [("unsupported", NotImplementedError), ("error", ValueError)])
def test_states_of_failing_backends(state: str, error: type[Exception]) -> None:
    class Failing:
        @staticmethod
        def prepare(model: onnx.ModelProto, device: str) -> None:
            raise error("no")

    case = onnx_score.Case("node", "a", 1e-3, 1e-7, lambda: (MODEL, [([X, W], [X, W])]))
    assert onnx_score.judge(case, Failing) == (state, f"prepare: {error.__name__}: no")
    wrong = onnx_score.Case("node", "a", 1e-3, 1e-7, lambda: (MODEL, [([X, W], [X, X - W])]))
    assert onnx_score.judge(wrong, Backend)[0] == "failed"
    right = onnx_score.Case("node", "a", 1e-3, 1e-7, lambda: (MODEL, [([X, W], [X + W, X - W])]))
    assert onnx_score.judge(right, Backend) == ("passed", "")
