"""Readers of regions: pooling them, choosing among them, sending them to levels of a pyramid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I32, I64, Sym
from bolt_numba.converters.as_is import REQUIRED, AsIs
from bolt_numba.converters.builder import ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Compress, Gather, NonMaxSuppression, ScatterElements
from bolt_numba.ops.arrays.reduce import CumSum, ReduceSum, TopK
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.layers.detection.regions import MaxRoiPool, PSRoiPool, RoiAlign
from bolt_numba.ops.layers.detection.suppression import GenerateProposals, MatrixNMS, MulticlassNMS

_ROIS = {"ROIs": "boxes", "RoisNum": "boxes_num"}


def _images_in(b: PaddleBuilder, x: Value, boxes: Value, boxes_num: Value | None) -> Value:
    """`images_of`, where several images in x need the number of boxes of each."""
    images = b.dim_of(x, 0)
    if boxes_num is None and not isinstance(images, Sym) and images > 1:
        raise b.unsupported(f"regions of {images} images without RoisNum")
    return images_of(b, boxes, boxes_num)


def images_of(b: PaddleBuilder, boxes: Value, boxes_num: Value | None) -> Value:
    """The image of each region, [r] i64: as many of each as ``boxes_num`` tells; of the first without it."""
    places = b.counted(b.as_scalar(b.length(boxes, 0)))
    if boxes_num is None:
        return b(p.Mul(), places, 0)
    ends = b(CumSum(), b.to(boxes_num, I64), b.const(np.array(0)))
    before = b(p.GreaterOrEqual(), b.unsqueezed(places, 1), b.unsqueezed(ends, 0))
    return b(ReduceSum(False), b.to(before, I64), ints([1]))


def _with_images(b: PaddleBuilder, x: Value, boxes: Value, boxes_num: Value | None) -> Value:
    """Regions [r, 5], their images first."""
    images = b.to(_images_in(b, x, boxes, boxes_num), boxes.type.dtype)
    return b(Concat(1), b.unsqueezed(images, 1), boxes)


def _aligned(
    b: PaddleBuilder, made: RoiAlign, x: Value, boxes: Value, boxes_num: Value | None, *, aligned: bool = False
) -> Value:
    mode = "half_pixel" if aligned else "output_half_pixel"
    made = replace(made, sampling_ratio=max(made.sampling_ratio, 0), coordinate_transformation_mode=mode)
    return b(made, x, boxes, _images_in(b, x, boxes, boxes_num))


_BINS: dict[str, Any] = {"pooled_height": 1, "pooled_width": 1, "sampling_ratio": -1, "spatial_scale": 1.0}
_ALIGN = AsIs(RoiAlign, "x boxes boxes_num?", lacks=["mode", "coordinate_transformation_mode"], then=_aligned, **_BINS)
PADDLE.reader("roi_align", slots=_ROIS)(_ALIGN)


@PADDLE.reader("roi_pool", slots=_ROIS, results=("Out", "Argmax"))
def roi_pool(
    b: PaddleBuilder,
    x: Value,
    boxes: Value,
    boxes_num: Value | None = None,
    *,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
) -> tuple[Value, None]:
    operator = MaxRoiPool((pooled_height, pooled_width), spatial_scale)
    return b(operator, x, _with_images(b, x, boxes, boxes_num)), None


@PADDLE.reader("psroi_pool", slots=_ROIS)
def psroi_pool(
    b: PaddleBuilder,
    x: Value,
    boxes: Value,
    boxes_num: Value | None = None,
    *,
    pooled_height: int = 1,
    pooled_width: int = 1,
    output_channels: int = 1,
    spatial_scale: float = 1.0,
) -> Value:
    bins = pooled_height * pooled_width
    b.invalid_if(b.static_dim(x, 1) != output_channels * bins, "channels", b.static_dim(x, 1), output_channels * bins)
    return b(PSRoiPool((pooled_height, pooled_width), spatial_scale), x, _with_images(b, x, boxes, boxes_num))


@PADDLE.reader(legacy=("nms",), pir=("nms",), slots={"Boxes": "x", "iou_threshold": "threshold"})
def nms(b: PaddleBuilder, x: Value, *, threshold: float = 1.0) -> Value:
    """Places of the boxes that none kept before overlaps too much; earlier boxes are better."""
    count = b.length(x, 0)
    scores = b(p.Neg(), b.counted(b.as_scalar(count), F32))
    operands = b.unsqueezed(b.to(x, F32), 0), b.unsqueezed(scores, 0, 1)
    made = b(NonMaxSuppression(), *operands, count, b.const(np.array([threshold], np.float32)))
    return b.column(made, 1, 2)


def _detected(b: PaddleBuilder, operator: Any, bboxes: Value, scores: Value, rois_num: Value | None = None) -> Any:
    """Detections [k, 6] class, score, box; their places among all boxes [k, 1]; how many each image has."""
    if b.rank_of(scores) == 3:
        made, places, counts = b(operator, bboxes, scores)
        return made, b.to(b.unsqueezed(places, 1), I32), b.to(counts, I32)
    if rois_num is not None and b.static_dim(rois_num, 0) != 1:
        raise b.unsupported("regions of several images, with boxes of each class")
    classes = b.static_dim(scores, 1)
    made, places, counts = b(operator, b.unsqueezed(bboxes, 0), b.unsqueezed(b.transposed(scores, 1, 0), 0))
    labels = b.to(b.column(made, 1, 0), I64)
    in_class = b(p.Add(), b(p.Mul(), labels, b.as_scalar(b.length(scores, 0))), places)
    _, order = b(TopK(0, False), in_class, b.length(in_class, 0))  # a class's detections come by their places
    places = b(p.Add(), b(p.Mul(), places, classes), labels)
    made, places = (b(Gather(0), v, order) for v in (made, places))
    return made, b.to(b.unsqueezed(places, 1), I32), b.to(counts, I32)


_NMS = {"BBoxes": "bboxes", "nms_eta": "eta", "background_label": "background"}
_CHOICE: dict[str, Any] = dict.fromkeys(("score_threshold", "nms_top_k", "keep_top_k"), REQUIRED)
_CHOICE |= {"background": 0, "normalized": True}
_MATRIX = {**_CHOICE, "post_threshold": 0.0, "use_gaussian": False, "gaussian_sigma": 2.0}
PADDLE.reader(
    "multiclass_nms", "multiclass_nms2", "multiclass_nms3", slots=_NMS, results=("Out", "Index", "NmsRoisNum")
)(AsIs(MulticlassNMS, "bboxes scores rois_num?", then=_detected, **_CHOICE, nms_threshold=0.3, eta=1.0))
PADDLE.reader("matrix_nms", slots=_NMS, results=("Out", "Index", "RoisNum"))(
    AsIs(MatrixNMS, "bboxes scores", then=_detected, **_MATRIX)
)
_PROPOSALS = {
    "ImShape": "im_shape", "ImInfo": "im_shape", "pre_nms_topN": "pre_nms_top_n", "post_nms_topN": "post_nms_top_n",
    "nms_thresh": "nms_threshold",
}  # fmt: skip


def _proposed(
    b: PaddleBuilder,
    operator: GenerateProposals,
    scores: Value,
    bbox_deltas: Value,
    im_shape: Value,
    anchors: Value,
    variances: Value | None,
) -> Any:
    """Regions [k, 4], their scores [k, 1], how many each image has."""
    if b.operation.type == "generate_proposals" and b.static_dim(im_shape, 1) == 3:
        raise b.unsupported("regions in units of scaled images")
    if b.rank_of(anchors) == 2:
        shape = [b.length(scores, axis) for axis in (2, 3, 1)]
        anchors = b.shaped(anchors, *shape, [4])
        variances = None if variances is None else b.shaped(variances, *shape, [4])
    made, likely, counts = b(operator, scores, bbox_deltas, im_shape, anchors, variances)
    return made, likely, b.to(counts, I32)


PADDLE.reader(
    "generate_proposals", "generate_proposals_v2", slots=_PROPOSALS, results=("RpnRois", "RpnRoiProbs", "RpnRoisNum")
)(AsIs(GenerateProposals, "scores bbox_deltas im_shape anchors variances?", then=_proposed))
_LEVELS = ("MultiFpnRois", "MultiLevelRoIsNum", "RestoreIndex")


@PADDLE.reader("distribute_fpn_proposals", slots={"FpnRois": "fpn_rois", "RoisNum": "rois_num"}, results=_LEVELS)
def distribute_fpn_proposals(
    b: PaddleBuilder,
    fpn_rois: Value,
    rois_num: Value | None = None,
    *,
    min_level: int,
    max_level: int,
    refer_level: int,
    refer_scale: int,
    pixel_offset: bool = True,
) -> tuple[list[Value], list[Value], Value]:
    """Regions by the level of a pyramid that fits their size, how many each image has there, and the way back."""
    extra = 1.0 if pixel_offset else 0.0
    ends = [b.column(fpn_rois, 1, i) for i in range(4)]
    sides = [b(p.Sub(), ends[2 + i], ends[i]) for i in range(2)]
    right = b(p.And(), *(b(p.GreaterOrEqual(), s, 0.0) for s in sides))
    area = b(p.Mul(), b(p.Mul(), *(b(p.Add(), s, extra) for s in sides)), b.to(right, fpn_rois.type.dtype))
    share = b(p.Add(), b(p.Div(), b(p.Sqrt(), b(p.Max(), area, 0.0)), float(refer_scale)), 1e-8)
    octave = b(p.Mul(), b(p.Log(), share), float(1 / np.log(2)))
    level = b(p.Clip(float(min_level), float(max_level)), b(p.Floor(), b(p.Add(), octave, float(refer_level))))
    images = images_of(b, fpn_rois, rois_num)
    count = b.const(ints([1])) if rois_num is None else b.length(rois_num, 0)
    of_image = b(p.Equal(), b.unsqueezed(images, 1), b.unsqueezed(b.counted(b.as_scalar(count)), 0))
    places = b.counted(b.as_scalar(b.length(fpn_rois, 0)))
    rois, counts, order = [], [], []
    for number in range(min_level, max_level + 1):
        mask = b(p.Equal(), level, float(number))
        rois.append(b(Compress(0), fpn_rois, mask))
        order.append(b(Compress(0), places, mask))
        there = b(p.And(), of_image, b.unsqueezed(mask, 1))
        counts.append(b.to(b(ReduceSum(False), b.to(there, I64), ints([0])), I32))
    old = b(Concat(0), *order)
    back = b(ScatterElements(0), b(p.Mul(), places, 0), old, places)
    return rois, counts, b.to(b.unsqueezed(back, 1), I32)


_COLLECT = {"post_nms_topN": "post_nms_top_n", "MultiLevelRoIsNum": "multi_level_rois_num"}


@PADDLE.reader("collect_fpn_proposals", slots=_COLLECT, results=("FpnRois", "RoisNum"))
def collect_fpn_proposals(
    b: PaddleBuilder,
    multi_level_rois: Values,
    multi_level_scores: Values,
    multi_level_rois_num: Values = (),
    *,
    post_nms_top_n: int,
) -> tuple[Value, Value]:
    """The best regions of all levels, ordered by image, and how many each image has."""
    numbers = multi_level_rois_num or (None,) * len(multi_level_rois)
    images = [images_of(b, r, n) for r, n in zip(multi_level_rois, numbers, strict=True)]
    rois, image = b(Concat(0), *multi_level_rois), b(Concat(0), *images)
    scores = b(Concat(0), *(b.shaped(s, [-1]) for s in multi_level_scores))
    most = b(p.Min(), b.length(scores, 0), post_nms_top_n)
    _, best = b(TopK(0), scores, most)
    chosen = b(Gather(0), image, best)
    _, by_image = b(TopK(0, False), chosen, most)
    made = b(Gather(0), rois, b(Gather(0), best, by_image))
    count = b.const(ints([1])) if not multi_level_rois_num else b.length(multi_level_rois_num[0], 0)
    of_image = b(p.Equal(), b.unsqueezed(chosen, 1), b.unsqueezed(b.counted(b.as_scalar(count)), 0))
    return made, b.to(b(ReduceSum(False), b.to(of_image, I64), ints([0])), I32)
