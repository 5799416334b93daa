"""Sizes, shapes and contents that cases are drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from bolt_numba.ops.pointwise import Clip, Gelu, HardSwish, LeakyRelu, Relu, Sigmoid
from bolt_numba.ops.registry import Op
from bolt_numba.types import F32, AnyDType, Array

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

SMALL = tuple(range(1, 10))
AROUND_TILES = (*SMALL, 11, 12, 13, 15, 16, 17, 23, 31, 32, 33, 37)
EXACT_ACTIVATIONS: tuple[Op | None, ...] = (None, Relu(), Clip(0.0, 6.0), Clip(None, 3.0), LeakyRelu(0.25))
ACTIVATIONS: tuple[Op | None, ...] = (*EXACT_ACTIVATIONS, Gelu(), HardSwish(), Sigmoid())

small = st.sampled_from(SMALL)
around_tiles = st.sampled_from(AROUND_TILES)
layouts = st.sampled_from(["NCHW", "NHWC"])
flags = st.booleans()


def pick(draw: Draw, *options: Any) -> Any:
    """One of the options."""
    return draw(st.sampled_from(options))


def shape(draw: Draw, rank: int, limit: int = 4096, sizes: Sequence[int] = AROUND_TILES) -> tuple[int, ...]:
    """Dimensions whose product stays under ``limit``; the last ones vary most."""
    dims: list[int] = []
    for _ in range(rank):
        fitting = [s for s in sizes if s * math.prod(dims) <= limit]
        dims.append(draw(st.sampled_from(fitting or [1])))
    return tuple(reversed(dims))


def shapes(draw: Draw, low: int = 1, high: int = 4, limit: int = 4096) -> tuple[int, ...]:
    """A shape of a rank from ``low`` to ``high``."""
    return shape(draw, draw(st.integers(low, high)), limit)


def _random(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**16)))


def whole(draw: Draw, dims: Sequence[int], low: int = -4, high: int = 4, dtype: AnyDType = F32) -> Array:
    """Integers from ``low`` to ``high`` as ``dtype``."""
    return np.asarray(_random(draw).integers(low, high, tuple(dims), endpoint=True)).astype(dtype)


def real(draw: Draw, dims: Sequence[int], low: float = -3.0, high: float = 3.0, dtype: AnyDType = F32) -> Array:
    """Real numbers from ``low`` to ``high``."""
    return np.asarray(_random(draw).uniform(low, high, tuple(dims))).astype(dtype)


def permutation(draw: Draw, rank: int) -> tuple[int, ...]:
    """Axes in any order."""
    return tuple(draw(st.permutations(range(rank))))


def axis_of(draw: Draw, rank: int) -> int:
    """An axis, counted from the front or the back."""
    return int(draw(st.integers(-rank, rank - 1)))


def some_axes(draw: Draw, rank: int) -> tuple[int, ...]:
    """At least one axis, each at most once, counted from the front or the back."""
    chosen = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
    return tuple(a - rank if draw(flags) else a for a in chosen)


def maybe(draw: Draw, array: Array) -> Array | None:
    """The array, or nothing."""
    return array if draw(flags) else None


def as_layout(x: Array, layout: str) -> Array:
    """``x`` [n, c, spatial...] stored in ``layout``."""
    return np.ascontiguousarray(x if layout == "NCHW" else np.moveaxis(x, 1, -1))


def ints(values: Sequence[int]) -> Array:
    """An i64 operand."""
    return np.array(values, dtype=np.int64)
