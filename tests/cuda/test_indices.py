"""Gathers and scatters on CUDA whose indices are data: refused where they lead outside, in order where they meet."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bolt_numba.errors import DataError
from bolt_numba.ir.build import infer_types
from bolt_numba.kernels import registry
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.registry import QueryContext
from bolt_numba.ops.arrays.gather import Gather, GatherElements, GatherND, OneHot, ScatterElements, ScatterND
from bolt_numba.ops.arrays.slicing import ReverseSequence
from bolt_numba.ops.layers.attention.cache import TensorScatter
from bolt_numba.ops.registry import Op
from bolt_numba.types import Array, type_of
from tests.cuda.harness import expect, run_op

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 7)).astype(np.float32)
BF16 = np.dtype(ml_dtypes.bfloat16)
WRONG: list[tuple[Op, tuple[Array, ...]]] = [
    (Gather(axis=1), (X, np.array([0, 7]))),
    (Gather(axis=0), (X, np.array([-6, 1], np.int32))),
    (GatherElements(axis=0), (X, np.full((2, 7), 5))),
    (GatherND(), (X, np.array([[4, 6], [0, -8]]))),
    (ScatterElements(axis=1), (X, np.full((5, 1), 9), X[:, :1])),
    (ScatterElements(axis=1, reduction="max"), (X, np.full((5, 1), -8), X[:, :1])),
    (ScatterND(), (X, np.array([[5]]), X[:1])),
    (ScatterND(reduction="add"), (X, np.array([[5]]), X[:1])),
    (ReverseSequence(), (X, np.array([1, 2, 6, 3, 0, 1, 5]))),
    (TensorScatter(axis=-2), (X[None], X[None, :2], np.array([4]))),
]


@pytest.mark.parametrize(("op", "arrays"), WRONG, ids=lambda part: part.name if isinstance(part, Op) else "")
def test_an_index_beyond_the_axis_is_an_error_of_the_reference(op: Op, arrays: tuple[Array, ...]) -> None:
    with pytest.raises(DataError) as theirs:
        op.reference(*arrays)
    with pytest.raises(DataError) as mine:
        run_op(op, *arrays)
    assert str(mine.value).endswith(str(theirs.value))


MEETING = [
    ("none", "f4 f2 i8"), ("add", "f4 f2 bf16 i4 i8"), ("mul", "f4 f2 i8"), ("max", "f4 bf16 i4"), ("min", "f2 i4 i8"),
]  # fmt: skip
"""By reduction: what each kind of kernel and each rule for numbers is tried on."""


@pytest.mark.parametrize(("reduction", "name"), [(r, d) for r, names in MEETING for d in names.split()])
def test_updates_that_meet_end_as_one_after_the_other(reduction: str, name: str) -> None:
    dtype = BF16 if name == "bf16" else np.dtype(name)
    x = RNG.integers(-3, 4, (4, 9)).astype(dtype)
    updates = RNG.integers(-2, 3, (6, 9)).astype(dtype)
    index = RNG.integers(-4, 4, (6, 9))
    expect(ScatterElements(axis=0, reduction=reduction), x, index, updates)
    expect(ScatterND(reduction=reduction), x, index[:, :1], updates)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_maximum_with_nan_is_nan(reduction: str) -> None:
    updates = np.array([[np.nan, 1.0, np.nan], [2.0, np.nan, -np.inf]], np.float32)
    expect(ScatterElements(axis=0, reduction=reduction), X[:2, :3], np.array([[0, 1, 0], [0, 1, 1]]), updates)


def test_numbers_of_f32_name_hot_elements_and_nan_names_none() -> None:
    indices = np.array([0.0, -1.0, 2.9, -0.5, np.nan, np.inf, -3e30, 99.0], np.float32)
    with np.errstate(invalid="ignore"):
        hot = run_op(OneHot(), indices, np.array(4), np.array([2, 7], np.int16), constants=(1,))[0]
    places = np.array([0, 3, 2, 0, -1, -1, -1, -1])
    np.testing.assert_array_equal(hot, np.where(places[:, None] == np.arange(4), 7, 2))


def test_strict_sessions_add_up_in_order() -> None:
    """Atomic additions of f32 may round in another order from run to run; those of integers cannot."""
    for dtype, numerics, atomic in (("f4", "default", True), ("f4", "strict", False), ("i4", "strict", True)):
        ins = [type_of(a) for a in (X.astype(dtype), np.array([[1], [1]]), X[:2].astype(dtype))]
        op, context = ScatterND(reduction="add"), QueryContext(numerics=numerics)
        entry = registry.select(op, ins, context, "cuda")
        assert entry is not None
        *_, last = made_steps(entry, op, ins, infer_types(op, ins), context)
        assert ("atomically" in last.kernel.name) == atomic
