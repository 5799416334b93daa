"""Products with constant weights of 4 or 8 bits in blocks.

Codes are packed once into panels as `pack` makes them of floats, so that a vector holds one row of K.  Few rows: codes
become floats in registers, so that only the bits come from memory.  More rows: codes become packed panels for some
columns at a time, in workspace that they share, and the sweep of all products follows.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.follow import fixed
from bolt_numba.base.selects import either
from bolt_numba.base.types import F32 as F32_TYPE
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language import lang
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    ceil_div,
    native,
    native_source,
    reduce_add,
    splat,
    split,
    store_f32,
    to_f32,
    vload,
    vload_i8,
    vload_i32,
    vload_n,
    vstore,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import L2
from bolt_numba.kernels.cpu.products.matmul import dense_step, is_parallel, packed_bias
from bolt_numba.kernels.cpu.products.pack import PANEL, aligned_empty
from bolt_numba.kernels.cpu.products.sweep import sweep
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, Native, inline
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits

TOGETHER = 6 if target().registers >= 32 else 2
"""Rows whose sums of a block have registers beside those of all.  More of them read a panel's codes again."""
FEW_ROWS = 2 * TOGETHER
"""More rows are swept."""
TERMS = 256
"""Of a sum of one scale that are added before it joins the others: a long sum would lose digits."""
DEEP = 8
"""Codes of 4 bits in a lane."""
CHUNK_BYTES = L2 // 2
"""Panels of floats that are made at a time: they should stay in the second-level cache."""


# ------------------------------------------------------------------------------------------------------------- packing


