"""Detections chosen among boxes of several classes; proposals of regions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bolt_numba.base.budget import spend
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I64, Array, Dim, TensorType
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype
from bolt_numba.ops.shapes import shape_of, want_dims


def overlaps(box: Array, others: Array, extra: float) -> Array:
    """Intersection over union of a box (x, y, x, y) with others; a side is ``extra`` longer than its ends are apart."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]) + box.dtype.type(extra)
    apart = (others[:, 0] > box[2]) | (others[:, 2] < box[0]) | (others[:, 1] > box[3]) | (others[:, 3] < box[1])
    shared = np.where(apart, 0, sides[:, 0] * sides[:, 1])
    union = _area(box, extra) + _area(others, extra) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union != 0))


def _area(boxes: Array, extra: float) -> Array:
    """Products of sides; 0 of boxes whose ends stand in the wrong order."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return np.where((sides < 0).any(-1), 0, np.prod(sides + boxes.dtype.type(extra), axis=-1))


def kept_boxes(boxes: Array, limit: float, eta: float, extra: float, most: int = -1) -> Array:
    """Places of the boxes, best first, that none kept before overlaps by more than the limit.

    eta: what the limit shrinks by with each box that is kept, while it is above 0.5.
    """
    left = np.arange(len(boxes))
    kept: list[int] = []
    if eta >= 1:
        while left.size and len(kept) != most:
            spend(8 * left.size, "suppression of boxes")
            kept.append(int(left[0]))
            rest = left[1:]
            left = rest[~(overlaps(boxes[left[0]], boxes[rest], extra) > limit)]
        return np.array(kept, I64)
    for place in left:
        spend(8 * (len(kept) + 1), "suppression of boxes")
        if len(kept) == most:
            break
        if not (overlaps(boxes[place], boxes[kept], extra) > limit).any():
            kept.append(int(place))
            limit *= eta if limit > 0.5 else 1
    return np.array(kept, I64)


def best_first(scores: Array, threshold: float, most: int) -> Array:
    """Places of the scores above a threshold in descending order, at most ``most`` of them where that is not -1."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > threshold]
    return order[:most] if most > -1 else order


@record(frozen=True)
class _Detections(Op):
    """Attributes and shapes of what chooses among boxes of classes.

    boxes: [n, m, 4] of all classes, or [n, m, c, 4] of each; two corners x, y, x, y · scores: [n, c, m], f32 or f64 ->
    detections: [k, 6] class, score, box; places: [k] i64, of each in the m boxes of all images; counts: [n] i64.
    normalised: coordinates are shares of the image, so that a side is as long as its ends are apart; else one more.
    """

    score_threshold: float = 0.0
    nms_top_k: int = -1
    keep_top_k: int = -1
    background: int = -1
    normalised: bool = True

    def infer(self, boxes: TensorType, scores: TensorType) -> tuple[TensorType, ...]:
        dtype = same_dtype(self, boxes, scores)
        want_dtype(self, "boxes", dtype, *FLOATS)
        shape = shape_of(self, "scores", scores, 3)
        n, c, m = shape or (None, None, None)
        if boxes.shape is not None and len(boxes.shape) == 4:
            want_dims(self, "boxes", boxes, n, m, c, 4)
        else:
            want_dims(self, "boxes", boxes, n, m, 4)
        count: Dim = fresh_dim("detections")
        images: Dim = fresh_dim() if n is None else n
        return TensorType(dtype, (count, 6)), TensorType(I64, (count,)), TensorType(I64, (images,))

    def of_class(self, boxes: Array, scores: Array) -> tuple[Array, Array]:
        """Places and scores of what is kept of one class.  For the operator to say."""
        raise NotImplementedError

    def in_order(self, labels: Array, scores: Array) -> Array:
        """The order of an image's detections, and which of them stay.  For the operator to say."""
        raise NotImplementedError

    def reference(self, boxes: Array, scores: Array) -> tuple[Array, Array, Array]:
        data, wide = widened(boxes), widened(scores)
        rows, places, counts = [], [], []
        for n in range(scores.shape[0]):
            found = list(self._of_image(data[n], wide[n]))
            labels, where, values = (np.concatenate(parts) for parts in zip(*found, strict=True)) if found else _NONE
            order = self.in_order(labels, values)
            labels, where, values = labels[order], where[order], values[order]
            picked = data[n, where] if data.ndim == 3 else data[n, where, labels]
            rows.append(np.column_stack([labels, values, picked.reshape(-1, 4)]).astype(scores.dtype))
            places.append(where + n * scores.shape[2])
            counts.append(len(order))
        if not rows:
            rows, places = [np.empty((0, 6), scores.dtype)], [np.empty(0, I64)]
        return np.concatenate(rows), np.concatenate(places).astype(I64), np.array(counts, I64)

    def _of_image(self, boxes: Array, scores: Array) -> Iterator[tuple[Array, Array, Array]]:
        for label, row in enumerate(scores):
            if label != self.background:
                places, values = self.of_class(boxes if boxes.ndim == 2 else boxes[:, label], row)
                yield np.full(len(places), label, I64), places, values


