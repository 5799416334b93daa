"""DFT of f32 along any axis: as many lines as a vector has f64 are transformed together, by the stages of `fourier`.

Lengths with a large prime factor become convolutions with a chirp, whose transforms are of a power of two.
Source: Bluestein 1970.  An inverse is a transform whose results come in the other direction, from the first one on.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    ceil_div,
    even_lanes,
    fma,
    interleave_low,
    load_f32,
    load_f64,
    load_i64,
    odd_lanes,
    splat_f64,
    split,
    store_f32,
    store_f64,
    store_i64,
    vload,
    vload_f64,
    vload_widened,
    vstore,
    vstore_n,
    vstore_narrowed,
)
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.signal.fourier import (
    GREATEST_PRIME,
    LINES,
    LONGEST_LINE,
    NEAR,
    SQUARE,
    STAGE,
    factors,
    frames_step,
    gather_frames,
    scatter_frames,
    stages,
    transform,
)
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.signal import DFT

FEW_LINES, SHORT_LINE = 4, 1024
"""Fewer lines than these leave most lanes idle, which pays up to this length."""
PLACES = 2 * 8 * LINES
"""Bytes of where each lane's line begins, in x and in y."""


@inline
def find_lines(p, first, count, places):
    """Addresses of lines of x and y for each lane; the last line stands for those behind it."""
    for f in range(LINES):
        line = first + min(f, count - 1)
        outer, inner = line // p.inner, line % p.inner
        store_i64(places + 8 * f, p.x + 4 * p.parts * (outer * p.size * p.inner + inner))
        store_i64(places + 8 * (LINES + f), p.y + 4 * p.last * (outer * p.bins * p.inner + inner))


@inline
def take_pairs(x, parts, real, other, near):
    """Complex vector of f64 from pairs of f32 that lie together, or from real numbers; near: two vectors."""
    if parts == 2:
        v = vload(x)
        vstore(near, even_lanes(v, v))
        vstore(near + BYTES, odd_lanes(v, v))
        vstore(real, vload_widened(near))
        vstore(other, vload_widened(near + BYTES))
    else:
        vstore(real, vload_widened(x))
        vstore(other, splat_f64(0.0))


@inline
def gather_lines(p, places, beside, to, near):
    """Complex vectors of lines; beside: they lie beside one another."""
    step = 4 * p.parts * p.inner
    if beside:
        for k in range(p.given):
            at = to + 2 * BYTES * k
            take_pairs(load_i64(places) + k * step, p.parts, at, at + BYTES, near)
        return
    for k in range(p.given):
        for f in range(LINES):
            at, place = load_i64(places + 8 * f) + k * step, to + 2 * BYTES * k + 8 * f
            store_f64(place, np.float64(load_f32(at)))
            if p.parts == 2:
                store_f64(place + BYTES, np.float64(load_f32(at + 4)))


