"""`verify` of models in other formats: against the engine whose format it is, tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError
from tests.formats import cases

pytest.importorskip("ai_edge_litert")


def tflite(folder: Path, pattern: str) -> Path:
    """A golden case as a file."""
    path = folder / "net.tflite"
    path.write_bytes(next(cases("tflite", pattern)).files["model"])
    return path


@pytest.mark.parametrize("pattern", ["conv_2d/f32_same_s2$", "conv_2d/i8pc_act_relu$", "add/f32_act_relu$"])
def test_litert_judges_its_own_format(tmp_path: Path, pattern: str) -> None:
    path = tflite(tmp_path, pattern)
    report = bn.verify(path)
    assert report.against == "litert"
    assert report.ok, report
    assert bn.verify(path, "onnxruntime").ok
    assert bn.verify(path, "reference").ok


def test_a_wrong_tensor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the filters were read wrong."""
    path = tflite(tmp_path, "conv_2d/f32_valid$")
    filters = max((v.const for v in bn.load(path).constants() if v.const is not None), key=lambda c: c.size)
    wrong = bn.load(path.read_bytes().replace(filters.tobytes(), (2 * filters).tobytes()))
    monkeypatch.setattr("bolt_numba.verification.load", lambda *_, **__: wrong)
    report = bn.verify(path)
    assert not report.ok
    assert report.first_divergent == wrong.output_names[0]


def test_others_judge_no_foreign_format(tmp_path: Path) -> None:
    path = tflite(tmp_path, "add/f32_same$")
    with pytest.raises(BoltError, match="got 'litert' for a graph, wanted a file"):
        bn.verify(bn.load(path), "litert")
    with pytest.raises(BoltError, match="against: got 'tensorrt', wanted one of 'onnxruntime', 'reference', 'litert'"):
        bn.verify(path, "tensorrt")
