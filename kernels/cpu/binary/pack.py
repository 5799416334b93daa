"""BinaryPack: comparisons as bits, 32 to a word, along the last axis or along another."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
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
from bolt_numba.kernels.extents import Reach, box
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Pitch, Step, Types, kernel
from bolt_numba.ops.layers.binary import PACKS, WORD, BinaryPack, words_of
from bolt_numba.types import TensorType


@inline
def _gt(v, bound):
    return v > bound


@inline
def _ge(v, bound):
    return v >= bound


@inline
def _lt(v, bound):
    return v < bound


@inline
def _le(v, bound):
    return v <= bound


@inline
def _not_gt(v, bound):
    return ~(v > bound)


@inline
def _not_ge(v, bound):
    return ~(v >= bound)


@inline
def _not_lt(v, bound):
    return ~(v < bound)


@inline
def _not_le(v, bound):
    return ~(v <= bound)


COMPARED: dict[str, Any] = {
    "gt": _gt, "ge": _ge, "lt": _lt, "le": _le, "not_gt": _not_gt, "not_ge": _not_ge, "not_lt": _not_lt,
    "not_le": _not_le,
}  # fmt: skip
"""What a bit says."""


def _row_reach(a: Any) -> dict[str, Reach]:
    return {"x": box(4 * a.c, (a.rows, 4 * a.ldx)), "bound": 4 * a.bounds, "to": 4 * a.rows * a.pitch}


@cache
def pack_rows(compared: Any) -> Native:
    """The kernel that packs rows of ``c`` numbers by one comparison."""

    @inline
    def word(x, bound, bounds, left):
        """Bits of the next (up to) 32 numbers, of which ``left`` are there."""
        found = 0
        for q in range(0, WORD, LANES):
            if left - q >= LANES:
                at = splat(load_f32(bound)) if bounds == 1 else vload(bound + 4 * q)
                found |= mask_bits(compared(vload(x + 4 * q), at)) << q
            elif left > q:
                at = splat(load_f32(bound)) if bounds == 1 else vload_n(bound + 4 * q, left - q)
                found |= mask_bits(compared(vload_n(x + 4 * q, left - q), at) & lanes_below(left - q)) << q
        return found

    @native(
        x=PTR, ldx=I64, rows=I64, c=I64, bound=PTR, bounds=I64, to=PTR, pitch=I64, first=I64, extents=_row_reach
    )  # fmt: skip
    def pack_rows(p, tid, nthreads):
        """Fields: ldx: elements between rows.  pitch: words between those of the result; first: of these, not written.

        bounds: 1, or a number for each of the ``c`` elements.
        """
        x, bound, bounds, c, step = p.x, p.bound, p.bounds, p.c, (0 if p.bounds == 1 else 4)
        lo, hi = split(p.rows, tid, nthreads)
        for row in range(lo, hi):
            source, to = x + 4 * p.ldx * row, p.to + 4 * (p.pitch * row + p.first)
            for j in range(0, c, WORD):
                if c - j >= WORD:
                    store_i32(to, np.int32(word(source + 4 * j, bound + step * j, bounds, WORD)))
                else:
                    store_i32(to, np.int32(word(source + 4 * j, bound + step * j, bounds, c - j)))
                to += 4

    made: Native = pack_rows
    return made


def _plane_reach(a: Any) -> dict[str, Reach]:
    return {"x": 4 * a.outer * a.c * a.inner, "bound": 4 * a.bounds, "to": 4 * a.outer * a.pitch * a.inner}


@cache
def pack_planes(compared: Any) -> Native:
    """The kernel that packs along the middle axis of [outer, c, inner] by one comparison."""

    @native(
        x=PTR, outer=I64, c=I64, inner=I64, bound=PTR, bounds=I64, to=PTR, pitch=I64, first=I64, extents=_plane_reach
    )  # fmt: skip
    def pack_planes(p, tid, nthreads):
        """Fields: as those of `pack_rows`; the result is [outer, pitch, inner]."""
        x, c, inner, one = p.x, p.c, p.inner, np.int32(1)
        words, vectors = ceil_div(c, WORD), ceil_div(inner, LANES)
        step = 0 if p.bounds == 1 else 4
        lo, hi = split(p.outer * words * vectors, tid, nthreads)
        for unit in range(lo, hi):
            i, word = unit % vectors * LANES, unit // vectors % words
            block, left = unit // (vectors * words), inner - i
            found = splat(np.int32(0))
            for j in range(word * WORD, min(word * WORD + WORD, c)):
                v = vload_n(x + 4 * ((block * c + j) * inner + i), left)
                bit = splat(one << np.int32(j - word * WORD))
                found = found | select(compared(v, splat(load_f32(p.bound + step * j))), bit, splat(np.int32(0)))
            vstore_n(p.to + 4 * ((block * p.pitch + p.first + word) * inner + i), found, left)

    made: Native = pack_planes
    return made


def _accepts(op: Any, ins: Types) -> bool:
    return all(t is not None and t.is_static for t in ins)


@kernel(BinaryPack, accepts=_accepts)
def binary_pack(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One step for each pack."""
    x, bound = ins[:2]
    assert x is not None
    assert bound is not None
    axis = op.axis % len(x.dims)
    c, inner, outer = x.dims[axis], math.prod(x.dims[axis + 1 :]), math.prod(x.dims[:axis])
    steps, is_last = [], axis == len(x.dims) - 1
    for i, name in enumerate(PACKS[op.compare]):
        args: dict[str, Argument] = {
            "x": In(0), "c": c, "bound": In(1), "bounds": bound.dims[0], "to": Out(0), "pitch": outs[0].dims[axis],
            "first": i * words_of(c),
        }  # fmt: skip
        if is_last:
            args |= {"ldx": Pitch(In(0)), "rows": outer}
        else:
            args |= {"outer": outer, "inner": inner}
        made = (pack_rows if is_last else pack_planes)(COMPARED[name])
        steps.append(Step(made, args, is_parallel(context, 0, x.nbytes)))
    return steps
