"""Custom operators of MediaPipe and Larq against what their kernels compute, written as loops."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.types import F32, I32, Array
from tests.tflite_files import TfliteFile

flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")
RNG = np.random.default_rng(5)


def run(
    name: str, inputs: Sequence[Array], results: int, options: Any, constants: Sequence[Array] = (), version: int = 1
) -> list[Array]:
    """What an operator makes of inputs and constants; options: a structure's bytes, or a map."""
    file = TfliteFile()
    file.subgraph()
    kinds = {"f": "FLOAT32", "i": "INT32"}
    fed = [file.tensor(f"x{i}", a.shape, kinds[a.dtype.kind]) for i, a in enumerate(inputs)]
    held = [file.constant(f"c{i}", a) if a.size else -1 for i, a in enumerate(constants)]
    made = [file.tensor(f"y{i}", ()) for i in range(results)]
    custom = options if isinstance(options, bytes) else bytes(flexbuffers.Dumps(options))
    file.operator(name, [*fed, *held], made, custom=custom)
    file.codes[-1]["version"] = version
    file.ends(fed, made)
    session = bn.compile(file.to_bytes(), threads=1)
    return session.run(None, dict(zip([s.name for s in session.inputs], inputs, strict=True)))


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(F32)


@pytest.mark.parametrize("padding", [1, 2])
def test_transposed_convolution_with_a_bias(padding: int) -> None:
    x, w, bias, stride = real(1, 3, 4, 2), real(5, 3, 3, 2), real(5), 2
    more = [max(0, 3 - (n - 1) % stride - 1) if padding == 1 else 0 for n in (3, 4)]
    wanted = np.zeros((1, *(stride * (n - 1) + 3 - m for n, m in zip((3, 4), more, strict=True)), 5), F32) + bias
    for y, x_, r, s in np.ndindex(3, 4, 3, 3):
        at = y * stride - more[0] // 2 + r, x_ * stride - more[1] // 2 + s
        if 0 <= at[0] < wanted.shape[1] and 0 <= at[1] < wanted.shape[2]:
            wanted[0, at[0], at[1]] += w[:, r, s] @ x[0, y, x_]
    found = run("Convolution2DTransposeBias", [x], 1, struct.pack("<4i", padding, stride, stride, 0), [w, bias])[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", [1, 2])
def test_pooling_with_places_and_back(padding: int) -> None:
    x = real(2, 5, 6, 3)
    options = struct.pack("<6i", padding, 2, 2, 2, 2, 0)
    pooled, places = run("MaxPoolingWithArgmax2D", [x], 2, options)
    h, w = (3, 3) if padding == 1 else (2, 3)
    assert pooled.shape == places.shape == (2, h, w, 3)
    for n, y, x_, c in np.ndindex(2, h, w, 3):
        window = np.full((2, 2), -np.inf, F32)
        part = x[n, 2 * y : 2 * y + 2, 2 * x_ : 2 * x_ + 2, c]
        window[: part.shape[0], : part.shape[1]] = part
        assert pooled[n, y, x_, c] == window.max()
        assert places[n, y, x_, c] == np.float32(window.argmax() + 0.1)
    back = run("MaxUnpooling2D", [pooled, places], 1, options)[0]
    wanted = np.zeros((2, 2 * h, 2 * w, 3), F32)
    for n, y, x_, c in np.ndindex(2, h, w, 3):
        place = int(places[n, y, x_, c])
        wanted[n, 2 * y + place // 2, 2 * x_ + place % 2, c] = pooled[n, y, x_, c]
    np.testing.assert_array_equal(back, wanted)


def moved(x: float, y: float) -> Array:
    return np.array([[1, 0, 0, x], [0, 1, 0, y], [0, 0, 1, 0], [0, 0, 0, 1]])


def turned(r: float) -> Array:
    c, s = math.cos(r), math.sin(r)
    return np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def test_landmarks_to_a_matrix() -> None:
    marks, subset = real(1, 7, 3), [1, 2, 5, 6]
    options = {"subset_idxs": subset, "left_rotation_idx": 3, "right_rotation_idx": 4, "target_rotation_radians": 0.5,
               "output_height": 32, "output_width": 48, "scale_x": 1.5, "scale_y": 2.0}  # fmt: skip
    left, right = marks[0, 3].astype(float), marks[0, 4].astype(float)
    r = 0.5 - math.atan2(right[1] - left[1], right[0] - left[0])
    points = (turned(r)[:2, :2] @ marks[0, subset, :2].T.astype(float)).T
    low, high = points.min(0), points.max(0)
    centre, size = turned(-r)[:2, :2] @ ((low + high) / 2), high - low
    scale = np.diag([1.5 * size[0] / 48, 2.0 * size[1] / 32, 1, 1])
    wanted = moved(*centre) @ turned(-r) @ scale @ moved(-24, -16)
    found = run("Landmarks2TransformMatrix", [marks], 1, options, version=2)[0]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-4)


def test_landmarks_to_a_matrix_between_minus_one_and_one() -> None:
    marks, subset = np.abs(real(1, 1, 1, 21)) * 50 + 5, [1, 2, 5, 6]
    options = {"subset": subset, "left_rotation_idx": 3, "right_rotation_idx": 4, "bbox_size_multiplier": 1.5,
               "landmarks_range": 192, "input_hw": [48, 64], "output_hw": [16, 24], "dimensions": 3}  # fmt: skip
    rows = marks.reshape(7, 3).astype(float)
    alpha = -math.atan((rows[4, 1] - rows[3, 1]) / (rows[4, 0] - rows[3, 0]))
    points = (turned(alpha)[:2, :2] @ rows[subset, :2].T).T
    low, high = points.min(0), points.max(0)
    size = (high - low) * 1.5 / 192
    place = turned(-alpha)[:2, :2] @ ((low + high) / 2) / 192 * 2 - 1
    matrix = moved(*place) @ turned(-alpha) @ np.diag([*size, 1, 1])
    relative = np.array([[2 / 23, 0, 0, -1], [0, 2 / 15, 0, -1], [0, 0, 1, 0], [0, 0, 0, 1]])
    absolute = np.array([[63 / 2, 0, 0, 63 / 2], [0, 47 / 2, 0, 47 / 2], [0, 0, 1, 0], [0, 0, 0, 1]])
    found = run("Landmarks2TransformMatrix", [marks], 1, options)[0]
    np.testing.assert_allclose(found[0], absolute @ matrix @ relative, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", [1, 2])
def test_landmarks_are_moved(version: int) -> None:
    matrix = real(1, 4, 4)
    marks = real(1, 5, 3) if version == 2 else real(1, 1, 1, 15)
    scale = 1.0 if version == 2 else 3.0
    found = run("TransformLandmarks", [marks, matrix], 1, {"dimensions": 3, "scale": scale} if version == 1 else {},
                version=version)[0]  # fmt: skip
    rows, m = marks.reshape(-1, 3), matrix[0]
    wanted = np.stack([m[i, 0] * rows[:, 0] + m[i, 1] * rows[:, 1] + m[i, 3] * scale for i in (0, 1)] + [rows[:, 2]], 1)
    np.testing.assert_allclose(found, wanted.reshape(marks.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2])
def test_an_image_is_sampled_where_a_matrix_takes_it(version: int) -> None:
    x, middle = real(1, 6, 5, 2), 0.5 * (version - 1)
    matrix = (moved(1.25, -0.5) @ turned(0.3) @ np.diag([0.7, 1.2, 1, 1])).astype(F32)[None]
    name = "TransformTensor" if version == 1 else "TransformTensorBilinear"
    found = run(name, [x, matrix], 1, {"mode": "bilinear", "output_size": [4, 7]}, version=version)[0]
    wanted = np.zeros((1, 4, 7, 2), F32)
    padded = np.pad(x[0], ((0, 1), (0, 1), (0, 0)))
    for row, column in np.ndindex(4, 7):
        at = matrix[0] @ np.array([column + middle, row + middle, 0, 1], F32)
        across, down = at[0] - middle, at[1] - middle
        if 0 <= across <= 4 and 0 <= down <= 5:
            left, top = int(across), int(down)
            a, d = across - left, down - top
            upper, lower = (padded[t, left] * (1 - a) + padded[t, left + 1] * a for t in (top, top + 1))
            wanted[0, row, column] = upper * (1 - d) + lower * d
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


# --- Larq ------------------------------------------------------------------------------------------------------------


def words(signs: Array) -> Array:
    """-1 as a set bit, 32 to a word."""
    bits = np.zeros((*signs.shape[:-1], -(-signs.shape[-1] // 32) * 32), np.uint8)
    bits[..., : signs.shape[-1]] = signs < 0
    return np.packbits(bits, axis=-1, bitorder="little").view("<i4")


def binary(x: Array, w: Array, thresholds: Array, **more: Any) -> list[Array]:
    """Quantise, convolve, give as floats: three operators of one file."""
    file = TfliteFile()
    file.subgraph()
    xs, bits = file.tensor("x", x.shape), file.tensor("bits", (), "INT32")
    y, out = file.tensor("y", (), "INT32" if thresholds.size else "FLOAT32"), file.tensor("out", ())
    k = len(w)
    held = [file.constant("w", words(w)), -1, -1, -1]
    if thresholds.size:
        held[3] = file.constant("thresholds", thresholds)
    else:
        held[1:3] = (
            file.constant("multiplier", np.linspace(-1, 2, k, dtype=F32)),
            file.constant("bias", np.arange(k, dtype=F32)),
        )
    options = {"channels_in": x.shape[3], "stride_width": 1, "stride_height": 2, "pad_values": 1, "padding": 0}
    options |= {"dilation_width_factor": 1, "dilation_height_factor": 1, "fused_activation_function": 1, **more}
    file.operator("LceQuantize", [xs], [bits], custom=b"")
    file.operator("LceBconv2d", [bits, *held], [y], custom=bytes(flexbuffers.Dumps(options)))
    if thresholds.size:
        file.operator("LceDequantize", [y], [out], custom=b"")
    file.ends([xs], [out if thresholds.size else y])
    session = bn.compile(file.to_bytes(), threads=1)
    assert "BinaryConv" in [n.op.name for n in session.optimised.nodes]
    return session.run(None, {"x": x})


@pytest.mark.parametrize("pad_values", [0, 1])
@pytest.mark.parametrize("channels", [40, 64])
def test_binary_convolutions(pad_values: int, channels: int) -> None:
    x, w = real(1, 5, 4, channels), np.sign(real(6, 3, 3, channels))
    around = np.pad(np.where(x < 0, -1, 1), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=pad_values)
    sums = np.array(
        [[[np.sum(around[0, 2 * y : 2 * y + 3, z : z + 3] * f) for f in w] for z in range(4)] for y in range(3)]
    )
    floats = np.maximum(sums, 0) * np.linspace(-1, 2, 6) + np.arange(6)
    found = binary(x, w, np.zeros(0, I32), pad_values=pad_values)[0]
    np.testing.assert_allclose(found[0], floats, rtol=1e-5, atol=1e-4)
    thresholds = np.array([9 * channels // 2 + i for i in (-9, -3, 0, 1, 5, 300)], I32)
    differ = (9 * channels - sums) / 2
    if pad_values == 1:
        found = binary(x, w, thresholds)[0]
        np.testing.assert_array_equal(found[0], np.where(differ > thresholds, -1, 1))


def test_binary_pooling() -> None:
    x = real(1, 4, 4, 3)
    file = TfliteFile()
    file.subgraph()
    xs, bits, most, out = (
        file.tensor(n, x.shape if n == "x" else (), t)
        for n, t in (("x", "FLOAT32"), ("b", "INT32"), ("m", "INT32"), ("y", "FLOAT32"))
    )
    options = {"padding": 1, "stride_width": 2, "stride_height": 2, "filter_width": 2, "filter_height": 2}
    file.operator("LceQuantize", [xs], [bits], custom=b"")
    file.operator("LceBMaxPool2d", [bits], [most], custom=bytes(flexbuffers.Dumps(options)))
    file.operator("LceDequantize", [most], [out], custom=b"")
    file.ends([xs], [out])
    wanted = np.where(x < 0, -1, 1).reshape(2, 2, 2, 2, 3).max((1, 3))
    np.testing.assert_array_equal(bn.compile(file.to_bytes()).run(None, {"x": x})[0][0], wanted)
