"""Softmax and layer norm from bytes to bytes, over rows, and means over an axis: sums of bytes are exact."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I8, AnyDType, Array, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    fma,
    lanes_below,
    load_f32,
    load_i8,
    load_u8,
    lookup_f32,
    pack_i8,
    pack_u8,
    reduce_add,
    reduce_max,
    round_i32,
    select,
    splat,
    split,
    tile_add_tile,
    tile_get,
    tile_load,
    tile_store,
    tile_zeros,
    to_f32,
    vload,
    vload_i8,
    vload_i8_n,
    vload_i32,
    vload_n,
    vload_u8,
    vload_u8_n,
    vmax,
    vmin,
    vstore,
    vstore_n,
    vstore_u8_n,
)
from bolt_numba.kernels.cpu.language.vmath import exp_negative
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import F64, I64, PTR, PTR_OR_0, Inline, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.between_bytes import MOST_IN_ROW, BetweenBytes
from bolt_numba.ops.arrays.reduce import ReduceMean, Softmax
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.registry import normalise_axis

SCALES: Any = {"x": PTR, "y": PTR, "x_scale": PTR, "x_zero": PTR, "y_scale": PTR, "y_zero": PTR}
NUMBERS: dict[str, Reach] = {"x_scale": 4, "y_scale": 4, "x_zero": 1, "y_zero": 1}
OPERANDS: dict[str, Argument] = {
    "x": In(0), "x_scale": In(1), "x_zero": In(2), "y_scale": In(3), "y_zero": In(4), "y": Out(0)
}  # fmt: skip
"""Fields of kernels from bytes to bytes, extents of scales and zero points, and what `BetweenBytes` has for them."""


def loads(signed: bool) -> tuple[Any, Any, Any]:
    """Words that load a byte, a vector of bytes, and part of one."""
    return (load_i8, vload_i8, vload_i8_n) if signed else (load_u8, vload_u8, vload_u8_n)


def _limits(signed: bool) -> tuple[int, int]:
    return (-128, 127) if signed else (0, 255)


@cache
def code_of(signed: bool) -> Inline:
    """Helper: the code of ``number``, in units of the result's scale, for a zero point; of NaN the least."""
    low, high = _limits(signed)

    @inline
    def code(number, zero):
        least, most = to_f32(splat(np.int32(low)) - zero), to_f32(splat(np.int32(high)) - zero)
        return round_i32(vmin(vmax(number, least), most)) + zero

    return code


def name_of(label: str, x: bool, y: bool) -> str:
    return f"{label}_{'i8' if x else 'u8'}_{'i8' if y else 'u8'}"


@cache
def softmax_bytes(x_signed: bool, y_signed: bool) -> Native:
    """Rows: the greatest byte, exponentials of what it is above the others, and their share of the sum."""
    _, load_row, load_part = loads(x_signed)
    load_zero, code, pack = loads(y_signed)[0], code_of(y_signed), pack_i8 if y_signed else pack_u8
    least = _limits(x_signed)[0]

    def body(p, tid, nthreads):
        n, room, scale = p.n, p.room + 4 * p.n * tid, splat(load_f32(p.x_scale))
        zero = splat(np.int32(load_zero(p.y_zero)))
        first, last = split(p.rows, tid, nthreads)
        for row in range(first, last):
            x, y, top = p.x + row * n, p.y + row * n, splat(np.int32(least))
            for i in range(0, n, LANES):
                m = n - i
                top = vmax(top, load_row(x + i) if m >= LANES else
                           select(lanes_below(m), load_part(x + i, m), splat(np.int32(least))))  # fmt: skip
            top, total, more, i = splat(reduce_max(top)), splat(np.float32(0)), splat(np.float32(0)), 0
            while i + 2 * LANES <= n:
                e = exp_negative(to_f32(load_row(x + i) - top) * scale)
                f = exp_negative(to_f32(load_row(x + i + LANES) - top) * scale)
                vstore(room + 4 * i, e)
                vstore(room + 4 * i + BYTES, f)
                total, more = total + e, more + f
                i += 2 * LANES
            for k in range(i, n, LANES):
                e = exp_negative(to_f32(load_part(x + k, n - k) - top) * scale)
                vstore_n(room + 4 * k, e, n - k)
                total = total + select(lanes_below(n - k), e, splat(np.float32(0)))
            share, i = splat(np.float32(1) / (reduce_add(total + more) * load_f32(p.y_scale))), 0
            while i + 4 * LANES <= n:
                at = room + 4 * i
                a, b = code(vload(at) * share, zero), code(vload(at + BYTES) * share, zero)
                c, d = code(vload(at + 2 * BYTES) * share, zero), code(vload(at + 3 * BYTES) * share, zero)
                vstore(y + i, pack(a, b, c, d))
                i += 4 * LANES
            for k in range(i, n, LANES):
                vstore_u8_n(y + k, code(vload_n(room + 4 * k, n - k) * share, zero), n - k)

    body.__name__ = name_of("softmax", x_signed, y_signed)

    def reach(a: Numbers) -> dict[str, Reach]:
        return {"x": a.rows * a.n, "y": a.rows * a.n, "room": 4 * a.n * a.threads, **NUMBERS, "x_zero": 0}

    return native(**SCALES, room=PTR, rows=I64, n=I64, extents=reach)(body)


