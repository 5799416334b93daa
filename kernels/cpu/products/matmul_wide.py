"""Matrix products of f64, and of integers of 32 and 64 bits (modulo 2 ** bits): tiles over copied panels."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.selects import either
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    ceil_div,
    copy_bytes,
    fill_bytes,
    inline_source,
    load_i64,
    rows_strided,
    split,
    tile_rank1_rows_as,
    tile_row,
    tile_store,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.matmul import conflicting, is_parallel, swapped
from bolt_numba.kernels.cpu.products.pack import aligned_empty, aligned_zeros, run_shares
from bolt_numba.kernels.cpu.products.sweep import pack_stride
from bolt_numba.kernels.cpu.products.sweep_bytes import HEIGHT, VARIANTS, height
from bolt_numba.kernels.cpu.products.sweep_extents import greatest
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.products import block_index, geometry
from bolt_numba.kernels.jit import I64, PTR, Inline, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.matmul import MatMul

KINDS = {"f8": (0, 8), "i4": (1, 4), "u4": (1, 4), "i8": (2, 8), "u8": (2, 8)}
"""Kind of element (see `tile_rank1_rows_as`) and its bytes, by NumPy's names."""
WIDTH = 2 * BYTES
"""Bytes of a row of a panel."""


def _tiles(kind: int, size: int) -> Inline:
    """``tile_any(mr, ...)``: one tile of C, stored at ``to``."""

    def of(mr: int) -> Inline:
        @inline
        def tile(a, lda, k, b, bias, to):
            acc, rows = tile_row(mr, 2, bias), rows_strided(mr, a, lda)
            for q in range(k):
                acc = tile_rank1_rows_as(acc, rows, size * q, b, kind)
                b += WIDTH
            tile_store(acc, to, WIDTH)

        return tile

    arguments = "a, lda, k, b, bias, to"
    lines = [f"def tile_any(mr, {arguments}):"]
    for mr in VARIANTS:
        lines += [f"    {'if' if mr == HEIGHT else 'elif'} mr == {mr}:", f"        tile{mr}({arguments})"]
    return inline_source("\n".join(lines) + "\n", "tile_any", **{f"tile{mr}": of(mr) for mr in VARIANTS})


ROWS_AT_ONCE = 32
"""Rows of B that are read along all columns before the next ones."""


