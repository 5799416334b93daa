"""Convolution of halves by tensor cores: warps multiply tiles of shared memory that asynchronous copies fill."""

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
from bolt_numba.kernels.cuda.convolution.tail import BYTE_TAIL, TAIL, Ending, drain, float_ending, tail_extents
from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, Macro, ceil_div, cuda_kernel, inline, inline_source
from bolt_numba.kernels.cuda.elementwise.epilogue import activation
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import (
    cp_async16,
    cp_async16_zfill,
    cp_async_commit,
    cp_async_wait,
    cuda,
    shared_address,
    static_range,
)
from bolt_numba.kernels.cuda.products.tail import TileSlice
from bolt_numba.kernels.extents import Numbers

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


@inline
def copy_or_clear(to, pixel, size, outside):
    """What is outside the image counts as zeros."""
    cp_async16_zfill(to, pixel, size)


@inline
def copy_or_else(to, pixel, size, outside):
    """What is outside the image counts as 16 bytes that are elsewhere."""
    cp_async16(to, pixel if size > 0 else outside)


@record(frozen=True)
class Lines:
    """What a kernel multiplies: a kind of `language.instructions.MMA`, bytes of an element, what becomes of the sums.

    wide: whether there are more than 31 taps · scattered: see `tail.drain`.
    """

    kind: str
    size: int
    ending: Ending
    wide: bool
    scattered: bool


def line_extents(of: Lines, bias: int, residual: int) -> Any:
    """Reaches of the fields; bytes of an element of bias and residual."""

    def extents(a: Numbers) -> dict[str, int]:
        line, n = ceil_div(a.k * of.size, ROW) * ROW, a.n * a.groups
        own = {"x": of.size * pixels(a) * a.pitch, "w": n * line, "table": 1024, "columns": 4 * n, "factors": 4 * n}
        own |= {"outside": 16, "scales": 16}
        return own | tail_extents(a, lang.SIZES[of.ending.y], bias, residual)

    return extents


