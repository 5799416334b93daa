"""Kernels that carry out strided moves: blocks of bytes, single elements, tiles that are turned in shared memory.

They know nothing of operators; `carried` picks one for each move.  An element is as wide as all offsets and strides
allow, up to 16 bytes.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elements.units import move_16, mover, several, widest
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, load_u8, load_u32, prmt, store_u8
from bolt_numba.kernels.declare import Field, Inline, Source, inline_source
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, DeviceParts, Elements
from bolt_numba.kernels.geometry.strides import Axis, Move
from bolt_numba.kernels.geometry.transfers import Transfer
from bolt_numba.kernels.registry import In, Out, Scratch, Step

SIDE = 32
"""Words of a side of a tile."""
THIN = 8
"""Indices of an axis under which turned tiles would be mostly empty."""


def _block(a: Numbers) -> int:
    """No thread at all for what is in its place: results may take over the memory of operands."""
    return 0 if a.src == a.dst else ceil_div(max(a.nbytes >> 4, min(a.nbytes, 16)), WIDE_BLOCK)


@cuda_kernel(
    threads=WIDE_BLOCK, blocks=_block, src=PTR, dst=PTR, nbytes=I64,
    extents=lambda a: {"src": a.nbytes, "dst": a.nbytes},
)  # fmt: skip
def copy_block(src, dst, nbytes):
    """Bytes from addresses that are multiples of 16; the first threads take the rest behind the last 16.

    src, dst: [nbytes].
    """
    i = cuda.blockIdx.x * WIDE_BLOCK + cuda.threadIdx.x
    vectors = nbytes >> 4
    if i < vectors:
        move_16(src + 16 * i, dst + 16 * i)
    rest = 16 * vectors + i
    if rest < nbytes and i < 16:
        store_u8(dst + rest, load_u8(src + rest))


def moved_reach(run: int, rank: int, a: Numbers, *inner: tuple[int, int, int]) -> dict[str, Reach]:
    """Extents of runs of ``run`` bytes along axes of strides s and d, and inner ones (indices, from, to)."""
    numbers = [(getattr(a, f"n{k}"), getattr(a, f"s{k}"), getattr(a, f"d{k}")) for k in range(rank)]
    both = [*numbers, *inner]
    return {"src": box(run, *((n, s) for n, s, _ in both)), "dst": box(run, *((n, d) for n, _, d in both))}


def _strides(rank: int) -> dict[str, Field]:
    return {f"{letter}{k}": I64 for k in range(rank) for letter in "sd"}


@cache
def copy_strided(unit: int, rank: int) -> Elements:
    """Kernel that moves elements along ``rank`` axes, the last one along neighbouring threads."""
    over, fields = {f"i{k}": f"n{k}" for k in range(rank)}, {"src": PTR, "dst": PTR, **_strides(rank)}

    def make(on: DeviceParts) -> Inline:
        ends = (" + ".join((end, *(f"i{k} * {end[0]}{k}" for k in range(rank)))) for end in ("src", "dst"))
        text = f"def element({', '.join((*over, *fields))}):\n    move({', '.join(ends)})\n"
        return inline_source(text, "element", move=mover(unit))

    name, reach = f"copy_strided_{8 * unit}x{rank}", partial(moved_reach, unit, rank)
    return Elements(name, over, "", fields, reach, make, several(unit))


# --------------------------------------------------------------------------------------------------------- turned tiles


def _turned_reach(unit: int, rank: int, a: Numbers) -> dict[str, Reach]:
    return moved_reach(unit, rank, a, (a.ni, unit, a.di), (a.nj, a.sj, unit))


_PACKED = {
    2: ("a = load_u32(there)\nb = load_u32(there + sj)", ("prmt(a, b, 0x5410)", "prmt(a, b, 0x7632)")),
    4: (
        "a, b = load_u32(there), load_u32(there + sj)\n"
        "c, d = load_u32(there + 2 * sj), load_u32(there + 3 * sj)\n"
        "e, f = prmt(a, b, 0x5140), prmt(a, b, 0x7362)\n"
        "g, h = prmt(c, d, 0x5140), prmt(c, d, 0x7362)",
        ("prmt(e, g, 0x5410)", "prmt(e, g, 0x7632)", "prmt(f, h, 0x5410)", "prmt(f, h, 0x7632)"),
    ),
}
"""By elements of a word: how a square of them is loaded, and its rows after it was turned."""


_AXIS_TEXT = """\
    above = fast_divide(rest, m{k}, h{k})
    i = np.int64(np.uint32(rest - above * np.uint32(n{k})))
    x += i * s{k}
    y += i * d{k}
    rest = above
