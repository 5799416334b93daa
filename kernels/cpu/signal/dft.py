"""DFT of f32 along any axis: as many lines as a vector has lanes are transformed together, by the stages of `fourier`.

Lengths with a large prime factor become convolutions with a chirp, whose transforms are of a power of two.
Source: Bluestein 1970.  An inverse is the transform of numbers whose real and imaginary parts are exchanged.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    fma,
    load_f32,
    load_i64,
    splat,
    split,
    store_f32,
    store_i64,
    vload,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.signal.fourier import GREATEST_PRIME, LONGEST, STAGE, factors, stages, transform
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.signal import DFT
from bolt_numba.types import F32, Array, TensorType

FEW, SHORT = 4, 1024
"""Fewer lines than these leave most lanes idle, which pays up to this length."""
PLACES = 2 * 8 * LANES
"""Bytes of where each lane's line begins, in x and in y."""


@inline
def find_lines(p, first, count, places):
    """Addresses of lines of x and y for each lane; the last line stands for those behind it."""
    for f in range(LANES):
        line = first + min(f, count - 1)
        outer, inner = line // p.inner, line % p.inner
        store_i64(places + 8 * f, p.x + 4 * p.parts * (outer * p.size * p.inner + inner))
        store_i64(places + 8 * (LANES + f), p.y + 4 * p.last * (outer * p.bins * p.inner + inner))


@inline
def gather_lines(p, places, to):
    """Complex vectors of lines, of zeros behind what is given; the two parts are exchanged for an inverse."""
    step, real, other = 4 * p.parts * p.inner, to + p.inverse * BYTES, to + (1 - p.inverse) * BYTES
    for k in range(p.given):
        for f in range(LANES):
            at = load_i64(places + 8 * f) + k * step
            store_f32(real + 2 * BYTES * k + 4 * f, load_f32(at))
            store_f32(other + 2 * BYTES * k + 4 * f, load_f32(at + 4) if p.parts == 2 else np.float32(0))
    zero, half = splat(np.float32(0)), p.n // 2
    for k in range(p.given, p.m):
        vstore(real + 2 * BYTES * k, zero)
        vstore(other + 2 * BYTES * k, zero)
    if p.mirrored:  # frequencies of a real line: the first and the middle one are real, and the others come twice
        vstore(other, zero)
        if p.n % 2 == 0:
            vstore(other + 2 * BYTES * half, zero)
        for k in range(half + 1, p.n):
            vstore(real + 2 * BYTES * k, vload(real + 2 * BYTES * (p.n - k)))
            vstore(other + 2 * BYTES * k, -vload(other + 2 * BYTES * (p.n - k)))


@inline
def times_table(a, count, table, swapped):
    """Complex vectors times numbers of a table, in place; swapped: then their parts are exchanged."""
    for k in range(count):
        at, c, d = a + 2 * BYTES * k, splat(load_f32(table + 8 * k)), splat(load_f32(table + 8 * k + 4))
        re, im = vload(at), vload(at + BYTES)
        vstore(at + swapped * BYTES, fma(re, c, -(im * d)))
        vstore(at + (1 - swapped) * BYTES, fma(re, d, im * c))


@inline
def swap_parts(a, count):
    for k in range(count):
        at = a + 2 * BYTES * k
        re, im = vload(at), vload(at + BYTES)
        vstore(at, im)
        vstore(at + BYTES, re)


@inline
def scatter_lines(p, z, count, places):
    """Frequencies, or values, to lines of y."""
    step, real, other = 4 * p.last * p.inner, z + p.inverse * BYTES, z + (1 - p.inverse) * BYTES
    scale = np.float32(1.0 / np.float64(p.n)) if p.inverse else np.float32(1)
    for k in range(p.bins):
        is_real = p.parts == 1 and (k == 0 or 2 * k == p.n)  # of real numbers; rounding would leave a rest
        for f in range(count):
            at = load_i64(places + 8 * (LANES + f)) + k * step
            store_f32(at, load_f32(real + 2 * BYTES * k + 4 * f) * scale)
            if p.last == 2:
                store_f32(at + 4, np.float32(0) if is_real else load_f32(other + 2 * BYTES * k + 4 * f) * scale)


def _reached(a: Any) -> dict[str, Reach]:
    return {
        "x": 4 * a.lines * a.size * a.parts,
        "y": 4 * a.lines * a.bins * a.last,
        "stages": 8 * STAGE * a.count,
        "tables": a.tables.nbytes,
        "chirps": a.chirps.nbytes,
        "room": a.threads * (PLACES + 4 * BYTES * a.m),
    }


