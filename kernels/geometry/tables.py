"""Plan-time geometry of irregular movement: a table of source offsets for each axis of the result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.types import Array

TAP_AXES = 4
"""Spatial axes of tables of taps that kernels fill; fewer have others of one element in front."""


def is_regular(table: Array, stride: int) -> bool:
    return bool((table == np.arange(len(table)) * stride).all())


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
