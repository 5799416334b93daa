"""Readers of boxes: anchors, their codes, and what a YOLO head says of them."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.types import F32, I64
from bolt_numba.converters.operands import as_scalar, expanded, ints, joined, rank_of, sliced, static_dim, unsqueezed
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.parts import (
    MOST_PLACES,
    Floats,
    Ints,
    array,
    column,
    counted,
    reshaped,
    size_of,
    to,
    transposed,
)
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.pointwise import (
    Abs,
    Add,
    Clip,
    Div,
    Exp,
    GreaterOrEqual,
    Log,
    Max,
    Min,
    Mod,
    Mul,
    Pow,
    Round,
    Sigmoid,
    Sub,
)


def _stacked(b: PaddleBuilder, *parts: Value) -> Value:
    """Arrays of one shape along a new last axis."""
    rank = rank_of(b, parts[0])
    return b(Concat(rank), *(unsqueezed(b, p, rank) for p in parts))


def _steps(b: PaddleBuilder, input: Value, image: Value, step_w: float, step_h: float) -> tuple[Value, ...]:
    """Width and height of the image, and of a cell, f32 scalars; the given size of a cell where it is not 0."""
    whole = [to(b, as_scalar(b, size_of(b, image, axis)), F32) for axis in (3, 2)]
    cells = [to(b, as_scalar(b, size_of(b, input, axis)), F32) for axis in (3, 2)]
    if step_w and step_h:
        return *whole, array(b, np.float32(step_w)), array(b, np.float32(step_h))
    return *whole, *(b(Div(), p, q) for p, q in zip(whole, cells, strict=True))


def _cells(b: PaddleBuilder, input: Value, offset: float, steps: tuple[Value, Value]) -> list[Value]:
    """Centres of the cells along width [w] and height [h]."""
    places = [counted(b, as_scalar(b, size_of(b, input, axis)), F32) for axis in (3, 2)]
    return [b(Mul(), b(Add(), p, offset), s) for p, s in zip(places, steps, strict=True)]


def _grid(b: PaddleBuilder, input: Value, v: Value, count: int) -> Value:
    """V broadcast to [h, w, count]."""
    return expanded(b, v, joined(b, size_of(b, input, 2), size_of(b, input, 3), [count]))


def _corners(b: PaddleBuilder, input: Value, lows: list[Value], highs: list[Value], count: int) -> Value:
    """Corners of boxes [h, w, count, 4] from those along width [w, count] and height [h, count]."""
    sides = [lows[0], unsqueezed(b, lows[1], 1), highs[0], unsqueezed(b, highs[1], 1)]
    return _stacked(b, *(_grid(b, input, v, count) for v in sides))


def _variances(b: PaddleBuilder, boxes: Value, variances: Floats) -> Value:
    return expanded(b, array(b, variances), b(Shape(), boxes))


def ratios_of(aspect_ratios: Floats, flip: bool) -> list[float]:
    """1 and the other ratios, each once, with their inverses where they are flipped."""
    found = [1.0]
    for ratio in aspect_ratios:
        if all(abs(ratio - other) >= 1e-6 for other in found):
            found += [ratio, 1 / ratio] if flip else [ratio]
    return found


def _prior_sizes(mins: Floats, maxs: Floats, ratios: list[float], is_max_second: bool) -> list[tuple[float, float]]:
    """Widths and heights of the boxes of a cell."""
    made = []
    for i, size in enumerate(mins):
        shaped = [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios]
        square = [(math.sqrt(size * maxs[i]),) * 2] if maxs else []
        if is_max_second:
            others = [s for s, r in zip(shaped, ratios, strict=True) if abs(r - 1) >= 1e-6]
            made += [(size, size), *square, *others]
        else:
            made += [*shaped, *square]
    return made


@PADDLE.reader("prior_box", results=("Boxes", "Variances"))
def prior_box(
    b: PaddleBuilder,
    input: Value,
    image: Value,
    *,
    min_sizes: Floats,
    max_sizes: Floats = (),
    aspect_ratios: Floats = (1.0,),
    variances: Floats = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = True,
    step_w: float = 0.0,
    step_h: float = 0.0,
    offset: float = 0.5,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Value, Value]:
    """Boxes of several sizes around the centre of each cell, as shares of the image: [h, w, count, 4]."""
    if max_sizes and len(max_sizes) != len(min_sizes):
        raise b.invalid("max_sizes", max_sizes, f"{len(min_sizes)} sizes")
    sizes = _prior_sizes(min_sizes, max_sizes, ratios_of(aspect_ratios, flip), min_max_aspect_ratios_order)
    width, height, *steps = _steps(b, input, image, step_w, step_h)
    centres = _cells(b, input, offset, (steps[0], steps[1]))
    lows, highs = [], []
    for i, whole in enumerate((width, height)):
        half = array(b, [s[i] / 2 for s in sizes])
        centre = unsqueezed(b, centres[i], 1)
        lows.append(b(Div(), b(Sub(), centre, half), whole))
        highs.append(b(Div(), b(Add(), centre, half), whole))
    boxes = _corners(b, input, lows, highs, len(sizes))
    boxes = b(Clip(0.0, 1.0), boxes) if clip else boxes
    return boxes, _variances(b, boxes, variances)


@PADDLE.reader("density_prior_box", results=("Boxes", "Variances"))
def density_prior_box(
    b: PaddleBuilder,
    input: Value,
    image: Value,
    *,
    variances: Floats = (0.1, 0.1, 0.2, 0.2),
    clip: bool = True,
    flatten_to_2d: bool = False,
    step_w: float = 0.0,
    step_h: float = 0.0,
    offset: float = 0.5,
    fixed_sizes: Floats = (),
    fixed_ratios: Floats = (),
    densities: Ints = (),
) -> tuple[Value, ...]:
    """Boxes of several sizes on a finer grid in each cell, inside the image, as shares of it."""
    if len(fixed_sizes) != len(densities):
        raise b.invalid("densities", densities, f"{len(fixed_sizes)} numbers")
    if not 0 < sum(d * d for d in densities) * max(len(fixed_ratios), 1) <= MOST_PLACES or min(densities) < 1:
        raise b.invalid("densities", densities, f"at least 1, and at most {MOST_PLACES} boxes in a cell")
    rows = [
        (density, (place[1], place[0]), (size * math.sqrt(ratio), size / math.sqrt(ratio)))
        for size, density in zip(fixed_sizes, densities, strict=True)
        for ratio in fixed_ratios
        for place in np.ndindex(density, density)
    ]
    width, height, *steps = _steps(b, input, image, step_w, step_h)
    centres = _cells(b, input, offset, (steps[0], steps[1]))
    mean = to(b, b(Mul(), b(Add(), steps[0], steps[1]), 0.5), I64)
    shift = to(b, b(Div(), mean, b.const(ints(r[0] for r in rows))), F32)
    start = b(Sub(), b(Mul(), shift, 0.5), b(Mul(), to(b, mean, F32), 0.5))
    lows, highs = [], []
    for i, whole in enumerate((width, height)):
        moved = b(Add(), start, b(Mul(), shift, array(b, [r[1][i] for r in rows])))
        centre = b(Add(), unsqueezed(b, centres[i], 1), moved)
        half = array(b, [r[2][i] / 2 for r in rows])
        lows.append(b(Max(), b(Div(), b(Sub(), centre, half), whole), 0.0))
        highs.append(b(Min(), b(Div(), b(Add(), centre, half), whole), 1.0))
    boxes = _corners(b, input, lows, highs, len(rows))
    boxes = b(Clip(0.0, 1.0), boxes) if clip else boxes
    found = boxes, _variances(b, boxes, variances)
    return tuple(reshaped(b, v, [-1, 4]) for v in found) if flatten_to_2d else found


@PADDLE.reader("anchor_generator", results=("Anchors", "Variances"))
def anchor_generator(
    b: PaddleBuilder,
    input: Value,
    *,
    anchor_sizes: Floats,
    aspect_ratios: Floats,
    variances: Floats = (0.1, 0.1, 0.2, 0.2),
    stride: Floats,
    offset: float = 0.5,
) -> tuple[Value, Value]:
    """Boxes of several sizes and shapes around each cell, in pixels of the image: [h, w, count, 4]."""
    sizes = []
    for ratio in aspect_ratios:
        base_w = math.floor(math.sqrt(stride[0] * stride[1] / ratio) + 0.5)
        base_h = math.floor(base_w * ratio + 0.5)
        sizes += [(size / stride[0] * base_w, size / stride[1] * base_h) for size in anchor_sizes]
    lows, highs = [], []
    for i, axis in enumerate((3, 2)):
        places = counted(b, as_scalar(b, size_of(b, input, axis)), F32)
        centre = unsqueezed(b, b(Add(), b(Mul(), places, stride[i]), offset * (stride[i] - 1)), 1)
        half = array(b, [0.5 * (s[i] - 1) for s in sizes])
        lows.append(b(Sub(), centre, half))
        highs.append(b(Add(), centre, half))
    boxes = _corners(b, input, lows, highs, len(sizes))
    return boxes, _variances(b, boxes, variances)


def _coordinates(b: PaddleBuilder, boxes: Value) -> list[Value]:
    """The four numbers of boxes, apart."""
    return [column(b, boxes, rank_of(b, boxes) - 1, i) for i in range(4)]


_CODER = {"PriorBoxVar": "prior_box_var"}


@PADDLE.reader("box_coder", slots=_CODER)
def box_coder(
    b: PaddleBuilder,
    prior_box: Value,
    prior_box_var: Value | None,
    target_box: Value,
    *,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    axis: int = 0,
    variance: Floats = (),
) -> Value:
    """Boxes as their distances from priors in units of these, or the reverse.

    A side of a box is one longer than its ends are apart, where coordinates are pixels.
    """
    extra = 0.0 if box_normalized else 1.0
    is_encoding = code_type.lower() in ("encode_center_size", "encodecentersize")
    low_x, low_y, high_x, high_y = _coordinates(b, prior_box)
    width, height = (b(Add(), b(Sub(), high, low), extra) for low, high in ((low_x, high_x), (low_y, high_y)))
    middle = [b(Add(), low, b(Mul(), side, 0.5)) for low, side in ((low_x, width), (low_y, height))]
    if prior_box_var is not None:
        shares = _coordinates(b, prior_box_var) if rank_of(b, prior_box_var) == 2 else _entries(b, prior_box_var)
    else:
        shares = [array(b, np.float32(v)) for v in (variance or (1.0,) * 4)]
    if is_encoding:
        return _encoded(b, target_box, middle, [width, height], shares, extra)
    at = 0 if axis == 0 else 1
    priors = [unsqueezed(b, v, at) for v in (*middle, width, height)]
    shares = [v if rank_of(b, v) == 0 else unsqueezed(b, v, at) for v in shares]
    moves = [b(Mul(), t, s) for t, s in zip(_coordinates(b, target_box), shares, strict=True)]
    centre = [b(Add(), b(Mul(), moves[i], priors[2 + i]), priors[i]) for i in range(2)]
    half = [b(Mul(), b(Mul(), b(Exp(), moves[2 + i]), priors[2 + i]), 0.5) for i in range(2)]
    low = [b(Sub(), c, h) for c, h in zip(centre, half, strict=True)]
    high = [b(Sub(), b(Add(), c, h), extra) for c, h in zip(centre, half, strict=True)]
    return _stacked(b, *low, *high)


def _entries(b: PaddleBuilder, v: Value) -> list[Value]:
    return [column(b, v, 0, i) for i in range(4)]


def _encoded(
    b: PaddleBuilder, target: Value, middle: list[Value], sides: list[Value], shares: list[Value], extra: float
) -> Value:
    """Codes [targets, priors, 4]."""
    ends = [unsqueezed(b, v, 1) for v in _coordinates(b, target)]
    centre = [b(Mul(), b(Add(), ends[i], ends[2 + i]), 0.5) for i in range(2)]
    size = [b(Add(), b(Sub(), ends[2 + i], ends[i]), extra) for i in range(2)]
    moves = [b(Div(), b(Sub(), centre[i], unsqueezed(b, middle[i], 0)), unsqueezed(b, sides[i], 0)) for i in range(2)]
    scales = [b(Log(), b(Abs(), b(Div(), size[i], unsqueezed(b, sides[i], 0)))) for i in range(2)]
    return _stacked(b, *(b(Div(), v, s) for v, s in zip((*moves, *scales), shares, strict=True)))


@PADDLE.reader("yolo_box", results=("Boxes", "Scores"))
def yolo_box(
    b: PaddleBuilder,
    x: Value,
    img_size: Value,
    *,
    anchors: Ints,
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int = 32,
    clip_bbox: bool = True,
    scale_x_y: float = 1.0,
    iou_aware: bool = False,
    iou_aware_factor: float = 0.5,
) -> tuple[Value, Value]:
    """Boxes [n, anchors * h * w, 4] in pixels and their scores; zeros where the confidence is too small."""
    count = len(anchors) // 2
    height, width = size_of(b, x, 2), size_of(b, x, 3)
    trust = b(Sigmoid(), sliced(b, x, 1, 0, count)) if iou_aware else None
    head = reshaped(b, sliced(b, x, 1, count) if iou_aware else x, [0, count, 5 + class_num], height, width)
    tx, ty, tw, th, sure = (column(b, head, 2, i) for i in range(5))
    cells = [counted(b, as_scalar(b, v), F32) for v in (width, height)]
    places = [cells[0], unsqueezed(b, cells[1], 1)]
    images = to(b, img_size, F32)
    sizes = [reshaped(b, column(b, images, 1, i), [-1, 1, 1, 1]) for i in (1, 0)]
    lows, highs = [], []
    for i, (move, grow, length) in enumerate(((tx, tw, width), (ty, th, height))):
        cell = b(Div(), sizes[i], to(b, as_scalar(b, length), F32))
        shifted = b(Add(), b(Mul(), b(Sigmoid(), move), scale_x_y), -0.5 * (scale_x_y - 1))
        centre = b(Mul(), b(Add(), shifted, places[i]), cell)
        anchor = reshaped(b, array(b, [float(a) for a in anchors[i::2]]), [-1, 1, 1])
        half = b(Mul(), b(Mul(), b(Mul(), b(Exp(), grow), anchor), 0.5 / downsample_ratio), cell)
        low, high = b(Sub(), centre, half), b(Add(), centre, half)
        lows.append(b(Max(), low, 0.0) if clip_bbox else low)
        highs.append(b(Min(), high, b(Sub(), sizes[i], 1.0)) if clip_bbox else high)
    likely = b(Sigmoid(), sure)
    if trust is not None:
        likely = b(Mul(), b(Pow(), likely, 1 - iou_aware_factor), b(Pow(), trust, iou_aware_factor))
    keep = to(b, b(GreaterOrEqual(), likely, conf_thresh), F32)
    boxes = b(Mul(), _stacked(b, *lows, *highs), unsqueezed(b, keep, 4))
    scores = b(Mul(), b(Sigmoid(), sliced(b, head, 2, 5)), unsqueezed(b, b(Mul(), likely, keep), 2))
    scores = transposed(b, scores, 0, 1, 3, 4, 2)
    total = b(Mul(), b(Mul(), height, width), count)
    return reshaped(b, boxes, [0], total, [4]), reshaped(b, scores, [0], total, [class_num])


@PADDLE.reader("iou_similarity")
def iou_similarity(b: PaddleBuilder, x: Value, y: Value, *, box_normalized: bool = True) -> Value:
    """Intersection over union of each box of x with each of y."""
    extra = 0.0 if box_normalized else 1.0
    p = [unsqueezed(b, v, 1) for v in _coordinates(b, x)]
    q = [unsqueezed(b, v, 0) for v in _coordinates(b, y)]
    sides = []
    for i in range(2):
        side = b(Sub(), b(Min(), p[2 + i], q[2 + i]), b(Max(), p[i], q[i]))
        sides.append(b(Max(), b(Add(), side, extra), 0.0))
    shared = b(Mul(), *sides)
    areas = [b(Mul(), *(b(Add(), b(Sub(), v[2 + i], v[i]), extra) for i in range(2))) for v in (p, q)]
    return b(Div(), shared, b(Sub(), b(Add(), *areas), shared))


@PADDLE.reader("box_clip", slots={"ImInfo": "im_info"})
def box_clip(b: PaddleBuilder, input: Value, im_info: Value) -> Value:
    """Boxes inside the image they belong to: height, width and scale of it are given."""
    if static_dim(b, im_info, 0) != 1:
        raise b.unsupported("boxes of several images")
    height, width, scale = (column(b, column(b, im_info, 0, 0), 0, i) for i in range(3))
    ends = [b(Sub(), b(Round(), b(Div(), v, scale)), 1.0) for v in (width, height)]
    limits = _stacked(b, ends[0], ends[1], ends[0], ends[1])
    return b(Max(), b(Min(), input, limits), 0.0)


@PADDLE.reader("polygon_box_transform")
def polygon_box_transform(b: PaddleBuilder, input: Value) -> Value:
    """Distances from each cell, four pixels wide, as coordinates: x in even channels and y in odd ones."""
    columns = unsqueezed(b, counted(b, as_scalar(b, size_of(b, input, 3)), F32), 0)
    rows = unsqueezed(b, counted(b, as_scalar(b, size_of(b, input, 2)), F32), 1)
    is_odd = to(b, b(Mod(), counted(b, as_scalar(b, size_of(b, input, 1)), I64), 2), F32)
    is_odd = reshaped(b, is_odd, [-1, 1, 1])
    place = b(Add(), b(Mul(), columns, b(Add(), b(Mul(), is_odd, -1.0), 1.0)), b(Mul(), rows, is_odd))
    return b(Sub(), b(Mul(), place, 4.0), input)
