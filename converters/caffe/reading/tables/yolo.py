"""Readers of YOLO's grids: cells that become boxes, and boxes that are left."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.converters.builder import Floats, Ints, ints
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceMax, Softmax
from bolt_numba.ops.arrays.shape import Concat, Reshape, Split, Transpose, Unsqueeze
from bolt_numba.ops.layers.detection.boxes import DetectionOutput
from bolt_numba.ops.pointwise import Add, Cast, Exp, GreaterOrEqual, Max, Mul, Sigmoid, Sub, Where


@reader("Yolov3DetectionOutput")
def yolov3_detection_output(
    b: LayerBuilder,
    *xs: Value,
    num_classes: int = 20,
    num_box: int = 3,
    confidence_threshold: float = 0.01,
    nms_threshold: float = 0.45,
    biases: Floats,
    anchors_scale: Ints,
    mask_group_num: int = 2,
    mask: Ints,
) -> Value:
    """[1, 1, found, 7]: image, class from 1 on, score and corners as parts of the image, by falling score.

    xs: grids [n, num_box * (5 + classes), h, w].  A cell's score is that of an object times that of its best class.
    """
    if len(anchors_scale) != len(xs) or len(mask) != num_box * len(xs) or not xs or num_classes < 1:
        raise b.invalid("anchors_scale and mask", (anchors_scale, mask), f"1 and {num_box} for each of {len(xs)} grids")
    if any(not 0 <= 2 * m + 1 < len(biases) for m in mask):
        raise b.invalid("mask", mask, f"places of {len(biases) // 2} biases")
    parts = []
    for i, x in enumerate(xs):
        sizes = np.array([biases[2 * m : 2 * m + 2] for m in mask[i * num_box : (i + 1) * num_box]], F32)
        parts.append(_yolo_grid(b, x, sizes, num_classes, anchors_scale[i]))
    boxes, scores, labels = (b(Concat(1), *column) if len(xs) > 1 else column[0] for column in zip(*parts, strict=True))
    return _yolo_rows(b, boxes, scores, labels, confidence_threshold, nms_threshold)


@reader("YoloDetectionOutput")
def yolo_detection_output(
    b: LayerBuilder,
    x: Value,
    *,
    side: int = 13,
    num_classes: int = 20,
    num_box: int = 5,
    coords: int = 4,
    confidence_threshold: float = 0.01,
    nms_threshold: float = 0.45,
    biases: Floats,
) -> Value:
    """As `yolov3_detection_output` of one grid, whose anchors are in cells; classes share one softmax."""
    if coords != 4 or len(biases) != 2 * num_box or num_classes < 1:
        raise b.invalid("coords and biases", (coords, biases), f"4 numbers of a box, {num_box} pairs")
    sizes = np.array(biases, F32).reshape(-1, 2)
    grid = _yolo_grid(b, x, sizes, num_classes, 1, is_softmax=True)
    return _yolo_rows(b, *grid, confidence_threshold, nms_threshold)


@reader("Region", "RegionYolo")
def region(
    b: LayerBuilder,
    x: Value,
    *,
    coords: int = 4,
    classes: int = 20,
    num: int = 5,
    softmax: bool = True,
    do_softmax: bool = True,
    anchors: Floats = (),
    biases: Floats = (),
    mask: Ints = (),
) -> Value:
    """Cells [n, boxes * (coords + 1 + classes), h, w] made places, sizes, objects and classes; as Darknet's layer.

    Places and objects go through a sigmoid, sizes stay, classes go through a softmax, or a sigmoid each.
    """
    h, w = b.static_dim(x, 2), b.static_dim(x, 3)
    is_softmax, boxes = softmax and do_softmax, num if softmax and do_softmax else len(mask) or num
    if coords < 2 or classes < 1 or b.static_dim(x, 1) != boxes * (coords + 1 + classes):
        raise b.invalid("coords, classes and num", (coords, classes, boxes), f"those of {b.static_dim(x, 1)} channels")
    cells = b(Reshape(), x, ints([0, boxes, coords + 1 + classes, h, w]))
    sizes = ints([2, coords - 2, 1, classes] if coords > 2 else [2, 1, classes])
    place, *size, object_, rest = b.node(Split(2, len(sizes)), cells, sizes).outputs
    chances = b(Softmax(2), rest) if is_softmax else b(Sigmoid(), rest)
    made = b(Concat(2), b(Sigmoid(), place), *size, b(Sigmoid(), object_), chances)
    return b(Reshape(), made, ints([0, b.static_dim(x, 1), h, w]))


def _yolo_rows(b: LayerBuilder, boxes: Value, scores: Value, labels: Value, threshold: float, overlap: float) -> Value:
    """Rows of what is left when boxes of all classes suppress each other; labels [n, boxes] count from 0."""
    found, index = b(DetectionOutput(threshold, overlap, background=-1), boxes, b(Unsqueeze(), scores, ints([1])))
    label = b(Gather(0), b(Reshape(), labels, ints([-1])), b(Max(), index, 0))
    image, _, rest = b.node(Split(1, 3), found, ints([1, 1, 5])).outputs
    shown = b(Where(), b(GreaterOrEqual(), index, 0), b(Add(), label, 1.0), b.const(F32.type(-1)))
    return b(Unsqueeze(), b(Concat(1), image, b(Unsqueeze(), shown, ints([1])), rest), ints([0, 1]))


def _yolo_grid(
    b: LayerBuilder, x: Value, sizes: Array, classes: int, scale: int, is_softmax: bool = False
) -> tuple[Value, Value, Value]:
    """Corners [n, boxes, 4], scores and labels [n, boxes] of a grid; sizes: of its anchors, ``scale`` to a cell."""
    h, w, count = b.static_dim(x, 2), b.static_dim(x, 3), len(sizes)
    cells = b(Transpose((0, 1, 3, 4, 2)), b(Reshape(), x, ints([0, count, 5 + classes, h, w])))
    place, size, object_, rest = b.node(Split(4, 4), cells, ints([2, 2, 1, classes])).outputs
    grid = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1).astype(F32)
    extent = np.array([w, h], F32)
    centre = b(Mul(), b(Add(), b(Sigmoid(), place), grid), 1 / extent)
    half = b(Mul(), b(Exp(), size), (sizes / (extent * F32.type(scale)) / 2).reshape(count, 1, 1, 2))
    corners = b(Concat(4), b(Sub(), centre, half), b(Add(), centre, half))
    best = b(ReduceMax(), b(Softmax(4), rest) if is_softmax else b(Sigmoid(), rest), ints([4]))
    scores = b(Mul(), b(Sigmoid(), object_), best)
    labels = b(Cast(F32), b(ArgMax(4), rest))
    made = [b(Reshape(), v, ints([0, -1, *tail])) for v, tail in ((corners, (4,)), (scores, ()), (labels, ()))]
    return made[0], made[1], made[2]
