"""Detections and proposals against the same written box by box, as the papers and Paddle's page have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import DataError, ShapeError
from bolt_numba.ops.layers.detection.regions import PSRoiPool
from bolt_numba.ops.layers.detection.suppression import GenerateProposals, MatrixNMS, MulticlassNMS
from bolt_numba.types import F32, Array, type_of

RNG = np.random.default_rng(11)


def boxes_of(*dims: int) -> Array:
    begins = RNG.uniform(0, 20, (*dims, 2))
    return np.concatenate([begins, begins + RNG.uniform(1, 14, (*dims, 2))], -1).astype(F32)


def overlap(p: Array, q: Array, extra: float) -> float:
    sides = [min(p[i + 2], q[i + 2]) - max(p[i], q[i]) for i in range(2)]
    if min(sides) < 0:
        return 0.0
    shared = (sides[0] + extra) * (sides[1] + extra)
    areas = [(v[2] - v[0] + extra) * (v[3] - v[1] + extra) for v in (p, q)]
    return float(shared / (sum(areas) - shared))


def suppressed(boxes: Array, order: list[int], limit: float, eta: float, extra: float) -> list[int]:
    kept: list[int] = []
    for place in order:
        if all(overlap(boxes[place], boxes[k], extra) <= limit for k in kept):
            kept.append(place)
            if eta < 1 and limit > 0.5:
                limit *= eta
    return kept


@pytest.mark.parametrize("eta", [1.0, 0.8])
@pytest.mark.parametrize(("normalised", "keep", "top"), [(True, -1, -1), (False, 5, -1), (True, 4, 6)])
def test_of_each_class_the_best_stay(eta: float, normalised: bool, keep: int, top: int) -> None:
    boxes, scores = boxes_of(2, 12), RNG.uniform(0, 1, (2, 3, 12)).astype(F32)
    op = MulticlassNMS(0.2, top, keep, 1, normalised, 0.55, eta)
    rows, places, counts = op.reference(boxes, scores)
    wanted: list[tuple[float, ...]] = []
    for n in range(2):
        found = []
        for c in (0, 2):
            order = [i for i in np.argsort(-scores[n, c], kind="stable") if scores[n, c, i] > 0.2]
            order = order[:top] if top > -1 else order
            chosen = suppressed(boxes[n], order, 0.55, eta, 0.0 if normalised else 1.0)
            found += [(c, scores[n, c, i], n * 12 + i) for i in chosen]
        if -1 < keep < len(found):
            found = sorted(sorted(found, key=lambda f: -f[1])[:keep], key=lambda f: f[0])
        assert counts[n] == len(found)
        wanted += found
    assert [tuple(r[:2]) for r in rows] == [(float(c), s) for c, s, _ in wanted]
    assert places.tolist() == [p for *_, p in wanted]
    np.testing.assert_array_equal(rows[:, 2:], boxes.reshape(-1, 4)[places])


def test_each_class_may_have_its_own_boxes() -> None:
    boxes, scores = boxes_of(1, 5, 2), RNG.uniform(0.3, 1, (1, 2, 5)).astype(F32)
    rows, places, _ = MulticlassNMS(nms_threshold=1.0).reference(boxes, scores)
    np.testing.assert_array_equal(rows[:, 2:], boxes[0, places, rows[:, 0].astype(int)])


def test_no_box_above_the_threshold_is_no_detection() -> None:
    rows, places, counts = MulticlassNMS(2.0).reference(boxes_of(3, 4), np.ones((3, 2, 4), F32))
    assert (rows.shape, places.shape, counts.tolist()) == ((0, 6), (0,), [0, 0, 0])


@pytest.mark.parametrize("gaussian", [False, True])
def test_scores_are_lowered_by_what_overlaps_them(gaussian: bool) -> None:
    boxes, scores = boxes_of(1, 8), np.sort(RNG.uniform(0, 1, (1, 1, 8)).astype(F32))[:, :, ::-1]
    rows, places, _ = MatrixNMS(0.1, -1, -1, -1, True, 0.2, gaussian, 2.0).reference(boxes, scores)
    order = [i for i in range(8) if scores[0, 0, i] > 0.1]
    shared = {(i, j): overlap(boxes[0, i], boxes[0, j], 0.0) for i in order for j in order}
    worst = {i: max((shared[i, j] for j in order if j < i), default=0.0) for i in order}
    wanted = {}
    for i in order:
        decay = [
            math.exp((worst[j] ** 2 - shared[i, j] ** 2) * 2) if gaussian else (1 - shared[i, j]) / (1 - worst[j])
            for j in order
            if j < i
        ]
        lowered = scores[0, 0, i] * min([1.0, *decay])
        if lowered > 0.2:
            wanted[i] = lowered
    assert sorted(places.tolist()) == sorted(wanted)
    np.testing.assert_allclose(rows[:, 1], [wanted[int(p)] for p in places], rtol=1e-5)
    assert (np.diff(rows[:, 1]) <= 0).all()


@pytest.mark.parametrize("offset", [False, True])
def test_regions_are_decoded_clipped_and_suppressed(offset: bool) -> None:
    n, a, h, w = 2, 2, 3, 2
    scores, deltas = RNG.uniform(0, 1, (n, a, h, w)).astype(F32), RNG.normal(0, 0.3, (n, 4 * a, h, w)).astype(F32)
    images, anchors = np.array([[20, 24], [18, 30]], F32), boxes_of(h, w, a)
    op = GenerateProposals(9, 4, 0.5, 2.0, 1.0, offset)
    regions, likely, counts = op.reference(scores, deltas, images, anchors, np.full((h, w, a, 4), 0.5, F32))
    extra, at = float(offset), 0
    for i in range(n):
        rows = []
        for y, x, k in np.ndindex(h, w, a):
            anchor, move = anchors[y, x, k], deltas[i, 4 * k : 4 * k + 4, y, x] * 0.5
            sides = anchor[2:] - anchor[:2] + extra
            centre, size = anchor[:2] + sides / 2 + move[:2] * sides, np.exp(move[2:]) * sides
            box = np.concatenate([centre - size / 2, centre + size / 2 - extra])
            limit = np.array([images[i, 1], images[i, 0]] * 2) - extra
            rows.append((scores[i, k, y, x], np.clip(box, 0, limit)))
        rows = sorted(rows, key=lambda r: -r[0])[:9]
        rows = [r for r in rows if min(r[1][2:] - r[1][:2] + extra) >= 2.0]
        kept = suppressed(np.array([r[1] for r in rows]), list(range(len(rows))), 0.5, 1.0, extra)[:4]
        assert counts[i] == len(kept)
        for k in kept:
            np.testing.assert_allclose(regions[at], rows[k][1], rtol=1e-5, atol=1e-5)
            assert likely[at, 0] == rows[k][0]
            at += 1


def test_bins_average_the_channels_that_belong_to_them() -> None:
    x = RNG.standard_normal((1, 2 * 2 * 3, 6, 7)).astype(F32)
    got = PSRoiPool((2, 3), 0.5).reference(x, np.array([[0, 2, 2, 9, 7]], F32))
    for c, i, j in np.ndindex(2, 2, 3):
        high, wide = 3.0 / 2, 4.0 / 3
        rows = slice(math.floor(1 + i * high), math.ceil(1 + (i + 1) * high))
        columns = slice(math.floor(1 + j * wide), math.ceil(1 + (j + 1) * wide))
        wanted = x[0, (c * 2 + i) * 3 + j, rows, columns].mean()
        np.testing.assert_allclose(got[0, c, i, j], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "shapes", "what"),
    [
        (PSRoiPool((2, 2)), ((1, 6, 4, 4), (1, 5)), "channels of x"),
        (MulticlassNMS(), ((1, 3, 4), (1, 2, 4)), "boxes"),
        (MulticlassNMS(), ((1, 4, 3, 4), (1, 2, 4)), "boxes"),
        (GenerateProposals(), ((1, 2, 3, 3), (1, 4, 3, 3), (1, 2), (3, 3, 2, 4)), "deltas"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(op: Any, shapes: tuple[tuple[int, ...], ...], what: str) -> None:
    with pytest.raises(ShapeError, match=what):
        op.infer(*(type_of(np.zeros(s, F32)) for s in shapes))


def test_a_region_of_no_image_is_refused() -> None:
    with pytest.raises(DataError, match="PSRoiPool: rois"):
        PSRoiPool((1, 1)).reference(np.zeros((1, 1, 2, 2), F32), np.array([[1, 0, 0, 1, 1]], F32))