def _packed_reach(a: Numbers) -> dict[str, Reach]:
    return {"b": a.row * a.blocks * a.k, "to": WIDTH * a.blocks * -(-a.row // WIDTH) * a.k}


@native(b=PTR, to=PTR, blocks=I64, k=I64, row=I64, extents=_packed_reach)
def pack_wide(p, tid, nthreads):
    """Panels [blocks][panel][k][`WIDTH` bytes] of dense matrices with rows of ``row`` bytes, zero-padded."""
    panels = ceil_div(p.row, WIDTH)
    lo, hi = split(p.blocks * panels, tid, nthreads)
    for begin in range(0, p.k, ROWS_AT_ONCE):
        for unit in range(lo, hi):
            block, j = unit // panels, unit % panels
            nbytes = min(p.row - WIDTH * j, WIDTH)
            for q in range(begin, min(begin + ROWS_AT_ONCE, p.k)):
                to = p.to + WIDTH * (unit * p.k + q)
                copy_bytes(to, p.b + p.row * (block * p.k + q) + WIDTH * j, nbytes)
                fill_bytes(to + nbytes, np.uint8(0), WIDTH - nbytes)


def _multiplied(size: int, a: Any) -> dict[str, Reach]:
    """Extents of `multiply` for elements of ``size`` bytes."""
    rows, panels = a.m - 1, -(-a.n * size // WIDTH)
    first, b, c = (greatest(a.offsets, a.blocks, 0, i, i) for i in range(3))
    return {
        "a": first + a.lda * rows + size * a.k,
        "b": b + WIDTH * a.k * panels,
        "c": size * (a.ldc * (c + rows) + a.n),
        "bias": WIDTH * panels,
        "offsets": 24 * a.blocks,
        "scratch": (a.threads - 1) * a.scratch_step + (WIDTH + a.copied) * HEIGHT,
    }


@cache
def multiply(kind: int, size: int) -> Native:
    """C = A @ B + bias for one kind of element.

    b: as `pack_wide` makes it; bias: padded like a row of panels.  offsets: i64 [blocks][3], byte offsets of A and B,
    first row of C; lda: bytes between rows, ldc: elements.  share: 0 rows, 1 panels.  copied: bytes between copied rows
    of A, or 0 to read them where they are.  scratch: of each thread, a tile and copied rows.
    """
    tile_any, columns = _tiles(kind, size), WIDTH // size

    def body(p, tid, nthreads):
        m, n, k, panels = p.m, p.n, p.k, ceil_div(p.n, columns)
        tile = p.scratch + p.scratch_step * tid
        copies = tile + WIDTH * HEIGHT
        i_lo, i_hi = (0, m) if p.share else split(m, tid, nthreads)
        j_lo, j_hi = split(panels, tid, nthreads) if p.share else (0, panels)
        for block in range(p.blocks):
            entry = p.offsets + 24 * block
            a, b, c = p.a + load_i64(entry), p.b + load_i64(entry + 8), p.c + load_i64(entry + 16) * size * p.ldc
            i = i_lo
            while i < i_hi:
                mr, rows, lda = height(i_hi - i), a + p.lda * i, p.lda
                if p.copied != 0:
                    for r in range(mr):
                        copy_bytes(copies + p.copied * r, rows + lda * r, size * k)
                    rows, lda = copies, p.copied
                for j in range(j_lo, j_hi):
                    tile_any(mr, rows, lda, k, b + WIDTH * k * j, p.bias + WIDTH * j, tile)
                    for r in range(mr):
                        to = c + size * p.ldc * (i + r) + WIDTH * j
                        copy_bytes(to, tile + WIDTH * r, min(size * n - WIDTH * j, WIDTH))
                i += mr

    body.__name__ = f"matmul_{'f64' if kind == 0 else f'i{8 * size}'}"
    pointers = dict.fromkeys(("a", "b", "c", "bias", "offsets", "scratch"), PTR)
    numbers = dict.fromkeys(("lda", "ldc", "blocks", "m", "n", "k", "share", "copied", "scratch_step"), I64)
    return native(fastmath=None, extents=partial(_multiplied, size), **pointers, **numbers)(body)


def _accepts(op: MatMul, ins: Types) -> bool:
    """Operands of rank 2 and more, a bias along the last axis; no factor, activation or residual."""
    a, b, bias = (*ins, None)[:3]
    if a is None or b is None or any(t is not None and not t.is_static for t in ins):
        return False
    if a.dtype.str[1:] not in KINDS or min(len(a.dims), len(b.dims)) < 2:
        return False
    plain = op.alpha == 1.0 and op.activation is None and not op.residual
    return plain and (bias is None or bias.dims == op.infer(*ins).dims[-1:])


def _packed(index: int, t: TensorType, source: Argument, shape: tuple[int, int, int], context: Context) -> Any:
    """Panels of ``shape`` (blocks, rows, bytes of a row) and the steps that make them at run time."""
    blocks, k, row = shape
    nbytes = blocks * -(-row // WIDTH) * k * WIDTH

    def pack(array: Array) -> Array:
        to = aligned_empty((nbytes // 4,))
        run_shares(
            pack_wide, context.threads, nbytes, b=np.ascontiguousarray(array), to=to, blocks=blocks, k=k, row=row
        )
        return to

    if t.known is not None and source == In(index):
        return context.packed(t.known, ("wide", shape), pack), []
    to = Scratch(nbytes)
    args: dict[str, Argument] = {"b": source, "to": to, "blocks": blocks, "k": k, "row": row}
    return to, [Step(pack_wide, args, is_parallel(context, 0, 2 * nbytes))]


@kernel(MatMul, accepts=_accepts)
def matmul_wide(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f64, i32, u32, i64 and u64."""
    a, b, bias = ins[0], ins[1], (*ins, None)[2]
    if not outs[0].size:
        return []
    g, (kind, size) = geometry(op, a.dims, b.dims), KINDS[a.dtype.str[1:]]
    made: list[Step] = []
    sources: list[Argument] = [In(0), In(1)]
    for i, (t, swap) in enumerate(((a, op.trans_a), (b, op.trans_b))):
        if swap:
            sources[i], more = swapped(i, t)
            made += more
    panels, more = _packed(1, b, sources[1], (g.b_blocks, g.k, size * g.n), context)
    made += more
    width = -(-size * g.n // WIDTH) * WIDTH
    zeros: Argument = aligned_zeros((width // 4,))
    if bias is not None:
        zeros, more = _packed(2, bias, In(2), (1, 1, size * g.n), context)
        made += more
    offsets = np.zeros((g.blocks, 3), np.int64)
    offsets[:, 0] = block_index(g.batch, g.a_batch) * (size * g.m * g.k)
    offsets[:, 1] = block_index(g.batch, g.b_batch) * (width * g.k)
    offsets[:, 2] = np.arange(g.blocks) * g.m
    threads = either(is_parallel(context, 4 * g.blocks * g.m * g.n * g.k, b.nbytes), context.threads, 1)
    copied = pack_stride(size * g.k) if conflicting(size * g.k, g.m) else 0
    step = (WIDTH + copied) * HEIGHT
    args: dict[str, Argument] = {
        "a": sources[0], "b": panels, "c": Out(0), "bias": zeros, "offsets": offsets,
        "scratch": Scratch(threads * step), "lda": size * g.k, "ldc": Pitch(Out(0)), "blocks": g.blocks, "m": g.m,
        "n": g.n, "k": g.k,
        "share": int(g.m < threads * HEIGHT), "copied": copied, "scratch_step": step,
    }  # fmt: skip
    return [*made, Step(multiply(kind, size), args, threads > 1)]
