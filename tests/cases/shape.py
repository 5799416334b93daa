"""Cases of reshaping, joining, splitting, slicing, padding and filling."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.ops.arrays import shape as s
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.slicing import ReverseSequence
from bolt_numba.types import BOOL, F32, F64, I8, I32, I64, U8, Array
from tests.cases import Case, cases
from tests.cases.draw import (
    Draw,
    axis_of,
    flags,
    ints,
    maybe,
    permutation,
    pick,
    shape,
    shapes,
    small,
    some_axes,
    whole,
)


def _data(draw: Draw, dims: tuple[int, ...]) -> Array:
    return whole(draw, dims, -50, 50, dtype=pick(draw, F32, F32, F32, I64, I32, I8, BOOL))


def _any(draw: Draw, low: int = 1, high: int = 4) -> Array:
    return _data(draw, shapes(draw, low, high))


@cases(s.Identity)
def identity(draw: Draw, op: type[s.Identity]) -> Case:
    return Case(op(), (_any(draw, 0),))


@cases(s.Reshape)
def reshape(draw: Draw, op: type[s.Reshape]) -> Case:
    x = _any(draw)
    flat = [x.size]
    kept = [0, *x.shape[1:]]
    merged = [x.shape[0], math.prod(x.shape[1:])]
    unknown = [*x.shape[:-1], -1, 1]
    return Case(op(), (x, ints(pick(draw, flat, kept, merged, unknown, [-1], [*x.shape[::-1]]))))


@cases(s.Flatten)
def flatten(draw: Draw, op: type[s.Flatten]) -> Case:
    x = _any(draw)
    return Case(op(pick(draw, *range(-x.ndim, x.ndim + 1))), (x,))


@cases(s.Squeeze)
def squeeze(draw: Draw, op: type[s.Squeeze]) -> Case:
    base = shapes(draw, 0, 2)
    where = pick(draw, 0, len(base))
    x = _data(draw, (*base[:where], 1, *base[where:]))
    return Case(op(), (x,) if draw(flags) else (x, ints([where - pick(draw, 0, x.ndim)])))


@cases(s.Unsqueeze)
def unsqueeze(draw: Draw, op: type[s.Unsqueeze]) -> Case:
    x = _any(draw, 0, 3)
    return Case(op(), (x, ints(pick(draw, [0], [-1], [x.ndim], [0, x.ndim + 1]))))


@cases(s.Transpose)
def transpose(draw: Draw, op: type[s.Transpose]) -> Case:
    x = _any(draw, 1, 5)
    return Case(op(permutation(draw, x.ndim)), (x,))


@cases(s.Concat)
def concat(draw: Draw, op: type[s.Concat]) -> Case:
    first = _any(draw)
    axis = axis_of(draw, first.ndim)
    operands = [first]
    for _ in range(pick(draw, 0, 1, 2, 3)):
        dims = list(first.shape)
        dims[axis] = draw(small)
        operands.append(whole(draw, dims, 0, 50, dtype=first.dtype))
    return Case(op(axis), tuple(operands))


@cases(s.Split)
def split(draw: Draw, op: type[s.Split]) -> Case:
    x = _any(draw)
    axis = axis_of(draw, x.ndim)
    size = x.shape[axis]
    if draw(flags):
        count = pick(draw, *[n for n in range(1, size + 1) if -(-size // n) * (n - 1) < size][:6])
        return Case(op(axis, count), (x,))
    cut = pick(draw, 0, size // 2, size)
    return Case(op(axis, 2), (x, ints([cut, size - cut])))


@cases(s.Slice)
def slicing(draw: Draw, op: type[s.Slice]) -> Case:
    x = _any(draw)
    axes = some_axes(draw, x.ndim)
    bounds = (0, 1, 2, 5, -1, -2, -7, 100, -100)
    dtype = pick(draw, I64, I64, I32)
    starts = [pick(draw, *bounds) for _ in axes]
    steps = [pick(draw, 1, 1, 1, 2, 3, -1, -2) for _ in axes]
    far = {1: 2**31 - 1, -1: -(2**31)}  # the end of the axis, for this direction
    ends = [pick(draw, *bounds, far[1 if step > 0 else -1]) for step in steps]
    operands = [np.array(v, dtype=dtype) for v in (starts, ends, axes, steps)]
    return Case(op(), (x, *operands))


@cases(s.Expand)
def expand(draw: Draw, op: type[s.Expand]) -> Case:
    wide = shapes(draw, 1, 4)
    narrow = tuple(1 if draw(flags) else d for d in wide)[pick(draw, 0, 0, 1) :]
    wanted = tuple(1 if n != 1 and draw(flags) else d for d, n in zip(wide[::-1], narrow[::-1], strict=False))[::-1]
    return Case(op(), (_data(draw, narrow), ints([*wide[: len(wide) - len(wanted)], *wanted])))


@cases(s.Tile)
def tile(draw: Draw, op: type[s.Tile]) -> Case:
    x = _data(draw, shapes(draw, 1, 4, 500))
    return Case(op(), (x, ints([pick(draw, 1, 1, 2, 3) for _ in x.shape])))


@cases(s.Pad)
def pad(draw: Draw, op: type[s.Pad]) -> Case:
    x = _data(draw, shapes(draw, 1, 4, 1000))
    mode = pick(draw, "constant", "constant", "reflect", "edge", "wrap")
    axes = some_axes(draw, x.ndim)
    pads = []
    for a in axes * 2:
        size = x.shape[a]
        least = -((size - 1) // 2) if mode == "constant" else 0
        most = 4 if mode in ("constant", "edge") else size - 1 if mode == "reflect" else size
        pads.append(pick(draw, 0, *range(least, min(most, 4) + 1)))
    value = maybe(draw, np.array(1 if x.dtype == BOOL else 7, dtype=x.dtype)) if mode == "constant" else None
    if draw(flags):
        return Case(op(mode), (x, ints(pads), value, ints(axes)))
    full = [0] * (2 * x.ndim)
    for i, a in enumerate(axes):
        full[a % x.ndim], full[x.ndim + a % x.ndim] = pads[i], pads[len(axes) + i]
    return Case(op(mode), (x, ints(full)) if value is None else (x, ints(full), value))


@cases(s.Shape)
def shape_of(draw: Draw, op: type[s.Shape]) -> Case:
    return Case(op(pick(draw, 0, 0, 1, -1, -9), pick(draw, None, None, 2, -1, 9)), (_any(draw, 0),))


@cases(s.Size)
def size_of(draw: Draw, op: type[s.Size]) -> Case:
    return Case(op(), (_any(draw, 0),))


@cases(s.Range)
def ranges(draw: Draw, op: type[s.Range]) -> Case:
    dtype = pick(draw, F32, I32, I64)
    start, limit, delta = pick(draw, 0, 3, -5), pick(draw, 0, 7, 33, -9), pick(draw, 1, 2, 5, -1, -3)
    return Case(op(), tuple(np.array(v, dtype=dtype) for v in (start, limit, delta)))


@cases(s.ConstantOfShape)
def constant_of_shape(draw: Draw, op: type[s.ConstantOfShape]) -> Case:
    dtype = pick(draw, F32, I64, I32, BOOL)
    value = bool(draw(flags)) if dtype == BOOL else pick(draw, 0, 1, -3)
    return Case(op(float(value) if dtype == F32 else value, dtype), (ints(shapes(draw, 0, 3)),))


@cases(s.Trilu)
def trilu(draw: Draw, op: type[s.Trilu]) -> Case:
    x = whole(draw, shapes(draw, 2, 4), dtype=pick(draw, F32, F32, I64, BOOL))
    k = pick(draw, None, 0, 1, -1, 5, -40)
    return Case(op(draw(flags)), (x,) if k is None else (x, np.array(k, dtype=I64)))


@cases(s.EyeLike)
def eye_like(draw: Draw, op: type[s.EyeLike]) -> Case:
    return Case(op(pick(draw, None, F32, I64), pick(draw, 0, 1, -2)), (whole(draw, shape(draw, 2)),))


@cases(s.DepthToSpace)
def depth_to_space(draw: Draw, op: type[s.DepthToSpace]) -> Case:
    b = pick(draw, 1, 2, 3)
    n, c, h, w = shape(draw, 4, 300)
    return Case(op(b, pick(draw, "DCR", "CRD")), (whole(draw, (n, c * b * b, h, w), -50, 50),))


@cases(s.SpaceToDepth)
def space_to_depth(draw: Draw, op: type[s.SpaceToDepth]) -> Case:
    b = pick(draw, 1, 2, 3)
    n, c, h, w = shape(draw, 4, 300)
    return Case(op(b), (whole(draw, (n, c, h * b, w * b), -50, 50),))


@cases(BitCast)
def bit_cast(draw: Draw, op: type[BitCast]) -> Case:
    source, to = pick(draw, (F32, I32), (I32, F32), (F64, I64), (I8, U8), (U8, I8))
    return Case(op(to), (whole(draw, shapes(draw, 0, 3, 200), 1, 100, source),))


@cases(ReverseSequence)
def reverse_sequence(draw: Draw, op: type[ReverseSequence]) -> Case:
    x = whole(draw, shapes(draw, 2, 4, 500), -50, 50)
    batch = pick(draw, 0, 1)
    return Case(op(batch, 1 - batch), (x, whole(draw, (x.shape[batch],), 1, x.shape[1 - batch], I64)))
