"""Kernels that carry out the strided moves of `strides`: rows of bytes, single elements, transposed blocks.

They know nothing of operators; `steps` picks one for each move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.selects import table
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    split,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
    view,
    vload,
    vload_n,
    vstore,
    vstore_n,
)
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_BYTES, PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.geometry.strides import Axis, Move
from bolt_numba.kernels.geometry.transfers import Transfer
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native, native_source
from bolt_numba.kernels.registry import In, Out, Scratch, Step

UNITS: dict[int, tuple[Any, Any]] = {
    1: (load_u8, store_u8),
    2: (load_u16, store_u16),
    4: (load_i32, store_i32),
    8: (load_i64, store_i64),
}


DTYPES: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.int64}
"""A dtype of each size whose arrays LLVM turns into vectors."""


@inline
def outer_offsets(table: int, rank: int, index: int) -> tuple[int, int]:
    """Byte offsets (source, destination) of a flat index; table: rows (size, source stride, destination stride)."""
    src, dst = 0, 0
    for r in range(rank - 1, -1, -1):
        row = table + 24 * r
        rest = index // load_i64(row)
        i = index - rest * load_i64(row)
        src += i * load_i64(row + 8)
        dst += i * load_i64(row + 16)
        index = rest
    return src, dst


def axes_of(table: Array, rank: int, side: int) -> list[tuple[int, int]]:
    """Sizes and strides of the table of `outer_offsets`, for extents; side: 1 source, 2 destination."""
    return [(row[0], row[side]) for row in table[:rank].tolist()]


def _moved(run: int, a: Any, *inner: tuple[int, int, int]) -> dict[str, Reach]:
    """Extents of runs of ``run`` bytes along the axes of the table ``outer`` and inner ones of the same form."""
    rows = [*a.outer[: a.rank].tolist(), *inner]
    src, dst = box(run, *((n, s) for n, s, _ in rows)), box(run, *((n, d) for n, _, d in rows))
    return {"src": src, "dst": dst, "outer": 24 * a.rank}


@inline
def copy_run(dst: int, src: int, nbytes: int) -> None:
    """Copy; short runs of whole f32 without a call."""
    if nbytes > 4 * BYTES or nbytes % 4 != 0:
        copy_bytes(dst, src, nbytes)
    elif nbytes >= BYTES:
        for at in range(0, nbytes - BYTES, BYTES):
            vstore(dst + at, vload(src + at))
        vstore(dst + nbytes - BYTES, vload(src + nbytes - BYTES))
    elif nbytes == 8:
        store_i64(dst, load_i64(src))
    elif nbytes == 4:
        store_i32(dst, load_i32(src))
    else:
        vstore_n(dst, vload_n(src, nbytes // 4), nbytes // 4)


@native(src=PTR, dst=PTR, nbytes=I64, extents=lambda a: {"src": a.nbytes, "dst": a.nbytes})
def copy_block(p: Any, tid: int, nthreads: int) -> None:
    """src, dst: bytes [nbytes]."""
    src, dst, nbytes = p.src, p.dst, p.nbytes
    lo, hi = split(ceil_div(nbytes, 64), tid, nthreads)
    lo, hi = 64 * lo, min(64 * hi, nbytes)
    if hi > lo and src != dst:
        copy_bytes(dst + lo, src + lo, hi - lo)


@native(
    src=PTR, dst=PTR, outer=PTR, rank=I64, count=I64, n=I64, src_step=I64, dst_step=I64, run=I64,
    extents=lambda a: _moved(a.run, a, (a.n, a.src_step, a.dst_step)),
)  # fmt: skip
def copy_rows(p: Any, tid: int, nthreads: int) -> None:
    """``count`` outer indices (`outer_offsets`) x ``n`` rows of ``run`` bytes.

    outer: i64 [rank][3]: count, bytes in src and in dst · src, dst: bytes [...][n][run] by these steps.
    """
    outer, rank, n, run, src_step, dst_step = p.outer, p.rank, p.n, p.run, p.src_step, p.dst_step
    at, hi = split(p.count * n, tid, nthreads)
    while at < hi:
        index = at // n
        i = at - index * n
        todo = min(n - i, hi - at)
        s, d = outer_offsets(outer, rank, index)
        src = p.src + s + i * src_step
        dst = p.dst + d + i * dst_step
        for j in range(todo):
            copy_run(dst + j * dst_step, src + j * src_step, run)
        at += todo


@cache
def copy_elements(unit: int) -> Native:
    """Kernel for elements of 1, 2, 4 or 8 bytes, two inner axes with any strides."""
    load, store = UNITS[unit]
    dtype = DTYPES[unit]

    def body(p: Any, tid: int, nthreads: int) -> None:
        outer, rank, n1, n0 = p.outer, p.rank, p.n1, p.n0
        s1, d1, s0, d0 = p.s1, p.d1, p.s0, p.d0
        at, hi = split(p.count * n1, tid, nthreads)
        while at < hi:
            index = at // n1
            first = at - index * n1
            todo = min(n1 - first, hi - at)
            s, d = outer_offsets(outer, rank, index)
            for j in range(first, first + todo):
                src = p.src + s + j * s1
                dst = p.dst + d + j * d1
                if s0 == 0 and d0 == unit:
                    x, y = view(src, 1, dtype), view(dst, n0, dtype)
                    for i in range(n0):
                        y[i] = x[0]
                elif d0 == unit:
                    for i in range(n0):
                        store(dst + i * unit, load(src + i * s0))
                else:
                    for i in range(n0):
                        store(dst + i * d0, load(src + i * s0))
            at += todo

    body.__name__ = f"copy_elements_{8 * unit}"
    return native(
        src=PTR, dst=PTR, outer=PTR, rank=I64, count=I64, n1=I64, s1=I64, d1=I64, n0=I64, s0=I64, d0=I64,
        extents=lambda a: _moved(unit, a, (a.n1, a.s1, a.d1), (a.n0, a.s0, a.d0)),
    )(body)  # fmt: skip


@cache
def transpose_elements(unit: int) -> Native:
    """Kernel for any elements: axis i is contiguous in the source, axis j in the destination.

    A task is 64 indices i times ``chunk`` indices j.
    """
    load, store = UNITS[unit]

    def body(p: Any, tid: int, nthreads: int) -> None:
        ni, nj, di, sj, chunk = p.ni, p.nj, p.di, p.sj, p.chunk
        blocks, chunks = ceil_div(ni, 64), ceil_div(nj, chunk)
        lo, hi = split(p.count * blocks * chunks, tid, nthreads)
        for at in range(lo, hi):
            row = at // chunks
            index = row // blocks
            i0 = (row - index * blocks) * 64
            wide = min(64, ni - i0)
            first = (at - row * chunks) * chunk
            s, d = outer_offsets(p.outer, p.rank, index)
            src = p.src + s + i0 * unit
            dst = p.dst + d + i0 * di
            for j0 in range(first, min(first + chunk, nj), 16):
                for j in range(j0, min(j0 + 16, nj)):
                    for i in range(wide):
                        store(dst + i * di + j * unit, load(src + j * sj + i * unit))

    body.__name__ = f"transpose_elements_{8 * unit}"
    return native(fastmath=None, extents=partial(_crossed_over, unit), **_TRANSPOSED)(body)


def _crossed_over(unit: int, a: Numbers) -> dict[str, Reach]:
    return _moved(unit, a, (a.ni, unit, a.di), (a.nj, a.sj, unit))


_TRANSPOSED = dict.fromkeys(("src", "dst", "outer"), PTR) | dict.fromkeys(
    ("rank", "count", "ni", "di", "nj", "sj", "chunk"), I64
)


@cache
def transpose_few(unit: int, few: int, gathers: bool) -> Native:
    """Kernel for an axis of ``few`` (2 to 4), written out so that LLVM sees interleaved vectors.

    gathers: ``few`` is axis j, src[j * sj + i] -> dst[i * few + j]; else axis i, src[j * few + i] -> dst[i * di + j].
    """
    name = f"transpose_{'gather' if gathers else 'scatter'}_{few}x{8 * unit}"
    long, far, one, many = ("ni", "sj", "x", "y") if gathers else ("nj", "di", "y", "x")
    base = {"x": "p.src + s", "y": "p.dst + d"}
    lines = [f"    {many} = view({base[many]} + {few * unit} * first, {few} * todo, dtype)"]
    lines += [f"    {one}{r} = view({base[one]} + {unit} * first + {r} * p.{far}, todo, dtype)" for r in range(few)]
    lines.append("    for i in range(todo):")
    loads = [f"        v{r} = x{r}[i]" if gathers else f"        v{r} = x[{few} * i + {r}]" for r in range(few)]
    stores = [f"        y[{few} * i + {r}] = v{r}" if gathers else f"        y{r}[i] = v{r}" for r in range(few)]
    text = (
        f"def {name}(p, tid, nthreads):\n"
        f"    chunks = ceil_div(p.{long}, p.chunk)\n"
        "    lo, hi = split(p.count * chunks, tid, nthreads)\n"
        "    for at in range(lo, hi):\n"
        "        index = at // chunks\n"
        "        first = (at - index * chunks) * p.chunk\n"
        f"        todo = min(p.chunk, p.{long} - first)\n"
        "        s, d = outer_offsets(p.outer, p.rank, index)\n"
    ) + "".join(f"    {line}\n" for line in lines + loads + stores)
    return _transposing(text, name, unit, dtype=DTYPES[unit])


def _transposing(text: str, name: str, unit: int, **scope: Any) -> Native:
    """A kernel of such text for elements of ``unit`` bytes."""
    reach = partial(_crossed_over, unit)
    return native_source(text, name, _TRANSPOSED, extents=reach, outer_offsets=outer_offsets, **scope, **scope_of(text))


def _block_source() -> str:
    """Source of the kernel that transposes blocks of LANES x LANES f32 in registers.

    One round interleaves row r with row r + LANES / 2, which rotates the bits of the index (row, lane) by one; after
    log2(LANES) rounds row and lane have changed places.  The last block of a task overlaps the one before it, so no
    axis may be shorter than a vector.
    """
    rows = range(LANES)
    old, lines = [f"r{i}" for i in rows], []
    for step in range(LANES.bit_length() - 1):
        new = [f"t{step}_{i}" for i in rows]
        for i in range(LANES // 2):
            pair = f"({old[i]}, {old[i + LANES // 2]})"
            lines += [f"{new[2 * i]} = interleave_low{pair}", f"{new[2 * i + 1]} = interleave_high{pair}"]
        old = new

    body = [f"r{i} = vload(src + (j + {i}) * sj)" for i in rows] + lines
    return _blocks_text("transpose_f32", 4, body + [f"vstore(dst + {i} * di + 4 * j, {old[i]})" for i in rows])


def _blocks_text(name: str, unit: int, body: list[str]) -> str:
    """Source of a kernel whose ``body`` transposes the block of SIDE x SIDE elements at j of ``src`` and ``dst``."""
    return (
        f"def {name}(p, tid, nthreads):\n"
        "    ni, nj, di, sj = p.ni, p.nj, p.di, p.sj\n"
        "    blocks, chunks = ni // SIDE, max(nj // p.chunk, 1)\n"
        "    lo, hi = split(p.count * blocks * chunks, tid, nthreads)\n"
        "    for at in range(lo, hi):\n"
        "        row = at // chunks\n"
        "        index = row // blocks\n"
        "        i = (row - index * blocks) * SIDE\n"
        "        end = i + SIDE if i + 2 * SIDE <= ni else ni\n"
        "        s, d = outer_offsets(p.outer, p.rank, index)\n"
        "        first, last = split(nj, at - row * chunks, chunks)\n"
        "        while i < end:\n"
        "            i = min(i, end - SIDE)\n"
        f"            src = p.src + s + {unit} * i\n"
        "            dst = p.dst + d + di * i\n"
        "            j = first\n"
        "            while j < last:\n"
        "                j = min(j, last - SIDE)\n"
        + "".join(f"                {line}\n" for line in body)
        + "                j += SIDE\n"
        "            i += SIDE\n"
    )


@cache
def transpose_f32() -> Native:
    """Kernel like `transpose_elements` of four bytes, in registers; a task is LANES indices i."""
    return _transposing(_block_source(), "transpose_f32", 4, SIDE=LANES)


def steps(moves: Iterable[Move], src: In | Out | Scratch | Array, dst: Out | Scratch) -> list[Step]:
    """Steps of the moves that move anything; offsets of the moves are added to the operands' own."""
    parts = [part for m in moves if m.nbytes for part in _parts(m) if part[0] is not False]
    made = [(when, _step(m, _shifted(src, m.src_offset), _shifted(dst, m.dst_offset))) for when, m in parts]
    return [replace(step, when=when) for when, step in made]


