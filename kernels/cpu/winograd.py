"""Winograd convolution F(m x m, 3x3) for m = 6, 4, 2, channels last: 5.06, 4 or 2.25 times fewer multiplications.

Y = A' [sum over c of (G g G') * (B' d B)] A for every tile of m x m outputs and its (m+2) x (m+2) inputs d.  A block of
tiles is transformed, multiplied and transformed back before the next one, so that all of it stays in the second-level
cache.  Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015; points 0, 1, -1,
infinity for m = 2, also 2, -2 for m = 4, also 1/2, -1/2 for m = 6.

Greatest error against f64 over the greatest value of a layer, for all such layers of VGG-19, U-Net and ResNet-50 on
their activations: 4e-7 by direct sums in f32, 7e-7 for m = 2, 7e-6 for m = 4, 1e-5 for m = 6.

A tile's sum runs over the channels in order, whatever the block it is in: results do not depend on threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.conv import accepts_conv
from bolt_numba.kernels.cpu.epilogue import finish, put
from bolt_numba.kernels.cpu.lang import (
    BYTES,
    LANES,
    call_kernel,
    ceil_div,
    fma,
    load_i64,
    rows_strided,
    splat,
    split,
    store_i64,
    tile_rank1_rows,
    tile_store,
    tile_zeros,
    vload,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.pack import PANEL, aligned_empty, aligned_zeros, pack_taps, pack_winograd
from bolt_numba.kernels.cpu.sweep import MR, STEPS, VARIANTS
from bolt_numba.kernels.jit import F32, I64, PTR, Native, inline, inline_source, native_source
from bolt_numba.kernels.registry import (
    Argument,
    Context,
    In,
    Out,
    Pitch,
    Scratch,
    Step,
    Types,
    kernel,
    remember_last,
    result_of,
)
from bolt_numba.ops.conv import Conv
from bolt_numba.types import Array, TensorType

FIELDS = {
    "x": PTR, "u": PTR, "bias": PTR, "res": PTR, "y": PTR, "zeros": PTR, "xp": I64, "rp": I64, "yp": I64,
    "h": I64, "wd": I64, "c": I64, "oh": I64, "ow": I64, "k": I64, "top": I64, "left": I64,
    "across": I64, "down": I64, "tiles": I64, "blocks": I64,
    "work": PTR, "work_step": I64, "v": PTR, "v_step": I64, "v_row": I64, "v_plane": I64, "m_plane": I64,
    "phase": I64, "shared": I64, "lo": F32, "hi": F32, "act": PTR,
}  # fmt: skip
"""Parameters.  x: [images, h, wd, c], pixels ``xp`` elements apart · u: see `pack.winograd_filters` ·
bias: [panels * PANEL] · res, y: [images, oh, ow, k], pixels ``rp`` and ``yp`` apart (res may be 0) ·
zeros: c elements, read outside the image · top, left: begin pads · across, down: tiles of an image ·
tiles: of all images, in ``blocks`` even blocks.
work, v: workspace, ``work_step`` and ``v_step`` bytes to the next thread's · v_row, v_plane: bytes between tiles and
between the planes of transformed inputs · m_plane: the same of products.
phase: 1 transforms inputs, 2 multiplies and transforms back, 3 both · shared: 0 if threads divide the blocks, 1 if they
divide the work of each · act: see `epilogue.Finish`."""


@inline
def before6(d0, d1, d2, d3, d4, d5, d6, d7):
    """B' d."""
    first = fma(d4 - d2, splat(np.float32(5.25)), d0 - d6)
    last = fma(d3 - d5, splat(np.float32(5.25)), d7 - d1)
    s, t = fma(d4, splat(np.float32(-4.25)), d2 + d6), fma(d3, splat(np.float32(-4.25)), d1 + d5)
    p = fma(d2, splat(np.float32(0.25)), fma(d4, splat(np.float32(-1.25)), d6))
    q = fma(d5, splat(np.float32(4)), fma(d3, splat(np.float32(-5)), d1))
    u = fma(d2, splat(np.float32(4)), fma(d4, splat(np.float32(-5)), d6))
    v = fma(d1, splat(np.float32(4)), fma(d3, splat(np.float32(-5)), d5))
    half = splat(np.float32(0.5))
    return first, s + t, s - t, fma(q, half, p), p - q * half, fma(v, half, u), u - v * half, last


