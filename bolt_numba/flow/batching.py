"""Several pieces of work as one: arrays of equal shapes behind the first axis are put together, results taken apart."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import ShapeError
from bolt_numba.base.types import Array
from bolt_numba.flow.errors import FlowError


class BatchError(FlowError):
    """What a node made of a batch cannot be taken apart."""


def key_of(feeds: Mapping[str, Any], batched: Sequence[str], padded: Container[str] = ()) -> Hashable:
    """What pieces must have in common to run as one: types and shapes behind the first axis, and all other inputs.

    Of inputs that are ``padded`` only the number of axes.
    """
    rows_of(feeds, batched)
    key: list[Hashable] = []
    for name, given in feeds.items():
        array = given if isinstance(given, np.ndarray) else np.asarray(given)
        own = (array.ndim,) if name in padded else (array.shape[1:],)
        whose = own if name in batched else (array.shape, array.tobytes())
        key.append((name, array.dtype, *whose))
    return tuple(key)


def rows_of(feeds: Mapping[str, Any], batched: Sequence[str]) -> int:
    """How many rows a piece has along the first axis, which all of its inputs share."""
    counts: dict[str, int] = {}
    for name in batched:
        given = feeds[name]
        if not isinstance(given, np.ndarray) or not given.ndim:
            raise ShapeError(f"input {name!r}: got a {type(given).__name__}, wanted an array with an axis of the batch")
        counts[name] = len(given)
    if len(set(counts.values())) != 1:
        raise ShapeError(f"inputs: got {counts} rows, wanted as many of each for a batch")
    return next(iter(counts.values()))


def join(
    feeds: Sequence[Mapping[str, Any]], batched: Sequence[str], pad: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """One piece of several with the same key.  pad: what inputs are filled up with, to the largest of them."""
    first, pad = feeds[0], pad or {}
    return {
        name: _together([f[name] for f in feeds], pad.get(name)) if name in batched else first[name] for name in first
    }


def _together(arrays: Sequence[Array], fill: float | None) -> Array:
    shapes = {a.shape[1:] for a in arrays}
    if fill is None or len(shapes) == 1:
        return np.concatenate(arrays)
    sizes = [max(column) for column in zip(*shapes, strict=True)]
    made = np.full((sum(map(len, arrays)), *sizes), fill, arrays[0].dtype)
    row = 0
    for array in arrays:
        made[(slice(row, row := row + len(array)), *map(slice, array.shape[1:]))] = array
    return made


def split(made: Mapping[str, Any], rows: Sequence[int]) -> list[dict[str, Any]]:
    """The results of each piece: copies, so that none keeps those of others in memory."""
    total, parts = sum(rows), [dict[str, Any]() for _ in rows]
    ends = np.cumsum(rows)
    for name, array in made.items():
        if not isinstance(array, np.ndarray) or not array.ndim or len(array) != total:
            got = array.shape if isinstance(array, np.ndarray) else type(array).__name__
            wanted = "one row for each: such a node takes no max_batch"
            raise BatchError(f"output {name!r}: got {got} for a batch of {total} rows, wanted {wanted}")
        for part, end, count in zip(parts, ends, rows, strict=True):
            part[name] = array[end - count : end].copy()
    return parts
