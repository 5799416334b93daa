"""Products on tensor cores of GPUs of the Hopper kind: halves, tf32 and bytes, whose sums are f32 or i32.

One warp group of a block, the producer, has the GPU copy boxes of both operands into a ring of stages.  The others
multiply from there, a part of the tile's rows each, by instructions of a whole warp group.  Barriers in shared memory
say which stages are full and which are empty.  A block takes tile after tile: while one is finished, the first stages
of the next are on their way.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.kernels.cuda.declare import MAP, SM_90A, CudaKernel, Macro, MappedTensor, cuda_kernel, inline
from bolt_numba.kernels.cuda.language.lang import (
    cuda,
    fence_mbar_init,
    fence_tensor_map,
    mbar_arrive,
    mbar_expect_tx,
    mbar_init,
    mbar_wait,
    named_barrier,
    setmaxnreg_dec,
    setmaxnreg_inc,
    shared_address,
    static,
    static_range,
    tma_load_3d,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.place import PLACE, grid, reaches_of, shared_out, tile_place
from bolt_numba.kernels.cuda.products.tail import TAIL, TileSlice, drain
from bolt_numba.kernels.cuda.products.tensor import INTEGERS, SIZES
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers

u32, i32, i64 = np.uint32, np.int32, np.int64
GROUP = 128
"""Threads of a warp group."""
ROW = 128
"""Bytes of the terms of a line in one stage, within which 16 are swizzled."""
ATOM = 8 * ROW
"""Bytes after which the swizzle begins again."""
LINES, STEPS = 64, 4
"""Lines of one multiplication, and of a box of order "m"; multiplications of a stage, of 32 bytes of terms each."""
COLUMNS, PITCH = 32, 40
"""Columns of a slice of sums on its way to memory, and from row to row; rows begin at different banks."""
PRODUCER, CONSUMER = 24, 240
"""Registers of a thread, where there are two groups of consumers."""


@record(frozen=True)
class GroupTile:
    """Rows and columns of a block's tile, groups of consumers, who share the rows, and stages.

    rate: see `choose.Tiled`.
    """

    m: int
    n: int
    groups: int
    stages: int
    rate: float

    @property
    def threads(self) -> int:
        return GROUP * (self.groups + 1)

    @property
    def rows(self) -> int:
        """Of one group."""
        return self.m // self.groups

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return (self.m + self.n) * ROW


GROUP_TILES = (
    GroupTile(128, 256, 2, 4, 1800.0), GroupTile(256, 128, 2, 4, 1700.0), GroupTile(128, 128, 2, 6, 1500.0),
    GroupTile(64, 256, 1, 5, 1400.0), GroupTile(64, 128, 1, 8, 1100.0),
)  # fmt: skip


def _map_of(a: Numbers, name: str, order: Order, lines: int, tile: int, size: int) -> MappedTensor:
    """Operand "a" or "b" of a launch, of so many lines, ``tile`` of which a block takes; size: bytes of an element."""
    address, pitch, apart = getattr(a, name), getattr(a, f"ld{name}"), getattr(a, f"{name}_block")
    run, runs, box = (a.k, lines, tile) if order.dense == "k" else (lines, a.k, ROW // size)
    dims = run, runs, a.matrices if apart else 1
    return MappedTensor(address, size, dims, (size * pitch, apart or size * pitch * runs), (ROW // size, box, 1))


def _descriptor(order: Order) -> tuple[int, int]:
    """Of a tile at address 0: bits that say how it lies, and what 32 bytes (16 halves) of terms further add."""
    if order.dense == "k":
        return 1 << 62 | (ATOM >> 4) << 32 | 1 << 16, 32 >> 4
    return 1 << 62 | (ATOM >> 4) << 32 | (LINES * ROW >> 4) << 16, 16 * ROW >> 4


@functools.cache
def _boxes(order: Order, lines: int) -> Inline:
    """``load(to, operand, full, line, term, matrix)``: the copies of an operand's tile."""
    if order.dense == "k":

        @inline
        def load_lines(to, operand, full, line, term, matrix):
            tma_load_3d(to, operand, full, term, line, matrix)

        return load_lines
    COUNT = lines // LINES

    @inline
    def load_turned(to, operand, full, line, term, matrix):
        for i in range(COUNT):
            tma_load_3d(u32(to + u32(i * (LINES * ROW))), operand, full, u32(line + u32(i * LINES)), term, matrix)

    return load_turned


