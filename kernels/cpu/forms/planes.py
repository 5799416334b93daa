"""Packing of weights of 2 to 8 bits for products of bytes.

A panel has `PANEL` rows of w.  Each lane of its vectors has four neighbours along k of one row, as `dot_bytes` wants.
Codes of 6 bits are a plane of their low 4 bits and one of the high 2; a word of the first holds four codes in its low
halves of bytes, and four others in the high ones.  Scales stand before the codes they belong to, so that a panel is
read from one end to the other.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TypeAlias

import numpy as np

from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import (
    copy_bytes,
    inline,
    load_u8,
    load_u32,
    native,
    split,
    store_u8,
    store_u32,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0

ROWS_READ = 1 << 19
"""Weights that are unpacked at a time: what they become stays in the second-level cache."""
OptionalArray: TypeAlias = "Array | None"
Parts: TypeAlias = "tuple[Array, Array, OptionalArray, OptionalArray, OptionalArray]"
"""Of some rows: codes u8 [n, k], scales [n, chunks], offsets likewise, factors and those of offsets u8 [n, units]."""


@record(frozen=True)
class Layout:
    """How a panel is laid out.

    bits: of a code, no odd number in units of 16 · unit: weights, 16 or 32, whose codes stand together and are summed
    before a scale · chunk: weights that share what stands before them · middle: the code that means 0, None with
    offsets · factors: whether units have bytes by which scales and offsets are multiplied · wide: whether these are
    f32, else f16 · table: what codes of 4 bits stand for, or ().
    """

    bits: int
    unit: int
    chunk: int
    middle: int | None
    factors: bool
    wide: bool
    table: tuple[int, ...] = ()

    @property
    def planes(self) -> list[int]:
        """Bits of each plane, the lowest first."""
        return [b for b in (8, 4, 2, 1) if self.bits & b]

    @property
    def scale_bytes(self) -> int:
        return 4 if self.wide else 2

    @property
    def numbers(self) -> int:
        """Kinds of numbers: scales, and offsets where there are any."""
        return 1 if self.middle is not None else 2

    @property
    def factor_bytes(self) -> int:
        """Factors of a unit."""
        return self.numbers if self.factors else 0

    def panel_bytes(self, k: int) -> int:
        """What the codes and numbers of a panel of k weights in a row take."""
        chunk = self.scale_bytes * self.numbers + self.chunk // self.unit * (
            self.unit * self.bits // 8 + self.factor_bytes
        )
        return PANEL * -(-k // self.chunk) * chunk


# The masks of words whose bytes hold codes of so many bits.
ONES = 0x01010101


@inline
def put_plane(codes, to, bits, place, unit):
    """A plane of a unit's codes (u8), bits ``place`` to ``place + bits``; words of a lane are 4 * PANEL bytes apart."""
    count, mask = unit // 4 * bits // 8, np.uint32(((1 << bits) - 1) * ONES)
    for j in range(count):
        word = np.uint32(0)
        for t in range(8 // bits):
            four = load_u32(codes + 4 * (j + t * count)) >> np.uint32(place)
            word = np.uint32(word | np.uint32(four & mask) << np.uint32(bits * t))
        store_u32(to + 4 * PANEL * j, word)
    return to + 4 * PANEL * count


def _laid(a: Numbers) -> dict[str, Reach]:
    chunks, units = -(-a.k // a.chunk), -(-a.k // a.unit)
    return {
        "codes": a.n * a.k, "to": a.panel * -(-a.n // PANEL), "scales": a.n * chunks * a.size,
        "offsets": a.n * chunks * a.size, "factors": a.n * units, "others": a.n * units,
    }  # fmt: skip


@native(codes=PTR, scales=PTR, offsets=PTR_OR_0, factors=PTR_OR_0, others=PTR_OR_0, to=PTR, n=I64, k=I64, bits=I64,
        unit=I64, chunk=I64, size=I64, panel=I64, extents=_laid)  # fmt: skip
def lay_planes(p, tid, nthreads):
    """Panels by `Layout`; lanes of rows that are not there stay as they are.

    codes: u8 [n][k], k a multiple of chunk · scales, offsets: ``size`` bytes each, [n][k / chunk] · factors, others: of
    scales and offsets, u8 [n][k / unit] · to: [panels][panel].
    """
    k, bits, unit, size = p.k, p.bits, p.unit, p.size
    chunks, each = k // p.chunk, p.chunk // unit
    lo, hi = split(p.n, tid, nthreads)
    for row in range(lo, hi):
        lane, codes = row % PANEL, p.codes + row * k
        to = p.to + p.panel * (row // PANEL)
        for chunk in range(row * chunks, (row + 1) * chunks):
            copy_bytes(to + size * lane, p.scales + size * chunk, size)
            to += size * PANEL
            if p.offsets != 0:
                copy_bytes(to + size * lane, p.offsets + size * chunk, size)
                to += size * PANEL
            for u in range(chunk * each, (chunk + 1) * each):
                if p.factors != 0:
                    store_u8(to + lane, load_u8(p.factors + u))
                    to += PANEL
                if p.others != 0:
                    store_u8(to + lane, load_u8(p.others + u))
                    to += PANEL
                at, place = to + 4 * lane, 0
                if bits & 8:
                    at = put_plane(codes, at, 8, 0, unit)
                if bits & 4:
                    at, place = put_plane(codes, at, 4, 0, unit), 4
                if bits & 2:
                    at, place = put_plane(codes, at, 2, place, unit), place + 2
                if bits & 1:
                    at = put_plane(codes, at, 1, place, unit)
                to, codes = at - 4 * lane, codes + unit


def pack_planes(layout: Layout, n: int, k: int, read: Callable[[slice], Parts], count: int = 1) -> Array:
    """Panels of ``count`` matrices of n rows of k weights; ``read`` gives some rows of all, panels but for the last."""
    panel, kind = layout.panel_bytes(k), np.float32 if layout.wide else np.float16
    panels, together = -(-n // PANEL), max(ROWS_READ // k // PANEL, 1) * PANEL
    made = line_aligned(panel * panels * count)
    if n % PANEL:
        made.reshape(count, panels, panel)[:, -1] = 0
    for matrix, first in product(range(count), range(0, n, together)):
        parts = read(slice(matrix * n + first, matrix * n + min(first + together, n)))
        kinds = (np.uint8, kind, kind, np.uint8, np.uint8)
        laid = [None if a is None else np.ascontiguousarray(a, t) for a, t in zip(parts, kinds, strict=True)]
        codes, scales, offsets, factors, others = laid
        lay_planes.run(
            codes=codes, scales=scales, offsets=offsets, factors=factors, others=others,
            to=made[(matrix * panels + first // PANEL) * panel :], n=len(parts[0]), k=parts[0].shape[1],
            bits=layout.bits, unit=layout.unit, chunk=layout.chunk, size=layout.scale_bytes, panel=panel,
        )  # fmt: skip
    return made


# --------------------------------------------------------------------------------------------------------- reading them


def code_words(layout: Layout, vector: int) -> list[tuple[int, list[str], str]]:
    """Text that reads the codes of the unit whose planes are at ``codes``, of one vector of the panel.

    For each word of x in an order that needs few registers: its number, lines that come first, what its codes are.
    """
    words = layout.unit // 4
    found: list[tuple[int, list[str], str]] = []
    seen = set()
    lowest = words * layout.planes[0] // 8
    for i in sorted(range(words), key=lambda i: (i % lowest, i)):
        lines, texts, first, place = [], [], 0, 0
        for bits in layout.planes:
            count = words * bits // 8
            name = f"p{bits}_{i % count}_{vector}"
            if name not in seen:
                lines.append(f"{name} = vload_i32(codes + BYTES * {2 * (first + i % count) + vector})")
            seen.add(name)
            shift, mask = bits * (i // count) - place, ((1 << bits) - 1 << place) * ONES
            moved = f"({name} >> np.int32({shift}))" if shift > 0 else f"({name} << np.int32({-shift}))"
            texts.append(name if bits == 8 else f"({moved if shift else name} & np.int32({mask}))")
            first, place = first + count, place + bits
        text = " | ".join(texts)
        found.append((i, lines, f"lookup_nibbles(table, {text})" if layout.table else text))
    return found
