"""Transposed convolution, channels last: every phase of the output is a small dense convolution of the input.

Output pixels whose positions leave the same remainders by the strides are a phase: they meet the same taps of the
filter, at input pixels that are one apart.  So each output element is a sum that is computed once, in registers;
nothing is scattered or cleared.  Where filters do not overlap (2x2 with stride 2), the phases of a row are one product,
and those of a few rows, too, if all fit one vector.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.base.selects import either
from bolt_numba.base.types import F32 as FLOAT32
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    load_f32,
    load_i64,
    rows_load,
    split,
    store_f32,
    store_i64,
    tile_clamp,
    tile_rank1_rows,
    tile_row,
    tile_store,
    tile_store_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.products.epilogue import can_finish, finish
from bolt_numba.kernels.cpu.products.matmul import known_bias, zero_bias
from bolt_numba.kernels.cpu.products.pack import PANEL, aligned_empty, pack_panels, padded_bias, panel_columns
from bolt_numba.kernels.cpu.products.sweep import MR
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, Inline, inline, inline_source, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.conv import ConvTranspose

HEIGHTS = (MR, MR // 3, 1)
"""Pixels of the compiled tiles."""
PHASE_FIELDS = 5
WORK_BYTES = 64 * (-(-8 * MR // 64) + -(-4 * MR * PANEL // 64))
"""Workspace of one thread: addresses of the input pixels of a tile, and a tile."""


def _tile(mr: int, nv: int) -> Inline:
    """``mr`` pixels of one phase, ``nv`` vectors of filters."""

    @inline
    def tile(x, xp, h, wd, row0, col0, depth, row_taps, nr, col_taps, nc, zeros, table, b, bias, y, ldy, n, lo, hi):
        acc = tile_row(mr, nv, bias)
        for r in range(nr):
            row = row0 + load_i64(row_taps + 8 * r)
            if row >= 0 and row < h:
                at = b + r * nc * depth * nv * BYTES
                for s in range(nc):
                    col = col0 + load_i64(col_taps + 8 * s)
                    for i in range(mr):
                        inside = (col + i >= 0) & (col + i < wd)
                        store_i64(table + 8 * i, x + (row * wd + col + i) * xp if inside else zeros)
                    rows = rows_load(mr, table, 8, 0)
                    for q in range(depth):
                        acc = tile_rank1_rows(acc, rows, 4 * q, at)
                        at += nv * BYTES
        acc = tile_clamp(acc, lo, hi)
        if n >= nv * LANES:
            tile_store(acc, y, ldy)
        else:
            tile_store_n(acc, y, ldy, n)

    return tile


@inline
def unfold(fold, run, count, tile, y, line):
    """Each of ``count`` rows at ``tile`` holds ``fold`` runs of results: write them to as many output rows."""
    for a in range(fold):
        for i in range(count):
            for q in range(run):
                store_f32(y + a * line + 4 * (i * run + q), load_f32(tile + 4 * (i * PANEL + a * run + q)))


def _row_of_tiles() -> Inline:
    """``row_of_tiles(count, ...)``: all pixels of a phase in one output row, or in ``fold`` rows."""
    names = "x, xp, h, wd, row0, col0, depth, row_taps, nr, col_taps, nc, zeros, table, b, bias, y, ldy, n, lo, hi"
    passed = names.replace("col0", "i").replace(" y, ldy,", " to, ld,")
    lines = [f"def row_of_tiles(count, act, fold, run, line, {names}):", "    i = col0", "    while i < count:"]
    lines += ["        left = count - i", "        to, ld = y + i * ldy, ldy"]
    lines += ["        if fold > 1:", "            to, ld = table + 8 * MR, 4 * PANEL"]
    scope: dict[str, Any] = {"PANEL": PANEL, "MR": MR, "unfold": unfold}
    for nv, test in ((2, "if n > LANES"), (1, "else")):
        lines.append(f"        {test}:")
        for mr in HEIGHTS:
            scope[f"tile{mr}x{nv}"] = _tile(mr, nv)
            head = "if" if mr == HEIGHTS[0] else "elif"
            lines += [f"            {head} left >= {mr}:", f"                mr = {mr}"]
            lines.append(f"                tile{mr}x{nv}({passed})")
    lines += ["        if fold > 1:", "            unfold(fold, run, mr, to, y + i * ldy, line)"]
    lines += [
        "            if act != 0:",
        "                call_activation(act, y + i * ldy, mr * run + (fold << 32), line)",
    ]
    lines += ["        elif act != 0:", "            call_activation(act, to, min(n, PANEL) + (mr << 32), ld)"]
    lines.append("        i += mr")
    text = "\n".join(lines) + "\n"
    return inline_source(text, "row_of_tiles", **scope, **scope_of(text))


row_of_tiles = _row_of_tiles()


def _transposed_reach(a: Any) -> dict[str, Reach]:
    phases = a.phases[: a.down * a.across]
    at, nr, row_taps, nc, col_taps = phases.T
    size = 4 * a.groups * a.depth * a.width
    last = max(px + (-(-(a.ow - px) // a.step) - 1) * a.step for px in range(min(a.across, a.ow)))
    row = (a.images * a.oh - 1) * a.fold * a.ow + (a.fold - 1) * a.ow
    return {
        "x": 4 * ((a.images * a.h * a.wd - 1) * a.xp + a.groups * a.depth),
        "w": int((at + size * nr * nc).max()),
        "bias": 4 * a.groups * a.width,
        "y": 4 * ((row + last) * a.yp + (a.groups - 1) * a.n + a.n // a.fold),
        "zeros": 4 * a.depth,
        "phases": 8 * PHASE_FIELDS * len(phases),
        "taps": 8 * int(max((row_taps + nr).max(), (col_taps + nc).max())),
        "work": (a.threads - 1) * a.work_step + 8 * MR + (4 * MR * PANEL if a.fold > 1 else 0),
    }


@native(
    x=PTR, w=PTR, bias=PTR, y=PTR, zeros=PTR, xp=I64, yp=I64, images=I64, h=I64, wd=I64, depth=I64, oh=I64, ow=I64,
    n=I64, width=I64, groups=I64, down=I64, across=I64, step=I64, fold=I64, phases=PTR, taps=PTR,
    work=PTR, work_step=I64, lo=F32, hi=F32, act=CODE, extents=_transposed_reach,
)  # fmt: skip
def transposed_convolution(p, tid, nthreads):
    """Fields.

    x: [images, h, wd, groups * depth], pixels ``xp`` elements apart · w: see `pack_phases` · bias: [groups, width] ·
    y: [images, oh, ow, groups * n], pixels ``yp`` apart · zeros: depth zeros, read outside the image.
    n, width: results of a group at a pixel, and columns of their packed filters · down, across: phases along the axes ·
    step: output pixels from one of a phase to the next · fold: output rows of one product (oh counts products) ·
    phases: i64 [down][across][5]: byte offset of the filters, row taps, the first of them, column taps, the first of
    them · taps: i64, input pixels from a phase's index.
    """
    x0, w, y0, xp, yp, h, wd, depth = p.x, p.w, p.y, 4 * p.xp, 4 * p.yp, p.h, p.wd, p.depth
    oh, ow, n, width, down, across, step, taps = p.oh, p.ow, p.n, p.width, p.down, p.across, p.step, p.taps
    lo, hi, act, zeros, phases, bias, fold = p.lo, p.hi, p.act, p.zeros, p.phases, p.bias, p.fold
    table, lines = p.work + p.work_step * tid, p.images * oh
    first, last = split(p.groups * lines, tid, nthreads)
    for unit in range(first, last):
        group, line = unit // lines, unit % lines
        image, out_row = line // oh, line % oh
        x = x0 + image * h * wd * xp + 4 * group * depth
        for px in range(across):
            entry = phases + 8 * PHASE_FIELDS * (out_row % down * across + px)
            nr, row_taps = load_i64(entry + 8), taps + 8 * load_i64(entry + 16)
            nc, col_taps = load_i64(entry + 24), taps + 8 * load_i64(entry + 32)
            size = 4 * nr * nc * depth
            b = w + load_i64(entry) + group * size * width
            y = y0 + (line * fold * ow + px) * yp + 4 * group * n
            for j in range(ceil_div(n, PANEL)):
                row_of_tiles(
                    ceil_div(ow - px, step), act, fold, n // fold, ow * yp, x, xp, h, wd, out_row // down, 0, depth,
                    row_taps, nr, col_taps, nc, zeros, table, b + j * PANEL * size,
                    bias + 4 * (group * width + j * PANEL), y + 4 * j * PANEL, step * yp, n - j * PANEL, lo, hi,
                )  # fmt: skip


@record(frozen=True)
class AxisTaps:
    """One spatial axis of a layer: taps[phase] pairs a filter index with its input offset.

    apart: input pixels between neighbouring taps of a phase.
    """

    taps: tuple[tuple[tuple[int, int], ...], ...]
    apart: int = 1

    @staticmethod
    def of(kernel: int, stride: int, dilation: int, pad: int) -> AxisTaps:
        """Output o = stride * q + phase meets tap t at input q + (phase + pad - t * dilation) / stride."""
        found = []
        for phase in range(stride):
            reach = [(t, phase + pad - t * dilation) for t in range(kernel)]
            found.append(tuple((t, at // stride) for t, at in reach if at % stride == 0))
        return AxisTaps(tuple(found), dilation // math.gcd(stride, dilation))


@pure
@lru_cache(maxsize=256)
def phase_tables(rows: AxisTaps, cols: AxisTaps, depth: int, width: int, groups: int) -> tuple[Array, Array]:
    """``phases`` and ``taps`` of the kernel."""
    taps: list[int] = [0]
    firsts: dict[tuple[int, int], int] = {}
    for a, axis in enumerate((rows, cols)):
        for i, found in enumerate(axis.taps):
            firsts[a, i] = len(taps)
            taps += [offset for _, offset in found]
    phases, at = [], 0
    for i, found in enumerate(rows.taps):
        for j, met in enumerate(cols.taps):
            phases.append([at, len(found), firsts[0, i], len(met), firsts[1, j]])
            at += 4 * groups * len(found) * len(met) * depth * width
    return np.array(phases, np.int64), np.array(taps, np.int64)


def joined_parts(parts: Sequence[Array]) -> Array:
    """One array of the parts, one after the other."""
    out = aligned_empty((sum(p.size for p in parts),))
    np.concatenate([p.reshape(-1) for p in parts], out=out)
    return out


def pack_phases(rows: AxisTaps, cols: AxisTaps, groups: int, merged: bool, fold: int) -> Callable[[Array], Array]:
    """[c, k/g, r, s] to [phases][groups][panels][taps][c/g][PANEL].

    merged: all columns of the filter are one phase; fold: so many of its rows, too.
    """

    def pack(w: Array) -> Array:
        c, kg = w.shape[:2]
        kernel = w.shape[2:] if w.ndim == 4 else (1, *w.shape[2:])
        by_tap = w.reshape(groups, c // groups, kg, *kernel).transpose(3, 4, 0, 1, 2)
        if fold > 1:
            return pack_panels(np.ascontiguousarray(by_tap.transpose(2, 3, 0, 1, 4)).reshape(1, c, -1))
        parts = []
        for found in rows.taps:
            for met in cols.taps:
                if merged:
                    part = by_tap[[r for r, _ in found]].transpose(0, 2, 3, 1, 4)
                    part = part.reshape(len(found), 1, groups, c // groups, kernel[1] * kg)
                else:
                    part = by_tap[np.ix_([r for r, _ in found], [s for s, _ in met])]
                size = part.shape[0] * part.shape[1] * part.shape[3]
                by_group = part.transpose(2, 0, 1, 3, 4).reshape(groups, size, part.shape[-1])
                parts.append(pack_panels(by_group))
        return joined_parts(parts)

    return pack


def pack_bias(groups: int, kg: int, repeat: int) -> Any:
    """One or k values to [groups][columns of packed filters], every group's ``repeat`` times over."""
    n = kg * repeat
    pad = padded_bias(groups * n, n, panel_columns(n))
    return lambda bias: pad(np.tile(np.broadcast_to(bias.reshape(-1), groups * kg).reshape(groups, kg), repeat))


