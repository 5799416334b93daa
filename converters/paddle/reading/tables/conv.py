"""Readers of convolutions, and of what slides windows over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.converters.as_is import REQUIRED, AsIs
from bolt_numba.converters.builder import Ints, constant, ints
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.ragged import given
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Concat, Expand
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.layers.detection.regions import DeformConv
from bolt_numba.ops.layers.pool import Col2Im
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.pointwise import Add, Div, Max, Mul, Sub

_ALGORITHMS = {"EXPLICIT": "NOTSET", "SAME": "SAME_UPPER", "VALID": "VALID"}


def pads_of(b: PaddleBuilder, paddings: Ints, spatial: int, data_format: str = "NCHW") -> Ints:
    """Paddings of an axis each, of a side each, or of all axes' sides, as the graph orders them."""
    if len(paddings) == spatial:
        return (*paddings, *paddings)
    if len(paddings) == 2 * spatial + 4:  # batch and channels, too
        paddings = paddings[2:-2] if b.is_last(data_format) else paddings[4:]
    b.invalid_if(len(paddings) != 2 * spatial, "paddings", paddings, f"{spatial} or {2 * spatial} numbers")
    return (*paddings[::2], *paddings[1::2])


def windows_of(b: PaddleBuilder, paddings: Ints, algorithm: str, spatial: int, data_format: str) -> tuple[Ints, str]:
    """Pads, and the word for them where they follow from the sizes."""
    b.invalid_if(algorithm not in _ALGORITHMS, "padding_algorithm", repr(algorithm), f"one of {sorted(_ALGORITHMS)}")
    auto = _ALGORITHMS[algorithm]
    return (pads_of(b, paddings, spatial, data_format), auto) if auto == "NOTSET" else ((), auto)


@record(frozen=True)
class PaddleFilters:
    """Attributes of convolutions."""

    strides: Ints = (1, 1)
    paddings: Ints = (0, 0)
    padding_algorithm: str = "EXPLICIT"
    dilations: Ints = (1, 1)
    groups: int = 1
    data_format: str = "NCHW"

    def windows(self, b: PaddleBuilder, spatial: int) -> tuple[Ints, str]:
        return windows_of(b, self.paddings, self.padding_algorithm, spatial, self.data_format)


@PADDLE.reader("conv2d", "depthwise_conv2d", "conv3d", "fused_conv2d_add_act", slots={"ResidualData": "residual"})
def conv(
    b: PaddleBuilder,
    input: Value,
    filter: Value,
    bias: Value | None = None,
    residual: Value | None = None,
    *,
    filters: PaddleFilters,
    activation: str = "",
    fuse_activation: str = "",
) -> Value:
    """A convolution; with SAME pads the windows are not dilated.  Bias, residual and activation are of fused ones."""
    pads, auto = filters.windows(b, b.rank_of(input) - 2)
    dilations = () if auto == "SAME_UPPER" else filters.dilations
    if bias is not None:
        bias = b.shaped(bias, [-1])
    operator = Conv(filters.strides, pads, dilations, filters.groups, auto, b.layout_of(filters.data_format))
    made = b(operator, input, filter, bias)
    if residual is not None:
        made = b(Add(), made, residual)
    return activated(b, made, activation or fuse_activation)


def activated(b: PaddleBuilder, x: Value, name: str, **attributes: Any) -> Value:
    """X behind an activation that a fused operator names; "" is none."""
    if name in ("", "identity", "linear"):
        return x
    found = PADDLE.find(b.owner.program.dialect, name, 0)
    if found is None:
        raise b.unsupported(f"activation {name}")
    made: Value = found.function(b, x, **attributes)
    return made


@PADDLE.reader("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose", slots={"Input": "x"})
def conv_transpose(
    b: PaddleBuilder,
    x: Value,
    filter: Value,
    output_size: Value | None = None,
    bias: Value | None = None,
    *,
    filters: PaddleFilters,
    output_padding: Ints = (),
    fuse_activation: str = "",
    fuse_relu: bool = False,
) -> Value:
    """A transposed convolution; bias and activation are of fused ones."""
    made = _conv_transposed(b, x, filter, output_size, filters, output_padding)
    if bias is not None:
        rank = b.rank_of(x)
        at = rank - 1 if b.is_last(filters.data_format) else 1
        made = b(Add(), made, b.along(b.shaped(bias, [-1]), rank, at))
    return activated(b, made, "relu" if fuse_relu else fuse_activation)