@inline
def after6(m0, m1, m2, m3, m4, m5, m6, m7):
    """A' m."""
    s, d, t, e, u, v = m1 + m2, m1 - m2, m3 + m4, m3 - m4, m5 + m6, m5 - m6
    return (
        m0 + s + (t + u),
        fma(v, splat(np.float32(0.5)), fma(e, splat(np.float32(2)), d)),
        fma(u, splat(np.float32(0.25)), fma(t, splat(np.float32(4)), s)),
        fma(v, splat(np.float32(0.125)), fma(e, splat(np.float32(8)), d)),
        fma(u, splat(np.float32(0.0625)), fma(t, splat(np.float32(16)), s)),
        fma(v, splat(np.float32(0.03125)), fma(e, splat(np.float32(32)), d + m7)),
    )


@inline
def before4(d0, d1, d2, d3, d4, d5):
    """B' d."""
    s, t = fma(d2, splat(np.float32(-4)), d4), fma(d1, splat(np.float32(-4)), d3)
    p, q = d4 - d2, d3 - d1
    first = fma(d0, splat(np.float32(4)), fma(d2, splat(np.float32(-5)), d4))
    last = fma(d1, splat(np.float32(4)), fma(d3, splat(np.float32(-5)), d5))
    two = q + q
    return first, s + t, s - t, p + two, p - two, last


@inline
def after4(m0, m1, m2, m3, m4, m5):
    """A' m."""
    s, d, t, e = m1 + m2, m1 - m2, m3 + m4, m3 - m4
    last = fma(e, splat(np.float32(8)), d + m5)
    return m0 + s + t, fma(e, splat(np.float32(2)), d), fma(t, splat(np.float32(4)), s), last


@inline
def before2(d0, d1, d2, d3):
    """B' d."""
    return d0 - d2, d1 + d2, d2 - d1, d3 - d1


@inline
def after2(m0, m1, m2, m3):
    """A' m."""
    return m0 + m1 + m2, m1 - m2 + m3


TRANSFORMS = {6: (before6, after6), 4: (before4, after4), 2: (before2, after2)}


def _product(mr: int) -> Any:
    """``mr`` rows of transformed inputs times one panel of filters."""

    @inline
    def product(a, lda, b, depth, to):
        acc = tile_zeros(mr, 2)
        rows = rows_strided(mr, a, lda)
        for q in range(depth):
            acc = tile_rank1_rows(acc, rows, 4 * q, b)
            b += 2 * BYTES
        tile_store(acc, to, 2 * BYTES)

    return product


def _products() -> Any:
    """``products(count, ...)``: all rows, by tiles of the compiled heights."""
    lines = ["def products(count, a, lda, b, depth, to):", "    i = 0", "    while i < count:"]
    lines += ["        left = count - i"]
    lines.append("        mr = MR if left >= 2 * MR else STEPS[left]")
    for mr in VARIANTS:
        lines.append(f"        {'if' if mr == VARIANTS[0] else 'elif'} mr == {mr}:")
        lines.append(f"            product{mr}(a + i * lda, lda, b, depth, to + i * 2 * BYTES)")
    lines.append("        i += mr")
    scope = {f"product{mr}": _product(mr) for mr in VARIANTS}
    return inline_source("\n".join(lines) + "\n", "products", MR=MR, STEPS=STEPS, BYTES=BYTES, **scope)


