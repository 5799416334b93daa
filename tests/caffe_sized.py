"""Nets of Caffe for `tests/converters/test_caffe_sized.py`: small ones of the kinds that run at any size of image."""

from __future__ import annotations

from collections.abc import Callable

from bench.caffe_nets import CaffeNet, ssd_heads

SHAPE = (1, 3, 32, 40)
"""What all files say of their image."""


def classifier() -> CaffeNet:
    """Ends with a mean of all pixels, as SqueezeNet, ResNet and DenseNet may."""
    net = CaffeNet("classifier", *SHAPE)
    x = net.relu(net.norm(net.conv("a", "data", 8, 3, 2, bias=False)))
    y = net.conv("b", x, 8, 3)
    x = net.layer("Eltwise", "sum", [x, y])
    x = net.layer("LRN", "lrn", [x], "lrn_param { local_size: 5 alpha: 0.1 beta: 0.75 }")
    x = net.conv("c", net.pool("p", x, "pool: MAX kernel_size: 3 stride: 2"), 5, 1)
    x = net.pool("mean", x, "pool: AVE global_pooling: true")
    return _ended(net, net.layer("Softmax", "prob", [x]))


def inception() -> CaffeNet:
    net = CaffeNet("inception", *SHAPE)
    x = net.pool("p", net.relu(net.conv("a", "data", 8, 3)), "pool: MAX kernel_size: 3 stride: 2")
    parts = [net.conv("b1", x, 4, 1), net.conv("b3", x, 4, 3), net.conv("b5", x, 3, 5)]
    parts.append(net.conv("bp", net.pool("q", x, "pool: MAX kernel_size: 3 stride: 1 pad: 1"), 2, 1))
    x = net.concat("out", parts)
    return _ended(net, net.pool("end", x, "pool: AVE kernel_size: 2 stride: 2"))


def segmenter() -> CaffeNet:
    """As FCN: what is enlarged is cropped to what is finer, and at last to the image."""
    net = CaffeNet("segmenter", *SHAPE)
    a = net.pool("p1", net.relu(net.conv("a", "data", 6, 3)), "pool: MAX kernel_size: 2 stride: 2")
    c = net.pool("p2", net.relu(net.conv("b", a, 6, 3)), "pool: MAX kernel_size: 2 stride: 2")
    fine, coarse = net.conv("fine", a, 4, 1), net.conv("coarse", c, 4, 1)
    up = _enlarged(net, "up", coarse, 4, 4, 2)
    up = net.layer("Crop", "crop1", [up, fine], "crop_param { axis: 2 offset: 1 }")
    x = net.layer("Eltwise", "fuse", [up, fine])
    x = _enlarged(net, "up2", x, 4, 4, 2)
    return _ended(net, net.layer("Crop", "score", [x, "data"], "crop_param { axis: 2 offset: 0 }"))


def interpolated() -> CaffeNet:
    """As PSPNet and DeepLab: Interp by a factor."""
    net = CaffeNet("interpolated", *SHAPE)
    a = net.relu(net.conv("a", "data", 6, 3, 2))
    b = net.relu(net.conv("b", a, 6, 3, 2))
    up = net.layer("Interp", "up", [b], "interp_param { zoom_factor: 2 }")
    return _ended(net, net.concat("out", [net.conv("c", up, 3, 1), net.conv("d", up, 2, 1)]))


def detector() -> CaffeNet:
    """As SSD: boxes of two maps, whose places follow from the sizes of maps and image."""
    net = CaffeNet("detector", *SHAPE)
    a = net.relu(net.conv("a", "data", 8, 3, 4))
    b = net.relu(net.conv("b", a, 8, 3, 2))
    return ssd_heads(net, [a, b], 3, [8.0, 14.0, 20.0])


def reshaped() -> CaffeNet:
    """Shuffled channels, permuted axes, and shapes of which a part is told."""
    net = CaffeNet("reshaped", *SHAPE)
    x = net.relu(net.conv("a", "data", 8, 3, 2))
    x = net.layer("ShuffleChannel", "shuffle", [x], "shuffle_channel_param { group: 2 }")
    x = net.layer("Permute", "turned", [x], "permute_param { order: 0 order: 2 order: 3 order: 1 }")
    x = net.layer("Reshape", "rows", [x], "reshape_param { shape { dim: 0 dim: -1 dim: 4 } }")
    return _ended(net, net.layer("Softmax", "prob", [x], "softmax_param { axis: 2 }"))


def wide_strides() -> CaffeNet:
    """Windows that leave pixels out, whose last one may lie behind the image."""
    net = CaffeNet("wide", *SHAPE)
    return _ended(net, net.pool("p", net.conv("a", "data", 4, 3), "pool: AVE kernel_size: 1 stride: 3"))


def normalised() -> CaffeNet:
    net = CaffeNet("normalised", *SHAPE)
    x = net.layer("MVN", "mvn", [net.conv("a", "data", 6, 3, 2)], "mvn_param { normalize_variance: true }")
    x = net.layer("Power", "power", [x], "power_param { scale: 0.5 shift: 1 }")
    return _ended(net, net.layer("TanH", "tanh", [x]))


def dense() -> CaffeNet:
    """A product that knows how many pixels there are, behind a batch that may be any."""
    net = CaffeNet("dense", *SHAPE)
    x = net.pool("p", net.relu(net.conv("a", "data", 4, 3, 2)), "pool: MAX kernel_size: 2 stride: 2")
    return _ended(net, net.dense("fc", x, 4 * 8 * 10, 5))


def _enlarged(net: CaffeNet, name: str, x: str, out: int, kernel: int, stride: int) -> str:
    w = net.rng.normal(0, 0.3, (net.channels[x], out, kernel, kernel)).astype("f4")
    net.weights[name] = "Deconvolution", [w]
    param = f"num_output: {out} kernel_size: {kernel} stride: {stride} bias_term: false"
    net.layer("Deconvolution", name, [x], f"convolution_param {{ {param} }}")
    net.channels[name] = out
    return name


def _ended(net: CaffeNet, *_: str) -> CaffeNet:
    return net


NETS: dict[str, Callable[[], CaffeNet]] = {
    f.__name__: f
    for f in (
        classifier, inception, segmenter, interpolated, detector, reshaped, wide_strides, normalised, dense
    )
}  # fmt: skip
