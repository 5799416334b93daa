"""Products and convolutions with constant weights in bfloat16, two bytes each; sums and everything else in f32.

A processor that multiplies pairs of bfloat16 does twice the arithmetic.  Sessions of precision ``bf16`` prefer these
makers to those of `matmul` and `conv`.  Convolutions stay in f32 where Winograd's algorithm costs less, and where
groups are few channels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from bolt_numba.base.selects import either
from bolt_numba.base.types import BF16, F32, TensorType
from bolt_numba.kernels.cpu.convolution.conv import accepts_conv, block_offsets, packed_filters
from bolt_numba.kernels.cpu.convolution.conv import geometry as windows_geometry
from bolt_numba.kernels.cpu.convolution.winograd import best_size, part_of_direct
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products.matmul import (
    ONE_BLOCK,
    PanelForm,
    accepts_matmul,
    is_parallel,
    matrix_rows,
    packed_bias,
    packed_panels,
    sweep_step,
)
from bolt_numba.kernels.cpu.products.pack import TERMS
from bolt_numba.kernels.cpu.products.sweep_bf16 import (
    AS_F32,
    NARROW_A,
    NARROW_C,
    NARROW_RESIDUAL,
    PADDED,
    SLACK,
    choose_span,
    pack_panels_bf16,
    round_values,
    row_stride,
    scratch_bytes,
    sweep_bf16,
)  # fmt: skip
from bolt_numba.kernels.geometry.products import geometry
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.registry import Argument, Context, In, Operands, Outs, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul

SHORT_SUM, SHORT_TAPS, NARROW = 8, 32, LANES
"""Terms of a sum, the same where taps are gathered, and columns of a result, under which copying rows costs more than
faster products bring."""
RANK = 12
"""Above the other makers of dense sums, below those of groups and of depthwise convolutions."""
THIN_IMAGE = 16
"""Channels under which an image is rounded as a whole first: its runs are shorter than vectors."""
PAIRS = PanelForm(2, pack_panels_bf16, sweep_bf16, ("pairs",))


def in_f32(op: Conv | MatMul, ins: Types) -> tuple[Any, Types]:
    """A product and its operands, as they were before values between products became bfloat16."""
    if op.to is None or op.to not in (F32, BF16):
        return op, ins
    given = [TensorType(F32, t.shape) if t is not None and t.dtype == BF16 else t for t in ins]
    return replace(op, to=None), Operands(given)


def kinds(op: Conv | MatMul, ins: Types) -> int:
    """Which operands are bfloat16."""
    x, residual = ins[0], ins[3] if op.residual else None
    kind = NARROW_A if x.dtype == BF16 else AS_F32
    kind |= NARROW_RESIDUAL if residual is not None and residual.dtype == BF16 else AS_F32
    return kind | (NARROW_C if op.to == BF16 else AS_F32)


def accepts_weights(op: MatMul, ins: Types) -> bool:
    """A matrix of constant weights, large enough."""
    op, ins = in_f32(op, ins)
    if op.trans_a or not accepts_matmul(op, ins):
        return False
    b = ins[1]
    if b.known is None or len(b.dims) < 2 or math.prod(b.dims[:-2]) != 1:
        return False
    k, n = reversed(b.dims[-2:]) if op.trans_b else b.dims[-2:]
    return k >= SHORT_SUM and n >= NARROW


@kernel(MatMul, accepts=accepts_weights, precision="bf16", rank=RANK)
def matmul_bf16(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of weights in bfloat16 under row tiles of A."""
    a, b, bias = ins[0], ins[1], (*ins, None)[2]
    g = geometry(op, a.dims, b.dims)
    filters, _ = packed_panels(op, g, b, context, PAIRS)
    bias_at, steps = packed_bias(bias, 2, g.n, context)
    return [*steps, product_step(op, filters, bias_at, (g.m, g.n, g.k), context, kinds(op, ins))]


def product_step(
    op: MatMul, panels: Argument, bias: Argument, sizes: tuple[int, int, int], context: Context, kind: int = AS_F32
) -> Step:
    """The call of `sweep_bf16` for a product of ``sizes`` m, n and k."""
    m, n, k = sizes
    threads = either(is_parallel(context, m * n * k, 2 * n * k), context.threads, 1)
    args: dict[str, Argument] = {"lda": Pitch(In(0)), "b": panels, "bias": bias, "blocks": 1, "offsets": ONE_BLOCK}
    return _step(op, args | matrix_rows(k) | {"kind": kind}, sizes, threads)


def is_direct(op: Conv, ins: Types) -> bool:
    """Whether the plain sum in bfloat16 costs less than Winograd's algorithm in f32."""
    size = best_size(op, ins)
    if size == 0:
        return True
    return target().has_bf16 and part_of_direct(op, ins, size) > 0.5


def works_filters(op: Conv, ins: Types) -> bool:
    """Filters long and many enough."""
    op, ins = in_f32(op, ins)
    if not accepts_conv(op, ins):
        return False
    w = ins[1]
    taps = math.prod(w.dims[2:])
    return w.dims[1] * taps >= (SHORT_SUM if taps == 1 else SHORT_TAPS) and w.dims[0] // op.group >= NARROW


def accepts_filters(op: Conv, ins: Types) -> bool:
    """Where no other algorithm is expected to be faster."""
    return works_filters(op, ins) and (op.to is not None or is_direct(op, ins))


@kernel(Conv, accepts=accepts_filters, works=works_filters, precision="bf16", rank=RANK)
def conv_bf16(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of filters in bfloat16 under tiles of output pixels."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    count, cg = w.dims[:2]
    groups, kg, taps = op.group, count // op.group, math.prod(w.dims[2:])
    g, k = windows_geometry(op, x, w, outs[0]), taps * cg
    filters, _ = packed_filters(w, groups, context, PAIRS)
    bias_at, steps = packed_bias(bias, 2, kg, context, groups)
    threads = either(is_parallel(context, g.images * g.m * count * k, 2 * count * k), context.threads, 1)
    args: dict[str, Argument] = {
        "lda": x.dims[-1] if g.merged else Pitch(In(0)), "b": filters, "bias": bias_at, "blocks": g.images * groups,
        "offsets": block_offsets(g.images, groups, g.rows, g.m, cg, kg, 4 * -(-k // 2)),
        "table": None if g.is_matrix else g.taps.table, "edges": g.taps.edges,
        "taps": taps, "depth": cg, "runs": len(g.run), "length": k // len(g.run), "run_rows": g.run,
        "kind": kinds(op, ins),
    }  # fmt: skip
    if not g.is_matrix and cg < THIN_IMAGE and x.dtype == F32:
        image = Scratch(2 * x.size + SLACK)
        steps.append(Step(round_values, {"x": In(0), "y": image, "n": x.size}, is_parallel(context, 0, x.nbytes)))
        args |= {"a": image, "lda": x.dims[-1], "kind": kinds(op, ins) | NARROW_A | PADDED}
    return [*steps, _step(op, args, (g.m, kg, k), threads)]


def _step(op: Any, args: dict[str, Argument], sizes: tuple[int, int, int], threads: int) -> Step:
    """The call of `sweep_bf16` for blocks of ``sizes`` m, n and k; args: what is not the same for all products."""
    terms = 4 * TERMS
    span = choose_span(*sizes, terms)
    room = {"span": span, "pack_ld": row_stride(sizes[2]), "scratch_step": scratch_bytes(span, *sizes[1:], terms)}
    return sweep_step(sweep_bf16, op, {**args, **room, "terms": terms, "paired": 0}, sizes, threads, short=True)
