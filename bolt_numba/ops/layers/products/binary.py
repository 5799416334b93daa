"""Binary layers: twofold values stored as bits, and products of them with weights of one magnitude a filter."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.types import F32, I32, U32, Array, Dim, Shape, TensorType
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.dtypes import same_dtype
from bolt_numba.ops.layers.products.conv import Convolution, along_channels
from bolt_numba.ops.layers.products.matmul import finish, matmul_shape, multiplied, want_activation, want_residual
from bolt_numba.ops.registry import Op, normalise_axis, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import want_dims
from bolt_numba.ops.windows import as_layout, channels_first

OptionalArray: TypeAlias = "Array | None"
OptionalType: TypeAlias = "TensorType | None"
WORD = 32
"""Bits of a word."""
_PLAIN: dict[str, Any] = {"gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal}


def _negated(test: Any) -> Any:
    return lambda x, bound: ~test(x, bound)


COMPARES = _PLAIN | {f"not_{name}": _negated(test) for name, test in _PLAIN.items()}
"""What a bit may say.  The negated ones hold for NaN."""
SIGN = "sign"
MOST_BITS = 1 << 22
"""Of a sum, so that f32 holds all sums."""
PACKED = f"{VALUES}; bits behind the last channel are 0, or they count in the sums"
PACKS = {name: (name,) for name in COMPARES} | {SIGN: ("gt", "not_lt")}
"""Comparisons of each pack, by the operator's attribute."""


