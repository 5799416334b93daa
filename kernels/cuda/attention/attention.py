"""Attention of whole sequences: which kernel, and where its heads are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bolt_numba.kernels.cuda.attention.tiles import TILE, WIDEST, attention_tiles
from bolt_numba.kernels.cuda.declare import CudaKernel, ceil_div
from bolt_numba.kernels.geometry.heads import (
    UNBOUNDED,
    attention_operands,
    head_table,
    heads_first,
    mask_fits,
    position_step,
)
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.layers.attention import FusedAttention, swapped
from bolt_numba.types import BF16, F16, F32, TensorType, dtype_name

MOST_UNITS = 65535
"""Blocks of a launch in its second direction."""


def accepts(op: Any, ins: Types) -> bool:
    if any(t is not None and (not t.is_static or t.dtype not in (F32, F16, BF16) or not t.size) for t in ins):
        return False
    q, k, _ = heads_first(op, ins)
    return q[-1] <= WIDEST and max(math.prod(q[:-2]), math.prod(k[:-2])) <= MOST_UNITS and mask_fits(op, ins)


@kernel(FusedAttention, device="cuda", accepts=accepts, by_types=True)
def attention(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Sums in f32 arithmetic, for any size of heads up to 512."""
    args = attention_args(op, ins, outs)
    return [Step(tiles_for(dtype_name(outs[0].dtype), args["width"]), args)]


def tiles_for(dtype: str, width: int) -> CudaKernel:
    """The kernel for values of ``width`` elements."""
    return attention_tiles(dtype, next(n for n in (1, 2, 4) if n >= min(4, ceil_div(width, TILE))))


def attention_args(op: Any, ins: Types, outs: Sequence[TensorType]) -> dict[str, Any]:
    """Arguments for `rows.FIELDS`."""
    q, k, v = heads_first(op, ins)
    size = outs[0].dtype.itemsize
    mask = ins[3].dims if len(ins) > 3 and ins[3] is not None else None
    m, n, d, width = q[-2], k[-2], q[-1], v[-1]
    result = outs[0].dims, op.y_layout
    lead = tuple((swapped(outs[0].dims) if op.y_layout == "SHD" else outs[0].dims)[:-2])
    masks = (1,) * (2 - len(mask)) + tuple(mask) if mask else (1, 1)
    operands, addresses = attention_operands(op, ins)
    steps = [position_step(*x, size) for x in operands] * (3 // len(operands))
    table = head_table(lead, operands, ((masks, "HSD"), result), n, 0 if op.causal else n, size)
    args: dict[str, Argument] = {**addresses, "mask": In(3) if mask else None, "sink": None, "y": Out(0)}
    args |= {"table": table, "units": math.prod(lead), "group": 1, "m": m, "d": d, "width": width}
    args |= dict(zip(("q_step", "k_step", "v_step", "y_step"), (*steps, position_step(*result, size)), strict=True))
    args |= {"q_head": 0, "y_head": 0, "mask_head": 0, "mask_step": size * n if masks[-2] > 1 else 0}
    return args | {"window": UNBOUNDED, "scale": op.scale, "cap": 0.0}


def samples() -> list[CudaKernel]:
    """Kernels for the table of resources."""
    return [attention_tiles("f32", 1), attention_tiles("f32", 4), attention_tiles("f16", 2)]
