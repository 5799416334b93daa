"""Readers of convolutions, products and pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I64, Dim, Sym
from bolt_numba.converters.builder import Ints, ints
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceMean
from bolt_numba.ops.arrays.shape import Concat, Flatten, Reshape, Transpose
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.layers.pool import AveragePool, MaxPool
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Div, Greater, Mod, Mul, Where
from bolt_numba.ops.registry import Op

BAND = 1 << 20
"""The greatest kernel, stride or pad that a file may ask for."""


def spatial(
    b: LayerBuilder, rank: int, what: str, several: Ints, height: int | None, width: int | None, default: int | None
) -> Ints:
    """A number for each spatial axis, from one number, a number for each, or one for height and one for width."""
    if height is not None or width is not None:
        if rank != 2 or several:
            raise b.invalid(f"{what}_h and {what}_w", f"{rank} axes and {what} {several}", f"2 axes and no {what}")
        fallback = 0 if default is None else default
        made: Ints = (fallback if height is None else height, fallback if width is None else width)
    else:
        made = several if len(several) == rank else several * rank if len(several) == 1 else ()
        if not several and default is not None:
            made = (default,) * rank
    if len(made) != rank or any(not 0 <= n <= BAND for n in made):
        raise b.invalid(what, several or (height, width), f"one number, or {rank}, of at most {BAND}")
    return made


def _channel_axis(b: LayerBuilder, x: Value, axis: int) -> int:
    rank = b.rank_of(x)
    b.invalid_if(not -rank <= axis < rank - 1, "axis", axis, f"an axis of {x.type} with others behind it")
    return axis % rank


@record(frozen=True)
class CaffeFilters:
    """What layers that slide filters over blobs say of them."""

    num_output: int
    bias_term: bool = True
    pad: Ints = ()
    kernel_size: Ints = ()
    group: int = 1
    stride: Ints = ()
    dilation: Ints = ()
    pad_h: int | None = None
    pad_w: int | None = None
    kernel_h: int | None = None
    kernel_w: int | None = None
    stride_h: int | None = None
    stride_w: int | None = None
    axis: int = 1

    def kernel(self, b: LayerBuilder, rank: int) -> Ints:
        return spatial(b, rank, "kernel", self.kernel_size, self.kernel_h, self.kernel_w, None)

    def operator(self, b: LayerBuilder, kind: type[Conv | ConvTranspose], rank: int, groups: int) -> Op:
        """A convolution of this kind over ``rank`` spatial axes."""
        return kind(
            spatial(b, rank, "stride", self.stride, self.stride_h, self.stride_w, 1),
            spatial(b, rank, "pad", self.pad, self.pad_h, self.pad_w, 0) * 2,
            spatial(b, rank, "dilation", self.dilation, None, None, 1),
            groups,
        )


@reader("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "ConvolutionDW")
def convolution(b: LayerBuilder, *xs: Value, filters: CaffeFilters) -> list[Value]:
    """Each bottom by the same weights.  Depthwise layers of forks have as many groups as channels."""
    return [_convolved(b, Conv, x, filters) for x in xs]


@reader("Deconvolution", "DeconvolutionDepthwise", "DepthwiseDeconvolution")
def deconvolution(b: LayerBuilder, *xs: Value, filters: CaffeFilters) -> list[Value]:
    return [_convolved(b, ConvTranspose, x, filters) for x in xs]


def _convolved(b: LayerBuilder, kind: type[Conv | ConvTranspose], x: Value, filters: CaffeFilters) -> Value:
    at, count = _channel_axis(b, x, filters.axis), filters.num_output
    rank, channels = b.rank_of(x) - at - 1, b.dim_of(x, at)
    kernel = filters.kernel(b, rank)
    is_depthwise = "Depthwise" in b.layer.type or b.layer.type == "ConvolutionDW"
    groups = b.static_dim(x, at) if is_depthwise else filters.group
    operator = filters.operator(b, kind, rank, groups)
    if kind is Conv:
        shape = (count, _per_group(b, channels, groups), *kernel)
    elif groups < 1 or count % groups:
        raise b.invalid("group", groups, f"a divisor of num_output {count}")
    else:
        shape = (channels, count // groups, *kernel)
    w = b.blob(0, shape, "weight_filler")
    bias = b.blob(1, (count,), "bias_filler") if filters.bias_term else None
    return _unbatched(b, operator, x, at, w, bias)


def _per_group(b: LayerBuilder, channels: Dim, groups: int) -> Dim:
    if isinstance(channels, Sym):
        return -1
    b.invalid_if(groups < 1 or channels % groups, "group", groups, f"a divisor of {channels} channels")
    return channels // groups


def _unbatched(b: LayerBuilder, operator: Op, x: Value, at: int, w: Value, bias: Value | None) -> Value:
    """A convolution whose channels are axis ``at``: all axes before it are one batch."""
    if at == 1:
        made: Value = b(operator, x, w, bias)
        return made
    rank = b.rank_of(x)
    before = [b.static_dim(x, i) for i in range(at)]
    behind = [b.static_dim(x, i) for i in range(at, rank)]
    y = b(operator, b(Reshape(), x, ints([math.prod(before), *behind])), w, bias)
    return b(Reshape(), y, ints([*before, *(b.static_dim(y, i) for i in range(1, b.rank_of(y)))]))


@reader("InnerProduct")
def inner_product(
    b: LayerBuilder, x: Value, *, num_output: int, bias_term: bool = True, axis: int = 1, transpose: bool = False
) -> Value:
    """Axes from ``axis`` on are one vector, which is multiplied by the weights [n, k], or [k, n] when transposed."""
    rank = b.rank_of(x)
    b.invalid_if(not -rank <= axis < rank, "axis", axis, f"{-rank} to {rank - 1}")
    at, count = axis % rank, -1
    if not any(isinstance(d, Sym) for d in (x.type.shape or ())[at:]):
        count = math.prod(b.static_dim(x, i) for i in range(at, rank))
    w = b.blob(0, (count, num_output) if transpose else (num_output, count), "weight_filler")
    bias = b.blob(1, (num_output,), "bias_filler") if bias_term else None
    if at < rank - 1:
        length = b.static_dim(w, 0 if transpose else 1)
        x = b(Flatten(1), x) if at == 1 and count >= 0 else b(Reshape(), x, ints([*(0,) * at, length]))
    return b(MatMul(trans_b=not transpose), x, w, bias)


@reader("Embed", "Embedding")
def embed(
    b: LayerBuilder, x: Value, *, num_output: int, input_dim: int, bias_term: bool = True, transpose: bool = False
) -> Value:
    """Rows of a table, or its columns when transposed; an index is a number in f32."""
    table: Any = b.blob(0, (num_output, input_dim) if transpose else (input_dim, num_output), "weight_filler")
    if transpose:
        table = b(Transpose((1, 0)), table)
    bias = b.blob(1, (num_output,), "bias_filler") if bias_term else None
    y = b(Gather(0), table, b(Cast(I64), x))
    return y if bias is None else b(Add(), y, bias)


@reader("Pooling")
def pooling(
    b: LayerBuilder,
    x: Value,
    *,
    pool: str = "MAX",
    kernel_size: int | None = None,
    stride: int = 1,
    pad: int = 0,
    kernel_h: int | None = None,
    kernel_w: int | None = None,
    stride_h: int | None = None,
    stride_w: int | None = None,
    pad_h: int | None = None,
    pad_w: int | None = None,
    global_pooling: bool = False,
    round_mode: str = "CEIL",
    ceil_mode: bool = True,
) -> Any:
    """Sizes are rounded up, and a window that would begin behind the padding is left out."""
    if pool not in ("MAX", "AVE", "STOCHASTIC") or round_mode not in ("CEIL", "FLOOR"):
        raise b.invalid("pool and round_mode", (pool, round_mode), "MAX, AVE or STOCHASTIC, and CEIL or FLOOR")
    b.invalid_if(b.rank_of(x) != 4, "rank of the bottom", b.rank_of(x), 4)
    if global_pooling:
        if pool != "STOCHASTIC" and not b.wants(1):
            return b(ReduceMax() if pool == "MAX" else ReduceMean(), x, b.spatial_axes(x))
        kernel: Ints = (b.static_dim(x, 2), b.static_dim(x, 3))
        return _pooled(b, x, pool, kernel, (1, 1), (0, 0), is_up=True)
    given = () if kernel_size is None else (kernel_size,)
    kernel = spatial(b, 2, "kernel", given, kernel_h, kernel_w, None)
    strides = spatial(b, 2, "stride", () if stride_h or stride_w else (stride,), stride_h, stride_w, 1)
    pads = spatial(b, 2, "pad", () if pad_h or pad_w else (pad,), pad_h or (0 if pad_w else None), pad_w, 0)
    return _pooled(b, x, pool, kernel, strides, pads, is_up=ceil_mode and round_mode == "CEIL")


def _pooled(b: LayerBuilder, x: Value, pool: str, kernel: Ints, strides: Ints, pads: Ints, is_up: bool) -> Any:
    if 0 in kernel or 0 in strides or any(p >= k for p, k in zip(pads, kernel, strict=True)):
        raise b.invalid("kernel, stride and pad", (kernel, strides, pads), "sizes above 0 and pads below the kernel")
    if pool == "STOCHASTIC":  # at test: the mean weighted by the numbers themselves, 0 where they are no weights
        weighted, total = (_pooled(b, v, "AVE", kernel, strides, pads, is_up) for v in (b(Mul(), x, x), x))
        return b(Where(), b(Greater(), total, 0.0), b(Div(), weighted, total), b.const(np.array(0, F32)))
    if pool == "AVE":
        x = _reaching(b, x, kernel, strides, pads, is_up, math.nan)
        return b(AveragePool(kernel, strides, pads * 2, ceil_mode=is_up, count_include_pad=True), x)
    x = _reaching(b, x, kernel, strides, pads, is_up, -float(np.finfo(F32).max))
    if not b.wants(1):
        return b(MaxPool(kernel, strides, pads * 2, ceil_mode=is_up), x)
    y, where = b(MaxPool(kernel, strides, pads * 2, ceil_mode=is_up, indices=True), x)
    plane = ints([b.static_dim(x, 2) * b.static_dim(x, 3)])
    return y, b(Cast(F32), b(Mod(), where, plane))


def _reaching(b: LayerBuilder, x: Value, kernel: Ints, strides: Ints, pads: Ints, is_up: bool, value: float) -> Value:
    """X with a border where Caffe's last window lies behind all of it, which is so without padding alone.

    The result there is what an empty window has.
    """
    if not is_up or any(pads) or (kernel[0] >= strides[0] and kernel[1] >= strides[1]):
        return x
    sizes = [b.dim_of(x, i) for i in (2, 3)]
    extra = []
    for size, k, s in zip(sizes, kernel, strides, strict=True):
        if isinstance(size, Sym):
            raise b.unsupported(f"a stride of {s} above the kernel of {k} along a size that only the run tells")
        if size < k:
            return x
        first = -(-(size - k) // s) * s
        extra.append(first + 1 - size if first >= size else 0)
    return b(Pad("constant"), x, ints([0, 0, *extra]), value, ints([2, 3])) if any(extra) else x


@reader("SPP")
def spp(b: LayerBuilder, x: Value, *, pyramid_height: int, pool: str = "MAX") -> Any:
    """Pools of 1, 2, 4, ... bins along both axes, one behind the other for each image."""
    b.invalid_if(not 1 <= pyramid_height <= 16, "pyramid_height", pyramid_height, "1 to 16")
    sizes = [b.static_dim(x, i) for i in (2, 3)]
    levels = []
    for level in range(pyramid_height):
        bins = 1 << level
        kernel = tuple(-(-size // bins) for size in sizes)
        pads = tuple((k * bins - size + 1) // 2 for k, size in zip(kernel, sizes, strict=True))
        levels.append(_pooled(b, x, pool, kernel, kernel, pads, is_up=True))
    if len(levels) == 1:
        return levels[0]
    return b(Concat(1), *(b(Flatten(1), v) for v in levels))


@record(frozen=True)
class CaffeColumns(CaffeFilters):
    """`CaffeFilters` that a layer needs no number of."""

    num_output: int = 0


@reader("Im2col")
def im2col(b: LayerBuilder, x: Value, *, filters: CaffeColumns) -> Value:
    """The numbers below each window as channels: a depthwise convolution with filters of a single one."""
    at = _channel_axis(b, x, filters.axis)
    rank = b.rank_of(x) - at - 1
    kernel = filters.kernel(b, rank)
    channels, taps = b.static_dim(x, at), math.prod(kernel)
    b.invalid_if(not 0 < taps <= 4096, "kernel", kernel, "1 to 4096 numbers")
    w = b.const(np.broadcast_to(np.eye(taps, dtype=F32), (channels, taps, taps)).reshape(-1, 1, *kernel))
    return _unbatched(b, filters.operator(b, Conv, rank, channels), x, at, w, None)