_NONE = (np.empty(0, I64), np.empty(0, I64), np.empty(0, F32))


@op("MulticlassNMS")
class MulticlassNMS(_Detections):
    """Boxes of each class that none of a better score overlaps by more than ``nms_threshold``, class by class.

    Operands, results and attributes: see `_Detections`.  nms_top_k: boxes of a class that are looked at, keep_top_k:
    detections of an image, the best; -1 for all.  Source: `multiclass_nms3` of Paddle 3.
    """

    nms_threshold: float = 0.3
    eta: float = 1.0

    def of_class(self, boxes: Array, scores: Array) -> tuple[Array, Array]:
        order = best_first(scores, self.score_threshold, self.nms_top_k)
        kept = order[kept_boxes(boxes[order], self.nms_threshold, self.eta, 0.0 if self.normalised else 1.0)]
        return kept, scores[kept]

    def in_order(self, labels: Array, scores: Array) -> Array:
        if not -1 < self.keep_top_k < len(scores):
            return np.arange(len(scores))
        best = np.argsort(-scores, kind="stable")[: self.keep_top_k]
        return best[np.argsort(labels[best], kind="stable")]


@op("MatrixNMS")
class MatrixNMS(_Detections):
    """Boxes whose scores, lowered by what better ones of their class overlap them, are above ``post_threshold``.

    Operands, results and attributes: see `_Detections`; detections of an image come by their lowered scores.
    Source: Wang et al., SOLOv2 (2020), as `matrix_nms` of Paddle 3 has it.
    """

    post_threshold: float = 0.0
    use_gaussian: bool = False
    sigma: float = 2.0

    def of_class(self, boxes: Array, scores: Array) -> tuple[Array, Array]:
        order = best_first(scores, self.score_threshold, self.nms_top_k)
        spend(8 * len(order) ** 2, self.name)
        extra = 0.0 if self.normalised else 1.0
        chosen = boxes[order]
        shared = np.array([overlaps(box, chosen, extra) for box in chosen]).reshape(len(order), len(order))
        shared = np.tril(shared, -1)
        worst = shared.max(1, initial=0)
        with np.errstate(all="ignore"):
            linear = (1 - shared) / (1 - worst)
            decay = np.exp((worst**2 - shared**2) * self.sigma) if self.use_gaussian else linear
        below = np.tril(np.ones_like(shared, bool), -1)
        lowered = scores[order] * np.where(below, decay, 1).min(1, initial=1)
        stays = lowered > self.post_threshold
        return order[stays], lowered[stays].astype(scores.dtype)

    def in_order(self, labels: Array, scores: Array) -> Array:
        order = np.argsort(-scores, kind="stable")
        return order[: self.keep_top_k] if self.keep_top_k > -1 else order


BIGGEST = math.log(1000 / 16)
"""The greatest logarithm by which a proposal is larger than its anchor."""