_BODY = """
def {name}(p, tid, nthreads):
    x_all, u, bias, res_all, y_all, zeros, lo, hi, act = p.x, p.u, p.bias, p.res, p.y, p.zeros, p.lo, p.hi, p.act
    xp, rp, yp, h, wd, c, oh, ow, k = 4 * p.xp, 4 * p.rp, 4 * p.yp, p.h, p.wd, p.c, p.oh, p.ow, p.k
    across, down, top, left, tiles, blocks = p.across, p.down, p.top, p.left, p.tiles, p.blocks
    v_row, v_plane, m_plane, phase, shared = p.v_row, p.v_plane, p.m_plane, p.phase, p.shared
    table = p.work + p.work_step * tid
    half = table + PLANES * 8
    products_at, v_at = half + PLANES * BYTES, p.v + p.v_step * tid
    panels, vectors = ceil_div(k, PANEL), ceil_div(c, LANES)
    first, last = (0, blocks) if shared == 1 else split(blocks, tid, nthreads)
    for block in range(first, last):
        begin = tiles * block // blocks
        count = tiles * (block + 1) // blocks - begin
        if phase & 1:
            f_lo, f_hi = (0, count * vectors) if shared == 0 else split(count * vectors, tid, nthreads)
            for i in range(f_lo // vectors, ceil_div(f_hi, vectors)):
                tile = begin + i
                image, ty, tx = tile // (down * across), tile // across % down, tile % across
                for a in range(SIDE):
                    row = ty * SIZE + a - top
                    for b in range(SIDE):
                        col = tx * SIZE + b - left
                        inside = (row >= 0) & (row < h) & (col >= 0) & (col < wd)
                        at = x_all + ((image * h + row) * wd + col) * xp
                        store_i64(table + 8 * (SIDE * a + b), at if inside else zeros)
                for j in range(max(f_lo - i * vectors, 0), min(f_hi - i * vectors, vectors)):
                    skip = 4 * min(j * LANES, c - LANES)
                    v = v_at + i * v_row + skip
{before}
        if phase & 2:
            j_lo, j_hi = (0, panels) if shared == 0 else split(panels, tid, nthreads)
            for j in range(j_lo, j_hi):
                filters = u + j * PLANES * c * PANEL * 4
                for plane in range(PLANES):
                    products(
                        count, v_at + plane * v_plane, v_row, filters + plane * c * PANEL * 4, c,
                        products_at + plane * m_plane,
                    )
                for i in range(count):
                    tile = begin + i
                    image, row, col = tile // (down * across), tile // across % down * SIZE, tile % across * SIZE
                    height, width = min(oh - row, SIZE), min(ow - col, SIZE)
                    pixel = (image * oh + row) * ow + col
                    for lane0 in range(0, min(k - j * PANEL, PANEL), LANES):
                        channel = j * PANEL + lane0
                        m = products_at + i * PANEL * 4 + 4 * lane0
                        n = k - channel
                        y, res = y_all + pixel * yp + 4 * channel, res_all + pixel * rp + 4 * channel
                        add = vload(bias + 4 * channel)
{after}
                    if act != 0:
                        for a in range(height):
                            at = y_all + (pixel + a * ow) * yp + 4 * j * PANEL
                            call_kernel(act, at, min(k - j * PANEL, PANEL) + (width << 32), yp)
"""


def _names(prefix: str, count: int) -> str:
    return ", ".join(f"{prefix}{i}" for i in range(count))


def _before_text(size: int) -> list[str]:
    """Load and transform the columns of a tile, then transform its rows and store them."""
    side = size + 2
    lines = ["for b in range(SIDE):"]
    lines += [f"    d{a} = vload(load_i64(table + 8 * b + {8 * side * a}) + skip)" for a in range(side)]
    lines.append(f"    {_names('e', side)} = before({_names('d', side)})")
    lines += [f"    vstore(half + BYTES * b + {side * a} * BYTES, e{a})" for a in range(side)]
    lines.append("for a in range(SIDE):")
    lines += [f"    d{b} = vload(half + SIDE * BYTES * a + {b} * BYTES)" for b in range(side)]
    lines.append(f"    {_names('e', side)} = before({_names('d', side)})")
    for b in range(side):
        lines += [f"    vstore(v, e{b})", "    v += v_plane"]
    return lines