MOST_SPREAD = 64.0
"""Difference of the greatest and the least number up to which the exponentials of all 256 bytes are far from 0."""


def _exponentials(scale: Array, signed: bool) -> Array:
    """Exponentials of what bytes stand for less the greatest number: the lowest bytes of all, then the next ones."""
    numbers = np.arange(256, dtype=np.uint8).view(np.int8 if signed else np.uint8).astype(float)
    entries = np.exp((numbers - numbers.max()) * float(scale.reshape(-1)[0])).astype(np.float32)
    return np.ascontiguousarray(entries.view(np.uint8).reshape(256, 4).T)


@cache
def softmax_by_table(y_signed: bool) -> Native:
    """Rows of whole vectors: exponentials are looked up in registers, whatever the greatest byte of the row."""
    load_zero, pack = loads(y_signed)[0], pack_i8 if y_signed else pack_u8

    @inline
    def code(at, share, zero):
        return round_i32(vload(at) * share) + zero  # a share of the sum fits an i32, and packing limits it

    def body(p, tid, nthreads):
        n, room, y_scale, zero = p.n, p.room + 4 * p.n * tid, load_f32(p.y_scale), splat(np.int32(load_zero(p.y_zero)))
        table = tile_load(16, 1, p.table, BYTES)
        first, last = split(p.rows, tid, nthreads)
        for row in range(first, last):
            x, y, sums = p.x + row * n, p.y + row * n, tile_zeros(4, 1)
            for i in range(0, n, BYTES):
                made = lookup_f32(table, vload_i32(x + i))
                tile_store(made, room + 4 * i, BYTES)
                sums = tile_add_tile(sums, made)
            total = (tile_get(sums, 0, 0) + tile_get(sums, 1, 0)) + (tile_get(sums, 2, 0) + tile_get(sums, 3, 0))
            share = splat(np.float32(1) / (reduce_add(total) * y_scale))
            for i in range(0, n, BYTES):
                at = room + 4 * i
                a, b = code(at, share, zero), code(at + BYTES, share, zero)
                vstore(y + i, pack(a, b, code(at + 2 * BYTES, share, zero), code(at + 3 * BYTES, share, zero)))

    body.__name__ = f"softmax_by_table_{'i8' if y_signed else 'u8'}"

    def reach(a: Numbers) -> dict[str, int]:
        numbers = {"y_scale": 4, "y_zero": 1, "table": 1024}
        return {"x": a.rows * a.n, "y": a.rows * a.n, "room": 4 * a.n * a.threads, **numbers}

    pointers = dict.fromkeys(("x", "y", "y_scale", "y_zero", "room", "table"), PTR)
    return native(**pointers, rows=I64, n=I64, extents=reach)(body)  # type: ignore[arg-type]


def _by_table(x: TensorType, *scales: TensorType | None) -> bool:
    """Whether `softmax_by_table` takes rows of ``x``: the scales are usual ones, and no share is beyond an i32."""
    known = [None if t is None or t.known is None else t.known.item() for t in scales]
    if not target().has_vbmi or x.dims[-1] % BYTES or known[0] is None or known[1] is None:
        return False
    return bool(0 < 255 * known[0] < MOST_SPREAD and known[1] > 2.0**-20)


