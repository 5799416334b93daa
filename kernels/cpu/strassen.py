"""Products with an eighth fewer multiplications: Strassen's algorithm in Winograd's form, one level, in pairs of tiles.

Two tiles of rows and two panels of columns are multiplied in halves of K: seven products instead of eight.  With the
quarters A11 A12 / A21 A22 of the rows and B11 B12 / B21 B22 of the panels:

    S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2
    T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = B21 - T2
    U2 = A11 B11 + S2 T2   U3 = U2 + S3 T3   P5 = S1 T1
    C11 = A11 B11 + A12 B21   C12 = U2 + P5 + S4 B22   C21 = U3 + A22 T4   C22 = U3 + P5

The sums T are packed beside the panels; S are made once for a span of rows, which stays in the second-level cache while
all panels pass.  What is left of rows or columns is multiplied as `sweep` does it.  Rows are paired by their numbers
alone, so results do not depend on threads.  They do depend on other rows: what is not finite spreads to the rows of its
pair, and a row's error is relative to the largest of the 2 MR rows around it, and to the largest channel times the
largest weight, whatever channel that belongs to: where channels differ by 1e4, nothing is left.  So only sessions of
``numerics="fast"`` take it, for the pixels of one image; products of matrices, whose rows may be somebody else's, only
when they are tuned.
Source: Winograd, "On multiplication of 2 x 2 matrices", 1971; as in Higham, "Accuracy and Stability", section 23.1.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.kernels.cpu.conv import accepts_rows, along_batch, packed_filters, pixel_table
from bolt_numba.kernels.cpu.epilogue import finish
from bolt_numba.kernels.cpu.lang import (
    BYTES,
    LANES,
    call_activation,
    ceil_div,
    load_i32,
    load_i64,
    prefetch,
    rows_load,
    rows_strided,
    split,
    store_i64,
    tile_add_row,
    tile_add_tile,
    tile_finish,
    tile_load,
    tile_prefetch,
    tile_rank1_rows,
    tile_store,
    tile_zeros,
    vload,
    vload_n,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.matmul import accepts_matmul, conflicting, is_parallel, packed_bias
from bolt_numba.kernels.cpu.matmul import geometry as matmul_geometry
from bolt_numba.kernels.cpu.pack import PANEL, aligned_empty, pack_panels, pack_taps, panel_columns, run_shares
from bolt_numba.kernels.cpu.sweep import (
    MR,
    TILE,
    TILE_ARGUMENTS,
    by_height,
    copy_row,
    longest,
    pack_stride,
    plain_tile,
    rows_or_columns,
)
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, PTR_OR_0, inline, native
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
from bolt_numba.ops.matmul import MatMul
from bolt_numba.types import Array, TensorType

PAIR = 2 * MR
"""Rows that are multiplied together."""


@inline
def advance(acc, rows, offset, b, length, ahead, step):
    """Add the product of ``length`` columns of the rows and ``length`` rows of a panel."""
    for q in range(length):
        acc = tile_rank1_rows(acc, rows, offset + 4 * q, b)
        prefetch(ahead)
        b += 2 * BYTES
        ahead += step
    return acc


@inline
def add_columns(top, bottom, half, to, step, q, n):
    """S1…S4, ``step`` bytes apart, of n columns from column q of two rows."""
    right = 4 * half
    if n >= LANES:
        a11, a12, a21, a22 = vload(top + q), vload(top + right + q), vload(bottom + q), vload(bottom + right + q)
    else:
        a11, a12 = vload_n(top + q, n), vload_n(top + right + q, n)
        a21, a22 = vload_n(bottom + q, n), vload_n(bottom + right + q, n)
    s1 = a21 + a22
    s2 = s1 - a11
    vstore(to + q, s1)
    vstore(to + step + q, s2)
    vstore(to + 2 * step + q, a11 - a21)
    vstore(to + 3 * step + q, a12 - s2)


@inline
def add_rows(rows, half, to, ld):
    """S1…S4 of a pair of tiles, MR rows of ``ld`` bytes each; ld leaves room for whole vectors."""
    for r in range(MR):
        top, bottom = load_i64(rows + 8 * r), load_i64(rows + 8 * (MR + r))
        for q in range(0, half, LANES):
            add_columns(top, bottom, half, to + ld * r, MR * ld, 4 * q, half - q)


@native(
    b=PTR, sums=I64, pairs=I64, half=I64,
    extents=lambda a: {"b": a.sums + 8 * BYTES * a.half * a.pairs if a.pairs * a.half else 0},
)  # fmt: skip
def sum_panels(p, tid, nthreads):
    """T2, T3, T4, T1, [half][PANEL] each, of every pair of panels at b; they begin ``sums`` bytes behind it."""
    half = p.half
    part = 2 * BYTES * half
    lo, hi = split(p.pairs * 2 * half, tid, nthreads)
    for unit in range(lo, hi):
        j, at = unit // (2 * half), unit % (2 * half) * BYTES
        b = p.b + 4 * part * j + at
        to = b + p.sums
        b11, b21, b12, b22 = vload(b), vload(b + part), vload(b + 2 * part), vload(b + 3 * part)
        t1 = b12 - b11
        t2 = b22 - t1
        vstore(to, t2)
        vstore(to + part, b22 - b12)
        vstore(to + 2 * part, b21 - t2)
        vstore(to + 3 * part, t1)


@inline
def whole_pairs(n):
    """Pairs of panels that are stored with their full width."""
    return (n + PANEL - LANES - 1) // (2 * PANEL)


@inline
def put_tile(acc, bias, c, ldc, res, ldr, n, lo, hi, act):
    """Bias, residual, clamp, store, activation of one finished tile."""
    tile_finish(tile_add_row(acc, bias), c, ldc, n, res, ldr, lo, hi)
    if act != 0:
        call_activation(act, c, min(n, PANEL) + (MR << 32), ldc)


@inline
def multiply(rows, sums, ld, half, b, t, work, bias, c, ldc, res, ldr, n, lo, hi, act, part, step):
    """Two tiles of rows times two panels.

    work: two tiles of workspace.  n: columns of the second panel.  Meanwhile the next pair of panels and their sums are
    prefetched from byte ``part`` of every half panel, ``step`` bytes with each row.
    """
    size, s, y, far = 2 * BYTES * half, MR * ld, work + TILE, 4 * PANEL
    below = c + MR * ldc
    res_below, res1, res_below1 = 0, 0, 0
    if res != 0:
        res_below, res1, res_below1 = res + MR * ldr, res + far, res + MR * ldr + far
    next_b, next_t = b + 4 * size + part, t + 4 * size + part
    top = rows_load(MR, rows, 8, 0)
    acc = tile_zeros(MR, 2)
    tile_prefetch(acc, c, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res, ldr, 0)
    acc = advance(acc, top, 0, b, half, next_b, step)
    tile_store(acc, work, 2 * BYTES)
    acc = advance(acc, top, 4 * half, b + size, half, next_b + size, step)
    put_tile(acc, bias, c, ldc, res, ldr, PANEL, lo, hi, act)
    acc = tile_load(MR, 2, work, 2 * BYTES)
    tile_prefetch(acc, below, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res_below, ldr, 0)
    acc = advance(acc, rows_strided(MR, sums + s, ld), 0, t, half, next_t, step)
    tile_store(acc, work, 2 * BYTES)
    acc = advance(acc, rows_strided(MR, sums + 2 * s, ld), 0, t + size, half, next_t + size, step)
    tile_store(acc, y, 2 * BYTES)
    bottom = rows_load(MR, rows + 8 * MR, 8, 0)
    acc = advance(acc, bottom, 4 * half, t + 2 * size, half, next_t + 2 * size, step)
    put_tile(acc, bias, below, ldc, res_below, ldr, PANEL, lo, hi, act)
    acc = tile_zeros(MR, 2)
    tile_prefetch(acc, below + far, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res_below1, ldr, 0)
    acc = advance(acc, rows_strided(MR, sums, ld), 0, t + 3 * size, half, next_t + 3 * size, step)
    other = tile_add_tile(acc, tile_load(MR, 2, work, 2 * BYTES))
    acc = tile_add_tile(acc, tile_load(MR, 2, y, 2 * BYTES))
    tile_store(other, work, 2 * BYTES)
    put_tile(acc, bias + far, below + far, ldc, res_below1, ldr, n, lo, hi, act)
    acc = tile_load(MR, 2, work, 2 * BYTES)
    tile_prefetch(acc, c + far, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res1, ldr, 0)
    acc = advance(acc, rows_strided(MR, sums + 3 * s, ld), 0, b + 3 * size, half, next_b + 3 * size, step)
    put_tile(acc, bias + far, c + far, ldc, res1, ldr, n, lo, hi, act)


FEW = 4
few_heights = by_height("few_heights", TILE_ARGUMENTS, plain_tile, (MR, FEW, 1))
"""`sweep.tile_any` for what is left of pairs: fewer heights, which compile in a third of the time."""


@inline
def plain(rows, zero, count, k, b, sums, bias, c, ldc, res, ldr, n, lo, hi, act):
    """``count`` rows times one panel of n columns, as `sweep` does it."""
    i = 0
    while i < count:
        left = count - i
        mr = MR if left >= MR else (FEW if left >= FEW else 1)
        to = c + ldc * i
        few_heights(
            mr, rows + 8 * i, 0, zero, 8, 1, k, b, b, 0, sums, k, bias, to, ldc, 0 if res == 0 else res + ldr * i, ldr,
            n, lo, hi,
        )  # fmt: skip
        if act != 0:
            call_activation(act, to, min(n, PANEL) + (mr << 32), ldc)
        i += mr


@inline
def place(p, first, count, rows, copies):
    """Write where rows of A are; copy them first when ``p.copy_ld`` is not 0."""
    for r in range(count):
        row = first + r
        if p.table != 0:
            row = load_i32(p.table + 4 * row)
        at = p.a + 4 * p.lda * row
        if p.copy_ld != 0:
            copy_row(copies + p.copy_ld * r, at, p.k)
            at = copies + p.copy_ld * r
        store_i64(rows + 8 * r, at)


def _reach(a: Any) -> dict[str, Reach]:
    last = a.m - 1 if a.table is None else int(a.table.max())
    return {
        "a": 4 * (a.lda * last + a.k),
        "table": 4 * a.m,
        "b": max(a.sums + 8 * PANEL * a.k * count_pairs(a.n), 4 * a.k * panel_columns(a.n)),
        "bias": 4 * panel_columns(a.n),
        "c": 4 * (a.ldc * (a.m - 1) + a.n),
        "res": 4 * (a.ldr * (a.m - 1) + a.n),
        "scratch": (a.threads - 1) * a.scratch_step + workspace(a.span, a.ld, a.copy_ld),
    }


@native(
    a=PTR, lda=I64, table=PTR_OR_0, b=PTR, sums=I64, bias=PTR, c=PTR, ldc=I64, res=PTR_OR_0, ldr=I64, m=I64, n=I64,
    k=I64, ld=I64, copy_ld=I64, scratch=PTR, scratch_step=I64, span=I64, share=I64, lo=F32, hi=F32, act=CODE,
    extents=_reach,
)  # fmt: skip
def strassen(p, tid, nthreads):
    """C = A B.  Fields.

    lda, ldc, ldr: elements between rows.  table: i32 [m], row of A of each row of C; 0 when it is the same.
    b, sums: packed panels and their sums, see `sum_panels`.  k: even.  span: pairs of tiles that meet a pair of panels
    while it is in cache.  ld, copy_ld: bytes between rows of sums, and of copies of A (0: none are made).
    scratch: ``scratch_step`` bytes a thread, see `workspace`.  share: what threads divide: 0 rows, 1 columns.
    """
    n, k, half, ldc, ldr, ld, span = p.n, p.k, p.k // 2, 4 * p.ldc, 4 * p.ldr, p.ld, p.span
    lo, hi, act = p.lo, p.hi, p.act
    zero = p.scratch + p.scratch_step * tid
    store_i64(zero, 0)
    work = zero + 64
    rows = work + 2 * TILE
    sums = rows + ceil_div(8 * (span + 1) * PAIR, 64) * 64
    copies = sums + 4 * MR * ld * span
    pairs = whole_pairs(n)
    units = pairs + (1 if n > 2 * PANEL * pairs else 0)
    groups = p.m // PAIR
    g_lo, g_hi = (0, groups) if p.share == 1 else split(groups, tid, nthreads)
    j_lo, j_hi = (0, units) if p.share == 0 else split(units, tid, nthreads)
    g = g_lo
    while g < g_hi:
        count = min(span, g_hi - g)
        first, more = PAIR * g, p.m - PAIR * groups if g + count == groups else 0
        place(p, first, PAIR * count + more, rows, copies)
        if j_lo < pairs:
            for i in range(count):
                add_rows(rows + 8 * PAIR * i, half, sums + 4 * MR * ld * i, ld)
        for j in range(j_lo, j_hi):
            col, down = 8 * PANEL * j, 0
            b, bias, width = p.b + col * k, p.bias + col, n - 2 * PANEL * j
            c, res = p.c + ldc * first + col, 0 if p.res == 0 else p.res + ldr * first + col
            if j < pairs:
                down = PAIR * count
                for i in range(count):
                    multiply(
                        rows + 8 * PAIR * i, sums + 4 * MR * ld * i, ld, half, b, b + p.sums, work, bias,
                        c + PAIR * ldc * i, ldc, 0 if res == 0 else res + PAIR * ldr * i, ldr, width - PANEL, lo, hi,
                        act, 64 * half * min(i, 2), 64 if i < 2 and j + 1 < j_hi else 0,
                    )  # fmt: skip
            rest = PAIR * count + more - down
            for v in range(ceil_div(min(width, 2 * PANEL), PANEL) if rest > 0 else 0):
                at, over = c + ldc * down + 4 * PANEL * v, 0 if res == 0 else res + ldr * down + 4 * PANEL * v
                plain(
                    rows + 8 * down, zero, rest, k, b + 4 * PANEL * k * v, work, bias + 4 * PANEL * v, at, ldc, over,
                    ldr, width - PANEL * v, lo, hi, act,
                )  # fmt: skip
        g += count


SUM_BYTES, B_BYTES = 400 * 1024, 384 * 1024
"""Rows of A with their sums, or else B with its sums, that stay in the second-level cache beside the rest."""
GAIN = 0.025
"""Least share of the time that must be saved."""
LEAST_ROWS = 8 * PAIR
"""Pixels under which layers measured no faster in whole models: SqueezeNet's last, of 169, lost 2 %."""
MOST_BYTES = 4 << 20
"""Of filters that may take twice their memory."""