def _after_text(size: int) -> list[str]:
    """Load products and transform their columns, then their rows; bias, residual, clamp; store what is inside."""
    side = size + 2
    lines = ["for b in range(SIDE):"]
    lines += [f"    d{a} = vload(m + m_plane * b + {side * a} * m_plane)" for a in range(side)]
    lines.append(f"    {_names('r', size)} = after({_names('d', side)})")
    lines += [f"    vstore(half + BYTES * b + {side * a} * BYTES, r{a})" for a in range(size)]
    lines.append("for a in range(height):")
    lines += [f"    d{b} = vload(half + SIDE * BYTES * a + {b} * BYTES)" for b in range(side)]
    lines.append(f"    {_names('r', size)} = after({_names('d', side)})")
    for b in range(size):
        guard = f"if {b} < width: " if b else ""
        lines.append(f"    {guard}put(r{b} + add, y + {b} * yp, res + {b} * rp, res_all, n, lo, hi)")
    lines += ["    y += ow * yp", "    res += ow * rp"]
    return lines


@cache
def winograd_kernel(size: int) -> Native:
    """The kernel of tiles of ``size`` x ``size`` outputs."""
    name = f"winograd_{size}"
    body = _BODY.format(
        name=name,
        before="\n".join(" " * 20 + line for line in _before_text(size)),
        after="\n".join(" " * 24 + line for line in _after_text(size)),
    )
    before, after = TRANSFORMS[size]
    return native_source(
        body, name, FIELDS, SIZE=size, SIDE=size + 2, PLANES=(size + 2) ** 2, LANES=LANES, BYTES=BYTES,
        PANEL=PANEL, put=put,
        before=before, after=after, products=_products(), ceil_div=ceil_div, split=split, load_i64=load_i64,
        store_i64=store_i64, vload=vload, vstore=vstore, call_kernel=call_kernel,
    )  # fmt: skip


G6 = np.array(
    [[90, 0, 0], [-20, -20, -20], [-20, 20, -20], [1, 2, 4], [1, -2, 4], [64, 32, 16], [64, -32, 16], [0, 0, 90]]
)
"""What transforms three taps for m = 6, times 90."""


