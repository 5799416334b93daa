"""Cases of operators from bytes to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.arrays.between_bytes import BetweenBytes
from bolt_numba.ops.arrays.byte_table import ENTRIES, ByteTable
from bolt_numba.ops.arrays.reduce import ReduceMean, Softmax
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.types import F32, I8, U8, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, pick, real, shapes, whole


@cases(ByteTable)
def byte_table(draw: Draw, op: type[Any]) -> Case:
    """Sizes on both sides of a vector of 64 bytes."""
    dims = pick(draw, shapes(draw, 0, 4), (63,), (64,), (2, 131))
    source, target = pick(draw, U8, I8), pick(draw, U8, I8)
    bounds = {U8: (0, 255), I8: (-128, 127)}
    return Case(op(), (whole(draw, dims, *bounds[source], source), whole(draw, (ENTRIES,), *bounds[target], target)))


@cases(BetweenBytes)
def between_bytes(draw: Draw, op: type[Any]) -> Case:
    """Few codes of results, so that none is so near to the boundary between two that rounding on the way decides."""
    bounds, (source, target) = {U8: (0, 255), I8: (-128, 127)}, (pick(draw, U8, I8) for _ in range(2))
    dims = pick(draw, (3, 5), (2, 3, 16), (4, 67), (2, 64), (1, 3, 4, 21))
    x = whole(draw, dims, *bounds[source], source)
    zeros = [whole(draw, (), 3, 90, kind) for kind in (source, target)]
    kind = pick(draw, Softmax, LayerNormalization, ReduceMean, AveragePool, Resize)
    if kind in (AveragePool, Resize):
        return (_windows if kind is AveragePool else _resized)(draw, op, *bounds[source], source, target)
    steps = {Softmax: (0.031, 0.137), LayerNormalization: (0.031, 0.531), ReduceMean: (0.031, 0.731)}[kind]
    one, two = (np.asarray(s, F32) for s in steps)
    given: tuple[Array, ...] = (x, one, zeros[0], two, zeros[1])
    if kind is Softmax:
        return Case(op(Softmax()), given)
    if kind is LayerNormalization:
        rows = [real(draw, dims[-1:], -1.0, 1.0) for _ in range(pick(draw, 1, 2))]
        return Case(op(LayerNormalization()), (*given, *rows))
    axes = pick(draw, *[(len(dims) - 1,), tuple(range(1, max(len(dims) - 1, 2)))])
    return Case(op(ReduceMean(keepdims=draw(flags))), (*given, np.array(axes, np.int64)))


def _windows(draw: Draw, op: type[Any], low: int, high: int, source: Any, target: Any) -> Case:
    """Means of windows, channels last: on both sides of a vector of bytes, over pads, dilated, on a line."""
    c = pick(draw, 1, 5, 16, 21, 64, 67, 130)
    zeros = [whole(draw, (), 3, 90, kind) for kind in (source, target)]
    pool = pick(
        draw,
        AveragePool((2, 2), (2, 2), layout="NHWC"),
        AveragePool((3, 3), (1, 1), (1, 1, 1, 1), layout="NHWC"),
        AveragePool((3, 3), (2, 2), (1, 1, 1, 1), count_include_pad=True, layout="NHWC"),
        AveragePool((2, 3), (1, 2), (0, 1, 1, 1), (2, 1), ceil_mode=True, layout="NHWC"),
        AveragePool((3,), (2,), (1, 1), layout="NHWC"),
    )
    dims = (2, *(5, 6)[: len(pool.kernel_shape)], c)
    numbers = np.asarray(0.031, F32), zeros[0], np.asarray(0.731, F32), zeros[1]
    return Case(op(pool), (whole(draw, dims, low, high, source), *numbers))


def _resized(draw: Draw, op: type[Any], low: int, high: int, source: Any, target: Any) -> Case:
    """Blends of pixels, channels last: wider, narrower, of one axis, on a line, on both sides of a vector."""
    c, line = pick(draw, 1, 5, 16, 21, 64, 67, 130), draw(flags)
    zeros = [whole(draw, (), 3, 90, kind) for kind in (source, target)]
    mode, corners = pick(draw, "linear", "cubic"), pick(draw, "half_pixel", "align_corners", "asymmetric")
    sizes = pick(draw, (10, 12), (5, 12), (3, 2), (5, 6))
    resize = Resize(mode=mode, coordinate_transformation_mode=corners, layout="NHWC")
    dims, wanted = ((2, 6, c), (2, c, sizes[1])) if line else ((2, 5, 6, c), (2, c, *sizes))
    numbers = np.asarray(0.031, F32), zeros[0], np.asarray(0.731, F32), zeros[1]
    shape = np.array(wanted, np.int64)
    return Case(op(resize), (whole(draw, dims, low, high, source), *numbers, None, None, shape))