"""
"""Takes a flat index apart, the last axis first."""


@cache
def copy_turned(unit: int, pack: int, rank: int) -> CudaKernel:
    """Kernel for axis i, contiguous in the source, and axis j, contiguous in the destination, beside ``rank`` axes.

    A block turns a tile of `SIDE` words each way in shared memory, where a word is ``pack`` elements; both sides are
    read and written by whole lines.  A row of the tile is one word longer, so that columns lie in all banks.
    """
    name, side, step = f"copy_turned_{8 * unit}_{pack}x{rank}", SIDE * pack, WIDE_BLOCK // SIDE
    fields = dict.fromkeys(("src", "dst"), PTR) | dict.fromkeys(("ni", "nj", "di", "sj"), I64)
    fields |= dict.fromkeys(("across", "ma", "ha", "down", "md", "hd"), I64) | _strides(rank)
    fields |= {f"{letter}{k}": I64 for k in range(rank) for letter in "nmh"}
    row = SIDE + 1
    if pack == 1:
        loads = f"            tile[place * {row} + lane] = load(there)\n"
        column, element = "np.int64(line)", f"lane * {row} + line"
    else:
        lines, turned = _PACKED[pack]
        loads = "".join(f"            {line}\n" for line in lines.split("\n"))
        loads += "".join(f"            tile[({SIDE * q} + lane) * {row} + place] = {t}\n" for q, t in enumerate(turned))
        column, element = f"np.int64({pack} * (line & {SIDE - 1}) + (line >> 5))", f"line * {row} + lane"
    text = (
        f"def {name}({', '.join(fields)}):\n"
        f"    tile = cuda.shared.array({SIDE * pack * row}, word)\n"
        "    block = np.uint32(cuda.blockIdx.x)\n"
        "    rest = fast_divide(block, ma, ha)\n"
        f"    i0 = np.int64(np.uint32(block - rest * np.uint32(across))) * {side}\n"
        "    above = fast_divide(rest, md, hd)\n"
        f"    j0 = np.int64(np.uint32(rest - above * np.uint32(down))) * {side}\n"
        "    rest = above\n"
        "    x, y = src, dst\n"
        + "".join(_AXIS_TEXT.format(k=k) for k in range(rank - 1, -1, -1))
        + "    lane, warp = np.uint32(cuda.threadIdx.x) & np.uint32(31), np.uint32(cuda.threadIdx.x) >> np.uint32(5)\n"
        f"    for part in range({SIDE // step}):\n"
        f"        place = np.uint32(warp + np.uint32({step} * part))\n"
        f"        i, j = i0 + {pack} * np.int64(lane), j0 + {pack} * np.int64(place)\n"
        "        if i < ni and j < nj:\n"
        f"            there = x + j * sj + i * {unit}\n" + loads + "    cuda.syncthreads()\n"
        f"    for part in range({side // step}):\n"
        f"        line = np.uint32(warp + np.uint32({step} * part))\n"
        f"        i, j = i0 + {column}, j0 + {pack} * np.int64(lane)\n"
        "        if i < ni and j < nj:\n"
        f"            store(y + i * di + j * {unit}, tile[{element}])\n"
    )
    bits = 8 * unit * pack
    scope = {"np": np, "cuda": cuda, "fast_divide": fast_divide, "prmt": prmt, "load_u32": load_u32}
    scope |= {"load": getattr(lang, f"load_u{bits}"), "store": getattr(lang, f"store_u{bits}")}
    scope["word"] = getattr(np, f"uint{bits}")
    return CudaKernel(
        Source(text, name, scope), name, fields, threads=WIDE_BLOCK, extents=partial(_turned_reach, unit, rank),
        blocks=lambda a: a.across * a.down * math.prod(getattr(a, f"n{k}") for k in range(rank)),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- choice


def carried(transfers: Iterable[Transfer]) -> list[Step]:
    """Steps of moves between operands."""
    return [step for t in transfers for step in steps(t.move, t.src, t.dst)]


def steps(m: Move, src: In | Out | Scratch | Array, dst: Out | Scratch) -> list[Step]:
    """Steps of a move; its offsets are added to the operands' own."""
    if not m.nbytes:
        return []
    starts = _start(src, m.src_offset), _start(dst, m.dst_offset)
    ends: dict[str, Any] = {"src": shifted(src, m.src_offset), "dst": shifted(dst, m.dst_offset)}
    if not m.axes and not any(at % 16 for at in starts):
        return [Step(copy_block, ends | {"nbytes": m.unit})]
    unit = widest(m.unit, *starts, *(n for a in m.axes for n in (a.src, a.dst)))
    axes = m.axes if m.unit == unit else (*m.axes, Axis(m.unit // unit, unit, unit))
    if math.prod(a.size for a in axes) > MOST_LAUNCHED:
        return [step for half in _halves(m) for step in steps(half, src, dst)]
    crossed = _crossed(axes, unit)
    return [_strided_step(axes, unit, ends) if crossed is None else _turned_step(axes, unit, *crossed, starts, ends)]


def _start(operand: Any, offset: int) -> int:
    """Where a move begins, in bytes behind an address that is a multiple of 16; arrays are uploaded from there."""
    return 0 if isinstance(operand, np.ndarray) else getattr(operand, "offset", 0) + offset


def shifted(operand: Any, offset: int) -> Any:
    """The operand ``offset`` bytes further on."""
    if not offset:
        return operand
    if isinstance(operand, np.ndarray):
        return operand.reshape(-1).view(np.uint8)[offset:]
    return type(operand)(operand.index, operand.offset + offset)


def _halves(m: Move) -> list[Move]:
    """The two halves of a move that has more elements than a launch has threads."""
    if not m.axes:
        half = m.unit // 32 * 16
        rest = replace(m, unit=m.unit - half, src_offset=m.src_offset + half, dst_offset=m.dst_offset + half)
        return [replace(m, unit=half), rest]
    long = max(m.axes, key=lambda a: a.size)
    at, half = m.axes.index(long), long.size // 2
    first, second = ([*m.axes], [*m.axes])
    first[at], second[at] = replace(long, size=half), replace(long, size=long.size - half)
    src, dst = m.src_offset + half * long.src, m.dst_offset + half * long.dst
    return [replace(m, axes=tuple(first)), replace(m, axes=tuple(second), src_offset=src, dst_offset=dst)]


def _crossed(axes: Sequence[Axis], unit: int) -> tuple[Axis, Axis] | None:
    """The axis that is contiguous in the source and the one that is contiguous in the destination, both long."""
    i = next((a for a in axes if a.src == unit and a.dst != unit), None)
    j = next((a for a in axes if a.dst == unit and a.src not in (0, unit)), None)
    return None if i is None or j is None or unit > 8 or min(i.size, j.size) < THIN else (i, j)


def _strided_step(axes: Sequence[Axis], unit: int, ends: dict[str, Any]) -> Step:
    """Threads go along the destination, or along the source where few of its elements are neighbours there."""
    thin = next((a for a in axes if a.src == unit and a.dst != unit and a.size < THIN), None)
    order = axes if thin is None else sorted(axes, key=lambda a: -abs(a.src))
    return PARTS.step(copy_strided(unit, len(order)), (), ends | _axis_args(order))


def _axis_args(axes: Sequence[Axis]) -> dict[str, int]:
    return {f"{name}{k}": n for k, a in enumerate(axes) for name, n in zip("nsd", (a.size, a.src, a.dst), strict=True)}


def _turned_step(
    axes: Sequence[Axis], unit: int, i: Axis, j: Axis, starts: tuple[int, int], ends: dict[str, Any]
) -> Step:
    outer = [a for a in axes if a is not i and a is not j]
    pack = 4 // unit if unit < 4 else 1
    rows = [j.src, i.dst, *starts, *(n for a in outer for n in (a.src, a.dst))]
    if i.size % pack or j.size % pack or any(n % 4 for n in rows):
        pack = 1
    across, down = ceil_div(i.size, SIDE * pack), ceil_div(j.size, SIDE * pack)
    args = {"ni": i.size, "nj": j.size, "di": i.dst, "sj": j.src, "across": across, "down": down}
    args["ma"], args["ha"] = divider(across)
    args["md"], args["hd"] = divider(down)
    args |= _axis_args(outer)
    for k, a in enumerate(outer):
        args[f"m{k}"], args[f"h{k}"] = divider(max(a.size, 1))
    return Step(copy_turned(unit, pack, len(outer)), ends | args)
