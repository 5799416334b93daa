"""Convolutions of bytes: sums in i32 by tensor cores, or by a thread for each result where groups are narrow.

Weights less their zero points may need nine bits.  What a byte cannot hold is then the weights of more taps, which look
at the same pixels.  The zero point of the image is a number that is added to the sums of a column: outside the image is
what stands for 0, so every sum meets all weights.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I8, Array, TensorType, dtype_name
from bolt_numba.kernels.cuda.convolution.axes import axes_of
from bolt_numba.kernels.cuda.convolution.conv import is_wide_enough, warp_tile
from bolt_numba.kernels.cuda.convolution.direct import Direct, direct_args, direct_step
from bolt_numba.kernels.cuda.convolution.reading import MOST_TAPS, reading_args, window_phase
from bolt_numba.kernels.cuda.convolution.tail import Ending
from bolt_numba.kernels.cuda.convolution.tensor import Lines, conv_lines, pack_lines, widened_channels
from bolt_numba.kernels.cuda.declare import ceil_div, inline
from bolt_numba.kernels.cuda.elementwise.epilogue import activation, activation_args, can_activate
from bolt_numba.kernels.cuda.elementwise.scalars import quantised
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import load_f32_nc, load_i32_nc, multiply_apart
from bolt_numba.kernels.cuda.products.tail_bytes import BYTE_RANGES
from bolt_numba.kernels.geometry.bytes import (
    OperandPlaces,
    are_plain,
    are_single,
    given,
    places_of,
    sides,
    sums_are_exact,
)
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel, result_of
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.products.integer_products import ByteConv, ConvInteger, QLinearConv, is_fused, scale_ratio

i32, f32 = np.int32, np.float32


def number(ins: Types, at: int) -> Any:
    """The only element of a constant; 0 where there is none."""
    t = given(ins, at)
    return 0 if t is None or t.known is None else t.known.reshape(-1)[0]


# ------------------------------------------------------------------------------------------------------------- endings


@inline
def plain_sum(v, column, at, tail, act0, act1):
    """tail: of all endings, addresses of bias, residual, columns, factors, scales."""
    return i32(v) + load_i32_nc(tail[2] + 4 * column)


@functools.cache
def byte_ending(y: str, residual: str, bias: bool, activate: Any) -> Ending:
    """Real numbers, or bytes where ``y`` is a dtype of bytes; residual: its dtype, "" where there is none.

    bias: whether f32 are added to the real numbers.  activate: None where what follows is no more than ONNX's.
    """
    load_residual, size = getattr(lang, f"load_{residual or 'f32'}"), lang.SIZES[residual or "f32"]
    is_fused_one, is_byte_residual = activate is not None, residual in ("i8", "u8")
    low, high = map(f32, BYTE_RANGES.get(y, (0.0, 0.0)))
    act = activate or inline(lambda v, act0, act1: v)
    has_residual, cast = residual != "", np.int8 if y == "i8" else np.uint8

    @inline
    def real(v, column, at, tail, act0, act1):
        v = multiply_apart(f32(i32(v) + load_i32_nc(tail[2] + 4 * column)), load_f32_nc(tail[3] + 4 * column))
        if bias:
            v += load_f32_nc(tail[0] + 4 * column)
        if has_residual:
            other = f32(load_residual(tail[1] + size * at))
            if is_byte_residual:
                other = multiply_apart(other - load_f32_nc(tail[4] + 12), load_f32_nc(tail[4] + 8))
            v += other
        return act(v, act0, act1)

    @inline
    def stored(v, column, at, tail, act0, act1):
        made, scale = real(v, column, at, tail, act0, act1), load_f32_nc(tail[4]) if is_fused_one else f32(1)
        return cast(quantised(made, scale, load_f32_nc(tail[4] + 4), low, high))

    return Ending("i32", y, real if y == "f32" else stored)


INTEGERS = Ending("i32", "i32", plain_sum)


# ------------------------------------------------------------------------------------------------------------- weights


def centred(w: Array, zero: Any) -> Array:
    """Weights [k, c/g, taps] less their zero points, i32; zero: one, or one per filter."""
    return w.reshape(*w.shape[:2], -1).astype(np.int32) - np.asarray(zero).astype(np.int32).reshape(-1, 1, 1)


def in_bytes(w: Array) -> list[Array]:
    """Arrays of i8 whose sum is w."""
    parts = []
    while True:
        part = np.clip(w, -128, 127)
        parts.append(part.astype(np.int8))
        w = w - part
        if not w.any():
            return parts


def known(t: TensorType) -> Array:
    """Of a constant."""
    return content(t.known)  # type: ignore[no-any-return]


def zero_of(ins: Types, at: OperandPlaces) -> Array:
    t = given(ins, at.zero_b)
    return np.zeros(1, np.int32) if t is None or t.known is None else content(t.known)


def accepts_bytes(op: ByteConv, ins: Types) -> bool:
    """Channels last; constant filters, scales and zero points; sums that fit."""
    at = places_of(op)
    if op.layout != "NHWC" or not are_plain(ins, at) or not can_activate(getattr(op, "activation", None)):
        return False
    x, w = sides(ins, at)
    numbers = [*ins[4:9], *ins[10:]] if at.bias else []  # of a QLinearConv, without the residual
    constants = [w, given(ins, at.scale_a), given(ins, at.zero_a), given(ins, at.zero_b), *numbers]
    if any(t is not None and t.known is None for t in constants) or len(w.dims) > 5:
        return False
    if not are_single(ins, at.zero_a, at.scale_a):
        return False  # those of images
    if not all(0 < t.size <= MAX_I32 for t in (x, w, result_of(op, ins))):
        return False
    return sums_are_exact(ins, at, math.prod(w.dims[1:]))


@record(frozen=True)
class BytesEnd:
    """How a node's sums end: the ending, sizes of elements of bias and residual, and the arguments."""

    ending: Ending
    bias: int
    residual: int
    args: dict[str, Argument]


