"""BinaryPack: comparisons as bits, 32 to a word, along the last axis or along another."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    ceil_div,
    lanes_below,
    load_f32,
    mask_bits,
    select,
    splat,
    split,
    store_i32,
    vload,
    vload_n,
    vstore_n,
)
from bolt_numba.kernels.cpu.products.matmul import is_parallel
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.geometry.scalars import COMPARISONS, comparison
from bolt_numba.kernels.jit import I64, PTR, Inline, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Step, Types, kernel
from bolt_numba.ops.layers.products.binary import PACKS, WORD, BinaryPack

COMPARED: dict[str, Any] = {name: comparison(name, "~") for name in COMPARISONS}
"""What a bit says."""


def _row_reach(a: Numbers) -> dict[str, Reach]:
    return {"x": box(4 * a.c, (a.rows, 4 * a.ldx)), "bound": 4 * a.bounds, "to": 4 * a.rows * a.pitch}


def _word_of(compared: Any) -> Inline:
    """Helper that gives the bits of the next (up to) 32 numbers, of which ``left`` are there."""

    @inline
    def word(x, bound, bounds, left):
        found = 0
        for q in range(0, WORD, LANES):
            if left - q >= LANES:
                at = splat(load_f32(bound)) if bounds == 1 else vload(bound + 4 * q)
                found |= mask_bits(compared(vload(x + 4 * q), at)) << q
            elif left > q:
                at = splat(load_f32(bound)) if bounds == 1 else vload_n(bound + 4 * q, left - q)
                found |= mask_bits(compared(vload_n(x + 4 * q, left - q), at) & lanes_below(left - q)) << q
        return np.int32(found)

    return word


@cache
def pack_rows(compare: str) -> Native:
    """The kernel that packs rows of ``c`` numbers: one pack, or two behind each other.

    x: f32 [rows][c] · bound: f32 [bounds] · to: words [rows][pitch].
    """
    packs = len(PACKS[compare])
    word, other = _word_of(COMPARED[PACKS[compare][0]]), _word_of(COMPARED[PACKS[compare][-1]])

    @native(x=PTR, ldx=I64, rows=I64, c=I64, bound=PTR, bounds=I64, to=PTR, pitch=I64, extents=_row_reach)
    def pack_rows(p, tid, nthreads):
        """Fields: ldx: elements between rows.  bounds: 1, or a number for each of the ``c`` elements.

        pitch: words between rows of the result.
        """
        x, bound, bounds, c, step = p.x, p.bound, p.bounds, p.c, (0 if p.bounds == 1 else 4)
        ldx, pitch, apart = 4 * p.ldx, 4 * p.pitch, 4 * ceil_div(c, WORD)
        lo, hi = split(p.rows, tid, nthreads)
        for row in range(lo, hi):
            source, to = x + ldx * row, p.to + pitch * row
            for j in range(0, c - WORD + 1, WORD):
                store_i32(to, word(source + 4 * j, bound + step * j, bounds, WORD))
                if packs > 1:
                    store_i32(to + apart, other(source + 4 * j, bound + step * j, bounds, WORD))
                to += 4
            if c % WORD:
                j = c - c % WORD
                store_i32(to, word(source + 4 * j, bound + step * j, bounds, c - j))
                if packs > 1:
                    store_i32(to + apart, other(source + 4 * j, bound + step * j, bounds, c - j))

    made: Native = pack_rows
    return made


def _plane_reach(a: Numbers) -> dict[str, Reach]:
    return {"x": 4 * a.outer * a.c * a.inner, "bound": 4 * a.bounds, "to": 4 * a.outer * a.pitch * a.inner}


@cache
def pack_planes(compare: str) -> Native:
    """The kernel that packs along the middle axis of [outer, c, inner] as `pack_rows` does."""
    packs = len(PACKS[compare])
    compared, other = COMPARED[PACKS[compare][0]], COMPARED[PACKS[compare][-1]]

    @native(x=PTR, outer=I64, c=I64, inner=I64, bound=PTR, bounds=I64, to=PTR, pitch=I64, extents=_plane_reach)
    def pack_planes(p, tid, nthreads):
        """Fields: as those of `pack_rows`; the result is [outer, pitch, inner]."""
        x, c, inner, pitch, one = p.x, p.c, p.inner, p.pitch, np.int32(1)
        words, vectors, none = ceil_div(c, WORD), ceil_div(inner, LANES), splat(np.int32(0))
        step = 0 if p.bounds == 1 else 4
        lo, hi = split(p.outer * words * vectors, tid, nthreads)
        for unit in range(lo, hi):
            i, word = unit % vectors * LANES, unit // vectors % words
            block, left = unit // (vectors * words), inner - i
            found, more = none, none
            for j in range(word * WORD, min(word * WORD + WORD, c)):
                v, at = vload_n(x + 4 * ((block * c + j) * inner + i), left), splat(load_f32(p.bound + step * j))
                bit = splat(one << np.int32(j - word * WORD))
                found = found | select(compared(v, at), bit, none)
                if packs > 1:
                    more = more | select(other(v, at), bit, none)
            to = p.to + 4 * ((block * pitch + word) * inner + i)
            vstore_n(to, found, left)
            if packs > 1:
                vstore_n(to + 4 * words * inner, more, left)

    made: Native = pack_planes
    return made


def _accepts(op: BinaryPack, ins: Types) -> bool:
    return all(t is not None and t.is_static for t in ins)


@kernel(BinaryPack, accepts=_accepts)
def binary_pack(op: BinaryPack, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Along the last axis by rows, else by planes."""
    x, bound = ins[0], ins[1]
    axis = op.axis % len(x.dims)
    args: dict[str, Argument] = {
        "x": In(0), "c": x.dims[axis], "bound": In(1), "bounds": bound.dims[0], "to": Out(0),
        "pitch": outs[0].dims[axis],
    }  # fmt: skip
    outer = math.prod(x.dims[:axis])
    if axis == len(x.dims) - 1:
        made, args = pack_rows(op.compare), args | {"ldx": Pitch(In(0)), "rows": outer}
    else:
        made, args = pack_planes(op.compare), args | {"outer": outer, "inner": math.prod(x.dims[axis + 1 :])}
    return [Step(made, args, is_parallel(context, 0, x.nbytes))]
