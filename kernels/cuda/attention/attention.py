"""Attention of whole sequences: which kernel, and where its heads are."""

from __future__ import annotations

import math
from typing import Any

from bolt_numba.base.types import BF16, F16, F32, dtype_name
from bolt_numba.kernels.cuda.attention.combine import combine_parts
from bolt_numba.kernels.cuda.attention.flash import ALL_ROWS, NO_MASK, ONE_ROW, FlashForm, flash_attention
from bolt_numba.kernels.cuda.attention.rows import EXTRA, LOG2_E
from bolt_numba.kernels.cuda.attention.tiles import TILE, attention_tiles, shared_bytes
from bolt_numba.kernels.cuda.declare import CudaKernel, ceil_div
from bolt_numba.kernels.geometry.heads import attention_args, heads_first, mask_fits
from bolt_numba.kernels.registry import Context, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.attention.attention import FusedAttention

PROCESSORS = 132
"""Of the GPU that blocks are counted for (an H100): fewer blocks leave some without work."""
SHARED_KEYS = 128
"""Keys of a part, at least."""
SHARED = 99 * 1024
"""Bytes of shared memory that a block may have on each GPU that has kernels."""
ALONE = {"group": 1, "q_head": 0, "y_head": 0, "mask_head": 0}
"""Arguments of heads that lie alone."""
MOST_UNITS = 65535
"""Blocks of a launch in its second direction."""


def accepts(op: FusedAttention, ins: Types) -> bool:
    if any(t is not None and (not t.is_static or t.dtype not in (F32, F16, BF16) or not t.size) for t in ins):
        return False
    q, k, v = heads_first(op, ins)
    return max(math.prod(q[:-2]), math.prod(k[:-2]), v[-1]) <= MOST_UNITS and mask_fits(op, ins)


@kernel(FusedAttention, device="cuda", accepts=accepts)
def attention(op: FusedAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Sums in f32 arithmetic, for any size of heads."""
    args = attention_args(op, ins, outs[0]) | ALONE
    return [Step(tiles_for(dtype_name(outs[0].dtype), args["d"], args["width"]), args)]


def tiles_for(dtype: str, d: int, width: int) -> CudaKernel:
    """The kernel for keys of ``d`` elements and values of ``width`` that every GPU has shared memory for."""
    again = shared_bytes(1, d) > SHARED
    fits = [n for n in (2, 4) if shared_bytes(n, d, again) <= SHARED and n < 2 * ceil_div(width, TILE)]
    return attention_tiles(dtype, max(fits, default=1), again)


def _accepts_flash(op: FusedAttention, ins: Types) -> bool:
    """Halves in rows of whole 16 bytes, which tensor cores take."""
    if not accepts(op, ins) or ins[0].dtype == F32 or op.scale <= 0:
        return False
    q, _, v = heads_first(op, ins)
    return flash_fits(q[-1], v[-1])


def flash_fits(d: int, width: int) -> bool:
    return d % 8 == 0 and width % 8 == 0 and max(d, width) <= 128


@kernel(FusedAttention, device="cuda", accepts=_accepts_flash, rank=1)
def flash(op: FusedAttention, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Tensor cores; few rows share their keys among several blocks."""
    k, mask = heads_first(op, ins)[1], ins[3] if len(ins) > 3 else None
    kind = NO_MASK if mask is None else ONE_ROW if len(mask.dims) < 2 or mask.dims[-2] == 1 else ALL_ROWS
    return flash_steps(attention_args(op, ins, outs[0]) | ALONE, dtype_name(outs[0].dtype), kind, k[-2])


def flash_steps(args: dict[str, Any], dtype: str, mask: str, keys: int) -> list[Step]:
    """Steps for arguments of `rows.FIELDS`; keys: of a row, at most."""
    rows, units, width = args["group"] * args["m"], args["units"], args["width"]
    tiles, warps = (1, 1) if rows <= 16 else (1, 4) if rows <= 64 else (2, 4)
    blocks = units * ceil_div(rows, 16 * tiles * warps)
    parts = max(1, min(ceil_div(keys, SHARED_KEYS), 2 * PROCESSORS // blocks)) if blocks < PROCESSORS else 1
    d = 64 if max(args["d"], width) <= 64 else 128
    form = FlashForm(dtype, d, tiles, warps, mask, parts > 1, args["cap"] > 0, args["group"] > 1)
    partial = Scratch(4 * parts * units * rows * (width + EXTRA)) if parts > 1 else None
    steps = [Step(flash_attention(form), {**args, "scale": args["scale"] * LOG2_E, "partial": partial, "parts": parts})]
    if parts > 1:
        names = ("sink", "y", "table", "units", "group", "m", "width", "y_step", "y_head")
        more = {"partial": partial, "parts": parts}
        steps.append(Step(combine_parts(dtype), {name: args[name] for name in names} | more))
    return steps
