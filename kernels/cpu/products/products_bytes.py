"""Steps that products and convolutions of bytes share: packed weights, numbers of columns, the sweep."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.selects import either
from bolt_numba.base.types import F32, I8, I32, U8, Array, TensorType
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES
from bolt_numba.kernels.cpu.products.epilogue import finish
from bolt_numba.kernels.cpu.products.epilogue_bytes import BYTE_RESIDUAL, FLOAT_RESIDUAL, NO_RESIDUAL
from bolt_numba.kernels.cpu.products.matmul import is_parallel
from bolt_numba.kernels.cpu.products.pack import aligned_empty, aligned_zeros, run_shares
from bolt_numba.kernels.cpu.products.pack_bytes import (
    BYTE_RESULTS,
    COLUMN_ROWS,
    ENDS,
    FLOATS,
    SUMS,
    flip_bytes,
    flips,
    pack_bytes,
    prepare_columns,
)
from bolt_numba.kernels.cpu.products.sweep import choose_share
from bolt_numba.kernels.cpu.products.sweep_bytes import BLOCK_FIELDS, choose_span, scratch_bytes, sweep_bytes
from bolt_numba.kernels.geometry.bytes import OperandPlaces, given, operand, sides
from bolt_numba.kernels.registry import Argument, Context, In, Out, Pitch, Scratch, Step, Types
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.layers.products.conv import Convolution
from bolt_numba.ops.layers.products.integer_products import ByteProduct

NO_ZERO = np.zeros(1, np.uint8)
ONE = np.ones(1, np.float32)


def by_rows(op: ByteProduct, ins: Types, at: OperandPlaces) -> tuple[bool, bool]:
    """Whether zero points, and scales, of A are numbers of rows, which the sweep uses; else the columns' numbers do.

    So are those that only the run tells where a matrix product gives floats: the columns' numbers are constant then.
    Convolutions have numbers of images, and columns for each.
    """
    if isinstance(op, Convolution):
        return False, False
    scale, zero = given(ins, at.scale_a), given(ins, at.zero_a)
    floats = at.scale_y is not None and given(ins, at.scale_y) is None
    scales = floats and scale is not None and (scale.size > 1 or scale.known is None)
    return zero is not None and (zero.size > 1 or (scales and zero.known is None)), scales


@record(frozen=True)
class Panels:
    """B as `pack_bytes` makes it: ``blocks`` matrices of ``n`` columns and runs * length rows."""

    blocks: int
    runs: int
    length: int
    n: int

    @property
    def columns(self) -> int:
        """Vectors of columns."""
        return -(-self.n // LANES)

    @property
    def head(self) -> int:
        """Bytes of the sums before the panels."""
        return self.blocks * self.columns * BYTES

    @property
    def block(self) -> int:
        """Bytes of one matrix."""
        return self.columns * BYTES * self.runs * -(-self.length // 4)

    def values(self, flip: bool, row: int) -> dict[str, Argument]:
        return {
            "flip": flips(flip), "blocks": self.blocks, "block": self.runs * self.length * row, "row": row,
            "runs": self.runs, "length": self.length, "n": self.n,
        }  # fmt: skip

    def packed(self, context: Context, b: TensorType, key: Hashable, matrix: Callable[[Array], Array]) -> Any:
        """Constant weights, packed once; matrix: to [..., rows, n]."""

        def pack(array: Array) -> Array:
            source = np.ascontiguousarray(matrix(array))
            to = aligned_empty(((self.head + self.blocks * self.block) // 4,))
            run_shares(pack_bytes, context.threads, to.nbytes, b=source, to=to, **self.values(b.dtype == U8, self.n))
            return to

        return context.packed(b.known, ("bytes", key, self), pack)


@record(frozen=True)
class RowTables:
    """Rows of A and of the result, see `sweep_bytes`.

    offsets: byte offset of A, block of B, first column and first row of C, and image whose numbers hold for each
    block.  image: what is read instead of the node's operand.  inside: no tap is outside.
    """

    offsets: Array
    m: int
    k: int
    lda: int
    table: Array | None = None
    taps: int = 1
    depth: int = 0
    image: Scratch | None = None
    inside: bool = False

    @property
    def shifts(self) -> Array | None:
        """Bytes from the first tap of a row to each."""
        if self.table is None or not self.inside or self.copied or not self.table.size:
            return None
        made: Array = (self.table[:, 0] - self.table[0, 0]).astype(np.int64) * self.lda
        return made

    @property
    def copied(self) -> bool:
        """Whether runs are too short to be read where they are."""
        return (self.taps > 1 and self.depth < SHORT_RUN) or self.depth < 4


SHORT_RUN = 8
"""Bytes of a run under which rows are copied first."""


def panels_of(rows: RowTables, blocks: int, n: int) -> Panels:
    return Panels(blocks, 1, rows.k, n) if rows.copied else Panels(blocks, rows.taps, rows.depth, n)


def has_zero(b: TensorType, zero: TensorType | None) -> bool:
    """Whether a zero point of B may differ from that of the signed bytes which are multiplied."""
    nothing = 128 if b.dtype == U8 else 0
    if zero is None:
        return nothing != 0
    return zero.known is None or bool((content(zero.known) != nothing).any())


def _flip(t: TensorType | None, unsigned: bool = True) -> int:
    """The bit that turns bytes into unsigned ones, or into signed ones."""
    return 128 if t is not None and t.dtype == (I8 if unsigned else U8) else 0


def column_step(
    op: ByteProduct, ins: Types, at: OperandPlaces, panels: Panels, k: int, packed: Argument, length: int
) -> Step:
    """`prepare_columns`; packed: begins with the sums of the columns; length: of zero points of each image."""
    a, b, zero_a, zero_b, bias = (given(ins, i) for i in (at.a, at.b, at.zero_a, at.zero_b, at.bias))
    scale_a, scale_b, done = given(ins, at.scale_a), given(ins, at.scale_b), finish(getattr(op, "activation", None))
    rows, scales = by_rows(op, ins, at)
    zeros = 1 if zero_a is None or rows else zero_a.size
    factors = 1 if scale_a is None or scales else scale_a.size
    images = max(zeros, factors)
    return Step(prepare_columns, {
        "sums": packed, "to": Scratch(ENDS + images * panels.blocks * COLUMN_ROWS * panels.columns * BYTES),
        "images": images, "blocks": panels.blocks, "n": panels.n, "k": k,
        "zero_a": NO_ZERO if zero_a is None or rows else In(at.zero_a), "zeros_a": zeros, "flip_a": _flip(a),
        "zero_b": NO_ZERO if zero_b is None else In(at.zero_b), "zeros_b": 1 if zero_b is None else zero_b.size,
        "flip_b": _flip(b, False), "bias": operand(ins, at.bias),
        "biases": 0 if bias is None else bias.size, "floats": int(bias is not None and bias.dtype != I32),
        "scale_a": ONE if scales else operand(ins, at.scale_a), "scales_a": factors,
        "scale_b": operand(ins, at.scale_b), "scales_b": 1 if scale_b is None else scale_b.size,
        "scale_y": operand(ins, at.scale_y), "zero_y": operand(ins, at.zero_y),
        "flip_y": _flip(given(ins, at.zero_y), False), "lo": done.lo, "hi": done.hi,
        "activated": int(done.act is not None), "scale_r": operand(ins, at.scale_r), "zero_r": operand(ins, at.zero_r),
        "flip_r": _flip(given(ins, at.zero_r)), "rows": int(rows),
        "outside": Scratch(images * length) if length else None, "length": length,
    }, False)  # fmt: skip


def columns_of(
    op: ByteProduct,
    ins: Types,
    at: OperandPlaces,
    panels: Panels,
    k: int,
    packed: Argument,
    length: int,
    context: Context,
) -> tuple[Argument, Argument, list[Step]]:
    """What `prepare_columns` makes, ``length`` zero points of each image, and the step that makes both at run time.

    Where all that it reads is constant there is no step: the numbers are packed.
    """
    step = column_step(op, ins, at, panels, k, packed, length)
    read = {name: given(ins, arg.index) for name, arg in step.args.items() if isinstance(arg, In)}
    known = {name: None if t is None else t.known for name, t in read.items()}
    b, zero = given(ins, at.b), known.get("zero_a", NO_ZERO)
    if b is None or b.known is None or isinstance(packed, Scratch) or any(v is None for v in known.values()):
        return step.args["to"], step.args["outside"], [step]
    made, images = step.args["to"], step.args["images"]
    assert isinstance(made, Scratch)
    assert isinstance(images, int)

    def pack(sums: Array, *given: Array) -> Array:
        to = aligned_zeros((made.nbytes // 4,))
        fields = {name: 0 if arg is None else arg for name, arg in step.args.items()}
        values = {name: np.ascontiguousarray(array) for name, array in zip(known, given, strict=True)}
        run_shares(prepare_columns, 1, 0, **{**fields, **values, "sums": sums, "to": to, "outside": 0, "length": 0})
        return to

    rest = tuple(v for v in step.args.values() if isinstance(v, (int, float)))
    columns = context.packed((packed, *known.values()), ("columns", panels, rest, *known), pack)
    if not length:
        return columns, None, []
    zeros = content(zero).reshape(-1).view(np.uint8) ^ np.uint8(_flip(given(ins, at.a)))
    return columns, np.resize(np.repeat(zeros, length), images * length), []


def unsigned_step(a: TensorType, source: In | Scratch, context: Context) -> tuple[In | Scratch, list[Step]]:
    """The bytes of A as unsigned ones, and the step that makes these."""
    if a.dtype != I8:
        return source, []
    size = source.nbytes if isinstance(source, Scratch) else a.nbytes
    to = Scratch(size)
    return to, [Step(flip_bytes, {"x": source, "to": to, "n": size}, is_parallel(context, 0, 2 * size))]


def finish_args(op: ByteProduct, ins: Types, at: OperandPlaces) -> dict[str, Argument]:
    """What sweeps need to know of zero points, and `epilogue_bytes.FIELDS`."""
    a, b = sides(ins, at)
    zero_a, residual = given(ins, at.zero_a), given(ins, at.residual)
    kind = SUMS if at.scale_y is None else FLOATS if given(ins, at.scale_y) is None else BYTE_RESULTS
    more = NO_RESIDUAL if residual is None else FLOAT_RESIDUAL if residual.dtype == F32 else BYTE_RESIDUAL
    done, more_at = finish(getattr(op, "activation", None)), operand(ins, at.residual)
    rows, scales = by_rows(op, ins, at)
    scale = given(ins, at.scale_a) if scales else None
    return {
        "sums": int(has_zero(b, given(ins, at.zero_b))), "flip_a": _flip(a),
        "zero_a": NO_ZERO if zero_a is None else In(at.zero_a), "zeros_a": zero_a.size if rows and zero_a else 0,
        "kind": kind, "quick": int(kind == BYTE_RESULTS and done.act is None and more != FLOAT_RESIDUAL),
        "scale_a": operand(ins, at.scale_a) if scale else None, "scales_a": scale.size if scale else 0,
        "res": more_at, "ldr": 0 if more_at is None else Pitch(more_at),
        "residual": more, "flip_r": _flip(residual), **done.args,
    }  # fmt: skip


def product_steps(
    op: ByteProduct, ins: Types, at: OperandPlaces, rows: RowTables, panels: Panels, packed: Argument, context: Context
) -> list[Step]:
    """The numbers of the columns, and the sweep."""
    a, b = sides(ins, at)
    source, steps = unsigned_step(a, In(at.a) if rows.image is None else rows.image, context)
    length = 0 if rows.table is None else rows.depth
    columns, outside, made = columns_of(op, ins, at, panels, rows.k, packed, length, context)
    blocks, span, runs = len(rows.offsets), choose_span(rows.m, rows.k), panels.runs
    copy_step = 64 * (-(-rows.k // 64) | 1) if rows.copied else 0
    threads = either(is_parallel(context, blocks * rows.m * rows.k * panels.n // 2, b.nbytes), context.threads, 1)
    per_thread = scratch_bytes(span, runs, copy_step)
    offsets = np.empty((blocks, BLOCK_FIELDS), np.int64)
    offsets[:, 0], offsets[:, 3:5] = rows.offsets[:, 0], rows.offsets[:, 2:4]
    offsets[:, 1] = panels.head + panels.block * rows.offsets[:, 1]
    image = rows.offsets[:, 4]
    offsets[:, 2] = ENDS + COLUMN_ROWS * panels.columns * BYTES * (image * panels.blocks + rows.offsets[:, 1])
    offsets[:, 5] = image * length
    ends = finish_args(op, ins, at)
    if ends["kind"] == FLOATS and ends["residual"] == NO_RESIDUAL and not ends["act"]:
        ends["quick"] = FLOATS
    args: dict[str, Argument] = {
        "a": source, "lda": rows.lda, "b": packed, "c": Out(0),
        "ldc": Pitch(Out(0)), "blocks": blocks,
        "offsets": offsets, "m": rows.m, "n": panels.n, "table": rows.table, "shifts": rows.shifts,
        "taps": rows.taps, "depth": rows.depth,
        "length": -(-rows.k // 4) * 4 if rows.copied else rows.depth, "copied": int(rows.copied), "outside": outside,
        "columns": columns, **ends,
        "scratch": Scratch(threads * per_thread), "scratch_step": per_thread, "copy_step": copy_step, "span": span,
        "share": choose_share(blocks, rows.m, panels.n, rows.k, threads),
    }  # fmt: skip
    return [*steps, *made, Step(sweep_bytes, args, threads > 1)]


def pack_step(panels: Panels, index: int, b: TensorType, context: Context) -> Step:
    """Pack an operand [..., rows, n] at run time."""
    to = Scratch(panels.head + panels.blocks * panels.block)
    values = panels.values(b.dtype == U8, panels.n)
    return Step(pack_bytes, {"b": In(index), "to": to, **values}, is_parallel(context, 0, 2 * b.nbytes))