@cache
def norm_bytes(x_signed: bool, y_signed: bool) -> Native:
    """Rows: exact sums of the bytes and of their squares, then one multiply-add, and the scale and shift of columns.

    Source of the formula: variance = (sum of squares - sum ** 2 / n) / n, here of whole numbers in f64.
    """
    _, load_row, load_part = loads(x_signed)
    load_zero, code, pack = loads(y_signed)[0], code_of(y_signed), pack_i8 if y_signed else pack_u8

    @inline
    def column(v, at, p, inverse, left):
        """A number in units of the result's scale, of the normalised ``v`` of columns from ``at`` on."""
        gain = vload_n(p.gain + 4 * at, left)
        shift = vload_n(p.shift + 4 * at, left) if p.shift != 0 else splat(np.float32(0))
        return fma(v, gain, shift) * inverse

    def body(p, tid, nthreads):
        n, scale = p.n, np.float64(load_f32(p.x_scale))
        zero, inverse = splat(np.int32(load_zero(p.y_zero))), splat(np.float32(1) / load_f32(p.y_scale))
        first, last = split(p.rows, tid, nthreads)
        for row in range(first, last):
            x, y = p.x + row * n, p.y + row * n
            sums, squares = splat(np.int32(0)), splat(np.int32(0))
            for i in range(0, n, LANES):
                v = load_row(x + i) if n - i >= LANES else load_part(x + i, n - i)
                sums, squares = sums + v, squares + v * v
            total = np.float64(reduce_add(sums))
            variance = (np.float64(reduce_add(squares)) - total * total / n) / n
            rate = scale / math.sqrt(scale * scale * variance + p.epsilon)
            a, c, i = splat(np.float32(rate)), splat(np.float32(-total / n * rate)), 0
            while i + 4 * LANES <= n:
                u = column(fma(to_f32(load_row(x + i)), a, c), i, p, inverse, LANES)
                v = column(fma(to_f32(load_row(x + i + LANES)), a, c), i + LANES, p, inverse, LANES)
                w = column(fma(to_f32(load_row(x + i + 2 * LANES)), a, c), i + 2 * LANES, p, inverse, LANES)
                z = column(fma(to_f32(load_row(x + i + 3 * LANES)), a, c), i + 3 * LANES, p, inverse, LANES)
                vstore(y + i, pack(code(u, zero), code(v, zero), code(w, zero), code(z, zero)))
                i += 4 * LANES
            for k in range(i, n, LANES):
                left = n - k
                v = column(fma(to_f32(load_part(x + k, left)), a, c), k, p, inverse, left)
                vstore_u8_n(y + k, code(v, zero), left)

    body.__name__ = name_of("layer_norm", x_signed, y_signed)

    def reach(a: Numbers) -> dict[str, Reach]:
        rows = {"x": a.rows * a.n, "y": a.rows * a.n, "gain": 4 * a.n, "shift": 4 * a.n}
        return {**NUMBERS, "x_zero": 0, **rows}

    return native(**SCALES, gain=PTR, shift=PTR_OR_0, epsilon=F64, rows=I64, n=I64, extents=reach)(body)