@functools.cache
def _items(tile: GroupTile, terms: int) -> Inline:
    """``(row, column, block, split, first, nk) = item(i, m, n, k, tiles, splits)``: what part i of the work is.

    tiles: of all matrices · first, nk: the first term, and how many stages of ``terms``.
    """
    TERMS, place, share = terms, tile_place(tile.m, tile.n), shared_out(terms)

    @inline
    def item_of(i, m, n, k, tiles, splits):
        split = u32(i // tiles)
        row, column, block = place(u32(i - split * tiles), m, n)
        first, nk = share(k, splits, split)
        return row, column, block, split, u32(first * TERMS), i32(nk)

    return item_of


@functools.cache
def _producer(tile: GroupTile, terms: int, a_order: Order, b_order: Order) -> Inline:
    """``produce(...)`` of one thread: all copies of a block, each once its stage is empty."""
    TERMS, item_of = terms, _items(tile, terms)
    load_a, load_b = _boxes(a_order, tile.m), _boxes(b_order, tile.n)
    STAGES, A_BYTES, STAGE = tile.stages, tile.m * ROW, tile.stage

    @inline
    def produce(s0, full0, tiles, splits, m, n, k, a_block, b_block, a_map, b_map):
        fence_tensor_map(a_map)
        fence_tensor_map(b_map)
        i, items, stage, turn = u32(cuda.blockIdx.x), u32(tiles * u32(splits)), u32(0), u32(1)
        while i < items:
            row, column, block, _, term, nk = item_of(i, m, n, k, tiles, splits)
            of_a, of_b = block if a_block != 0 else u32(0), block if b_block != 0 else u32(0)
            for _ in range(nk):
                full, to = u32(full0 + (stage << u32(4))), u32(s0 + stage * u32(STAGE))
                mbar_wait(u32(full + u32(8)), turn)
                mbar_expect_tx(full, u32(STAGE))
                load_a(to, a_map, full, row, term, of_a)
                load_b(u32(to + u32(A_BYTES)), b_map, full, column, term, of_b)
                term, stage = u32(term + u32(TERMS)), u32(stage + u32(1))
                if stage == u32(STAGES):
                    stage, turn = u32(0), u32(turn ^ u32(1))
            i = u32(i + u32(cuda.gridDim.x))

    return produce


@functools.cache
def _consumer(tile: GroupTile, kind: str, a_order: Order, b_order: Order) -> Inline:
    """``stage, turn = add(acc, ...)`` of a warp group: products of ``nk`` stages, each given back once it is read.

    One multiplication of a stage is under way while the next stage is awaited.
    """
    ROWS, A_BYTES, STAGE, STAGES, HALF = tile.rows, tile.m * ROW, tile.stage, tile.stages, tile.n // 2
    (A_BITS, A_STEP), (B_BITS, B_STEP), NEXT = _descriptor(a_order), _descriptor(b_order), LINES * ROW >> 4
    SLABS, multiply = ROWS // LINES, Macro("wgmma", tile.n, kind, int(a_order.dense == "m"), int(b_order.dense == "m"))

    @inline
    def add(acc, s0, full0, group, lane, stage, turn, nk):
        used = u32(0)
        for _ in range(nk):
            full, now = u32(full0 + (stage << u32(4))), u32(s0 + stage * u32(STAGE))
            mbar_wait(full, turn)
            da = i64(A_BITS) | i64(u32(now + group * u32(ROWS * ROW)) >> u32(4))
            db = i64(B_BITS) | i64(u32(now + u32(A_BYTES)) >> u32(4))
            wgmma_fence()
            for s in static_range(STEPS):
                for slab in static_range(SLABS):
                    multiply(acc, slab * HALF, da + (s * A_STEP + slab * NEXT), db + s * B_STEP, u32(1))
            wgmma_commit()
            wgmma_wait(1)
            if used != 0 and lane == 0:
                mbar_arrive(used)
            used, stage = u32(full + u32(8)), u32(stage + u32(1))
            if stage == u32(STAGES):
                stage, turn = u32(0), u32(turn ^ u32(1))
        wgmma_wait(0)
        if used != 0 and lane == 0:
            mbar_arrive(used)
        return stage, turn

    return add


@functools.cache
def _ending(tile: GroupTile, stored: Any, integers: bool) -> Inline:
    """``end(acc, part, thread, group, ...)`` of a warp group: its sums to memory, slice by slice of shared memory."""
    SLICES, ACROSS = tile.rows // LINES * (tile.n // COLUMNS), tile.n // COLUMNS
    put = Macro("sts_sums", COLUMNS // 8, 4 * PITCH, "r" if integers else "f")
    drained = drain(TileSlice(LINES, COLUMNS, PITCH, LINES, 0, GROUP), stored, integers)

    @inline
    def end(acc, part, thread, barrier, row, column, block, matrices, m, n, bias, residual, y, ldy, alpha, lo, hi, act0,
            act1):  # fmt: skip
        line, pair = u32((thread >> u32(5)) * u32(16) + ((thread & u32(31)) >> u32(2))), u32(thread & u32(3))
        own = u32(part + line * u32(4 * PITCH) + pair * u32(8))
        for p in range(SLICES):
            down, across = u32(row + u32(p // ACROSS) * u32(LINES)), u32(column + u32(p % ACROSS) * u32(COLUMNS))
            if down < u32(m) and across < u32(n):
                for s in static_range(SLICES):
                    if p == s:
                        put(acc, s * (COLUMNS // 2), own)
                named_barrier(barrier, u32(GROUP))
                drained(
                    thread, part, down, across, block, matrices, m, n, bias, residual, y, ldy, alpha, lo, hi, act0, act1
                )
                named_barrier(barrier, u32(GROUP))

    return end


@functools.cache
def wgmma_product(tile: GroupTile, kind: str, a_order: Order, b_order: Order, stored: Any) -> CudaKernel:
    """The kernel for operands of a kind of `SIZES` in these orders, whose rows begin at multiples of 16 bytes.

    Its fields are `PLACE`, without a table, and `TAIL`.  Order "m" is for halves alone.
    """
    SIZE, TERMS, integers = SIZES[kind], ROW // SIZES[kind], kind in INTEGERS
    number = np.uint32 if integers else np.float32
    ROWS, STAGES, PART, END = tile.rows, tile.stages, 4 * LINES * PITCH, tile.stage * tile.stages
    SUMS, BARRIERS, RESERVED = ROWS * tile.n // GROUP, END + tile.groups * PART, int(tile.groups == 2)
    produce, add = _producer(tile, TERMS, a_order, b_order), _consumer(tile, kind, a_order, b_order)
    fill, item_of = Macro("fill", SUMS, 0 if integers else 0.0), _items(tile, TERMS)
    end = _ending(tile, stored, integers)
    BM, BN, WARPS = tile.m, tile.n, 4 * tile.groups

    def maps(a: Numbers) -> dict[str, MappedTensor]:
        return {"a_map": _map_of(a, "a", a_order, a.m, BM, SIZE), "b_map": _map_of(a, "b", b_order, a.n, BN, SIZE)}

    @cuda_kernel(
        threads=tile.threads, blocks=lambda a: min(math.prod(grid(BM, BN)(a)), a.processors),
        shared=BARRIERS + 16 * STAGES + ATOM, arch=SM_90A, unrolled=True,
        extents=reaches_of(SIZE, a_order, b_order, stored), maps=maps, **PLACE, **TAIL, a_map=MAP, b_map=MAP,
    )  # fmt: skip
    def product_wgmma(a, b, table, m, n, k, lda, ldb, a_block, b_block, matrices, splits, split_bytes, bias, residual,
                      y, ldy, alpha, lo, hi, act0, act1, a_map, b_map):  # fmt: skip
        s0 = u32((shared_address(cuda.shared.array(0, np.uint8)) + u32(ATOM - 1)) & u32(0xFFFFFFFF - ATOM + 1))
        full0, tid = u32(s0 + u32(BARRIERS)), u32(cuda.threadIdx.x)
        down, across = u32((u32(m) + u32(BM - 1)) // u32(BM)), u32((u32(n) + u32(BN - 1)) // u32(BN))
        tiles = u32(down * across * u32(matrices))
        if tid == 0:
            for s in range(STAGES):
                mbar_init(u32(full0 + u32(s * 16)), u32(1))
                mbar_init(u32(full0 + u32(s * 16 + 8)), u32(WARPS))
            fence_mbar_init()
        cuda.syncthreads()
        if tid < u32(GROUP):
            if static(RESERVED):
                setmaxnreg_dec(PRODUCER)
            if tid == 0:
                produce(s0, full0, tiles, splits, m, n, k, a_block, b_block, a_map, b_map)
        else:
            if static(RESERVED):
                setmaxnreg_inc(CONSUMER)
            group, lane, thread = u32((tid >> u32(7)) - u32(1)), u32(tid & u32(31)), u32(tid & u32(GROUP - 1))
            i, items, stage, turn = u32(cuda.blockIdx.x), u32(tiles * u32(splits)), u32(0), u32(0)
            acc = cuda.local.array(SUMS, number)
            while i < items:
                row, column, block, split, _, nk = item_of(i, m, n, k, tiles, splits)
                fill(acc)
                stage, turn = add(acc, s0, full0, group, lane, stage, turn, nk)
                end(
                    acc, u32(s0 + u32(END) + group * u32(PART)), thread, u32(group + u32(1)),
                    u32(row + group * u32(ROWS)), column, block, matrices, m, n, bias, residual,
                    y + i64(split) * split_bytes, ldy, alpha, lo, hi, act0, act1,
                )  # fmt: skip
                i = u32(i + u32(cuda.gridDim.x))

    return product_wgmma
