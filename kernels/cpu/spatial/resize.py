"""Resize: nearest by tables of offsets for any dtype; linear and cubic of f32 as one weighted pass per axis.

The last two passes run together, a line at a time, so that what is between them stays in cache.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    fma,
    load_f32,
    load_i64,
    permute,
    splat,
    split,
    vgather,
    vload,
    vload_i32,
    vload_n,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.movement.move import steps as move_steps
from bolt_numba.kernels.cpu.movement.table_gather import repeating_steps, table_gather_steps, windows
from bolt_numba.kernels.extents import Reach, both, ends, offsets
from bolt_numba.kernels.geometry.resample import Pass, is_inside, nearest_tables, passes_of, plans_of, repeated_tables
from bolt_numba.kernels.geometry.strides import move
from bolt_numba.kernels.geometry.transfers import has_fixed_size
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.resize import Resize

_FIELDS = dict.fromkeys(("x", "y", "index", "weights"), PTR) | dict.fromkeys(("outer", "size", "out", "taps"), I64)


@inline
def blend_run(x, y, index, weights, taps, n):
    """y[:n] = sum of weights[t] * (n f32 at x + index[t])."""
    done = 0
    while done + 2 * LANES <= n:
        a, b = splat(np.float32(0)), splat(np.float32(0))
        for t in range(taps):
            source, w = x + load_i64(index + 8 * t) + 4 * done, splat(load_f32(weights + 4 * t))
            a, b = fma(w, vload(source), a), fma(w, vload(source + BYTES), b)
        vstore(y + 4 * done, a)
        vstore(y + 4 * done + BYTES, b)
        done += 2 * LANES
    while done < n:
        left = min(n - done, LANES)
        a = splat(np.float32(0))
        for t in range(taps):
            source = x + load_i64(index + 8 * t) + 4 * done
            v = vload(source) if left == LANES else vload_n(source, left)
            a = fma(splat(load_f32(weights + 4 * t)), v, a)
        vstore_n(y + 4 * done, a, left)
        done += LANES


@inline
def blend_pair(x, y, index, weights, n):
    """`blend_run` of two taps."""
    one, two = x + load_i64(index), x + load_i64(index + 8)
    v, w, zero = splat(load_f32(weights)), splat(load_f32(weights + 4)), splat(np.float32(0))
    if n < LANES:
        vstore_n(y, fma(w, vload_n(two, n), fma(v, vload_n(one, n), zero)), n)
        return
    for at in range(0, 4 * n - BYTES, BYTES):
        vstore(y + at, fma(w, vload(two + at), fma(v, vload(one + at), zero)))
    at = 4 * n - BYTES
    vstore(y + at, fma(w, vload(two + at), fma(v, vload(one + at), zero)))


@inline
def blend_columns(x, y, index, weights, out, step, n):
    """`blend_pair` of ``out`` pixels, up to four vectors of channels at a time; step: bytes between pixels of y."""
    zero = splat(np.float32(0))
    done = 0
    while done + 4 * LANES <= n:
        for j in range(out):
            one, two = x + 4 * done + load_i64(index + 16 * j), x + 4 * done + load_i64(index + 16 * j + 8)
            v, w = splat(load_f32(weights + 8 * j)), splat(load_f32(weights + 8 * j + 4))
            to = y + 4 * done + j * step
            vstore(to, fma(w, vload(two), fma(v, vload(one), zero)))
            vstore(to + BYTES, fma(w, vload(two + BYTES), fma(v, vload(one + BYTES), zero)))
            vstore(to + 2 * BYTES, fma(w, vload(two + 2 * BYTES), fma(v, vload(one + 2 * BYTES), zero)))
            vstore(to + 3 * BYTES, fma(w, vload(two + 3 * BYTES), fma(v, vload(one + 3 * BYTES), zero)))
        done += 4 * LANES
    while done < n:
        at = 4 * min(done, n - LANES)
        for j in range(out):
            one, two = vload(x + at + load_i64(index + 16 * j)), vload(x + at + load_i64(index + 16 * j + 8))
            v, w = splat(load_f32(weights + 8 * j)), splat(load_f32(weights + 8 * j + 4))
            vstore(y + at + j * step, fma(w, two, fma(v, one, zero)))
        done += LANES


@inline
def blend_lanes(x, y, first, order, weights, taps, n):
    """A line of ``n`` elements as `windows` of x; tables tap by tap."""
    blocks = ceil_div(n, LANES)
    zero = splat(np.float32(0))
    more, further = 8 * blocks, BYTES * blocks
    for k in range(blocks):
        at, lanes = first + 8 * k, BYTES * k
        a = fma(vload(weights + lanes), permute(vload(x + load_i64(at)), vload_i32(order + lanes)), zero)
        for _ in range(1, taps):
            at += more
            lanes += further
            a = fma(vload(weights + lanes), permute(vload(x + load_i64(at)), vload_i32(order + lanes)), a)
        vstore(y + 4 * min(k * LANES, n - LANES), a)


def _blended_rows(a: Any) -> dict[str, Reach]:
    first, end = ends(offsets(a.index, 4 * a.inner))
    rows, taps = a.outer * a.out, a.out * a.taps
    return {
        "x": (first, end + 4 * (a.outer - 1) * a.size * a.inner) if rows else 0,
        "y": 4 * ((rows - 1) * a.pitch + a.inner) if rows else 0,
        "index": 8 * taps,
        "weights": 4 * taps,
    }


@native(fastmath=None, extents=_blended_rows, **_FIELDS, inner=I64, pitch=I64)
def blend_rows(p, tid, nthreads):
    """y[o, i] = sum over t of weights[i, t] * x[o, index[i, t]]: rows of ``inner`` f32; index in bytes, i64.

    pitch: f32 from row to row of y.
    """
    lo, hi = split(p.outer * p.out, tid, nthreads)
    out, taps, inner = p.out, p.taps, p.inner
    x, y, index, weights = p.x, p.y, p.index, p.weights
    for at in range(lo, hi):
        o = at // out
        i = at - o * out
        blend_run(
            x + o * p.size * inner * 4, y + at * p.pitch * 4, index + i * taps * 8, weights + i * taps * 4, taps, inner
        )


def _blended_elements(a: Any) -> dict[str, Reach]:
    taps = BYTES * a.taps * -(-a.out // LANES)
    first, end = ends(offsets(a.index, 1))
    x = (4 * first, 4 * ((a.outer - 1) * a.size + end)) if a.outer else 0
    return {"x": x, "y": 4 * a.outer * a.out, "index": taps, "weights": taps}


@native(fastmath=None, extents=_blended_elements, **_FIELDS)
def blend_elements(p, tid, nthreads):
    """`blend_rows` of single elements; index (elements, i32) and weights: [tap, out rounded up to LANES]."""
    out, taps = p.out, p.taps
    blocks = ceil_div(out, LANES)
    lo, hi = split(p.outer, tid, nthreads)
    for o in range(lo, hi):
        x, y = p.x + o * p.size * 4, p.y + o * out * 4
        for block in range(blocks):
            a = splat(np.float32(0))
            for t in range(taps):
                at = (t * blocks + block) * BYTES
                a = fma(vload(p.weights + at), vgather(x, vload_i32(p.index + at)), a)
            vstore_n(y + block * BYTES, a, out - block * LANES)


def _blended_lines(a: Any) -> dict[str, Reach]:
    width, taps, lanes = 4 * a.size * a.inner, a.out * a.taps, a.taps * -(-a.out * a.inner // LANES)
    rows = a.outer * a.high
    near = offsets(a.index, 4 * a.inner)
    if a.first is not None:
        near = both(near, offsets(a.first, BYTES))
    (low, end), before = ends(near), (rows - 1) * width
    if a.line_taps:
        before = (a.outer - 1) * a.tall * width
        low, end = ends(offsets(a.lines, width))
    return {
        "x": (low, end + before) if rows else 0,
        "y": 4 * ((rows * a.out - 1) * a.pitch + a.inner) if rows else 0,
        "index": 8 * taps,
        "weights": 4 * taps,
        "lines": 8 * a.high * a.line_taps,
        "line_weights": 4 * a.high * a.line_taps,
        "room": (a.threads - 1) * width + max(ends(near)[1], width) if a.line_taps else 0,
        "first": 8 * lanes,
        "order": BYTES * lanes,
        "lane_weights": BYTES * lanes,
    }


@native(
    fastmath=None, extents=_blended_lines, **_FIELDS, **dict.fromkeys(("lines", "line_weights", "room"), PTR),
    **dict.fromkeys(("first", "order", "lane_weights"), PTR_OR_0),
    **dict.fromkeys(("line_taps", "tall", "high", "inner", "pitch"), I64),
)  # fmt: skip
def blend_lines(p, tid, nthreads):
    """`blend_rows` of ``outer`` x ``high`` lines of ``size`` pixels, each a blend of lines of x before.

    lines, line_weights: index and weights [high, line_taps] of that; line_taps 0: lines are taken as they are.
    tall: lines of x for each outer.  room: size * inner f32 for each thread.  first, order, lane_weights: `windows` of
    the whole result and the weights of their elements, tap by tap, for a dense result; 0: none.
    """
    high, out, taps, inner, line_taps = p.high, p.out, p.taps, p.inner, p.line_taps
    index, weights, first, order, lane_weights = p.index, p.weights, p.first, p.order, p.lane_weights
    width, whole, pitch = p.size * inner, out * inner, p.pitch
    lo, hi = split(p.outer * high, tid, nthreads)
    for at in range(lo, hi):
        o = at // high
        i = at - o * high
        x, y = p.x + (at if line_taps == 0 else o * p.tall) * width * 4, p.y + at * out * pitch * 4
        if line_taps:
            t = p.room + tid * width * 4
            lines, line_weights = p.lines + i * line_taps * 8, p.line_weights + i * line_taps * 4
            if line_taps == 2:
                blend_pair(x, t, lines, line_weights, width)
            else:
                blend_run(x, t, lines, line_weights, line_taps, width)
            x = t
        if first and pitch == inner:
            if taps == 2:
                blend_lanes(x, y, first, order, lane_weights, 2, whole)
            else:
                blend_lanes(x, y, first, order, lane_weights, taps, whole)
        elif taps == 2 and inner >= LANES and inner <= 16 * LANES:
            blend_columns(x, y, index, weights, out, pitch * 4, inner)
        elif taps == 2:
            for j in range(out):
                blend_pair(x, y + j * pitch * 4, index + j * 16, weights + j * 8, inner)
        else:
            for j in range(out):
                blend_run(x, y + j * pitch * 4, index + j * taps * 8, weights + j * taps * 4, taps, inner)


def _accepts(op: Resize, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or not x.size or not has_fixed_size(op, ins) or any(d > MAX_I32 for d in x.dims):
        return False
    if any(t is not None and t.known is None for t in ins[1:]):
        return False
    return (op.mode == "nearest" or x.dtype == F32) and is_inside(op, plans_of(op, ins))


def _pass(shape: Sequence[int], axis: int, index: Array, weights: Array, src: Any, dst: Any) -> Step:
    """One axis of ``shape`` blended."""
    inner, out, taps = math.prod(shape[axis + 1 :]), *index.shape
    args: dict[str, Argument] = {
        "x": src, "y": dst, "outer": math.prod(shape[:axis]), "size": shape[axis], "out": out, "taps": taps
    }  # fmt: skip
    parallel = math.prod(shape) // shape[axis] * out * taps >= 2 * PAYS_ELEMENTS
    if inner > 1:
        args |= {"index": np.ascontiguousarray(index * (4 * inner)), "weights": np.ascontiguousarray(weights)}
        is_row = inner == shape[-1] and isinstance(dst, Out)
        return Step(blend_rows, args | {"inner": inner, "pitch": Pitch(dst) if is_row else inner}, parallel)
    padded = -(-out // LANES) * LANES - out
    args["index"] = np.ascontiguousarray(np.pad(index.astype(np.int32).T, ((0, 0), (0, padded))))
    args["weights"] = np.ascontiguousarray(np.pad(weights.T, ((0, 0), (0, padded))))
    return Step(blend_elements, args, parallel)


def _lanes(index: Array, weights: Array, inner: int) -> dict[str, Argument]:
    """Tables of `blend_lines` by lanes, where pixels are shorter than a vector and neighbours are near."""
    found = [windows((t[:, None] * inner + np.arange(inner)).reshape(-1)) for t in index.T] if inner < LANES else [None]
    made = [w for w in found if w is not None]
    if len(made) < len(found):
        return dict.fromkeys(("first", "order", "lane_weights"))
    whole = index.shape[0] * inner
    places = np.minimum(np.arange(0, whole, LANES), whole - LANES)[:, None] + np.arange(LANES)
    spread = [np.repeat(w, inner)[places] for w in weights.T]
    first, order = ([w[i] for w in made] for i in (0, 1))
    return {"first": np.concatenate(first), "order": np.concatenate(order), "lane_weights": np.concatenate(spread)}


def _lines(shape: Sequence[int], passes: Sequence[Pass], src: Any, dst: Any, threads: int) -> Step:
    """The last axis of pixels blended, and the one before it where there is a pass of it."""
    axis, index, weights = passes[-1]
    inner, (out, taps) = math.prod(shape[axis + 1 :]), index.shape
    width = shape[axis] * inner
    args: dict[str, Argument] = {"x": src, "y": dst, "size": shape[axis], "out": out, "taps": taps, "inner": inner}
    args |= {"index": np.ascontiguousarray(index * (4 * inner)), "weights": np.ascontiguousarray(weights)}
    args |= {**_lanes(index, weights, inner), "pitch": Pitch(dst) if inner == shape[-1] else inner}
    if len(passes) == 1:
        args |= {"lines": None, "line_weights": None, "room": None, "line_taps": 0, "tall": 0}
        outer, high, work = math.prod(shape[:axis]), 1, taps * out * inner
    else:
        _, lines, line_weights = passes[0]
        outer, (high, line_taps) = math.prod(shape[: axis - 1]), lines.shape
        args |= {"lines": np.ascontiguousarray(lines * (4 * width)), "line_weights": np.ascontiguousarray(line_weights)}
        args |= {"room": Scratch(4 * width * threads), "line_taps": line_taps, "tall": shape[axis - 1]}
        work = high * (taps * out * inner + line_taps * width)
    return Step(blend_lines, args | {"outer": outer, "high": high}, outer * work >= 2 * PAYS_ELEMENTS)


def _together(shape: Sequence[int], passes: Sequence[Pass]) -> int:
    """How many of the last passes run by `blend_lines`."""
    axis, index, weights = passes[-1]
    inner = math.prod(shape[axis + 1 :])
    if axis < len(shape) - 2 or inner not in (1, shape[-1]):
        return 0
    if inner == 1 and _lanes(index, weights, 1)["first"] is None:
        return 0
    return 2 if len(passes) > 1 and passes[-2][0] == axis - 1 else 1


@kernel(Resize, accepts=_accepts)
def resize(op: Resize, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Any rank, layout and coordinate mode; linear and cubic f32 only; nothing extrapolated."""
    x = ins[0]
    if not outs[0].size:
        return []
    if op.mode == "nearest":
        if (tables := repeated_tables(op, ins, outs[0].dims)) is not None:
            return repeating_steps(x.dims, outs[0].dims, tables, x.dtype.itemsize)
        return table_gather_steps(x.dims, nearest_tables(op, ins), x.dtype.itemsize)
    passes, shape = passes_of(op, ins), list(x.dims)
    if not passes:
        return move_steps([move((x.nbytes,), (1,), (1,), 1)], In(0), Out(0))
    made: list[Step] = []
    src: Any = In(0)
    alone = len(passes) - _together(shape, passes)
    for i, (axis, index, weights) in enumerate(passes[:alone]):
        after = [index.shape[0] if a == axis else n for a, n in enumerate(shape)]
        dst = Out(0) if i == len(passes) - 1 else Scratch(4 * math.prod(after))
        made.append(_pass(shape, axis, index, weights, src, dst))
        src, shape = dst, after
    if alone < len(passes):
        made.append(_lines(shape, passes[alone:], src, Out(0), context.threads))
    return made
