"""Pools, resizing and sampling on CUDA, in every dtype and either layout, against the references."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bolt_numba.ops.arrays.reduce import TopK
from bolt_numba.ops.layers.detection.regions import RoiAlign
from bolt_numba.ops.layers.pool import AveragePool, LpPool, MaxPool
from bolt_numba.ops.layers.resize import GridSample, Resize
from bolt_numba.ops.registry import Op
from bolt_numba.types import F32, AnyDType
from tests.cuda.harness import expect
from tests.cuda.property import taken_cases

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
NEAR: dict[AnyDType, float] = {F32: 2e-6, F16: 1e-3, BF16: 8e-3}
EXAMPLES: dict[AnyDType, int] = {F32: 9, F16: 3, BF16: 3}
"""Forms are tried in f32: halves differ by how they are read and written."""
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(MaxPool, F32), (AveragePool, F32), (LpPool, F32), (AveragePool, F16), (MaxPool, BF16)], ids=str
)
def test_pools_equal_the_references(kind: type[Op], dtype: AnyDType) -> None:
    assert taken_cases(kind, dtype, examples=4, rtol=NEAR[dtype])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_pools_of_wide_images_pads_and_dilations(layout: str) -> None:
    x = RNG.standard_normal((2, 9, 10, 16)).astype(np.float32)
    pads = (1, 0, 1, 2)
    expect(MaxPool((3, 2), (2, 1), pads, (1, 2), layout=layout), x)
    expect(AveragePool((3, 2), (2, 1), pads, (2, 1), layout=layout, count_include_pad=True, ceil_mode=True), x)
    expect(MaxPool((3, 2), (2, 1), pads, layout=layout, indices=True, storage_order=1), x)


def test_the_greatest_with_nan_is_nan_and_integers_stay() -> None:
    x = RNG.integers(-100, 100, (1, 6, 6, 8))
    expect(MaxPool((2, 2), layout="NHWC"), x.astype(np.int8))
    expect(MaxPool((2, 2), layout="NHWC"), x.astype(np.uint64))
    holes = np.where(x > 90, np.nan, x).astype(np.float32)
    expect(MaxPool((3, 3), (1, 1), layout="NHWC"), holes)
    expect(MaxPool((3, 3), (1, 1), indices=True), holes)


@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_resizing_equals_the_reference(dtype: AnyDType) -> None:
    assert taken_cases(Resize, dtype, examples=EXAMPLES[dtype], rtol=5 * NEAR[dtype], atol=5 * NEAR[dtype])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_images_are_resized_in_either_layout(mode: str, layout: str) -> None:
    x = RNG.standard_normal((1, 6, 5, 8)).astype(np.float32)
    scales = np.array([1, 1, 2.5, 0.7], np.float32)
    expect(Resize(mode=mode, layout=layout), x, None, scales, constants=(2,))
    expect(Resize(mode=mode, layout=layout, antialias=True), x.astype(F16), None, scales, constants=(2,), rtol=2e-3)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_sampling_at_points_equals_the_reference(dtype: AnyDType) -> None:
    assert taken_cases(GridSample, dtype, examples=EXAMPLES[dtype], rtol=5 * NEAR[dtype], atol=5 * NEAR[dtype])


def test_points_that_are_no_numbers_are_as_in_the_reference() -> None:
    x = RNG.standard_normal((1, 9, 4, 5)).astype(np.float32)
    grid = np.array([[[[np.nan, 0.5], [np.inf, -0.5], [-1e9, 3.0], [2.0, -np.inf]]]], np.float32)
    for padding in ("zeros", "border", "reflection"):
        expect(GridSample("linear", padding), x, grid)
        expect(GridSample("cubic", padding), x, grid)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_regions_equal_the_reference(dtype: AnyDType) -> None:
    assert taken_cases(RoiAlign, dtype, examples=EXAMPLES[dtype], rtol=5 * NEAR[dtype], atol=5 * NEAR[dtype])


@pytest.mark.parametrize("dtype", [F32, F16, np.dtype(np.int8), np.dtype(np.uint32)], ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_a_line_are_in_order_with_equals_and_nan(largest: bool, dtype: AnyDType) -> None:
    x = RNG.integers(0, 9, (3, 70, 2)).astype(dtype)
    if dtype.kind == "f":
        x[0, 5:9], x[1, 3], x[2, 7] = np.nan, -np.inf, -0.0
    expect(TopK(axis=1, largest=largest), x, np.array([70]), constants=(1,))


@pytest.mark.parametrize("k", [3, 2500, 4100])
def test_long_lines_are_sorted_in_parts(k: int) -> None:
    """Of 3 chunks, so that one run has no partner; lines along any axis."""
    x = RNG.integers(-1000, 1000, (2, 4100, 2)).astype(np.float32)
    expect(TopK(axis=1), x, np.array([k]), constants=(1,))


def test_what_topk_is_tried_on_everywhere() -> None:
    assert taken_cases(TopK, examples=6)
