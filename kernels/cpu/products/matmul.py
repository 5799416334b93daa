"""Matrix products on the `sweep` kernel: batches with broadcasting, transposed operands, fused epilogues."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.base.follow import is_followed, pure
from bolt_numba.base.selects import MOST_ROWS, either, filled, table
from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.kernels.cpu.machine import L1_STRIDE, L1_WAYS, PAYS_BYTES, PAYS_FLOPS
from bolt_numba.kernels.cpu.movement.move import steps as move_steps
from bolt_numba.kernels.cpu.products.epilogue import bias_last, can_finish, finish
from bolt_numba.kernels.cpu.products.pack import (
    PANEL,
    aligned_zeros,
    choose_terms,
    pack_b,
    pack_panels,
    padded_bias,
    panel_columns,
    source_rows,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.sweep import (
    COPIED,
    INSIDE,
    MR,
    PAIRED,
    choose_share,
    choose_span,
    pack_stride,
    scratch_bytes,
    sweep,
)  # fmt: skip
from bolt_numba.kernels.geometry.products import ProductBlocks, block_index, geometry
from bolt_numba.kernels.geometry.strides import transpose_move
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel, result_of
from bolt_numba.ops.layers.products.matmul import MatMul

SERIAL_FLOPS, SERIAL_BYTES = PAYS_FLOPS, PAYS_BYTES * 3 // 8
"""Work under which a second thread costs more than it brings."""


def swapped(index: int, t: TensorType) -> tuple[Scratch, list[Step]]:
    """An operand with its last two axes exchanged."""
    to, rank = Scratch(t.nbytes), len(t.dims)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return to, move_steps([transpose_move(t.dims, perm, t.dtype.itemsize)], In(index), to)


@dataclass(frozen=True, slots=True)
class PanelForm:
    """Elements of packed B: their bytes, how panels are made, the sweep over them, and what their packs are called."""

    unit: int
    pack: Any
    sweep: Native
    key: tuple[str, ...] = ()


PLAIN = PanelForm(4, pack_panels, sweep)


def _offsets(g: ProductBlocks, unit: int) -> Array:
    """Entries of `sweep`'s blocks; unit: bytes of an element of B."""
    if not g.batch:
        return ONE_BLOCK
    panels = unit * g.k * panel_columns(g.n)
    batches = g.batch, g.a_batch, g.b_batch
    if is_followed((g.m, panels)) and not is_followed(batches) and math.prod(g.batch) <= MOST_ROWS:
        ones = _block_table(*batches, 1, 1).tolist()
        made: Array = table([(a * g.m, 0, b * panels, 0, i * g.m, 0) for a, _, b, _, i, _ in ones])
        return made
    return _block_table(*batches, g.m, panels)


ONE_BLOCK = np.zeros((1, 6), np.int64)


@pure
@lru_cache(maxsize=1024)
def _block_table(
    batch: tuple[int, ...], a_batch: tuple[int, ...], b_batch: tuple[int, ...], m: int, panels: int
) -> Array:
    """What `_offsets` gives for several blocks; panels: bytes of those of a block."""
    blocks = math.prod(batch)
    out = np.zeros((blocks, 6), np.int64)
    out[:, 0] = block_index(batch, a_batch) * m
    out[:, 2] = block_index(batch, b_batch) * panels
    out[:, 4] = np.arange(blocks) * m
    return out


def zero_bias(columns: int) -> Array:
    args = {"first": 0, "step": 0, "count": columns}
    made: Array = filled("counts", args, (columns,), np.float32, (0, 0), (_zero_bias, (columns,)))
    return made


@lru_cache(maxsize=256)
def _zero_bias(columns: int) -> Array:
    return aligned_zeros((columns,))


def known_bias(bias: TensorType | None, columns: int, context: Context, key: Any, pack: Any) -> Argument:
    """What ``pack`` makes of a constant bias; where there is none so many zeros."""
    return zero_bias(columns) if bias is None else context.packed(bias.known, key, pack)


ORIGIN = np.zeros(1, np.int64)


def is_parallel(context: Context, flops: int, nbytes: int) -> bool:
    return context.threads > 1 and (flops > SERIAL_FLOPS) | (nbytes > SERIAL_BYTES)


def packed_panels(
    op: MatMul, g: ProductBlocks, b: TensorType, context: Context, form: PanelForm
) -> tuple[Argument, list[Step]]:
    """Panels of B and the steps that make them at run time, which are f32."""
    swap = op.trans_b and len(b.dims) > 1
    known = b.known
    if known is not None:

        def pack(array: Array) -> Array:
            source = array.reshape(-1, 1) if array.ndim == 1 else array.swapaxes(-1, -2) if swap else array
            return form.pack(source, alpha=op.alpha, threads=context.threads)  # type: ignore[no-any-return]

        return context.packed(known, ("panels", op.trans_b, op.alpha, *form.key), pack), []
    to = Scratch(4 * g.b_blocks * g.k * panel_columns(g.n))
    row, column = (1, g.k) if swap else (g.n, 1)
    args: dict[str, Argument] = {
        "b": In(1), "to": to, "blocks": g.b_blocks, "block": 4 * g.k * g.n, "rows": source_rows(1, g.k),
        "k": g.k, "n": g.n, "row": 4 * row, "column": 4 * column, "alpha": op.alpha,
    }  # fmt: skip
    return to, [Step(pack_b, args, is_parallel(context, 0, b.nbytes * (2 if swap else 1)))]


