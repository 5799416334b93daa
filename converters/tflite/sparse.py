"""Sparse constants made dense.

A tensor of shape d is stored as one of its dimensions and of blocks of them, in the order of ``traversal_order``; each
level is dense or a list of places.  Source: schema.fbs, SparsityParameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import Array
from bolt_numba.converters.bounded import count_of
from bolt_numba.converters.flat import Table

MAX_DENSE = 1 << 28
"""Elements of the largest tensor that is made dense."""
SLACK = 1 << 16
"""Entries of a level of which no value and no list tells."""


def dense_of(sparsity: Table, values: Array, shape: tuple[int, ...], what: str) -> Array:
    """A tensor of a shape, zero but for the values, which come in the order of their places."""
    order = _ints(sparsity["traversal_order"])
    blocked = _ints(sparsity["block_map"])
    levels = sparsity["dim_metadata"] or []
    rank = len(shape)
    if count_of(shape, what) > MAX_DENSE:
        raise InvalidModelError(f"{what}: shape: got {shape}, wanted at most {MAX_DENSE} elements")
    fits = sorted(order) == list(range(rank + len(blocked))) and len(levels) == len(order)
    if not fits or any(not 0 <= axis < rank for axis in blocked) or len(set(blocked)) != len(blocked):
        raise InvalidModelError(f"{what}: got order {order} and blocks of {blocked}, wanted each of {rank} axes once")
    places = _places(levels, len(values), what)
    at = {axis: places[level] for level, axis in enumerate(order)}
    index = [at[axis] for axis in range(rank)]
    for i, axis in enumerate(blocked):
        size = int(levels[order.index(rank + i)]["dense_size"])
        index[axis] = index[axis] * size + at[rank + i]
    ask(count_of(shape, what) * values.itemsize, what)
    dense = np.zeros(shape, values.dtype)
    if not all(np.all(i < size) for i, size in zip(index, shape, strict=True)):
        raise InvalidModelError(f"{what}: places: got some outside {shape}, wanted all within")
    if rank:
        dense[tuple(index)] = values[: len(index[0])]
    elif values.size:
        dense[()] = values[0]
    return dense


def _ints(found: Any) -> list[int]:
    return [] if found is None else [int(v) for v in found]


def _places(levels: list[Table], count: int, what: str) -> list[Array]:
    """The place of each value at each level."""
    places: list[Array] = []
    entries = 1
    lists = [len(_vector(level["array_segments"])) for level in levels]
    most = max(count, SLACK, *lists)  # each entry ends as a value, or a list has a place for it
    for level in levels:
        if level["format"] == "DENSE":
            size = int(level["dense_size"])
            if size < 0 or entries * size > most:
                raise InvalidModelError(f"{what}: dense_size: got {size}, wanted at most {most} elements in all")
            kept = np.repeat(np.arange(entries), size)
            here = np.tile(np.arange(size), entries)
        else:
            kept, here = _listed(level, entries, what)
        places = [place[kept] for place in places] + [here]
        entries = len(here)
    if entries > count:  # of less than a byte there may be some to fill the last
        raise InvalidModelError(f"{what}: values: got {count}, wanted {entries}")
    return places


def _listed(level: Table, entries: int, what: str) -> tuple[Array, Array]:
    """Entries of a compressed level: which entry of the level before has each, and its place."""
    segments, indices = (_vector(level[name]) for name in ("array_segments", "array_indices"))
    lengths = np.diff(segments)
    whole = len(segments) == entries + 1 and segments[0] == 0 and segments[-1] == len(indices)
    if not whole or np.any(lengths < 0) or np.any(indices < 0):
        raise InvalidModelError(f"{what}: segments: got {segments[:8].tolist()}, wanted {entries + 1} that grow")
    return np.repeat(np.arange(entries), lengths), indices


def _vector(found: tuple[str, Table] | None) -> Array:
    values = None if found is None else found[1]["values"]
    return np.zeros(0, np.int64) if values is None else values.astype(np.int64)
