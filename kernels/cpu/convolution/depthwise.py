"""Depthwise convolution, channels last: one filter per channel, vector lanes over channels.

A register tile is a few output pixels of one row by one vector of channels; inputs and filter values are loaded once
for all pixels of the tile.  Columns and rows outside the image are left out; nothing is padded or copied.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from bolt_numba.base.follow import is_followed, pure
from bolt_numba.base.selects import either, greatest, least
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.convolution.conv import accepts_conv
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import L2, PAYS_FLOPS
from bolt_numba.kernels.cpu.products.epilogue import bias_last, finish
from bolt_numba.kernels.cpu.products.matmul import known_bias
from bolt_numba.kernels.cpu.products.pack import aligned_zeros, panel_columns
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, PTR_OR_0, Native, native_source
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Step, Types, kernel
from bolt_numba.ops.layers.products.conv import Conv

FIELDS = {
    "x": PTR, "w": PTR, "bias": PTR, "res": PTR_OR_0, "y": PTR, "xp": I64, "rp": I64, "yp": I64,
    "images": I64, "h": I64, "wd": I64, "c": I64, "oh": I64, "ow": I64, "rows": I64, "cols": I64,
    "sh": I64, "sw": I64, "dh": I64, "dw": I64, "top": I64, "left": I64, "taps": PTR, "chunk": I64,
    "lo": F32, "hi": F32, "act": CODE,
}  # fmt: skip
"""Parameters.  x: [images, h, wd, c], pixels ``xp`` elements apart · w: see `pack_taps` · bias: [blocks * LANES] ·
res, y: [images, oh, ow, c], pixels ``rp`` and ``yp`` apart (res may be 0) · rows, cols: of the filter · top, left:
begin pads · taps: see `tap_table` · chunk: channel blocks that are swept together · act: see `epilogue.Finish`."""

SPECIAL = {(3, 1): 7, (3, 2): 4, (5, 1): 8, (5, 2): 8, (7, 1): 8}
"""Filter columns and stride, undilated, with a kernel of their own: pixels of its tile.  Others share one kernel."""

_HEAD = """
def {name}(p, tid, nthreads):
    x_all, w_all, bias, res_all, y_all, lo, hi, act = p.x, p.w, p.bias, p.res, p.y, p.lo, p.hi, p.act
    xp, rp, yp, h, wd, c, oh, ow = 4 * p.xp, 4 * p.rp, 4 * p.yp, p.h, p.wd, p.c, p.oh, p.ow
    rows, cols, sh, sw, dh, top, left, taps, chunk = p.rows, p.cols, p.sh, p.sw, p.dh, p.top, p.left, p.taps, p.chunk
    blocks, lines = ceil_div(c, LANES), p.images * oh
    row_step, w_step, across = dh * wd * xp, cols * BYTES, sw * xp
    reach = (PIXELS - 1) * sw + (cols - 1) * p.dw
    # Threads take neighbouring lines where there are enough: mostly those that they computed in the layer before.
    many = lines >= 4 * nthreads
    l_lo, l_hi = split(lines, tid, nthreads) if many else (0, lines)
    units = ceil_div(blocks, chunk) * (l_hi - l_lo)
    first, last = (0, units) if many else split(units, tid, nthreads)
    for unit in range(first, last):
        b_lo = unit // (l_hi - l_lo) * chunk
        b_hi = min(b_lo + chunk, blocks)
        line = l_lo + unit % (l_hi - l_lo)
        up = line % oh * sh - top
        r_lo = ceil_div(max(-up, 0), dh)
        r_hi = max(min(ceil_div(h - up, dh), rows), r_lo)
        x_line = x_all + ((line // oh) * h + up{skipped}) * wd * xp
        w_line = w_all + r_lo * w_step
        j = 0
        while j < ow:
            pixels = min(ow, PIXELS)
            j = min(j, ow - pixels)
            at = j * sw - left
            q_lo, q_hi = max(-at, 0), wd - at
            whole = q_lo == 0 and q_hi > reach and pixels == PIXELS
            y, res = y_all + (line * ow + j) * yp, res_all + (line * ow + j) * rp
            for b in range(b_lo, b_hi):
                skip = {start}
                n = c - skip
                wa, xa = w_line + b * rows * w_step, x_line + at * xp + 4 * skip
                if whole:
"""

_TAIL = """
            if act != 0:
                part = 4 * LANES * b_lo
                call_activation(act, y + part, min(c, LANES * b_hi) - LANES * b_lo + (pixels << 32), yp)
            j += pixels
"""


def _finish(pixels: int, narrow: bool, guarded: bool) -> list[str]:
    """Add the residual, clamp, store; guarded: only the pixels that the image has."""
    load, store, n = ("vload_n", "vstore_n", ", n") if narrow else ("vload", "vstore", "")
    lines = []
    for i in range(pixels):
        indent = ""
        if guarded and i:
            lines.append(f"if pixels > {i}:")
            indent = "    "
        lines.append(f"{indent}if res_all != 0:")
        lines.append(f"{indent}    acc{i} = acc{i} + {load}(res + {i} * rp + 4 * skip{n})")
        value = f"vmin(splat(hi), vmax(splat(lo), acc{i}))"
        lines.append(f"{indent}{store}(y + {i} * yp + 4 * skip, {value}{n})")
    return lines


def _shared_loads(cols: int, stride: int, pixels: int, guarded: bool) -> list[str]:
    """One row of taps; each input is loaded once for all pixels; guarded: only the columns that the image has."""
    lines = [f"w{s} = vload(wa + {s} * BYTES)" for s in range(cols)]
    for column in range((pixels - 1) * stride + cols):
        indent = ""
        if guarded:
            lines.append(f"if {column} >= q_lo and {column} < q_hi:")
            indent = "    "
        lines.append(f"{indent}v = vload(xa + {column} * xp)")
        taps = [(i, column - i * stride) for i in range(pixels)]
        lines += [f"{indent}acc{i} = fma(v, w{s}, acc{i})" for i, s in taps if 0 <= s < cols]
    return lines


def _any_taps(pixels: int, narrow: bool, guarded: bool) -> list[str]:
    """One tap of any filter."""
    load, n = ("vload_n", ", n") if narrow else ("vload", "")
    lines = ["v, xs = vload(wa), xa + load_i64(taps + 16 * t) * xp", "wa += BYTES"]
    lines += ["q = load_i64(taps + 16 * t + 8)"] * guarded
    for i in range(pixels):
        indent = ""
        if guarded:
            lines.append(f"if q + {i} * sw >= q_lo and q + {i} * sw < q_hi:")
            indent = "    "
        lines.append(f"{indent}acc{i} = fma({load}(xs + {i} * across{n}), v, acc{i})")
    return lines


def _tile(cols: int, stride: int, pixels: int, narrow: bool, guarded: bool) -> str:
    """Text of one register tile."""
    lines = [f"acc{i} = vload(bias + b * BYTES)" for i in range(pixels)]
    if cols:
        taps = [*_shared_loads(cols, stride, pixels, guarded), "xa += row_step", "wa += w_step"]
        lines.append("for _r in range(r_lo, r_hi):")
    else:
        taps = _any_taps(pixels, narrow, guarded)
        lines.append("for t in range(r_lo * cols, r_hi * cols):")
    lines += ["    " + line for line in taps]
    return "\n".join(" " * 20 + line for line in [*lines, *_finish(pixels, narrow, guarded)])


def is_special(a: Any) -> bool:
    """Whether a kernel of its own, which needs no table of taps, has these parameters."""
    return a.dw == 1 and (a.cols, a.sw) in SPECIAL and a.c >= LANES


def depthwise_reach(a: Any) -> dict[str, Reach]:
    """Extents of the kernels of `FIELDS`."""
    vectors, pixels = BYTES * -(-a.c // LANES), a.images * a.oh * a.ow
    return {
        "x": 4 * ((a.images * a.h * a.wd - 1) * a.xp + a.c) if pixels else 0,
        "w": vectors * a.rows * a.cols,
        "bias": vectors,
        "res": 4 * ((pixels - 1) * a.rp + a.c) if pixels else 0,
        "y": 4 * ((pixels - 1) * a.yp + a.c) if pixels else 0,
        "taps": 0 if is_special(a) else 16 * a.rows * a.cols,
    }


@cache
def depthwise_kernel(cols: int, stride: int, narrow: bool) -> Native:
    """The kernel for undilated filters of ``cols`` columns at a stride, or (0, 0) for any.

    narrow: fewer than LANES channels.  Otherwise the last block of channels begins where it ends with the last channel,
    so that every vector is full.
    """
    pixels = SPECIAL.get((cols, stride), 4)
    name = f"depthwise_{cols}_{stride}" if cols else "depthwise"
    start, skipped = "0" if narrow else "min(b * LANES, c - LANES)", " + r_lo * dh" if cols else ""
    text = _HEAD.format(name=name, start=start, skipped=skipped)
    text += _tile(cols, stride, pixels, narrow, False) + "\n                else:\n"
    text += _tile(cols, stride, pixels, narrow, True) + _TAIL
    return native_source(text, name, FIELDS, extents=depthwise_reach, PIXELS=pixels, **scope_of(text))


def block_starts(c: int) -> list[int]:
    """First channel of every block of LANES."""
    return [max(min(b, c - LANES), 0) for b in range(0, c, LANES)]


def pack_taps(w: Array) -> Array:
    """[c, 1, spatial...] to [blocks][taps][LANES], a block per entry of `block_starts`."""
    c = w.shape[0]
    by_tap = np.zeros((max(c, LANES), int(np.prod(w.shape[1:]))), np.float32)
    by_tap[:c] = w.reshape(c, -1)
    out = aligned_zeros((len(block_starts(c)), by_tap.shape[1], LANES))
    for block, s in zip(out, block_starts(c), strict=True):
        block[:] = by_tap[s : s + LANES].T
    return out


NO_TAPS = np.zeros(1, np.int64)
"""For kernels of `SPECIAL` filters, which do not look."""


@pure
@cache
def tap_table(kernel: tuple[int, int], dilations: tuple[int, int], width: int) -> Array:
    """For every tap: pixels from the window's first input to this one, and columns of these."""
    r, s = (i.reshape(-1) for i in np.mgrid[: kernel[0], : kernel[1]])
    return np.stack([r * dilations[0] * width + s * dilations[1], s * dilations[1]], axis=1).astype(np.int64)


def accepts_depthwise(op: Conv, ins: Types) -> bool:
    """One filter for every channel, on a line or a plane."""
    if not accepts_conv(op, ins):
        return False
    x, w = ins[0], ins[1]
    return len(x.dims) in (3, 4) and op.group == x.dims[-1] == w.dims[0] and op.group > 1


SERIAL_FLOPS = PAYS_FLOPS // 4
"""Work under which a second thread costs more than it brings."""
CHUNK_BYTES = L2 * 3 // 32
"""Bytes of input rows under one output row that are swept together."""


def choose_chunk(c: int, line: int, rows: int, units: int, threads: int) -> int:
    """Channel blocks that are swept together: so many that their rows stay in cache and every thread has its share."""
    if is_followed((c, threads)) or threads > 1 or c % LANES:
        return _choose_chunk(c, line, rows, units, threads)
    fit: int = least(greatest(CHUNK_BYTES // greatest(line * rows * BYTES, 1), 4), 10)
    return -(-(c // LANES) // -(-(c // LANES) // fit))


@pure
def _choose_chunk(c: int, line: int, rows: int, units: int, threads: int) -> int:
    blocks = -(-c // LANES)
    fit = min(max(CHUNK_BYTES // max(line * rows * BYTES, 1), 4), 10)
    parts = -(-blocks // fit)
    if threads > 1 and units < 4 * threads:
        parts = max(parts, min(blocks, threads))
    chunk = -(-blocks // parts)
    # The last block overlaps the one before it, so the two must be activated together.
    while c % LANES and chunk < blocks and (blocks - 1) % chunk == 0:
        chunk += 1
    return chunk


def plane_fields(op: Any, x: TensorType, w: TensorType, out: TensorType) -> dict[str, Any]:
    """Fields that say where filters look on a plane, or on a line, which is a plane of one row."""
    images, *sizes, c = x.dims
    windows = op.windows(w.dims[2:]).resolved(sizes)
    ones = (1,) * (2 - len(sizes))
    (h, wd), (oh, ow) = (*ones, *sizes), (*ones, *out.dims[1:-1])
    (rows, cols), (sh, sw), (dh, dw) = ((*ones, *t) for t in (windows.kernel, windows.strides, windows.dilations))
    top, left = (windows.pads[0], windows.pads[1]) if len(sizes) == 2 else (0, windows.pads[0])
    return {
        "images": images, "h": h, "wd": wd, "c": c, "oh": oh, "ow": ow, "rows": rows, "cols": cols,
        "sh": sh, "sw": sw, "dh": dh, "dw": dw, "top": top, "left": left,
    }  # fmt: skip


@kernel(Conv, accepts=accepts_depthwise, rank=20)
def depthwise(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Vectors of channels, tiles of pixels along a row."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    plane = plane_fields(op, x, w, outs[0])
    c, wd, rows, cols, sw = (plane[name] for name in ("c", "wd", "rows", "cols", "sw"))
    special, last = is_special(SimpleNamespace(**plane)), bias_last(op, bias, c, context)

    def pack(bias: Array) -> Array:
        return pack_taps(np.broadcast_to(bias.reshape(-1), c))

    bias_at = known_bias(None if last else bias, panel_columns(c), context, ("depthwise bias", c), pack)
    parallel = context.threads > 1 and 2 * outs[0].size * rows * cols > SERIAL_FLOPS
    args: dict[str, Argument] = {
        "x": In(0), "w": context.packed(w.known, "depthwise", pack_taps), "bias": bias_at,
        "res": In(2) if last else In(3) if op.residual else None, "y": Out(0),
        "xp": Pitch(In(0)), "rp": Pitch(In(3)) if op.residual else 0, "yp": Pitch(Out(0)),
        "taps": NO_TAPS if special else tap_table((rows, cols), (plane["dh"], plane["dw"]), wd),
        "chunk": choose_chunk(c, wd, rows, plane["images"] * plane["oh"], either(parallel, context.threads, 1)),
        **plane, **finish(op.activation).args,
    }  # fmt: skip
    program = depthwise_kernel(cols if special else 0, sw if special else 0, c < LANES)
    return [Step(program, args, parallel, in_bands=True)]