def carried(transfers: Iterable[Transfer]) -> list[Step]:
    """`steps` of moves between operands."""
    return [step for t in transfers for step in steps([t.move], t.src, t.dst)]


def _parts(m: Move) -> list[tuple[Any, Move]]:
    """Moves and when they are made: a long one along one axis along two, so that threads can share it, and the rest."""
    if len(m.axes) != 1 or _unit(m) is None:
        return [(True, m)]
    axis, row = m.axes[0], 4096
    rows, rest = divmod(axis.size, row)
    src, dst = m.src_offset + rows * row * axis.src, m.dst_offset + rows * row * axis.dst
    is_long = axis.size >= PAYS_ELEMENTS
    return [
        (is_long ^ True, m),
        (is_long, replace(m, axes=(Axis(rows, row * axis.src, row * axis.dst), replace(axis, size=row)))),
        (is_long & (rest > 0), Move((replace(axis, size=rest),), m.unit, src, dst)),
    ]


def _unit(m: Move) -> int | None:
    """The bytes of an element that vectors and registers hold; None where a move is of longer runs."""
    return next((unit for unit in UNITS if unit == m.unit), None)


def _shifted(operand: Any, offset: int) -> Any:
    """The operand ``offset`` bytes further on."""
    if not offset:
        return operand
    if isinstance(operand, (In, Out)):
        return type(operand)(operand.index, operand.offset + offset)
    if isinstance(operand, np.ndarray):
        return operand.reshape(-1).view(np.uint8)[offset:]
    raise ValueError("an offset into a workspace is not supported")