@functools.cache
def conv_lines(tile: WarpTile, of: Lines, bias_size: int, residual_size: int) -> CudaKernel:  # budget: with its body
    """Fields: see `reading.READING`, `tail.TAIL` and `tail.BYTE_TAIL`; w: see `pack_lines`.

    Channels of a group and pixels begin at multiples of 16 bytes.
    """
    BM, BN, WM, WN, NT = tile.m, tile.n, tile.wm, tile.wn, tile.threads
    ACROSS, MT, COLUMNS = BN // WN, WM // 16, WN // 8
    SUMS, A_REGS, B_REGS, RSTEP = MT * COLUMNS * 4, MT * 4, COLUMNS * 2, NT // 4
    A_ROWS, B_ROWS, A_BYTES, STAGE = BM * 4 // NT, BN * 4 // NT, BM * ROW, (BM + BN) * ROW
    PRE, WAIT, LAST, END = STAGES - 1, STAGES - 2, (STAGES - 1) * STAGE, STAGES * STAGE
    PITCH, SLICE = BN + 8, BM // WM * 16
    ldsm_a, ldsm_b = Macro("ldsm", MT, 16 * ROW), Macro("ldsm", COLUMNS // 2, 16 * ROW)
    halves = of.size == 2
    mma, fill = Macro("mma_tile", MT, COLUMNS, of.kind), Macro("fill", SUMS, 0.0 if halves else 0)
    SIZE, number = of.size, np.float32 if halves else np.uint32
    PART, TERMS, SHIFT = 16 // of.size, ROW // of.size, 5 if halves else 6
    put = Macro("sts_sums", COLUMNS, 4 * PITCH, "f" if halves else "r")
    copy_filters = filter_copies(B_ROWS, RSTEP * ROW, RSTEP)
    look, word = looking(of.wide), word_of_bits(of.wide)
    copy_pixels = image_copies(A_ROWS, RSTEP * ROW, 16, copy_or_clear if halves else copy_or_else, of.wide)
    drained = drain(TileSlice(SLICE, BN, PITCH, 16, WM, NT), of.ending, of.scattered)
    SHARED = max(END, 4 * SLICE * PITCH)

    @cuda_kernel(
        threads=NT, blocks=lambda a: (ceil_div(a.m, BM), ceil_div(a.n, BN), a.groups * a.splits), shared=SHARED + TABLE,
        unrolled=True, extents=line_extents(of, bias_size, residual_size), **READING, **TAIL, **BYTE_TAIL,
    )  # fmt: skip
    def conv_tensor(
        x, w, table, m, n, k, taps, cg, pitch, groups, manyd, byd, stepd, begind, sized, manyh, byh, steph, beginh,
        sizeh, manyw, byw, stepw, beginw, sizew, yn, yd, yh, yw, splits, split_bytes, bias, res, y, ldy, act0, act1,
        columns, factors, outside, scales,
    ):  # fmt: skip
        s0 = shared_address(cuda.shared.array(0, np.uint8))
        offsets = u32(s0 + u32(SHARED))
        tid = u32(cuda.threadIdx.x)
        row0, column0 = u32(cuda.blockIdx.x * BM), u32(cuda.blockIdx.y * BN)
        tiles = i32(u32(u32(k) + u32(TERMS - 1)) >> u32(SHIFT))
        group, part, start, nk = share_of(cuda.blockIdx.z, splits, tiles)
        share_offsets(table, offsets, tid)
        place = (manyd, byd, manyh, byh, manyw, byw)
        steps = (stepd, begind, sized, steph, beginh, sizeh, stepw, beginw, sizew)
        line, chunk = u32(tid >> u32(2)), u32(tid & u32(3))
        first, seen = cuda.local.array(A_ROWS, np.int32), cuda.local.array(A_ROWS, word)
        for i in static_range(A_ROWS):
            first[i], seen[i] = look(u32(row0 + line + u32(i * RSTEP)), u32(m), table, taps, place, steps)
        tap, channel = walked(i32(0), i32(0), i32(start * TERMS + chunk * PART), cg)
        xg, bytes_apart = x + SIZE * group * cg, u32(SIZE * pitch)
        b_line = i64(tiles) * ROW
        pb = w + (group * n + column0 + line) * b_line + i64(start) * ROW + (i64(chunk) << 4)
        swizzled = u32((chunk ^ ((line >> u32(1)) & u32(3))) << u32(4))
        b_step, b_left = RSTEP * b_line, i32(i64(n) - i64(column0) - i64(line))
        ta = u32(s0 + line * u32(ROW) + swizzled)
        tb = u32(ta + u32(A_BYTES))
        lane, warp = u32(tid & u32(31)), u32(tid >> u32(5))
        wm, wn = u32((warp // u32(ACROSS)) * u32(WM)), u32((warp % u32(ACROSS)) * u32(WN))
        ra, rb = u32(wm + (lane & u32(15))), u32(wn + (lane & u32(7)) + ((lane >> u32(4)) << u32(3)))
        la = u32(ra * u32(ROW) + (((lane >> u32(4)) ^ ((ra >> u32(1)) & u32(3))) << u32(4)))
        lb = u32(rb * u32(ROW) + ((((lane >> u32(3)) & u32(1)) ^ ((rb >> u32(1)) & u32(3))) << u32(4)) + u32(A_BYTES))
        acc = cuda.local.array(SUMS, number)
        a, b = cuda.local.array(A_REGS, np.uint32), cuda.local.array(B_REGS, np.uint32)
        fill(acc)
        now, to = u32(0), u32(0)
        cuda.syncthreads()
        for kt in range(PRE):
            copy_pixels(u32(ta + to), xg + SIZE * i64(channel), first, seen, offsets, tap, bytes_apart, outside)
            copy_filters(u32(tb + to), pb, b_step, b_left if kt < nk else i32(0))
            cp_async_commit()
            pb += ROW
            tap, channel = walked(tap, channel, i32(TERMS), cg)
            to = u32(to + u32(STAGE))
        for kt in range(nk):
            cp_async_wait(WAIT)
            cuda.syncthreads()
            copy_pixels(u32(ta + to), xg + SIZE * i64(channel), first, seen, offsets, tap, bytes_apart, outside)
            copy_filters(u32(tb + to), pb, b_step, b_left if kt + PRE < nk else i32(0))
            cp_async_commit()
            pb += ROW
            tap, channel = walked(tap, channel, i32(TERMS), cg)
            for s in static_range(2):
                ldsm_a(a, u32(s0 + now + (la ^ u32(s * 32))), 0)
                ldsm_b(b, u32(s0 + now + (lb ^ u32(s * 32))), 0)
                mma(acc, a, b)
            to, now = next_stage(to, STAGE, LAST), next_stage(now, STAGE, LAST)
        cp_async_wait(0)
        cuda.syncthreads()
        tail, to_y, apart = (bias, res, columns, factors, scales), y + part * split_bytes, (yn, yd, yh, yw)
        given = group * n, n, tail, to_y, ldy, act0, act1, place, apart
        slice_row = u32((warp // u32(ACROSS)) * u32(16) + (lane >> u32(2)))
        sums = u32(s0 + (slice_row * u32(PITCH) + wn + ((lane & u32(3)) << u32(1))) * u32(4))
        for i in static_range(MT):
            put(acc, i * COLUMNS * 4, sums)
            cuda.syncthreads()
            drained(tid, s0, row0 + u32(i * 16), column0, m, n, given)
            cuda.syncthreads()

    return conv_tensor


@functools.cache
def halves(tile: WarpTile, dtype: str, wide: bool, scattered: bool, activate: Any) -> CudaKernel:
    """Of f16 or bf16."""
    return conv_lines(tile, Lines(dtype, 2, float_ending(dtype, activate), wide, scattered), 2, 2)


@functools.cache
def halves_in_parts(tile: WarpTile, dtype: str, wide: bool) -> CudaKernel:
    """The same, whose results are f32."""
    return conv_lines(tile, Lines(dtype, 2, float_ending("f32", activation(None)), wide, False), 2, 2)


@functools.cache
def widened_channels(dtype: str) -> CudaKernel:
    """Runs of ``cg`` channels to runs of ``wide``, which is a multiple of 16 bytes, with zeros behind."""
    size = lang.SIZES[dtype]
    VECTOR = 16 // size
    load, store = getattr(lang, f"load_{dtype}_nc"), getattr(lang, f"store{VECTOR}_{dtype}")
    ZERO = np.float32(0) if size == 2 else np.uint8(0)
    given = ", ".join(f"load(at + {size * i}) if left > {i} else ZERO" for i in range(VECTOR))
    text = f"def copy_run(to, at, left):\n    store(to, {given})\n"
    copy_run = inline_source(text, "copy_run", load=load, store=store, ZERO=ZERO)

    @cuda_kernel(
        threads=256, blocks=lambda a: ceil_div(a.runs * a.wide // VECTOR, 256), x=PTR, y=PTR, runs=I64, cg=I64,
        wide=I64, extents=lambda a: {"x": size * a.runs * a.cg, "y": size * a.runs * a.wide},
    )  # fmt: skip
    def widen_channels(x, y, runs, cg, wide):
        """x: [runs][cg] · y: [runs][wide], zeros behind."""
        i = u32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
        across = u32(u32(wide) // u32(VECTOR))
        run = u32(i // across)
        if run < u32(runs):
            channel = i64(i - run * across) * VECTOR
            copy_run(y + size * VECTOR * i64(i), x + size * (i64(run) * cg + channel), cg - channel)

    return widen_channels
