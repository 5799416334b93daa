"""Products on tensor cores by mma.sync: halves, tf32 and bytes, whose sums are f32 or i32.

Tiles come by asynchronous copies, several stages ahead, into swizzled shared memory.  Each warp multiplies a part of
the tile from there, by `ldmatrix` and `mma`.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import CudaKernel, Macro, cuda_kernel, inline
from bolt_numba.kernels.cuda.language.lang import (
    cp_async_commit,
    cp_async_wait,
    cuda,
    shared_address,
    static,
    static_range,
)
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.place import PLACE, element, grid, matrix, reaches_of, shared_out, tile_place
from bolt_numba.kernels.cuda.products.swizzle import ROW, swizzled_copies
from bolt_numba.kernels.cuda.products.tail import TAIL, TailForm, TileSlice, drain, log2
from bolt_numba.kernels.declare import Inline

u32, i32, i64 = np.uint32, np.int32, np.int64


@record(frozen=True)
class TensorTile:
    """Rows and columns of a block's tile and of a warp's, and stages.  rate: see `choose.Tiled`, for halves."""

    m: int
    n: int
    wm: int
    wn: int
    stages: int
    rate: float

    @property
    def threads(self) -> int:
        return 32 * (self.m // self.wm) * (self.n // self.wn)

    def serves(self, a_order: Order, b_order: Order) -> bool:
        """Whether what lies turned has 8 times 16 bytes of halves, which its swizzle needs."""
        return (a_order.dense == "k" or self.m >= TURNED) and (b_order.dense == "k" or self.n >= TURNED)


TENSOR_TILES = (
    TensorTile(128, 256, 64, 64, 4, 1200.0), TensorTile(128, 128, 64, 64, 4, 1100.0),
    TensorTile(64, 128, 32, 64, 4, 900.0), TensorTile(64, 64, 32, 32, 4, 700.0), TensorTile(32, 64, 16, 32, 4, 400.0),
)  # fmt: skip
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8s8": 1, "s8u8": 1, "u8u8": 1, "b1": 1}
"""By kind of the operands: bytes of an element; of eight for bits."""
INTEGERS = ("s8", "u8s8", "s8u8", "u8u8", "b1")
TURNED = 64
"""Lines of the smallest tile of order "m"."""


@functools.cache
def _lanes(order: Order, lines: int, size: int, is_b: bool) -> Inline:
    """``(lane, line)``: bytes into a tile from which a lane loads operands of a warp whose first line is ``line``."""
    BYTES, LOW, HIGH = lines * size, 3 if is_b else 4, 4 if is_b else 3

    @inline
    def lanes_a(lane, line):
        row = u32(line + (lane & u32(15)))
        return u32(row * u32(ROW) + (((lane >> u32(4)) ^ ((row >> u32(1)) & u32(3))) << u32(4)))

    @inline
    def lanes_b(lane, line):
        row = u32(line + (lane & u32(7)) + ((lane >> u32(4)) << u32(3)))
        return u32(row * u32(ROW) + ((((lane >> u32(3)) & u32(1)) ^ ((row >> u32(1)) & u32(3))) << u32(4)))

    @inline
    def lanes_turned(lane, line):
        term = u32((lane & u32(7)) + (((lane >> u32(LOW)) & u32(1)) << u32(3)))
        chunk = u32((line >> u32(3)) + ((lane >> u32(HIGH)) & u32(1)))
        return u32(term * u32(BYTES) + ((chunk ^ (lane & u32(7))) << u32(4)))

    return lanes_turned if order.dense == "m" else lanes_b if is_b else lanes_a


@functools.cache
def tensor(tile: TensorTile, kind: str, a_order: Order, b_order: Order, stored: TailForm) -> CudaKernel:  # budget: body
    """The kernel for operands of a kind of `SIZES` in these orders; its fields are `PLACE` and `TAIL`."""
    BM, BN, WM, WN, NT, SIZE = tile.m, tile.n, tile.wm, tile.wn, tile.threads, SIZES[kind]
    TERMS, A_BYTES, STAGE, ACROSS = ROW // SIZE, BM * ROW, (BM + BN) * ROW, log2(BN // WN)
    END, PRE, WAIT, LAST, STEPS = (
        STAGE * tile.stages,
        tile.stages - 1,
        tile.stages - 2,
        STAGE * (tile.stages - 1),
        ROW // 32,
    )
    AK, BK, COLUMNS = int(a_order.dense == "k"), int(b_order.dense == "k"), BN // WN - 1
    of_a, of_b = swizzled_copies(a_order, SIZE, BM, NT), swizzled_copies(b_order, SIZE, BN, NT)
    a_begin, a_place, a_issue, a_element, A_AHEAD = (
        of_a.begin,
        of_a.place,
        of_a.issue,
        element(a_order),
        SIZE * of_a.ahead,
    )
    b_begin, b_place, b_issue, b_element, B_AHEAD = (
        of_b.begin,
        of_b.place,
        of_b.issue,
        element(b_order),
        SIZE * of_b.ahead,
    )
    a_lanes, b_lanes = _lanes(a_order, BM, SIZE, False), _lanes(b_order, BN, SIZE, True)
    DOWN, RIGHT, PITCH, A_TURN, B_TURN = WM // 16, WN // 8, BN + 8, 16 * BM * SIZE, 16 * BN * SIZE
    SUMS, A_REGISTERS, B_REGISTERS, ROW_SUMS = DOWN * RIGHT * 4, DOWN * 4, RIGHT * 2, RIGHT * 4
    integers = kind in INTEGERS
    number, letter = (np.uint32, "r") if integers else (np.float32, "f")
    fill, mma = Macro("fill", SUMS, 0 if integers else 0.0), Macro("mma_tile", DOWN, RIGHT, kind)
    load_a = Macro("ldsm", DOWN, 16 * ROW) if AK else Macro("ldsm_turned", DOWN)
    load_b = Macro("ldsm", RIGHT // 2, 16 * ROW) if BK else Macro("ldsm_turned", RIGHT // 2)
    put = Macro("sts_sums", RIGHT, 4 * PITCH, letter)
    place, share, rows = tile_place(BM, BN), shared_out(TERMS), 16 * BM // WM
    drained = drain(TileSlice(rows, BN, PITCH, 16, WM, NT), stored, integers)

    @cuda_kernel(
        threads=NT,
        blocks=grid(BM, BN),
        shared=max(END, 4 * rows * PITCH),
        unrolled=True,
        extents=reaches_of(SIZE, a_order, b_order, stored),
        **PLACE,
        **TAIL,
    )
    def product_tensor(a, b, table, m, n, k, lda, ldb, a_block, b_block, matrices, splits, split_bytes, bias, residual,
                       y, ldy, alpha, lo, hi, act0, act1):  # fmt: skip
        s0 = shared_address(cuda.shared.array(0, np.uint8))
        tid = u32(cuda.threadIdx.x)
        lane, warp = u32(tid & u32(31)), u32(tid >> u32(5))
        wm, wn = u32((warp >> u32(ACROSS)) * u32(WM)), u32((warp & u32(COLUMNS)) * u32(WN))
        row0, column0, block = place(u32(cuda.blockIdx.x), m, n)
        first, nk = share(k, splits, cuda.blockIdx.y)
        a_line, a_term = a_begin(tid)
        b_line, b_term = b_begin(tid)
        a_left, b_left = i32(m - row0 - a_line), i32(n - column0 - b_line)
        a_terms, b_terms = i32(k - first * TERMS - a_term), i32(k - first * TERMS - b_term)
        pa = a + matrix(table, block, a_block, 0) + SIZE * a_element(row0 + a_line, first * TERMS + a_term, lda)
        pb = b + matrix(table, block, b_block, 8) + SIZE * b_element(column0 + b_line, first * TERMS + b_term, ldb)
        a_next, b_next = SIZE * a_element(0, TERMS, lda), SIZE * b_element(0, TERMS, ldb)
        ta, tb = u32(s0 + a_place(a_line, a_term)), u32(s0 + u32(A_BYTES) + b_place(b_line, b_term))
        acc = cuda.local.array(SUMS, number)
        ra, rb = cuda.local.array(A_REGISTERS, np.uint32), cuda.local.array(B_REGISTERS, np.uint32)
        fill(acc)
        for s in static_range(PRE):
            if s < nk:
                a_issue(u32(ta + u32(s * STAGE)), pa, A_AHEAD * lda, a_left, a_terms)
                b_issue(u32(tb + u32(s * STAGE)), pb, B_AHEAD * ldb, b_left, b_terms)
            cp_async_commit()
            pa, pb, a_terms, b_terms = pa + a_next, pb + b_next, i32(a_terms - TERMS), i32(b_terms - TERMS)
        la, lb = a_lanes(lane, wm), b_lanes(lane, wn)
        now, to, more = s0, u32(LAST), i32(nk - PRE)
        for kt in range(i32(nk)):
            cp_async_wait(WAIT)
            cuda.syncthreads()
            for s in static_range(STEPS):
                if static(AK):
                    load_a(ra, u32(now + (la ^ u32(s * 32))), 0)
                else:
                    load_a(ra, now, la, s * A_TURN)
                if static(BK):
                    load_b(rb, u32(now + (lb ^ u32(s * 32))), A_BYTES)
                else:
                    load_b(rb, now, lb, A_BYTES + s * B_TURN)
                if static(s == 0):
                    if kt < more:
                        a_issue(u32(ta + to), pa, A_AHEAD * lda, a_left, a_terms)
                        b_issue(u32(tb + to), pb, B_AHEAD * ldb, b_left, b_terms)
                    cp_async_commit()
                mma(acc, ra, rb)
            pa, pb, a_terms, b_terms = pa + a_next, pb + b_next, i32(a_terms - TERMS), i32(b_terms - TERMS)
            now, to = u32(now + u32(STAGE)), u32(to + u32(STAGE))
            now, to = s0 if now == u32(s0 + u32(END)) else now, u32(0) if to == u32(END) else to
        cp_async_wait(0)
        cuda.syncthreads()
        to_y = y + i64(cuda.blockIdx.y) * split_bytes
        own = u32((warp >> u32(ACROSS)) * u32(16) + (lane >> u32(2))) * u32(4 * PITCH) + (
            wn + (lane & u32(3)) * u32(2)
        ) * u32(4)
        for g in static_range(DOWN):
            put(acc, g * ROW_SUMS, u32(s0 + own))
            cuda.syncthreads()
            drained(
                tid, s0, row0 + u32(g * 16), column0, block, matrices, m, n, bias, residual,
                to_y, ldy, alpha, lo, hi, act0, act1,
            )  # fmt: skip
            cuda.syncthreads()

    return product_tensor