def _conv_transposed(
    b: PaddleBuilder, x: Value, filter: Value, output_size: Value | None, filters: PaddleFilters, output_padding: Ints
) -> Any:
    """Sizes of the result, where they are given, say how much is added behind."""
    spatial = b.rank_of(x) - 2
    strides = filters.strides * spatial if len(filters.strides) == 1 else filters.strides
    first = 1 if b.is_last(filters.data_format) else 2
    kernel = tuple(b.static_dim(filter, i + 2) for i in range(spatial))
    pads, auto = filters.windows(b, spatial)
    dilations, groups, layout = filters.dilations, filters.groups, b.layout_of(filters.data_format)
    if auto == "SAME_UPPER":
        sizes = [b.known_dim(x, first + i) for i in range(spatial)]
        if None in sizes:
            whole = b(ConvTranspose(strides, (), (), groups, output_padding, layout=layout), x, filter)
            return _cut_as_same(b, whole, x, first, strides, kernel)
        dilations, pads = (1,) * spatial, same_pads([int(d or 0) for d in sizes], kernel, strides)
    elif auto == "VALID":
        pads = (0,) * (2 * spatial)
    wanted = None if output_size is None else constant(output_size)
    if output_size is not None and wanted is None:
        raise b.unsupported("sizes of the result that only the run tells")
    if wanted is not None and wanted.size:
        spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
        output_padding = tuple(
            int(size) - (b.static_dim(x, first + i) - 1) * strides[i] - spans[i] + pads[i] + pads[spatial + i]
            for i, size in enumerate(wanted.reshape(-1))
        )
        if any(p < 0 for p in output_padding):
            raise b.invalid("output_size", wanted.tolist(), "at least what the strides make")
    operator = ConvTranspose(strides, pads, dilations, groups, output_padding, layout=layout)
    return b(operator, x, filter)


