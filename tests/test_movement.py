"""Geometry of data movement, and kernels that share small work among threads as they share large work."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from bolt_numba.errors import DataError
from bolt_numba.kernels.common import gather, moves, scatter
from bolt_numba.kernels.cpu import elements
from bolt_numba.kernels.cpu.elementwise import quantize
from bolt_numba.kernels.cpu.language.lang import splat, vstore_u8_n
from bolt_numba.kernels.cpu.movement import move
from bolt_numba.kernels.cpu.movement import table_gather as take
from bolt_numba.kernels.cpu.recurrent import recurrent
from bolt_numba.kernels.cpu.spatial import pool, resize
from bolt_numba.kernels.geometry.strides import (
    Move,
    broadcast_move,
    place_move,
    slice_move,
    tile_move,
    transpose_move,
)
from bolt_numba.kernels.jit import PTR, native
from bolt_numba.kernels.registry import Entry
from bolt_numba.ops.arrays.gather import Gather, GatherElements, ScatterElements
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.types import Array
from tests.harness import plan, run_kernel
from tests.test_kernels import ENTRIES, name_of, taken_cases

MODULES = (elements, gather, move, moves, pool, quantize, recurrent, resize, scatter, take)
OWN = [e for e in ENTRIES if e.make.__module__ in {m.__name__ for m in MODULES}]
X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


def run_on_arrays(moved: Move, src: Array, dst: Array) -> None:
    """The meaning of a move, on flat byte arrays."""
    for index in np.ndindex(*(a.size for a in moved.axes)):
        s = moved.src_offset + sum(i * a.src for i, a in zip(index, moved.axes, strict=True))
        d = moved.dst_offset + sum(i * a.dst for i, a in zip(index, moved.axes, strict=True))
        dst[d : d + moved.unit] = src[s : s + moved.unit]


def moved(m: Move, x: Array, shape: Sequence[int]) -> Array:
    out = np.zeros(int(np.prod(shape)) * x.itemsize, np.uint8)
    run_on_arrays(m, np.ascontiguousarray(x).reshape(-1).view(np.uint8), out)
    return out.view(x.dtype).reshape(tuple(shape))


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
def test_transpose_moves(perm: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(
        moved(transpose_move(X.shape, perm, 4), X, X.transpose(perm).shape), X.transpose(perm)
    )


def test_other_moves() -> None:
    wide = np.broadcast_to(X[:, :1], (7, 2, 3, 4, 5))
    np.testing.assert_array_equal(moved(broadcast_move((2, 1, 4, 5), wide.shape, 4), X[:, :1], wide.shape), wide)
    tiled = np.tile(X, (2, 1, 3, 2))
    np.testing.assert_array_equal(moved(tile_move(X.shape, (2, 1, 3, 2), 4), X, tiled.shape), tiled)
    part = X[::-1, 2:0:-2, 1:, ::2]
    np.testing.assert_array_equal(
        moved(slice_move(X.shape, (1, 2, 1, 0), (-1, -2, 1, 2), part.shape, 4), X, part.shape), part
    )
    placed = moved(place_move((2, 3, 4, 5), 2, 1, 7, 4), X, (2, 3, 7, 5))
    np.testing.assert_array_equal(placed[:, :, 1:5], X)
    assert not placed[:, :, 0].any()
    assert not placed[:, :, 5:].any()


@pytest.mark.parametrize(
    ("shape", "perm", "axes"),
    [
        ((1, 3, 224, 224), (0, 2, 3, 1), 2),  # NCHW to NHWC: a matrix
        ((1, 128, 12, 64), (0, 2, 1, 3), 2),  # heads: rows of 64
        ((4, 1, 5, 6), (1, 0, 3, 2), 3),
        ((2, 3, 4, 5), (0, 1, 2, 3), 0),  # one block
        ((2, 3, 4, 5), (2, 3, 0, 1), 2),
    ],
)
def test_axes_collapse(shape: tuple[int, ...], perm: tuple[int, ...], axes: int) -> None:
    assert len(transpose_move(shape, perm, 4).axes) == axes


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work is too small for two threads."""
    for module in MODULES:
        for name in vars(module):
            if name.startswith(("PAYS_", "SHARED_BYTES")):
                monkeypatch.setattr(module, name, 0)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("entry", OWN, ids=name_of)
def test_threads_share_small_work(entry: Entry) -> None:
    assert taken_cases(entry, Counter()), f"{name_of(entry)} accepted no case"


@pytest.mark.usefixtures("shared")
def test_steps_are_shared() -> None:
    planned = plan(Transpose((1, 0)), [np.zeros((33, 50), np.float32)])
    assert planned is not None
    assert all(step.parallel for step in planned.steps)


@pytest.mark.parametrize("wild", [2**62, -(2**63), 7, -8])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_stays_inside(axis: int, wild: int) -> None:
    with pytest.raises(DataError, match=f"got {wild}, wanted -5 to 4"):
        run_kernel(Gather(axis), [np.ones((5, 5), np.float32), np.array([1, wild, -1])], constant=[False, False])


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("index_type", ["i4", "i8"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_stay_inside(axis: int, index_type: str, dtype: str) -> None:
    x = np.random.default_rng(axis).integers(1, 100, (4, 5, 6)).astype(dtype)
    n = x.shape[axis]
    for wild in (2**31 - 1, n, -n - 1, -(2**31)):
        line = np.array([0, -n, n - 1, wild, -1], index_type)
        dims = [1 if i == axis else size for i, size in enumerate(x.shape)]
        index = np.tile(line.reshape([-1 if i == axis else 1 for i in range(3)]), dims)
        for op, inputs in ((GatherElements(axis), [x, index]), (ScatterElements(axis), [x, index, np.ones_like(x)])):
            if len(inputs) == 3:
                inputs[2] = np.ones(index.shape, dtype)
            with pytest.raises(DataError, match=f"got {wild}, wanted {-n} to {n - 1}"):
                run_kernel(op, inputs, constant=[False] * len(inputs))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_reductions_of_scattered_elements(reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, (4, 5, 6)).astype(dtype)
    for axis in range(3):
        for index_type in ("i4", "i8"):
            dims = [7 if i == axis else n - 1 for i, n in enumerate(x.shape)]
            index = rng.integers(-x.shape[axis], x.shape[axis], dims).astype(index_type)
            inputs = [x, index, rng.integers(-3, 3, dims).astype(dtype)]
            op = ScatterElements(axis, reduction)
            np.testing.assert_array_equal(run_kernel(op, inputs, constant=[False] * 3)[0], op.reference(*inputs))


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(3, 70), (70, 3), (2, 33), (65, 4), (40, 41), (129, 17), (5, 20), (1100, 19)])
def test_matrix_transposes(shape: tuple[int, int], dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    (got,) = run_kernel(Transpose((1, 0)), [x])
    np.testing.assert_array_equal(got, x.T)


@native(y=PTR)
def _three_bytes(p, tid, nthreads):  # type: ignore[no-untyped-def]
    vstore_u8_n(p.y, splat(7), 3)


def test_a_tail_of_bytes_of_constant_length_ends_where_it_should() -> None:
    y = np.zeros(80, np.uint8)
    _three_bytes.run(y=y[1:])
    assert y[:8].tolist() == [0, 7, 7, 7, 0, 0, 0, 0]
    assert not y[8:].any()
