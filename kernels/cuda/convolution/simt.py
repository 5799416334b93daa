"""Convolution of f32 by plain cores: a product of tiles whose rows are read where filters look."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.kernels.cuda.convolution.reading import (
    READING,
    TABLE,
    filter_copies,
    image_copies,
    looking,
    next_stage,
    pixels,
    share_of,
    share_offsets,
    walked,
    word_of_bits,
)
from bolt_numba.kernels.cuda.convolution.tail import TAIL, drain, float_ending, tail_extents
from bolt_numba.kernels.cuda.declare import CudaKernel, Macro, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.language.lang import (
    cp_async4_zfill,
    cp_async_commit,
    cp_async_wait,
    cuda,
    shared_address,
    static_range,
)
from bolt_numba.kernels.cuda.products.tail import TileSlice
from bolt_numba.kernels.extents import Numbers

u32, i32, i64 = np.uint32, np.int32, np.int64
TERMS, STAGES, PAD = 16, 3, 4
"""Terms of a stage, stages, and f32 behind a term in shared memory."""


@record(frozen=True)
class PlainTile:
    """Rows and columns of a block's tile, and of a thread's."""

    m: int
    n: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        return self.m * self.n // (self.tm * self.tn)


PLAIN_TILES = (PlainTile(128, 128, 8, 8), PlainTile(64, 64, 8, 4), PlainTile(32, 32, 4, 4))


def packed_columns(kg: int) -> int:
    return ceil_div(kg, 4) * 4


def pack_terms(w: Array, groups: int, taps: list[int]) -> Array:
    """Filters [k, cg, all taps] to [groups, terms, columns] of given taps: taps, then channels, zeros behind."""
    k, cg, _ = w.shape
    kg, terms = k // groups, len(taps) * cg
    out = np.zeros((groups, ceil_div(terms, TERMS) * TERMS, packed_columns(kg)), np.float32)
    out[:, :terms, :kg] = (
        w[:, :, taps].reshape(groups, kg, cg, len(taps)).transpose(0, 3, 2, 1).reshape(groups, terms, kg)
    )
    return out


@inline
def copy_or_clear4(to, pixel, size, outside):
    cp_async4_zfill(to, pixel, size)


def plain_extents(a: Numbers) -> dict[str, int]:
    terms, columns = ceil_div(a.k, TERMS) * TERMS, packed_columns(a.n)
    own = {"x": 4 * pixels(a) * a.pitch, "w": 4 * a.groups * terms * columns, "table": 1024}
    return own | tail_extents(a, 4, 4, 4)


@functools.cache
def conv_f32(tile: PlainTile, wide: bool, scattered: bool, activate: Any) -> CudaKernel:  # budget: with its body
    """Fields: see `reading.READING` and `tail.TAIL`; w: see `pack_terms`.  wide: more than 31 taps."""
    BM, BN, TM, TN, NT = tile.m, tile.n, tile.tm, tile.tn, tile.threads
    PA, PB = BM + PAD, BN + PAD
    A_BYTES, STAGE, END = 4 * TERMS * PA, 4 * TERMS * (PA + PB), 4 * TERMS * (PA + PB) * STAGES
    PRE, WAIT = STAGES - 1, STAGES - 2
    ROWS, AHEAD, TO_A = BM * TERMS // NT, NT // TERMS, 4 * (NT // TERMS)
    COPIES, B_AHEAD = BN * TERMS // (4 * NT), 4 * NT // BN
    TO_B, B_MASK, B_SHIFT = 4 * PB * B_AHEAD, BN // 4 - 1, (BN // 4).bit_length() - 1
    GROUPS, VECTORS, GM, GN = TM // 4, TN // 4, 4 * BM // TM, 4 * BN // TN
    ACROSS, MASK, SUMS = (BN // TN).bit_length() - 1, BN // TN - 1, TM * TN
    fill, outer = Macro("fill", SUMS, 0.0), Macro("outer", TM, TN)
    lds_a, lds_b = Macro("lds", GROUPS, 4 * GM), Macro("lds", VECTORS, 4 * GN)
    put = Macro("sts_rows", VECTORS, 4 * PB, 4 * GN)
    copy_filters = filter_copies(COPIES, TO_B, 0)
    look, word = looking(wide), word_of_bits(wide)
    copy_pixels = image_copies(ROWS, TO_A, 4, copy_or_clear4, wide)
    SHARED = max(END, 4 * GM * PB)
    drained = drain(TileSlice(GM, BN, PB, GM, 0, NT), float_ending("f32", activate), scattered)

    @cuda_kernel(
        threads=NT, blocks=lambda a: (ceil_div(a.m, BM), ceil_div(a.n, BN), a.groups * a.splits), shared=SHARED + TABLE,
        unrolled=True, extents=plain_extents, **READING, **TAIL,
    )  # fmt: skip
    def conv_plain(
        x, w, table, m, n, k, taps, cg, pitch, groups, manyd, byd, stepd, begind, sized, manyh, byh, steph, beginh,
        sizeh, manyw, byw, stepw, beginw, sizew, yn, yd, yh, yw, splits, split_bytes, bias, res, y, ldy, act0, act1,
    ):  # fmt: skip
        s0 = shared_address(cuda.shared.array(0, np.uint8))
        offsets = u32(s0 + u32(SHARED))
        tid = u32(cuda.threadIdx.x)
        row0, column0 = u32(cuda.blockIdx.x * BM), u32(cuda.blockIdx.y * BN)
        tiles = i32(u32(u32(k) + u32(TERMS - 1)) >> u32(4))
        group, part, start, nk = share_of(cuda.blockIdx.z, splits, tiles)
        share_offsets(table, offsets, tid)
        place = (manyd, byd, manyh, byh, manyw, byw)
        steps = (stepd, begind, sized, steph, beginh, sizeh, stepw, beginw, sizew)
        line, term = u32((tid & u32(3)) + ((tid >> u32(6)) << u32(2))), u32((tid >> u32(2)) & u32(15))
        first, seen = cuda.local.array(ROWS, np.int32), cuda.local.array(ROWS, word)
        for i in static_range(ROWS):
            first[i], seen[i] = look(u32(row0 + line + u32(i * AHEAD)), u32(m), table, taps, place, steps)
        tap, channel = walked(i32(0), i32(0), i32(start * TERMS + term), cg)
        xg, bytes_apart = x + 4 * group * cg, u32(4 * pitch)
        columns = u32((u32(n) + u32(3)) & u32(0xFFFFFFFC))
        b_column, b_term = u32(column0 + ((tid & u32(B_MASK)) << u32(2))), u32(tid >> u32(B_SHIFT))
        pb = w + 4 * (((group * tiles + start) * TERMS + b_term) * columns + b_column)
        b_left = i32(columns) - i32(b_column)
        b_step, b_next = 4 * B_AHEAD * i64(columns), 4 * TERMS * i64(columns)
        ta = u32(s0 + (term * u32(PA) + line) * u32(4))
        tb = u32(s0 + u32(A_BYTES) + (b_term * u32(PB) + ((tid & u32(B_MASK)) << u32(2))) * u32(4))
        acc, ra, rb = (
            cuda.local.array(SUMS, np.float32),
            cuda.local.array(TM, np.float32),
            cuda.local.array(TN, np.float32),
        )
        fill(acc)
        tx, ty = u32(tid & u32(MASK)), u32(tid >> u32(ACROSS))
        la, lb = u32(s0 + (ty << u32(4))), u32(s0 + u32(A_BYTES) + (tx << u32(4)))
        now, to = u32(0), u32(0)
        cuda.syncthreads()
        for kt in range(PRE):
            copy_pixels(u32(ta + to), xg + 4 * i64(channel), first, seen, offsets, tap, bytes_apart, 0)
            copy_filters(u32(tb + to), pb, b_step, b_left if kt < nk else i32(0))
            cp_async_commit()
            pb += b_next
            tap, channel = walked(tap, channel, i32(TERMS), cg)
            to = u32(to + u32(STAGE))
        for kt in range(nk):
            cp_async_wait(WAIT)
            cuda.syncthreads()
            copy_pixels(u32(ta + to), xg + 4 * i64(channel), first, seen, offsets, tap, bytes_apart, 0)
            copy_filters(u32(tb + to), pb, b_step, b_left if kt + PRE < nk else i32(0))
            cp_async_commit()
            pb += b_next
            tap, channel = walked(tap, channel, i32(TERMS), cg)
            for t in static_range(TERMS):
                lds_a(ra, u32(la + now), t * 4 * PA)
                lds_b(rb, u32(lb + now), t * 4 * PB)
                outer(acc, ra, rb)
            to, now = next_stage(to, STAGE, END - STAGE), next_stage(now, STAGE, END - STAGE)
        cp_async_wait(0)
        cuda.syncthreads()
        to_y, apart = y + part * split_bytes, (yn, yd, yh, yw)
        given = group * n, n, (bias, res), to_y, ldy, act0, act1, place, apart
        sums = u32(s0 + (ty * u32(4 * PB) + tx * u32(4)) * u32(4))
        for g in static_range(GROUPS):
            put(acc, g * 4 * TN, sums)
            cuda.syncthreads()
            drained(tid, s0, row0 + u32(g * GM), column0, m, n, given)
            cuda.syncthreads()

    return conv_plain
