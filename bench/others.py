"""Networks of other kinds than those of the main table: volumes, and filters that look far.

Family ``other`` of `bench.run`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from bench.zoo import Network, Wire, ZooModel


def _conv(n: Network, x: Wire, channels: int, out: int, taps: Sequence[int], far: int = 1, stride: int = 1) -> Wire:
    """A convolution that keeps the size, of any number of axes, with bias, and a Relu."""
    rank = len(taps)
    w = n.normal(out, channels, *taps, scale=math.sqrt(2 / (channels * math.prod(taps))))
    pads = [k // 2 * far for k in taps] * 2
    bias = n.normal(out, scale=0.1)
    made = n.add("Conv", x, w, bias, channels=out, dilations=[far] * rank, pads=pads, strides=[stride] * rank)
    return n.act(made, "relu")


def c3d(batch: int) -> onnx.ModelProto:
    """Tran et al. 2015: 3x3x3 filters over 16 pictures of 112 x 112; a mean in the place of the dense layers."""
    n = Network(40)
    x, channels = n.input("input", batch, 3, 16, 112, 112), 3
    half = (2, 2, 2)
    for out, repeat, shrink in ((64, 1, (1, 2, 2)), (128, 1, half), (256, 2, half), (512, 2, half), (512, 2, ())):
        for _ in range(repeat):
            x, channels = _conv(n, x, channels, out, (3, 3, 3)), out
        if shrink:
            x = n.add("MaxPool", x, kernel_shape=list(shrink), strides=list(shrink))
    x = n.add("Flatten", n.add("GlobalAveragePool", x))
    return n.model(n.gemm(x, channels, 101))


def volumes(batch: int) -> onnx.ModelProto:
    """An encoder of medical images: one channel, strides of 2 between pairs of 3x3x3 layers."""
    n = Network(41)
    x, channels = n.input("input", batch, 1, 32, 64, 64), 1
    for out in (16, 32, 64, 128):
        if out > 16:
            x, channels = _conv(n, x, channels, out, (3, 3, 3), stride=2), out
        x, channels = _conv(n, x, channels, out, (3, 3, 3)), out
    return n.model(x)


def atrous(batch: int) -> onnx.ModelProto:
    """Chen et al. 2017: the head of a segmentation, filters at distances of 6, 12 and 18 pixels side by side."""
    n = Network(42)
    x = n.input("input", batch, 512, 33, 33)
    parts = [_conv(n, x, 512, 128, (1, 1)), *(_conv(n, x, 512, 128, (3, 3), far) for far in (6, 12, 18))]
    return n.model(_conv(n, n.concat(*parts), 512, 21, (1, 1)))


OTHERS = {f.__name__: ZooModel(f.__name__, "other", 1, f) for f in (c3d, volumes, atrous)}