def words_of(bits: int) -> int:
    """Words that hold so many bits."""
    return -(-bits // WORD)


def packed_bits(bits: Array, axis: int) -> Array:
    """Bools as u32 words along an axis, the first in the lowest place; the rest of the last word is 0."""
    last = np.moveaxis(bits, axis, -1)
    full = np.zeros((*last.shape[:-1], words_of(last.shape[-1]) * WORD), bool)
    full[..., : last.shape[-1]] = last
    words = np.packbits(full, axis=-1, bitorder="little").view("<u4").astype(U32, copy=False)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def unpacked_values(words: Array, channels: int, axis: int, zero_one: bool) -> Array:
    """What words stand for, as f32: 0 and 1, or -1 and 1; two packs of one value each stand for their mean."""
    last = np.ascontiguousarray(np.moveaxis(words, axis, -1).astype("<u4", copy=False))
    packs = last.shape[-1] // max(words_of(channels), 1)
    bits = np.unpackbits(last.view(np.uint8), axis=-1, bitorder="little")
    bits = bits.reshape(*last.shape[:-1], packs, words_of(channels) * WORD)[..., :channels]
    ones = bits.sum(axis=-2, dtype=np.float32)
    made = ones if zero_one else ones * np.float32(2 / packs) - np.float32(1)
    return np.moveaxis(made, -1, axis)


def signs_of(w: Array) -> Array:
    """1 where a weight is positive, else -1, as f32."""
    return np.where(w > 0, np.float32(1), np.float32(-1))


def magnitudes(w: Array, axis: int) -> Array:
    """Magnitude of the first weight of each filter, which lie along ``axis``."""
    filters = np.moveaxis(w, axis, 0)
    if not filters.size:
        return np.zeros(len(filters), w.dtype)
    return np.asarray(np.abs(filters.reshape(len(filters), -1)[:, 0]))


def want_packs(owner: Op, what: Dim, channels: Dim, zero_one: bool) -> None:
    """Raise ShapeError unless a dimension holds the words of one pack of ``channels`` bits, or of two."""
    if not isinstance(channels, int):
        raise owner.fail("w", channels, "a known number of input channels")
    one = words_of(channels)
    wanted = (one,) if zero_one else (one, 2 * one)
    if isinstance(what, int) and what not in wanted:
        raise owner.fail("words of x", what, " or ".join(map(str, wanted)) + f" for {channels} channels")


@op("BinaryPack")
class BinaryPack(Op):
    """Bits of a comparison along an axis, 32 to a u32 word, the first in the lowest place; the rest is 0.

    x: [..., c, ...] f32 · bound: [c] or [1] f32 -> [..., words, ...].  compare: "gt" for x > bound, "ge", "lt" or "le",
    which NaN does not, or the opposite, "not_gt" ...  "sign": two packs, one behind the other, of x > bound and of not
    x < bound: where they differ x is the bound, whose sign is 0.  Internal: made by stage recognise.
    """

    axis: int = -1
    compare: str = "gt"

    def infer(self, x: TensorType, bound: TensorType) -> TensorType:
        want_dtype(self, "x", same_dtype(self, x, bound), F32)
        want_among(self, PACKS, compare=self.compare)
        if x.shape is None:
            return TensorType(U32, None)
        axis = normalise_axis(self, self.axis, len(x.shape))
        channels = x.shape[axis]
        if not isinstance(channels, int):
            raise self.fail("x", x, "a known size along the axis")
        if bound.shape is not None and bound.shape not in ((1,), (channels,)):
            raise self.fail("shape of bound", bound, f"[1] or [{channels}]")
        packs = len(PACKS[self.compare])
        return TensorType(U32, (*x.shape[:axis], packs * words_of(channels), *x.shape[axis + 1 :]))

    def reference(self, x: Array, bound: Array) -> Array:
        axis = normalise_axis(self, self.axis, x.ndim)
        at = bound.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        with np.errstate(invalid="ignore"):
            return np.concatenate([packed_bits(COMPARES[name](x, at), axis) for name in PACKS[self.compare]], axis)


def _want_tail(
    owner: BinaryConv | BinaryMatMul,
    w: TensorType,
    bias: OptionalType,
    residual: OptionalType,
    thresholds: OptionalType,
) -> None:
    """Raise unless what follows the sums fits together."""
    want_dtype(owner, "w", same_dtype(owner, w, bias, residual), F32)
    want_activation(owner, owner.activation, F32)
    want_residual(owner, residual)
    want_dtypes(owner, (I32,), thresholds=thresholds)
    if thresholds is not None and (bias is not None or residual is not None or owner.activation is not None):
        raise owner.fail("thresholds", thresholds, "none beside a bias, residual or activation")


def _result(owner: Op, shape: Shape | None, axis: int, thresholds: OptionalType) -> TensorType:
    """Type of the result: sums in f32, or words of bits."""
    if thresholds is None or shape is None:
        return TensorType(F32 if thresholds is None else U32, shape)
    count = shape[axis]
    if not isinstance(count, int):
        raise owner.fail("w", count, "a known number of filters")
    want_dims(owner, "thresholds", thresholds, count)
    made = list(shape)
    made[axis] = words_of(count)
    return TensorType(U32, tuple(made))


@op("BinaryConv")
class BinaryConv(Convolution):
    """A convolution of twofold values, which are given as bits, with weights of one magnitude a filter.

    x: what `BinaryPack` makes along the channels, with 0 behind the last; a bit stands for -1 or 1, with ``zero_one``
    for 0 or 1; two packs stand for their mean · w: [k, c/g, r, s] f32, of which the signs count (that of 0 is -1) and
    the magnitude of each filter's first · bias: [k] · residual: like y · thresholds: [k] i32 -> y: activation(sums *
    magnitude + bias + residual), f32; with thresholds the words of sums >= thresholds, where magnitudes do not count.
    outside: what pads stand for, -1, 0 or 1.  The rest is as in `Conv`.  Internal: made by stage recognise.
    """

    activation: Op | None = None
    residual: bool = False
    zero_one: bool = False
    outside: int = 0
    data_bounds = bounded(x=PACKED, thresholds=VALUES)

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        bias: TensorType | None = None,
        residual: TensorType | None = None,
        thresholds: TensorType | None = None,
    ) -> TensorType:
        want_dtype(self, "x", x.dtype, U32)
        _want_tail(self, w, bias, residual, thresholds)
        want_among(self, (-1, 0, 1), outside=self.outside)
        axis = 1 if self.layout == "NCHW" else -1
        image = TensorType(F32, None)
        if x.shape is not None and w.shape is not None and len(x.shape) == len(w.shape) > 2:
            want_packs(self, x.shape[axis], channels := w.shape[1] * self.group, self.zero_one)
            dims = list(x.shape)
            dims[axis] = channels
            image = image.with_shape(dims)
        elif x.shape is not None:
            image = image.with_shape(x.shape)
        shape = self.output_shape(image, w, bias)
        if shape is not None:
            want_dims(self, "residual", residual, *shape)
        return _result(self, shape, axis, thresholds)

    def dots(self, x: Array, w: Array) -> Array:
        """Sums of products of the values with the weights' signs: [n, k, outs...] f32, whole numbers."""
        words = channels_first(x, self.layout)
        values, signs = unpacked_values(words, w.shape[1] * self.group, 1, self.zero_one), signs_of(w)
        # What is outside counts as 0 there: shift the values so that it is 0, and the sums back.
        shift = signs.sum(axis=tuple(range(1, signs.ndim))) * np.float32(self.outside)
        shifted = as_layout(values - np.float32(self.outside), self.layout)
        return self.sums(shifted, signs) + along_channels(shift, values.ndim)

    def reference(
        self,
        x: Array,
        w: Array,
        bias: OptionalArray = None,
        residual: OptionalArray = None,
        thresholds: OptionalArray = None,
    ) -> Array:
        y = self.dots(x, w)
        if thresholds is not None:
            bits = y >= along_channels(thresholds, y.ndim)
            return as_layout(packed_bits(bits, 1), self.layout)
        y = y * along_channels(magnitudes(w, 0), y.ndim)
        y = y if bias is None else y + along_channels(bias, y.ndim)
        return finish(as_layout(y, self.layout), residual, self.activation)


