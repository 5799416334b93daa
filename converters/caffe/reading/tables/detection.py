"""Readers of what detectors end with: SSD's boxes, regions of interest, YOLO's grids."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.converters.as_is import REQUIRED, AsIs
from bolt_numba.converters.builder import Floats, ints
from bolt_numba.converters.caffe.message import Message, integer, last, number
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, Reshape, Split, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.detection.boxes import DetectionOutput, PriorBox
from bolt_numba.ops.layers.detection.regions import MaxRoiPool, PSRoiPool
from bolt_numba.ops.layers.detection.suppression import MulticlassNMS
from bolt_numba.ops.pointwise import Add, And, Clip, Exp, GreaterOrEqual, Max, Min, Mul, Sub, Where

MOST_PRIORS = 1 << 22
"""Boxes that are computed while a model is read."""


def _priors(
    b: LayerBuilder,
    made: PriorBox,
    x: Value,
    image: Value,
    *,
    img_size: int = 0,
    img_h: int = 0,
    img_w: int = 0,
    step: float = 0.0,
    step_h: float = 0.0,
    step_w: float = 0.0,
) -> Value:
    """Constants where the sizes of both bottoms are known, which they mostly are."""
    size, steps = (img_size or img_h, img_size or img_w), (step or step_h, step or step_w)
    operator = replace(made, image_size=size if all(size) else None, steps=steps if all(steps) else None)
    result = operator.infer(x.type, image.type)
    if not (result.is_static and x.type.is_static and image.type.is_static) or result.size > MOST_PRIORS:
        return b(operator, x, image)
    return b.const(operator.reference(*(np.broadcast_to(F32.type(0), v.type.dims) for v in (x, image))), "priors")


_SIZES: dict[str, Any] = {"min_size": REQUIRED, "max_size": (), "aspect_ratio": (), "flip": True, "clip": False}
_BOXES = AsIs(PriorBox, "x image", lacks=["image_size", "steps"], then=_priors, **_SIZES, variance=(), offset=0.5)
reader("PriorBox")(_BOXES)


@reader("DetectionOutput")
def detection_output(
    b: LayerBuilder,
    location: Value,
    confidence: Value,
    priors: Value,
    image: Value | None = None,
    *,
    num_classes: int,
    share_location: bool = True,
    background_label_id: int = 0,
    nms_param: Message | None = None,
    code_type: str = "CORNER",
    keep_top_k: int = -1,
    variance_encoded_in_target: bool = False,
    confidence_threshold: float = -math.inf,
    clip: bool = False,
) -> Value:
    """[1, 1, found, 7]: image, class, score and corners as parts of the image; [1, 1, n, 7] of -1 for nothing."""
    nms, what = nms_param or {}, f"{b.what}: nms_param"
    unknown = nms.keys() - {"nms_threshold", "top_k", "eta"}
    if unknown or num_classes < 1:
        raise b.invalid("nms_param and num_classes", (sorted(unknown), num_classes), "known fields, some classes")
    sets = 1 if share_location else num_classes
    count = b.static_dim(priors, 2) // 4
    boxes = b(Reshape(), location, ints([0, count, sets, 4]))
    rows = b.node(Split(1, 2), priors).outputs
    corners, spread = (b(Reshape(), v, ints([1, count, 1, 4])) for v in rows)
    decoded = _decoded(b, code_type, boxes, corners, None if variance_encoded_in_target else spread)
    if clip:
        decoded = b(Clip(0.0, 1.0), decoded)
    scores = b(Transpose((0, 2, 1)), b(Reshape(), confidence, ints([0, count, num_classes])))
    operator = DetectionOutput(
        confidence_threshold,
        number(last(nms, "nms_threshold", 0.3), what),
        integer(last(nms, "top_k", -1), what),
        keep_top_k,
        background_label_id,
        number(last(nms, "eta", 1.0), what),
    )
    found, _ = b(operator, b(Reshape(), decoded, ints([0, count, 4])) if sets == 1 else decoded, scores)
    return b(Unsqueeze(), found, ints([0, 1]))


def _decoded(b: LayerBuilder, code: str, boxes: Value, priors: Value, spread: Value | None) -> Value:
    """Corners of boxes, which are given relative to the priors, in units of their variances; all [..., 4]."""
    if spread is not None:
        boxes = b(Mul(), boxes, spread)
    begin, end = _halves(b, priors)
    first, second = _halves(b, boxes)
    if code == "CORNER":
        return b(Add(), priors, boxes)
    size = b(Sub(), end, begin)
    if code == "CORNER_SIZE":
        return b(Add(), priors, b(Mul(), boxes, b(Concat(3), size, size)))
    b.invalid_if(code != "CENTER_SIZE", "code_type", code, "CORNER, CENTER_SIZE or CORNER_SIZE")
    centre = b(Add(), b(Mul(), first, size), b(Mul(), b(Add(), begin, end), 0.5))
    half = b(Mul(), b(Mul(), b(Exp(), second), size), 0.5)
    return b(Concat(3), b(Sub(), centre, half), b(Add(), centre, half))


def _halves(b: LayerBuilder, x: Value) -> list[Value]:
    """The first two and the last two of the last axis."""
    outputs: list[Value] = b.node(Split(b.rank_of(x) - 1, 2), x).outputs
    return outputs


@reader("ROIPooling")
def roi_pooling(
    b: LayerBuilder, x: Value, rois: Value, *, pooled_h: int, pooled_w: int, spatial_scale: float = 1.0
) -> Value:
    """The greatest numbers in the bins of regions [r, 5], or [r, 5, 1, 1]."""
    flat = rois if b.rank_of(rois) == 2 else b(Reshape(), rois, ints([-1, 5]))
    return b(MaxRoiPool((pooled_h, pooled_w), spatial_scale), x, flat)


@reader("PSROIPooling")
def psroi_pooling(
    b: LayerBuilder, x: Value, rois: Value, *, output_dim: int, group_size: int, spatial_scale: float
) -> Value:
    """Means of the bins of regions, each of the channels that belong to its bin."""
    if b.static_dim(x, 1) != output_dim * group_size * group_size:
        raise b.invalid("output_dim and group_size", (output_dim, group_size), f"{b.static_dim(x, 1)} channels")
    flat = rois if b.rank_of(rois) == 2 else b(Reshape(), rois, ints([-1, 5]))
    return b(PSRoiPool((group_size, group_size), spatial_scale), x, flat)


@reader("Proposal")
def proposal(
    b: LayerBuilder,
    scores: Value,
    deltas: Value,
    info: Value,
    *,
    feat_stride: int = 16,
    base_size: int = 16,
    min_size: int = 16,
    ratio: Floats = (0.5, 1.0, 2.0),
    scale: Floats = (8.0, 16.0, 32.0),
    pre_nms_topn: int = 6000,
    post_nms_topn: int = 300,
    nms_thresh: float = 0.7,
) -> tuple[Value, Value] | Value:
    """Regions [r, 5] of one image: its number, corners in pixels.  info: [1, 3], height, width, scale of the image.

    Source: the layer of Faster R-CNN.
    """
    h, w = b.static_dim(scores, 2), b.static_dim(scores, 3)
    anchors = _anchors(base_size, ratio, scale)
    count = len(anchors)
    shifts = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1) * feat_stride
    grid = (np.concatenate([shifts, shifts], axis=-1)[:, :, None] + anchors).reshape(1, -1, 4).astype(F32)
    places = b(Transpose((0, 3, 4, 1, 2)), b(Reshape(), deltas, ints([1, count, 4, h, w])))
    first, second = _halves(b, b(Reshape(), places, ints([1, -1, 4])))
    size = grid[..., 2:] - grid[..., :2] + F32.type(1)
    centre = b(Add(), b(Mul(), first, size), grid[..., :2] + F32.type(0.5) * size)
    half = b(Mul(), b(Mul(), b(Exp(), second), size), 0.5)
    ends = b(Sub(), b(Gather(1), b(Reshape(), info, ints([1, -1])), ints([1, 0, 1, 0])), 1.0)
    corners = b(Concat(2), b(Sub(), centre, half), b(Add(), centre, half))
    corners = b(Max(), b(Min(), corners, ends), 0.0)
    begin, end = _halves(b, corners)
    least = b(Mul(), b(Gather(1), b(Reshape(), info, ints([1, -1])), ints([2])), float(min_size))
    wide = b(GreaterOrEqual(), b(Add(), b(Sub(), end, begin), 1.0), least)
    large = b(And(), *b.node(Split(2, 2), wide).outputs)
    foreground = b(Slice(), scores, ints([count]), ints([2 * count]), ints([1]))
    flat = b(Reshape(), b(Transpose((0, 2, 3, 1)), foreground), ints([1, -1, 1]))
    chosen = b(Where(), large, flat, b.const(F32.type(-math.inf)))
    operator = MulticlassNMS(-math.inf, pre_nms_topn, post_nms_topn, -1, False, nms_thresh)
    found, _, _ = b(operator, corners, b(Reshape(), chosen, ints([1, 1, -1])))
    image, score, places = b.node(Split(1, 3), found, ints([1, 1, 4])).outputs  # of the only class, 0
    rois = b(Concat(1), image, places)
    return (rois, score) if b.wants(1) else rois


@reader("Python")
def python(b: LayerBuilder, *xs: Value, module: str = "", layer: str = "", param_str: str = "") -> Any:
    """The layer of proposals that Faster R-CNN has as a script; of others nobody knows what they do."""
    b.unsupported_if(layer != "ProposalLayer" or len(xs) != 3, f"script {module}.{layer}")
    stride = re.search(r"feat_stride\W*:\s*(\d{1,6})\b", param_str)
    return proposal(b, *xs, feat_stride=int(stride[1]) if stride else 16)


def _anchors(base: int, ratios: Floats, scales: Floats) -> Array:
    """Boxes around the first cell, in pixels that belong to them: for each ratio all scales."""
    made = []
    centre = 0.5 * (base - 1)
    for r in ratios:
        wide = np.round(math.sqrt(base * base / r))
        high = np.round(wide * r)
        for s in scales:
            half_w, half_h = 0.5 * (wide * s - 1), 0.5 * (high * s - 1)
            made.append((centre - half_w, centre - half_h, centre + half_w, centre + half_h))
    return np.array(made, F32)


@reader("Reorg")
def reorg(b: LayerBuilder, x: Value, *, stride: int, reverse: bool = False) -> Value:
    """Pixels to channels, in the order of Darknet: it reads the numbers as if channels had been taken apart before."""
    c, h, w = (b.static_dim(x, i) for i in (1, 2, 3))
    s = stride
    if not 1 <= s <= 1 << 10 or c % (s * s) or (not reverse and (h % s or w % s)):
        raise b.invalid("stride", s, f"a divisor of {(h, w)} whose square divides {c} channels")
    if reverse:
        y = b(Transpose((0, 3, 4, 1, 5, 2)), b(Reshape(), x, ints([0, s, s, c // (s * s), h, w])))
        return b(Reshape(), y, ints([0, c // (s * s), h * s, w * s]))
    y = b(Transpose((0, 3, 5, 1, 2, 4)), b(Reshape(), x, ints([0, c // (s * s), h, s, w, s])))
    return b(Reshape(), y, ints([0, c * s * s, h // s, w // s]))
