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
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES, ceil_div, load_f32, split, store_f32
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.signal.dft import FEW, SHORT, axis_of, bends, extent_of, length_of
from bolt_numba.kernels.cpu.signal.fourier import LONGEST, STAGE, stages, transform, turns_of
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.signal import DFT
from bolt_numba.types import TensorType

MOST = LONGEST * 16


@inline
def take_number(p, line, i, real, other):
    """Number ``i`` of a line of x, which is 0 behind what is given; a mirrored line goes back behind its middle."""
    is_back = p.mirrored != 0 and i > p.n // 2
    place = p.n - i if is_back else i
    re, im = np.float32(0), np.float32(0)
    if place < p.given:
        at = line + 4 * p.parts * p.inner * place
        re = load_f32(at)
        if p.parts == 2 and not (p.mirrored and (2 * place == p.n or place == 0)):
            im = load_f32(at + 4)
    store_f32(real, re)
    store_f32(other, -im if is_back else im)


def _columns_reach(a: Any) -> dict[str, Reach]:
    return {
        "x": 4 * a.lines * a.size * a.parts, "turns": 8 * a.n, "to": 8 * a.lines * a.n,
        "stages": 8 * STAGE * a.count, "tables": a.tables.nbytes, "room": a.threads * 4 * BYTES * a.rows,
    }  # fmt: skip


@native(
    fastmath=None, extents=_columns_reach, **dict.fromkeys(("x", "turns", "to", "stages", "tables", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "size", "parts", "given", "n", "rows", "count", "inverse", "mirrored"), I64),
)  # fmt: skip
def dft_columns(p, tid, nthreads):
    """Lines of x as matrices of ``rows`` rows: their columns transformed, then turned, to pairs in to."""
    rows, wide = p.rows, p.n // p.rows
    a = p.room + tid * 4 * BYTES * rows
    b, blocks = a + 2 * BYTES * rows, ceil_div(wide, LANES)
    lo, hi = split(p.lines * blocks, tid, nthreads)
    for unit in range(lo, hi):
        line, first = unit // blocks, unit % blocks * LANES
        x = p.x + 4 * p.parts * (line // p.inner * p.size * p.inner + line % p.inner)
        for k in range(rows):
            at = a + 2 * BYTES * k
            for f in range(LANES):
                column, place = min(first + f, wide - 1), at + 4 * f
                take_number(p, x, k * wide + column, place + p.inverse * BYTES, place + (1 - p.inverse) * BYTES)
        z = transform(a, b, p.stages, p.count, p.tables)
        for k in range(rows):
            for f in range(min(LANES, wide - first)):
                place, turn = k * wide + first + f, p.turns + 8 * (k * wide + first + f)
                re, im = load_f32(z + 2 * BYTES * k + 4 * f), load_f32(z + 2 * BYTES * k + BYTES + 4 * f)
                c, d, to = load_f32(turn), load_f32(turn + 4), p.to + 8 * (line * p.n + place)
                store_f32(to, re * c - im * d)
                store_f32(to + 4, re * d + im * c)


def _rows_reach(a: Any) -> dict[str, Reach]:
    return {
        "x": 8 * a.lines * a.n, "y": 4 * a.lines * a.bins * a.last,
        "stages": 8 * STAGE * a.count, "tables": a.tables.nbytes, "room": a.threads * 4 * BYTES * (a.n // a.rows),
    }  # fmt: skip


@native(
    fastmath=None, extents=_rows_reach, **dict.fromkeys(("x", "y", "stages", "tables", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "parts", "bins", "last", "n", "rows", "count", "inverse"), I64),
)  # fmt: skip
def dft_rows(p, tid, nthreads):
    """Matrices of pairs: their rows transformed, to lines of y, where number (column, row) of a result is."""
    rows, wide = p.rows, p.n // p.rows
    a = p.room + tid * 4 * BYTES * wide
    b, blocks = a + 2 * BYTES * wide, ceil_div(rows, LANES)
    scale = np.float32(1.0 / np.float64(p.n)) if p.inverse else np.float32(1)
    lo, hi = split(p.lines * blocks, tid, nthreads)
    for unit in range(lo, hi):
        line, first = unit // blocks, unit % blocks * LANES
        for k in range(wide):
            at = a + 2 * BYTES * k
            for f in range(LANES):
                source = p.x + 8 * (line * p.n + min(first + f, rows - 1) * wide + k)
                store_f32(at + 4 * f, load_f32(source))
                store_f32(at + BYTES + 4 * f, load_f32(source + 4))
        z = transform(a, b, p.stages, p.count, p.tables)
        y = p.y + 4 * p.last * (line // p.inner * p.bins * p.inner + line % p.inner)
        for k in range(wide):
            real, other = z + (2 * k + p.inverse) * BYTES, z + (2 * k + 1 - p.inverse) * BYTES
            for f in range(min(LANES, rows - first)):
                place = k * rows + first + f
                if place < p.bins:
                    to = y + 4 * p.last * p.inner * place
                    store_f32(to, load_f32(real + 4 * f) * scale)
                    if p.last == 2:
                        is_real = p.parts == 1 and (place == 0 or 2 * place == p.n)  # of real numbers
                        store_f32(to + 4, np.float32(0) if is_real else load_f32(other + 4 * f) * scale)


@pure
@lru_cache(maxsize=64)
def rows_of(n: int) -> int:
    """Rows of the matrix that a line of ``n`` numbers is: about the root of n."""
    return max((r for r in range(1, int(n**0.5) + 1) if n % r == 0), default=1)


@pure
@lru_cache(maxsize=8)
def places_turned(n: int) -> Any:
    """Turns of numbers (k, column) by n-th parts of a circle, [n, 2] f32."""
    rows = rows_of(n)
    return turns_of(np.outer(np.arange(rows), np.arange(n // rows)), n)


def _accepts(op: Any, ins: Types) -> bool:
    extent = extent_of(op, ins)
    if extent is None:
        return False
    n, lines = extent
    if not SHORT < n <= MOST or bends(n) or (lines >= FEW and n <= LONGEST):
        return False
    return rows_of(n) >= LANES // 2


@kernel(DFT, accepts=_accepts)
def long_dft(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Few lines of more than 1,024 numbers, or any that are longer than others take."""
    x, axis, n = ins[0], axis_of(ins), length_of(op, ins)
    assert x is not None
    rows, size, parts = rows_of(n), x.dims[axis], x.dims[-1]
    wide, mirrored, inner = n // rows, op.inverse and op.onesided, int(np.prod(x.dims[axis + 1 : -1]))
    lines, columns, across = x.size // size // parts, stages(rows, False), stages(wide, False)
    pays = lines * n * 20 >= PAYS_FLOPS
    between, room = Scratch(8 * lines * n), Scratch(4 * BYTES * wide * context.threads)
    same: dict[str, Any] = {"lines": lines, "inner": inner, "parts": parts, "n": n, "rows": rows, "room": room}
    same["inverse"] = int(op.inverse)
    first: dict[str, Any] = {
        "x": In(0), "turns": places_turned(n), "to": between, "stages": columns.rows, "tables": columns.tables,
        "size": size, "given": min(size, n // 2 + 1 if mirrored else n),
        "count": columns.rows.shape[0], "mirrored": int(mirrored),
    }  # fmt: skip
    second: dict[str, Any] = {
        "x": between, "y": Out(0), "stages": across.rows, "tables": across.tables, "bins": outs[0].dims[axis],
        "last": outs[0].dims[-1], "count": across.rows.shape[0],
    }  # fmt: skip
    return [Step(dft_columns, same | first, pays), Step(dft_rows, same | second, pays)]