@op("BinaryMatMul")
class BinaryMatMul(Op):
    """A product of rows of twofold values, which are given as bits, with columns of one magnitude each.

    x: [..., words] of rows of K bits · w: [K, N] f32 · bias: [N] · residual: like y · thresholds: [N] i32 -> y:
    [..., N] f32, or words of bits.  Operands and results are those of `BinaryConv`.
    """

    activation: Op | None = None
    residual: bool = False
    zero_one: bool = False
    data_bounds = bounded(x=PACKED, thresholds=VALUES)

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        bias: TensorType | None = None,
        residual: TensorType | None = None,
        thresholds: TensorType | None = None,
    ) -> TensorType:
        want_dtype(self, "x", x.dtype, U32)
        _want_tail(self, w, bias, residual, thresholds)
        want_dims(self, "w", w, None, None)
        if x.shape is None or w.shape is None:
            return _result(self, None, -1, thresholds)
        self.fail_if(not x.shape, "rank of x", 0, "at least 1")
        want_packs(self, x.shape[-1], w.shape[0], self.zero_one)
        shape = matmul_shape(self, (*x.shape[:-1], w.shape[0]), w.shape)
        if shape is not None:
            want_dims(self, "bias", bias, shape[-1])
            want_dims(self, "residual", residual, *shape)
        return _result(self, shape, -1, thresholds)

    def dots(self, x: Array, w: Array) -> Array:
        """Sums of products of the values with the weights' signs: [..., N] f32, whole numbers."""
        return multiplied(self, unpacked_values(x, len(w), -1, self.zero_one), signs_of(w))

    def reference(
        self,
        x: Array,
        w: Array,
        bias: OptionalArray = None,
        residual: OptionalArray = None,
        thresholds: OptionalArray = None,
    ) -> Array:
        y = self.dots(x, w)
        if thresholds is not None:
            return packed_bits(y >= thresholds, -1)
        y = y * magnitudes(w, 1)
        return np.asarray(finish(y if bias is None else y + bias, residual, self.activation))


BinaryProduct: TypeAlias = BinaryConv | BinaryMatMul
