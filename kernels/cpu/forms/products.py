"""Products of rows of x that are rounded with weights of 2 to 8 bits in planes (see `planes`).

A group of 32 elements of x becomes whole numbers of 16 bits, which are multiplied as two planes of bytes: one row is
bound by memory, so the second costs nothing there, and results are almost as near as sums of floats.  Where a model or
``numerics="fast"`` asks for it they are of 8 bits, and of 24 for ``strict``.

One row is bound by memory: a panel is read from one end to the other, and its numbers with it.  More rows share what
is made of a panel's codes, up to `TALL` at a time, so that products of bytes are what takes time.  Each result is
one sum over k in order: neither threads nor other rows change a bit.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.follow import fixed
from bolt_numba.base.huge_pages import LINE
from bolt_numba.base.types import F32, Array
from bolt_numba.kernels.cpu.forms.planes import Layout, Parts, code_words, pack_planes
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    bits_of,
    f32_of_bits,
    fill_bytes,
    lane,
    native,
    native_source,
    reduce_add,
    reduce_max,
    round_i32,
    splat,
    split,
    store_f32,
    store_i32,
    vabs,
    vload,
    vload_n,
    vmax,
    vstore_u8,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import L2
from bolt_numba.kernels.cpu.products.matmul import is_parallel
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.cpu.products.pack_bytes import EXACT
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, Native, inline
from bolt_numba.kernels.registry import Argument, Context, Given, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.forms import FORMS, Form
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits, unpacked
from bolt_numba.ops.layers.products.matmul_forms import (
    LEAST_OF_A_GROUP,
    LEVELS_OF_THREE,
    LEVELS_OF_TWO,
    LEVELS_OF_X,
    ROUNDED_TOGETHER,
    MatMulForm,
)

TALL = (6, 4, 3) if target().registers >= 32 else (2, 2, 1)
"""Rows whose sums of a unit have registers beside those of all, of one plane of x, of two and of three."""
LEVELS = (LEVELS_OF_X, LEVELS_OF_TWO, LEVELS_OF_THREE)
AHEAD = 8192
"""Bytes of weights between what is read and what is asked for: the processor asks ahead within a page alone."""
FEW_TILES = 2
"""Rows of more tiles are padded to whole ones; fewer are cut into tiles of nearly equal height."""

# -------------------------------------------------------------------------------------------------------- rounding of x


def record_bytes(unit: int, planes: int) -> int:
    """Of a unit of a row: its planes of bytes, its scale, and a number."""
    return unit * planes + 8


def _rounded(row: int, a: Numbers) -> dict[str, Reach]:
    return {"x": 4 * a.rows * a.k, "to": a.padded * a.groups * row}


@cache
def round_rows(unit: int, planes: int) -> Native:
    """Kernel that rounds rows of x to records of their units, see `record_bytes`."""
    size, levels = record_bytes(unit, planes), LEVELS[planes - 1]
    whole = ROUNDED_TOGETHER // unit * size

    @inline
    def round_group(x, left, to, middle):
        most = bits_of(splat(np.float32(LEAST_OF_A_GROUP)))
        for i in range(0, ROUNDED_TOGETHER, LANES):  # bits of NaN are above those of numbers
            most = vmax(most, bits_of(vabs(some(x + 4 * i, left - i))))
        greatest = lane(f32_of_bits(splat(reduce_max(most))), 0)
        by, scale = levels / greatest, greatest / levels + (greatest - greatest)
        for first in range(0, ROUNDED_TOGETHER, unit):
            total = splat(np.int32(0))
            for i in range(first, first + unit, LANES):
                v, at = round_i32(some(x + 4 * i, left - i) * by), to + i - first
                total = total + v
                for plane in range(planes - 1, 0, -1):
                    upper = (v + np.int32(128)) >> np.int32(8)
                    vstore_u8(at + unit * plane, v - (upper << np.int32(8)))
                    v = upper
                vstore_u8(at, v)
            number = reduce_add(total)
            to += size
            store_f32(to - 8, scale)
            if middle != 0:
                store_i32(to - 4, np.int32(-number * middle))
            else:
                store_f32(to - 4, np.float32(number) * scale)

    @native(
        fastmath=EXACT, x=PTR, to=PTR, rows=I64, padded=I64, k=I64, groups=I64, middle=I64,
        extents=partial(_rounded, whole),
    )  # fmt: skip
    def round_some(p, tid, nthreads):
        """x: f32 [rows][k] · to: [padded][groups][units of a group], zeros where there are no rows.

        A record ends with the sum of its whole numbers: times -middle as i32, or where middle is 0 times the scale as
        f32.  Of several planes the first has the upper bytes, rounded, and the next ones what is left.
        """
        lo, hi = split(p.padded * p.groups, tid, nthreads)
        row, group, to = lo // p.groups, lo % p.groups, p.to + whole * lo
        for _ in range(lo, hi):
            if row < p.rows:
                first = ROUNDED_TOGETHER * group
                round_group(p.x + 4 * (row * p.k + first), p.k - first, to, p.middle)
            else:
                fill_bytes(to, np.uint8(0), whole)
            to, group = to + whole, group + 1
            if group == p.groups:
                row, group = row + 1, 0

    made: Native = round_some
    return made


@inline
def some(at, left):
    """A vector of which ``left`` elements are there."""
    return vload(at) if left >= LANES else vload_n(at, left)


# ------------------------------------------------------------------------------------------------------------- products


def indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def middle_of(layout: Layout, planes: int) -> int:
    """By what sums of a unit are multiplied where sums of products begin; 0: with offsets, and where that is too large.

    An i32 holds 32 products of a code and 16 bits.
    """
    return 0 if planes == len(LEVELS) else layout.middle or 0


def _unit(layout: Layout, rows: range, planes: int) -> list[str]:
    """Lines for a unit of a tile: sums of products of bytes, then scales; ``w`` and the rows of x move on."""
    size, factors, sums = record_bytes(layout.unit, planes), 2 * layout.factor_bytes, "hui"[-planes:]
    middle, dot = middle_of(layout, planes), "dot_bytes" if layout.bits == 8 or layout.table else "dot_low_bytes"
    lines, words = [f"codes = w + {factors} * LANES"], (code_words(layout, v) for v in (0, 1))
    for r in rows:
        start = f"load_i32(x{r} + {size - 4})" if middle else "np.int32(0)"
        lines += [f"y = splat({start})", f"i{r}0, i{r}1 = y, y"]
        lines += [f"{name}{r}0, {name}{r}1 = splat(np.int32(0)), splat(np.int32(0))" for name in sums[:-1]]
    for (i, loads, codes), (_, others, second) in zip(*words, strict=True):
        lines += [*loads, *others, f"c0, c1 = {codes}, {second}"]
        for r in rows:
            for plane, into in enumerate(sums):
                lines.append(f"y = splat(load_i32(x{r} + {layout.unit * plane + 4 * i}))")
                lines += [f"{into}{r}{v} = {dot}({into}{r}{v}, c{v}, y)" for v in (0, 1)]
    for v in (0, 1):
        for j, (name, load) in enumerate(zip("so"[: layout.numbers], ("vload_i8", "vload_u8"), strict=False)):
            factor = f"to_f32({load}(w + {2 * j + v} * LANES)) * " if factors else ""
            lines.append(f"{name} = {factor}{name}{v}")
        if layout.middle and not middle:
            lines.append(f"o = s * np.float32({-layout.middle})")
        for r in rows:
            lines += [f"i{r}{v} = i{r}{v} + (u{r}{v} << np.int32(8))"] * ("u" in sums)
            total = f"fma(to_f32(h{r}{v}), splat(np.float32({1 << 16})), to_f32(i{r}{v}))"
            total = total if "h" in sums else f"to_f32(i{r}{v})"
            lines.append(f"a{r}{v} = fma({total} * s, splat(load_f32(x{r} + {size - 8})), a{r}{v})")
            if not middle:
                lines.append(f"a{r}{v} = fma(o, splat(load_f32(x{r} + {size - 4})), a{r}{v})")
    lines += [
        f"prefetch(w + {AHEAD + at})" for at in range(0, LANES * (factors + layout.unit * layout.bits // 4), LINE)
    ]
    lines.append(f"w = codes + {layout.unit * layout.bits // 4} * LANES")
    return [*lines, *(f"x{r} += {size}" for r in rows)]


def tile_lines(layout: Layout, rows: range, planes: int, begin: Sequence[str]) -> list[str]:
    """Lines for one tile and one panel, whose columns begin at ``j``.

    begin: lines that name weights ``w``, and of each row x0, x1 ... and row0, row1 ..., its number in y.
    """
    load, size = "vload" if layout.wide else "vload_f16", layout.scale_bytes
    chunk = []
    for name in "so"[: layout.numbers]:
        chunk += [f"{name}{v} = {load}(w + {v * size} * LANES)" for v in (0, 1)]
        chunk.append(f"w += {2 * size} * LANES")
    unit = _unit(layout, rows, planes)
    chunk += unit if layout.chunk == layout.unit else ["for _ in range(p.chunk):", *indented(unit)]
    lines = [*begin, *(f"a{r}{v} = b{v}" for r in rows for v in (0, 1))]
    lines += ["for _ in range(p.chunks):", *indented(chunk)]
    for r in rows:
        lines.append(f"if row{r} < p.rows:")
        store = f"vstore_n(p.y + 4 * (row{r} * p.n + j + {{v}} * LANES), a{r}{{v}}, p.n - j - {{v}} * LANES)"
        lines += indented([store.format(v=v) for v in (0, 1)])
    return lines


def table_lines(layout: Layout) -> list[str]:
    return ["table = vload_i32(p.table)"] if layout.table else []


def table_of(layout: Layout) -> Array | None:
    """As kernels have it: 16 bytes again and again."""
    return np.tile(np.array(layout.table, np.uint8), BYTES // 16) if layout.table else None


def _source(layout: Layout, height: int, planes: int) -> str:
    """Text of the kernel for tiles of ``height`` rows."""
    begin = [f"w, x0, row0 = p.w + panel * p.panel, p.x + tile * {height} * p.row, tile * {height}"]
    begin += [f"x{r}, row{r} = x{r - 1} + p.row, row{r - 1} + 1" for r in range(1, height)]
    tile = tile_lines(layout, range(height), planes, begin)
    task = ["panel, begin = task % panels, task // panels * p.span", "j = panel * 2 * LANES"]
    task += [f"b{v} = splat(np.float32(0))" for v in (0, 1)]
    task += ["if p.bias != 0:"]
    task += [f"    b{v} = vload_n(p.bias + 4 * (j + {v} * LANES), p.n - j - {v} * LANES)" for v in (0, 1)]
    task += ["for tile in range(begin, min(begin + p.span, p.tiles)):", *indented(tile)]
    body = ["panels = ceil_div(p.n, 2 * LANES)", *table_lines(layout)]
    body += ["first, last = split(panels * ceil_div(p.tiles, p.span), tid, nthreads)"]
    body += ["for task in range(first, last):", *indented(task)]
    return "\n".join(["def product_of_planes(p, tid, nthreads):", *indented(body)]) + "\n"


def _multiplied(height: int, a: Numbers) -> dict[str, Reach]:
    return {
        "x": a.row * a.tiles * height,
        "w": a.panel * -(-a.n // PANEL),
        "bias": 4 * a.n,
        "y": 4 * a.rows * a.n,
        "table": BYTES,
    }


@cache
def product(layout: Layout, height: int, planes: int) -> Native:
    """Kernel of tiles of ``height`` rows, of so many planes of bytes each.

    x: records by `round_rows`, ``row`` bytes for each of ``tiles`` * ``height`` rows · w: by `pack_planes`, ``panel``
    bytes each · bias: f32 [n] or 0 · y: f32 [rows][n] · chunks: of a panel, of ``chunk`` units each · span: tiles that
    a panel is multiplied by before the next one · table: of codes, or 0.
    """
    fields: dict[str, Any] = {
        "x": PTR, "row": I64, "w": PTR, "panel": I64, "bias": PTR_OR_0, "y": PTR, "n": I64, "rows": I64, "tiles": I64,
        "span": I64, "chunks": I64, "chunk": I64, "table": PTR_OR_0,
    }  # fmt: skip
    text = _source(layout, height, planes)
    return native_source(text, "product_of_planes", fields, extents=partial(_multiplied, height), **scope_of(text))


# --------------------------------------------------------------------------------------------------------------- makers


def layout_of(form: Form) -> Layout:
    """How products hold weights of a form."""
    bits = form.bits + form.bits % 2 if form.group < ROUNDED_TOGETHER else form.bits
    return Layout(bits, form.group, form.block, form.middle, bool(form.factors), form.power, form.table)


def parts_of(form: Form, raw: Array) -> Parts:
    """What `pack_planes` needs of rows as they are stored."""
    codes = form.numbers(raw, form.codes).reshape(len(raw), -1)
    scales = form.scales(raw)[..., 0]
    factors = form.numbers(raw, form.factors) - np.uint8(form.less) if form.factors else None
    if form.middle is not None:
        return codes, scales, None, factors, None
    offsets = form.halves(raw, form.offset)[..., 0]
    others = form.numbers(raw, form.offset_factors) if form.offset_factors else None
    return codes, scales, offsets if others is None else -offsets, factors, others


def rounded_steps(
    layout: Layout, w: Argument, sizes: tuple[int, int, int], bias: Argument, context: Context, planes: int
) -> list[Step]:
    """Steps of the product of In(0), m rows of k, and packed weights of n rows; sizes: m, n, k."""
    m, n, k = sizes
    height = TALL[planes - 1]
    if m <= FEW_TILES * height:
        m = fixed(m)
        height = -(-m // -(-m // height))
    tiles, chunks = -(-m // height), -(-k // layout.chunk)
    row, panel = chunks * (layout.chunk // layout.unit) * record_bytes(layout.unit, planes), layout.panel_bytes(k)
    x = Scratch(row * tiles * height)
    rounding: dict[str, Argument] = {
        "x": In(0), "to": x, "rows": m, "padded": tiles * height, "k": k,
        "groups": chunks * (layout.chunk // ROUNDED_TOGETHER), "middle": middle_of(layout, planes),
    }  # fmt: skip
    main: dict[str, Argument] = {
        "x": x, "row": row, "w": w, "panel": panel, "bias": bias, "y": Out(0), "n": n, "rows": m, "tiles": tiles,
        "span": max(L2 // 4 // (row * height), 1), "chunks": chunks, "chunk": layout.chunk // layout.unit,
        "table": table_of(layout),
    }  # fmt: skip
    together = is_parallel(context, 2 * m * n * k, panel * -(-n // PANEL))
    return [
        Step(round_rows(layout.unit, planes), rounding, is_parallel(context, 0, 4 * m * k)),
        Step(product(layout, height, planes), main, together),
    ]


def accepts_form(op: MatMulForm, ins: Types) -> bool:
    """Constant weights."""
    x, raw = ins[0], ins[1]
    if any(t is not None and not t.is_static for t in ins) or raw.known is None:
        return False
    return x.size > 0 and raw.size > 0


def _accepts(op: MatMulForm, ins: Types) -> bool:
    return FORMS[op.form].plain is None and accepts_form(op, ins)


@kernel(MatMulForm, accepts=_accepts)
def matmul_form_strict(op: MatMulForm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rounds x to 24 bits, as many as floats have."""
    return _steps_of_form(op, ins, context, 3)


