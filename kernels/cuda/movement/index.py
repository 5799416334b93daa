"""Text that takes a flat index apart along some axes: every axis is a few fields, and divisions are by products.

A kernel is made for a number of axes.  Axis ``k`` has the fields ``n{k}`` (indices), ``m{k}`` and ``h{k}`` (what
`divider` gives for it) and one for each kind of number that goes with an index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda
from bolt_numba.kernels.declare import Field
from bolt_numba.kernels.extents import Numbers

SCOPE: dict[str, Any] = {"np": np, "cuda": cuda, "fast_divide": fast_divide}
"""What the text names."""


def axis_fields(rank: int, *numbers: str) -> dict[str, Field]:
    """Fields of ``rank`` axes; numbers: letters of what goes with an index, such as ``s`` for a stride."""
    return {f"{letter}{k}": I64 for k in range(rank) for letter in ("n", "m", "h", *numbers)}


def axis_args(sizes: Sequence[int], **numbers: Sequence[int]) -> dict[str, int]:
    """Values of `axis_fields`."""
    made: dict[str, int] = {}
    for k, size in enumerate(sizes):
        made[f"n{k}"] = size
        made[f"m{k}"], made[f"h{k}"] = divider(max(size, 1))
        made |= {f"{letter}{k}": values[k] for letter, values in numbers.items()}
    return made


def axis_text(rank: int, lines: Sequence[str], indent: int = 1) -> str:
    """Statements that take ``rest`` (u32) apart, the last axis first; ``lines`` use ``i`` (i64) and ``{k}``."""
    text: list[str] = []
    for k in range(rank - 1, -1, -1):
        if k:
            text.append(f"above = fast_divide(rest, m{k}, h{k})")
            text.append(f"i = np.int64(np.uint32(rest - above * np.uint32(n{k})))")
        else:
            text.append("i = np.int64(rest)")
        text += [line.format(k=k) for line in lines]
        if k:
            text.append("rest = above")
    return "".join(f"{'    ' * indent}{line}\n" for line in text)


def axes_of(a: Numbers, rank: int, letter: str) -> list[tuple[int, int]]:
    """Sizes of the axes and one of their numbers, for extents."""
    return [(getattr(a, f"n{k}"), getattr(a, f"{letter}{k}")) for k in range(rank)]


def count_of(a: Numbers, rank: int) -> int:
    """Indices of all axes together."""
    return math.prod(getattr(a, f"n{k}") for k in range(rank))