@op("GenerateProposals")
class GenerateProposals(Op):
    """Regions made of anchors and of what a network says of them: decoded, clipped, and suppressed image by image.

    scores: [n, a, h, w] · deltas: [n, 4 a, h, w] · images: [n, 2] heights and widths · anchors: [h, w, a, 4] ·
    variances: like anchors -> regions: [k, 4]; their scores: [k, 1]; counts: [n] i64.  pixel_offset: a side is one
    longer than its ends are apart.  Source: `generate_proposals` of Paddle 3.
    """

    pre_nms_top_n: int = 6000
    post_nms_top_n: int = 1000
    nms_threshold: float = 0.5
    min_size: float = 0.1
    eta: float = 1.0
    pixel_offset: bool = True

    def infer(
        self,
        scores: TensorType,
        deltas: TensorType,
        images: TensorType,
        anchors: TensorType,
        variances: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        dtype = same_dtype(self, scores, deltas, images, anchors, variances)
        want_dtype(self, "scores", dtype, *FLOATS)
        n, a, h, w = shape_of(self, "scores", scores, 4) or (None,) * 4
        want_dims(self, "deltas", deltas, n, None if a is None else 4 * a, h, w)
        want_dims(self, "images", images, n, 2)
        want_dims(self, "anchors", anchors, h, w, a, 4)
        want_dims(self, "variances", variances, h, w, a, 4)
        count: Dim = fresh_dim("regions")
        return (
            TensorType(dtype, (count, 4)), TensorType(dtype, (count, 1)),
            TensorType(I64, (fresh_dim() if n is None else n,)),
        )  # fmt: skip

    def reference(
        self, scores: Array, deltas: Array, images: Array, anchors: Array, variances: Array | None = None
    ) -> tuple[Array, Array, Array]:
        n, a, h, w = scores.shape
        values = widened(scores).transpose(0, 2, 3, 1).reshape(n, -1)
        moves = widened(deltas).reshape(n, a, 4, h, w).transpose(0, 3, 4, 1, 2).reshape(n, -1, 4)
        shares = None if variances is None else widened(variances).reshape(-1, 4)
        found = [
            self._of_image(values[i], moves[i], widened(images)[i], widened(anchors).reshape(-1, 4), shares)
            for i in range(n)
        ]
        regions = [np.empty((0, 4), scores.dtype), *(boxes for boxes, _ in found)]
        likely = [np.empty((0, 1), scores.dtype), *(s.reshape(-1, 1) for _, s in found)]
        counts = np.array([len(boxes) for boxes, _ in found], I64)
        return np.concatenate(regions).astype(scores.dtype), np.concatenate(likely).astype(scores.dtype), counts

    def _of_image(
        self, scores: Array, moves: Array, image: Array, anchors: Array, variances: Array | None
    ) -> tuple[Array, Array]:
        most = self.pre_nms_top_n
        order = np.argsort(-scores, kind="stable")[: most if 0 < most < len(scores) else None]
        extra = 1.0 if self.pixel_offset else 0.0
        boxes = _decoded(anchors[order], moves[order], None if variances is None else variances[order], extra)
        limits = np.array([image[1], image[0]] * 2, boxes.dtype) - boxes.dtype.type(extra)
        boxes = np.maximum(np.minimum(boxes, limits), 0)
        sides = boxes[:, 2:] - boxes[:, :2] + boxes.dtype.type(extra)
        large = (sides >= max(self.min_size, 1.0 if self.pixel_offset else 0.0)).all(1)
        if self.pixel_offset:
            large &= ((boxes[:, :2] + sides / 2) <= image[::-1]).all(1)
        boxes, values = boxes[large], scores[order][large]
        if not len(boxes):  # one empty region stands for none
            return np.zeros((1, 4), scores.dtype), np.zeros(1, scores.dtype)
        if self.nms_threshold <= 0:
            return boxes, values
        most = self.post_nms_top_n if self.post_nms_top_n > 0 else -1
        kept = kept_boxes(boxes, self.nms_threshold, self.eta, extra)
        kept = kept[:most] if most > 0 else kept
        return boxes[kept], values[kept]


def _decoded(anchors: Array, moves: Array, variances: Array | None, extra: float) -> Array:
    """Anchors, moved by shares of their sides and scaled by exponentials, as corners."""
    size = anchors[:, 2:] - anchors[:, :2] + anchors.dtype.type(extra)
    centre = anchors[:, :2] + size / 2
    scaled = moves if variances is None else moves * variances
    middle = centre + scaled[:, :2] * size
    half = np.exp(np.minimum(scaled[:, 2:], anchors.dtype.type(BIGGEST))) * size / 2
    return np.concatenate([middle - half, middle + half - anchors.dtype.type(extra)], axis=1)
