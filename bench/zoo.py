"""Networks built on the spot: published architectures with seeded weights, scaled so that activations stay of order 1.

    python -m bench.zoo resnet50 bert_base_128      # build them, name them and say where they are

Layer shapes, strides and activations are those of the papers, so arithmetic, memory traffic and operator mix are real;
only the numbers in the weights are made up.  Files are kept in the folder of `tests.models`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bolt_numba.types import Array
from tests.models import folder

REVISION = 1
"""Part of the folder's name: raise it when a network changes, so that no stale file is used."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor while a network is being written: its name, and its channels where it is an image."""

    name: str
    channels: int = 0


@dataclass
class Network:
    """A graph under construction; every method that adds a layer returns the layer's result."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def input(self, name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> Wire:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return Wire(name, shape[1] if len(shape) == 4 else 0)

    def constant(self, value: Any, dtype: str | None = None) -> Wire:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return Wire(name)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Wire:
        """A constant of normal deviates."""
        return self.constant(self.rng.standard_normal(shape, np.float32) * np.float32(scale) + np.float32(mean))

    def add(self, op: str, *given: Wire, channels: int | None = None, **attributes: Any) -> Wire:
        """One node; its result has the first operand's channels unless told otherwise."""
        return self.add_many(op, given, 1, channels, **attributes)[0]

    def add_many(
        self, op: str, given: Sequence[Wire], results: int, channels: int | None = None, **attributes: Any
    ) -> list[Wire]:
        """One node with several results."""
        names = [f"{op.lower()}{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, [w.name for w in given], names, f"{op}_{len(self.nodes)}", **attributes))
        return [Wire(n, given[0].channels if channels is None else channels) for n in names]

    def model(self, *results: Wire) -> onnx.ModelProto:
        made = [helper.make_empty_tensor_value_info(r.name) for r in results]
        for info in made:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
        graph = helper.make_graph(self.nodes, "zoo", self.inputs, made, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    # --- layers ------------------------------------------------------------------------------------------------------

    def conv(
        self, x: Wire, out: int, k: int | tuple[int, int], *, stride: int = 1, group: int = 1, bias: bool = True,
        gain: float = 2.0,
    ) -> Wire:  # fmt: skip
        """A convolution with padding k // 2; ``gain``: variance of the result for an input of second moment 1."""
        kh, kw = (k, k) if isinstance(k, int) else k
        fan = x.channels // group * kh * kw
        w = self.normal(out, x.channels // group, kh, kw, scale=math.sqrt(gain / fan))
        b = [self.normal(out, scale=0.1)] if bias else []
        return self.add(
            "Conv", x, w, *b, channels=out, kernel_shape=[kh, kw], strides=[stride] * 2, group=group,
            pads=[kh // 2, kw // 2] * 2,
        )  # fmt: skip

    def norm(self, x: Wire, scale: float = 1.0) -> Wire:
        """A batch normalization with a scale near ``scale``."""
        c = x.channels
        g, b, m = self.normal(c, scale=0.1 * scale, mean=scale), self.normal(c, scale=0.1), self.normal(c, scale=0.1)
        v = self.constant(1 + 0.1 * self.rng.random(c), "f4")
        return self.add("BatchNormalization", x, g, b, m, v)

    def act(self, x: Wire, kind: str) -> Wire:
        match kind:
            case "":
                return x
            case "relu6":
                return self.add("Clip", x, self.constant(0.0, "f4"), self.constant(6.0, "f4"))
            case "silu":
                return self.add("Mul", x, self.add("Sigmoid", x))
            case _:
                return self.add({"relu": "Relu", "hardswish": "HardSwish"}[kind], x)

    def cba(
        self, x: Wire, out: int, k: int | tuple[int, int], act: str = "relu", *, stride: int = 1, group: int = 1,
        scale: float = 1.0,
    ) -> Wire:  # fmt: skip
        """Convolution, batch normalization, activation."""
        y = self.conv(x, out, k, stride=stride, group=group, bias=False, gain=2.0 if act else 1.0)
        return self.act(self.norm(y, scale), act)

    def pool(self, x: Wire, k: int, stride: int, pad: int = 0) -> Wire:
        return self.add("MaxPool", x, kernel_shape=[k] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def concat(self, *xs: Wire) -> Wire:
        return self.add("Concat", *xs, axis=1, channels=sum(x.channels for x in xs))

    def gemm(self, x: Wire, width: int, out: int) -> Wire:
        return self.add(
            "Gemm", x, self.normal(out, width, scale=width**-0.5), self.normal(out, scale=0.1), transB=1, channels=0
        )

    def classify(self, x: Wire, classes: int = 1000) -> Wire:
        """Mean over the image, then a dense layer."""
        return self.gemm(self.add("Flatten", self.add("GlobalAveragePool", x)), x.channels, classes)

    def linear(self, x: Wire, width: int, out: int) -> Wire:
        product = self.add("MatMul", x, self.normal(width, out, scale=width**-0.5))
        return self.add("Add", product, self.normal(out, scale=0.1))

    def layer_norm(self, x: Wire, width: int) -> Wire:
        g, b = self.normal(width, scale=0.1, mean=1.0), self.normal(width, scale=0.1)
        return self.add("LayerNormalization", x, g, b, axis=-1, epsilon=1e-12)

    def reshape(self, x: Wire, *shape: int, channels: int = 0) -> Wire:
        return self.add("Reshape", x, self.constant(shape, "i8"), channels=channels)

    def gelu(self, x: Wire) -> Wire:
        """By the error function, in the five operators that exporters write."""
        e = self.add("Erf", self.add("Div", x, self.constant(math.sqrt(2), "f4")))
        y = self.add("Mul", x, self.add("Add", e, self.constant(1.0, "f4")))
        return self.add("Mul", y, self.constant(0.5, "f4"))


# --- convolutional networks ------------------------------------------------------------------------------------------


def resnet50(batch: int) -> onnx.ModelProto:
    """He et al. 2015, bottlenecks with the stride in the 3x3 layer."""
    n = Network(1)
    x = n.pool(n.cba(n.input("input", batch, 3, 224, 224), 64, 7, stride=2), 3, 2, 1)
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            y = n.cba(n.cba(x, width, 1), width, 3, stride=stride)
            y = n.cba(y, 4 * width, 1, "", scale=0.3)
            skip = x if block else n.cba(x, 4 * width, 1, "", stride=stride, scale=0.9)
            x = n.act(n.add("Add", y, skip), "relu")
    return n.model(n.classify(x))


def mobilenet_v1(batch: int) -> onnx.ModelProto:
    """Howard et al. 2017: depthwise and pointwise layers in turn."""
    n = Network(2)
    x = n.cba(n.input("input", batch, 3, 224, 224), 32, 3, stride=2)
    widths = (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    for i, out in enumerate(widths):
        x = n.cba(x, x.channels, 3, stride=2 if i in (1, 3, 5, 11) else 1, group=x.channels)
        x = n.cba(x, out, 1)
    return n.model(n.classify(x))


def mobilenet_v2(batch: int) -> onnx.ModelProto:
    """Sandler et al. 2018: inverted residuals with linear bottlenecks."""
    n = Network(3)
    x = n.cba(n.input("input", batch, 3, 224, 224), 32, 3, "relu6", stride=2)
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, out, repeat, first in rows:
        for i in range(repeat):
            stride, wide = (first if i == 0 else 1), x.channels * expand
            same = stride == 1 and x.channels == out
            y = n.cba(x, wide, 1, "relu6") if expand > 1 else x
            y = n.cba(y, wide, 3, "relu6", stride=stride, group=wide)
            y = n.cba(y, out, 1, "", scale=0.4 if same else 1.0)
            x = n.add("Add", x, y) if same else y
    return n.model(n.classify(n.cba(x, 1280, 1, "relu6")))


_V3_LARGE = (
    (3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2), (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hardswish", 2), (3, 200, 80, False, "hardswish", 1), (3, 184, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1), (3, 480, 112, True, "hardswish", 1), (3, 672, 112, True, "hardswish", 1),
    (5, 672, 160, True, "hardswish", 2), (5, 960, 160, True, "hardswish", 1), (5, 960, 160, True, "hardswish", 1),
)  # fmt: skip
"""Kernel, expansion, channels, squeeze-and-excite, activation, stride: table 1 of the paper."""


def mobilenet_v3_large(batch: int) -> onnx.ModelProto:
    """Howard et al. 2019."""
    n = Network(4)
    x = n.cba(n.input("input", batch, 3, 224, 224), 16, 3, "hardswish", stride=2)
    for k, wide, out, excite, act, stride in _V3_LARGE:
        same = stride == 1 and x.channels == out
        y = n.cba(x, wide, 1, act) if wide != x.channels else x
        y = n.cba(y, wide, k, act, stride=stride, group=wide)
        if excite:
            z = n.act(n.conv(n.add("GlobalAveragePool", y), (wide // 4 + 7) // 8 * 8, 1), "relu")
            y = n.add("Mul", y, n.add("HardSigmoid", n.conv(z, wide, 1), alpha=1 / 6, beta=0.5))
        y = n.cba(y, out, 1, "", scale=0.6 if same else 1.2)
        x = n.add("Add", x, y) if same else y
    x = n.add("GlobalAveragePool", n.cba(x, 960, 1, "hardswish"))
    x = n.act(n.conv(x, 1280, 1), "hardswish")
    return n.model(n.gemm(n.add("Flatten", x), 1280, 1000))


def squeezenet(batch: int) -> onnx.ModelProto:
    """SqueezeNet 1.1, Iandola et al. 2016."""
    n = Network(5)
    x = n.act(n.conv(n.input("input", batch, 3, 224, 224), 64, 3, stride=2), "relu")
    for i, (squeeze, out) in enumerate([(16, 64)] * 2 + [(32, 128)] * 2 + [(48, 192)] * 2 + [(64, 256)] * 2):
        x = n.pool(x, 3, 2) if i in (0, 2, 4) else x
        z = n.act(n.conv(x, squeeze, 1), "relu")
        x = n.concat(n.act(n.conv(z, out, 1), "relu"), n.act(n.conv(z, out, 3), "relu"))
    x = n.add("GlobalAveragePool", n.act(n.conv(x, 1000, 1), "relu"))
    return n.model(n.add("Flatten", x))


def vgg19(batch: int) -> onnx.ModelProto:
    """Simonyan and Zisserman 2014, configuration E: five stages of 3x3 layers, three dense layers."""
    n = Network(15)
    x = n.input("input", batch, 3, 224, 224)
    for width, layers in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(layers):
            x = n.act(n.conv(x, width, 3), "relu")
        x = n.pool(x, 2, 2)
    x = n.act(n.gemm(n.add("Flatten", x), 512 * 7 * 7, 4096), "relu")
    return n.model(n.gemm(n.act(n.gemm(x, 4096, 4096), "relu"), 4096, 1000))


def densenet121(batch: int) -> onnx.ModelProto:
    """Huang et al. 2016, growth 32: every layer reads all results of its block; norms stand before convolutions."""
    n = Network(16)

    def nac(x: Wire, out: int, k: int) -> Wire:
        return n.conv(n.act(n.norm(x), "relu"), out, k, bias=False)

    x = n.pool(n.cba(n.input("input", batch, 3, 224, 224), 64, 7, stride=2), 3, 2, 1)
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            x = n.concat(x, nac(nac(x, 128, 1), 32, 3))
        if layers != 16:
            x = n.add("AveragePool", nac(x, x.channels // 2, 1), kernel_shape=[2, 2], strides=[2, 2])
    return n.model(n.classify(n.act(n.norm(x), "relu")))


def unet(batch: int) -> onnx.ModelProto:
    """Ronneberger et al. 2015, padded, width 32, four levels, 256 x 256."""
    n = Network(6)
    x = n.input("input", batch, 3, 256, 256)
    skips: list[Wire] = []
    for width in (32, 64, 128, 256):
        skips.append(n.cba(n.cba(x, width, 3), width, 3))
        x = n.pool(skips[-1], 2, 2)
    x = n.cba(n.cba(x, 512, 3), 512, 3)
    for skip in reversed(skips):
        width = skip.channels
        w, b = n.normal(x.channels, width, 2, 2, scale=x.channels**-0.5), n.normal(width, scale=0.1)
        up = n.add("ConvTranspose", x, w, b, channels=width, kernel_shape=[2, 2], strides=[2, 2])
        x = n.cba(n.cba(n.concat(skip, up), width, 3), width, 3)
    return n.model(n.add("Sigmoid", n.conv(x, 2, 1, gain=1.0)))


def _c2f(n: Network, x: Wire, out: int, repeat: int, shortcut: bool) -> Wire:
    """The cross-stage block of YOLOv8: halves, bottlenecks on one of them, everything joined."""
    half = out // 2
    y = n.cba(x, out, 1, "silu", scale=1.15)
    parts = n.add_many("Split", [y, n.constant([half, half], "i8")], 2, half, axis=1)
    for _ in range(repeat):
        z = n.cba(n.cba(parts[-1], half, 3, "silu", scale=1.15), half, 3, "silu", scale=0.6)
        parts.append(n.add("Add", parts[-1], z) if shortcut else z)
    return n.cba(n.concat(*parts), out, 1, "silu", scale=1.1)


def _yolo_neck(n: Network, p3: Wire, p4: Wire, p5: Wire) -> tuple[Wire, Wire, Wire]:
    def up(x: Wire) -> Wire:
        scales = n.constant([1, 1, 2, 2], "f4")
        return n.add(
            "Resize", x, Wire(""), scales, mode="nearest", coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )  # fmt: skip

    n4 = _c2f(n, n.concat(up(p5), p4), 128, 1, False)
    n3 = _c2f(n, n.concat(up(n4), p3), 64, 1, False)
    n4 = _c2f(n, n.concat(n.cba(n3, 64, 3, "silu", stride=2, scale=1.15), n4), 128, 1, False)
    n5 = _c2f(n, n.concat(n.cba(n4, 128, 3, "silu", stride=2, scale=1.15), p5), 256, 1, False)
    return n3, n4, n5


def yolo_n(batch: int) -> onnx.ModelProto:
    """A detector of YOLOv8-n's shape at 320 x 320, without the decoding of boxes."""
    n = Network(7)
    x = n.input("input", batch, 3, 320, 320)
    x = n.cba(x, 16, 3, "silu", stride=2, scale=1.15)
    stages = []
    for out, repeat in ((32, 1), (64, 2), (128, 2), (256, 1)):
        x = _c2f(n, n.cba(x, out, 3, "silu", stride=2, scale=1.15), out, repeat, True)
        stages.append(x)
    pyramid = [n.cba(x, 128, 1, "silu", scale=1.15)]
    for _ in range(3):
        pyramid.append(n.pool(pyramid[-1], 5, 1, 2))
    p5 = n.cba(n.concat(*pyramid), 256, 1, "silu")
    heads = []
    for level, size in zip(_yolo_neck(n, stages[1], stages[2], p5), (40, 20, 10), strict=True):
        boxes, classes = (
            n.conv(n.cba(n.cba(level, c, 3, "silu"), c, 3, "silu"), c, 1) for c in (64, 80)
        )  # fmt: skip
        heads.append(n.reshape(n.concat(boxes, classes), batch, 144, size * size))
    return n.model(n.add("Concat", *heads, axis=2))


def kws_dscnn(batch: int) -> onnx.ModelProto:
    """The keyword spotter of MLPerf Tiny: 49 frames of 10 cepstral coefficients, 12 words."""
    n = Network(8)
    x = n.cba(n.input("input", batch, 1, 49, 10), 64, (10, 4), stride=2)
    for _ in range(4):
        x = n.cba(n.cba(x, 64, 3, group=64), 64, 1)
    return n.model(n.classify(x, 12))


# --- transformers, recurrent networks, single layers -----------------------------------------------------------------


def _attention(n: Network, x: Wire, mask: Wire | None, shape: tuple[int, int, int], heads: int) -> Wire:
    batch, seq, width = shape
    q, k, v = (
        n.add("Transpose", n.reshape(n.linear(x, width, width), batch, seq, heads, width // heads), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = n.add("Div", n.add("MatMul", q, k), n.constant(math.sqrt(width // heads), "f4"))
    scores = scores if mask is None else n.add("Add", scores, mask)
    y = n.add("Transpose", n.add("MatMul", n.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return n.linear(n.reshape(y, batch, seq, width), width, width)


def bert(seed: int, layers: int, width: int, heads: int, seq: int) -> Callable[[int], onnx.ModelProto]:
    """A BERT encoder (Devlin et al. 2018), norms after the residual, in the operators that exporters write."""

    def build(batch: int) -> onnx.ModelProto:
        n = Network(seed)
        ids = n.input("input_ids", batch, seq, dtype=TensorProto.INT64)
        given = n.input("attention_mask", batch, seq, dtype=TensorProto.INT64)
        x = n.add("Gather", n.normal(30522, width), ids, axis=0)
        x = n.layer_norm(n.add("Add", x, n.normal(1, seq, width)), width)
        mask = n.add("Cast", n.reshape(given, batch, 1, 1, seq), to=TensorProto.FLOAT)
        mask = n.add("Mul", n.add("Sub", n.constant(1.0, "f4"), mask), n.constant(-1e4, "f4"))
        for _ in range(layers):
            x = n.layer_norm(n.add("Add", x, _attention(n, x, mask, (batch, seq, width), heads)), width)
            y = n.linear(n.gelu(n.linear(x, width, 4 * width)), 4 * width, width)
            x = n.layer_norm(n.add("Add", x, y), width)
        return n.model(x)

    return build


def vit_b16(batch: int) -> onnx.ModelProto:
    """Dosovitskiy et al. 2020: 196 patches and a class token, norms before the layers."""
    n, width = Network(20), 768
    image = n.input("input", batch, 3, 224, 224)
    w = n.normal(width, 3, 16, 16, scale=768**-0.5)
    x = n.add("Conv", image, w, n.normal(width, scale=0.1), kernel_shape=[16, 16], strides=[16, 16], channels=width)
    x = n.add("Transpose", n.reshape(x, batch, width, 196), perm=[0, 2, 1])
    x = n.add("Concat", n.normal(batch, 1, width), x, axis=1)
    x = n.add("Add", x, n.normal(1, 197, width, scale=0.1))
    for _ in range(12):
        x = n.add("Add", x, _attention(n, n.layer_norm(x, width), None, (batch, 197, width), 12))
        y = n.gelu(n.linear(n.layer_norm(x, width), width, 4 * width))
        x = n.add("Add", x, n.linear(y, 4 * width, width))
    x = n.add("Gather", n.layer_norm(x, width), n.constant(0, "i8"), axis=1)
    return n.model(n.gemm(x, width, 1000))


def recurrent(cell: str, seed: int, gates: int, **attributes: int) -> Callable[[int], onnx.ModelProto]:
    """Two layers of LSTM or GRU over 100 steps, 256 wide."""

    def build(batch: int) -> onnx.ModelProto:
        n, width = Network(seed), 256
        x = n.input("input", 100, batch, width)
        for _ in range(2):
            w, r = (n.normal(1, gates * width, width, scale=width**-0.5) for _ in range(2))
            b = n.normal(1, 2 * gates * width, scale=0.1)
            x = n.add("Squeeze", n.add(cell, x, w, r, b, hidden_size=width, **attributes), n.constant([1], "i8"))
        return n.model(x)

    return build


def mlp(batch: int) -> onnx.ModelProto:
    """64-64-10: the price of a call."""
    n = Network(30)
    x = n.act(n.gemm(n.input("input", batch, 64), 64, 64), "relu")
    return n.model(n.gemm(x, 64, 10))


def gemm1024(batch: int) -> onnx.ModelProto:
    n = Network(31)
    return n.model(n.add("MatMul", n.input("input", 1024 * batch, 1024), n.normal(1024, 1024, scale=1 / 32)))


Build = Callable[[int], onnx.ModelProto]
_CNNS: dict[str, Build] = {
    f.__name__: f
    for f in (
        resnet50,
        mobilenet_v1,
        mobilenet_v2,
        mobilenet_v3_large,
        squeezenet,
        vgg19,
        densenet121,
        unet,
        yolo_n,
    )
}
_TRANSFORMERS: dict[str, Build] = {
    **{f"bert_base_{s}": bert(10, 12, 768, 12, s) for s in (8, 32, 128, 512)},
    **{f"minilm_{s}": bert(11, 6, 384, 12, s) for s in (8, 32, 128, 512)},
    "vit_b16": vit_b16,
}
_RECURRENT: dict[str, Build] = {"lstm": recurrent("LSTM", 12, 4), "gru": recurrent("GRU", 13, 3)}
_RECURRENT["gru_after"] = recurrent("GRU", 14, 3, linear_before_reset=1)  # the cell of torch and cuDNN
_TINY: dict[str, Build] = {"kws_dscnn": kws_dscnn, "mlp": mlp}


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A network of the zoo at one batch size; ``family`` groups the geometric means."""

    name: str
    family: str
    batch: int
    build: Build

    def path(self) -> Path:
        """The file, built when it is not there yet."""
        target = folder() / f"zoo-{REVISION}" / f"{self.name}.onnx"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{self.name}.{os.getpid()}")
            partial.write_bytes(self.build(self.batch).SerializeToString())
            partial.replace(target)
        return target

    def feeds(self) -> dict[str, Array]:
        return normal_feeds(self.path())


def _rows() -> dict[str, ZooModel]:
    families = {"cnn": _CNNS, "transformer": _TRANSFORMERS, "recurrent": _RECURRENT, "tiny": _TINY}
    families["product"] = {"gemm1024": gemm1024}
    rows = {n: ZooModel(n, family, 1, b) for family, builds in families.items() for n, b in builds.items()}
    eight = {f"{r.name}_b8": ZooModel(f"{r.name}_b8", f"{r.family} b8", 8, r.build) for r in rows.values()}
    return rows | eight


ZOO = _rows()


def normal_feeds(path: Path, seed: int = 100) -> dict[str, Array]:
    """Normal deviates for images, token numbers for integers, ones for masks."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for given in onnx.load(path, load_external_data=False).graph.input:
        shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
        if given.type.tensor_type.elem_type != TensorProto.INT64:
            feeds[given.name] = rng.standard_normal(shape, np.float32)
        else:
            feeds[given.name] = np.ones(shape, "i8") if "mask" in given.name else rng.integers(0, 30000, shape)
    return feeds


def main(names: Sequence[str]) -> None:
    for name in names or ZOO:
        sys.stdout.write(f"{name}: {ZOO[name].path()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
