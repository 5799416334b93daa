"""Packing of weights and of second operands: panels of columns for register tiles, filters for Winograd.

A panel is [K][PANEL], zero-padded; the last one is half as wide where half is enough.  Sources are read where they lie,
broadcasts (stride 0) too.  Work is shared by panels, and runs at the speed of memory.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.files.mapped import drop_pages
from bolt_numba.base.follow import pure
from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.selects import filled, greatest, is_filled
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    fma,
    lanes_below,
    load_f32,
    load_i32,
    select,
    splat,
    split,
    vload_n,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_BYTES
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.jit import F32, I64, PTR, Inline, Native, inline, inline_source, native, native_source
from bolt_numba.kernels.registry import Context

PANEL = 2 * LANES
"""Columns of a full panel."""
TERMS = 256
"""Terms of a sum that are added in order; then a new sum begins, which is added to those before.  The error of long
sums grows with the root of half this number plus that of the sums, not with the root of half their length."""


def choose_terms(context: Context) -> int:
    """The same for products and direct convolutions: each new sum takes 30 cycles a tile, 2 % where they are short."""
    return TERMS if context.numerics == "strict" else 4 * TERMS


def panel_columns(n: int) -> int:
    """Columns of packed storage for n columns."""
    return -(-n // LANES) * LANES


def aligned_empty(shape: Sequence[int]) -> Array:
    """f32 of any content that begin at a cache line."""
    return line_aligned(4 * math.prod(shape)).view(np.float32).reshape(shape)


def aligned_zeros(shape: Sequence[int]) -> Array:
    """f32 zeros that begin at a cache line."""
    made = aligned_empty(shape)
    made.fill(0)
    return made


def _transpose() -> Inline:
    """``transpose(a, ld, n, count, alpha, to, rows, step)``: n vectors of count elements, each element times alpha.

    Elements of index q of the vectors at ``a + i * ld`` go to ``to + step * rows[q]`` (i32), zeros behind the n-th.
    """
    lines = ["def transpose(a, ld, n, count, alpha, to, rows, step):"]
    lines += [f"    v{i} = vload_n(a + {i} * ld, count if n > {i} else 0) * alpha" for i in range(LANES)]
    half, distance = LANES // 2, 1
    while distance < LANES:
        for i in range(half):
            lines.append(f"    w{2 * i} = interleave_low(v{i}, v{i + half})")
            lines.append(f"    w{2 * i + 1} = interleave_high(v{i}, v{i + half})")
        lines += [f"    v{i} = w{i}" for i in range(LANES)]
        distance *= 2
    for i in range(LANES):
        lines += [f"    if count > {i}:", f"        vstore(to + step * load_i32(rows + {4 * i}), v{i})"]
    text = "\n".join(lines) + "\n"
    return inline_source(text, "transpose", **scope_of(text))


transpose = _transpose()


@inline
def read_columns(source, row, column, count, have, width, alpha, to, rows):
    """Pack ``width`` columns of ``count`` source rows: element (q, j) times alpha at ``to``, row ``rows[q]``, column j.

    Zeros behind column ``have``.  row, column: bytes between elements of the source: column is 4 or 0, or row is 4.
    """
    if column == 4:
        for q in range(count):
            at = to + 4 * width * load_i32(rows + 4 * q)
            for v in range(0, width, LANES):
                vstore(at + 4 * v, vload_n(source + 4 * v, have - v) * alpha)
            source += row
    elif column == 0:
        zero = splat(np.float32(0))
        for q in range(count):
            at = to + 4 * width * load_i32(rows + 4 * q)
            value = splat(load_f32(source + row * q)) * alpha
            for v in range(0, width, LANES):
                vstore(at + 4 * v, select(lanes_below(have - v), value, zero))
    else:
        for q in range(0, count, LANES):
            for v in range(0, width, LANES):
                transpose(
                    source + column * v + 4 * q, column, have - v, count - q, alpha, to + 4 * v, rows + 4 * q, 4 * width
                )


ROWS_AT_ONCE = 32
"""Source rows that are read along all columns before the next ones: what one row of B has is read as one stream."""


def _beyond(rows: Array, k: int) -> int:
    """Rows that are not there, up to the last one that the table names."""
    if is_filled(rows):
        return greatest(rows.greatest + 1 - k, 0)  # type: ignore[attr-defined, no-any-return]
    return _beyond_last(rows, k)


@pure
def _beyond_last(rows: Array, k: int) -> int:
    return max(int(rows[:k].max(initial=0)) + 1 - k, 0)


def _packed(a: Any) -> dict[str, Reach]:
    size = 4 * a.k * panel_columns(a.n) * a.blocks
    beyond = _beyond(a.rows, a.k)
    source = box(4, (a.blocks, a.block), (a.k, a.row), (a.n, a.column))
    return {"b": source, "to": size + 4 * PANEL * beyond if size else 0, "rows": 4 * a.k}


@native(
    b=PTR, to=PTR, blocks=I64, block=I64, rows=PTR, k=I64, n=I64, row=I64, column=I64, alpha=F32, extents=_packed
)  # fmt: skip
def pack_b(p, tid, nthreads):
    """Panels of ``blocks`` matrices: element (q, j) is at ``b + block * its number + row * q + column * j`` bytes.

    rows: i32 [k], where source row q goes; alpha: factor.  row, column: see `read_columns`.
    """
    k, n, row, column = p.k, p.n, p.row, p.column
    full = n // PANEL
    rest = n - full * PANEL
    tail = 0 if rest == 0 else (LANES if rest <= LANES else PANEL)
    panels = full + (1 if rest > 0 else 0)
    size = 4 * k * (full * PANEL + tail)
    lo, hi = split(p.blocks * panels, tid, nthreads)
    part = ROWS_AT_ONCE if column == 4 else k
    for begin in range(0, k, max(part, 1)):
        for unit in range(lo, hi):
            block, j = unit // panels, unit % panels
            source = p.b + p.block * block + column * PANEL * j + row * begin
            width = PANEL if j < full else tail
            to = p.to + size * block + 4 * k * PANEL * j
            have = min(n - PANEL * j, width)
            read_columns(source, row, column, min(part, k - begin), have, width, p.alpha, to, p.rows + 4 * begin)


def source_rows(taps: int, depth: int) -> Array:
    """Where row (depth, tap) of filters goes when taps come first: i32."""
    if taps != 1:
        return _source_rows(taps, depth)
    args = {"first": 0, "step": 1, "count": depth}
    made: Array = filled("counts", args, (depth,), np.int32, (0, depth - 1), (_source_rows, (taps, depth)))
    return made


@pure
@lru_cache(maxsize=256)
def _source_rows(taps: int, depth: int) -> Array:
    return np.ascontiguousarray(np.arange(taps * depth, dtype=np.int32).reshape(taps, depth).T).reshape(-1)


def run_shares(kernel: Native, threads: int, nbytes: int, **values: Any) -> None:
    """Run a kernel now, on up to ``threads`` threads when it writes much; on fewer when the system gives no more."""
    record = kernel.record(**values)
    threads = min(threads, 1 + nbytes // SHARED_BYTES)

    def share(tid: int, arrays: Any = values) -> None:
        """Holds the arrays, as an interrupt may end the caller while others still write to them."""
        kernel.call(record, tid, threads)

    others, mine = [], [0]
    for tid in range(1, threads):
        other = threading.Thread(target=share, args=(tid,))
        try:
            other.start()
        except RuntimeError:
            mine.append(tid)
        else:
            others.append(other)
    for tid in mine:
        share(tid)
    for other in others:
        other.join()


SHARED_BYTES = 4 * PAYS_BYTES
"""Bytes to pack for each further thread."""


PACKED_AT_ONCE = 1 << 25
"""Bytes that are packed at a time where that makes sense."""


def packable(source: Array) -> tuple[Array, Sequence[int]]:
    """[..., K, N] of any dtype and strides as f32 that `read_columns` reads, and bytes between its elements."""
    source = source.astype(np.float32, copy=False)
    strides = [4 if count == 1 else s for count, s in zip(source.shape, source.strides, strict=True)]
    if strides[-2] == 4 or strides[-1] in (0, 4):
        return source, strides
    source = np.ascontiguousarray(source)
    return source, source.strides


def padded_bias(columns: int, width: int, padded: int) -> Callable[[Array], Array]:
    """Packs a bias of ``columns`` (or one) values in blocks of ``width``, each padded to ``padded``."""

    def pack(bias: Array) -> Array:
        blocks = -(-columns // max(width, 1))
        full, out = np.zeros(blocks * width, np.float32), aligned_zeros((blocks, padded))
        full[:columns] = bias.reshape(-1)
        out[:, :width] = full.reshape(blocks, width)
        return out

    return pack


def pack_panels(source: Array, rows: Array | None = None, alpha: float = 1.0, threads: int = 1) -> Array:
    """[..., K, N] of any strides to [..., K * panel_columns(N)] f32: panel after panel, zeros behind the last column.

    rows: see `pack_b`; None for the same order.
    """
    *lead, k, n = source.shape
    blocks = math.prod(lead)
    out = aligned_empty((*lead, k * panel_columns(n)))
    if out.size == 0:
        return out
    source, (block, row, column) = packable(source.reshape(blocks, k, n))
    order = source_rows(1, k) if rows is None else rows
    # A large weight whose columns lie apart in its file: what has been packed need not stay in memory.
    part = max(PACKED_AT_ONCE // (4 * k * PANEL), 1) * PANEL if blocks == 1 and row == 4 else n
    flat = out.reshape(-1)
    for first in range(0, n, part):
        some = source[:, :, first : first + part]
        run_shares(
            pack_b, threads, some.nbytes, b=some, to=flat[first * k :], blocks=blocks, block=block, rows=order, k=k,
            n=some.shape[2], row=row, column=column, alpha=alpha,
        )  # fmt: skip
        if part < n:
            drop_pages(some)
    return out


def pack_taps(w: Array, groups: int, threads: int = 1, pack: Any = pack_panels) -> Array:
    """Filters [k, c/g, spatial...] to panels of each group, made by ``pack``: K is taps, then channels."""
    k, depth = w.shape[:2]
    by_group = w.reshape(groups, k // groups, -1).swapaxes(1, 2)
    made: Array = pack(by_group, source_rows(by_group.shape[1] // max(depth, 1), depth), threads=threads)
    return made


# ------------------------------------------------------------------------------------------------------------- Winograd


LOW, HIGH = 11 / 16, 23 / 16
"""Points of tiles of 4 besides 0 and infinity, with either sign; see `winograd_transforms`."""


@inline
def filter4(g0, g1, g2):
    """G g times `FILTER_SCALE`."""
    s, p = fma(g2, splat(np.float32(LOW * LOW)), g0), fma(g2, splat(np.float32(HIGH * HIGH)), g0)
    low, high = splat(np.float32(LOW)), splat(np.float32(HIGH))
    return g0, fma(g1, low, s), s - g1 * low, fma(g1, high, p), p - g1 * high, g2


@inline
def filter2(g0, g1, g2):
    """G g times `FILTER_SCALE`."""
    s = g0 + g2
    return g0 + g0, s + g1, s - g1, g2 + g2


_APART = 2 * (LOW**2 - HIGH**2)
FILTER_SCALE = {
    4: ((LOW * HIGH) ** 2, *(LOW**2 * _APART,) * 2, *(-(HIGH**2) * _APART,) * 2, 1.0),
    2: (2.0,) * 4,
}
"""What `filter4` and `filter2` multiply the rows of G by, so that the transform divides once."""

_WINOGRAD = """
def {name}(p, tid, nthreads):
    k, c, row, column, rows = p.k, p.c, p.row, p.column, p.rows
    work = p.work + p.work_step * tid
    parts = ceil_div(c, LANES)
    lo, hi = split(ceil_div(k, PANEL) * parts, tid, nthreads)
    for unit in range(lo, hi):
        j, begin = unit // parts, unit % parts * LANES
        count = min(c - begin, LANES)
        source = p.w + column * PANEL * j + row * 9 * begin
        read_columns(source, row, column, 9 * count, min(k - PANEL * j, PANEL), PANEL, np.float32(1), work, rows)
        to = p.to + 4 * PANEL * (PLANES * c * j + begin)
        plane = 4 * PANEL * c
        for q in range(2 * count):
            g, u = work + (q >> 1) * (9 * 2 * BYTES) + (q & 1) * BYTES, to + q * BYTES
