"""MediaPipe's custom operators.  Sources: their reference kernels, mediapipe/util/tflite/operations."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I64
from bolt_numba.converters.builder import ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.registry import CUSTOM, TFLITE
from bolt_numba.converters.tflite.reading.shapes import same_pads, times
from bolt_numba.converters.tflite.reading.tables.pointwise import atan2
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceMax, ReduceMin
from bolt_numba.ops.arrays.shape import Concat, Reshape, Transpose
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.dtypes import MIN_F32
from bolt_numba.ops.layers.products.conv import ConvTranspose

SAME, VALID = 1, 2
"""`TfLitePadding`, in structures that are stored as they lie in memory."""


def _numbers(b: TfliteBuilder, options: bytes, count: int) -> tuple[int, ...]:
    """The first numbers of a structure."""
    b.invalid_if(len(options) < 4 * count, "bytes of options", len(options), f"at least {4 * count}")
    found = struct.unpack_from(f"<{count}i", options)
    if found[0] not in (SAME, VALID) or min(found) < 1:
        raise b.invalid("options", found, "a padding of 1 or 2, then sizes of at least 1")
    return found


@TFLITE.reader("Convolution2DTransposeBias", domain=CUSTOM)
def convolution_2d_transpose_bias(b: TfliteBuilder, x: Value, filter: Value, bias: Value, *, options: bytes) -> Value:
    """x: [n, h, w, c], filter: [k, r, s, c], bias: [k] -> [n, oh, ow, k]."""
    padding, *strides = _numbers(b, options, 3)
    strides.reverse()
    more = [0, 0]
    if padding == SAME:
        more = [
            max(0, b.static_dim(filter, axis) - (b.static_dim(x, axis) - 1) % stride - 1)
            for axis, stride in zip((1, 2), strides, strict=True)
        ]
    before = [m // 2 for m in more]
    pads = (*before, *(m - n for m, n in zip(more, before, strict=True)))
    operator = ConvTranspose(tuple(strides), pads, layout="NHWC")
    return b(operator, x, b(Transpose((3, 0, 1, 2)), filter), bias)


@TFLITE.reader("MaxPoolingWithArgmax2D", domain=CUSTOM)
def max_pooling_with_argmax_2d(b: TfliteBuilder, x: Value, *, options: bytes) -> tuple[Value, Value]:
    """x: [n, h, w, c] -> the greatest of each window, and its place in the window and 0.1, f32."""
    padding, stride_w, stride_h, width, height = _numbers(b, options, 5)
    if padding == SAME:
        pads = same_pads(b, x, (height, width), (stride_h, stride_w), (1, 1))
        x = b(Pad("constant"), x, ints(pads), np.array(MIN_F32))
    taps = []
    for i in range(height * width):
        start = i // width, i % width
        ends = [b.static_dim(x, i) - size + at + 1 for i, size, at in zip((1, 2), (height, width), start, strict=True)]
        part = b(Slice(), x, ints(start), ints(ends), ints((1, 2)), ints((stride_h, stride_w)))
        taps.append(b.unsqueezed(part, 4))
    windows = b(Concat(4), *taps)
    places = b(p.Cast(F32), b(ArgMax(4, keepdims=False), windows))
    return b(ReduceMax(keepdims=False), windows, ints([4])), b(p.Add(), places, np.array(0.1, F32))


@TFLITE.reader("MaxUnpooling2D", domain=CUSTOM)
def max_unpooling_2d(b: TfliteBuilder, x: Value, places: Value, *, options: bytes) -> Value:
    """x: [n, h, w, c], each put to its place in a window of zeros -> [n, h * height, w * width, c]."""
    _, stride_w, stride_h, width, height = _numbers(b, options, 5)
    b.unsupported_if((stride_w, stride_h) != (width, height), "windows that overlap or leave gaps")
    whole, zero = b(p.Floor(), places), np.zeros((), F32)
    hits = [b(p.Equal(), whole, np.array(i, F32)) for i in range(height * width)]
    taps = [b.unsqueezed(b(p.Where(), hit, x, zero), 4) for hit in hits]
    n, h, w, c = (b.size_of(x, axis) for axis in range(4))
    windows = b.reshaped(b(Concat(4), *taps), [n, h, w, c, height, width])
    return b.reshaped(b(Transpose((0, 1, 4, 2, 5, 3)), windows), [n, times(b, h, height), times(b, w, width), c])


# --- landmarks -------------------------------------------------------------------------------------------------------


def _of(b: TfliteBuilder, x: Value, index: int) -> Value:
    """One element of a vector, []."""
    return b(Gather(0), x, np.array(index))


def _matrix(b: TfliteBuilder, *elements: Any) -> Value:
    """[1, 4, 4] of numbers and values."""
    parts = [b(Reshape(), e, ints([1])) if isinstance(e, Value) else np.array([e], F32) for e in elements]
    return b(Reshape(), b(Concat(0), *parts), ints([1, 4, 4]))


def _turned(b: TfliteBuilder, x: Any, y: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """A point turned by an angle."""
    return (b(p.Sub(), b(p.Mul(), x, cos), b(p.Mul(), y, sin)), b(p.Add(), b(p.Mul(), x, sin), b(p.Mul(), y, cos)))


class _Landmarks:
    """Landmarks of three numbers each.  The frame of some of them is told along an angle."""

    def __init__(self, b: TfliteBuilder, landmarks: Value) -> None:
        self.b, self.rows = b, b(Reshape(), landmarks, ints([-1, 3]))

    def between(self, left: int, right: int) -> tuple[Any, Any]:
        """What lies between two landmarks, y and x."""
        b = self.b
        one, other = (b(Gather(0), self.rows, np.array(i)) for i in (left, right))
        across = b(p.Sub(), other, one)
        return _of(b, across, 1), _of(b, across, 0)

    def frame(self, subset: Sequence[int], angle: Any) -> tuple[list[Any], list[Any], tuple[Any, Any]]:
        """Centre and sizes, x and y, of the landmarks of a subset; cosine and sine of the angle."""
        b = self.b
        cos, sin = b(p.Cos(), angle), b(p.Sin(), angle)
        points = b(Gather(0), self.rows, ints(subset))
        turned = _turned(b, b(Gather(1), points, np.array(0)), b(Gather(1), points, np.array(1)), cos, sin)
        least, most = ([b(kind(keepdims=False), v, ints([0])) for v in turned] for kind in (ReduceMin, ReduceMax))
        pairs = list(zip(least, most, strict=True))
        middle = [b(p.Mul(), b(p.Add(), low, high), 0.5) for low, high in pairs]
        centre = list(_turned(b, middle[0], middle[1], cos, b(p.Neg(), sin)))
        return centre, [b(p.Sub(), high, low) for low, high in pairs], (cos, sin)


@TFLITE.reader("Landmarks2TransformMatrix", domain=CUSTOM, since=2)
def landmarks_to_transform_matrix(
    b: TfliteBuilder,
    landmarks: Value,
    *,
    subset_idxs: Sequence[int],
    left_rotation_idx: int,
    right_rotation_idx: int,
    target_rotation_radians: float = 0.0,
    output_height: int,
    output_width: int,
    scale_x: float,
    scale_y: float,
) -> Value:
    """landmarks: [1, n, 3] -> [1, 4, 4], what takes places of the crop to those of the image."""
    marks = _Landmarks(b, landmarks)
    angle = b(
        p.Sub(), np.array(target_rotation_radians, F32), atan2(b, *marks.between(left_rotation_idx, right_rotation_idx))
    )
    centre, sizes, (cos, sin) = marks.frame(subset_idxs, angle)
    width, height = b(p.Mul(), sizes[0], scale_x / output_width), b(p.Mul(), sizes[1], scale_y / output_height)
    a, across = b(p.Mul(), cos, width), b(p.Mul(), sin, height)
    down, d = b(p.Neg(), b(p.Mul(), sin, width)), b(p.Mul(), cos, height)
    half_w, half_h = output_width / 2, output_height / 2
    x = b(p.Sub(), centre[0], b(p.Add(), b(p.Mul(), a, half_w), b(p.Mul(), across, half_h)))
    y = b(p.Sub(), centre[1], b(p.Add(), b(p.Mul(), down, half_w), b(p.Mul(), d, half_h)))
    return _matrix(b, a, across, 0, x, down, d, 0, y, 0, 0, 1, 0, 0, 0, 0, 1)


@TFLITE.reader("Landmarks2TransformMatrix", domain=CUSTOM)
def landmarks_to_transform_matrix_1(
    b: TfliteBuilder,
    landmarks: Value,
    *,
    subset: Sequence[int],
    left_rotation_idx: int,
    right_rotation_idx: int,
    bbox_size_multiplier: float,
    landmarks_range: float,
    input_hw: Sequence[int],
    output_hw: Sequence[int],
    dimensions: int = 3,
) -> Value:
    """landmarks: [1, 1, 1, 3 n] -> [1, 4, 4]; places are told from -1 to 1 in between."""
    b.unsupported_if(dimensions != 3, f"landmarks of {dimensions} numbers")
    marks = _Landmarks(b, landmarks)
    centre, sizes, (cos, sin) = marks.frame(
        subset, b(p.Neg(), b(p.Atan(), b(p.Div(), *marks.between(left_rotation_idx, right_rotation_idx))))
    )
    width, height = (b(p.Mul(), s, bbox_size_multiplier / landmarks_range) for s in sizes)
    x, y = (b(p.Sub(), b(p.Mul(), c, 2.0 / landmarks_range), 1.0) for c in centre)
    (in_h, in_w), (out_h, out_w) = ([(size - 1) / 2 for size in hw] for hw in (input_hw, output_hw))
    a, across = b(p.Mul(), cos, width), b(p.Mul(), sin, height)
    down, d = b(p.Neg(), b(p.Mul(), sin, width)), b(p.Mul(), cos, height)
    x = b(p.Mul(), b(p.Add(), b(p.Sub(), x, b(p.Add(), a, across)), 1.0), in_w)
    y = b(p.Mul(), b(p.Add(), b(p.Sub(), y, b(p.Add(), down, d)), 1.0), in_h)
    first, second = (
        (b(p.Mul(), v, f / out_w), b(p.Mul(), w, f / out_h)) for v, w, f in ((a, across, in_w), (down, d, in_h))
    )
    return _matrix(b, *first, 0, x, *second, 0, y, 0, 0, 1, 0, 0, 0, 0, 1)


@TFLITE.reader("TransformLandmarks", domain=CUSTOM, since=2)
def transform_landmarks(b: TfliteBuilder, landmarks: Value, matrix: Value, *, dimensions: int = 0) -> Value:
    """landmarks: [1, n, 2 or 3], matrix: [1, 4, 4] -> like landmarks; what is behind x and y stays."""
    return _moved(b, landmarks, matrix, b.static_dim(landmarks, -1), 1.0)


@TFLITE.reader("TransformLandmarks", domain=CUSTOM)
def transform_landmarks_1(b: TfliteBuilder, landmarks: Value, matrix: Value, *, dimensions: int, scale: float) -> Value:
    """landmarks: [1, h, w, n * dimensions]."""
    return _moved(b, landmarks, matrix, dimensions, scale)


def _moved(b: TfliteBuilder, landmarks: Value, matrix: Value, dimensions: int, scale: float) -> Value:
    b.invalid_if(dimensions not in (2, 3), "dimensions", dimensions, "2 or 3")
    rows, m = b(Reshape(), landmarks, ints([-1, dimensions])), b(Reshape(), matrix, ints([16]))
    x, y = (b.sliced(rows, 1, i, i + 1) for i in (0, 1))
    parts = []
    for i in (0, 4):
        plane = b(p.Add(), b(p.Mul(), x, _of(b, m, i)), b(p.Mul(), y, _of(b, m, i + 1)))
        parts.append(b(p.Add(), plane, b(p.Mul(), _of(b, m, i + 3), float(scale))))
    parts += [b.sliced(rows, 1, 2)] if dimensions == 3 else []
    rank = len(landmarks.type.shape or ())
    return b.reshaped(b(Concat(1), *parts), [b.size_of(landmarks, i) for i in range(rank)])


@TFLITE.reader("TransformTensor", "TransformTensorBilinear", domain=CUSTOM, since=2)
def transform_tensor_bilinear(
    b: TfliteBuilder, x: Value, matrix: Value, *, output_size: Sequence[int], mode: str = "bilinear"
) -> Value:
    """x: [1, h, w, c], matrix: [1, 4, 4] -> [1, oh, ow, c]: what lies where the matrix takes the middle of a pixel."""
    return _sampled(b, x, matrix, output_size, mode, 0.5)


@TFLITE.reader("TransformTensor", "TransformTensorBilinear", domain=CUSTOM)
def transform_tensor(
    b: TfliteBuilder, x: Value, matrix: Value, *, output_size: Sequence[int], mode: str = "bilinear"
) -> Value:
    """The same for the corner of a pixel."""
    return _sampled(b, x, matrix, output_size, mode, 0.0)


def _sampled(b: TfliteBuilder, x: Value, matrix: Value, output_size: Sequence[int], mode: str, middle: float) -> Value:
    height, width = output_size
    if mode != "bilinear" or not 0 < height * width <= 1 << 26:
        raise b.unsupported(f"mode {mode} of {height} x {width} pixels")
    h, w, channels = (b.static_dim(x, axis) for axis in (1, 2, 3))
    pixels, m = b(Reshape(), x, ints([h * w, channels])), b(Reshape(), matrix, ints([16]))
    ys, xs = (v.reshape(-1, 1) + np.float32(middle) for v in np.indices((height, width), F32))
    places = [
        b(
            p.Sub(),
            b(p.Add(), b(p.Add(), b(p.Mul(), _of(b, m, i), xs), b(p.Mul(), _of(b, m, i + 1), ys)), _of(b, m, i + 3)),
            middle,
        )
        for i in (0, 4)
    ]
    inside = [
        b(p.And(), b(p.LessOrEqual(), np.zeros((), F32), v), b(p.LessOrEqual(), v, float(size - 1)))
        for v, size in zip(places, (w, h), strict=True)
    ]
    left, top = (b(p.Floor(), v) for v in places)
    right, lower = b(p.Sub(), places[0], left), b(p.Sub(), places[1], top)

    def at(down: int, across: int) -> Any:
        column, row = (
            b(p.Cast(I64), b(p.Clip(0.0, float(size - 1)), b(p.Add(), v, float(step))))
            for v, size, step in ((left, w, across), (top, h, down))
        )
        return b(Gather(0), pixels, b(Reshape(), b(p.Add(), b(p.Mul(), row, np.array(w)), column), ints([-1])))

    rows = [b(p.Add(), at(i, 0), b(p.Mul(), b(p.Sub(), at(i, 1), at(i, 0)), right)) for i in (0, 1)]
    made = b(p.Add(), rows[0], b(p.Mul(), b(p.Sub(), rows[1], rows[0]), lower))
    kept = b(p.Where(), b(p.And(), *inside), made, np.zeros((), F32))
    return b(Reshape(), kept, ints([1, height, width, channels]))
