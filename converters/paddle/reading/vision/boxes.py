"""Readers of boxes: anchors, their codes, and what a YOLO head says of them."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.types import F32, I64
from bolt_numba.converters.builder import MOST_PLACES, Floats, Ints, ints
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.shape import Concat, Shape


def _stacked(b: PaddleBuilder, *parts: Value) -> Value:
    """Arrays of one shape along a new last axis."""
    rank = b.rank_of(parts[0])
    return b(Concat(rank), *(b.unsqueezed(v, rank) for v in parts))


def _steps(b: PaddleBuilder, input: Value, image: Value, step_w: float, step_h: float) -> tuple[Value, ...]:
    """Width and height of the image, and of a cell, f32 scalars; the given size of a cell where it is not 0."""
    whole = [b.to(b.as_scalar(b.length(image, axis)), F32) for axis in (3, 2)]
    cells = [b.to(b.as_scalar(b.length(input, axis)), F32) for axis in (3, 2)]
    if step_w and step_h:
        return *whole, b.array(np.float32(step_w)), b.array(np.float32(step_h))
    return *whole, *(b(p.Div(), v, w) for v, w in zip(whole, cells, strict=True))


def _cells(b: PaddleBuilder, input: Value, offset: float, steps: tuple[Value, Value]) -> list[Value]:
    """Centres of the cells along width [w] and height [h]."""
    places = [b.counted(b.as_scalar(b.length(input, axis)), F32) for axis in (3, 2)]
    return [b(p.Mul(), b(p.Add(), v, offset), s) for v, s in zip(places, steps, strict=True)]


def _grid(b: PaddleBuilder, input: Value, v: Value, count: int) -> Value:
    """V broadcast to [h, w, count]."""
    return b.expanded(v, b.joined(b.length(input, 2), b.length(input, 3), [count]))


def _corners(b: PaddleBuilder, input: Value, lows: list[Value], highs: list[Value], count: int) -> Value:
    """Corners of boxes [h, w, count, 4] from those along width [w, count] and height [h, count]."""
    sides = [lows[0], b.unsqueezed(lows[1], 1), highs[0], b.unsqueezed(highs[1], 1)]
    return _stacked(b, *(_grid(b, input, v, count) for v in sides))


def _variances(b: PaddleBuilder, boxes: Value, variances: Floats) -> Value:
    return b.expanded(b.array(variances), b(Shape(), boxes))


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
    b.invalid_if(max_sizes and len(max_sizes) != len(min_sizes), "max_sizes", max_sizes, f"{len(min_sizes)} sizes")
    sizes = _prior_sizes(min_sizes, max_sizes, ratios_of(aspect_ratios, flip), min_max_aspect_ratios_order)
    width, height, *steps = _steps(b, input, image, step_w, step_h)
    centres = _cells(b, input, offset, (steps[0], steps[1]))
    lows, highs = [], []
    for i, whole in enumerate((width, height)):
        half = b.array([s[i] / 2 for s in sizes])
        centre = b.unsqueezed(centres[i], 1)
        lows.append(b(p.Div(), b(p.Sub(), centre, half), whole))
        highs.append(b(p.Div(), b(p.Add(), centre, half), whole))
    boxes = _corners(b, input, lows, highs, len(sizes))
    boxes = b(p.Clip(0.0, 1.0), boxes) if clip else boxes
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
    b.invalid_if(len(fixed_sizes) != len(densities), "densities", densities, f"{len(fixed_sizes)} numbers")
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
    mean = b.to(b(p.Mul(), b(p.Add(), steps[0], steps[1]), 0.5), I64)
    shift = b.to(b(p.Div(), mean, b.const(ints(r[0] for r in rows))), F32)
    start = b(p.Sub(), b(p.Mul(), shift, 0.5), b(p.Mul(), b.to(mean, F32), 0.5))
    lows, highs = [], []
    for i, whole in enumerate((width, height)):
        moved = b(p.Add(), start, b(p.Mul(), shift, b.array([r[1][i] for r in rows])))
        centre = b(p.Add(), b.unsqueezed(centres[i], 1), moved)
        half = b.array([r[2][i] / 2 for r in rows])
        lows.append(b(p.Max(), b(p.Div(), b(p.Sub(), centre, half), whole), 0.0))
        highs.append(b(p.Min(), b(p.Div(), b(p.Add(), centre, half), whole), 1.0))
    boxes = _corners(b, input, lows, highs, len(rows))
    boxes = b(p.Clip(0.0, 1.0), boxes) if clip else boxes
    found = boxes, _variances(b, boxes, variances)
    return tuple(b.shaped(v, [-1, 4]) for v in found) if flatten_to_2d else found


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
        places = b.counted(b.as_scalar(b.length(input, axis)), F32)
        centre = b.unsqueezed(b(p.Add(), b(p.Mul(), places, stride[i]), offset * (stride[i] - 1)), 1)
        half = b.array([0.5 * (s[i] - 1) for s in sizes])
        lows.append(b(p.Sub(), centre, half))
        highs.append(b(p.Add(), centre, half))
    boxes = _corners(b, input, lows, highs, len(sizes))
    return boxes, _variances(b, boxes, variances)


def _coordinates(b: PaddleBuilder, boxes: Value) -> list[Value]:
    """The four numbers of boxes, apart."""
    return [b.column(boxes, b.rank_of(boxes) - 1, i) for i in range(4)]


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
    width, height = (b(p.Add(), b(p.Sub(), high, low), extra) for low, high in ((low_x, high_x), (low_y, high_y)))
    middle = [b(p.Add(), low, b(p.Mul(), side, 0.5)) for low, side in ((low_x, width), (low_y, height))]
    if prior_box_var is not None:
        shares = _coordinates(b, prior_box_var) if b.rank_of(prior_box_var) == 2 else _entries(b, prior_box_var)
    else:
        shares = [b.array(np.float32(v)) for v in (variance or (1.0,) * 4)]
    if is_encoding:
        return _encoded(b, target_box, middle, [width, height], shares, extra)
    at = 0 if axis == 0 else 1
    priors = [b.unsqueezed(v, at) for v in (*middle, width, height)]
    shares = [v if b.rank_of(v) == 0 else b.unsqueezed(v, at) for v in shares]
    moves = [b(p.Mul(), t, s) for t, s in zip(_coordinates(b, target_box), shares, strict=True)]
    centre = [b(p.Add(), b(p.Mul(), moves[i], priors[2 + i]), priors[i]) for i in range(2)]
    half = [b(p.Mul(), b(p.Mul(), b(p.Exp(), moves[2 + i]), priors[2 + i]), 0.5) for i in range(2)]
    low = [b(p.Sub(), c, h) for c, h in zip(centre, half, strict=True)]
    high = [b(p.Sub(), b(p.Add(), c, h), extra) for c, h in zip(centre, half, strict=True)]
    return _stacked(b, *low, *high)


def _entries(b: PaddleBuilder, v: Value) -> list[Value]:
    return [b.column(v, 0, i) for i in range(4)]


def _encoded(
    b: PaddleBuilder, target: Value, middle: list[Value], sides: list[Value], shares: list[Value], extra: float
) -> Value:
    """Codes [targets, priors, 4]."""
    ends = [b.unsqueezed(v, 1) for v in _coordinates(b, target)]
    centre = [b(p.Mul(), b(p.Add(), ends[i], ends[2 + i]), 0.5) for i in range(2)]
    size = [b(p.Add(), b(p.Sub(), ends[2 + i], ends[i]), extra) for i in range(2)]
    middle, sides = ([b.unsqueezed(v, 0) for v in pair] for pair in (middle, sides))
    moves = [b(p.Div(), b(p.Sub(), centre[i], middle[i]), sides[i]) for i in range(2)]
    scales = [b(p.Log(), b(p.Abs(), b(p.Div(), size[i], sides[i]))) for i in range(2)]
    return _stacked(b, *(b(p.Div(), v, s) for v, s in zip((*moves, *scales), shares, strict=True)))


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
    height, width = b.length(x, 2), b.length(x, 3)
    trust = b(p.Sigmoid(), b.sliced(x, 1, 0, count)) if iou_aware else None
    head = b.shaped(b.sliced(x, 1, count) if iou_aware else x, [0, count, 5 + class_num], height, width)
    tx, ty, tw, th, sure = (b.column(head, 2, i) for i in range(5))
    cells = [b.counted(b.as_scalar(v), F32) for v in (width, height)]
    places = [cells[0], b.unsqueezed(cells[1], 1)]
    images = b.to(img_size, F32)
    sizes = [b.shaped(b.column(images, 1, i), [-1, 1, 1, 1]) for i in (1, 0)]
    lows, highs = [], []
    for i, (move, grow, length) in enumerate(((tx, tw, width), (ty, th, height))):
        cell = b(p.Div(), sizes[i], b.to(b.as_scalar(length), F32))
        shifted = b(p.Add(), b(p.Mul(), b(p.Sigmoid(), move), scale_x_y), -0.5 * (scale_x_y - 1))
        centre = b(p.Mul(), b(p.Add(), shifted, places[i]), cell)
        anchor = b.shaped(b.array([float(a) for a in anchors[i::2]]), [-1, 1, 1])
        half = b(p.Mul(), b(p.Mul(), b(p.Mul(), b(p.Exp(), grow), anchor), 0.5 / downsample_ratio), cell)
        low, high = b(p.Sub(), centre, half), b(p.Add(), centre, half)
        lows.append(b(p.Max(), low, 0.0) if clip_bbox else low)
        highs.append(b(p.Min(), high, b(p.Sub(), sizes[i], 1.0)) if clip_bbox else high)
    likely = b(p.Sigmoid(), sure)
    if trust is not None:
        likely = b(p.Mul(), b(p.Pow(), likely, 1 - iou_aware_factor), b(p.Pow(), trust, iou_aware_factor))
    keep = b.to(b(p.GreaterOrEqual(), likely, conf_thresh), F32)
    boxes = b(p.Mul(), _stacked(b, *lows, *highs), b.unsqueezed(keep, 4))
    scores = b(p.Mul(), b(p.Sigmoid(), b.sliced(head, 2, 5)), b.unsqueezed(b(p.Mul(), likely, keep), 2))
    scores = b.transposed(scores, 0, 1, 3, 4, 2)
    total = b(p.Mul(), b(p.Mul(), height, width), count)
    return b.shaped(boxes, [0], total, [4]), b.shaped(scores, [0], total, [class_num])


@PADDLE.reader("iou_similarity")
def iou_similarity(b: PaddleBuilder, x: Value, y: Value, *, box_normalized: bool = True) -> Value:
    """Intersection over union of each box of x with each of y."""
    extra = 0.0 if box_normalized else 1.0
    first = [b.unsqueezed(v, 1) for v in _coordinates(b, x)]
    second = [b.unsqueezed(v, 0) for v in _coordinates(b, y)]
    sides = []
    for i in range(2):
        side = b(p.Sub(), b(p.Min(), first[2 + i], second[2 + i]), b(p.Max(), first[i], second[i]))
        sides.append(b(p.Max(), b(p.Add(), side, extra), 0.0))
    shared = b(p.Mul(), *sides)
    both = (first, second)
    areas = [b(p.Mul(), *(b(p.Add(), b(p.Sub(), v[2 + i], v[i]), extra) for i in range(2))) for v in both]
    return b(p.Div(), shared, b(p.Sub(), b(p.Add(), *areas), shared))


@PADDLE.reader("box_clip", slots={"ImInfo": "im_info"})
def box_clip(b: PaddleBuilder, input: Value, im_info: Value) -> Value:
    """Boxes inside the image they belong to: height, width and scale of it are given."""
    b.unsupported_if(b.static_dim(im_info, 0) != 1, "boxes of several images")
    height, width, scale = (b.column(b.column(im_info, 0, 0), 0, i) for i in range(3))
    ends = [b(p.Sub(), b(p.Round(), b(p.Div(), v, scale)), 1.0) for v in (width, height)]
    limits = _stacked(b, ends[0], ends[1], ends[0], ends[1])
    return b(p.Max(), b(p.Min(), input, limits), 0.0)


@PADDLE.reader("polygon_box_transform")
def polygon_box_transform(b: PaddleBuilder, input: Value) -> Value:
    """Distances from each cell, four pixels wide, as coordinates: x in even channels and y in odd ones."""
    columns = b.unsqueezed(b.counted(b.as_scalar(b.length(input, 3)), F32), 0)
    rows = b.unsqueezed(b.counted(b.as_scalar(b.length(input, 2)), F32), 1)
    is_odd = b.to(b(p.Mod(), b.counted(b.as_scalar(b.length(input, 1)), I64), 2), F32)
    is_odd = b.shaped(is_odd, [-1, 1, 1])
    place = b(p.Add(), b(p.Mul(), columns, b(p.Add(), b(p.Mul(), is_odd, -1.0), 1.0)), b(p.Mul(), rows, is_odd))
    return b(p.Sub(), b(p.Mul(), place, 4.0), input)
