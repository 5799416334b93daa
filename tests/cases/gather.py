"""Cases of indexing."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.ops.arrays import gather as g
from bolt_numba.ops.layers.attention.cache import TensorScatter
from bolt_numba.types import F32, I32, I64, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, axis_of, flags, maybe, pick, shapes, small, whole


def _data(draw: Draw, low: int = 1, high: int = 4) -> Array:
    return whole(draw, shapes(draw, low, high, 1500), -50, 50, dtype=pick(draw, F32, F32, I64))


def _indices(draw: Draw, size: int, dims: tuple[int, ...]) -> Array:
    return whole(draw, dims, -size, size - 1, dtype=pick(draw, I64, I64, I32))


@cases(g.Gather)
def gather(draw: Draw, op: type[g.Gather]) -> Case:
    x = _data(draw)
    axis = axis_of(draw, x.ndim)
    return Case(op(axis), (x, _indices(draw, x.shape[axis], shapes(draw, 0, 2, 20))))


@cases(g.GatherElements)
def gather_elements(draw: Draw, op: type[g.GatherElements]) -> Case:
    x = _data(draw)
    axis = axis_of(draw, x.ndim)
    dims = tuple(pick(draw, d, max(d - 1, 1)) for d in x.shape)
    return Case(op(axis), (x, _indices(draw, x.shape[axis], dims)))


def _tuples(draw: Draw, sizes: tuple[int, ...], lead: tuple[int, ...], unique: bool) -> Array:
    """Index tuples [*lead, len(sizes)], all different where ``unique``."""
    rng = np.random.default_rng(pick(draw, *range(50)))
    count, space = math.prod(lead), math.prod(sizes)
    flat = rng.permutation(space)[:count] if unique else rng.integers(0, space, count)
    index = np.stack(np.unravel_index(flat, sizes), axis=-1).reshape(*lead, len(sizes))
    return np.where(rng.random(index.shape) < 0.3, index - np.array(sizes), index).astype(I64)


@cases(g.GatherND)
def gather_nd(draw: Draw, op: type[g.GatherND]) -> Case:
    x = _data(draw, 2)
    b = pick(draw, 0, 0, 1)
    depth = pick(draw, *range(1, x.ndim - b + 1))
    lead = (*x.shape[:b], draw(small))
    return Case(op(b), (x, _tuples(draw, x.shape[b : b + depth], lead, unique=False)))


@cases(g.ScatterElements)
def scatter_elements(draw: Draw, op: type[g.ScatterElements]) -> Case:
    x = _data(draw)
    axis = axis_of(draw, x.ndim)
    reduction = pick(draw, "none", "none", "add", "mul", "max", "min")
    dims = list(x.shape)
    dims[axis] = pick(draw, 1, dims[axis]) if reduction == "none" else draw(small)
    rng = np.random.default_rng(pick(draw, *range(50)))
    if reduction == "none":  # equal places with different updates have no defined result
        index = np.argsort(rng.random(x.shape), axis=axis).take(range(dims[axis]), axis=axis)
    else:
        index = rng.integers(-x.shape[axis], x.shape[axis], dims)
    updates = whole(draw, dims, -3, 3, dtype=x.dtype)
    return Case(op(axis, reduction), (x, index.astype(I64), updates))


@cases(g.ScatterND)
def scatter_nd(draw: Draw, op: type[g.ScatterND]) -> Case:
    x = _data(draw)
    reduction = pick(draw, "none", "none", "add", "mul", "max", "min")
    depth = pick(draw, *range(1, x.ndim + 1))
    count = min(draw(small), math.prod(x.shape[:depth]))
    index = _tuples(draw, x.shape[:depth], (count,), unique=reduction == "none")
    return Case(op(reduction), (x, index, whole(draw, (count, *x.shape[depth:]), -3, 3, dtype=x.dtype)))


@cases(g.OneHot)
def one_hot(draw: Draw, op: type[g.OneHot]) -> Case:
    depth = draw(small)
    kind, of = pick(draw, (I64, F32), (I32, F32), (I64, I64), (I32, F32))
    index = whole(draw, shapes(draw, 1, 3, 500), -depth - 2, depth + 2, dtype=kind)
    values = np.array([-1, 3], dtype=of)
    return Case(op(axis_of(draw, index.ndim + 1)), (index, np.array(depth, dtype=I64), values))


@cases(g.NonZero)
def non_zero(draw: Draw, op: type[g.NonZero]) -> Case:
    return Case(op(), (whole(draw, shapes(draw), -1, 1, dtype=pick(draw, F32, I64, np.dtype(bool))),))


@cases(g.Compress)
def compress(draw: Draw, op: type[g.Compress]) -> Case:
    x = _data(draw)
    axis = pick(draw, None, axis_of(draw, x.ndim))
    length = x.size if axis is None else x.shape[axis]
    kept = whole(draw, (pick(draw, length, max(length - 1, 1)),), 0, 1, dtype=np.dtype(bool))
    return Case(op(axis), (x, kept))


@cases(g.Unique)
def unique(draw: Draw, op: type[g.Unique]) -> Case:
    x = whole(draw, shapes(draw, 1, 3), -2, 2, dtype=pick(draw, F32, I64))
    return Case(op(pick(draw, None, axis_of(draw, x.ndim)), draw(flags)), (x,))


@cases(g.NonMaxSuppression)
def non_max_suppression(draw: Draw, op: type[g.NonMaxSuppression]) -> Case:
    n, c, b = pick(draw, 1, 2), pick(draw, 1, 3), draw(small) * 3
    boxes = whole(draw, (n, b, 4), 0, 20)
    center = pick(draw, 0, 0, 1)
    if center:
        boxes[..., 2:] += 1
    scores = np.stack([np.random.default_rng(i).permutation(b) for i in range(n * c)]).reshape(n, c, b) / b
    most = np.array([pick(draw, 0, 1, 3, 100)], dtype=I64)
    overlap = np.array([pick(draw, 0.0, 0.3, 0.55)], dtype=F32)
    threshold = maybe(draw, np.array([0.4], dtype=F32))
    operands = (boxes, scores.astype(F32), most, overlap)
    return Case(op(center), operands if threshold is None else (*operands, threshold))


@cases(TensorScatter)
def tensor_scatter(draw: Draw, op: type[TensorScatter]) -> Case:
    past = whole(draw, shapes(draw, 2, 4, 500), -50, 50)
    axis = pick(draw, *range(1, past.ndim))
    room = past.shape[axis]
    length = pick(draw, *range(1, room + 1))
    dims = list(past.shape)
    dims[axis] = length
    mode = pick(draw, "linear", "circular")
    top = room - 1 if mode == "circular" else room - length
    places = whole(draw, (len(past),), 0, top, I64)
    update = whole(draw, dims, 51, 99)
    inputs = (past, update, places) if mode == "circular" or draw(flags) else (past, update)
    return Case(op(pick(draw, axis, axis - past.ndim), mode), inputs)