def panel_bytes(k: int, bits: int) -> int:
    """Bytes of a panel's codes."""
    return PANEL * k if bits == 8 else 4 * PANEL * -(-k // DEEP)


def pack_codes(codes: Array, bits: int, k: int) -> Array:
    """[n, blocks, bytes] -> [panel][k][PANEL] signed bytes, or [panel][ceil(k / 8)][PANEL] of eight codes of 4 bits.

    As f32; codes of what is padded mean 0.
    """
    n, panels = len(codes), -(-len(codes) // PANEL)
    if bits == 8:
        rows = (codes.reshape(n, -1)[:, :k] ^ np.uint8(128)).view(np.int8)
        made = np.zeros((panels * PANEL, k), np.int8)
        made[:n] = rows
        bare = np.ascontiguousarray(made.reshape(panels, PANEL, k).transpose(0, 2, 1)).reshape(-1).view(np.float32)
    else:
        flat = codes.reshape(n, -1)
        deep = np.full((panels * PANEL, -(-k // DEEP) * DEEP), 8, np.uint32)
        deep[:n, 0:k:2] = (flat & 15)[:, : -(-k // 2)]
        deep[:n, 1:k:2] = (flat >> 4)[:, : k // 2]
        eight = deep.reshape(panels, PANEL, -1, DEEP) << (4 * np.arange(DEEP, dtype=np.uint32))
        lanes = np.bitwise_or.reduce(eight, axis=3)
        bare = np.ascontiguousarray(lanes.transpose(0, 2, 1)).reshape(-1).view(np.float32)
    aligned = aligned_empty(bare.shape)
    aligned[:] = bare
    return aligned


def pack_blocks(values: Array, less: float = 0.0, parts: int = 1) -> Array:
    """[n, blocks] less a number, each ``parts`` times -> [panel][block][PANEL], zero-padded."""
    n, blocks = len(values), values.shape[1] * parts
    padded = np.zeros((-(-n // PANEL) * PANEL, blocks), np.float32)
    padded[:n] = np.repeat(values, parts, axis=1) - np.float32(less)
    made = aligned_empty((len(padded) // PANEL, blocks, PANEL))
    made[:] = padded.reshape(-1, PANEL, blocks).transpose(0, 2, 1)
    return made


# ------------------------------------------------------------------------------------------------------------ few rows


def _summed(a: Numbers) -> dict[str, Reach]:
    return {"x": 4 * a.rows * a.k, "to": 4 * a.rows * a.blocks}


@native(fastmath={"contract", "reassoc", "nsz"}, x=PTR, to=PTR, rows=I64, k=I64, blocks=I64, block=I64, extents=_summed)
def sums_of_blocks(p, tid, nthreads):
    """The sum of each block of the rows of x.  x: f32 [rows][k] · to: f32 [rows][blocks]."""
    for row in range(p.rows):
        for b in range(p.blocks):
            total, at, left = splat(np.float32(0)), p.x + 4 * (row * p.k + b * p.block), p.k - b * p.block
            for i in range(0, min(p.block, left), LANES):
                total = total + vload_n(at + 4 * i, min(p.block, left) - i)
            store_f32(p.to + 4 * (row * p.blocks + b), reduce_add(total))


NIBBLES = np.arange(-8, 8, dtype=np.float32)
"""What codes of 4 bits mean."""


@inline
def nibble_by_table(table, v):
    """Numbers of the lowest 4 bits of each lane; a permutation reads no others."""
    return lang.permute(table, v)


@inline
def nibble_by_sum(table, v):
    return to_f32(v & np.int32(15)) - np.float32(8)


nibble = nibble_by_table if LANES == 16 else nibble_by_sum


def _few_source(rows: int, bits: int) -> str:
    """Text of the kernel for ``rows`` rows: passes over a panel's codes for up to `TOGETHER` rows each."""
    passes = -(-rows // TOGETHER)
    shares = [range(rows * i // passes, rows * (i + 1) // passes) for i in range(passes)]
    body = ["first, last = split(ceil_div(p.n, 2 * LANES), tid, nthreads)", "table = vload(p.table)"]
    body += ["for panel in range(first, last):", "    j, left = panel * 2 * LANES, p.n - panel * 2 * LANES"]
    body += _indented([line for some in shares for line in _pass(some, bits)])
    return "\n".join(["def product_of_bits(p, tid, nthreads):", *_indented(body)]) + "\n"


def _pass(rows: range, bits: int) -> list[str]:
    """Lines for some rows and one panel."""
    each = [(r, v) for r in rows for v in (0, 1)]

    def add(at: str, numbers: str) -> list[str]:
        """Lines for one row of K, whose ``numbers`` {v} are of vector v."""
        lines = [f"w{v} = {numbers.format(v=v)}" for v in (0, 1)]
        for r in rows:
            lines.append(f"x{r} = splat(load_f32(x + 4 * ({r} * p.k + {at})))")
            lines += [f"a{r}{v} = fma(x{r}, w{v}, a{r}{v})" for v in (0, 1)]
        return lines

    load = ["v0, v1 = vload_i32(codes), vload_i32(codes + BYTES)", "codes += 2 * BYTES"]
    if bits == 8:
        inner = ["for q in range(size):", *_indented(add("q", "to_f32(vload_i8(codes + {v} * LANES))"))]
        inner += ["    codes += 2 * LANES"]
    else:
        eight = [line for j in range(DEEP) for line in add(f"(q + {j})", f"nibble(table, v{{v}} >> {4 * j})")]
        rest = [*add("q", "nibble(table, v{v})"), "v0, v1, q = v0 >> 4, v1 >> 4, q + 1"]
        inner = ["q = 0", "while q + 8 <= size:", *_indented([*load, *eight, "q += 8"])]
        inner += ["if q < size:", *_indented([*load, "while q < size:", *_indented(rest)])]
    block = ["size, x = min(p.block, p.k - p.block * b), p.x + 4 * p.block * b"]
    block += ["s0, s1 = vload(scales), vload(scales + BYTES)"]
    block += [*(f"a{r}{v} = splat(np.float32(0))" for r, v in each), *inner, "if p.zeros != 0:"]
    block += ["    z0, z1 = vload(zeros), vload(zeros + BYTES)"]
    for r in rows:
        block.append(f"    y{r} = splat(load_f32(p.sums + 4 * ({r} * p.blocks + b)))")
        block += [f"    a{r}{v} = a{r}{v} - z{v} * y{r}" for v in (0, 1)]
    block += [f"t{r}{v} = fma(a{r}{v}, s{v}, t{r}{v})" for r, v in each]
    block += ["scales, zeros = scales + 2 * BYTES, zeros + 2 * BYTES"]
    lines = ["codes, scales = p.codes + panel * p.panel, p.scales + 4 * j * p.blocks"]
    lines += ["zeros, c0, c1 = p.zeros + 4 * j * p.blocks, splat(np.float32(0)), splat(np.float32(0))"]
    lines += ["if p.bias != 0:"]
    lines += [f"    c{v} = vload_n(p.bias + 4 * (j + {v} * LANES), left - {v} * LANES)" for v in (0, 1)]
    lines += [f"t{r}{v} = c{v}" for r, v in each]
    lines += ["for b in range(p.blocks):", *_indented(block)]
    store = "vstore_n(p.y + 4 * ({r} * p.n + j + {v} * LANES), t{r}{v}, left - {v} * LANES)"
    return [*lines, *(store.format(r=r, v=v) for r, v in each)]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _of_panels(a: Numbers, panels: int) -> dict[str, Reach]:
    """What panels of codes and their numbers take."""
    numbers = 4 * PANEL * a.blocks * panels
    return {"codes": a.panel * panels, "scales": numbers, "zeros": numbers, "table": BYTES}


def _multiplied(rows: int, a: Numbers) -> dict[str, Reach]:
    some = {"x": 4 * rows * a.k, "sums": 4 * rows * a.blocks, "bias": 4 * a.n, "y": 4 * rows * a.n}
    return some | _of_panels(a, -(-a.n // PANEL))


@cache
def few_rows(rows: int, bits: int) -> Native:
    """Kernel for ``rows`` rows of x.

    codes: by `pack_codes`, ``panel`` bytes each; scales, zeros (or 0): by `pack_blocks`; sums: of blocks of x,
    where there are zeros; bias: f32 [n] or 0; table: `NIBBLES`.
    """
    fields: dict[str, Any] = {
        "x": PTR, "sums": PTR_OR_0, "codes": PTR, "panel": I64, "scales": PTR, "zeros": PTR_OR_0, "bias": PTR_OR_0,
        "table": PTR, "y": PTR, "n": I64, "k": I64, "blocks": I64, "block": I64,
    }  # fmt: skip
    text, extents = _few_source(rows, bits), partial(_multiplied, rows)
    return native_source(text, "product_of_bits", fields, extents=extents, nibble=nibble, **scope_of(text))


# -------------------------------------------------------------------------------------------------------------- panels


def _unpacked(a: Numbers) -> dict[str, Reach]:
    last = -(-a.n // PANEL)
    to = 4 * a.k * PANEL * (last - 1) + 4 * a.k * (LANES if a.n - (last - 1) * PANEL <= LANES else PANEL)
    return {"to": to, **_of_panels(a, a.first + last)}


@native(codes=PTR, panel=I64, scales=PTR, zeros=PTR_OR_0, table=PTR, to=PTR, first=I64, n=I64, k=I64, blocks=I64,
        block=I64, bits=I64, extents=_unpacked)  # fmt: skip
def panels_of_bits(p, tid, nthreads):
    """Packed panels of floats (see `pack`) of ``n`` columns from panel ``first`` on.

    codes: bytes [panels][panel] · scales, zeros: f32 [panels][blocks][PANEL] · to: f32 [panels][k][PANEL].
    """
    k, panels, table = p.k, ceil_div(p.n, PANEL), vload(p.table)
    lo, hi = split(panels, tid, nthreads)
    for panel in range(lo, hi):
        place = p.first + panel
        width = LANES if p.n - panel * PANEL <= LANES else PANEL
        for column in range(0, width, LANES):
            to, codes = p.to + 4 * (k * PANEL * panel + column), p.codes + p.panel * place
            codes += 4 * column if p.bits == 4 else column
            for b in range(p.blocks):
                at = 4 * (PANEL * (p.blocks * place + b) + column)
                scale, lost = vload(p.scales + at), splat(np.float32(0))
                if p.zeros != 0:
                    lost = vload(p.zeros + at) * scale
                q, end = b * p.block, min((b + 1) * p.block, k)
                while p.bits == 8 and q < end:
                    vstore(to, to_f32(vload_i8(codes)) * scale - lost)
                    to, codes, q = to + 4 * width, codes + PANEL, q + 1
                while q < end:
                    v, some = vload_i32(codes), min(end - q, DEEP)
                    for _ in range(some):
                        vstore(to, nibble(table, v) * scale - lost)
                        to, v = to + 4 * width, v >> np.int32(4)
                    codes, q = codes + 4 * PANEL, q + some


# -------------------------------------------------------------------------------------------------------------- makers


def _accepts(op: MatMulNBits, ins: Types) -> bool:
    x, codes, bias = ins[0], ins[1], ins[4] if len(ins) > 4 else None
    if any(t is not None and not t.is_static for t in ins) or op.rounded or op.bits == 2:
        return False
    if any(t is not None and t.known is None for t in ins[1:4]) or (op.block % DEEP and codes.dims[1] > 1):
        return False
    return x.dtype == F32_TYPE and x.size > 0 and codes.size > 0 and (bias is None or bias.dtype == F32_TYPE)


@kernel(MatMulNBits, accepts=_accepts)
def matmul_bits(op: MatMulNBits, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Codes to floats in registers for few rows, to panels of some columns at a time for more."""
    x, codes, scales = ins[0], ins[1], ins[2]
    zeros, bias = (*ins, None, None)[3:5]
    k, (n, blocks, _) = fixed(x.dims[-1]), codes.dims
    rows, bits = x.size // k, op.bits
    parts = -(-k // TERMS) if blocks == 1 else 1
    blocks, block = blocks * parts, min(op.block, TERMS) if parts > 1 else op.block
    held: dict[str, Argument] = {
        "codes": context.packed(codes.known, ("codes", bits, k), lambda a: pack_codes(a, bits, k)),
        "panel": panel_bytes(k, bits), "zeros": None,
        "scales": context.packed(scales.known, ("blocks", parts), lambda a: pack_blocks(a, parts=parts)),
        "table": NIBBLES[-LANES:] if LANES < 16 else NIBBLES, "k": k, "blocks": blocks, "block": block,
    }  # fmt: skip
    if zeros is not None and zeros.known is not None:
        held["zeros"] = context.packed(zeros.known, ("zeros", bits, parts), lambda a: pack_blocks(a, op.middle, parts))
    if rows > FEW_ROWS:
        return _many(op, ins, held, context)
    steps: list[Step] = []
    sums = None if zeros is None else Scratch(4 * rows * blocks)
    if sums is not None:
        given: dict[str, Argument] = {"x": In(0), "to": sums, "rows": rows, "k": k}
        steps.append(Step(sums_of_blocks, given | {"blocks": blocks, "block": block}, False))
    main = held | {"x": In(0), "n": n, "y": Out(0), "sums": sums, "bias": None if bias is None else In(4)}
    return [*steps, Step(few_rows(fixed(rows), bits), main, is_parallel(context, 2 * rows * n * k, codes.nbytes))]


def _many(op: MatMulNBits, ins: Types, held: dict[str, Argument], context: Context) -> list[Step]:
    """Panels and a sweep for each chunk of columns."""
    x, codes, bias = ins[0], ins[1], ins[4] if len(ins) > 4 else None
    n, k, m = codes.dims[0], x.dims[-1], x.size // x.dims[-1]
    chunk = min(max(CHUNK_BYTES // (4 * k) // PANEL, context.threads) * PANEL, -(-n // PANEL) * PANEL)
    panels = Scratch(4 * k * chunk)
    biases, steps = packed_bias(bias, 4, n, context)
    for start in range(0, n, chunk):
        some = min(chunk, n - start)
        made = held | {"to": panels, "first": start // PANEL, "n": some, "bits": op.bits}
        steps.append(Step(panels_of_bits, made, is_parallel(context, 0, 4 * k * some)))
        steps.append(_sweep(op, (m, some, k), panels, biases, start, n, context))
    return steps


def _sweep(
    op: MatMulNBits, sizes: tuple[int, int, int], panels: Argument, bias: Argument, start: int, ldc: int,
    context: Context,
) -> Step:  # fmt: skip
    m, n, k = sizes
    threads = either(is_parallel(context, 2 * m * n * k, 4 * n * k), context.threads, 1)
    main: dict[str, Argument] = {
        "lda": k, "b": panels, "bias": bias, "ldc": ldc, "blocks": 1,
        "offsets": np.array([[0, 0, 0, 4 * start, 0, start]]),
    }  # fmt: skip
    return dense_step(sweep, op, main, sizes, threads, context)