def _outer(axes: Iterable[Axis]) -> dict[str, Any]:
    rows = [(a.size, a.src, a.dst) for a in axes]
    return {"outer": table(rows or [(1, 0, 0)]), "rank": len(rows), "count": math.prod([r[0] for r in rows])}


BYTE_BLOCK = 16
"""Rows and columns of a block of bytes: a row is a vector of 128 bits on every target."""


@cache
def transpose_bytes() -> Native:
    """Kernel like `transpose_elements` of one byte, in registers; a task is `BYTE_BLOCK` indices i."""
    body = ["transpose_16x16(dst + j, di, src + j * sj, sj)"]
    return _transposing(_blocks_text("transpose_bytes", 1, body), "transpose_bytes", 1, SIDE=BYTE_BLOCK)


def _step(m: Move, src: Any, dst: Any) -> Step:
    ends: dict[str, Any] = {"src": src, "dst": dst}
    if not m.axes:
        return Step(copy_block, {**ends, "nbytes": m.nbytes}, m.nbytes >= PAYS_BYTES)
    unit = _unit(m)
    if unit is None:
        return _rows_step(m, ends)
    m = replace(m, unit=unit)
    crossed = _crossed(m)
    if crossed is not None:
        return _transposing_step(m, *crossed, ends)
    inner, middle = m.axes[-1], m.axes[-2] if len(m.axes) > 1 else Axis(1, 0, 0)
    args = _outer(m.axes[:-2])
    args |= {"n1": middle.size, "s1": middle.src, "d1": middle.dst, "n0": inner.size, "s0": inner.src, "d0": inner.dst}
    return Step(copy_elements(m.unit), ends | args, m.nbytes >= m.unit * PAYS_ELEMENTS)


