"""Plan-time geometry of irregular movement: a table of source offsets for each axis of the result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.geometry.strides import Move, dense, move

TAP_AXES = 4
"""Spatial axes of tables of taps that kernels fill; fewer have others of one element in front."""


def is_regular(table: Array, stride: int) -> bool:
    return bool((table == np.arange(len(table)) * stride).all())


def gathered(shape: Sequence[int], indices: Sequence[Array], unit: int) -> Move | tuple[list[Array], int]:
    """``y[i, j, ...] = x[indices[0][i], indices[1][j], ...]`` as a move, or tables of offsets and bytes of a run.

    x: dense, of ``shape`` and elements of ``unit`` bytes; y: dense.  No table is of the elements of a run.
    """
    strides, out = dense(shape, unit), [len(index) for index in indices]
    tables = [np.asarray(index, dtype=np.int64) * s for index, s in zip(indices, strides, strict=True)]
    by = [int(t[1] - t[0]) if len(t) > 1 else 0 for t in tables]
    if all(is_regular(t - t[0], d) for t, d in zip(tables, by, strict=True)):
        return move(out, by, dense(out, unit), unit, int(sum(t[0] for t in tables)))
    merged, run = collapsed(tables, strides, shape), unit
    while is_regular(merged[-1], run):
        run *= len(merged.pop())
    return merged, run


def collapsed(tables: Sequence[Array], strides: Sequence[int], sizes: Sequence[int]) -> list[Array]:
    """Tables with neighbouring untouched axes merged and axes of length 1 folded into their neighbour."""
    made: list[Array] = []
    whole = False  # the last table made is an untouched axis
    for table, stride, size in zip(tables, strides, sizes, strict=True):
        untouched = len(table) == size and is_regular(table, stride)
        if made and (len(table) == 1 or len(made[-1]) == 1 or (whole and untouched)):
            whole = (whole or len(made[-1]) == 1) and (untouched or len(table) == 1)
            made[-1] = (made[-1][:, None] + table[None, :]).reshape(-1)
        else:
            made.append(table)
            whole = untouched
    return made