def same_pads(sizes: Sequence[int], kernel: Ints, strides: Ints) -> Ints:
    """Pads with which a convolution gives one element for each stride, the larger half behind."""
    sums = [max((-(-d // s) - 1) * s + k - d, 0) for d, s, k in zip(sizes, strides, kernel, strict=True)]
    return (*(p // 2 for p in sums), *(p - p // 2 for p in sums))


def _cut_as_same(b: PaddleBuilder, y: Value, x: Value, first: int, strides: Ints, kernel: Ints) -> Value:
    """Y without the pads of the convolution that it is the transpose of, as that one's input were x."""
    for i, (stride, k) in enumerate(zip(strides, kernel, strict=True)):
        size = b.length(x, first + i)
        windows = b(Div(), b(Add(), size, stride - 1), stride)
        pads = b(Max(), b(Sub(), b(Add(), b(Mul(), b(Sub(), windows, 1), stride), k), size), 0)
        begin = b(Div(), pads, 2)
        end = b(Sub(), b.length(y, first + i), b(Sub(), pads, begin))
        y = b(Slice(), y, begin, end, ints([first + i]))
    return y


def _deformed(b: PaddleBuilder, made: DeformConv, x: Value, offset: Value, filter: Value, mask: Value | None) -> Value:
    return b(replace(made, pads=pads_of(b, made.pads, 2)), x, filter, offset, None, mask)


_WINDOWS: dict[str, Any] = {"strides": (1, 1), "paddings": (0, 0), "dilations": (1, 1)}
_WINDOWS |= {"groups": 1, "deformable_groups": 1}
PADDLE.reader("deformable_conv", "deformable_conv_v1", slots={"Input": "x"})(
    AsIs(DeformConv, "x offset filter mask?", lacks=["auto_pad"], then=_deformed, **_WINDOWS)
)


def _positions(b: PaddleBuilder, x: Value, axis: int, kernel: int, stride: int, dilation: int, pads: int) -> Value:
    """Where the elements of each window lie along an axis of the padded x: [kernel, windows]."""
    size = b(Add(), b.as_scalar(b.length(x, axis)), pads - dilation * (kernel - 1) - 1)
    starts = b(Mul(), b.counted(b(Add(), b(Div(), size, stride), 1)), stride)
    taps = b(Mul(), b.counted(kernel), dilation)
    return b(Add(), b.unsqueezed(taps, 1), b.unsqueezed(starts, 0))


def patches(b: PaddleBuilder, x: Value, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> Value:
    """All windows of [n, c, h, w] with pads top, left, bottom, right: [n, c, kh, oh, kw, ow]."""
    around = ints([0, 0, pads[0], pads[1], 0, 0, pads[2], pads[3]])
    wide = b(Pad(), x, around) if any(pads) else x
    rows = _positions(b, x, 2, kernel[0], strides[0], dilations[0], pads[0] + pads[2])
    columns = _positions(b, x, 3, kernel[1], strides[1], dilations[1], pads[1] + pads[3])
    return b(Gather(4), b(Gather(2), wide, rows), columns)


@PADDLE.reader("unfold")
def unfold(b: PaddleBuilder, x: Value, *, kernel_sizes: Ints, strides: Ints, paddings: Ints, dilations: Ints) -> Value:
    """Windows as columns: [n, c * kh * kw, windows].  paddings: top, left, bottom, right."""
    pads = paddings if len(paddings) == 4 else (*paddings, *paddings)
    made = b.transposed(patches(b, x, kernel_sizes, strides, pads, dilations), 0, 1, 2, 4, 3, 5)
    channels = b.known_dim(x, 1)
    if channels is None:
        raise b.unsupported("an unknown number of channels")
    rows = channels * kernel_sizes[0] * kernel_sizes[1]
    windows = b(Mul(), b.length(made, 4), b.length(made, 5))
    return b.shaped(made, [0, rows], windows)


def _folded(b: PaddleBuilder, made: Col2Im, *operands: Value) -> Value:
    """Sums of windows, which are columns.  paddings: top, left, bottom, right."""
    return b(made if len(made.pads) == 4 else replace(made, pads=made.pads * 2), *operands)


_STATED: dict[str, Any] = {"dilations": REQUIRED, "paddings": REQUIRED, "strides": REQUIRED}
PADDLE.reader("fold")(AsIs(Col2Im, "x output_sizes= kernel_sizes=", then=_folded, **_STATED))


@PADDLE.reader("im2sequence")
def im2sequence(
    b: PaddleBuilder, x: Value, *, kernels: Ints, strides: Ints = (1, 1), paddings: Ints = (0, 0, 0, 0)
) -> Value:
    """Windows as rows, one sequence for each image: c * kh * kw numbers.  paddings: top, left, bottom, right."""
    made = b.transposed(patches(b, x, kernels, strides, paddings, (1, 1)), 0, 3, 5, 1, 2, 4)
    windows = b(Mul(), b.length(made, 1), b.length(made, 2))
    lengths = b(Expand(), windows, b.length(made, 0))
    return given(b, b.shaped(made, [-1, b.static_dim(x, 1) * kernels[0] * kernels[1]]), lengths)


MOST_MOVES = 32
"""Displacements to one side that images are compared at."""


@PADDLE.reader("correlation", slots={"Input1": "input1", "Input2": "input2"})
def correlation(
    b: PaddleBuilder,
    input1: Value,
    input2: Value,
    *,
    pad_size: int,
    kernel_size: int,
    max_displacement: int,
    stride1: int,
    stride2: int,
) -> Value:
    """Mean products of the channels of one image and of the other, moved: one plane for each displacement."""
    if stride2 < 1 or not 0 <= max_displacement // stride2 <= MOST_MOVES:
        raise b.invalid("max_displacement", max_displacement, f"at most {MOST_MOVES} steps of stride2")
    b.unsupported_if(kernel_size != 1 or stride1 != 1, f"kernel_size {kernel_size} and stride1 {stride1}")
    steps = range(-(max_displacement // stride2) * stride2, max_displacement + 1, stride2)
    wide = b(Pad(), input2, ints([0, 0, *(pad_size,) * 2, 0, 0, *(pad_size,) * 2]))
    border = max_displacement
    first = b(Pad(), input1, ints([0, 0, *(pad_size - border,) * 2, 0, 0, *(pad_size - border,) * 2]))
    height, width = (b(Sub(), b.length(wide, i), 2 * border) for i in (2, 3))
    planes = []
    for dy in steps:
        for dx in steps:
            moved = _window(b, _window(b, wide, 2, border + dy, height), 3, border + dx, width)
            planes.append(b(ReduceMean(True), b(Mul(), first, moved), ints([1])))
    return b(Concat(1), *planes)


def _window(b: PaddleBuilder, x: Value, axis: int, start: int, length: Value) -> Value:
    return b(Slice(), x, ints([start]), b(Add(), length, start), ints([axis]))


@PADDLE.reader("row_conv", legacy=())
def row_conv(b: PaddleBuilder, x: Value, filter: Value) -> Value | None:
    """Each step plus weighted later ones: [n, t, c] with filters [steps, c]."""
    steps = b.static_dim(filter, 0)
    length = b.length(x, 1)
    wide = b(Pad(), x, ints([0, 0, 0, 0, steps - 1, 0]))
    made = None
    for i in range(steps):
        term = b(Mul(), _window(b, wide, 1, i, length), b.sliced(filter, 0, i, i + 1))
        made = term if made is None else b(Add(), made, term)
    return made
