"""Verification of models with integers: levels, cosines, and the first tensor that rounding does not explain."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise import Mul
from bolt_numba.quantize import quantize
from bolt_numba.types import F32, U8, TensorType
from bolt_numba.verification import VerifyReport, compare, cosine, steps_of
from tests.test_quantize import samples, small_net


def test_a_quantised_model_agrees_with_onnxruntime_by_levels(tmp_path: Path) -> None:
    made = quantize(small_net(), samples()).graph
    surgery.save_onnx(made, tmp_path / "q.onnx")
    report = bn.verify(tmp_path / "q.onnx", feeds=samples(3))
    assert report.ok
    assert report.first_beyond_step is None
    assert any(c.levels is not None for c in report.checks)
    assert "levels, least cosine of an output 0.9" in str(report) or "cosine of an output 1.0" in str(report)
    assert report.to_json()["first_beyond_step"] is None


def test_the_first_tensor_off_by_more_than_a_step_is_named(tmp_path: Path) -> None:
    """Two graphs of the same names, one of which has another factor: what is behind it is off by many levels."""
    files = []
    for factor in (1.0, 1.5):
        graph = Graph("g")
        x = graph.add_input("x", TensorType(F32, (64,)))
        b = Builder(graph)
        for name, times in (("first", 1.0), ("second", factor)):
            scaled = b(Mul(), x, np.asarray(times * 0.9, F32), name=f"{name}_product")
            stored = b(QuantizeLinear(), scaled, np.asarray(0.02, F32), np.asarray(128, U8), name=f"{name}_stored")
            x = b(DequantizeLinear(), stored, np.asarray(0.02, F32), np.asarray(128, U8), name=name)
        graph.add_output(x, "y")
        files.append(graph)
    assert steps_of(files[0]).keys() == {"first_stored", "first", "second_stored", "second", "y"}
    feeds = {"x": np.linspace(-2, 2, 64, dtype=F32)}
    same = bn.verify(files[0], "reference", feeds=feeds)
    assert same.ok
    assert {c.levels for c in same.checks if c.levels is not None} <= {0.0, 1.0}
    right, wrong = (bn.compile(g).run(["first", "second"], feeds) for g in files)
    checks = [
        compare(n, "intermediate", a, w, 1e-3, 1e-4, step=0.02) for n, a, w in zip("ab", wrong, right, strict=True)
    ]
    assert [c.ok for c in checks] == [True, False]
    report = VerifyReport(checks, "reference", 1e-3, 1e-4)
    assert report.first_beyond_step == "b"
    assert "first tensor off by more than its quantisation step: b" in str(report)


def test_one_level_is_rounding_and_two_are_not() -> None:
    a = np.array([3, 4, 250], np.uint8)
    for other, ok in ((a + 1, True), (a + 2, False)):
        check = compare("y", "output", a, other.astype(np.uint8), 1e-3, 1e-4, step=1.0)
        assert check.ok is ok
        assert check.levels == float(other[0]) - 3
    assert not compare("y", "output", a, (a + 1).astype(np.uint8), 1e-3, 1e-4).ok


def test_cosines() -> None:
    assert abs(cosine(np.array([1.0, 2.0]), np.array([2.0, 4.0])) - 1) < 1e-12
    assert cosine(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.0
    assert cosine(np.zeros(3), np.zeros(3)) == 1.0
    assert cosine(np.array([np.nan, 1.0]), np.array([np.nan, 1.0])) == 1.0
