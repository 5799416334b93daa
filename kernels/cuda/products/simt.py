"""Products of f32 by plain cores: each thread sums a tile of up to 8 x 8 in registers."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import CudaKernel, Macro, cuda_kernel
from bolt_numba.kernels.cuda.language.lang import cp_async_commit, cp_async_wait, cuda, shared_address, static_range
from bolt_numba.kernels.cuda.products.copies import Order, f32_copies
from bolt_numba.kernels.cuda.products.place import PLACE, element, grid, matrix, reaches_of, shared_out, tile_place
from bolt_numba.kernels.cuda.products.tail import TAIL, TailForm, TileSlice, drain, log2

u32, i32, i64, f32 = np.uint32, np.int32, np.int64, np.float32
TERMS, STAGES, PAD = 16, 3, 4


@record(frozen=True)
class SimtTile:
    """Rows and columns of a block's tile, and of a thread's."""

    m: int
    n: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        return self.m * self.n // (self.tm * self.tn)

    @property
    def rate(self) -> float:
        """128 at best; a small tile waits for shared memory."""
        return {64: 110.0, 32: 80.0, 16: 48.0}[self.tm * self.tn]


SIMT_TILES = (SimtTile(128, 128, 8, 8), SimtTile(64, 64, 8, 4), SimtTile(32, 32, 4, 4))


@functools.cache
def simt(tile: SimtTile, a_order: Order, b_order: Order, stored: TailForm) -> CudaKernel:  # budget: with its body
    """The kernel for operands in these orders; its fields are `PLACE` and `TAIL`."""
    BM, BN, TM, TN, NT = tile.m, tile.n, tile.tm, tile.tn, tile.threads
    PA, PB = BM + PAD, BN + PAD
    A_BYTES, STAGE, END = 4 * TERMS * PA, 4 * TERMS * (PA + PB), 4 * TERMS * (PA + PB) * STAGES
    PRE, WAIT, LAST = STAGES - 1, STAGES - 2, (STAGES - 1) * STAGE
    of_a, of_b = f32_copies(a_order, BM, TERMS, PA, NT), f32_copies(b_order, BN, TERMS, PB, NT)
    a_begin, a_issue, A_AHEAD, a_element = of_a.begin, of_a.issue, 4 * of_a.ahead, element(a_order)
    b_begin, b_issue, B_AHEAD, b_element = of_b.begin, of_b.issue, 4 * of_b.ahead, element(b_order)
    GROUPS, VECTORS, GM, GN = TM // 4, TN // 4, 4 * BM // TM, 4 * BN // TN
    ACROSS, MASK = log2(BN // TN), BN // TN - 1
    fill, outer = Macro("fill", TM * TN, 0.0), Macro("outer", TM, TN)
    lds_a, lds_b = Macro("lds", GROUPS, 4 * GM), Macro("lds", VECTORS, 4 * GN)
    put = Macro("sts_rows", VECTORS, 4 * PB, 4 * GN)
    place, share = tile_place(BM, BN), shared_out(TERMS)
    drained = drain(TileSlice(GM, BN, PB, GM, 0, NT), stored)
    SUMS = TM * TN

    @cuda_kernel(
        threads=NT,
        blocks=grid(BM, BN),
        shared=max(END, 4 * GM * PB),
        unrolled=True,
        extents=reaches_of(4, a_order, b_order, stored),
        **PLACE,
        **TAIL,
    )
    def product_f32(a, b, table, m, n, k, lda, ldb, a_block, b_block, matrices, splits, split_bytes, bias, residual, y,
                    ldy, alpha, lo, hi, act0, act1):  # fmt: skip
        s0 = shared_address(cuda.shared.array(0, np.uint8))
        tid = u32(cuda.threadIdx.x)
        row0, column0, block = place(u32(cuda.blockIdx.x), m, n)
        first, nk = share(k, splits, cuda.blockIdx.y)
        a_line, a_term = a_begin(tid)
        b_line, b_term = b_begin(tid)
        a_left, b_left = i32(m - row0 - a_line), i32(n - column0 - b_line)
        a_terms, b_terms = i32(k - first * TERMS - a_term), i32(k - first * TERMS - b_term)
        pa = a + matrix(table, block, a_block, 0) + 4 * a_element(row0 + a_line, first * TERMS + a_term, lda)
        pb = b + matrix(table, block, b_block, 8) + 4 * b_element(column0 + b_line, first * TERMS + b_term, ldb)
        a_next, b_next = 4 * a_element(0, TERMS, lda), 4 * b_element(0, TERMS, ldb)
        ta = u32(s0 + (a_term * u32(PA) + a_line) * u32(4))
        tb = u32(s0 + u32(A_BYTES) + (b_term * u32(PB) + b_line) * u32(4))
        acc = cuda.local.array(SUMS, np.float32)
        ra, rb = cuda.local.array(TM, np.float32), cuda.local.array(TN, np.float32)
        fill(acc)
        for s in static_range(PRE):
            if s < nk:
                a_issue(u32(ta + u32(s * STAGE)), pa, A_AHEAD * lda, a_left, a_terms)
                b_issue(u32(tb + u32(s * STAGE)), pb, B_AHEAD * ldb, b_left, b_terms)
            cp_async_commit()
            pa, pb, a_terms, b_terms = pa + a_next, pb + b_next, i32(a_terms - TERMS), i32(b_terms - TERMS)
        tx, ty = u32(tid & u32(MASK)), u32(tid >> u32(ACROSS))
        la, lb = u32(s0 + (ty << u32(4))), u32(s0 + u32(A_BYTES) + (tx << u32(4)))
        now, to, more = u32(0), u32(LAST), i32(nk - PRE)
        for kt in range(i32(nk)):
            cp_async_wait(WAIT)
            cuda.syncthreads()
            if kt < more:
                a_issue(u32(ta + to), pa, A_AHEAD * lda, a_left, a_terms)
                b_issue(u32(tb + to), pb, B_AHEAD * ldb, b_left, b_terms)
            cp_async_commit()
            pa, pb, a_terms, b_terms = pa + a_next, pb + b_next, i32(a_terms - TERMS), i32(b_terms - TERMS)
            for t in static_range(TERMS):
                lds_a(ra, u32(la + now), t * 4 * PA)
                lds_b(rb, u32(lb + now), t * 4 * PB)
                outer(acc, ra, rb)
            now, to = u32(now + u32(STAGE)), u32(to + u32(STAGE))
            now, to = u32(0) if now == u32(END) else now, u32(0) if to == u32(END) else to
        cp_async_wait(0)
        cuda.syncthreads()
        to_y = y + i64(cuda.blockIdx.y) * split_bytes
        sums = u32(s0 + (ty * u32(4 * PB) + tx * u32(4)) * u32(4))
        for g in static_range(GROUPS):
            put(acc, g * 4 * TN, sums)
            cuda.syncthreads()
            drained(
                tid, s0, row0 + u32(g * GM), column0, block, matrices, m, n, bias, residual,
                to_y, ldy, alpha, lo, hi, act0, act1,
            )  # fmt: skip
            cuda.syncthreads()

    return product_f32
