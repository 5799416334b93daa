"""Boxes of detectors: priors cell by cell, and what is left of each class, against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime
import pytest

import bolt_numba as bn
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.errors import ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.gather import NonMaxSuppression
from bolt_numba.ops.layers.detection.boxes import DetectionOutput, PriorBox
from bolt_numba.types import F32, I64, TensorType, type_of


def test_priors_are_what_a_loop_over_cells_gives() -> None:
    x, image = np.zeros((1, 8, 2, 3), F32), np.zeros((1, 3, 60, 90), F32)
    op = PriorBox((10.0,), (20.0,), (2.0, 2.0, 1.0), flip=True, clip=False, variances=(0.1, 0.1, 0.2, 0.2))
    wanted = []
    for row in range(2):
        for column in range(3):
            cx, cy = (column + 0.5) * 30, (row + 0.5) * 30
            for w, h in (
                (10, 10), (math.sqrt(200),) * 2, (10 * math.sqrt(2), 10 / math.sqrt(2)),
                (10 / math.sqrt(2), 10 * math.sqrt(2)),
            ):  # fmt: skip
                wanted.append(((cx - w / 2) / 90, (cy - h / 2) / 60, (cx + w / 2) / 90, (cy + h / 2) / 60))
    y = op.reference(x, image)
    assert y.shape == op.infer(TensorType(F32, x.shape), TensorType(F32, image.shape)).shape == (1, 2, 96)
    np.testing.assert_allclose(y[0, 0].reshape(-1, 4), wanted, rtol=1e-6)
    np.testing.assert_allclose(y[0, 1].reshape(-1, 4), [(0.1, 0.1, 0.2, 0.2)] * 24, rtol=1e-7)


@pytest.mark.parametrize("fields", [{"min_sizes": ()}, {"max_sizes": (1.0, 2.0)}, {"variances": (1.0, 2.0)}])
def test_priors_refuse_what_has_no_meaning(fields: dict[str, tuple[float, ...]]) -> None:
    t = TensorType(F32, (1, 3, 2, 2))
    with pytest.raises(ShapeError):
        PriorBox(**{"min_sizes": (4.0,), **fields}).infer(t, t)


def test_a_class_keeps_what_the_operator_of_onnx_keeps() -> None:
    rng = np.random.default_rng(3)
    begins = rng.uniform(0, 1, (2, 60, 2))
    boxes = np.concatenate([begins, begins + rng.uniform(0.05, 0.5, begins.shape)], -1).astype(F32)
    scores = rng.permuted(np.linspace(0, 1, 60, dtype=F32)[None, None].repeat(3, 1).repeat(2, 0), axis=-1)
    y, places = DetectionOutput(0.2, 0.4, background=1).reference(boxes, scores)
    limits = np.array([60], I64), np.array([0.4], F32), np.array([0.2], F32)
    others = NonMaxSuppression().reference(boxes, scores, *limits)
    wanted = others[others[:, 1] != 1]
    np.testing.assert_array_equal(y[:, :2], wanted[:, :2])
    np.testing.assert_array_equal(places, wanted[:, 0] * 60 + wanted[:, 2])
    np.testing.assert_array_equal(y[:, 3:], boxes[wanted[:, 0], wanted[:, 2]])


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("most", [1, 7, 60, 300])
@pytest.mark.parametrize("side", [0.02, 0.6, 3.0])
@pytest.mark.parametrize("least", [None, -0.2, 0.7])
def test_few_and_many_boxes_of_many_are_those_of_the_reference(
    most: int, side: float, least: float | None, center: int
) -> None:
    """A heap serves few of many, and gives way to sorting where most overlap; scores may be equal, negative, NaN."""
    rng = np.random.default_rng(most)
    begins = rng.uniform(0, 1, (2, 300, 2))
    boxes = np.concatenate([begins, begins + side * rng.uniform(0.5, 1, begins.shape)], -1).astype(F32)
    scores = (rng.integers(-20, 60, (2, 3, 300)) / 50).astype(F32)
    scores[0, 0, ::17] = np.nan
    op, graph = NonMaxSuppression(center_point_box=center), Graph("boxes")
    limits = [np.array([most], I64), np.array([0.3], F32), *([] if least is None else [np.array([least], F32)])]
    operands = [graph.add_input(n, TensorType(F32, a.shape)) for n, a in (("boxes", boxes), ("scores", scores))]
    graph.add_output(Builder(graph)(op, *operands, *limits), "found")
    (got,) = bn.compile(graph, threads=1).run(None, {"boxes": boxes, "scores": scores})
    np.testing.assert_array_equal(got, op.reference(boxes, scores, *limits))


def test_images_without_anything_get_a_row_each_where_that_is_wanted() -> None:
    boxes, scores = np.zeros((2, 3, 4), F32), np.zeros((2, 2, 3), F32)
    y, places = DetectionOutput(0.5).reference(boxes, scores)
    np.testing.assert_array_equal(y, [[0, *[-1] * 6], [1, *[-1] * 6]])
    np.testing.assert_array_equal(places, [-1, -1])
    assert DetectionOutput(0.5, fill=False).reference(boxes, scores)[0].shape == (0, 7)


@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"score_threshold": 0.4, "nms_top_k": 5},
        {"keep_top_k": 4, "background": -1},
        {"score_threshold": 2.0},
        {"score_threshold": 2.0, "fill": False},
    ],
)
def test_it_is_written_in_terms_of_onnx(sets: int, fields: dict[str, Any]) -> None:
    images = 1 if "keep_top_k" in fields else 2
    rng = np.random.default_rng(5)
    begins = rng.uniform(0, 1, (images, 20, 2) if sets == 1 else (images, 20, sets, 2))
    boxes = np.concatenate([begins, begins + rng.uniform(0.05, 0.6, begins.shape)], -1).astype(F32)
    scores = rng.permuted(np.linspace(0, 1, 60 * images, dtype=F32)).reshape(images, 3, 20)
    graph = Graph("detections")
    operands = [graph.add_input(name, type_of(a)) for name, a in (("boxes", boxes), ("scores", scores))]
    for value, name in zip(Builder(graph)(DetectionOutput(**fields), *operands), ("rows", "places"), strict=True):
        graph.add_output(value, name)
    session = onnxruntime.InferenceSession(to_onnx(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"boxes": boxes, "scores": scores}
    for got, wanted in zip(session.run(["rows", "places"], feeds), interpret(graph, feeds).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
