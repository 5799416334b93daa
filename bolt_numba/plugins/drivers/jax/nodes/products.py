"""Matrix products, convolutions, attention."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I32, U8
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose, along_channels
from bolt_numba.ops.layers.products.integer_products import ConvInteger, MatMulInteger
from bolt_numba.ops.layers.products.matmul import Einsum, MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.plugins.drivers.jax.table import FLOATS, NUMBERS, JaxSite, builds

LETTERS = "DHW"
MOST_GROUPS = 32
"""Groups up to which each is convolved by itself on processors, where all at once take two to four times as long."""
MOST_TAPS = 49
"""Elements of a filter up to which channels are convolved by moved images."""
BYTES = (np.dtype("u1"), np.dtype("i1"))


@builds("MatMul", dtypes=NUMBERS, by_rank=True)
def matmul(s: JaxSite, op: MatMul, a: Any, b: Any, bias: Any = None) -> Any:
    s.want(op.to is None, "a result of another dtype")
    left = s.np.swapaxes(a, -1, -2) if op.trans_a and s.rank(0) > 1 else a
    right = s.np.swapaxes(b, -1, -2) if op.trans_b and s.rank(1) > 1 else b
    y = s.np.matmul(left, right)
    if op.alpha != 1:
        s.want(a.dtype.kind == "f", "products of integers with a factor")
        y = y * op.alpha
    return y if bias is None else y + bias


@builds("Einsum", dtypes=NUMBERS)
def einsum(s: JaxSite, op: Einsum, *xs: Any) -> Any:
    return s.np.einsum(op.equation.replace(" ", ""), *xs)


def _names(rank: int) -> tuple[str, str, str]:
    """Axes of images, filters and results."""
    spatial = LETTERS[-rank:]
    return f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"


def convolved(s: JaxSite, op: Conv | ConvInteger, x: Any, w: Any) -> Any:
    """The sums of a convolution, in the operands' dtype."""
    rank = s.rank() - 2
    s.want(1 <= rank <= len(LETTERS), "images of other than 1 to 3 axes")
    sizes, kernel = x.shape[2:], w.shape[2:]
    windows = op.windows(kernel).resolved(sizes)
    pads = [(windows.pads[i], windows.pads[rank + i]) for i in range(rank)]
    if s.on_cpu and op.group == 1 and set(kernel) == {1}:
        return _product(s, windows, x, w, pads)
    if s.on_cpu and op.group == x.shape[1] == w.shape[0] and int(np.prod(kernel)) <= MOST_TAPS:
        return _by_channel(s, windows, x, w, pads, windows.static_dims(op, sizes))

    def sums(x: Any, w: Any, group: int) -> Any:
        return s.lax.conv_general_dilated(
            x, w, windows.strides, pads, rhs_dilation=windows.dilations, dimension_numbers=_names(rank),
            feature_group_count=group,
        )  # fmt: skip

    if not s.on_cpu or not 1 < op.group <= MOST_GROUPS:
        return sums(x, w, op.group)
    groups = zip(s.np.split(x, op.group, 1), s.np.split(w, op.group, 0), strict=True)
    return s.np.concatenate([sums(part, filters, 1) for part, filters in groups], 1)


def _product(s: JaxSite, windows: Any, x: Any, w: Any, pads: Any) -> Any:
    """A convolution of one element as a product, which is faster on processors."""
    x = s.np.pad(x, [(0, 0), (0, 0), *pads])[(..., *(slice(None, None, step) for step in windows.strides))]
    y = s.np.matmul(w.reshape(w.shape[:2]), x.reshape(*x.shape[:2], -1))
    return y.reshape(x.shape[0], w.shape[0], *x.shape[2:])


def _by_channel(s: JaxSite, windows: Any, x: Any, w: Any, pads: Any, outs: Any) -> Any:
    """Channels by themselves: sums of moved images, where XLA's own takes thirty times as long on processors."""
    x, y = s.np.pad(x, [(0, 0), (0, 0), *pads]), None
    for tap in itertools.product(*map(range, windows.kernel)):
        begins = [t * d for t, d in zip(tap, windows.dilations, strict=True)]
        seen = [slice(b, b + (o - 1) * k + 1, k) for b, o, k in zip(begins, outs, windows.strides, strict=True)]
        part = x[(..., *seen)] * along_channels(w[(slice(None), 0, *tap)], s.rank())
        y = part if y is None else y + part
    return y


@builds("Conv", dtypes=FLOATS)
def conv(s: JaxSite, op: Conv, x: Any, w: Any, bias: Any = None) -> Any:
    s.want(op.to is None, "a result of another dtype")
    y = convolved(s, op, x, w)
    return y if bias is None else y + along_channels(bias, s.rank())


