"""Cases of the boxes of detectors."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.layers.detection.boxes import DetectionOutput, PriorBox
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, pick, whole


@cases(PriorBox)
def prior_box(draw: Draw, op: type[PriorBox]) -> Case:
    x, image = whole(draw, (1, 2, pick(draw, 1, 3), pick(draw, 1, 4))), whole(draw, (1, 3, 20, 30))
    smallest = pick(draw, (4.0,), (3.0, 5.0))
    operator = op(
        smallest,
        pick(draw, (), tuple(2 * s for s in smallest)),
        pick(draw, (), (2.0,), (2.0, 3.0, 1.0)),
        draw(flags),
        draw(flags),
        pick(draw, (), (0.2,), (0.1, 0.1, 0.2, 0.2)),
        pick(draw, None, (40, 50)),
        pick(draw, None, (7.0, 8.0)),
        pick(draw, 0.5, 0.0),
    )
    return Case(operator, (x, image), exact=False)


@cases(DetectionOutput)
def detection_output(draw: Draw, op: type[DetectionOutput]) -> Case:
    n, c, m = pick(draw, 1, 2), pick(draw, 1, 2, 4), pick(draw, 1, 7, 40)
    begins = whole(draw, (n, m, c, 2) if draw(flags) else (n, m, 2), 0, 20)
    boxes = np.concatenate([begins, begins + whole(draw, begins.shape, -1, 12)], axis=-1) / np.float32(16)
    scores = whole(draw, (n, c, m), 0, 16) / np.float32(16)
    operator = op(
        pick(draw, -np.inf, 0.25, 0.5, 2.0),
        pick(draw, 0.3, 0.55, 0.9),
        pick(draw, -1, 0, 3, 100),
        pick(draw, -1, 0, 2, 5, 100),
        pick(draw, -1, 0),
        pick(draw, 1.0, 0.75),
        draw(flags),
    )
    return Case(operator, (boxes.astype(np.float32), scores.astype(np.float32)))