@inline
def fill_lines(p, a):
    """What x lacks: imaginary parts of real numbers, zeros behind what is given, half of frequencies that mirror."""
    if p.parts == 1:
        for k in range(p.given):
            vstore(a + 2 * BYTES * k + BYTES, splat_f64(0.0))
    for k in range(2 * p.given, 2 * p.m):
        vstore(a + BYTES * k, splat_f64(0.0))
    if p.mirrored:  # the first and the middle one are real, and the others come twice
        for k in range(0, p.n // 2 + 1, max(1, p.n // 2 if p.n % 2 == 0 else p.n)):
            at = a + 2 * BYTES * k
            vstore(at, fma(vload_f64(at + BYTES), splat_f64(0.0), vload_f64(at)))
            vstore(at + BYTES, splat_f64(0.0))
        for k in range(p.n // 2 + 1, p.n):
            at = a + 2 * BYTES * (p.n - k)
            vstore(a + 2 * BYTES * k, vload_f64(at))
            vstore(a + 2 * BYTES * k + BYTES, -vload_f64(at + BYTES))


@inline
def times_table(a, count, table, taken, given):
    """Complex vectors times numbers of a table, in place; taken, given: 1 where their parts are exchanged."""
    for k in range(count):
        at, c, d = a + 2 * BYTES * k, splat_f64(load_f64(table + 16 * k)), splat_f64(load_f64(table + 16 * k + 8))
        re, im = vload_f64(at + taken * BYTES), vload_f64(at + (1 - taken) * BYTES)
        vstore(at + given * BYTES, fma(re, c, -(im * d)))
        vstore(at + (1 - given) * BYTES, fma(re, d, im * c))


@inline
def give_number(p, real, other, to, is_real):
    """A result as half vectors of f32; where a part is not finite, both become NaN.

    is_real: of frequencies of real numbers, where rounding would leave a rest.
    """
    re, im = vload_f64(real), vload_f64(other)
    nothing, scale = fma(re, splat_f64(0.0), im * 0.0), 1.0 / np.float64(p.n) if p.inverse else 1.0
    if is_real:
        im = im * 0.0
    vstore_narrowed(to, fma(re, splat_f64(scale), nothing))
    if p.last == 2:
        vstore_narrowed(to + BYTES // 2, fma(im, splat_f64(scale), nothing))


@inline
def scatter_lines(p, z, count, places, beside):
    """Half vectors of f32 to lines of y; beside: they lie beside one another.  Reads a vector more."""
    for k in range(p.bins):
        if beside:
            at, v = load_i64(places + 8 * LINES) + k * 4 * p.last * p.inner, vload(z + BYTES // 2 * p.last * k)
            if p.last == 2:
                vstore(at, interleave_low(v, vload(z + BYTES * k + BYTES // 2)))
            else:
                vstore_n(at, v, LINES)
            continue
        for f in range(count):
            at = load_i64(places + 8 * (LINES + f)) + k * 4 * p.last * p.inner
            store_f32(at, load_f32(z + BYTES // 2 * p.last * k + 4 * f))
            if p.last == 2:
                store_f32(at + 4, load_f32(z + BYTES * k + BYTES // 2 + 4 * f))


def _reached(a: Any) -> dict[str, Reach]:
    return {
        "x": 4 * a.lines * a.size * a.parts,
        "y": 4 * a.lines * a.bins * a.last,
        "stages": 8 * STAGE * a.count,
        "tables": a.tables.nbytes,
        "chirps": a.chirps.nbytes,
        "room": a.threads * a.room_step,
    }


@native(
    fastmath=None, extents=_reached, **dict.fromkeys(("x", "y", "stages", "tables", "chirps", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "size", "parts", "given", "n", "m", "bins", "last", "count"), I64),
    **dict.fromkeys(("inverse", "mirrored", "room_step"), I64),
)  # fmt: skip
def dft_lines(p, tid, nthreads):
    """[outer, size, inner, parts] f32 to [outer, bins, inner, last]; lines: outer * inner.

    given: numbers of a line that are read.  m: of what is transformed, n unless there is a chirp.  mirrored: lines of
    y are real.  room: for each thread places of lines, `NEAR`, which holds two squares, two times m complex vectors, a
    square more.
    """
    n, m = p.n, p.m
    places = p.room + tid * p.room_step
    square = places + PLACES
    a = square + NEAR
    b = a + 2 * BYTES * m
    lo, hi = split(ceil_div(p.lines, LINES), tid, nthreads)
    for at in range(lo, hi):
        first, lanes = at * LINES, min(LINES, p.lines - at * LINES)
        beside = lanes == LINES and first % p.inner <= p.inner - LINES
        if p.inner == 1:
            x, pitch = p.x + 4 * p.parts * p.size * first, p.parts * p.size
            y, step = p.y + 4 * p.last * p.bins * first, 4 * p.last * p.bins
            gather_frames(x, pitch, lanes - 1, 0, p.parts * p.given, BYTES * (3 - p.parts), a, square, y, step)
        else:
            find_lines(p, first, lanes, places)
            gather_lines(p, places, beside, a, square)
        fill_lines(p, a)
        if m != n:
            times_table(a, n, p.chirps, 0, 0)
        z = transform(a, b, square, p.stages, p.count, p.tables)
        if m != n:
            times_table(z, m, p.chirps + 16 * n, 0, 1)
            z = transform(z, a + b - z, square, p.stages, p.count, p.tables)
            times_table(z, n, p.chirps, 1, 0)
        made = a + b - z
        for k in range(p.bins):
            place = n - k if p.inverse and k else k
            is_real = p.parts == 1 and (k == 0 or 2 * k == n)
            at = z + 2 * BYTES * place
            give_number(p, at, at + BYTES, made + BYTES // 2 * p.last * k, is_real)
        if p.inner == 1:
            scatter_frames(made, p.last * p.bins, lanes, p.y + 4 * p.last * p.bins * first, 4 * p.last * p.bins, square)
        else:
            scatter_lines(p, made, lanes, places, beside)


@record(frozen=True)
class Chirp:
    """m: a power of two.  pairs: [n + m, 2] f64, the chirp, and the transform of its conjugate, wound around m."""

    m: int
    pairs: Array


@pure
@lru_cache(maxsize=32)
def chirp(n: int) -> Chirp:
    """Of transforms of length ``n``."""
    m = 1 << (2 * n - 2).bit_length()
    k = np.arange(n)
    wave = np.exp(-1j * np.pi / n * (k * k % (2 * n)))
    around = np.zeros(m, np.complex128)
    around[:n] = wave.conj()
    around[m - n + 1 :] = wave.conj()[:0:-1]
    both = np.concatenate([wave, np.fft.fft(around) / m])
    return Chirp(m, np.stack([both.real, both.imag], axis=1))


def extent_of(op: DFT, ins: Types) -> tuple[int, int] | None:
    """Length and number of the transforms; None where x is not f32, is empty, or something is not known."""
    x = ins[0]
    if not x.is_static or x.dtype != F32 or not x.size:
        return None
    if any(t is not None and t.known is None for t in ins[1:]):
        return None
    return length_of(op, ins), x.size // x.dims[axis_of(ins)] // x.dims[-1]


def _accepts(op: DFT, ins: Types) -> bool:
    extent = extent_of(op, ins)
    if extent is None:
        return False
    n, lines = extent
    return n <= LONGEST_LINE and (lines >= FEW_LINES or (chirp(n).m if bends(n) else n) <= SHORT_LINE)


def _accepts_frames(op: DFT, ins: Types) -> bool:
    extent, x = extent_of(op, ins), ins[0]
    if extent is None or op.inverse or x.dims[-1] == 2 or axis_of(ins) != len(x.dims) - 2:
        return False
    n, lines = extent
    return 1 < n <= min(LONGEST_LINE, x.dims[-2]) and not bends(n) and (lines >= FEW_LINES or n <= SHORT_LINE)


def bends(n: int) -> bool:
    """Whether a length has a large prime factor."""
    return n > 1 and max(factors(n)) > GREATEST_PRIME


def axis_of(ins: Types) -> int:
    """The axis of the transform."""
    x, axis = ins[0], ins[2] if len(ins) > 2 else None
    given = -2 if axis is None or axis.known is None else int(axis.known.reshape(-1)[0])
    return given % len(x.dims)


def length_of(op: DFT, ins: Types) -> int:
    """Of the transform."""
    x, length = ins[0], ins[1] if len(ins) > 1 else None
    if length is not None and length.known is not None:
        return int(length.known.reshape(-1)[0])
    size = x.dims[axis_of(ins)]
    return int(2 * (size - 1) if op.inverse and op.onesided else size)


@kernel(DFT, accepts=_accepts)
def dft(op: DFT, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f32, along an axis and of a length that are known; few long lines are for `long_dft`."""
    x, axis, n = ins[0], axis_of(ins), length_of(op, ins)
    inner, size, mirrored = int(np.prod(x.dims[axis + 1 : -1])), x.dims[axis], op.inverse and op.onesided
    m, chirps = (chirp(n).m, chirp(n).pairs) if bends(n) else (n, np.zeros((1, 2)))
    made, lines, room = stages(m, False), x.size // size // x.dims[-1], PLACES + NEAR + SQUARE + 4 * BYTES * m
    return [
        Step(
            dft_lines,
            {
                "x": In(0), "y": Out(0), "stages": made.rows, "tables": made.tables, "chirps": chirps,
                "room": Scratch(room * context.threads), "room_step": room, "lines": lines, "inner": inner,
                "size": size, "parts": x.dims[-1], "given": min(size, n // 2 + 1 if mirrored else n), "n": n, "m": m,
                "bins": outs[0].dims[axis], "last": outs[0].dims[-1], "count": made.rows.shape[0],
                "inverse": int(op.inverse), "mirrored": int(mirrored),
            },
            lines * m * 20 >= PAYS_FLOPS,
        )
    ]  # fmt: skip


@kernel(DFT, accepts=_accepts_frames, rank=1)
def real_dft(op: DFT, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Real lines that lie together: frames without a window, one behind the other."""
    x, n = ins[0], length_of(op, ins)
    lines, size = x.size // x.dims[-2], x.dims[-2]
    return [frames_step(n, outs[0].dims[-2], (1, lines * size, lines, size), None, context)]
