"""Cases of detections and of proposals."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.layers.detection import suppression as s
from bolt_numba.types import F32, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, pick, real, whole


def corners(draw: Draw, *dims: int) -> Array:
    """Boxes of whole coordinates, so that overlaps are exact."""
    begins = whole(draw, (*dims, 2), 0, 9)
    return np.concatenate([begins, begins + whole(draw, (*dims, 2), 1, 6)], axis=-1).astype(F32)


def detections(draw: Draw, op: Any, **more: Any) -> Case:
    n, c, m = pick(draw, 1, 2), pick(draw, 1, 3), pick(draw, 1, 7)
    boxes = corners(draw, n, m) if draw(flags) else corners(draw, n, m, c)
    scores = np.round(real(draw, (n, c, m), 0, 1), 3)
    made = op(
        score_threshold=0.25, nms_top_k=pick(draw, -1, 4), keep_top_k=pick(draw, -1, 3),
        background=pick(draw, -1, 0), normalised=draw(flags), **more,
    )  # fmt: skip
    return Case(made, (boxes, scores), exact=False)


@cases(s.MulticlassNMS)
def multiclass(draw: Draw, op: type[s.MulticlassNMS]) -> Case:
    return detections(draw, op, nms_threshold=pick(draw, 0.31, 0.71), eta=pick(draw, 1.0, 0.9))


@cases(s.MatrixNMS)
def matrix(draw: Draw, op: type[s.MatrixNMS]) -> Case:
    return detections(draw, op, post_threshold=pick(draw, 0.0, 0.4), use_gaussian=draw(flags))


@cases(s.GenerateProposals)
def proposals(draw: Draw, op: type[s.GenerateProposals]) -> Case:
    n, a, h, w = pick(draw, 1, 2), pick(draw, 1, 3), 2, 3
    operands = (
        real(draw, (n, a, h, w), 0, 1), real(draw, (n, 4 * a, h, w), -0.5, 0.5), np.full((n, 2), 16, F32),
        corners(draw, h, w, a), real(draw, (h, w, a, 4), 0.5, 1),
    )  # fmt: skip
    made = op(pick(draw, 6, 100), pick(draw, 3, 50), 0.6, 1.0, pick(draw, 1.0, 0.9), draw(flags))
    return Case(made, operands if draw(flags) else operands[:4], exact=False, rtol=1e-4)