PHASES = 1 << 12
"""Products of strides up to which planning lists what every phase meets."""


def accepts_transposed(op: ConvTranspose, ins: Types) -> bool:
    """Channels last, f32, constant filters and bias, on a line or a plane."""
    if op.layout != "NHWC" or any(t is not None and (t.dtype != FLOAT32 or not t.is_static) for t in ins):
        return False
    x, w, bias = (*ins, None)[:3]
    if x is None or w is None or w.known is None or (bias is not None and bias.known is None):
        return False
    strides = op.windows(w.dims[2:]).strides
    few = math.prod(strides) <= PHASES and math.prod((*strides, *w.dims[2:])) <= PHASES * PHASES
    return few and len(x.dims) in (3, 4) and x.size > 0 and w.size > 0 and can_finish(op.activation)


Axis = tuple[int, int, int, int]
"""Taps, stride, dilation and begin pad of an axis: what `AxisTaps.of` takes."""


def transposed_axes(
    op: ConvTranspose, x: TensorType, w: TensorType, y: TensorType
) -> tuple[tuple[int, ...], tuple[int, ...], Axis, Axis]:
    """Height and width of the images and of the results, and both axes; a line is an image of one row."""
    sizes = x.dims[1:-1]
    windows, pads = op.windows(w.dims[2:]), op.resolved_pads(sizes, w.dims[2:])
    axes = list(zip(windows.kernel, windows.strides, windows.dilations, pads, strict=False))
    line = len(sizes) == 1
    down, across = [(1, 1, 1, 0), *axes] if line else axes
    return (1,) * line + sizes, (1,) * line + y.dims[1:-1], down, across


