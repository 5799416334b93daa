"""Where the heads of attention begin: the table that its kernels read, whatever the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.follow import fixed, is_followed, pure
from bolt_numba.base.selects import MOST_ROWS, table
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.registry import Argument, In, Out, Types
from bolt_numba.ops.layers.attention.attention import FusedAttention, swapped

ENTRY = 8
"""Numbers in a row of the table of heads: byte offsets in q, k, v, mask and y, keys, keys before the first query (those
that it sees besides its own), byte offset in sink."""
UNBOUNDED = 1 << 40
"""The window of queries that see any number of keys."""

Operand: TypeAlias = "tuple[tuple[int, ...], str]"
"""Shape and layout."""


def head_offsets(heads: Sequence[int], dims: Sequence[int], layout: str = "HSD", size: int = 4) -> Array:
    """Byte offset of each head (row-major over ``heads``) in an operand of shape ``dims`` broadcast to them.

    size: bytes of an element.
    """
    rank = len(dims)
    lead = [*range(rank - 3), rank - 2] if layout == "SHD" else list(range(rank - 2))
    offsets = np.zeros((), np.int64)
    for axis in lead:
        step = size * math.prod(dims[axis + 1 :])
        offsets = offsets[..., None] + np.arange(dims[axis], dtype=np.int64) * step
    return np.asarray(np.broadcast_to(offsets, tuple(heads)).reshape(-1))


def position_step(dims: Sequence[int], layout: str, size: int = 4) -> int:
    """Bytes from one position of a head to the next."""
    return size * dims[-1] * (dims[-2] if layout == "SHD" else 1)


def _shapes(op: FusedAttention, ins: Types) -> list[tuple[int, ...]]:
    """Shapes of q, k and v."""
    shapes = [t.dims for t in ins[:3] if t is not None]
    return [(*shapes[0][:-2], shapes[0][-2] // 3, shapes[0][-1])] * 3 if op.packed else shapes


def attention_operands(op: FusedAttention, ins: Types) -> tuple[tuple[Operand, ...], dict[str, Argument]]:
    """Shapes and layouts of q, k and v, or of the one operand that holds all three, and their addresses."""
    if op.packed:
        return ((ins[0].dims, "SHD"),), {name: In(0) for name in "qkv"}
    return tuple(zip(_shapes(op, ins), op.layouts, strict=True)), {"q": In(0), "k": In(1), "v": In(2)}


def heads_first(op: FusedAttention, ins: Types) -> list[tuple[int, ...]]:
    """Shapes of q, k and v as [..., positions, elements]."""
    shapes = _shapes(op, ins)
    return [swapped(s) if a == "SHD" else s for s, a in zip(shapes, op.layouts, strict=True)]


def head_table(
    lead: tuple[int, ...],
    operands: tuple[Operand, ...],
    others: tuple[Operand, ...],
    n: int,
    before: int,
    size: int = 4,
) -> Array:
    """i64 [heads][`ENTRY`] of all heads (row-major over ``lead``), of ``n`` keys; others: mask and result."""
    shapes = [dims for dims, _ in (*operands, *others)]
    is_plain = not is_followed((*shapes, n, before))
    if is_plain or is_followed(lead) or math.prod(lead) > MOST_ROWS or len(operands) == 1:
        return _head_table(lead, operands, others, n, before, size)
    columns = [_followed_offsets(lead, *x, size) for x in (*operands, *others)]
    return table([(*row, n, before, 0) for row in zip(*columns, strict=True)])  # type: ignore[no-any-return]


def _followed_offsets(heads: Sequence[int], dims: Sequence[int], layout: str, size: int) -> list[int]:
    """`head_offsets` of sizes that are followed."""
    rank = len(dims)
    lead = [*range(rank - 3), rank - 2] if layout == "SHD" else list(range(rank - 2))
    steps = [size * math.prod(dims[axis + 1 :]) for axis in lead]
    counts = [fixed(dims[axis]) for axis in lead]
    first = len(heads) - len(counts)
    return [
        sum(step * at for at, count, step in zip(index[first:], counts, steps, strict=True) if count > 1)
        for index in np.ndindex(*heads)
    ]


@pure
def _head_table(
    lead: tuple[int, ...],
    operands: tuple[Operand, ...],
    others: tuple[Operand, ...],
    n: int,
    before: int,
    size: int = 4,
) -> Array:
    if len(operands) == 1:
        dims, layout = operands[0]
        found = head_offsets((*lead[:-1], dims[-2]), dims, layout, size).reshape(*lead[:-1], 3, -1)
        offsets = [np.ascontiguousarray(found[..., i, :]).reshape(-1) for i in range(3)]
    else:
        offsets = [head_offsets(lead, *x, size) for x in operands]
    offsets += [head_offsets(lead, *x, size) for x in others]
    made = np.zeros((len(offsets[0]), len(offsets) + 3), np.int64)
    made.T[: len(offsets)] = offsets
    made[:, -3:] = n, before, 0
    return made


def mask_fits(op: FusedAttention, ins: Types) -> bool:
    """Whether sizes of heads agree, and a mask has a column for each key and one row or one for each query."""
    q, k, v = heads_first(op, ins)
    mask = ins[3].dims if len(ins) > 3 and ins[3] is not None else None
    if q[-1] != k[-1] or v[-2] != k[-2]:
        return False
    return mask is None or (len(mask) > 1 and mask[-1] == k[-2] and mask[-2] in (1, q[-2])) or mask == (k[-2],)


def attention_args(op: FusedAttention, ins: Types, out: TensorType) -> dict[str, Any]:
    """Arguments that the kernels of all devices have: where operands and heads are; ``units``: how many heads."""
    q, k, v = heads_first(op, ins)
    size, mask = out.dtype.itemsize, ins[3].dims if len(ins) > 3 and ins[3] is not None else None
    n, result = k[-2], (out.dims, op.y_layout)
    lead = tuple((swapped(out.dims) if op.y_layout == "SHD" else out.dims)[:-2])
    masks = (1,) * (2 - len(mask)) + tuple(mask) if mask else (1, 1)
    operands, args = attention_operands(op, ins)
    steps = [position_step(*x, size) for x in operands] * (3 // len(operands))
    table = head_table(lead, operands, ((masks, "HSD"), result), n, 0 if op.causal else n, size)
    args |= {"mask": In(3) if mask else None, "sink": None, "y": Out(0), "table": table, "units": math.prod(lead)}
    args |= {"m": q[-2], "d": q[-1], "width": v[-1], "mask_step": size * n if masks[-2] > 1 else 0}
    args |= dict(zip(("q_step", "k_step", "v_step", "y_step"), (*steps, position_step(*result, size)), strict=True))
    return args | {"window": UNBOUNDED, "scale": op.scale, "cap": 0.0}
