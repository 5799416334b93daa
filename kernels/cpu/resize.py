"""Resize: nearest by tables of offsets for any dtype; linear and cubic of f32 as one weighted pass per axis."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.lang import (
    BYTES,
    LANES,
    ceil_div,
    fma,
    load_f32,
    load_i64,
    splat,
    split,
    vgather,
    vload,
    vload_i32,
    vload_n,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.move import steps as move_steps
from bolt_numba.kernels.cpu.strides import move
from bolt_numba.kernels.cpu.take import take_steps
from bolt_numba.kernels.cpu.transpose import has_fixed_size
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.resize import AxisPlan, Resize
from bolt_numba.types import F32, Array, TensorType

PARALLEL_ELEMENTS = 1 << 16
"""Products of one thread in about 20 us."""

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


@native(fastmath=None, **_FIELDS, inner=I64, pitch=I64)
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


@native(fastmath=None, **_FIELDS)
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


def _own_axis(op: Resize, axis: int, rank: int) -> int:
    """Axis of the array for an axis counted as [n, c, spatial...]."""
    if op.layout == "NCHW" or axis == 0:
        return axis
    return rank - 1 if axis == 1 else axis - 1


def _known(ins: Types, index: int) -> Array | None:
    given = ins[index] if index < len(ins) else None
    return None if given is None else given.known


def _plans(op: Resize, ins: Types) -> list[AxisPlan]:
    x = ins[0]
    assert x is not None
    dims = x.dims if op.layout == "NCHW" else (x.dims[0], x.dims[-1], *x.dims[1:-1])
    return op.plan(dims, _known(ins, 1), _known(ins, 2), _known(ins, 3))


def _is_inside(op: Resize, plans: Sequence[AxisPlan]) -> bool:
    """No output lies outside the input, where it would get the extrapolation value."""
    if op.coordinate_transformation_mode != "tf_crop_and_resize":
        return True
    at = [op.coordinates(p) for p in plans]
    return all(((c >= 0) & (c <= p.size - 1)).all() for c, p in zip(at, plans, strict=True))


def _accepts(op: Any, ins: Types) -> bool:
    x = ins[0]
    if x is None or not x.is_static or not x.size or not has_fixed_size(op, ins):
        return False
    if any(t is not None and t.known is None for t in ins[1:]):
        return False
    return (op.mode == "nearest" or x.dtype == F32) and _is_inside(op, _plans(op, ins))


def _is_untouched(index: Array, weights: Array, size: int) -> bool:
    return index.shape == (size, 1) and (index[:, 0] == np.arange(size)).all() and bool((weights == 1).all())


def _useful(index: Array, weights: Array) -> tuple[Array, Array]:
    """Without the taps that weigh nothing anywhere."""
    kept = (weights != 0).any(axis=0)
    return index[:, kept], weights[:, kept]


def _pass(shape: Sequence[int], axis: int, index: Array, weights: Array, src: Any, dst: Any) -> Step:
    """One axis of ``shape`` blended."""
    inner, out, taps = math.prod(shape[axis + 1 :]), *index.shape
    args: dict[str, Argument] = {
        "x": src, "y": dst, "outer": math.prod(shape[:axis]), "size": shape[axis], "out": out, "taps": taps
    }  # fmt: skip
    parallel = math.prod(shape) // shape[axis] * out * taps >= PARALLEL_ELEMENTS
    if inner > 1:
        args |= {"index": np.ascontiguousarray(index * (4 * inner)), "weights": np.ascontiguousarray(weights)}
        is_row = inner == shape[-1] and isinstance(dst, Out)
        return Step(blend_rows, args | {"inner": inner, "pitch": Pitch(dst) if is_row else inner}, parallel)
    padded = -(-out // LANES) * LANES - out
    args["index"] = np.ascontiguousarray(np.pad(index.astype(np.int32).T, ((0, 0), (0, padded))))
    args["weights"] = np.ascontiguousarray(np.pad(weights.T, ((0, 0), (0, padded))))
    return Step(blend_elements, args, parallel)


@kernel(Resize, accepts=_accepts)
def resize(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Any rank, layout and coordinate mode; linear and cubic f32 only; nothing extrapolated."""
    x = ins[0]
    assert x is not None
    if not outs[0].size:
        return []
    plans, shape = _plans(op, ins), list(x.dims)
    if op.mode == "nearest":
        tables = [np.arange(n) for n in shape]
        for p in plans:
            tables[_own_axis(op, p.axis, len(shape))] = op.taps(p)[0][:, 0]
        return take_steps(shape, tables, x.dtype.itemsize)
    passes = []
    for p in plans:
        index, weights = _useful(*op.taps(p))
        if not _is_untouched(index, weights, p.size):
            passes.append((_own_axis(op, p.axis, len(shape)), index, weights))
    if not passes:
        return move_steps([move((x.nbytes,), (1,), (1,), 1)], In(0), Out(0))
    made: list[Step] = []
    src: Any = In(0)
    for i, (axis, index, weights) in enumerate(passes):
        after = [index.shape[0] if a == axis else n for a, n in enumerate(shape)]
        dst = Out(0) if i == len(passes) - 1 else Scratch(4 * math.prod(after))
        made.append(_pass(shape, axis, index, weights, src, dst))
        src, shape = dst, after
    return made