@native(
    fastmath=None, extents=_reached, **dict.fromkeys(("x", "y", "stages", "tables", "chirps", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "size", "parts", "given", "n", "m", "bins", "last", "count"), I64),
    **dict.fromkeys(("inverse", "mirrored"), I64),
)  # fmt: skip
def dft_lines(p, tid, nthreads):
    """[outer, size, inner, parts] f32 to [outer, bins, inner, last]; lines: outer * inner.

    given: numbers of a line that are read.  m: of what is transformed, n unless there is a chirp.  mirrored: lines of
    y are real.  room: for each thread places of lines, and two times m complex vectors.
    """
    n, m = p.n, p.m
    places = p.room + tid * (PLACES + 4 * BYTES * m)
    a = places + PLACES
    b = a + 2 * BYTES * m
    lo, hi = split(ceil_div(p.lines, LANES), tid, nthreads)
    for at in range(lo, hi):
        lanes = min(LANES, p.lines - at * LANES)
        find_lines(p, at * LANES, lanes, places)
        gather_lines(p, places, a)
        if m != n:
            times_table(a, n, p.chirps, 0)
        z = transform(a, b, p.stages, p.count, p.tables)
        if m != n:
            times_table(z, m, p.chirps + 8 * n, 1)
            z = transform(z, a + b - z, p.stages, p.count, p.tables)
            swap_parts(z, n)
            times_table(z, n, p.chirps, 0)
        scatter_lines(p, z, lanes, places)


@record(frozen=True)
class Chirp:
    """m: a power of two.  pairs: [n + m, 2] f32, the chirp, and the transform of its conjugate, wound around m."""

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
    return Chirp(m, np.stack([both.real, both.imag], axis=1).astype(F32))


def extent_of(op: Any, ins: Types) -> tuple[int, int] | None:
    """Length and number of the transforms; None where x is not f32, is empty, or something is not known."""
    x = ins[0]
    if x is None or not x.is_static or x.dtype != F32 or not x.size:
        return None
    if any(t is not None and t.known is None for t in ins[1:]):
        return None
    return length_of(op, ins), x.size // x.dims[axis_of(ins)] // x.dims[-1]


def _accepts(op: Any, ins: Types) -> bool:
    extent = extent_of(op, ins)
    if extent is None:
        return False
    n, lines = extent
    return n <= LONGEST and (lines >= FEW or (chirp(n).m if bends(n) else n) <= SHORT)


def bends(n: int) -> bool:
    """Whether a length has a large prime factor."""
    return n > 1 and factors(n)[-1] > GREATEST_PRIME


def axis_of(ins: Types) -> int:
    """The axis of the transform."""
    x, axis = ins[0], ins[2] if len(ins) > 2 else None
    assert x is not None
    given = -2 if axis is None or axis.known is None else int(axis.known.reshape(-1)[0])
    return given % len(x.dims)


def length_of(op: Any, ins: Types) -> int:
    """Of the transform."""
    x, length = ins[0], ins[1] if len(ins) > 1 else None
    assert x is not None
    if length is not None and length.known is not None:
        return int(length.known.reshape(-1)[0])
    size = x.dims[axis_of(ins)]
    return int(2 * (size - 1) if op.inverse and op.onesided else size)


@kernel(DFT, accepts=_accepts)
def dft(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """f32, along an axis and of a length that are known; few long lines are for `long_dft`."""
    x, axis, n = ins[0], axis_of(ins), length_of(op, ins)
    assert x is not None
    inner, size, mirrored = int(np.prod(x.dims[axis + 1 : -1])), x.dims[axis], op.inverse and op.onesided
    m, chirps = (chirp(n).m, chirp(n).pairs) if bends(n) else (n, np.zeros((1, 2), F32))
    made, lines = stages(m, False), x.size // size // x.dims[-1]
    return [
        Step(
            dft_lines,
            {
                "x": In(0), "y": Out(0), "stages": made.rows, "tables": made.tables, "chirps": chirps,
                "room": Scratch((PLACES + 4 * BYTES * m) * context.threads), "lines": lines, "inner": inner,
                "size": size, "parts": x.dims[-1], "given": min(size, n // 2 + 1 if mirrored else n), "n": n, "m": m,
                "bins": outs[0].dims[axis], "last": outs[0].dims[-1], "count": made.rows.shape[0],
                "inverse": int(op.inverse), "mirrored": int(mirrored),
            },
            lines * m * 20 >= PAYS_FLOPS,
        )
    ]  # fmt: skip
