"""Products with an eighth fewer multiplications: Strassen's algorithm in Winograd's form, one level, in pairs of tiles.

Two tiles of rows and two panels of columns are multiplied in halves of K: seven products instead of eight.  With the
quarters A11 A12 / A21 A22 of the rows and B11 B12 / B21 B22 of the panels:

    S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2
    T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = B21 - T2
    U2 = A11 B11 + S2 T2   U3 = U2 + S3 T3   P5 = S1 T1
    C11 = A11 B11 + A12 B21   C12 = U2 + P5 + S4 B22   C21 = U3 + A22 T4   C22 = U3 + P5

The sums T are packed beside the panels; S are made once for a span of rows, which stays in the second-level cache while
all panels pass.  What is left of rows or columns is multiplied as `sweep` does it.  Rows are paired by their numbers
alone, each with the one MR further on: results do not depend on threads.

Where a sum adds channels q of the first half of K and q' of the second, it adds channel q' times a power of two that
makes the largest weights of both equal; T take it back.  `error` bounds what remains.  Pairs of tiles with a
sum that is not finite, or so large that products might not be, are multiplied as `sweep` does it.
Sums mix two rows, so a row's error is relative to the larger one: products of matrices, whose rows may be somebody
else's, take it only with ``numerics="fast"`` and when they are tuned.
Source: Winograd, "On multiplication of 2 x 2 matrices", 1971; as in Higham, "Accuracy and Stability", section 23.1;
the powers of two as in Ballard, Benson, Druinsky, Lipshitz and Schwartz, "Improving the numerical stability of fast
matrix multiplication", 2016.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

from bolt_numba.base.follow import is_followed, pure
from bolt_numba.base.selects import either, greatest, least
from bolt_numba.base.types import F32 as FLOATS
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.convolution.conv import accepts_rows, along_batch, packed_filters, pixel_table
from bolt_numba.kernels.cpu.language.lang import (
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
    tile_add_stored,
    tile_finish,
    tile_prefetch,
    tile_rank1_rows,
    tile_store,
    tile_zeros,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import L2
from bolt_numba.kernels.cpu.products.epilogue import finish
from bolt_numba.kernels.cpu.products.matmul import accepts_matmul, conflicting, is_parallel, packed_bias
from bolt_numba.kernels.cpu.products.pack import PANEL, TERMS, pack_panels, pack_taps, panel_columns
from bolt_numba.kernels.cpu.products.sweep import (
    MR,
    ROW,
    TILE,
    TILE_ARGUMENTS,
    by_height,
    copy_row,
    longest,
    pack_stride,
    plain_tile,
    rows_or_columns,
)
from bolt_numba.kernels.cpu.strassen.error import balance, even_scales, scales_of
from bolt_numba.kernels.cpu.strassen.sums import add_rows, count_pairs, sum_panels, with_sums
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.products import geometry as matmul_geometry
from bolt_numba.kernels.jit import CODE, F32, I64, PTR, PTR_OR_0, inline, native
from bolt_numba.kernels.registry import (
    Argument,
    Context,
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
from bolt_numba.ops.layers.products.matmul import MatMul

PAIR = 2 * MR
"""Rows that are multiplied together."""


@inline
def product(rows, offset, b, length, ahead, step):
    """``length`` columns of the rows times ``length`` rows of a panel."""
    acc = tile_zeros(MR, 2)
    for q in range(length):
        acc = tile_rank1_rows(acc, rows, offset + 4 * q, b)
        prefetch(ahead)
        b += 2 * BYTES
        ahead += step
    return acc


whole_pairs = inline(count_pairs)


@inline
def put_tile(acc, bias, c, ldc, res, ldr, n, lo, hi, act):
    """Bias, residual, clamp, store, activation of one finished tile."""
    tile_finish(tile_add_row(acc, bias), c, ldc, n, res, ldr, lo, hi)
    if act != 0:
        call_activation(act, c, min(n, PANEL) + (MR << 32), ldc)


@inline
def multiply(rows, sums, ld, half, b, t, work, bias, c, ldc, res, ldr, n, lo, hi, act, part, step):
    """Two tiles of rows times two panels.

    work: two tiles of workspace.  n: columns of the second panel.  ldc, ldr: bytes from a row of a tile to the next.
    Meanwhile the next pair of panels and their sums are prefetched from byte ``part`` of every half panel, ``step``
    bytes with each row.
    """
    size, s, y, far, below, res_below, res1 = 2 * BYTES * half, MR * ld, work + TILE, 4 * PANEL, c + MR * ldc, 0, 0
    next_b, next_t = b + 4 * size + part, t + 4 * size + part
    if res != 0:
        res_below, res1 = res + MR * ldr, res + far
    top, bottom, acc = rows_load(MR, rows, 8, 0), rows_load(MR, rows + 8 * MR, 8, 0), tile_zeros(MR, 2)
    tile_prefetch(acc, c, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res, ldr, 0)
    acc = product(top, 0, b, half, next_b, step)
    tile_store(acc, work, ROW)
    acc = tile_add_stored(product(top, 4 * half, b + size, half, next_b + size, step), work, ROW)
    put_tile(acc, bias, c, ldc, res, ldr, PANEL, lo, hi, act)
    tile_prefetch(acc, below, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res_below, ldr, 0)
    acc = tile_add_stored(product(rows_strided(MR, sums + s, ld), 0, t, half, next_t, step), work, ROW)
    tile_store(acc, work, ROW)
    acc = product(rows_strided(MR, sums + 2 * s, ld), 0, t + size, half, next_t + size, step)
    tile_store(tile_add_stored(acc, work, ROW), y, ROW)
    acc = product(bottom, 4 * half, t + 2 * size, half, next_t + 2 * size, step)
    acc = tile_add_stored(acc, y, ROW)
    put_tile(acc, bias, below, ldc, res_below, ldr, PANEL, lo, hi, act)
    tile_prefetch(acc, below + far, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res_below + far, ldr, 0)
    acc = product(rows_strided(MR, sums, ld), 0, t + 3 * size, half, next_t + 3 * size, step)
    other = tile_add_stored(acc, work, ROW)
    acc = tile_add_stored(acc, y, ROW)
    tile_store(other, work, ROW)
    put_tile(acc, bias + far, below + far, ldc, 0 if res == 0 else res_below + far, ldr, n, lo, hi, act)
    tile_prefetch(acc, c + far, ldc, 1)
    if res != 0:
        tile_prefetch(acc, res1, ldr, 0)
    acc = product(rows_strided(MR, sums + 3 * s, ld), 0, b + 3 * size, half, next_b + 3 * size, step)
    acc = tile_add_stored(acc, work, ROW)
    put_tile(acc, bias + far, c + far, ldc, res1, ldr, n, lo, hi, act)


FEW_HEIGHTS = 4
few_heights = by_height("few_heights", TILE_ARGUMENTS, plain_tile, (MR, FEW_HEIGHTS, 1))
"""`sweep.tile_any` for what is left of pairs: fewer heights, which compile in a third of the time."""


@inline
def plain(rows, zero, count, k, b, sums, bias, c, ldc, res, ldr, n, lo, hi, act):
    """``count`` rows times one panel of n columns, as `sweep` does it."""
    i = 0
    while i < count:
        left = count - i
        mr = MR if left >= MR else (FEW_HEIGHTS if left >= FEW_HEIGHTS else 1)
        to = c + ldc * i
        few_heights(
            mr, rows + 8 * i, 0, zero, 8, 1, k, b, b, 0, sums, 4 * TERMS, bias, to, ldc,
            0 if res == 0 else res + ldr * i, ldr, n, lo, hi,
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
        "scales": 4 * (a.k + LANES),
        "bias": 4 * panel_columns(a.n),
        "c": 4 * (a.ldc * (a.m - 1) + a.n),
        "res": 4 * (a.ldr * (a.m - 1) + a.n),
        "scratch": (a.threads - 1) * a.scratch_step + workspace(a.span, a.ld, a.copy_ld),
    }


@native(
    a=PTR, lda=I64, table=PTR_OR_0, b=PTR, sums=I64, bias=PTR, c=PTR, ldc=I64, res=PTR_OR_0, ldr=I64, m=I64, n=I64,
    k=I64, scales=PTR, ld=I64, copy_ld=I64, scratch=PTR, scratch_step=I64, span=I64, share=I64, lo=F32, hi=F32,
    act=CODE, extents=_reach,
)  # fmt: skip
def strassen(p, tid, nthreads):
    """C = A B.  Fields.

    lda, ldc, ldr: elements between rows.  table: i32 [m], row of A of each row of C; 0 when it is the same.
    b, sums, scales: packed panels and their sums, see `sum_panels`.  k: even.  span: pairs of tiles that meet a pair
    of panels while it is in cache.  ld, copy_ld: bytes between rows of sums, and of copies of A (0: none are made).
    scratch: ``scratch_step`` bytes a thread, see `workspace`.  share: what threads divide: 0 rows, 1 columns.
    """
    n, k, half, ldc, ldr, ld, span = p.n, p.k, p.k // 2, 4 * p.ldc, 4 * p.ldr, p.ld, p.span
    lo, hi, act = p.lo, p.hi, p.act
    zero = p.scratch + p.scratch_step * tid
    store_i64(zero, 0)
    work = zero + 64
    rows = work + 2 * TILE
    large = rows + 8 * (span + 1) * PAIR
    sums = rows + ceil_div(8 * (span + 1) * (PAIR + 1), 64) * 64
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
                store_i64(large + 8 * i, add_rows(rows + 8 * PAIR * i, half, p.scales, sums + 4 * MR * ld * i, ld))
        for j in range(j_lo, j_hi):
            col, down = 8 * PANEL * j, PAIR * count if j < pairs else 0
            b, bias, width = p.b + col * k, p.bias + col, n - 2 * PANEL * j
            c, res = p.c + ldc * first + col, 0 if p.res == 0 else p.res + ldr * first + col
            for i in range(count + 1):
                at, direct = PAIR * i, 0
                if i == count:
                    at, direct = down, PAIR * count + more - down
                elif j < pairs and load_i64(large + 8 * i) != 0:
                    direct = PAIR
                elif j < pairs:
                    multiply(
                        rows + 8 * at, sums + 4 * MR * ld * i, ld, half, b, b + p.sums, work, bias, c + ldc * at,
                        ldc, 0 if res == 0 else res + ldr * at, ldr, width - PANEL, lo, hi, act,
                        64 * half * min(i, 2), 64 if i < 2 and j + 1 < j_hi else 0,
                    )  # fmt: skip
                for v in range(ceil_div(min(width, 2 * PANEL), PANEL) if direct > 0 else 0):
                    to, over = c + ldc * at + 4 * PANEL * v, 0 if res == 0 else res + ldr * at + 4 * PANEL * v
                    plain(
                        rows + 8 * at, zero, direct, k, b + 4 * PANEL * k * v, work, bias + 4 * PANEL * v, to, ldc,
                        over, ldr, width - PANEL * v, lo, hi, act,
                    )  # fmt: skip
        g += count


SUM_BYTES, B_BYTES = L2 * 25 // 64, L2 * 3 // 8
"""Rows of A with their sums, or else B with its sums, that stay in the second-level cache beside the rest."""
GAIN = 0.025
"""Least share of the time that must be saved."""
LEAST_ROWS = 8 * PAIR
"""Pixels under which layers measured no faster in whole models: SqueezeNet's last, of 169, lost 2 %."""
MOST_BYTES = 4 << 20
"""Of filters that may take twice their memory."""