def packed_bias(
    bias: TensorType | None, index: int, n: int, context: Context, groups: int = 1
) -> tuple[Argument, list[Step]]:
    """Bias of each group padded to whole panels, zeros for none, and the steps that pad it at run time."""
    width = panel_columns(n)
    if bias is None:
        return zero_bias(groups * width), []
    if bias.known is not None:
        return context.packed(bias.known, ("bias", groups, n), padded_bias(groups * n, n, width)), []
    to = Scratch(4 * groups * width)
    args: dict[str, Argument] = {
        "b": In(index), "to": to, "blocks": groups, "block": 4 * n, "rows": source_rows(1, 1), "k": 1, "n": n,
        "row": 4, "column": 4, "alpha": 1.0,
    }  # fmt: skip
    return to, [Step(pack_b, args, False)]


def accepts_matmul(op: MatMul, ins: Types) -> bool:
    """f32 throughout, a bias of the columns of a matrix, a residual of the result's shape."""
    if op.to is not None or any(t is not None and (t.dtype != F32 or not t.is_static) for t in ins):
        return False
    a, b, bias, residual = (*ins, None, None)[:4]
    if a is None or b is None or not can_finish(op.activation):
        return False
    out = result_of(op, ins)
    if bias is not None and (len(b.dims) == 1 or (bias.known is None and bias.dims != out.dims[-1:])):
        return False
    return residual is None or residual.dims == out.dims


def conflicting(row_bytes: int, rows: int) -> bool:
    """Whether the rows of a tile fill the one set of the first-level cache into which they fall."""
    return MR >= L1_WAYS and (row_bytes % L1_STRIDE == 0) & (rows >= L1_WAYS)


@kernel(MatMul, accepts=accepts_matmul)
def matmul(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of B (packed once when constant) under row tiles of A."""
    return product_steps(op, ins, context, PLAIN)


def product_steps(op: MatMul, ins: Types, context: Context, form: PanelForm) -> list[Step]:
    """The steps of a product with panels of a form: constants, unless it is `PLAIN`."""
    a, b, bias = ins[0], ins[1], (*ins, None)[2]
    g = geometry(op, a.dims, b.dims)
    panels, steps = packed_panels(op, g, b, context, form)
    last = bias_last(op, bias, g.n, context)
    bias_at, bias_steps = packed_bias(None if last else bias, 2, g.n, context)
    steps += bias_steps
    source: Argument = In(0)
    lda: Argument = Pitch(In(0))
    if op.trans_a and len(a.dims) > 1:
        (source, more), lda = swapped(0, a), g.k
        steps += more
    flat = len(b.dims) == 1
    flops, nbytes = 2 * g.blocks * g.m * g.n * g.k, 4 * g.b_blocks * g.k * g.n
    main: dict[str, Argument] = {
        "a": source, "lda": lda, "b": panels, "bias": bias_at, "blocks": g.blocks, "offsets": _offsets(g, form.unit),
    }  # fmt: skip
    if last:
        main["res"] = In(2)
    if flat:
        main |= {"ldc": 1, "ldr": 1 if op.residual else 0}
    threads = either(is_parallel(context, flops, nbytes), context.threads, 1)
    return [*steps, dense_step(form.sweep, op, main, (g.m, g.n, g.k), threads, context)]


def matrix_rows(k: int) -> dict[str, Argument]:
    """Fields of sweeps where row i of A is its i-th row."""
    return {"table": None, "edges": None, "taps": 1, "depth": k, "runs": 1, "length": k, "run_rows": ORIGIN}


def dense_step(
    kernel: Native, op: Any, args: dict[str, Argument], sizes: tuple[int, int, int], threads: int, context: Context
) -> Step:
    """The call of a `sweep` over the rows of a matrix; args: what is not the same for all, see `sweep_step`."""
    m, n, k = sizes
    copies = conflicting(4 * k, m) & (n > PANEL)
    span, pack_ld = choose_span(m, n, k), either(copies, pack_stride(4 * k), 0)
    room = {"span": span, "pack_ld": pack_ld, "scratch_step": scratch_bytes(span, 1, 1, pack_ld)}
    rows = {**matrix_rows(k), "kind": either(copies, COPIED, INSIDE), "terms": choose_terms(context)}
    return sweep_step(kernel, op, rows | room | args, sizes, threads)


def sweep_step(
    kernel: Native, op: Any, args: dict[str, Any], sizes: tuple[int, int, int], threads: int, short: bool = False
) -> Step:
    """The call of a sweep of `sweep_extents.FIELDS` for blocks of ``sizes`` m, n and k; short: see `tile_function`.

    args: what is not the same for all, such as ``scratch_step``, which the workspace follows from.
    """
    m, n, k = sizes
    residual, activation = getattr(op, "residual", False), getattr(op, "activation", None)  # MatMulNBits has neither
    common: dict[str, Argument] = {
        "a": In(0), "c": Out(0), "ldc": Pitch(Out(0)), "res": In(3) if residual else None,
        "ldr": Pitch(In(3)) if residual else 0, "m": m, "n": n, "k": k, "zeros": None,
        "scratch": Scratch(threads * args["scratch_step"]), "share": choose_share(args["blocks"], m, n, k, threads),
        "paired": PAIRED, **finish(activation, short).args,
    }  # fmt: skip
    return Step(kernel, common | args, threads > 1)