@cache
def mean_bytes(x_signed: bool, y_signed: bool) -> Native:
    """[outer, n, inner] to [outer, inner]: vectors of columns, exact sums, one factor."""
    load_one, load_row, load_part = loads(x_signed)
    load_zero, code = loads(y_signed)[0], code_of(y_signed)

    def body(p, tid, nthreads):
        n, inner, blocks = p.n, p.inner, ceil_div(p.inner, LANES)
        factor = splat(np.float32(np.float64(load_f32(p.x_scale)) / n / np.float64(load_f32(p.y_scale))))
        zero, shift = splat(np.int32(load_zero(p.y_zero))), np.int32(load_one(p.x_zero)) * n
        first, last = split(p.outer * blocks, tid, nthreads)
        for item in range(first, last):
            o = item // blocks
            column = (item - o * blocks) * LANES
            x, left, sums = p.x + o * n * inner + column, inner - column, splat(np.int32(0))
            if inner == 1:
                for i in range(0, n, LANES):
                    sums = sums + (load_row(x + i) if n - i >= LANES else load_part(x + i, n - i))
                sums = splat(reduce_add(sums))
            elif left >= LANES:
                for i in range(n):
                    sums = sums + load_row(x + i * inner)
            else:
                for i in range(n):
                    sums = sums + load_part(x + i * inner, left)
            vstore_u8_n(p.y + o * inner + column, code(to_f32(sums - splat(np.int32(shift))) * factor, zero), left)

    body.__name__ = name_of("mean", x_signed, y_signed)

    def reach(a: Numbers) -> dict[str, Reach]:
        return {"x": a.outer * a.n * a.inner, "y": a.outer * a.inner, **NUMBERS}

    return native(**SCALES, outer=I64, n=I64, inner=I64, extents=reach)(body)


def mean_form(op: ReduceMean, x: TensorType, axes: TensorType | None) -> tuple[int, int, int] | None:
    """Elements before, of and after the axes of a mean, where they are neighbours and known."""
    if axes is None or axes.known is None or not axes.known.size or not x.is_static:
        return None
    places = sorted(normalise_axis(op, int(a), len(x.dims)) for a in axes.known.reshape(-1))
    low, high = places[0], places[-1] + 1
    sizes = [math.prod(part) for part in (x.dims[:low], x.dims[low:high], x.dims[high:])]
    fits = places == list(range(low, high)) and 0 < sizes[1] < 1 << 22
    return (sizes[0], sizes[1], sizes[2]) if fits else None


def _accepts(op: BetweenBytes, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or not x.dims or not x.dims[-1]:
        return False
    if isinstance(op.op, Softmax):
        return bool(op.op.axis in (-1, len(x.dims) - 1))
    if isinstance(op.op, LayerNormalization):
        last = op.op.axis in (-1, len(x.dims) - 1) and not op.op.stats and x.dims[-1] <= MOST_IN_ROW
        return bool(last and all(t is None or (t.dtype == F32 and t.dims == x.dims[-1:]) for t in ins[5:]))
    return isinstance(op.op, ReduceMean) and mean_form(op.op, x, ins[5] if len(ins) > 5 else None) is not None


def _signed(dtype: AnyDType) -> bool:
    return bool(dtype == I8)


@kernel(BetweenBytes, accepts=_accepts)
def rows_of_bytes(op: BetweenBytes, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Softmax and layer norm over the last axis, and means over neighbouring axes."""
    x, y = ins[0], outs[0]
    if not x.size:
        return []
    args = dict(OPERANDS)
    kinds = _signed(x.dtype), _signed(y.dtype)
    if isinstance(op.op, ReduceMean):
        outer, n, inner = mean_form(op.op, x, ins[5]) or (0, 0, 0)
        parallel = (x.size >= 2 * PAYS_ELEMENTS) & (outer * inner > LANES)
        return [Step(mean_bytes(*kinds), args | {"outer": outer, "n": n, "inner": inner}, parallel)]
    n = x.dims[-1]
    rows = x.size // n
    args |= {"rows": rows, "n": n}
    parallel = (x.size >= 2 * PAYS_ELEMENTS) & (rows > 1)
    if isinstance(op.op, Softmax) and _by_table(x, ins[1], ins[3]):
        scale = ins[1]
        table = context.packed(scale.known, ("exponentials", kinds[0]), partial(_exponentials, signed=kinds[0]))
        room = Scratch(4 * n * context.threads)
        given = {k: v for k, v in args.items() if k not in ("x_scale", "x_zero")}
        return [Step(softmax_by_table(kinds[1]), given | {"room": room, "table": table}, parallel)]
    if isinstance(op.op, LayerNormalization):
        shift = In(6) if len(ins) > 6 and ins[6] is not None else None
        norm = {"gain": In(5), "shift": shift, "epsilon": float(op.op.epsilon)}
        return [Step(norm_bytes(*kinds), args | norm, parallel)]
    return [Step(softmax_bytes(*kinds), args | {"room": Scratch(4 * n * context.threads)}, parallel)]