def ending_of(op: ByteConv, ins: Types, y: TensorType, zeros: Array) -> BytesEnd:
    """zeros: i32 [k], which columns add to their sums for the zero point of x."""
    nothing: dict[str, Argument] = {"bias": None, "res": None, "factors": None, "scales": None}
    if isinstance(op, ConvInteger):
        return BytesEnd(INTEGERS, 4, 4, {**nothing, "columns": zeros, **activation_args(None)})
    y_scale, bias, residual = (given(ins, i) for i in (6, 8, 9))
    fused, k = is_fused(op, y_scale, bias), len(zeros)
    target = np.asarray(number(ins, 6) if y_scale is not None and not fused else 1, np.float32)
    factors = scale_ratio(np.asarray(ins[1].known).reshape(()), np.asarray(content(ins[4].known)).reshape(-1), target)
    columns, floats = zeros, bias is not None and bias.dtype == F32
    if bias is not None and not floats:
        columns = (zeros.astype(np.int64) + np.asarray(content(bias.known))).astype(np.int32)
    scales = np.array(
        [number(ins, 6) if y_scale is not None else 1, number(ins, 7), number(ins, 10), number(ins, 11)], F32
    )
    activate = activation(op.activation) if fused else None
    kind = "" if residual is None else dtype_name(residual.dtype)
    args: dict[str, Argument] = {
        "bias": In(8) if floats else None, "res": None if residual is None else In(9), "columns": columns,
        "factors": np.ascontiguousarray(np.broadcast_to(factors.astype(np.float32), k)), "scales": scales,
        **activation_args(op.activation),
    }  # fmt: skip
    return BytesEnd(byte_ending(dtype_name(y.dtype), kind, floats, activate), 4, lang.SIZES[kind or "f32"], args)


def _operands(op: ByteConv, ins: Types) -> tuple[OperandPlaces, TensorType, TensorType, Array]:
    """Where operands stand, image, filters, and their weights less their zero points."""
    at = places_of(op)
    x, w = sides(ins, at)
    return at, x, w, centred(known(w), zero_of(ins, at))


def accepts_tensor(op: ByteConv, ins: Types) -> bool:
    if not accepts_bytes(op, ins):
        return False
    _, _, w, filters = _operands(op, ins)
    few = math.prod(w.dims[2:]) * len(in_bytes(filters)) <= MOST_TAPS
    return few and is_wide_enough(op.group, w.dims[1], w.dims[0] // op.group)


@kernel(ConvInteger, QLinearConv, device="cuda", accepts=accepts_tensor, rank=5)
def bytes_product(op: ByteConv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Tensor cores multiply bytes."""
    at, x, w, filters = _operands(op, ins)
    y, (k, cg), group = outs[0], w.dims[:2], op.group
    axes = axes_of(op, x, w.dims[2:], y)
    phase, zero = window_phase(axes), int(number(ins, at.zero_a))
    parts = in_bytes(filters)
    wide, runs = ceil_div(cg, 16) * 16, x.size // cg
    image: Argument = In(at.a)
    steps = []
    if wide != cg:
        image = Scratch(runs * wide)
        kernel_of = widened_channels(dtype_name(x.dtype))
        steps.append(Step(kernel_of, {"x": In(at.a), "y": image, "runs": runs, "cg": cg, "wide": wide}))

    def pack(array: Array) -> Array:
        flat = np.concatenate(in_bytes(centred(array, zero_of(ins, at))), axis=2)
        return pack_lines(flat, group, list(range(flat.shape[2])), wide)

    zeros = (-zero * filters.sum((1, 2), dtype=np.int64)).astype(np.int32)
    end = ending_of(op, ins, y, zeros)
    key = ("cuda bytes", group, wide, zero_of(ins, at).tobytes())
    reading = reading_args(phase, axes, x.dims[0], wide, k // group, group, len(parts))
    of = Lines("s8" if x.dtype == I8 else "u8s8", 1, end.ending, math.prod(w.dims[2:]) * len(parts) > 31, False)
    args: dict[str, Argument] = {
        "x": image, "w": context.packed(w.known, key, pack), "y": Out(), "ldy": k, **reading, **end.args,
        "outside": np.full(16, zero, x.dtype),
    }  # fmt: skip
    tile = warp_tile(y.size // k, k // group, group)
    return [*steps, Step(conv_lines(tile, of, end.bias, end.residual), args)]


@kernel(ConvInteger, QLinearConv, device="cuda", accepts=accepts_bytes, rank=0)
def bytes_direct(op: ByteConv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """One thread an element, for narrow groups."""
    at, x, w, _ = _operands(op, ins)
    y = outs[0]
    end = ending_of(op, ins, y, np.zeros(w.dims[0], np.int32))

    def pack(array: Array) -> Array:
        return np.ascontiguousarray(centred(array, zero_of(ins, at)).astype(np.int16).transpose(1, 2, 0))

    args: dict[str, Argument] = {
        "x": In(at.a), "w": context.packed(w.known, ("cuda direct", zero_of(ins, at).tobytes()), pack), "y": Out(),
        "zero": int(number(ins, at.zero_a)), **direct_args(op, x, w, y), **end.args,
        "wk": 1, "wc": math.prod(w.dims[2:]) * w.dims[0], "wt": w.dims[0],
    }  # fmt: skip
    return [direct_step(Direct(dtype_name(x.dtype), "i16", end.ending, True, False, end.bias, end.residual), args)]