@kernel(MatMulForm, accepts=_accepts, numerics="default", rank=1)
def matmul_form(op: MatMulForm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rounds x to 16 bits, then multiplies bytes."""
    return _steps_of_form(op, ins, context, 2)


def _error_of_bytes(op: MatMulForm, ins: Given, context: Context) -> float:
    """Of the largest value: half a level for each element of x, as if they added up half as far as they can."""
    return 4 / float(LEVELS_OF_X)


@kernel(MatMulForm, accepts=_accepts, numerics="fast", rank=2, error=_error_of_bytes)
def matmul_form_of_bytes(op: MatMulForm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rounds x to 8 bits."""
    return _steps_of_form(op, ins, context, 1)


def _steps_of_form(op: MatMulForm, ins: Types, context: Context, planes: int) -> list[Step]:
    x, raw = ins[0], ins[1]
    form, k, n = FORMS[op.form], fixed(x.dims[-1]), raw.dims[0]
    layout = layout_of(form)

    def pack(array: Array) -> Array:
        return pack_planes(layout, n, k, lambda rows: parts_of(form, array[rows]))

    bias, w = None if (*ins, None)[2] is None else In(2), context.packed(raw.known, ("planes", op.form), pack)
    return rounded_steps(layout, w, (x.size // k, n, k), bias, context, planes)


def _takes_blocks(op: MatMulNBits, ins: Types) -> bool:
    x, codes = ins[0], ins[1]
    if any(t is not None and not t.is_static for t in ins) or any(t is not None and t.known is None for t in ins[1:4]):
        return False
    return op.rounded and op.block % ROUNDED_TOGETHER == 0 and x.dtype == F32 and x.size > 0 and codes.size > 0


@kernel(MatMulNBits, accepts=_takes_blocks)
def matmul_blocks(op: MatMulNBits, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rounds x to 8 bits; a block has a scale of its own, and an offset where there are zeros."""
    x, codes = ins[0], ins[1]
    zeros, bias = (*ins, None, None)[3:5]
    n, blocks, _ = codes.dims
    layout = Layout(op.bits, ROUNDED_TOGETHER, op.block, int(op.middle) if zeros is None else None, False, True)

    def pack(*given: Array) -> Array:
        def read(rows: slice) -> Parts:
            some, scales, *points = (a[rows] for a in given)
            offsets = -points[0] * scales if points else None
            return unpacked(some, op.bits).reshape(len(some), -1), scales, offsets, None, None

        return pack_planes(layout, n, blocks * op.block, read)

    known = tuple(t.known for t in ins[1:4] if t is not None)
    w = context.packed(known, ("planes", op.bits, op.block), pack)
    k = x.dims[-1]
    return rounded_steps(layout, w, (x.size // k, n, k), None if bias is None else In(4), context, 1)
