"""DFT of few long lines: a line is a matrix, of which columns and then rows are transformed, so that no lane is idle.

Between the two each number is turned by its place.  Source: Gentleman and Sande 1966; Bailey 1990 ("four steps").
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    ceil_div,
    fma,
    load_f32,
    load_f64,
    split,
    store_f32,
    store_f64,
    vload_f64,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.signal.dft import FEW, SHORT, axis_of, bends, extent_of, give_number, length_of
from bolt_numba.kernels.cpu.signal.fourier import LINES, LONGEST, STAGE, stages, transform, turns_of
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.signal import DFT
from bolt_numba.types import TensorType

MOST = LONGEST * 16


@inline
def take_number(p, line, i, to):
    """Number ``i`` of a line of x, which is 0 behind what is given; a mirrored line goes back behind its middle."""
    is_back = p.mirrored != 0 and i > p.n // 2
    place = p.n - i if is_back else i
    re, im = 0.0, 0.0
    if place < p.given:
        at = line + 4 * p.parts * p.inner * place
        re = np.float64(load_f32(at))
        if p.parts == 2:
            im = np.float64(load_f32(at + 4))
    if p.mirrored and (2 * place == p.n or place == 0):
        re, im = re + im * 0.0, 0.0
    store_f64(to, re)
    store_f64(to + BYTES, -im if is_back else im)


def _columns_reach(a: Any) -> dict[str, Reach]:
    return {
        "x": 4 * a.lines * a.size * a.parts, "turns": 16 * a.n, "to": 16 * a.lines * a.n,
        "stages": 8 * STAGE * a.count, "tables": a.tables.nbytes, "room": a.threads * 4 * BYTES * a.rows,
    }  # fmt: skip


@native(
    fastmath=None, extents=_columns_reach, **dict.fromkeys(("x", "turns", "to", "stages", "tables", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "size", "parts", "given", "n", "rows", "count", "mirrored"), I64),
)  # fmt: skip
def dft_columns(p, tid, nthreads):
    """Lines of x as matrices of ``rows`` rows: their columns transformed, then turned, to planes of parts in to.

    The last columns of a line may be computed twice, as may be the last rows of `dft_rows`: a vector is whole.
    """
    rows, wide = p.rows, p.n // p.rows
    a = p.room + tid * 4 * BYTES * rows
    b, blocks = a + 2 * BYTES * rows, ceil_div(wide, LINES)
    lo, hi = split(p.lines * blocks, tid, nthreads)
    for unit in range(lo, hi):
        line, first = unit // blocks, min(unit % blocks * LINES, wide - LINES)
        x = p.x + 4 * p.parts * (line // p.inner * p.size * p.inner + line % p.inner)
        for k in range(rows):
            for f in range(LINES):
                take_number(p, x, k * wide + first + f, a + 2 * BYTES * k + 8 * f)
        z = transform(a, b, p.stages, p.count, p.tables)
        for k in range(rows):
            place, at = 8 * (k * wide + first), z + 2 * BYTES * k
            turn, to = p.turns + place, p.to + 16 * line * p.n + place
            re, im, c, d = vload_f64(at), vload_f64(at + BYTES), vload_f64(turn), vload_f64(turn + 8 * p.n)
            vstore(to, fma(re, c, -(im * d)))
            vstore(to + 8 * p.n, fma(re, d, im * c))


def _rows_reach(a: Any) -> dict[str, Reach]:
    return {
        "x": 16 * a.lines * a.n, "y": 4 * a.lines * a.bins * a.last,
        "stages": 8 * STAGE * a.count, "tables": a.tables.nbytes, "room": a.threads * 4 * BYTES * (a.n // a.rows),
    }  # fmt: skip


@native(
    fastmath=None, extents=_rows_reach, **dict.fromkeys(("x", "y", "stages", "tables", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "parts", "bins", "last", "n", "rows", "count", "inverse"), I64),
)  # fmt: skip
def dft_rows(p, tid, nthreads):
    """Matrices of planes: their rows transformed, to lines of y, where number (column, row) of a result is."""
    rows, wide = p.rows, p.n // p.rows
    a = p.room + tid * 4 * BYTES * wide
    b, blocks = a + 2 * BYTES * wide, ceil_div(rows, LINES)
    lo, hi = split(p.lines * blocks, tid, nthreads)
    for unit in range(lo, hi):
        line, first = unit // blocks, min(unit % blocks * LINES, rows - LINES)
        for k in range(wide):
            for f in range(LINES):
                source, to = p.x + 8 * (2 * line * p.n + (first + f) * wide + k), a + 2 * BYTES * k + 8 * f
                store_f64(to, load_f64(source))
                store_f64(to + BYTES, load_f64(source + 8 * p.n))
        z = transform(a, b, p.stages, p.count, p.tables)
        made = a + b - z
        y = p.y + 4 * p.last * (line // p.inner * p.bins * p.inner + line % p.inner)
        for k in range(wide):
            give_number(p, z + 2 * BYTES * k, made, False)
            for f in range(LINES):
                place = k * rows + first + f
                place = p.n - place if p.inverse and place else place
                if place < p.bins:
                    re, to = load_f32(made + 4 * f), y + 4 * p.last * p.inner * place
                    store_f32(to, re)
                    if p.last == 2:
                        is_real = p.parts == 1 and (place == 0 or 2 * place == p.n)  # of real numbers
                        store_f32(to + 4, re * np.float32(0) if is_real else load_f32(made + BYTES // 2 + 4 * f))


@pure
@lru_cache(maxsize=64)
def rows_of(n: int) -> int:
    """Rows of the matrix that a line of ``n`` numbers is: about the root of n."""
    return max((r for r in range(1, int(n**0.5) + 1) if n % r == 0), default=1)


@pure
@lru_cache(maxsize=8)
def places_turned(n: int) -> Any:
    """Turns of numbers (k, column) by n-th parts of a circle, cosines and sines, [2, n] f64."""
    rows = rows_of(n)
    return np.ascontiguousarray(turns_of(np.outer(np.arange(rows), np.arange(n // rows)), n).T)


def _accepts(op: Any, ins: Types) -> bool:
    extent = extent_of(op, ins)
    if extent is None:
        return False
    n, lines = extent
    if not SHORT < n <= MOST or bends(n) or (lines >= FEW and n <= LONGEST):
        return False
    return rows_of(n) >= LINES


@kernel(DFT, accepts=_accepts)
def long_dft(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Few lines of more than 1,024 numbers, or any that are longer than others take."""
    x, axis, n = ins[0], axis_of(ins), length_of(op, ins)
    assert x is not None
    rows, size, parts = rows_of(n), x.dims[axis], x.dims[-1]
    wide, mirrored, inner = n // rows, op.inverse and op.onesided, int(np.prod(x.dims[axis + 1 : -1]))
    lines, columns, across = x.size // size // parts, stages(rows, False), stages(wide, False)
    pays = lines * n * 20 >= PAYS_FLOPS
    between, room = Scratch(16 * lines * n), Scratch(4 * BYTES * wide * context.threads)
    same: dict[str, Any] = {"lines": lines, "inner": inner, "parts": parts, "n": n, "rows": rows, "room": room}
    first: dict[str, Any] = {
        "x": In(0), "turns": places_turned(n), "to": between, "stages": columns.rows, "tables": columns.tables,
        "size": size, "given": min(size, n // 2 + 1 if mirrored else n),
        "count": columns.rows.shape[0], "mirrored": int(mirrored),
    }  # fmt: skip
    second: dict[str, Any] = {
        "x": between, "y": Out(0), "stages": across.rows, "tables": across.tables, "bins": outs[0].dims[axis],
        "last": outs[0].dims[-1], "count": across.rows.shape[0], "inverse": int(op.inverse),
    }  # fmt: skip
    return [Step(dft_columns, same | first, pays), Step(dft_rows, same | second, pays)]
