"""Attributes of Paddle's operators that change the result: each is honoured, or its program is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.converters.paddle.reading.program import LEGACY
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.types import F32
from tests.converters.test_paddle_fused import near, real, results
from tests.paddle_program import feed, fetch, op, program, var


def test_arrays_of_other_shapes_are_not_equal() -> None:
    one, three = np.full((1, 1), 2, F32), np.full((1, 3), 2, F32)
    for x, y in ((one, three), (three, one), (three, three)):
        (got,) = results("equal_all", {"X": x, "Y": y}, ["Out"])
        assert bool(got) == (x.shape == y.shape)


def test_rows_that_only_the_run_counts_are_compared_too() -> None:
    (got,) = results("equal_all", {"X": np.ones((4, 3), F32), "Y": np.ones((1, 3), F32)}, ["Out"])
    assert not got


def test_decimals_are_rounded_away_from_zero_in_old_programs() -> None:
    (got,) = results("round", {"X": np.array([0.125, -0.125, 1.26], F32)}, ["Out"], decimals=2)
    near(got, np.array([0.13, -0.13, 1.26], F32))


def test_an_activation_of_a_normalisation_has_the_slope_of_the_file() -> None:
    x, ones, zeros = real(2, 3, 4, 4), np.ones(3, F32), np.zeros(3, F32)
    operands = {"X": x, "Scale": ones, "Bias": zeros, "Mean": zeros, "Variance": ones}
    got = results("inplace_abn", operands, ["Y"], activation="leaky_relu", alpha=0.3, epsilon=0.0, is_test=True)[0]
    near(got, np.where(x > 0, x, 0.3 * x))


@pytest.mark.parametrize("ceil", [False, True])
def test_norms_of_windows_that_are_cut(ceil: bool) -> None:
    x = real(1, 2, 5, 5)
    (got,) = results(
        "lp_pool2d", {"X": x}, ["Out"], ksize=[2, 2], strides=[2, 2], paddings=[0, 0], norm_type=3.0, ceil_mode=ceil
    )
    begins = range(0, 5 if ceil else 4, 2)
    parts = [[x[:, :, i : i + 2, j : j + 2] for j in begins] for i in begins]
    near(got, np.array([[(np.abs(p) ** 3).sum((2, 3)) ** (1 / 3) for p in row] for row in parts]).transpose(2, 3, 0, 1))


def test_slices_that_are_filled_may_be_counted_from_the_end() -> None:
    x, index = real(3, 4), np.array([-1, 1])
    (got,) = results("index_fill", {"x": x, "index": index}, ["Out"], axis=1, value=5.0)
    near(got, np.where(np.isin(np.arange(4), [3, 1]), F32.type(5), x))


def test_norms_of_whole_images() -> None:
    x = real(1, 2, 5, 4)
    (got,) = results("lp_pool2d", {"X": x}, ["Out"], ksize=[2, 2], norm_type=2.0, global_pooling=True)
    near(got, np.sqrt((x**2).sum((2, 3), keepdims=True)))


@pytest.mark.parametrize(
    ("type", "operands", "attributes"),
    [
        ("conv2d", {"Input": (1, 1, 4, 4), "Filter": (1, 1, 2, 2)}, {"fuse_activation": "elu", "fuse_alpha": 0.3}),
        ("matmul", {"X": (2, 4), "Y": (4, 6)}, {"head_number": 2}),
        ("c_embedding", {"Ids": (2, 3), "W": (9, 4)}, {"start_index": 9}),
        ("multihead_matmul", {"Input": (1, 2, 4), "W": (4, 3, 4), "Bias": (3, 4)}, {"transpose_Q": True}),
        ("lp_pool2d", {"X": (1, 1, 4, 4)}, {"ksize": [2, 2], "norm_type": 2.0, "adaptive": True}),
        ("sigmoid", {"X": (1, 4)}, {"soft_label": True}),
    ],
)  # fmt: skip
def test_what_would_change_the_result_is_refused(
    type: str, operands: dict[str, tuple[int, ...]], attributes: dict[str, Any]
) -> None:
    result = "Output" if type == "conv2d" else "Out"
    with pytest.raises(UnsupportedOpError):
        results(type, {slot: real(*dims) for slot, dims in operands.items()}, [result], **attributes)


def test_regions_of_several_images_must_tell_theirs() -> None:
    names = {"x": [2, 1, 4, 4], "boxes": [3, 4]}
    parts = [feed(name, i) for i, name in enumerate(names)]
    parts.append(op("roi_align", {"X": ["x"], "ROIs": ["boxes"]}, {"Out": ["y"]}))
    parts += [fetch("y"), *(var(name, F32, dims) for name, dims in names.items())]
    with pytest.raises(UnsupportedOpError, match="regions of 2 images"):
        bn.load(program(parts))


def test_infinities_are_added_to_rows_that_begin_with_zeros() -> None:
    """0 times an infinity is no zero."""
    x, ids, updates = real(3, 2), np.array([2, 0, 2]), np.array([[1, np.inf], [-np.inf, 4], [5, 6]], F32)
    (got,) = results("scatter", {"X": x, "Ids": ids, "Updates": updates}, ["Out"], overwrite=False)
    near(got, np.array([[-np.inf, 4], x[1], [6, np.inf]], F32))


@pytest.mark.parametrize("own", [False, True])
def test_means_beside_infinities(own: bool) -> None:
    x, places = np.array([[np.inf, 2, 3]], F32), np.array([[1, 1]])
    values = np.array([[5, -np.inf]], F32)
    operands = {"Input": x, "Index": places, "Value": values}
    (got,) = results("put_along_axis", operands, ["Result"], Axis=1, Reduce="mean", Include_self=own)
    near(got, np.array([[np.inf, -np.inf, 3]], F32))


def test_quotients_of_floats_are_rounded_down_before_they_are_rounded() -> None:
    """0.1 as f32 is more than a tenth, so it goes into a half 4 times."""
    x = np.array([0.5, 1, 0.3, -0.5, 7, np.inf, 1, -1, 3, -3], F32)
    y = np.array([0.1, 0.1, 0.1, 0.1, -2, 2, 0, 0, np.inf, np.inf], F32)
    (got,) = results("elementwise_floordiv", {"X": x, "Y": y}, ["Out"])
    near(got, np.array([4, 9, 3, -5, -4, np.nan, np.inf, -np.inf, 0, -1], F32))


def test_a_range_of_one_number_has_it_in_the_middle() -> None:
    (got,) = results("histogram", {"X": np.full(3, 2, F32)}, ["Out"], bins=4, min=0, max=0)
    assert got.tolist() == [0, 0, 3, 0]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("hard_shrink", [0.5, -0.5, 0, 1]), ("softshrink", [0, 0, 0, 0.5]), ("thresholded_relu", [0, 0, 0, 1])],
)
def test_activations_keep_nan_and_what_is_at_the_threshold(name: str, wanted: list[float]) -> None:
    key = "lambda" if name == "softshrink" else "threshold"
    (got,) = results(name, {"X": np.array([0.5, -0.5, 0.25, 1, np.nan], F32)}, ["Out"], **{key: 0.5})
    near(got, np.array([*wanted, np.nan], F32))


@pytest.mark.parametrize("slot", ["ExpandTimes", "expand_times_tensor"])
def test_counts_of_an_old_expand_may_come_in_either_slot(slot: str) -> None:
    x, parts = real(2, 3), [feed("x", 0)]
    counts = {"n": [2, 1]} if slot == "ExpandTimes" else {"n": [2], "m": [1]}
    for name, values in counts.items():
        parts.append(op("assign_value", {}, {"Out": [name]}, shape=[len(values)], dtype=2, int32_values=values))
    parts += [op("expand", {"X": ["x"], slot: [*counts]}, {"Out": ["y"]}), fetch("y"), var("x", F32, [2, 3])]
    near(bn.compile(program(parts), threads=1)(x)[0], np.tile(x, (2, 1)))


def test_rows_of_operators_spell_lists_as_functions_do() -> None:
    """One number stands for a list of one only where the reader says that it takes a list."""
    reader = PADDLE.find(LEGACY, "deformable_conv", 0)
    assert reader is not None
    assert {reader.spelled[name] for name in ("strides", "paddings", "dilations")} == {"Ints"}
