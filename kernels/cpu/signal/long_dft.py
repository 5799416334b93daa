"""DFT of few long lines: a line is a matrix, of which columns and then rows are transformed, so that no lane is idle.

Between the two each number is turned by its place.  Source: Gentleman and Sande 1966; Bailey 1990 ("four steps").
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    ceil_div,
    fma,
    interleave_low,
    load_f32,
    load_f64,
    splat_f64,
    split,
    store_f32,
    store_f64,
    vload,
    vload_f64,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.signal.dft import (
    FEW_LINES,
    SHORT_LINE,
    axis_of,
    bends,
    extent_of,
    give_number,
    length_of,
    take_pairs,
)
from bolt_numba.kernels.cpu.signal.fourier import LINES, LONGEST_LINE, NEAR, STAGE, stages, transform, turns_of
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import I64, PTR, inline, native
from bolt_numba.kernels.registry import Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.signal import DFT

MOST_POINTS = LONGEST_LINE * 16


@inline
def take_number(p, line, i, real, other):
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
    store_f64(real, re)
    store_f64(other, -im if is_back else im)


def _columns_reach(a: Any) -> dict[str, Reach]:
    return {
        "x": 4 * a.lines * a.size * a.parts, "turns": 2 * BYTES * a.rows, "to": a.lines * columns_bytes(a.n),
        "firsts": columns_bytes(a.n) // LINES, "stages": 8 * STAGE * a.count, "tables": a.tables.nbytes,
        "room": a.threads * (NEAR + 4 * BYTES * a.rows),
    }  # fmt: skip


@native(
    fastmath=None, extents=_columns_reach,
    **dict.fromkeys(("x", "turns", "firsts", "to", "stages", "tables", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "size", "parts", "given", "n", "rows", "count", "inverse", "mirrored"), I64),
)  # fmt: skip
def dft_columns(p, tid, nthreads):
    """Lines of x as matrices of ``rows`` rows: columns transformed, then turned, a vector of columns after the other.

    The last columns of a line may be computed twice, as may be the last rows of `dft_rows`: a vector is whole.
    x: f32 [lines][size][parts] · to: [lines] of `columns_bytes` · firsts: one of these · stages: i64 [count][STAGE].
    """
    rows, wide = p.rows, p.n // p.rows
    near = p.room + tid * (NEAR + 4 * BYTES * rows)
    a = near + NEAR
    b, blocks = a + 2 * BYTES * rows, ceil_div(wide, LINES)
    lo, hi = split(p.lines * blocks, tid, nthreads)
    for unit in range(lo, hi):
        line, first = unit // blocks, min(unit % blocks * LINES, wide - LINES)
        x = p.x + 4 * p.parts * (line // p.inner * p.size * p.inner + line % p.inner)
        for k in range(rows):
            place, real, other = k * wide + first, a + (2 * k + p.inverse) * BYTES, a + (2 * k + 1 - p.inverse) * BYTES
            is_plain = p.mirrored == 0 or (place > 0 and 2 * (place + LINES) <= p.n)
            if p.inner == 1 and is_plain and place + LINES <= p.given:
                take_pairs(x + 4 * p.parts * place, p.parts, real, other, near)
                continue
            for f in range(LINES):
                take_number(p, x, place + f, real + 8 * f, other + 8 * f)
        z = transform(a, b, near, p.stages, p.count, p.tables)
        for k in range(rows):
            at, to = z + 2 * BYTES * k, p.to + 2 * BYTES * (unit * rows + k)
            turn, more = p.turns + 2 * BYTES * k, p.firsts + 16 * (unit % blocks * rows + k)
            re, im, c, d = vload_f64(at), vload_f64(at + BYTES), vload_f64(turn), vload_f64(turn + BYTES)
            e, f = splat_f64(load_f64(more)), splat_f64(load_f64(more + 8))
            c, d = fma(c, e, -(d * f)), fma(c, f, d * e)
            vstore(to, fma(re, c, -(im * d)))
            vstore(to + BYTES, fma(re, d, im * c))


def _rows_reach(a: Any) -> dict[str, Reach]:
    return {
        "x": a.lines * columns_bytes(a.n), "y": 4 * a.lines * a.bins * a.last,
        "stages": 8 * STAGE * a.count, "tables": a.tables.nbytes,
        "room": a.threads * (NEAR + 4 * BYTES * (a.n // a.rows)),
    }  # fmt: skip


@native(
    fastmath=None, extents=_rows_reach, **dict.fromkeys(("x", "y", "stages", "tables", "room"), PTR),
    **dict.fromkeys(("lines", "inner", "parts", "bins", "last", "n", "rows", "count", "inverse"), I64),
)  # fmt: skip
def dft_rows(p, tid, nthreads):
    """What `dft_columns` gives: rows transformed, to lines of y, where number (column, row) of a result is.

    x: [lines] of `columns_bytes` · y: f32 [lines][bins][last].
    """
    rows, wide = p.rows, p.n // p.rows
    near = p.room + tid * (NEAR + 4 * BYTES * wide)
    a = near + NEAR
    b, blocks = a + 2 * BYTES * wide, ceil_div(rows, LINES)
    lo, hi = split(p.lines * blocks, tid, nthreads)
    for unit in range(lo, hi):
        line, first = unit // blocks, min(unit % blocks * LINES, rows - LINES)
        for k in range(wide):
            block = k // LINES
            source = p.x + 2 * BYTES * ((line * ceil_div(wide, LINES) + block) * rows + first)
            source += 8 * (k - min(block * LINES, wide - LINES))
            for f in range(LINES):
                to, at = a + 2 * BYTES * k + 8 * f, source + 2 * BYTES * f
                store_f64(to, load_f64(at))
                store_f64(to + BYTES, load_f64(at + BYTES))
        z = transform(a, b, near, p.stages, p.count, p.tables)
        made = a + b - z
        y = p.y + 4 * p.last * (line // p.inner * p.bins * p.inner + line % p.inner)
        for k in range(wide):
            give_number(p, z + (2 * k + p.inverse) * BYTES, z + (2 * k + 1 - p.inverse) * BYTES, made, False)
            place = k * rows + first
            if p.inner == 1 and p.last == 2 and place + LINES <= p.bins:
                vstore(y + 8 * place, interleave_low(vload(made), vload(made + BYTES // 2)))
                continue
            for f in range(min(LINES, p.bins - place)):
                to = y + 4 * p.last * p.inner * (place + f)
                store_f32(to, load_f32(made + 4 * f))
                if p.last == 2:
                    store_f32(to + 4, load_f32(made + BYTES // 2 + 4 * f))
        if p.parts == 1 and p.last == 2:  # of real numbers
            for place in range(0, p.bins, p.n // 2 if p.n % 2 == 0 else p.n):
                if first <= place % rows < first + LINES:
                    to = y + 8 * p.inner * place
                    store_f32(to + 4, load_f32(to) * np.float32(0))


@pure
@lru_cache(maxsize=64)
def rows_of(n: int) -> int:
    """Rows of the matrix that a line of ``n`` numbers is: about the root of n."""
    return max((r for r in range(1, int(n**0.5) + 1) if n % r == 0), default=1)


def columns_bytes(n: int) -> int:
    """Of the vectors of columns of a line, f64."""
    rows = rows_of(n)
    return 2 * BYTES * rows * -(-n // rows // LINES)


@pure
@lru_cache(maxsize=8)
def places_turned(n: int) -> Any:
    """Turns of numbers (k, column) by n-th parts of a circle, f64: of a vector's columns, and of the first of each.

    [k, cosine or sine, column from the first on], [vector, k, cosine or sine]; a product of both is one number's.
    """
    rows = np.arange(rows_of(n))[:, None]
    wide = n // len(rows)
    lanes = turns_of(rows * np.arange(LINES), n).reshape(-1, LINES, 2).swapaxes(1, 2)
    return np.ascontiguousarray(lanes), turns_of(
        rows.T * np.minimum(np.arange(0, wide, LINES), wide - LINES)[:, None], n
    )


def _accepts(op: DFT, ins: Types) -> bool:
    extent = extent_of(op, ins)
    if extent is None:
        return False
    n, lines = extent
    if not SHORT_LINE < n <= MOST_POINTS or bends(n) or (lines >= FEW_LINES and n <= LONGEST_LINE):
        return False
    return rows_of(n) >= LINES


@kernel(DFT, accepts=_accepts)
def long_dft(op: DFT, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Few lines of more than 1,024 numbers, or any that are longer than others take."""
    x, axis, n = ins[0], axis_of(ins), length_of(op, ins)
    rows, size, parts = rows_of(n), x.dims[axis], x.dims[-1]
    wide, mirrored, inner = n // rows, op.inverse and op.onesided, int(np.prod(x.dims[axis + 1 : -1]))
    lines, columns, across = x.size // size // parts, stages(rows, False), stages(wide, False)
    pays, (turns, firsts) = lines * n * 20 >= PAYS_FLOPS, places_turned(n)
    between, room = Scratch(lines * columns_bytes(n)), Scratch((NEAR + 4 * BYTES * wide) * context.threads)
    same: dict[str, Any] = {"lines": lines, "inner": inner, "parts": parts, "n": n, "rows": rows, "room": room}
    first: dict[str, Any] = {
        "x": In(0), "turns": turns, "firsts": firsts, "to": between, "stages": columns.rows, "tables": columns.tables,
        "size": size, "given": min(size, n // 2 + 1 if mirrored else n),
        "count": columns.rows.shape[0], "inverse": int(op.inverse), "mirrored": int(mirrored),
    }  # fmt: skip
    second: dict[str, Any] = {
        "x": between, "y": Out(0), "stages": across.rows, "tables": across.tables, "bins": outs[0].dims[axis],
        "last": outs[0].dims[-1], "count": across.rows.shape[0], "inverse": int(op.inverse),
    }  # fmt: skip
    return [Step(dft_columns, same | first, pays), Step(dft_rows, same | second, pays)]