def choose_span(groups: int, n: int, k: int) -> int:
    """Pairs of tiles to a span: one if all of B stays in cache, else what fits; spans are even."""
    fit = 1 if 8 * n * k <= B_BYTES else max(min(SUM_BYTES // (8 * k * PAIR), groups), 1)
    return -(-groups // -(-groups // fit))


def workspace(span: int, ld: int, copy_ld: int) -> int:
    """Bytes of workspace of one thread."""
    table = -(-8 * (span + 1) * PAIR // 64) * 64
    return -(-(64 + 2 * TILE + table + 4 * MR * ld * span + (span + 1) * PAIR * copy_ld) // 64) * 64


def count_pairs(n: int) -> int:
    return (n + PANEL - LANES - 1) // (2 * PANEL)


def can_pair(m: int, n: int, k: int) -> bool:
    return m >= PAIR and count_pairs(n) > 0 and k % 2 == 0


def gain(m: int, n: int, k: int) -> float:
    """Share of the time that is saved: an eighth, less the price of joining tiles, summing rows and reading more of B.

    Measured on Zen 4 in whole models, where B comes from memory.
    """
    groups, pairs = m // PAIR, count_pairs(n)
    saved = 1 / 8 - 4 / k - 0.1 / pairs - 5 / m
    return saved * min(groups * PAIR / m, 1) * min(pairs * 2 * PANEL / n, 1)


def with_sums(panels: Array, n: int, k: int, threads: int) -> Array:
    """Packed panels with their sums behind them."""
    pairs = count_pairs(n)
    out = aligned_empty((panels.size + 2 * pairs * PANEL * k,))
    out[: panels.size] = panels.reshape(-1)
    run_shares(sum_panels, threads, out.nbytes, b=out, sums=panels.nbytes, pairs=pairs, half=k // 2)
    return out


def _filters(w: TensorType, context: Context) -> tuple[Argument, list[Step]]:
    """Filters and sums of filters, and the steps that make them at run time."""
    (n, k), threads = w.dims[:2], context.threads
    if w.known is not None:

        def pack(filters: Array) -> Array:
            return with_sums(pack_taps(filters, 1, threads), n, k, threads)

        return context.packed(w.known, "strassen", pack), []
    to, made = packed_filters(w, 1, context)
    assert isinstance(to, Scratch)
    sums, pairs = to.nbytes, count_pairs(n)
    to.nbytes += 8 * pairs * PANEL * k
    args: dict[str, Argument] = {"b": to, "sums": sums, "pairs": pairs, "half": k // 2}
    return to, [*made, Step(sum_panels, args, is_parallel(context, 0, 2 * sums))]


def product(
    source: Argument, lda: Argument, table: Argument, row_bytes: int, sizes: tuple[int, int, int], b: Argument,
    bias: Argument, op: Any, context: Context,
) -> Step:  # fmt: skip
    """The step of a product of ``sizes`` m, n, k; row_bytes: between rows of A as they are read."""
    m, n, k = sizes
    threads = context.threads if is_parallel(context, 2 * m * n * k, 4 * n * k) else 1
    groups, units = m // PAIR, -(-n // (2 * PANEL))
    share = rows_or_columns(longest(groups, threads), longest(units, threads), sizes)
    span = choose_span(groups if share else -(-groups // threads), n, k)
    ld = pack_stride(2 * k)
    copy_ld = pack_stride(4 * k) if conflicting(row_bytes, m) else 0
    per_thread = workspace(span, ld, copy_ld)
    args: dict[str, Argument] = {
        "a": source, "lda": lda, "table": table, "b": b, "sums": 4 * k * panel_columns(n), "bias": bias,
        "c": Out(0), "ldc": Pitch(Out(0)),
        "res": In(3) if op.residual else None, "ldr": Pitch(In(3)) if op.residual else 0,
        "m": m, "n": n, "k": k, "ld": ld, "copy_ld": copy_ld,
        "scratch": Scratch(threads * per_thread), "scratch_step": per_thread, "span": span, "share": share,
        **finish(op.activation).args,
    }  # fmt: skip
    return Step(strassen, args, threads > 1)


@remember_last
def is_pointwise_conv(op: Any, ins: Types) -> bool:
    """1x1, one group, no padding: rows of a matrix, perhaps not all of them."""
    if not accepts_rows(op, ins) or op.group != 1:
        return False
    w = ins[1]
    assert w is not None
    return all(size == 1 for size in w.dims[2:]) and not any(op.pads) and can_pair(*_sizes(op, ins))


def _sizes(op: Any, ins: Types) -> tuple[int, int, int]:
    out = result_of(op, ins)
    w = ins[1]
    assert w is not None
    return out.size // out.dims[-1], w.dims[0], w.dims[1]


def pays(op: Any, ins: Types) -> bool:
    """Whether a 1x1 convolution of one image is large enough."""
    if not is_pointwise_conv(op, ins) or ins[0].dims[0] > 1:  # type: ignore[union-attr]
        return False
    m, n, k = _sizes(op, ins)
    return m >= LEAST_ROWS and gain(m, n, k) > GAIN and 4 * n * k <= MOST_BYTES


@kernel(Conv, accepts=pays, works=is_pointwise_conv, rank=5, by_types=True, numerics="fast")
def conv_strassen(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """1x1 convolutions with an eighth fewer multiplications."""
    x, w, bias, _ = (*ins, None, None)[:4]
    assert x is not None
    assert w is not None
    images, *sizes, c = x.dims
    windows = along_batch(op.windows(w.dims[2:]).resolved(sizes))
    dense = max(windows.strides) == 1
    table = None if dense else pixel_table(windows, (images, *sizes), outs[0].dims[:-1]).table
    filters, before = _filters(w, context)
    bias_at, bias_steps = packed_bias(bias, 2, w.dims[0], context, 1)
    m, row_bytes = outs[0].size // w.dims[0], 4 * c * windows.strides[-1]
    made = product(In(0), Pitch(In(0)), table, row_bytes, (m, w.dims[0], c), filters, bias_at, op, context)
    return [*before, *bias_steps, made]


@remember_last
def is_dense(op: Any, ins: Types) -> bool:
    """A product with a constant matrix that all rows share."""
    if not accepts_matmul(op, ins):
        return False
    a, b = ins[:2]
    assert a is not None
    assert b is not None
    if b.known is None or len(b.dims) != 2 or op.trans_a or len(a.dims) < 2:
        return False
    g = matmul_geometry(op, a.dims, b.dims)
    return can_pair(g.m, g.n, g.k)


@kernel(MatMul, accepts=lambda op, ins: False, works=is_dense, rank=5, by_types=True, numerics="fast")
def matmul_strassen(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Products with a constant matrix, with an eighth fewer multiplications."""
    a, b, bias, _ = (*ins, None, None)[:4]
    assert a is not None
    assert b is not None
    assert b.known is not None
    g = matmul_geometry(op, a.dims, b.dims)
    swap, alpha, n, k, threads = op.trans_b, op.alpha, g.n, g.k, context.threads

    def pack(array: Array) -> Array:
        return with_sums(pack_panels(array.T if swap else array, alpha=alpha, threads=threads), n, k, threads)

    panels = context.packed(b.known, ("strassen panels", swap, alpha), pack)
    bias_at, bias_steps = packed_bias(bias, 2, n, context)
    made = product(In(0), Pitch(In(0)), None, 4 * k, (g.m, n, k), panels, bias_at, op, context)
    return [*bias_steps, made]
