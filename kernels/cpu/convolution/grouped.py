"""Grouped convolution with few channels per group, channels last: whole groups in one vector.

A vector of results holds whole groups.  For every channel of a group, the input vector is permuted so that each lane
sees its own group's channel, and multiplied like a depthwise convolution.  A register tile is a few output pixels of
one row; rows and columns outside the image are left out.  Sums run over rows of the filter, channels, columns.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.selects import either
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.convolution.conv import accepts_conv
from bolt_numba.kernels.cpu.convolution.depthwise import plane_fields
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import L2, PAYS_FLOPS
from bolt_numba.kernels.cpu.products.epilogue import bias_last, finish, put
from bolt_numba.kernels.cpu.products.matmul import known_bias
from bolt_numba.kernels.cpu.products.pack import aligned_zeros, padded_bias
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, PTR_OR_0, Native, native_source
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Step, Types, kernel
from bolt_numba.ops.layers.products.conv import Conv

FIELDS = {
    "x": PTR, "w": PTR, "bias": PTR, "res": PTR_OR_0, "y": PTR, "xp": I64, "rp": I64, "yp": I64,
    "images": I64, "h": I64, "wd": I64, "c": I64, "oh": I64, "ow": I64, "k": I64, "rows": I64, "cols": I64,
    "sh": I64, "sw": I64, "dh": I64, "dw": I64, "top": I64, "left": I64,
    "depth": I64, "step_in": I64, "step_out": I64, "index": PTR, "chunk": I64, "lo": F32, "hi": F32, "act": CODE,
}  # fmt: skip
"""Parameters.  x: [images, h, wd, c], pixels ``xp`` elements apart · w: see `pack_groups` · bias: [blocks][LANES] ·
res, y: [images, oh, ow, k], pixels ``rp`` and ``yp`` apart (res may be 0) · rows, cols: of the filter · top, left:
begin pads · depth: channels of a group · step_in, step_out: channels of a block of groups · index: see `lane_table` ·
chunk: blocks that are swept together · act: see `epilogue.Finish`."""

PIXELS = 7
"""Pixels of a tile: images are 7 * 2^n wide more often than not."""
SPECIAL = ((1, 1), (3, 1), (3, 2))
"""Filter columns and stride, undilated, with a kernel of their own.  Others share one."""

_HEAD = """
def {name}(p, tid, nthreads):
    x_all, w_all, bias, res_all, y_all, lo, hi, act = p.x, p.w, p.bias, p.res, p.y, p.lo, p.hi, p.act
    xp, rp, yp, h, wd, c, oh, ow, k = 4 * p.xp, 4 * p.rp, 4 * p.yp, p.h, p.wd, p.c, p.oh, p.ow, p.k
    rows, cols, sh, sw, dh, dw, top, left = p.rows, p.cols, p.sh, p.sw, p.dh, p.dw, p.top, p.left
    depth, step_in, step_out, chunk = p.depth, p.step_in, p.step_out, p.chunk
    blocks = ceil_div(k, step_out)
    parts = ceil_div(blocks, chunk)
    row_step, w_step = dh * wd * xp, depth * cols * BYTES
    reach, across = (PIXELS - 1) * sw + (cols - 1) * dw, sw * xp
    first, last = split(p.images * oh * parts, tid, nthreads)
    for unit in range(first, last):
        line, b_lo = unit // parts, unit % parts * chunk
        b_hi = min(b_lo + chunk, blocks)
        up = line % oh * sh - top
        r_lo = ceil_div(max(-up, 0), dh)
        r_hi = max(min(ceil_div(h - up, dh), rows), r_lo)
        x_line = x_all + ((line // oh) * h + up + r_lo * dh) * wd * xp
        j = 0
        while j < ow:
            pixels = min(ow, PIXELS)
            j = min(j, ow - pixels)
            at = j * sw - left
            q_lo, q_hi = max(-at, 0), wd - at
            whole = q_lo == 0 and q_hi > reach and pixels == PIXELS
            for b in range(b_lo, b_hi):
                n = min(k - b * step_out, step_out)
                y, res = y_all + (line * ow + j) * yp, res_all + (line * ow + j) * rp
                y, res = y + 4 * step_out * b, res + 4 * step_out * b
                wa, index = w_all + (b * rows + r_lo) * w_step, p.index + b * depth * BYTES
                xa = x_line + at * xp + 4 * min(b * step_in, c - LANES)
                if whole:
"""

_TAIL = """
            if act != 0:
                part = y_all + (line * ow + j) * yp + 4 * step_out * b_lo
                call_activation(act, part, min(k, step_out * b_hi) - step_out * b_lo + (pixels << 32), yp)
            j += pixels
"""


def _columns(cols: int, stride: int, guarded: bool) -> list[str]:
    """One channel of one row of taps; each input is permuted once for all pixels; guarded: only columns that exist."""
    lines = [f"w{s} = vload(wa + {s} * BYTES)" for s in range(cols)]
    lines.append(f"wa += {cols} * BYTES")
    for column in range((PIXELS - 1) * stride + cols):
        indent = ""
        if guarded:
            lines.append(f"if {column} >= q_lo and {column} < q_hi:")
            indent = "    "
        lines.append(f"{indent}v = permute(vload(xa + {column} * xp), lanes)")
        taps = [(i, column - i * stride) for i in range(PIXELS)]
        lines += [f"{indent}acc{i} = fma(v, w{s}, acc{i})" for i, s in taps if 0 <= s < cols]
    return lines


def _tap(guarded: bool) -> list[str]:
    """One channel of one tap of any filter."""
    lines = ["f = vload(wa)", "wa += BYTES"]
    for i in range(PIXELS):
        indent = ""
        if guarded:
            lines.append(f"if s * dw + {i} * sw >= q_lo and s * dw + {i} * sw < q_hi:")
            indent = "    "
        lines.append(f"{indent}acc{i} = fma(permute(vload(xs + {i} * across), lanes), f, acc{i})")
    return lines


def _tile(cols: int, stride: int, guarded: bool) -> str:
    """Text of one register tile."""
    lines = [f"acc{i} = vload(bias + b * BYTES)" for i in range(PIXELS)]
    lines += ["for _r in range(r_lo, r_hi):", "    for q in range(depth):"]
    lines.append("        lanes = vload_i32(index + q * BYTES)")
    if cols:
        lines += ["        " + line for line in _columns(cols, stride, guarded)]
    else:
        lines += ["        for s in range(cols):", "            xs = xa + s * dw * xp"]
        lines += ["            " + line for line in _tap(guarded)]
    lines.append("    xa += row_step")
    for i in range(PIXELS):
        indent = ""
        if guarded and i:
            lines.append(f"if pixels > {i}:")
            indent = "    "
        lines.append(f"{indent}put(acc{i}, y + {i} * yp, res + {i} * rp, res_all, n, lo, hi)")
    return "\n".join(" " * 20 + line for line in lines)


def _grouped_reach(a: Numbers) -> dict[str, Reach]:
    vectors, pixels = BYTES * -(-a.k // a.step_out), a.images * a.oh * a.ow
    return {
        "x": 4 * ((a.images * a.h * a.wd - 1) * a.xp + a.c) if pixels else 0,
        "w": vectors * a.rows * a.cols * a.depth,
        "bias": vectors,
        "res": 4 * ((pixels - 1) * a.rp + a.k) if pixels else 0,
        "y": 4 * ((pixels - 1) * a.yp + a.k) if pixels else 0,
        "index": vectors * a.depth,
    }


@cache
def grouped_kernel(cols: int, stride: int) -> Native:
    """The kernel for undilated filters of ``cols`` columns at a stride, or (0, 0) for any."""
    name = f"grouped_{cols}_{stride}" if cols else "grouped"
    text = _HEAD.format(name=name) + _tile(cols, stride, False) + "\n                else:\n"
    text += _tile(cols, stride, True) + _TAIL
    return native_source(text, name, FIELDS, extents=_grouped_reach, PIXELS=PIXELS, put=put, **scope_of(text))


def groups_per_block(cg: int, kg: int) -> int:
    """Groups whose inputs and results each fit one vector."""
    return min(LANES // cg, LANES // kg)


def pack_groups(cg: int, kg: int) -> Callable[[Array], Array]:
    """[k, c/g, spatial...] to [blocks][rows][c/g][columns][LANES], zeros in lanes without a channel."""

    def pack(w: Array) -> Array:
        step = groups_per_block(cg, kg) * kg
        blocks, k = -(-w.shape[0] // step), w.shape[0]
        rows, cols = (1, *w.shape[2:])[-2:]
        full = np.zeros((blocks * step, cg, rows, cols), np.float32)
        full[:k] = w.reshape(k, cg, rows, cols)
        out = aligned_zeros((blocks, rows, cg, cols, LANES))
        out[..., :step] = full.reshape(blocks, step, cg, rows, cols).transpose(0, 3, 2, 4, 1)
        return out

    return pack


def block_bias(bias: TensorType | None, k: int, step: int, context: Context) -> Argument:
    """One or k values as [blocks][LANES], or zeros."""
    return known_bias(bias, -(-k // step) * LANES, context, ("grouped bias", k, step), padded_bias(k, step, LANES))


@pure
@lru_cache(maxsize=256)
def lane_table(groups: int, cg: int, kg: int) -> Array:
    """i32 [blocks][c/g][LANES]: which lane of the block's input vector every lane of its result reads."""
    together = groups_per_block(cg, kg)
    begin = np.arange(0, groups, together) * cg
    shift = begin - np.minimum(begin, max(groups * cg - LANES, 0))
    lane = np.arange(LANES) // kg * cg
    table: Array = shift[:, None, None] + np.arange(cg)[:, None] + lane
    return np.minimum(table, LANES - 1).astype(np.int32)


def accepts_grouped(op: Conv, ins: Types) -> bool:
    """A group fits one vector, on a line or a plane."""
    if op.group == 1 or not accepts_conv(op, ins):
        return False
    x, w = ins[0], ins[1]
    cg, kg = w.dims[1], w.dims[0] // op.group
    return len(x.dims) in (3, 4) and x.dims[-1] >= LANES and groups_per_block(cg, kg) >= 1


FILTER_BYTES = L2 // 16
"""Bytes of filters that are swept together: they stay in the second-level cache."""


def choose_chunk(blocks: int, filter_bytes: int, lines: int, threads: int) -> int:
    """Blocks that are swept together, few enough that every thread has its share."""
    parts = -(-blocks // max(FILTER_BYTES // filter_bytes, 1))
    if threads > 1 and lines < 4 * threads:
        parts = max(parts, min(blocks, 2 * threads))
    return -(-blocks // parts)


@kernel(Conv, accepts=accepts_grouped, rank=15)
def grouped(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Vectors of whole groups, tiles of pixels along a row."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    (k, cg), plane = w.dims[:2], plane_fields(op, x, w, outs[0])
    kg, rows, cols, sw = k // op.group, plane["rows"], plane["cols"], plane["sw"]
    step, last = groups_per_block(cg, kg) * kg, bias_last(op, bias, k, context)
    parallel = context.threads > 1 and outs[0].size * rows * cols * cg > 5 * PAYS_FLOPS
    args: dict[str, Argument] = {
        "x": In(0), "w": context.packed(w.known, ("grouped", op.group), pack_groups(cg, kg)),
        "bias": block_bias(None if last else bias, k, step, context),
        "res": In(2) if last else In(3) if op.residual else None, "y": Out(0),
        "xp": Pitch(In(0)), "rp": Pitch(In(3)) if op.residual else 0, "yp": Pitch(Out(0)),
        "k": k, "depth": cg, "step_in": step // kg * cg, "step_out": step, "index": lane_table(op.group, cg, kg),
        "chunk": choose_chunk(
            -(-k // step), rows * cols * cg * BYTES, plane["images"] * plane["oh"], either(parallel, context.threads, 1)
        ),
        **plane, **finish(op.activation).args,
    }  # fmt: skip
    special = (cols, sw) in SPECIAL and plane["dw"] == 1
    return [Step(grouped_kernel(cols if special else 0, sw if special else 0), args, parallel)]
