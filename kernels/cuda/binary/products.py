"""Convolutions and products of bits: a thread counts the bits of one result, word by word.

A product of -1 and 1 is -1 where bits differ, so a sum of n of them is n less twice their count.  Neighbours of a warp
have neighbouring filters, whose words are dense, and vote where results are bits again.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.kernels.cuda.convolution.axes import ConvAxis, axes_of
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elementwise.epilogue import (
    ACTIVATION_FIELDS,
    activation,
    activation_args,
    can_activate,
    no_activation,
)
from bolt_numba.kernels.cuda.language.lang import (
    cuda,
    load_f32,
    load_i32_nc,
    load_u32,
    load_u32_nc,
    multiply_apart,
    store_f32,
    store_u32,
)
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel, result_of
from bolt_numba.ops.layers.products.binary import (
    WORD,
    BinaryConv,
    BinaryMatMul,
    BinaryProduct,
    magnitudes,
    packed_bits,
    words_of,
)

u32, i32, i64 = np.uint32, np.int32, np.int64
ALL = 0xFFFFFFFF
_AXES, _FIELDS = "dhw", ("size", "out", "stride", "dilation", "pad")
_FIELDS_OF_ALL: dict[str, Any] = {
    **dict.fromkeys(("x", "w", "sums", "magnitude", "y"), PTR),
    **dict.fromkeys(("bias", "res", "thresholds"), PTR_OR_0),
    **dict.fromkeys(("row", "words", "apart", "bits", "outside", "k", "kg"), I64),
    **ACTIVATION_FIELDS, **{f"taps{a}": I64 for a in _AXES}, **{f"{f}{a}": I64 for a in _AXES for f in _FIELDS},
}  # fmt: skip


@record(frozen=True)
class BitForm:
    """zero_one: a bit is 0 or 1, else -1 or 1 · packs: of how many a value is the mean · is_bits: results are."""

    zero_one: bool
    packs: int
    is_bits: bool
    activate: Any

    def __str__(self) -> str:
        return f"{self.packs}{'_zero_one' * self.zero_one}{'_to_bits' * self.is_bits}"


@inline
def differing(a, b):
    """Half of what a word takes off the number of its bits."""
    return i32(cuda.popc(u32(a ^ b)))


@inline
def common(a, b):
    return i32(cuda.popc(a)) - 2 * i32(cuda.popc(u32(a & b)))


def _extents(a: Numbers, form: BitForm) -> dict[str, Any]:
    taps, pixels = a.tapsd * a.tapsh * a.tapsw, a.images * a.outd * a.outh * a.outw
    return {
        "x": 4 * a.images * a.sized * a.sizeh * a.sizew * a.row, "w": 4 * taps * a.words * a.k,
        "sums": 4 * taps * a.k, "magnitude": 4 * a.k, "bias": 4 * a.k, "res": 4 * pixels * a.k,
        "thresholds": 4 * a.k, "y": 4 * pixels * (words_of(a.k) if form.is_bits else a.k),
    }  # fmt: skip


@elements(
    over={"image": "images", **{f"o{a}": f"out{a}" for a in _AXES}, "filter_": "padded"}, extents=_extents,
    **_FIELDS_OF_ALL,
)  # fmt: skip
def count_bits(on: DeviceParts, form: BitForm):  # budget: with its body
    """Fields.  A warp takes neighbouring filters of one pixel: ``padded`` is k in whole warps.

    x: [images, sized, sizeh, sizew, row] u32, packs of words · w: [taps, words, k] u32, a group's filters ·
    sums: i32 [taps, k], of the signs of each tap · words: of a group · apart: words from one pack to the next ·
    bits: of a tap · outside: -1, 0 or 1 · magnitude, bias: f32 [k] · thresholds: i32 [k] · the rest: see `ConvAxis`.
    """
    PACKS, IS_BITS, activate = form.packs, form.is_bits, form.activate
    count, FULL = (common, 0) if form.zero_one else (differing, form.packs)
    FACTOR = -1 if form.zero_one else -2
    SHARE = np.float32(1 / form.packs)

    @inline
    def element(
        image, od, oh, ow, filter_, outd, outh, outw, x, w, sums, magnitude, bias, res, thresholds, y, row, words,
        apart, bits, outside, k, kg, act0, act1, tapsd, tapsh, tapsw, sized, strided, dilationd, padd, sizeh, strideh,
        dilationh, padh, sizew, stridew, dilationw, padw,
    ):  # fmt: skip
        column, pixel = min(filter_, k - 1), ((image * outd + od) * outh + oh) * outw + ow
        source = x + 4 * words * i64(u32(u32(column) // u32(kg)))
        total = i32(0)
        for tap in range(tapsd * tapsh * tapsw):
            above, tw = divided(u32(tap), tapsw)
            td, th = divided(above, tapsh)
            d, h = od * strided + i64(td) * dilationd - padd, oh * strideh + i64(th) * dilationh - padh
            v = ow * stridew + i64(tw) * dilationw - padw
            if d >= 0 and h >= 0 and v >= 0 and d < sized and h < sizeh and v < sizew:
                at = source + 4 * row * (((image * sized + d) * sizeh + h) * sizew + v)
                found, own = i32(0), w + 4 * (tap * words * k + column)
                for c in range(words):
                    b = load_u32_nc(own + 4 * c * k)
                    for p in range(PACKS):
                        found += count(load_u32(at + 4 * (c + p * apart)), b)
                total += i32(FACTOR * found + FULL * bits)
            elif outside != 0:
                total += i32(PACKS * outside * load_i32_nc(sums + 4 * (tap * k + column)))
        if IS_BITS:
            bit = filter_ < k and total >= i32(PACKS) * load_i32_nc(thresholds + 4 * column)
            made = u32(cuda.ballot_sync(ALL, bit))
            if filter_ & 31 == 0:
                store_u32(y + 4 * (pixel * ((k + 31) >> 5) + (filter_ >> 5)), made)
        elif filter_ < k:
            made = multiply_apart(np.float32(total) * SHARE, load_f32(magnitude + 4 * column))
            if bias != 0:
                made += load_f32(bias + 4 * column)
            if res != 0:
                made += load_f32(res + 4 * (pixel * k + column))
            store_f32(y + 4 * (pixel * k + column), activate(made, act0, act1))

    return element


@inline
def divided(i, by):
    """Quotient and remainder."""
    q = u32(i // u32(by))
    return q, u32(i - q * u32(by))


def signs(w: Array) -> Array:
    """Filters [k, channels, taps] to words [taps, words, k] of the bits of their signs."""
    return np.ascontiguousarray(packed_bits(w > 0, 1).transpose(2, 1, 0))


def sign_sums(w: Array) -> Array:
    """Filters [k, channels, taps] to the sums of signs of each tap [taps, k]."""
    return np.ascontiguousarray(np.where(w > 0, 1, -1).sum(1, dtype=np.int32).T)


def _accepts(op: BinaryProduct, ins: Types) -> bool:
    """Static operands, constant weights."""
    if not all(t.is_static and 0 < t.size < 1 << 31 for t in ins if t is not None):
        return False
    w = ins[1]
    return w.known is not None and can_activate(op.activation) and 0 < result_of(op, ins).size < 1 << 26


def _accepts_conv(op: BinaryConv, ins: Types) -> bool:
    """Channels last, groups of whole words."""
    w = ins[1]
    if op.layout != "NHWC" or len(w.dims) > 5:
        return False
    return _accepts(op, ins) and (op.group == 1 or w.dims[1] % WORD == 0)


def _steps(
    op: BinaryProduct,
    ins: Types,
    context: Context,
    axes: Sequence[ConvAxis],
    images: int,
    group: int,
    channels: int,
    filters: Any,
) -> list[Step]:
    """filters: of the weights [k, channels of a group, taps]."""
    x, w = ins[0], ins[1]
    bias, res, thresholds = (*ins, None, None, None)[2:5]
    k, row = w.dims[isinstance(op, BinaryMatMul)], x.dims[-1]
    words = words_of(channels)
    form = BitForm(
        op.zero_one,
        row // (words * group),
        thresholds is not None,
        no_activation if thresholds is not None else activation(op.activation),
    )

    def packed(name: str, pack: Any) -> Any:
        return context.packed(w.known, ("cuda bits", name), lambda array: pack(filters(array)))

    args: dict[str, Argument] = {
        "x": In(0), "w": packed("signs", signs), "sums": packed("sums", sign_sums),
        "magnitude": packed("magnitude", lambda v: magnitudes(v, 0).astype(np.float32)),
        "bias": None if bias is None else In(2), "res": None if res is None else In(3),
        "thresholds": None if thresholds is None else In(4), "y": Out(), "images": images, "row": row, "words": words,
        "apart": words * group, "bits": channels, "outside": getattr(op, "outside", 0), "k": k, "kg": k // group,
        "padded": words_of(k) * WORD,
        **activation_args(op.activation),
    }  # fmt: skip
    for letter, a in zip(_AXES, axes, strict=True):
        numbers = (a.size, a.out, a.stride, a.dilation, a.pad)
        args |= {f"{field}{letter}": n for field, n in zip(_FIELDS, numbers, strict=True)} | {f"taps{letter}": a.kernel}
    return [PARTS.step(count_bits, (form,), args)]


@kernel(BinaryConv, device="cuda", accepts=_accepts_conv)
def binary_conv(op: BinaryConv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Counts of bits at what filters see."""
    x, w = ins[0], ins[1]
    axes = axes_of(op, x, w.dims[2:], outs[0])
    return _steps(op, ins, context, axes, x.dims[0], op.group, w.dims[1], lambda v: v.reshape(*v.shape[:2], -1))


@kernel(BinaryMatMul, device="cuda", accepts=_accepts)
def binary_matmul(op: BinaryMatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """The same of rows, as images of one pixel."""
    x, w = ins[0], ins[1]
    rows = math.prod(x.dims[:-1])
    return _steps(op, ins, context, (ConvAxis(1, 1),) * 3, rows, 1, w.dims[0], lambda v: v.T[:, :, None])
