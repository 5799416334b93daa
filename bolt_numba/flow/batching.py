"""Several pieces of work as one: arrays of equal shapes behind the first axis are put together, results taken apart."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import ShapeError
from bolt_numba.flow.errors import FlowError


class BatchError(FlowError):
    """What a node made of a batch cannot be taken apart."""


def key_of(feeds: Mapping[str, Any], batched: Sequence[str]) -> Hashable:
    """What pieces must have in common to run as one: types and shapes behind the first axis, and all other inputs."""
    rows_of(feeds, batched)
    key: list[Hashable] = []
    for name, given in feeds.items():
        array = given if isinstance(given, np.ndarray) else np.asarray(given)
        whose = (array.shape[1:],) if name in batched else (array.shape, array.tobytes())
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


def join(feeds: Sequence[Mapping[str, Any]], batched: Sequence[str]) -> dict[str, Any]:
    """One piece of several with the same key."""
    first = feeds[0]
    return {name: np.concatenate([f[name] for f in feeds]) if name in batched else first[name] for name in first}


def split(made: Mapping[str, Any], rows: Sequence[int]) -> list[dict[str, Any]]:
    """The results of each piece: copies, so that none keeps those of others in memory."""
    total, parts = sum(rows), [dict[str, Any]() for _ in rows]
    ends = np.cumsum(rows)
    for name, array in made.items():
        if not isinstance(array, np.ndarray) or not array.ndim or len(array) != total:
            got = array.shape if isinstance(array, np.ndarray) else type(array).__name__
            raise BatchError(f"output {name!r}: got {got} for a batch of {total} rows, wanted one row for each")
        for part, end, count in zip(parts, ends, rows, strict=True):
            part[name] = array[end - count : end].copy()
    return parts
