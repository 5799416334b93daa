"""Boxes of detectors: those that a network corrects, and those that are left of what it finds."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32, I64, Array, TensorType
from bolt_numba.ops.layers.detection.suppression import MulticlassNMS
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype
from bolt_numba.ops.shapes import shape_of

ROW = 7
"""Numbers of a detection: image, class, score, x1, y1, x2, y2."""


@op("PriorBox")
class PriorBox(Op):
    """Boxes of several sizes and aspect ratios around the centre of each cell of a feature map, and their variances.

    x: [n, c, h, w] the map, image: [n, c, height, width] f32, of which only the sizes are read -> y: [1, 2, 4 h w k]
    f32, corners x1 y1 x2 y2 as parts of the image, then the variances.  For each least size: its square, the square
    between it and its greatest size, and one box for each further ratio.  image_size, steps: (height, width) in place
    of those that follow from the operands; offset: of a centre in its cell.  Source: SSD's layer PriorBox.
    """

    min_sizes: tuple[float, ...]
    max_sizes: tuple[float, ...] = ()
    aspect_ratios: tuple[float, ...] = ()
    flip: bool = True
    clip: bool = False
    variances: tuple[float, ...] = ()
    image_size: tuple[int, int] | None = None
    steps: tuple[float, float] | None = None
    offset: float = 0.5
    reads_only_shape = True

    def infer(self, x: TensorType, image: TensorType) -> TensorType:
        shape = shape_of(self, "x", x, 4)
        shape_of(self, "image", image, 4)
        if self.max_sizes and len(self.max_sizes) != len(self.min_sizes):
            raise self.fail("max_sizes", self.max_sizes, f"none, or {len(self.min_sizes)}")
        numbers = (*self.min_sizes, *self.max_sizes, *self.aspect_ratios)
        if not self.min_sizes or not all(math.isfinite(v) and v > 0 for v in numbers):
            raise self.fail("sizes and ratios", numbers, "finite numbers above 0, and at least one size")
        self.fail_if(len(self.variances) not in (0, 1, 4), "variances", self.variances, "none, 1 or 4")
        if shape is None:
            return TensorType(F32, (1, 2, fresh_dim("boxes")))
        return TensorType(F32, (1, 2, shape[2] * shape[3] * (4 * len(self._sizes()))))

    def ratios(self) -> list[float]:
        """Aspect ratios beside 1, each once; with ``flip`` their inverses too."""
        made = [1.0]
        for ratio in self.aspect_ratios:
            if all(abs(ratio - known) >= 1e-6 for known in made):
                made += [ratio, 1 / ratio] if self.flip else [ratio]
        return made[1:]

    def _sizes(self) -> list[tuple[float, float]]:
        """Width and height of the boxes of a cell, in pixels."""
        made = []
        for i, least in enumerate(self.min_sizes):
            made.append((least, least))
            if self.max_sizes:
                between = math.sqrt(least * self.max_sizes[i])
                made.append((between, between))
            made += [(least * math.sqrt(r), least / math.sqrt(r)) for r in self.ratios()]
        return made

    def reference(self, x: Array, image: Array) -> Array:
        h, w = x.shape[2:]
        height, width = self.image_size or image.shape[2:]
        step_h, step_w = self.steps or (height / max(h, 1), width / max(w, 1))
        sizes = np.array(self._sizes()) / 2
        ask(64 * h * w * len(sizes), f"{self.name}: boxes of {h} x {w} cells")
        centres_y, centres_x = (np.arange(h) + self.offset) * step_h, (np.arange(w) + self.offset) * step_w
        grid = np.stack(np.broadcast_arrays(centres_x[None, :, None], centres_y[:, None, None]), axis=-1)
        boxes = np.concatenate([grid - sizes, grid + sizes], axis=-1) / (width, height, width, height)
        if self.clip:
            boxes = np.clip(boxes, 0, 1)
        spread = np.broadcast_to(np.array(self.variances or (0.1,)), (h * w * len(sizes), 4))
        return np.stack([boxes.reshape(-1), spread.reshape(-1)])[None].astype(F32)


@op("DetectionOutput")
class DetectionOutput(Op):
    """Rows of what `MulticlassNMS` chooses: image, class, score, box.

    boxes: [n, m, 4] of all classes, or [n, m, c, 4] of each; corners x, y, x, y · scores: [n, c, m], f32 ->
    y: [k, 7] f32; places: [k] i64, of each in the m boxes of all images.  fill: where nothing at all is chosen, a row
    of -1 behind its number for each image.  Other attributes: those of `MulticlassNMS`.
    Source: Liu et al., SSD (2016), its layer DetectionOutput.
    """

    score_threshold: float = -math.inf
    nms_threshold: float = 0.3
    nms_top_k: int = -1
    keep_top_k: int = -1
    background: int = 0
    eta: float = 1.0
    fill: bool = True

    def infer(self, boxes: TensorType, scores: TensorType) -> tuple[TensorType, TensorType]:
        want_dtype(self, "scores", scores.dtype, F32)
        places = self.chosen.infer(boxes, scores)[1]
        return TensorType(F32, (*(places.shape or ()), ROW)), places

    @property
    def chosen(self) -> MulticlassNMS:
        """What chooses."""
        return MulticlassNMS(
            self.score_threshold, self.nms_top_k, self.keep_top_k, self.background, True, self.nms_threshold, self.eta
        )

    def reference(self, boxes: Array, scores: Array) -> tuple[Array, Array]:
        rows, places, _ = self.chosen.reference(boxes, scores)
        images = places // max(scores.shape[2], 1)
        return self.filled(np.column_stack([images, rows]).astype(F32), places, len(scores))

    def filled(self, rows: Array, places: Array, images: int) -> tuple[Array, Array]:
        """The rows themselves; where there are none, those that stand for nothing."""
        if len(rows) or not self.fill:
            return rows, places
        made = np.full((images, ROW), -1, F32)
        made[:, 0] = np.arange(images)
        return made, np.full(images, -1, I64)
