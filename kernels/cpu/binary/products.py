"""BinaryConv and BinaryMatMul: packed filters and numbers of their columns for `sweep_bits`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.selects import either
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.binary.sweep import BLOCK_FIELDS, scratch_bytes, sweep_bits
from bolt_numba.kernels.cpu.convolution.conv import MOST_PIXELS, geometry
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products.epilogue import can_finish, finish
from bolt_numba.kernels.cpu.products.matmul import is_parallel
from bolt_numba.kernels.cpu.products.pack import PANEL, aligned_zeros
from bolt_numba.kernels.cpu.products.sweep import choose_share
from bolt_numba.kernels.cpu.products.sweep_bytes import choose_span
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Pitch, Scratch, Step, Types, kernel, result_of
from bolt_numba.ops.layers.products.binary import (
    MOST_BITS,
    WORD,
    BinaryConv,
    BinaryMatMul,
    BinaryProduct,
    magnitudes,
    packed_bits,
    signs_of,
    words_of,
)

FEW_WORDS = 2
"""Words a tap up to which rows are copied: their addresses would take as much room."""
BIAS, RESIDUAL, THRESHOLDS = 2, 3, 4
"""Operands."""


@record(frozen=True)
class Filters:
    """Weights as [groups, n filters, taps, cg channels], and what kernels read instead.

    width: columns of a group, whole vectors.
    """

    groups: int
    n: int
    taps: int
    cg: int

    @property
    def width(self) -> int:
        return -(-self.n // LANES) * LANES

    @property
    def words(self) -> int:
        """Of one tap."""
        return words_of(self.cg)

    def panels(self, w: Array) -> Array:
        """Signs as [groups][panels][taps][words][filters of a panel]; those of the last panel in whole vectors."""
        bits = packed_bits(w > 0, -1).reshape(self.groups, self.n, -1)
        made = aligned_zeros((self.groups, bits.shape[2] * self.width))
        to = made.view(np.uint32)
        for j in range(0, self.n, PANEL):
            part, wide = bits[:, j : j + PANEL], min(PANEL, self.width - j)
            panel = to[:, j * bits.shape[2] : (j + wide) * bits.shape[2]].reshape(self.groups, -1, wide)
            panel[:, :, : part.shape[1]] = part.swapaxes(1, 2)
        return made

    def in_columns(self, *numbers: Array) -> Array:
        """Rows of numbers of [groups * n] filters, each padded to whole vectors: [rows, groups, width]."""
        made = np.zeros((len(numbers), self.groups, self.width), numbers[0].dtype)
        for i, row in enumerate(numbers):
            made[i, :, : self.n] = row.reshape(self.groups, self.n)
        return made

    def bases(self, w: Array, zero_one: bool, outside: int, patterns: Array) -> Array:
        """Sums where no bit differs, for each pattern [taps] of taps outside: i32 [patterns, groups, width].

        A bit of 0, which taps outside read, stands for -1 or 0; what it should stand for there is put right.
        """
        signs = signs_of(w).astype(np.int64).sum(axis=-1).reshape(self.groups * self.n, self.taps)
        whole = np.full(len(signs), self.taps * self.cg)
        most = (whole + signs.sum(axis=1)) // 2 if zero_one else whole
        right = patterns.astype(np.int64) @ signs.T * (outside - (0 if zero_one else -1))
        return self.in_columns(*(most + right).astype(np.int32))


@record(frozen=True)
class PixelRows:
    """Rows of A: see `sweep_bits`.  pixels: of a block; patterns: which taps are outside, for each kind of row."""

    images: int
    pixels: int
    m: int
    lda: int
    table: Array | None
    patterns: Array
    kind_of: Array | None


def _packed(
    op: BinaryProduct, ins: Types, f: Filters, patterns: Array, by_filter: Callable[[Array], Array], context: Context
) -> tuple[Argument, Argument, Argument]:
    """Panels, numbers of columns and bases; by_filter: weights as [filters, taps, channels]."""
    known = [None if t is None else t.known for t in (*ins, None, None, None)]
    w, bias, thresholds = known[1], known[BIAS], known[THRESHOLDS]
    zero_one, outside, key = op.zero_one, getattr(op, "outside", 0), ("binary", type(op).__name__, f)
    panels = context.packed(w, (*key, "panels"), lambda a: f.panels(by_filter(a)))
    base_key = *key, "bases", zero_one, outside, patterns.shape, patterns.tobytes()
    bases = context.packed(w, base_key, lambda a: f.bases(by_filter(a), zero_one, outside, patterns))
    if thresholds is not None:
        return panels, context.packed(thresholds, key, f.in_columns), bases

    def ends(w: Array, bias: Array | None = None) -> Array:
        scales = magnitudes(by_filter(w), 0)
        return f.in_columns(scales, np.zeros_like(scales) if bias is None else bias)

    return panels, context.packed((w,) if bias is None else (w, bias), (*key, "ends"), ends), bases


def _offsets(f: Filters, rows: PixelRows) -> Array:
    """Blocks of `sweep_bits`: every group of every image."""
    image, group = (i.reshape(-1) for i in np.mgrid[: rows.images, : f.groups])
    made = np.empty((image.size, BLOCK_FIELDS), np.int64)
    made[:, 0] = image * rows.pixels * rows.lda + group * 4 * f.words
    made[:, 1], made[:, 2] = group * (4 * f.taps * f.words * f.width), group * (4 * f.width)
    made[:, 3], made[:, 4] = group * f.n, image * rows.m
    return made


def _steps(
    op: BinaryProduct, ins: Types, f: Filters, rows: PixelRows, by_filter: Callable[[Array], Array], context: Context
) -> list[Step]:
    """The sweep; by_filter: weights as [filters, taps, channels]."""
    panels, columns, bases = _packed(op, ins, f, rows.patterns, by_filter, context)
    offsets, length, one = _offsets(f, rows), f.words * f.taps, 4 * words_of(f.cg * f.groups)
    copied = rows.table is not None and f.words <= FEW_WORDS
    apart = one if rows.lda > one else 0
    copy_step = 8 * -(-(2 if apart else 1) * length // 2) if copied else 0
    span, runs = choose_span(rows.m, 4 * length), 1 if copied or rows.table is None else f.taps
    work = len(offsets) * rows.m * f.n * length
    threads = either(is_parallel(context, 2 * work, 4 * f.groups * length * f.width), context.threads, 1)
    per_thread = scratch_bytes(span, runs, copy_step)
    residual = In(RESIDUAL) if op.residual else None
    args: dict[str, Argument] = {
        "a": In(0), "lda": rows.lda, "apart": apart, "pixels": rows.pixels, "b": panels, "c": Out(0),
        "ldc": Pitch(Out(0)), "res": residual, "ldr": 0 if residual is None else Pitch(residual),
        "blocks": len(offsets), "offsets": offsets, "m": rows.m, "n": f.n, "table": rows.table,
        "patterns": rows.kind_of, "kinds": len(rows.patterns), "taps": f.taps, "words": f.words, "copied": int(copied),
        "zeros": np.zeros(apart // 4 + f.words, np.int32), "columns": columns, "width": 4 * f.groups * f.width,
        "base": bases, "scaled": int(len(ins) <= THRESHOLDS or ins[THRESHOLDS] is None), "half": int(op.zero_one),
        "scratch": Scratch(threads * per_thread), "scratch_step": per_thread, "copy_step": copy_step, "span": span,
        "share": choose_share(len(offsets), rows.m, f.n, length, threads), **finish(op.activation).args,
    }  # fmt: skip
    return [Step(sweep_bits, args, threads > 1)]


def _is_plain(op: BinaryProduct, ins: Types, most: int) -> bool:
    """Static operands, constants but for x and the residual, sums of at most ``most``."""
    x, w, *others = ins
    if x is None or w is None or not all(t is None or t.is_static for t in ins) or not x.size or not w.size:
        return False
    if w.known is None or any(t is not None and t.known is None for i, t in enumerate(others, BIAS) if i != RESIDUAL):
        return False
    residual = ins[RESIDUAL] if len(ins) > RESIDUAL else None
    fits = residual is None or residual.dims == result_of(op, ins).dims
    return fits and can_finish(op.activation) and most < MOST_BITS


def _accepts_conv(op: BinaryConv, ins: Types) -> bool:
    x, w = ins[:2]
    if op.layout != "NHWC" or x is None or w is None or not w.is_static:
        return False
    if op.group > 1 and (w.dims[1] % WORD or (len(ins) > THRESHOLDS and ins[THRESHOLDS] is not None)):
        return False
    if not _is_plain(op, ins, math.prod(w.dims[1:])):
        return False
    return math.prod(x.dims[:-1]) <= MOST_PIXELS


@kernel(BinaryConv, accepts=_accepts_conv)
def binary_conv(op: BinaryConv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of signs under tiles of output pixels."""
    x, w = ins[0], ins[1]
    f = Filters(op.group, w.dims[0] // op.group, math.prod(w.dims[2:]), w.dims[1])
    g = geometry(op, x, w, outs[0])
    table = None if g.is_matrix else g.taps.table
    patterns, kind_of = np.zeros((1, f.taps), bool), None
    if table is not None and not g.taps.inside:
        seen, kinds = np.unique(table < 0, axis=1, return_inverse=True)
        patterns, kind_of = seen.T, kinds.reshape(-1).astype(np.int32)
    rows = PixelRows(g.images, g.rows, g.m, 4 * x.dims[-1], table, patterns, kind_of)

    def by_filter(array: Array) -> Array:
        return array.reshape(*array.shape[:2], f.taps).swapaxes(1, 2)

    return _steps(op, ins, f, rows, by_filter, context)


def _accepts_matmul(op: BinaryMatMul, ins: Types) -> bool:
    w = ins[1]
    return w.is_static and len(w.dims) == 2 and _is_plain(op, ins, w.dims[0])


@kernel(BinaryMatMul, accepts=_accepts_matmul)
def binary_matmul(op: BinaryMatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of signs under tiles of rows."""
    x, w = ins[0], ins[1]
    m = math.prod(x.dims[:-1])
    rows = PixelRows(1, m, m, 4 * x.dims[-1], None, np.zeros((1, 1), bool), None)
    return _steps(op, ins, Filters(1, w.dims[1], 1, w.dims[0]), rows, lambda a: a.T[:, None], context)
