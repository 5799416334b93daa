"""Resize by channels and factors: pixels copied or blended one by one, or a row as permuted vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.movement.table_gather import windows
from bolt_numba.ops.layers import resize
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.types import F32, F64, I32, U8
from tests.harness import run_kernel
from tests.near import assert_near

CHANNELS = st.sampled_from([1, 2, 3, 5, 8, 12, 15, 16, 17, 21, 31, 32, 33, 64, 255, 300])
FACTORS = st.sampled_from([2.0, 2.0, 2.0, 3.0, 4.0, 1.5, 1.0, 0.5, 0.25])
EXAMPLES = 40


def image(channels: int, size: tuple[int, int], layout: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    dims = (2, *size, channels) if layout == "NHWC" else (2, channels, *size)
    return np.random.default_rng(math.prod(dims)).integers(-100, 100, dims).astype(np.float32)


def outputs(size: tuple[int, int], factors: tuple[float, float]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    kept = [f if int(n * f) else 1.0 for n, f in zip(size, factors, strict=True)]
    return np.array([1, 1, *kept], np.float32)


@settings(deadline=None, database=None, derandomize=True, max_examples=EXAMPLES)
@given(
    CHANNELS,
    st.tuples(st.integers(1, 9), st.integers(1, 23)),
    st.tuples(FACTORS, FACTORS),
    st.sampled_from(["NHWC", "NCHW"]),
    st.sampled_from([F32, F32, I32, U8, F64]),
)
def test_nearest(channels, size, factors, layout, dtype) -> None:  # type: ignore[no-untyped-def]
    op = Resize(
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor", layout=layout
    )  # fmt: skip
    x = image(channels, size, layout).astype(dtype)
    inputs = (x, None, outputs(size, factors))
    np.testing.assert_array_equal(run_kernel(op, inputs)[0], op.reference(*inputs))


@settings(deadline=None, database=None, derandomize=True, max_examples=EXAMPLES)
@given(
    CHANNELS,
    st.tuples(st.integers(1, 9), st.integers(1, 23)),
    st.tuples(FACTORS, FACTORS),
    st.sampled_from(["NHWC", "NCHW"]),
    st.sampled_from(["linear", "linear", "cubic"]),
    st.sampled_from(["half_pixel", "asymmetric", "align_corners"]),
    st.booleans(),
)
def test_blends(channels, size, factors, layout, mode, coordinates, antialias) -> None:  # type: ignore[no-untyped-def]
    op = Resize(mode=mode, coordinate_transformation_mode=coordinates, antialias=antialias, layout=layout)
    inputs = (image(channels, size, layout), None, outputs(size, factors))
    wanted = op.reference(*inputs)
    assert_near(run_kernel(op, inputs)[0], wanted, 2e-6, floor=100)


def test_one_axis_and_three() -> None:
    x = np.random.default_rng(3).integers(-100, 100, (1, 3, 4, 9, 20)).astype(np.float32)
    for scales in (
        [1, 1, 1, 1, 2],
        [1, 1, 1, 2, 1],
        [1, 1, 2, 1, 1],
        [1, 1, 2, 2, 2],
        [1, 1, 2, 1, 2],
        [1, 2, 1, 1, 2],
    ):
        for layout in ("NCHW", "NHWC"):
            given_x = x if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
            for mode in ("linear", "nearest"):
                op = Resize(mode=mode, coordinate_transformation_mode="half_pixel", layout=layout)
                inputs = (given_x, None, np.array(scales, np.float32))
                got = run_kernel(op, inputs)[0]
                assert_near(got, op.reference(*inputs), 2e-6, floor=100)


COORDINATES = [c for c in resize.COORDINATES if c != "tf_crop_and_resize"]
SINGLE = {"edge_half_pixel": -0.5, "pytorch_half_pixel": 0.0, "align_corners": 0.0, "asymmetric": 0.0}
"""Where a single element lies; for other coordinates in the middle."""


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_sizes_of_one(coordinates: str, mode: str) -> None:
    """From one element all are it; to one it is where the coordinates say, and no other axis moves."""
    op = Resize(mode=mode, coordinate_transformation_mode=coordinates, nearest_mode="floor")
    for size in (1, 2, 4, 5):
        x = np.random.default_rng(size).integers(-9, 9, (1, 2, size, 1)).astype(np.float32)
        inputs = (x, None, None, np.array([1, 2, size, 7]))
        assert_near(run_kernel(op, inputs)[0], np.repeat(x, 7, axis=3), 2e-6, floor=10)
        middle = size / 2 if coordinates == "tf_half_pixel_for_nn" else (size - 1) / 2
        at, places = SINGLE.get(coordinates, middle), np.arange(-3, size + 4)
        distance = np.abs(places - at)
        weights = {
            "nearest": places == np.floor(at),
            "linear": np.maximum(1 - distance, 0),
            "cubic": resize.cubic(distance, op.cubic_coeff_a),
        }[mode]
        wanted = np.einsum("nchw,h->ncw", x[:, :, np.clip(places, 0, size - 1)], weights)
        inputs = (x, None, None, np.array([1, 2, 1, 1]))
        assert_near(run_kernel(op, inputs)[0][:, :, 0], wanted, 2e-6, floor=10)


def test_windows() -> None:
    n = 3 * LANES + 5
    for places in (np.arange(n), np.arange(n)[::-1], np.arange(2 * n) // 2, np.maximum(np.arange(n) - 3, 0)):
        made = windows(places)
        assert made is not None
        first, order = made
        source = np.arange(places.max() + 1)
        rows = np.stack([source[f // 4 : f // 4 + LANES][o] for f, o in zip(first, order, strict=True)])
        starts = np.minimum(np.arange(0, len(places), LANES), len(places) - LANES)
        np.testing.assert_array_equal(rows, places[starts[:, None] + np.arange(LANES)])
    assert windows(np.arange(LANES - 1)) is None
    assert windows(np.zeros(n, np.int64)) is None
    assert windows(np.arange(n) * 2) is None