def choose_span(groups: int, n: int, k: int) -> int:
    """Pairs of tiles to a span: one if all of B stays in cache, else what fits; spans are even."""
    groups = greatest(groups, 1)
    fit = 1 if 8 * n * k <= B_BYTES else least(max(SUM_BYTES // (8 * k * PAIR), 1), groups)
    return -(-groups // -(-groups // fit))


def workspace(span: int, ld: int, copy_ld: int) -> int:
    """Bytes of workspace of one thread."""
    table = -(-8 * (span + 1) * (PAIR + 1) // 64) * 64
    return -(-(64 + 2 * TILE + table + 4 * MR * ld * span + (span + 1) * PAIR * copy_ld) // 64) * 64


def can_pair(m: int, n: int, k: int) -> bool:
    return m >= PAIR and count_pairs(n) > 0 and k % 2 == 0


def gain(m: int, n: int, k: int) -> float:
    """Share of the time that is saved: an eighth, less the price of joining tiles, summing rows and reading more of B.

    Measured on Zen 4 in whole models, where B comes from memory.
    """
    groups, pairs = m // PAIR, count_pairs(n)
    saved = 1 / 8 - 4 / k - 0.1 / pairs - 5 / m
    made: float = saved * least(groups * PAIR / m, 1.0) * least(pairs * 2 * PANEL / n, 1.0)
    return made


def _filters(w: TensorType, context: Context) -> tuple[Argument, Argument, list[Step]]:
    """Filters and sums of filters, their scales, and the steps that make them at run time."""
    (n, k), threads = w.dims[:2], context.threads
    if w.known is not None:

        def pack(filters: Array) -> Array:
            return with_sums(pack_taps(filters, 1, threads), scales_of(filters.reshape(n, k)), n, k, threads)

        return context.packed(w.known, "strassen", pack), context.packed(w.known, *_BALANCE), []
    to, made = packed_filters(w, 1, context)
    assert isinstance(to, Scratch)
    sums, pairs, scales = to.nbytes, count_pairs(n), even_scales(k // 2)
    to.nbytes += 8 * pairs * PANEL * k
    args: dict[str, Argument] = {"b": to, "sums": sums, "scales": scales, "pairs": pairs, "half": k // 2}
    return to, scales, [*made, Step(sum_panels, args, is_parallel(context, 0, 2 * sums))]


_BALANCE = "strassen balance", lambda w: balance(w.reshape(w.shape[:2]))
"""What is packed of filters beside their panels: scales, and the bound of the error."""


@pure
def _choose_share(m: int, n: int, k: int, threads: int) -> int:
    """What threads divide: 0 rows, 1 columns."""
    rows, columns = longest(m // PAIR, threads), longest(-(-n // (2 * PANEL)), threads)
    return rows_or_columns(rows, columns, (m, n, k)) if threads > 1 else 0


def step_of(
    source: Argument, lda: Argument, table: Argument, row_bytes: int, sizes: tuple[int, int, int], b: Argument,
    scales: Argument, bias: Argument, op: Conv | MatMul, context: Context,
) -> Step:  # fmt: skip
    """The step of a product of ``sizes`` m, n, k; row_bytes: between rows of A as they are read."""
    m, n, k = sizes
    threads = either(is_parallel(context, 2 * m * n * k, 4 * n * k), context.threads, 1)
    groups = m // PAIR
    share = _choose_share(m, n, k, threads) if is_followed(threads) or threads > 1 else 0
    span = choose_span(either(share, groups, -(-groups // threads)), n, k)
    ld = pack_stride(2 * k)
    copy_ld = either(conflicting(row_bytes, m), pack_stride(4 * k), 0)
    per_thread = workspace(span, ld, copy_ld)
    args: dict[str, Argument] = {
        "a": source, "lda": lda, "table": table, "b": b, "sums": 4 * k * panel_columns(n), "bias": bias,
        "c": Out(0), "ldc": Pitch(Out(0)),
        "res": In(3) if op.residual else None, "ldr": Pitch(In(3)) if op.residual else 0,
        "m": m, "n": n, "k": k, "scales": scales, "ld": ld, "copy_ld": copy_ld,
        "scratch": Scratch(threads * per_thread), "scratch_step": per_thread, "span": span, "share": share,
        **finish(op.activation).args,
    }  # fmt: skip
    return Step(strassen, args, threads > 1)


@once
def _is_pointwise(op: Conv, ins: Types) -> bool:
    """1x1, one group, no padding: rows of a matrix, perhaps not all of them."""
    if not accepts_rows(op, ins) or op.group != 1:
        return False
    w = ins[1]
    return all(size == 1 for size in w.dims[2:]) and not any(op.pads)


def is_pointwise_conv(op: Conv, ins: Types) -> bool:
    """1x1, and enough pixels and channels for a pair of tiles and panels."""
    return _is_pointwise(op, ins) and can_pair(*_sizes(op, ins))


def _sizes(op: Conv, ins: Types) -> tuple[int, int, int]:
    out = result_of(op, ins)
    w = ins[1]
    return out.size // out.dims[-1], w.dims[0], w.dims[1]


def pays(op: Conv, ins: Types) -> bool:
    """Whether a 1x1 convolution of one image is large enough."""
    if not _is_pointwise(op, ins) or ins[0].dims[0] > 1:
        return False
    m, n, k = _sizes(op, ins)
    return can_pair(LEAST_ROWS, n, k) and 4 * n * k <= MOST_BYTES and (m >= LEAST_ROWS) & (gain(m, n, k) > GAIN)


def error(op: Conv, ins: Types, context: Context) -> float:
    """The bound of `strassen.error` for a layer's filters; none holds for pixels of several images."""
    x, w = ins[0], ins[1]
    return math.inf if w.known is None or x.dims[0] > 1 else float(content(derived(w.known, *_BALANCE, FLOATS))[-1])


@kernel(Conv, accepts=pays, works=is_pointwise_conv, rank=5, numerics="default", error=error)
def conv_strassen(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """1x1 convolutions with an eighth fewer multiplications."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    images, *sizes, c = x.dims
    windows = along_batch(op.windows(w.dims[2:]).resolved(sizes))
    dense = max(windows.strides) == 1
    table = None if dense else pixel_table(windows, (images, *sizes), outs[0].dims[:-1]).table
    filters, scales, before = _filters(w, context)
    bias_at, bias_steps = packed_bias(bias, 2, w.dims[0], context, 1)
    m, row_bytes = outs[0].size // w.dims[0], 4 * c * windows.strides[-1]
    made = step_of(In(0), Pitch(In(0)), table, row_bytes, (m, w.dims[0], c), filters, scales, bias_at, op, context)
    return [*before, *bias_steps, made]


@once
def is_dense(op: MatMul, ins: Types) -> bool:
    """A product with a constant matrix that all rows share."""
    if not accepts_matmul(op, ins):
        return False
    a, b = ins[0], ins[1]
    if b.known is None or len(b.dims) != 2 or op.trans_a or len(a.dims) < 2:
        return False
    g = matmul_geometry(op, a.dims, b.dims)
    return can_pair(g.m, g.n, g.k)


@kernel(MatMul, accepts=lambda op, ins: False, works=is_dense, rank=5, numerics="fast")
def matmul_strassen(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Products with a constant matrix, with an eighth fewer multiplications."""
    a, b, bias = ins[0], ins[1], (*ins, None)[2]
    g = matmul_geometry(op, a.dims, b.dims)
    swap, alpha, n, k, threads = op.trans_b, op.alpha, g.n, g.k, context.threads

    def pack(array: Array) -> Array:
        panels = pack_panels(array.T if swap else array, alpha=alpha, threads=threads)
        return with_sums(panels, scales_of(array if swap else array.T), n, k, threads)

    panels = context.packed(b.known, ("strassen panels", swap, alpha), pack)
    scales = context.packed(b.known, ("strassen scales", swap), lambda w: scales_of(w if swap else w.T))
    bias_at, bias_steps = packed_bias(bias, 2, n, context)
    made = step_of(In(0), Pitch(In(0)), None, 4 * k, (g.m, n, k), panels, scales, bias_at, op, context)
    return [*bias_steps, made]
