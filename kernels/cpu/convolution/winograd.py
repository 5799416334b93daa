"""Winograd convolution F(m x m, 3x3) for m = 6, 4, 2, channels last: 5.06, 4 or 2.25 times fewer multiplications.

Y = A' [sum over c of (G g G') * (B' d B)] A for every tile of m x m outputs and its (m+2) x (m+2) inputs d; filters of
three taps along one axis (1-D, 1x3, 3x1) have tiles of m outputs, and 2.25, 2 or 1.5 times fewer.  A block of tiles is
transformed, multiplied and transformed back before the next one, so that all of it stays in the second-level cache.
Filters of three axes are those of two with more channels, and dilated ones those of smaller images: `winograd_layers`.

Results round more than direct sums do, in proportion to the largest value of their tile: `winograd_error` bounds by how
much, and docs/numerics.md says which sessions take which tiles.

A tile's sum runs over the channels in order, in blocks of `TERMS`, whatever the block of tiles it is in: results do not
depend on threads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.base.selects import either, greatest, least
from bolt_numba.base.types import F32, Array
from bolt_numba.kernels.cpu.convolution.winograd_error import error_of, greatest_error
from bolt_numba.kernels.cpu.convolution.winograd_layers import flat_dims, flat_filters, is_winograd, layer_of
from bolt_numba.kernels.cpu.convolution.winograd_repair import winograd_repair
from bolt_numba.kernels.cpu.convolution.winograd_transforms import (
    FIELDS,
    TRANSFORMS,
    after_text,
    before_text,
    first_of,
    keep_apart,
    pack_filters,
    reach,
    recovery,
    sides,
)
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    prefetch_second,
    rows_strided,
    tile_add_tile,
    tile_load,
    tile_rank1_rows,
    tile_store,
    tile_zeros,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import L2, L3, LINE_CYCLES, PAYS_FLOPS, STREAM, TRANSFORM_CYCLES
from bolt_numba.kernels.cpu.products.epilogue import finish, put
from bolt_numba.kernels.cpu.products.matmul import known_bias, zero_bias
from bolt_numba.kernels.cpu.products.pack import PANEL, TERMS, padded_bias
from bolt_numba.kernels.cpu.products.sweep import MR, STEPS, VARIANTS
from bolt_numba.kernels.jit import Inline, Native, inline, inline_source, native_source
from bolt_numba.kernels.registry import (
    MOST_ERROR,
    Argument,
    Context,
    Error,
    In,
    Out,
    Outs,
    Pitch,
    Scratch,
    Step,
    Types,
    kernel,
    once,
    result_of,
)
from bolt_numba.kernels.unseen import content, derived
from bolt_numba.ops.layers.products.conv import Conv


def _product(mr: int) -> Inline:
    """``mr`` rows of transformed inputs times one panel of filters."""

    @inline
    def product(a, lda, b, depth, to, ahead, step):
        rows = rows_strided(mr, a, lda)
        for first in range(0, depth, TERMS):
            acc = tile_zeros(mr, 2)
            for q in range(min(TERMS, depth - first)):
                acc = tile_rank1_rows(acc, rows, 4 * first + 4 * q, b)
                prefetch_second(ahead)
                ahead += step
                b += 2 * BYTES
            if first > 0:
                acc = tile_add_tile(acc, tile_load(mr, 2, to, 2 * BYTES))
            tile_store(acc, to, 2 * BYTES)

    return product


def _products() -> Inline:
    """``products(count, ...)``: all rows, by tiles of the compiled heights.

    While a plane of filters is multiplied, the next one is brought to the second-level cache, a part with every tile;
    where that would be more than a cache line at a time, the processor's own prefetches are left alone.
    """
    lines = ["def products(count, a, lda, b, depth, to):", "    i, tiles = 0, ceil_div(count, MR)"]
    lines += ["    ahead, step = b + 2 * BYTES * depth, 2 * BYTES // tiles if 64 * tiles >= 2 * BYTES else 0"]
    lines += ["    while i < count:", "        left = count - i"]
    lines.append("        mr = MR if left >= 2 * MR else STEPS[left]")
    for mr in VARIANTS:
        lines.append(f"        {'if' if mr == VARIANTS[0] else 'elif'} mr == {mr}:")
        lines.append(f"            product{mr}(a + i * lda, lda, b, depth, to + i * 2 * BYTES, ahead, step)")
    lines += ["        i += mr", "        ahead += step * depth"]
    scope = {f"product{mr}": _product(mr) for mr in VARIANTS}
    source = "\n".join(lines) + "\n"
    return inline_source(source, "products", MR=MR, STEPS=STEPS, **scope, **scope_of(source))


_BODY = """
def {name}(p, tid, nthreads):
    x_all, u, bias, res_all, y_all, zeros, lo, hi, act = p.x, p.u, p.bias, p.res, p.y, p.zeros, p.lo, p.hi, p.act
    xp, rp, yp, h, wd, c, oh, ow, k = 4 * p.xp, 4 * p.rp, 4 * p.yp, p.h, p.wd, p.c, p.oh, p.ow, p.k
    deep, terms = p.deep, p.deep * c
    across, down, top, left, tiles, blocks = p.across, p.down, p.top, p.left, p.tiles, p.blocks
    dy, dx = p.dy, p.dx
    y_pixel, res_pixel, y_row, res_row = dx * yp, dx * rp, dy * ow * yp, dy * ow * rp
    v_row, v_plane, m_plane, phase, shared = p.v_row, p.v_plane, p.m_plane, p.phase, p.shared
    table = p.work + p.work_step * tid
    half = table + PLANES * 8
    products_at, v_at = half + PLANES * BYTES, p.v + p.v_step * tid
    each, panels, zero = ceil_div(c, LANES), ceil_div(k, PANEL), splat(np.float32(0))
    vectors = deep * each
    first, last = (0, blocks) if shared == 1 else split(blocks, tid, nthreads)
    for block in range(first, last):
        begin = tiles * block // blocks
        count = tiles * (block + 1) // blocks - begin
        if phase & 1:
            f_lo, f_hi = (0, count * vectors) if shared == 0 else split(count * vectors, tid, nthreads)
            for i in range(f_lo // vectors, ceil_div(f_hi, vectors)):
                tile = begin + i
                image = tile // (down * across)
                first_row, first_col = first_of(tile // across % down, ROWS, dy), first_of(tile % across, COLUMNS, dx)
                for t in range(deep):
                    units = i * vectors + t * each
                    c_lo, c_hi = max(f_lo - units, 0), min(f_hi - units, each)
                    if c_lo < c_hi:
                        seen = load_i32(p.slices + 4 * (image * deep + t))
                        for a in range(HIGH):
                            row = first_row + a * dy - top
                            for b in range(WIDE):
                                col = first_col + b * dx - left
                                inside = (seen >= 0) & (row >= 0) & (row < h) & (col >= 0) & (col < wd)
                                at = x_all + ((seen * h + row) * wd + col) * xp
                                store_i64(table + 8 * (WIDE * a + b), at if inside else zeros)
                    for j in range(c_lo, c_hi):
                        skip = 4 * min(j * LANES, c - LANES)
                        v = v_at + i * v_row + 4 * c * t + skip
{before}
        if phase & 2:
            j_lo, j_hi = (0, panels) if shared == 0 else split(panels, tid, nthreads)
            for j in range(j_lo, j_hi):
                filters = u + j * PLANES * terms * PANEL * 4
                for plane in range(PLANES):
                    products(
                        count, v_at + plane * v_plane, v_row, filters + plane * terms * PANEL * 4, terms,
                        products_at + plane * m_plane,
                    )
                for i in range(count):
                    tile = begin + i
                    image = tile // (down * across)
                    row, col = first_of(tile // across % down, ROWS, dy), first_of(tile % across, COLUMNS, dx)
                    height, width = min(ceil_div(oh - row, dy), ROWS), min(ceil_div(ow - col, dx), COLUMNS)
                    if row >= oh or col >= ow:
                        continue
                    pixel, odd = (image * oh + row) * ow + col, zero
                    for lane0 in range(0, min(k - j * PANEL, PANEL), LANES):
                        channel = j * PANEL + lane0
                        m = products_at + i * PANEL * 4 + 4 * lane0
                        n = k - channel
                        y, res = y_all + pixel * yp + 4 * channel, res_all + pixel * rp + 4 * channel
                        add = vload(bias + 4 * channel)
{after}
                    if not all_lanes(odd == odd):
                        call_kernel(p.repair, address_of(p), tile, j)
                    if act != 0:
                        for a in range(height):
                            at = y_all + pixel * yp + a * y_row + 4 * j * PANEL
                            call_activation(act, at, min(k - j * PANEL, PANEL) + (width << 32), y_pixel)
"""


@cache
def winograd_kernel(sizes: tuple[int, int]) -> Native:
    """The kernel of tiles of ``sizes`` outputs."""
    name, (high, wide) = f"winograd_{sizes[0]}x{sizes[1]}", sides(sizes)
    body = _BODY.format(
        name=name,
        before="\n".join(" " * 24 + line for line in before_text(sizes)),
        after="\n".join(" " * 24 + line for line in after_text(sizes)),
    )
    before, after = TRANSFORMS[max(sizes)]
    return native_source(
        body, name, FIELDS, extents=reach,
        ROWS=sizes[0], COLUMNS=sizes[1], HIGH=high, WIDE=wide, PLANES=high * wide, PANEL=PANEL, put=put,
        first_of=first_of, before=before, after=after, products=_products(), **scope_of(body),
    )  # fmt: skip


@record(frozen=True)
class Blocking:
    """How the tiles of a layer are divided; see `winograd_transforms.FIELDS`.  most: tiles of the largest block."""

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


LEAST_TILES = 24
"""Tiles that share a panel of filters, although they may not fit: filters come from further away."""
BLOCK_BYTES = L2 * 7 // 16
"""Bytes of transformed inputs and products that stay in the second-level cache beside a panel of filters."""
FILTER_BYTES = L3 * 3 // 8
"""Bytes of transformed filters from which threads divide them."""
SERIAL_PRODUCTS = PAYS_FLOPS * 3 // 20
"""Input channels times results under which a second thread costs more than it brings."""
SHARED_BYTES = L3 // 2
"""Most bytes of transformed inputs of a block that threads share: it need not stay in a core's own cache."""


def choose_blocks(planes: int, tiles: int, c: int, k: int, threads: int) -> Blocking:
    """Blocks that fit the cache, an equal number for every thread.

    Threads share one block, each with its part of the filters, where these are so much memory that it costs more if
    every thread reads them all than if each reads what the others have transformed.
    """
    tile_bytes = planes * 4 * (c + PANEL)
    fit = max(BLOCK_BYTES // tile_bytes, LEAST_TILES)
    blocks = -(-tiles // fit)
    panels = -(-k // PANEL)
    even = (-(-panels // threads) * threads * 100 <= 115 * panels) & (4 * planes * c * k > FILTER_BYTES)
    shared = (tiles < 2 * threads) | even & (k > tiles) & (tiles * tile_bytes <= SHARED_BYTES)
    shared = (threads > 1) & shared
    return Blocking(tiles, either(shared, 1, -(-greatest(blocks, threads) // threads) * threads), shared, c)


def packed_filters(size: int, threads: int, w: Array) -> Array:
    """See `pack_filters`; for filters of any number of axes."""
    flat = flat_filters(w)
    with np.errstate(invalid="ignore"):
        made = pack_filters(flat, size, threads)
        if not np.isfinite(flat.sum(dtype=np.float64)):
            keep_apart(flat, size, made)
    return made


def tile_sizes(size: int, taps: Sequence[int]) -> tuple[int, int]:
    """Outputs of a tile along both axes, ``size`` where the filter has three taps."""
    high, wide = (1, *taps)[-2:]
    return size if high == 3 else 1, size if wide == 3 else 1


def steps(size: int, op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """The steps of a layer with tiles of a given size."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    layer, (k, terms, *_), c = layer_of(op, x, w, outs[0]), flat_dims(w.dims), x.dims[-1]
    sizes = tile_sizes(size, layer.taps)
    (down, across), planes = layer.tiles(sizes), math.prod(sides(sizes))
    parallel = context.threads > 1 and outs[0].size * terms > SERIAL_PRODUCTS
    threads = either(parallel, context.threads, 1)
    b = choose_blocks(planes, layer.images * down * across, terms, k, threads)
    work_step = planes * (8 + BYTES + b.m_plane)
    filters = context.packed(w.known, ("winograd", size), partial(packed_filters, size, context.threads))
    columns = -(-k // PANEL) * PANEL
    bias_at = known_bias(bias, columns, context, ("winograd bias", k), padded_bias(k, k, columns))
    args: dict[str, Argument] = {
        "x": In(0), "u": filters, "bias": bias_at,
        "res": In(3) if op.residual else None, "y": Out(0), "zeros": zero_bias(c),
        "xp": Pitch(In(0)), "rp": Pitch(In(3)) if op.residual else 0, "yp": Pitch(Out(0)),
        "slices": layer.slices, "deep": layer.deep, "h": layer.h, "wd": layer.wd, "c": c, "oh": layer.oh,
        "ow": layer.ow, "k": k, "top": layer.top, "left": layer.left, "dy": layer.dy, "dx": layer.dx,
        "across": across, "down": down, "tiles": b.tiles, "blocks": b.blocks,
        "work": Scratch(threads * work_step), "work_step": work_step,
        "v": Scratch(either(b.shared, 1, threads) * planes * b.v_plane),
        "v_step": either(b.shared, 0, planes * b.v_plane),
        "v_row": b.v_row, "v_plane": b.v_plane, "m_plane": b.m_plane,
        "phase": either(b.shared, 1, 3), "shared": either(b.shared, 1, 0), "repair": winograd_repair,
        "rows": sizes[0], "columns": sizes[1], "recovery": recovery(sizes), **finish(op.activation).args,
    }  # fmt: skip
    program = winograd_kernel(sizes)
    steps = [Step(program, args, parallel)]
    if b.shared is not False:
        steps.append(Step(program, {**args, "phase": 2}, parallel, when=b.shared))
    return steps


MOST_FILTERS = {6: 20 * 1024 * 1024, 4: 64 * 1024 * 1024}
"""Bytes of filters over which larger tiles are left to tuning: they are 1.8 or 2.3 times the memory of smaller ones."""
WORTH = 0.97 if LANES == 16 else 0.9
"""Part of the cost of smaller tiles from which tiles of 6, whose results are less exact, are taken.  With 16 registers
they take longer than estimated."""


@lru_cache(maxsize=1024)
def _estimates(taps: tuple[int, int], c: int, k: int) -> list[tuple[int, int, int, float, float, int]]:
    """What cycles of a layer follow from, a row for each size of tiles.

    That is the size, the outputs of a tile along both axes, cycles of the products of a tile, the least ones of all
    products, and cycles of the transforms of a tile.
    """
    made, panels = [], -(-k // PANEL)
    for size in (2, 4, 6):
        sizes = tile_sizes(size, taps)
        terms = math.prod(sides(sizes)) * c
        if 4 * terms * k <= MOST_FILTERS.get(size, 4 * terms * k):
            inputs, results = (LINE_CYCLES if min(sizes) == 1 else TRANSFORM_CYCLES)[size]
            least_of_all = terms * panels * max(5, PANEL * 4 / STREAM)
            transforms = -(-c // LANES) * inputs + 2 * panels * results
            made.append((size, *sizes, 2.08 * terms * panels, least_of_all, transforms))
    return made


def costs(layer: Sequence[int], taps: tuple[int, int], c: int, k: int) -> dict[int, float]:
    """Estimated cycles by tile size of a layer with so many channels in a transformed tile; 0: the direct sum.

    layer: images, and outputs and dilations along both axes.
    """
    images, oh, ow, dy, dx = layer
    terms = math.prod(taps) * c
    found: dict[int, float] = {0: greatest(1.03 * images * oh * ow * terms * -(-k // LANES), 4 * terms * k / STREAM)}
    for size, high, wide, product, least_of_all, transforms in _estimates(taps, c, k):
        tiles = images * dy * -(-oh // (dy * high)) * dx * -(-ow // (dx * wide))
        found[size] = greatest(product * tiles, least_of_all) + tiles * transforms
    return found


def _best_size(most: int, layer: tuple[int, ...], taps: tuple[int, int], c: int, k: int) -> int:
    estimates = costs(layer, taps, c, k)
    cost, limit = estimates[2], 0.92 * estimates[0]
    size: int = 2
    if 4 in estimates:
        size, cost = either(estimates[4] < cost, 4, 2), least(cost, estimates[4])
    size = either(cost < limit, size, 0)
    if most == 6 and 6 in estimates:
        size = either(estimates[6] < WORTH * cost, either(estimates[6] < limit, 6, 0), size)
    return size


@pure
def _part_of_direct(size: int, layer: tuple[int, ...], taps: tuple[int, int], c: int, k: int) -> float:
    estimates = costs(layer, taps, c, k)
    return estimates[size] / estimates[0]


@once
def _estimated(op: Conv, ins: Types) -> tuple[Any, ...]:
    """What estimates follow from: the layer, its taps and channels."""
    x, w = ins[0], ins[1]
    k, c, *_ = flat_dims(w.dims)
    found = layer_of(op, x, w, result_of(op, ins))
    return (found.images, found.oh, found.ow, found.dy, found.dx), found.taps, c, k


def best_size(op: Conv, ins: Types, most: int = 6) -> int:
    """Tile size of least cost, up to one; 0 when the direct sum is as fast or no Winograd algorithm applies.

    Tiles of 6 must be worth it.
    """
    return _best_size(most, *_estimated(op, ins)) if is_winograd(op, ins) else 0


def part_of_direct(op: Conv, ins: Types, size: int) -> float:
    """What tiles of a size cost, over the direct sum."""
    return _part_of_direct(size, *_estimated(op, ins))


def prefers_6(op: Conv, ins: Types) -> bool:
    return best_size(op, ins) == 6


def prefers_4(op: Conv, ins: Types) -> bool:
    """Whether tiles of 4 are the best but for those of 6, which may not be exact enough."""
    return best_size(op, ins, 4) == 4


def prefers_2(op: Conv, ins: Types) -> bool:
    """The same of tiles of 2."""
    return best_size(op, ins, 4) == 2


def error(size: int) -> Error:
    """The bound of `winograd_error` for a layer's filters."""

    def of(op: Conv, ins: Types, context: Context) -> float:
        w = ins[1]
        bound = greatest_error(size, flat_dims(w.dims))
        if bound <= MOST_ERROR:
            return bound
        bounds = derived(w.known, ("winograd error", size), lambda w: error_of(flat_filters(w), size), F32)
        return float(content(bounds)[0])

    return of


@kernel(Conv, accepts=prefers_6, works=is_winograd, rank=11, numerics="default", error=error(6))
def winograd_6(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Tiles of 6 outputs along each axis."""
    return steps(6, op, ins, outs, context)


@kernel(Conv, accepts=prefers_4, works=is_winograd, rank=10, numerics="default", error=error(4))
def winograd_4(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Tiles of 4 outputs along each axis."""
    return steps(4, op, ins, outs, context)


@kernel(Conv, accepts=prefers_2, works=is_winograd, rank=9, numerics="default", error=error(2))
def winograd_2(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Tiles of 2 outputs along each axis."""
    return steps(2, op, ins, outs, context)
