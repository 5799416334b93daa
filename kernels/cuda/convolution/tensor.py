"""Convolution of halves by tensor cores: warps multiply tiles of shared memory that asynchronous copies fill."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.convolution.reading import (
    READING,
    TABLE,
    filter_copies,
    looking,
    next_stage,
    pixels,
    share_offsets,
    walked,
    word_of_bits,
)
from bolt_numba.kernels.cuda.convolution.tail import TAIL, SliceOfTile, drain, of_group, tail_extents
from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, Macro, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.elementwise.epilogue import activation
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import (
    cp_async16_zfill,
    cp_async_commit,
    cp_async_wait,
    cuda,
    load_shared_i32,
    shared_address,
    static_range,
    store2_shared_f32,
)
from bolt_numba.types import Array

u32, i32, i64 = np.uint32, np.int32, np.int64
ROW, STAGES = 64, 4
"""Bytes of a line in a stage, and stages."""


@record(frozen=True)
class WarpTile:
    """Rows and columns of a block's tile, and of a warp's."""

    m: int
    n: int
    wm: int
    wn: int

    @property
    def threads(self) -> int:
        return 32 * self.m * self.n // (self.wm * self.wn)


WARP_TILES = (WarpTile(128, 128, 64, 32), WarpTile(128, 64, 64, 32), WarpTile(64, 64, 32, 32), WarpTile(64, 32, 32, 16))


def pack_lines(w: Array, groups: int, taps: list[int], channels: int) -> Array:
    """Filters [k, cg, all taps] to [groups, k / groups, terms] of given taps, zeros behind channels and terms."""
    k, cg, _ = w.shape
    line = ROW // w.dtype.itemsize
    terms = len(taps) * channels
    by_tap = np.zeros((k, len(taps), channels), w.dtype)
    by_tap[:, :, :cg] = w[:, :, taps].swapaxes(1, 2)
    out = np.zeros((groups, k // groups, ceil_div(terms, line) * line), w.dtype)
    out[:, :, :terms] = by_tap.reshape(groups, k // groups, terms)
    return out


def line_extents(dtype: str) -> Any:
    """Reaches of the fields."""
    size = lang.SIZES[dtype]

    def extents(a: Any) -> dict[str, int]:
        line = ceil_div(a.k * size, ROW) * ROW
        own = {"x": size * pixels(a) * a.pitch, "w": a.groups * a.n * line, "table": 1024}
        return own | tail_extents(a, dtype)

    return extents


@functools.cache
def conv_halves(tile: WarpTile, dtype: str, wide: bool, scattered: bool, activate: Any) -> CudaKernel:  # budget: body
    """Fields: see `reading.READING` and `tail.TAIL`; w: see `pack_lines`.

    Channels of a group are a multiple of 8, and pixels begin at multiples of 16 bytes.  wide: whether there are more
    than 31 taps.
    """
    BM, BN, WM, WN, NT = tile.m, tile.n, tile.wm, tile.wn, tile.threads
    ACROSS, MT, COLUMNS = BN // WN, WM // 16, WN // 8
    SUMS, A_REGS, B_REGS, RSTEP = MT * COLUMNS * 4, MT * 4, COLUMNS * 2, NT // 4
    A_ROWS, B_ROWS, A_BYTES, STAGE = BM * 4 // NT, BN * 4 // NT, BM * ROW, (BM + BN) * ROW
    PRE, WAIT, LAST, END = STAGES - 1, STAGES - 2, (STAGES - 1) * STAGE, STAGES * STAGE
    PITCH, SLICE = BN + 8, BM // WM * 16
    ldsm_a, ldsm_b = Macro("ldsm", MT, 16 * ROW), Macro("ldsm", COLUMNS // 2, 16 * ROW)
    mma, fill = Macro("mma_tile", MT, COLUMNS, dtype), Macro("fill", SUMS, 0.0)
    copy_filters = filter_copies(B_ROWS, RSTEP * ROW, RSTEP)
    look, word = looking(wide), word_of_bits(wide)
    LAST_BIT = 8 * word().itemsize - 1
    drained = drain(SliceOfTile(SLICE, BN, PITCH, 16, WM, NT), dtype, activate, scattered)
    SHARED = max(END, 4 * SLICE * PITCH)

    @cuda_kernel(
        threads=NT, blocks=lambda a: (ceil_div(a.m, BM), ceil_div(a.n, BN), a.groups), shared=SHARED + TABLE,
        unrolled=True, extents=line_extents(dtype), **READING, **TAIL,
    )  # fmt: skip
    def conv_tensor(
        x, w, table, m, n, k, taps, cg, pitch, groups, manyd, byd, stepd, begind, sized, manyh, byh, steph, beginh,
        sizeh, manyw, byw, stepw, beginw, sizew, yn, yd, yh, yw, bias, res, y, ldy, act0, act1,
    ):  # fmt: skip
        s0 = shared_address(cuda.shared.array(0, np.uint8))
        offsets = u32(s0 + u32(SHARED))
        tid = u32(cuda.threadIdx.x)
        row0, column0, group = u32(cuda.blockIdx.x * BM), u32(cuda.blockIdx.y * BN), i64(cuda.blockIdx.z)
        share_offsets(table, offsets, tid)
        place = (manyd, byd, manyh, byh, manyw, byw)
        steps = (stepd, begind, sized, steph, beginh, sizeh, stepw, beginw, sizew)
        line, chunk = u32(tid >> u32(2)), u32(tid & u32(3))
        first, seen = cuda.local.array(A_ROWS, np.int32), cuda.local.array(A_ROWS, word)
        for i in static_range(A_ROWS):
            first[i], seen[i] = look(u32(row0 + line + u32(i * RSTEP)), u32(m), table, taps, place, steps)
        tap, channel = walked(i32(0), i32(0), i32(chunk << u32(3)), cg)
        xg, bytes_apart = x + 2 * group * cg, 2 * i64(pitch)
        nk = i32(u32(u32(k) + u32(31)) >> u32(5))
        b_line = i64(nk) * ROW
        pb = w + (group * n + column0 + line) * b_line + (i64(chunk) << 4)
        swizzled = u32((chunk ^ ((line >> u32(1)) & u32(3))) << u32(4))
        ta = u32(s0 + line * u32(ROW) + swizzled)
        lane, warp = u32(tid & u32(31)), u32(tid >> u32(5))
        wm, wn = u32((warp // u32(ACROSS)) * u32(WM)), u32((warp % u32(ACROSS)) * u32(WN))
        ra, rb = u32(wm + (lane & u32(15))), u32(wn + (lane & u32(7)) + ((lane >> u32(4)) << u32(3)))
        la = u32(ra * u32(ROW) + (((lane >> u32(4)) ^ ((ra >> u32(1)) & u32(3))) << u32(4)))
        lb = u32(rb * u32(ROW) + ((((lane >> u32(3)) & u32(1)) ^ ((rb >> u32(1)) & u32(3))) << u32(4)) + u32(A_BYTES))
        acc = cuda.local.array(SUMS, np.float32)
        a, b = cuda.local.array(A_REGS, np.uint32), cuda.local.array(B_REGS, np.uint32)
        fill(acc)
        now, to = u32(0), u32(0)
        cuda.syncthreads()
        for kt in range(nk + PRE):
            if kt >= PRE:
                cp_async_wait(WAIT)
                cuda.syncthreads()
            if kt < nk:
                bit = u32(min(tap, i32(LAST_BIT)))
                offset, at = load_shared_i32(u32(offsets + (bit << u32(2)))), xg + 2 * i64(channel)
                for i in static_range(A_ROWS):
                    size = u32(u32(u32(seen[i] >> word(bit)) & u32(1)) << u32(4))
                    cp_async16_zfill(
                        u32(ta + to + u32(i * RSTEP * ROW)), at + i64(i32(first[i] + offset)) * bytes_apart, size
                    )
                copy_filters(u32(ta + to + u32(A_BYTES)), pb, RSTEP * b_line, i32(n) - i32(column0 + line))
                pb += ROW
                tap, channel = walked(tap, channel, i32(32), cg)
                to = next_stage(to, STAGE, LAST)
            cp_async_commit()
            if kt >= PRE:
                for s in static_range(2):
                    ldsm_a(a, u32(s0 + now + (la ^ u32(s * 32))), 0)
                    ldsm_b(b, u32(s0 + now + (lb ^ u32(s * 32))), 0)
                    mma(acc, a, b)
                now = next_stage(now, STAGE, LAST)
        cp_async_wait(0)
        cuda.syncthreads()
        at_bias, at_res = of_group(bias, 2 * group * n), of_group(res, 2 * group * n)
        slice_row = u32((warp // u32(ACROSS)) * u32(16) + (lane >> u32(2)))
        sums = u32(s0 + (slice_row * u32(PITCH) + wn + ((lane & u32(3)) << u32(1))) * u32(4))
        for i in static_range(MT):
            for j in static_range(COLUMNS):
                at = (i * COLUMNS + j) * 4
                store2_shared_f32(u32(sums + u32(j * 32)), acc[at], acc[at + 1])
                store2_shared_f32(u32(sums + u32(j * 32 + 32 * PITCH)), acc[at + 2], acc[at + 3])
            cuda.syncthreads()
            drained(
                tid, s0, u32(row0 + u32(i * 16)), column0, u32(m), i64(n), at_bias, at_res, y + 2 * group * n, i64(ldy),
                act0, act1, place, (yn, yd, yh, yw),
            )  # fmt: skip
            cuda.syncthreads()

    return conv_tensor


@functools.cache
def widened_channels(dtype: str) -> CudaKernel:
    """Runs of ``cg`` channels to runs of ``wide``, a multiple of 8, with zeros behind."""
    size = lang.SIZES[dtype]
    load, store8 = getattr(lang, f"load_{dtype}_nc"), getattr(lang, f"store8_{dtype}")

    @cuda_kernel(
        threads=256, blocks=lambda a: ceil_div(a.runs * a.wide // 8, 256), x=PTR, y=PTR, runs=I64, cg=I64, wide=I64,
        extents=lambda a: {"x": size * a.runs * a.cg, "y": size * a.runs * a.wide}, unrolled=True,
    )  # fmt: skip
    def widen_channels(x, y, runs, cg, wide):
        i = u32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
        across = u32(u32(wide) >> u32(3))
        run = u32(i // across)
        if run < u32(runs):
            channel = i64(i - run * across) * 8
            at, left = x + size * (i64(run) * cg + channel), cg - channel
            v = cuda.local.array(8, np.float32)
            for j in static_range(8):
                v[j] = load(at + size * j) if left > j else np.float32(0)
            store8(y + size * 8 * i64(i), v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7])

    return widen_channels


def samples() -> dict[str, CudaKernel]:
    plain = activation(None)
    made = {f"f16 {t.m} x {t.n}": conv_halves(t, "f16", False, False, plain) for t in WARP_TILES}
    made |= {"many taps": conv_halves(WARP_TILES[0], "bf16", True, True, plain), "channels": widened_channels("f16")}
    return made
