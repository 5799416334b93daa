"""Products with weights of 4 or 8 bits in blocks.

Few rows: codes become floats in registers, so that only the bits come from memory.  More rows: codes become packed
panels for some columns at a time, in workspace that they share, and the sweep of all products follows.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language import lang
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    copy_bytes,
    fill_bytes,
    interleave_high,
    interleave_low,
    load_f32,
    native,
    native_source,
    split,
    store_f32,
    to_f32,
    vload_u8,
    vload_u8_n,
    vstore,
    vstore_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.machine import L2
from bolt_numba.kernels.cpu.products.epilogue import finish
from bolt_numba.kernels.cpu.products.matmul import conflicting, is_parallel, packed_bias
from bolt_numba.kernels.cpu.products.pack import PANEL, choose_terms, panel_columns, transpose
from bolt_numba.kernels.cpu.products.sweep import (
    COPIED,
    INSIDE,
    choose_share,
    choose_span,
    pack_stride,
    scratch_bytes,
    sweep,
)
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import F32, I64, PTR, PTR_OR_0, Native, inline
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.matmul_bits import MatMulNBits
from bolt_numba.types import F32 as F32_TYPE
from bolt_numba.types import TensorType

TOGETHER = 8 if LANES == 16 else 4
"""Rows of one pass over the codes; each takes two registers."""
FEW_ROWS = TOGETHER * 3 // 2
"""Rows up to which passes over the codes cost less than panels."""
CHUNK_BYTES = 2 * L2
"""Packed panels that are made at a time: they should stay in the second-level cache or near it."""


def _arranged(a: Any) -> dict[str, Reach]:
    count = 4 * a.rows * a.blocks
    return {"x": 4 * a.rows * a.k, "to": count * a.block, "sums": count}


@native(x=PTR, to=PTR, sums=PTR, rows=I64, k=I64, blocks=I64, block=I64, halves=I64, extents=_arranged)
def arrange(p, tid, nthreads):
    """Rows of x in blocks, zeros behind k, and the sum of each block.

    halves: 1 puts the even elements of a block before the odd ones, as low and high codes of bytes come.
    """
    k, block, half = p.k, p.block, p.block // 2
    for row in range(p.rows):
        x, to = p.x + 4 * row * k, p.to + 4 * row * p.blocks * block
        fill_bytes(to + 4 * (p.blocks - 1) * block, np.uint8(0), 4 * block)
        if not p.halves:
            copy_bytes(to, x, 4 * k)
        for b in range(p.blocks):
            total = np.float32(0.0)
            for i in range(min(block, k - b * block)):
                value = load_f32(x + 4 * (b * block + i))
                total += value
                if p.halves:
                    store_f32(to + 4 * (b * block + (i % 2) * half + i // 2), value)
            store_f32(p.sums + 4 * (row * p.blocks + b), total)


def _few_source(rows: int, bits: int) -> str:
    """Text of the kernel for ``rows`` rows: one pass over the codes, a sum for each row."""

    def decode(load: str, x_load: str, left: str) -> list[str]:
        lines = [f"v = {load}"]
        if bits == 8:
            lines.append("low = to_f32(v)")
        else:
            lines += ["low = to_f32(v & 15)", "high = to_f32(v >> 4)"]
        for r in range(rows):
            at = f"x + 4 * ({r} * p.x_row + i)"
            lines.append(f"a{r} = fma(low, {x_load}({at}{left}), a{r})")
            if bits == 4:
                lines.append(f"a{r} = fma(high, {x_load}({at} + 4 * size{left}), a{r})")
        return lines

    lines = [
        "def product_of_bits(p, tid, nthreads):", "    size, blocks = p.size, p.blocks",
        "    first, last = split(p.n, tid, nthreads)", "    for n in range(first, last):",
        "        codes, scales = p.codes + n * blocks * size, p.scales + 4 * n * blocks",
    ]  # fmt: skip
    lines += [f"        t{r}, s{r} = splat(0.0), np.float32(0.0)" for r in range(rows)]
    lines += [
        "        for block in range(blocks):", "            scale = load_f32(scales + 4 * block)",
        "            zero = load_f32(p.zeros + 4 * (n * blocks + block)) if p.zeros else p.middle",
        "            code, x = codes + block * size, p.x + 4 * (p.row * p.x_row + p.block * block)",
    ]  # fmt: skip
    lines += [f"            a{r} = splat(0.0)" for r in range(rows)]
    lines += ["            i = 0", "            while i + LANES <= size:"]
    lines += [" " * 16 + line for line in [*decode("vload_u8(code + i)", "vload", ""), "i += LANES"]]
    lines += ["            if i < size:"]
    lines += [" " * 16 + line for line in decode("vload_u8_n(code + i, size - i)", "vload_n", ", size - i")]
    lines += ["            factor, lost = splat(scale), scale * zero"]
    for r in range(rows):
        lines += [f"            t{r} = fma(a{r}, factor, t{r})"]
        lines += [f"            s{r} += lost * load_f32(p.sums + 4 * ((p.row + {r}) * blocks + block))"]
    for r in range(rows):
        lines += [f"        y = reduce_add(t{r}) - s{r} + (load_f32(p.bias + 4 * n) if p.bias else np.float32(0.0))"]
        lines += [f"        store_f32(p.y + 4 * ({r} * p.n + n), y)"]
    return "\n".join(lines) + "\n"


def _multiplied(rows: int, bits: int, a: Any) -> dict[str, Reach]:
    last, scales = a.row + rows, 4 * a.n * a.blocks
    return {
        "x": 4 * ((last - 1) * a.x_row + (a.blocks - 1) * a.block + a.size * 8 // bits),
        "sums": 4 * last * a.blocks,
        "codes": a.n * a.blocks * a.size,
        "scales": scales,
        "zeros": scales,
        "bias": 4 * a.n,
        "y": 4 * rows * a.n,
    }


@cache
def few_rows(rows: int, bits: int) -> Native:
    """Kernel for ``rows`` rows of x from ``row`` on, as `arrange` leaves them, ``x_row`` elements apart.

    codes: [n, blocks, size] bytes; scales, zeros (or 0: ``middle``): f32 [n, blocks]; bias: f32 [n] or 0.
    """
    words = ("fma", "splat", "reduce_add", "vload", "vload_n")
    fields: dict[str, Any] = {
        "x": PTR, "sums": PTR, "codes": PTR, "scales": PTR, "zeros": PTR_OR_0, "bias": PTR_OR_0, "y": PTR, "n": I64,
        "blocks": I64, "block": I64, "size": I64, "x_row": I64, "row": I64, "middle": F32,
    }  # fmt: skip
    return native_source(
        _few_source(rows, bits), "product_of_bits", fields, extents=partial(_multiplied, rows, bits), LANES=LANES,
        split=split, load_f32=load_f32, np=np, store_f32=store_f32, to_f32=to_f32, vload_u8=vload_u8,
        vload_u8_n=vload_u8_n,
        **{name: getattr(lang, name) for name in words},
    )  # fmt: skip


@inline
def decode_block(code, to, size, bits, scale, zero):
    """One block of codes as floats."""
    lost = -zero * scale
    i = 0
    while bits == 4 and i + LANES <= size:
        v = vload_u8(code + i)
        low, high = to_f32(v & 15) * scale + lost, to_f32(v >> 4) * scale + lost
        vstore(to + 8 * i, interleave_low(low, high))
        vstore(to + 8 * i + BYTES, interleave_high(low, high))
        i += LANES
    while i < size:
        left = size - i
        v = vload_u8_n(code + i, left)
        if bits == 8:
            vstore_n(to + 4 * i, to_f32(v) * scale + lost, left)
        else:
            low, high = to_f32(v & 15) * scale + lost, to_f32(v >> 4) * scale + lost
            vstore_n(to + 8 * i, interleave_low(low, high), 2 * left)
            vstore_n(to + 8 * i + BYTES, interleave_high(low, high), 2 * left - LANES)
        i += LANES


def _unpacked(a: Any) -> dict[str, Reach]:
    blocks = (a.start + a.n) * a.blocks
    return {
        "codes": blocks * a.size,
        "scales": 4 * blocks,
        "zeros": 4 * blocks,
        "to": 4 * a.k * panel_columns(a.n),
        "work": 4 * LANES * a.block * a.threads,
        "order": 4 * LANES,
    }


@native(codes=PTR, scales=PTR, zeros=PTR_OR_0, to=PTR, work=PTR, order=PTR, start=I64, n=I64, k=I64, blocks=I64,
        block=I64, size=I64, bits=I64, middle=F32, extents=_unpacked)  # fmt: skip
def panels_of_bits(p, tid, nthreads):
    """Packed panels (see `pack`) of rows ``start`` to ``start + n`` of the weights; work: LANES blocks a thread."""
    k, block = p.k, p.block
    rows = p.work + 4 * LANES * block * tid
    full = p.n // PANEL
    panels = ceil_div(p.n, PANEL)
    first, last = split(panels, tid, nthreads)
    for panel in range(first, last):
        left = p.n - panel * PANEL
        width = PANEL if panel < full or left > LANES else LANES
        to = p.to + 4 * k * PANEL * panel
        for column in range(0, width, LANES):
            some = max(0, min(LANES, left - column))
            for b in range(p.blocks):
                for j in range(some):
                    at = (p.start + panel * PANEL + column + j) * p.blocks + b
                    zero = load_f32(p.zeros + 4 * at) if p.zeros else p.middle
                    scale = load_f32(p.scales + 4 * at)
                    decode_block(p.codes + at * p.size, rows + 4 * j * block, p.size, p.bits, scale, zero)
                for q in range(0, min(block, k - b * block), LANES):
                    count = min(block, k - b * block) - q
                    target = to + 4 * (width * (b * block + q) + column)
                    transpose(rows + 4 * q, 4 * block, some, count, np.float32(1.0), target, p.order, 4 * width)


def _accepts(op: Any, ins: Types) -> bool:
    x, bias = ins[0], ins[4] if len(ins) > 4 else None
    if any(t is not None and not t.is_static for t in ins) or x is None:
        return False
    return x.dtype == F32_TYPE and x.size > 0 and (bias is None or bias.dtype == F32_TYPE)


@kernel(MatMulNBits, accepts=_accepts, by_types=True)
def matmul_bits(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Codes to floats in registers for few rows, to panels of some columns at a time for more."""
    x, codes, zeros = ins[0], ins[1], ins[3] if len(ins) > 3 else None
    assert x is not None, "accepts() has tested this"
    assert codes is not None, "accepts() has tested this"
    k, (n, blocks, size) = x.dims[-1], codes.dims
    rows = x.size // k
    held: dict[str, Argument] = {"codes": In(1), "scales": In(2), "zeros": None if zeros is None else In(3)}
    held |= {"blocks": blocks, "block": op.block, "size": size, "middle": op.middle}
    if rows > FEW_ROWS:
        return _many(op, ins, held, context)
    arranged, sums = Scratch(4 * rows * blocks * op.block), Scratch(4 * rows * blocks)
    first: dict[str, Argument] = {"x": In(0), "to": arranged, "sums": sums, "rows": rows, "k": k, "blocks": blocks}
    first |= {"block": op.block, "halves": int(op.bits == 4)}
    main = held | {"x": arranged, "sums": sums, "bias": In(4) if len(ins) > 4 and ins[4] is not None else None}
    main |= {"n": n, "x_row": blocks * op.block}
    parallel = is_parallel(context, 2 * rows * n * k, codes.nbytes)
    steps, passes = [Step(arrange, first, False)], -(-rows // TOGETHER)
    for i in range(passes):
        row = rows * i // passes
        some = rows * (i + 1) // passes - row
        steps.append(Step(few_rows(some, op.bits), main | {"row": row, "y": Out(0, 4 * row * n)}, parallel))
    return steps


def _many(op: Any, ins: Types, held: dict[str, Argument], context: Context) -> list[Step]:
    """Panels and a sweep for each chunk of columns."""
    x, codes, bias = ins[0], ins[1], ins[4] if len(ins) > 4 else None
    assert x is not None, "accepts() has tested this"
    assert codes is not None, "accepts() has tested this"
    n, k, m = codes.dims[0], x.dims[-1], x.size // x.dims[-1]
    chunk = min(max(CHUNK_BYTES // (4 * k) // PANEL, context.threads) * PANEL, -(-n // PANEL) * PANEL)
    panels, work = Scratch(4 * k * chunk), Scratch(4 * LANES * op.block * context.threads)
    biases, steps = packed_bias(bias, 4, n, context)
    order = np.arange(LANES, dtype=np.int32)
    for start in range(0, n, chunk):
        some = min(chunk, n - start)
        made = held | {"to": panels, "work": work, "order": order, "start": start, "n": some, "k": k, "bits": op.bits}
        steps.append(Step(panels_of_bits, made, is_parallel(context, 0, 4 * k * some)))
        steps.append(_sweep(m, some, k, panels, biases, start, n, context))
    return steps


def _sweep(
    m: int, n: int, k: int, panels: Argument, bias: Argument, start: int, ldc: int, context: Context
) -> Step:
    threads = context.threads if is_parallel(context, 2 * m * n * k, 4 * n * k) else 1
    copies = conflicting(4 * k, m) and n > PANEL
    span, pack_ld = choose_span(m, n, k), pack_stride(4 * k) if copies else 0
    per_thread = scratch_bytes(span, 1, 1, pack_ld)
    offsets = np.array([[0, 0, 0, 4 * start, 0, 0]])
    main: dict[str, Argument] = {
        "a": In(0), "lda": k, "b": panels, "bias": bias, "c": Out(0, 4 * start), "ldc": ldc, "res": None, "ldr": 0,
        "blocks": 1, "offsets": offsets, "m": m, "n": n, "k": k, "table": None, "edges": None, "taps": 1, "depth": k,
        "runs": 1, "length": k, "run_rows": np.zeros(1, np.int64), "kind": COPIED if copies else INSIDE,
        "zeros": None, "scratch": Scratch(threads * per_thread), "pack_ld": pack_ld, "scratch_step": per_thread,
        "span": span, "share": choose_share(1, m, n, k, threads), "terms": choose_terms(context), **finish(None).args,
    }  # fmt: skip
    return Step(sweep, main, threads > 1)
