"""Movement on CUDA: every operator against its reference, every element size, and how memory is read and written."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bolt_numba.kernels.cuda.movement import moves, table_gather
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.gather import (
    Compress,
    Gather,
    GatherElements,
    GatherND,
    OneHot,
    ScatterElements,
    ScatterND,
)
from bolt_numba.ops.arrays.generate import ConstantOfShape, EyeLike, Range, Trilu
from bolt_numba.ops.arrays.shape import (
    Concat,
    DepthToSpace,
    Expand,
    Flatten,
    Identity,
    Reshape,
    SpaceToDepth,
    Split,
    Squeeze,
    Tile,
    Transpose,
    Unsqueeze,
)
from bolt_numba.ops.arrays.slicing import Pad, ReverseSequence, Slice
from bolt_numba.ops.data.ml import LabelEncoder, OneHotEncoder
from bolt_numba.ops.data.text import TfIdfVectorizer
from bolt_numba.ops.layers.attention.cache import TensorScatter
from bolt_numba.ops.registry import Op
from bolt_numba.types import AnyDType
from tests.cuda.harness import expect
from tests.cuda.property import taken_cases

MOVED = (
    Identity, Reshape, Flatten, Squeeze, Unsqueeze, Transpose, DepthToSpace, SpaceToDepth, Concat, Split, Slice, Expand,
    Tile, ConstantOfShape, Range, EyeLike, Pad, Compress, Trilu, BitCast, Gather, GatherElements, GatherND, OneHot,
    ScatterElements, ScatterND, ReverseSequence, TensorScatter, ByteTable, LabelEncoder, OneHotEncoder,
    TfIdfVectorizer,
)  # fmt: skip
SIZES = [np.dtype(np.int8), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.int64)]


@pytest.mark.parametrize("kind", MOVED, ids=lambda kind: kind.__name__)
def test_movement_equals_the_reference(kind: type[Op]) -> None:
    assert taken_cases(kind, examples=8)


@pytest.mark.parametrize("dtype", SIZES, ids=str)
@pytest.mark.parametrize("shape", [(2, 40, 36), (3, 33, 65)], ids=str)
def test_a_transpose_of_any_element_is_turned_in_tiles(dtype: AnyDType, shape: tuple[int, ...]) -> None:
    """Of even sizes by words of several elements, else one by one."""
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    expect(Transpose(perm=(0, 2, 1)), x)


def test_more_elements_than_threads_are_moved_by_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a launch had 100 threads."""
    for module in (moves, table_gather):
        monkeypatch.setattr(module, "MOST_LAUNCHED", 100)
    x = np.arange(7 * 5 * 9, dtype=np.float32).reshape(7, 5, 9)
    expect(Transpose(perm=(2, 1, 0)), x)
    expect(Pad("reflect"), x, np.array([2, 1, 0, 3, 0, 2]), constants=(1,))
    expect(Pad("edge"), x, np.array([1, 0, 0, 0, 2, 0]), constants=(1,))
