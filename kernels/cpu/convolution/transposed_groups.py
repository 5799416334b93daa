"""Transposed convolution with few channels per group, channels last: whole groups in one vector, phase after phase.

Each phase of the output (`conv_transpose`) is a grouped convolution of stride 1, whose taps are as far apart as the
phase's filters reach.  Its input vector is permuted so that each lane sees its own group's channel (`grouped`).  In a
depthwise layer each lane is its own group, and nothing is permuted.  All phases of a row are written together, so that
each result is in cache as long as its neighbours are.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.selects import either
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.convolution.conv_transpose import (
    PHASE_FIELDS,
    AxisTaps,
    accepts_transposed,
    joined_parts,
    transposed_axes,
)  # fmt: skip
from bolt_numba.kernels.cpu.convolution.grouped import (
    block_bias,
    choose_chunk,
    groups_per_block,
    lane_table,
    pack_groups,
)
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.products.epilogue import finish, put
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, Native, native_source
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Step, Types, kernel
from bolt_numba.ops.layers.products.conv import ConvTranspose

FIELDS = {
    "x": PTR, "w": PTR, "bias": PTR, "y": PTR, "xp": I64, "yp": I64, "images": I64, "h": I64, "wd": I64, "c": I64,
    "oh": I64, "ow": I64, "k": I64, "dh": I64, "dw": I64, "down": I64, "across": I64, "phases": PTR,
    "depth": I64, "step_in": I64, "step_out": I64, "index": PTR, "chunk": I64, "lo": F32, "hi": F32, "act": CODE,
}  # fmt: skip
"""Parameters.  x: [images, h, wd, c], pixels ``xp`` elements apart · w: see `pack_group_phases` · bias: [blocks][LANES]
· y: [images, oh, ow, k], pixels ``yp`` apart · dh, dw: input pixels between the taps of a phase · down, across: phases
along the axes · phases: i64 [down][across][5]: byte offset of the filters, their rows, the first input row, their
columns, the first input column · depth: channels of a group · step_in, step_out: channels of a block of groups ·
index: see `lane_table` · chunk: blocks that are swept together · act: see `epilogue.Finish`."""

PIXELS = 7
"""Pixels of a tile, as of `grouped`."""

_TEXT = """
def {name}(p, tid, nthreads):
    x_all, w_all, bias, y_all, lo, hi, act = p.x, p.w, p.bias, p.y, p.lo, p.hi, p.act
    xp, yp, h, wd, c, oh, ow, k, dh, dw = 4 * p.xp, 4 * p.yp, p.h, p.wd, p.c, p.oh, p.ow, p.k, p.dh, p.dw
    depth, step_in, step_out, chunk, down, across = p.depth, p.step_in, p.step_out, p.chunk, p.down, p.across
    blocks = ceil_div(k, step_out)
    parts = ceil_div(blocks, chunk)
    first, last = split(p.images * oh * parts, tid, nthreads)
    for unit in range(first, last):
        line, b_lo = unit // parts, unit % parts * chunk
        b_hi = min(b_lo + chunk, blocks)
        for px in range(across):
            entry = p.phases + {fields} * (line % oh % down * across + px)
            rows, cols, left = load_i64(entry + 8), load_i64(entry + 24), load_i64(entry + 32)
            up, w_step = line % oh // down + load_i64(entry + 16), depth * cols * BYTES
            r_lo = min(ceil_div(max(-up, 0), dh), rows)
            r_hi = max(min(ceil_div(h - up, dh), rows), r_lo)
            x_line = x_all + ((line // oh) * h + up + r_lo * dh) * wd * xp
            count, reach = ceil_div(ow - px, across), PIXELS - 1 + (cols - 1) * dw
            j = 0
            while j < count:
                pixels = min(count, PIXELS)
                j = min(j, count - pixels)
                at = j + left
                q_lo, q_hi = max(-at, 0), wd - at
                whole = q_lo == 0 and q_hi > reach and pixels == PIXELS
                to, ld = y_all + (line * ow + px + j * across) * yp, across * yp
                for b in range(b_lo, b_hi):
                    n, y = min(k - b * step_out, step_out), to + 4 * step_out * b
                    wa = w_all + load_i64(entry) + (b * rows + r_lo) * w_step
                    xa = x_line + at * xp + 4 * {begin}
                    if whole:
{whole}
                    else:
{guarded}
                if act != 0:
                    size = min(k, step_out * b_hi) - step_out * b_lo + (pixels << 32)
                    call_activation(act, to + 4 * step_out * b_lo, size, ld)
                j += pixels
"""


def _tile(plain: bool, narrow: bool, guarded: bool) -> str:
    """Text of one register tile; guarded: only the pixels and columns that the images have."""
    lines = [f"acc{i} = vload(bias + b * BYTES)" for i in range(PIXELS)]
    lines += ["for _r in range(r_lo, r_hi):", "    for q in range(depth):"]
    lines += ["        lanes = vload_i32(p.index + (b * depth + q) * BYTES)"] * (not plain)
    lines += [
        "        for s in range(cols):",
        "            f, xs = vload(wa), xa + s * dw * xp",
        "            wa += BYTES",
    ]
    for i in range(PIXELS):
        indent = " " * 12
        if guarded:
            lines.append(f"{indent}if s * dw + {i} >= q_lo and s * dw + {i} < q_hi:")
            indent += "    "
        value = f"vload_n(xs + {i} * xp, c)" if narrow else f"vload(xs + {i} * xp)"
        lines.append(f"{indent}acc{i} = fma({value if plain else f'permute({value}, lanes)'}, f, acc{i})")
    lines.append("    xa += dh * wd * xp")
    for i in range(PIXELS):
        lines += [f"if pixels > {i}:"] * guarded
        lines.append(f"{'    ' * guarded}put(acc{i}, y + {i} * ld, 0, 0, n, lo, hi)")
    return "\n".join(" " * 24 + line for line in lines)


def _reach(a: Any) -> dict[str, Reach]:
    blocks, pixels = -(-a.k // a.step_out), a.images * a.oh * a.ow
    at, rows, _, cols, _ = a.phases[: a.down * a.across].T
    return {
        "x": 4 * ((a.images * a.h * a.wd - 1) * a.xp + a.c) if pixels else 0,
        "w": int((at + BYTES * blocks * a.depth * rows * cols).max()),
        "bias": BYTES * blocks,
        "y": 4 * ((pixels - 1) * a.yp + a.k) if pixels else 0,
        "phases": 8 * PHASE_FIELDS * a.down * a.across,
        "index": BYTES * blocks * a.depth,
    }


@cache
def transposed_groups_kernel(plain: bool, narrow: bool) -> Native:
    """plain: depthwise, in whole vectors; narrow: fewer than LANES channels."""
    name = "transposed_plain" if plain else "transposed_narrow" if narrow else "transposed_groups"
    begin = "(b * LANES)" if plain else "0" if narrow else "min(b * step_in, c - LANES)"
    tiles = {"whole": _tile(plain, narrow, False), "guarded": _tile(plain, narrow, True)}
    text = _TEXT.format(name=name, begin=begin, fields=8 * PHASE_FIELDS, **tiles)
    return native_source(text, name, FIELDS, extents=_reach, PIXELS=PIXELS, put=put, **scope_of(text))


@pure
@lru_cache(maxsize=256)
def group_phases(rows: AxisTaps, cols: AxisTaps, block_bytes: int) -> Array:
    """``phases`` of the kernel, whose taps begin with the last; block_bytes: filters of one tap, all blocks."""
    phases, at = [], 0
    for down in rows.taps:
        for across in cols.taps:
            begins = [found[-1][1] if found else 0 for found in (down, across)]
            phases.append([at, len(down), begins[0], len(across), begins[1]])
            at += block_bytes * len(down) * len(across)
    return np.array(phases, np.int64)


def pack_group_phases(rows: AxisTaps, cols: AxisTaps, groups: int) -> Callable[[Array], Array]:
    """[c, k/g, r, s] to [phases][blocks][rows][c/g][columns][LANES], a phase's taps from the last to the first."""

    def pack(w: Array) -> Array:
        c, kg = w.shape[:2]
        cg, kernel = c // groups, (1, *w.shape[2:])[-2:]
        filters = w.reshape(groups, cg, kg, *kernel).swapaxes(1, 2).reshape(groups * kg, cg, *kernel)
        taps = [[[t for t, _ in reversed(found)] for found in axis.taps] for axis in (rows, cols)]
        parts = [pack_groups(cg, kg)(filters[:, :, down][..., across]) for down in taps[0] for across in taps[1]]
        return joined_parts(parts)

    return pack


def accepts_groups(op: ConvTranspose, ins: Types) -> bool:
    """A group fits one vector, on a line or a plane."""
    if op.group == 1 or not accepts_transposed(op, ins):
        return False
    x, w = ins[0], ins[1]
    return groups_per_block(x.dims[-1] // op.group, w.dims[1]) >= 1


@kernel(ConvTranspose, accepts=accepts_groups, rank=10)
def transposed_groups(op: ConvTranspose, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Vectors of whole groups, tiles of pixels of one phase."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    images, c, kg, group = x.dims[0], x.dims[-1], w.dims[1], op.group
    (h, wd), (oh, ow), down, across = transposed_axes(op, x, w, outs[0])
    rows, cols = AxisTaps.of(*down), AxisTaps.of(*across)
    k, cg, step = kg * group, c // group, groups_per_block(c // group, kg) * kg
    blocks, taps = -(-k // step), int(np.prod(w.dims[2:]))
    parallel = context.threads > 1 and x.size * kg * taps > 5 * PAYS_FLOPS
    chunk = choose_chunk(blocks, taps * cg * BYTES, images * oh, either(parallel, context.threads, 1))
    args: dict[str, Argument] = {
        "x": In(0), "bias": block_bias(bias, k, step, context), "y": Out(0), "xp": Pitch(In(0)), "yp": Pitch(Out(0)),
        "w": context.packed(w.known, ("transposed groups", rows, cols, group), pack_group_phases(rows, cols, group)),
        "images": images, "h": h, "wd": wd, "c": c, "oh": oh, "ow": ow, "k": k, "dh": rows.apart, "dw": cols.apart,
        "down": len(rows.taps), "across": len(cols.taps), "phases": group_phases(rows, cols, blocks * cg * BYTES),
        "depth": cg, "step_in": step // kg * cg, "step_out": step, "index": lane_table(group, cg, kg), "chunk": chunk,
        **finish(op.activation).args,
    }  # fmt: skip
    plain = cg == kg == 1 and c % LANES == 0
    return [Step(transposed_groups_kernel(plain, c < LANES), args, parallel)]