def pack_filters(w: Array, size: int, threads: int) -> Array:
    """Filters [k, c, 3, 3] as the kernel multiplies them: [panels][planes][c][PANEL]."""
    if size != 6:
        return pack_winograd(w, size, threads)
    k, c = w.shape[:2]
    panels = -(-k // PANEL)
    out = aligned_empty((panels, 64, c, PANEL))
    both = (np.kron(G6, G6) / 8100).astype(np.float32)
    for j in range(panels):  # each a product of planes and taps
        part = pack_taps(w[j * PANEL : (j + 1) * PANEL], 1, threads).reshape(9, c, -1)
        out[j, :, :, part.shape[2] :] = 0
        out[j, :, :, : part.shape[2]] = np.tensordot(both, part, 1)
    return out


def pack_bias(k: int) -> Any:
    """One or k values to whole panels."""

    def pack(bias: Array) -> Array:
        out = aligned_zeros((-(-k // PANEL) * PANEL,))
        out[:k] = bias.reshape(-1)
        return out

    return pack


@cache
def zero_row(columns: int) -> Array:
    return aligned_zeros((columns,))


@dataclass(frozen=True, slots=True)
class Blocking:
    """How the tiles of a layer are divided; see `FIELDS`.  most: tiles of the largest block."""

    tiles: int
    blocks: int
    shared: bool
    c: int

    @property
    def most(self) -> int:
        return -(-self.tiles // self.blocks)

    @property
    def v_row(self) -> int:
        """An odd number of cache lines, so that the rows of a tile do not share a cache set."""
        return 64 * (-(-4 * self.c // 64) | 1)

    @property
    def v_plane(self) -> int:
        return 64 * (self.most * self.v_row // 64 | 1)

    @property
    def m_plane(self) -> int:
        return 64 * (-(-self.most * PANEL * 4 // 64) | 1)


BLOCK_BYTES = 448 * 1024
"""Bytes of transformed inputs and products that stay in the second-level cache beside a panel of filters."""
FILTER_BYTES = 12 * 1024 * 1024
"""Bytes of transformed filters from which threads divide them."""
SERIAL_PRODUCTS = 60_000
"""Input channels times results under which a second thread costs more than it brings."""
SHARED_BYTES = 16 * 1024 * 1024
"""Most bytes of transformed inputs of a block that threads share: it need not stay in a core's own cache."""


def choose_blocks(size: int, tiles: int, c: int, k: int, threads: int) -> Blocking:
    """Blocks that fit the cache, an equal number for every thread.

    Threads share one block, each with its part of the filters, where these are so much memory that it costs more if
    every thread reads them all than if each reads what the others have transformed.
    """
    tile_bytes = (size + 2) ** 2 * 4 * (c + PANEL)
    fit = max(BLOCK_BYTES // tile_bytes, 2 * MR)
    blocks = -(-tiles // fit)
    if threads == 1:
        return Blocking(tiles, blocks, False, c)
    panels = -(-k // PANEL)
    even = -(-panels // threads) * threads <= 1.15 * panels
    large = k > tiles and 4 * (size + 2) ** 2 * c * k > FILTER_BYTES
    if tiles < 2 * threads or (large and even and tiles * tile_bytes <= SHARED_BYTES):
        return Blocking(tiles, 1, True, c)
    return Blocking(tiles, -(-max(blocks, threads) // threads) * threads, False, c)


def steps(size: int, op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """The steps of a layer with tiles of a given size."""
    x, w, bias, _ = (*ins, None, None)[:4]
    assert x is not None
    assert w is not None
    assert w.known is not None
    (images, h, wd, c), k = x.dims, w.dims[0]
    oh, ow = outs[0].dims[1:-1]
    top, left = op.windows((3, 3)).resolved((h, wd)).pads[:2]
    down, across = -(-oh // size), -(-ow // size)
    parallel = context.threads > 1 and outs[0].size * c > SERIAL_PRODUCTS
    threads = context.threads if parallel else 1
    b = choose_blocks(size, images * down * across, c, k, threads)
    planes = (size + 2) ** 2
    work_step = planes * (8 + BYTES + b.m_plane)
    v_step = 0 if b.shared else planes * b.v_plane
    filters = context.packed(w.known, ("winograd", size), lambda w: pack_filters(w, size, context.threads))
    bias_at = zero_row(-(-k // PANEL) * PANEL)
    if bias is not None and bias.known is not None:
        bias_at = context.packed(bias.known, ("winograd bias", k), pack_bias(k))
    args: dict[str, Argument] = {
        "x": In(0), "u": filters, "bias": bias_at,
        "res": In(3) if op.residual else None, "y": Out(0), "zeros": zero_row(c),
        "xp": Pitch(In(0)), "rp": Pitch(In(3)) if op.residual else 0, "yp": Pitch(Out(0)),
        "h": h, "wd": wd, "c": c, "oh": oh, "ow": ow, "k": k, "top": top, "left": left,
        "across": across, "down": down, "tiles": b.tiles, "blocks": b.blocks,
        "work": Scratch(threads * work_step), "work_step": work_step,
        "v": Scratch(max(threads * v_step, planes * b.v_plane)), "v_step": v_step,
        "v_row": b.v_row, "v_plane": b.v_plane, "m_plane": b.m_plane,
        "phase": 3, "shared": int(b.shared), **finish(op.activation).args,
    }  # fmt: skip
    program = winograd_kernel(size)
    if not b.shared:
        return [Step(program, args, parallel)]
    return [Step(program, {**args, "phase": phase}, parallel) for phase in (1, 2)]


@remember_last
def is_winograd(op: Any, ins: Types) -> bool:
    """3x3, stride 1, undilated, one group, wide enough."""
    if not accepts_conv(op, ins):
        return False
    x, w = ins[:2]
    assert x is not None
    assert w is not None
    k, c, *kernel_shape = w.dims
    plain = max(op.strides, default=1) == 1 and max(op.dilations, default=1) == 1 and op.group == 1
    return plain and kernel_shape == [3, 3] and c >= LANES and k >= LANES


TRANSFORM_CYCLES = {6: (400, 600), 4: (200, 300), 2: (65, 85)}
"""Cycles to transform one tile of one vector of inputs, and of products.  Measured on Zen 4."""
STREAM = 8
"""Bytes of filters per cycle that come from memory."""
MOST_FILTERS = 20 * 1024 * 1024
"""Bytes of filters over which tiles of 6x6 are left to tuning: a few per cent of the time for 1.8 times the memory."""
WORTH = 0.97
"""Part of the cost of smaller tiles from which larger ones, whose results are less exact, are taken."""


def cost(size: int, pixels: tuple[int, int, int], c: int, k: int) -> float:
    """Estimated cycles for [images, oh, ow] results; size 0: the direct sum."""
    images, oh, ow = pixels
    if size == 0:
        return max(1.03 * images * oh * ow * 9 * c * -(-k // LANES), 36 * c * k / STREAM)
    tiles, panels, planes = images * -(-oh // size) * -(-ow // size), -(-k // PANEL), (size + 2) ** 2
    products = planes * c * panels * max(2.08 * tiles, 5, PANEL * 4 / STREAM)
    inputs, results = TRANSFORM_CYCLES[size]
    return products + tiles * (-(-c // LANES) * inputs + 2 * panels * results)


@remember_last
def best_size(op: Any, ins: Types) -> int:
    """Tile size of least cost; 0 when the direct sum is as fast or no Winograd algorithm applies."""
    if not is_winograd(op, ins):
        return 0
    x, w = ins[:2]
    assert x is not None
    assert w is not None
    k, c = w.dims[:2]
    images, oh, ow = result_of(op, ins).dims[:3]
    costs = {size: cost(size, (images, oh, ow), c, k) for size in (0, 2, 4, 6)}
    if costs[6] < WORTH * min(costs[4], costs[2]) and 4 * 64 * c * k <= MOST_FILTERS:
        best = 6
    else:
        best = 4 if costs[4] < costs[2] else 2
    return best if costs[best] < 0.92 * costs[0] else 0


def prefers_6(op: Any, ins: Types) -> bool:
    return best_size(op, ins) == 6


def prefers_4(op: Any, ins: Types) -> bool:
    return best_size(op, ins) == 4


def prefers_2(op: Any, ins: Types) -> bool:
    return best_size(op, ins) == 2


@kernel(Conv, accepts=prefers_6, works=is_winograd, rank=11, by_types=True)
def winograd_6(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Tiles of 6x6 outputs."""
    return steps(6, op, ins, outs, context)


@kernel(Conv, accepts=prefers_4, works=is_winograd, rank=10, by_types=True)
def winograd_4(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Tiles of 4x4 outputs."""
    return steps(4, op, ins, outs, context)


@kernel(Conv, accepts=prefers_2, works=is_winograd, rank=9, by_types=True)
def winograd_2(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Tiles of 2x2 outputs."""
    return steps(2, op, ins, outs, context)