@kernel(ConvTranspose, accepts=accepts_transposed)
def transposed(op: ConvTranspose, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of filters under tiles of pixels of one phase."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    images, c, groups, kg = x.dims[0], x.dims[-1], op.group, w.dims[1]
    (h, wd), (oh, ow), down, across = transposed_axes(op, x, w, outs[0])
    (kh, sh, dh, top), (kw, sw, dw, left) = down, across
    merged = kw == sw and dw == 1 and left == 0 and ow == wd * sw and groups == 1 and sw > 1
    fits = kh == sh and dh == 1 and top == 0 and oh == h * sh and sh * sw * kg <= LANES
    fold = sh if merged and fits else 1
    rows = AxisTaps((((0, 0),),)) if fold > 1 else AxisTaps.of(*down)
    cols = AxisTaps((((0, 0),),)) if merged else AxisTaps.of(*across)
    repeat = sw * fold if merged else 1
    n = kg * repeat
    width = panel_columns(n)
    phases, taps = phase_tables(rows, cols, c // groups, width, groups)
    key, pack = ("transposed", groups, kg, repeat), pack_bias(groups, kg, repeat)
    bias_at = known_bias(bias, groups * width, context, key, pack)
    parallel = context.threads > 1 and x.size * kg * kh * kw > PAYS_FLOPS * 5 // 2
    threads = either(parallel, context.threads, 1)
    args: dict[str, Argument] = {
        "x": In(0), "bias": bias_at, "y": Out(0), "zeros": zero_bias(c // groups),
        "w": context.packed(
            w.known, ("transposed", rows, cols, groups, merged, fold), pack_phases(rows, cols, groups, merged, fold)
        ),
        "xp": Pitch(In(0)), "yp": kg if merged else Pitch(Out(0)),
        "images": images, "h": h, "wd": wd, "depth": c // groups, "oh": oh // fold, "ow": ow, "n": n, "width": width,
        "groups": groups, "down": len(rows.taps), "across": len(cols.taps), "step": sw, "fold": fold,
        "phases": phases, "taps": taps,
        "work": Scratch(threads * WORK_BYTES), "work_step": WORK_BYTES, **finish(op.activation).args,
    }  # fmt: skip
    return [Step(transposed_convolution, args, parallel)]