def _transposing_step(m: Move, i: Axis, j: Axis, ends: dict[str, Any]) -> Step:
    args = ends | _outer(a for a in m.axes if a not in (i, j))
    args |= {"ni": i.size, "di": i.dst, "nj": j.size, "sj": j.src, "chunk": 1024}
    parallel = m.nbytes >= PAYS_BYTES
    if j.size <= 4 and i.dst == j.size * m.unit:
        return Step(transpose_few(m.unit, j.size, True), args, parallel)
    if i.size <= 4 and j.src == i.size * m.unit:
        return Step(transpose_few(m.unit, i.size, False), args, parallel)
    if m.unit == 4 and i.size >= LANES and j.size >= LANES:
        return Step(transpose_f32(), args, parallel)
    if m.unit == 1 and i.size >= BYTE_BLOCK and j.size >= BYTE_BLOCK:
        return Step(transpose_bytes(), args, parallel)
    return Step(transpose_elements(m.unit), args, m.nbytes >= m.unit * PAYS_ELEMENTS)


def _rows_step(m: Move, ends: dict[str, Any]) -> Step:
    if m.unit % 4 and m.unit < 32:  # a few odd bytes: one by one is faster than a call
        small = 1 if m.unit % 2 else 2
        inner = Axis(m.unit // small, small, small)
        return _step(Move((*m.axes, inner), small), ends["src"], ends["dst"])
    row = m.axes[-1]
    args = _outer(m.axes[:-1]) | {"n": row.size, "src_step": row.src, "dst_step": row.dst, "run": m.unit}
    return Step(copy_rows, ends | args, m.nbytes >= PAYS_BYTES)


def _crossed(m: Move) -> tuple[Axis, Axis] | None:
    """The axis that is contiguous in the source and the one that is contiguous in the destination."""
    i = next((a for a in m.axes if a.src == m.unit and a.dst != m.unit), None)
    j = next((a for a in m.axes if a.dst == m.unit and a.src != m.unit), None)
    return None if i is None or j is None or j.src == 0 else (i, j)
