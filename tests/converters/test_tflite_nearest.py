"""Quantised results are the nearest level of the real number, also where LiteRT's are further off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

import bolt_numba as bn
from bolt_numba.types import Array
from tests.tflite_operator import Tensor, constant, model

WIDE, NARROW = np.arange(-32768, 32768).astype(np.int16), np.arange(-128, 128).astype(np.int8)
HALF = 0.52
"""Levels: half a one, and roundings of f32."""


def stored(like: Array, scale: float, zero: int = 0) -> Tensor:
    return Tensor(like.shape, like.dtype, scale=[scale], zero_point=[zero])


def real(x: Array, scale: float, zero: int = 0) -> Array:
    return np.asarray((x.astype(np.float64) - zero) * scale)


def nearest(file: bytes, wanted: Array, scale: float, zero: int, *inputs: Array) -> None:
    (got,) = bn.compile(file).run(None, {f"t{i}": x for i, x in enumerate(inputs)})
    limits = np.iinfo(got.dtype)
    assert np.abs(got - np.clip(wanted / scale + zero, limits.min, limits.max)).max() <= HALF


def gelu(v: Array) -> Array:
    return np.asarray(v * 0.5 * (1 + erf(v / np.sqrt(2))))


@pytest.mark.parametrize(
    ("op", "options", "function", "x", "scales", "zeros"),
    [
        ("EXP", "Exp", np.exp, WIDE, (4 / 32768, 55 / 32768), (0, 0)),
        ("LOG", "", np.log, WIDE[32769:], (10 / 32768, 11 / 32768), (0, 0)),
        ("RSQRT", "", lambda v: 1 / np.sqrt(v), WIDE[32769:], (10 / 32768, 60 / 32768), (0, 0)),
        ("GELU", "Gelu", gelu, WIDE, (5 / 32768, 5 / 32768), (0, 0)),
        ("LOGISTIC", "", lambda v: 1 / (1 + np.exp(-v)), WIDE, (8 / 32768, 1 / 32768), (0, 0)),
        ("TANH", "", np.tanh, WIDE, (4 / 32768, 1 / 32768), (0, 0)),
        ("SQRT", "", np.sqrt, WIDE[32768:], (10 / 32768, 4 / 32768), (0, 0)),
        ("SQRT", "", np.sqrt, NARROW, (0.05, 4 / 255), (-128, -128)),
    ],
)
def test_functions_of_one_number(
    op: str,
    options: str,
    function: Callable[[Array], Array],
    x: Array,
    scales: tuple[float, float],
    zeros: tuple[int, int],
) -> None:
    file = model(op, [stored(x, scales[0], zeros[0])], [stored(x, scales[1], zeros[1])], options)
    nearest(file, function(real(x, scales[0], zeros[0])), scales[1], zeros[1], x)


def test_quotients() -> None:
    x, y = np.repeat(NARROW, 256), np.tile(NARROW, 256)
    x, y = x[y != 0], y[y != 0]
    file = model("DIV", [stored(x, 0.1), stored(y, 0.05)], [stored(x, 0.2)], "Div")
    nearest(file, real(x, 0.1) / real(y, 0.05), 0.2, 0, x, y)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_means_of_windows(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, (1, 9, 9, 4)).astype(dtype)
    window = {"padding": "VALID", "stride_w": 1, "stride_h": 1, "filter_width": 2, "filter_height": 2}
    zero = 128 if dtype == np.uint8 else 0
    result = Tensor((1, 8, 8, 4), dtype, scale=[0.1], zero_point=[zero])
    views = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (2, 2), (1, 2))
    file = model("AVERAGE_POOL_2D", [stored(x, 0.1, zero)], [result], "Pool2D", **window)
    nearest(file, real(views.mean((-1, -2)), 0.1, zero), 0.1, zero, x)


@pytest.mark.parametrize("to", [(33, 29), (7, 9)])
def test_images_of_16_bits_in_another_size(to: tuple[int, int]) -> None:
    x = np.random.default_rng(1).integers(-32768, 32768, (1, 16, 16, 3)).astype(np.int16)
    wanted = x.astype(np.float64)
    for axis, size in enumerate(to, 1):
        place = np.clip((np.arange(size) + 0.5) * 16 / size - 0.5, 0, 15)
        low = np.floor(place).astype(int)
        part = (place - low).reshape(-1, *(1,) * (3 - axis))
        wanted = np.take(wanted, low, axis) * (1 - part) + np.take(wanted, np.minimum(low + 1, 15), axis) * part
    result = Tensor((1, *to, 3), np.int16, scale=[0.1], zero_point=[0])
    inputs = [stored(x, 0.1), constant(np.array(to, np.int32))]
    file = model("RESIZE_BILINEAR", inputs, [result], "ResizeBilinear", half_pixel_centers=True)
    nearest(file, wanted * 0.1, 0.1, 0, x)