"""


def _filtered(planes: int, a: Numbers) -> dict[str, Reach]:
    return {
        "w": box(4, (a.k, a.column), (9 * a.c, a.row)),
        "to": 4 * planes * a.c * -(-a.k // PANEL) * PANEL,
        "rows": 4 * 9 * min(a.c, LANES),
        "work": (a.threads - 1) * a.work_step + 4 * 9 * LANES * PANEL,
    }


@cache
def winograd_filters(size: int) -> Native:
    """Transforms filters [k, c, 3, 3] to [panels][planes][c][PANEL], all f32.

    w: element (output, channel and tap) at ``column`` and ``row`` bytes, see `read_columns`; rows: i32 0, 1, ...;
    work: [9 * LANES][PANEL] of each thread, ``work_step`` bytes apart.
    """
    side, name = size + 2, f"winograd_filters_{size}"
    lines = []
    for s in range(3):
        taps = ", ".join(f"vload(g + {(3 * r + s) * 2} * BYTES)" for r in range(3))
        lines.append(f"{', '.join(f't{a}_{s}' for a in range(side))} = transform({taps})")
    for a in range(side):
        lines.append(f"{', '.join(f'e{b}' for b in range(side))} = transform(t{a}_0, t{a}_1, t{a}_2)")
        for b in range(side):
            scale = FILTER_SCALE[size][a] * FILTER_SCALE[size][b]
            lines += [f"vstore(u, e{b} / splat(np.float32({scale!r})))", "u += plane"]
    text = _WINOGRAD.format(name=name) + "".join(f"            {line}\n" for line in lines)
    fields = {
        "w": PTR, "to": PTR, "rows": PTR, "k": I64, "c": I64, "row": I64, "column": I64, "work": PTR, "work_step": I64
    }  # fmt: skip
    return native_source(
        text, name, fields, {"contract", "nsz"}, extents=partial(_filtered, side**2), PANEL=PANEL, PLANES=side**2,
        read_columns=read_columns, transform=filter4 if size == 4 else filter2, **scope_of(text),
    )  # fmt: skip


def pack_winograd(w: Array, size: int, threads: int = 1) -> Array:
    """Filters [k, c, 3, 3] as Winograd's algorithm of ``size`` x ``size`` outputs multiplies them."""
    k, c = w.shape[:2]
    out = aligned_empty((-(-k // PANEL), (size + 2) ** 2, c, PANEL))
    source, (row, column) = packable(w.reshape(k, 9 * c).T)
    work = aligned_empty((threads, 9 * LANES * PANEL))
    run_shares(
        winograd_filters(size), threads, out.nbytes, w=source, to=out, rows=source_rows(1, 9 * LANES), k=k, c=c,
        row=row, column=column, work=work, work_step=work.strides[0],
    )  # fmt: skip
    return out
