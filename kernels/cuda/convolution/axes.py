"""Plan-time geometry of convolutions: always three spatial axes, of which those that a layer lacks have one element."""

from __future__ import annotations

from collections.abc import Sequence

from bolt_numba.base.records import record
from bolt_numba.base.types import TensorType
from bolt_numba.ops.layers.products.conv import Convolution, ConvTranspose

RANK = 3


@record(frozen=True)
class ConvAxis:
    """One spatial axis: elements of the input and of the output, taps, and where the first of them lies.

    Output ``o`` of a convolution meets tap ``t`` at input ``o * stride + t * dilation - pad``; that of a transposed one
    at ``(o + pad - t * dilation) / stride``, where this is whole.
    """

    size: int
    out: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad: int = 0


def spatial(dims: Sequence[int], layout: str) -> tuple[int, ...]:
    """The spatial sizes among the dimensions of an image."""
    return tuple(dims[1:-1] if layout == "NHWC" else dims[2:])


def channels(t: TensorType, layout: str) -> int:
    return int(t.dims[-1 if layout == "NHWC" else 1])


def axes_of(
    op: Convolution | ConvTranspose, x: TensorType, kernel: Sequence[int], y: TensorType
) -> tuple[ConvAxis, ...]:
    """The axes of a convolution, depth first, or of a transposed one (whose operator resolves its pads itself)."""
    sizes, outs, windows = spatial(x.dims, op.layout), spatial(y.dims, op.layout), op.windows(kernel)
    pads = op.resolved_pads(sizes, kernel) if hasattr(op, "resolved_pads") else windows.resolved(sizes).pads
    found = zip(sizes, outs, kernel, windows.strides, windows.dilations, pads, strict=False)
    own = tuple(ConvAxis(*numbers) for numbers in found)
    return (ConvAxis(1, 1),) * (RANK - len(own)) + own


def steps_between(axes: Sequence[int], count: int, layout: str) -> dict[str, int]:
    """Elements from one index to the next, by axis, of an image of three ``axes`` and ``count`` channels."""
    d, h, w = axes
    unit = count if layout == "NHWC" else 1
    channel = 1 if layout == "NHWC" else d * h * w
    return {"n": count * d * h * w, "c": channel, "d": h * w * unit, "h": w * unit, "w": unit}
