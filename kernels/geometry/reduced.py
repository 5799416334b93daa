"""How a reduction is passes over ``[outer, n, inner]`` that each take away the middle axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bolt_numba.kernels.registry import Types
from bolt_numba.ops.arrays.reduce import Reduction


def around_axis(dims: Sequence[int], axis: int) -> tuple[int, int, int]:
    """``[outer, n, inner]`` around one axis of a dense array."""
    return math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :])


def groups(dims: Sequence[int], axes: Sequence[int]) -> list[tuple[int, bool]]:
    """Neighbouring axes that are reduced (True) or kept alike, as one each; axes of length 1 vanish."""
    made: list[tuple[int, bool]] = []
    for i, d in enumerate(dims):
        if d == 1:
            continue
        gone = i in axes
        if made and made[-1][1] == gone:
            made[-1] = (made[-1][0] * d, gone)
        else:
            made.append((d, gone))
    return made


def passes(dims: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int, int]]:
    """``[outer, n, inner]`` of each pass, the last reduced group first; one of n = 1 when nothing is reduced."""
    parts = groups(dims, axes)
    found = []
    for i in range(len(parts) - 1, -1, -1):
        if parts[i][1]:
            inner = math.prod(d for d, gone in parts[i + 1 :] if not gone)
            found.append((math.prod(d for d, _ in parts[:i]), parts[i][0], inner))
    return found or [(1, 1, math.prod(dims))]


def reduced_axes(op: Reduction, ins: Types) -> tuple[int, ...] | None:
    """Reduced axes when they and x's shape are known and there is something to fold."""
    x = ins[0]
    if not x.is_static or not x.size:
        return None
    given = ins[1] if len(ins) > 1 else None
    if given is not None and given.known is None:
        return None
    axes = [] if given is None else [int(a) for a in given.known.reshape(-1)]  # type: ignore[union-attr]
    return tuple(op.reduced(axes, len(x.shape or ())))
