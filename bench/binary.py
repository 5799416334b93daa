"""Networks of binary layers: signs in front of weights of one magnitude a filter.  Family ``binary`` of `bench.run`.

Other engines run the same files in float.
"""

from __future__ import annotations

import numpy as np
import onnx

from bench.zoo import Network, Wire, ZooModel


def _layer(n: Network, x: Wire, out: int, stride: int = 1) -> Wire:
    """The sign of x, 3x3 filters of -1 and 1, a batch normalization."""
    signs = n.constant(np.where(n.rng.random((out, x.channels, 3, 3)) > 0.5, 1, -1), "f4")
    y = n.add("Conv", n.add("Sign", x), signs, channels=out, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)
    scale, bias = n.normal(out, scale=0.1, mean=1.0), n.normal(out, scale=0.1)
    variance = n.constant(9 * x.channels * (1 + 0.1 * n.rng.random(out)), "f4")
    return n.add("BatchNormalization", y, scale, bias, n.normal(out, scale=0.1), variance)


def birealnet18(batch: int) -> onnx.ModelProto:
    """Liu et al. 2018: a ResNet-18 whose 16 3x3 layers are binary, each with a shortcut of floats."""
    n = Network(50)
    x = n.pool(n.cba(n.input("input", batch, 3, 224, 224), 64, 7, "", stride=2), 3, 2, 1)
    for width in (64, 128, 256, 512):
        for layer in range(4):
            stride = 2 if layer == 0 and width > 64 else 1
            y = _layer(n, x, width, stride)
            if stride == 2:
                x = n.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
                x = n.cba(x, width, 1, "")
            x = n.add("Add", y, x)
    return n.model(n.classify(x))


def bnn_vgg(batch: int) -> onnx.ModelProto:
    """Courbariaux et al. 2016, the network for 32 x 32 pictures: five binary layers, each handing on bits."""
    n = Network(51)
    x = n.cba(n.input("input", batch, 3, 32, 32), 128, 3, "")
    for i, width in enumerate((128, 256, 256, 512, 512)):
        x = _layer(n, x, width)
        x = x if i % 2 else n.pool(x, 2, 2)
    return n.model(n.classify(x, 10))


BINARY = {f.__name__: ZooModel(f.__name__, "binary", 1, f) for f in (birealnet18, bnn_vgg)}
"""Batch 1."""