@builds("ConvTranspose", dtypes=FLOATS)
def conv_transpose(s: JaxSite, op: ConvTranspose, x: Any, w: Any, bias: Any = None) -> Any:
    """A convolution of x with zeros between its elements, by mirrored filters."""
    rank = s.rank() - 2
    s.want(1 <= rank <= len(LETTERS), "images of other than 1 to 3 axes")
    (c, kg, *kernel), sizes, g = s.dims(1), s.dims()[2:], op.group
    windows, begins = op.windows(kernel), op.resolved_pads(sizes, kernel)
    pads = []
    for i, out in enumerate(s.result()[2:]):
        before = windows.spans[i] - 1 - begins[i]
        length = (sizes[i] - 1) * windows.strides[i] + 1
        pads.append((before, out - length - before + windows.spans[i] - 1))
    filters = s.np.flip(w, tuple(range(2, 2 + rank))).reshape(g, c // g, kg, *kernel)
    filters = s.np.swapaxes(filters, 1, 2).reshape(g * kg, c // g, *kernel)
    y = s.lax.conv_general_dilated(
        x, filters, (1,) * rank, pads, lhs_dilation=windows.strides, rhs_dilation=windows.dilations,
        dimension_numbers=_names(rank), feature_group_count=g,
    )  # fmt: skip
    return y if bias is None else y + along_channels(bias, s.rank())


@builds("FusedAttention", dtypes=FLOATS)
def attention(s: JaxSite, op: FusedAttention, q: Any, k: Any = None, v: Any = None, mask: Any = None) -> Any:
    """0 where a query sees nothing."""
    if op.packed:
        q, k, v = s.np.split(q, 3, axis=-2)
    q, k, v = (
        s.np.swapaxes(x, -3, -2) if layout == "SHD" else x for x, layout in zip((q, k, v), op.layouts, strict=True)
    )
    scores = s.np.matmul(q, s.np.swapaxes(k, -1, -2)) * op.scale
    scores = scores if mask is None else scores + mask
    if op.causal:
        rows, columns = (np.arange(size) for size in scores.shape[-2:])
        scores = s.np.where(columns[None, :] <= rows[:, None], scores, -np.inf)
    top = s.np.max(scores, axis=-1, keepdims=True)
    powers = s.np.exp(scores - s.np.where(s.np.isneginf(top), 0, top))
    total = s.np.sum(powers, axis=-1, keepdims=True)
    y = s.np.matmul(powers / s.np.where(total == 0, 1, total), v)
    return s.np.swapaxes(y, -3, -2) if op.y_layout == "SHD" else y


@builds("RotaryEmbedding", dtypes=FLOATS, indices=(3,))
def rotary(s: JaxSite, op: RotaryEmbedding, x: Any, cos: Any, sin: Any, positions: Any = None) -> Any:
    """Pairs of elements of a head turned by the angles of its position."""
    half, at = cos.shape[-1], 1 if op.layout == "HSD" else 2
    if positions is not None:
        cos, sin = (s.np.take(t, positions, axis=0, mode="clip") for t in (cos, sin))
    cos, sin = (s.np.expand_dims(t, at) for t in (cos, sin))
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if op.interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
    else:
        a, b = turned[..., :half], turned[..., half:]
    pair = (a * cos - b * sin, a * sin + b * cos)
    turned = s.np.stack(pair, -1).reshape(turned.shape) if op.interleaved else s.np.concatenate(pair, -1)
    return s.np.concatenate((turned, rest), -1)


def _less(s: JaxSite, x: Any, zero: Any, axis: int) -> Any:
    """Bytes less their zero point, one or one for each index of an axis, in i32."""
    x = x.astype(I32)
    if zero is None:
        return x
    zero = zero.astype(I32)
    if zero.size == 1:
        return x - zero.reshape(())
    return x - (s.np.expand_dims(zero, -1) if axis == -2 and zero.ndim == 1 else zero)


@builds("MatMulInteger", dtypes=BYTES, results=(I32,))
def matmul_integer(s: JaxSite, op: MatMulInteger, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return s.np.matmul(_less(s, a, a_zero, -2), _less(s, b, b_zero, -1))


@builds("ConvInteger", dtypes=BYTES, results=(I32,))
def conv_integer(s: JaxSite, op: ConvInteger, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    filters = w.astype(I32)
    if w_zero is not None:
        filters = filters - w_zero.astype(I32).reshape(-1, *(1,) * (s.rank() - 1))
    return convolved(s, op, _less(s, x, x_zero, -1), filters)


@builds("MatMulNBits", dtypes=FLOATS, others={1: (U8,), 2: (F32,), 3: (F32,)})
def matmul_bits(
    s: JaxSite, op: MatMulNBits, x: Any, codes: Any, scales: Any, zeros: Any = None, bias: Any = None
) -> Any:
    parts = [codes >> shift & (1 << op.bits) - 1 for shift in range(0, 8, op.bits)]
    codes = s.np.stack(parts, axis=-1).reshape(*codes.shape[:2], op.block)
    offsets = op.middle if zeros is None else zeros[..., None]
    meant = (codes.astype(F32) - offsets) * scales[..., None]
    y = s.np.matmul(x, meant.reshape(meant.shape[0], -1)[:, : s.dims()[-1]].T)
    return (y if bias is None else y + bias).astype(x.dtype)
