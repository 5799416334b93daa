"""Layers of real networks, and the largest test case of an operator, for `bench.kernels`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from bolt_numba.ops import pointwise
from bolt_numba.ops.arrays import gather, quantize, reduce, shape, slicing
from bolt_numba.ops.arrays import generate as fill
from bolt_numba.ops.layers import norm, pool, recurrent, resize
from bolt_numba.ops.layers.attention import attention, linear, rotary
from bolt_numba.ops.layers.products import conv, integer_products, matmul
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul_forms import MatMulForm
from bolt_numba.ops.registry import Op
from bolt_numba.types import Array
from tests.cases import CASES
from tests.cases import Case as TestCase


@dataclass(frozen=True, slots=True)
class Case:
    """A layer: where it is from, the operator, its inputs, and the operations of its products (0: it has none)."""

    label: str
    op: Op
    inputs: tuple[Array | None, ...]
    flop: float = 0.0


def normal(*dims: int) -> Array:
    return np.random.default_rng(math.prod(dims)).standard_normal(dims, np.float32)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def convolution(label: str, size: int, ins: int, outs: int, k: int, stride: int = 1, group: int = 1) -> Case:
    """Channels-last, padded to keep the size."""
    op = conv.Conv(strides=(stride,) * 2, pads=(k // 2,) * 4, group=group, layout="NHWC")
    w = normal(outs, ins // group, k, k)
    side = (size - 1) // stride + 1
    return Case(label, op, (normal(1, size, size, ins), w, normal(outs)), 2.0 * side**2 * w.size)


def product(label: str, m: int, k: int, n: int) -> Case:
    return Case(label, matmul.MatMul(), (normal(m, k), normal(k, n)), 2.0 * m * k * n)


def convolutions() -> Iterator[Case]:
    yield convolution("ResNet-50, first layer", 224, 3, 64, 7, 2)
    yield convolution("ResNet-50, 3x3, 56", 56, 64, 64, 3)
    yield convolution("ResNet-50, 3x3, 28", 28, 128, 128, 3)
    yield convolution("ResNet-50, 3x3, 14", 14, 256, 256, 3)
    yield convolution("ResNet-50, 3x3, 7", 7, 512, 512, 3)
    yield convolution("ResNet-50, 1x1, 56", 56, 64, 256, 1)
    yield convolution("ResNet-50, 1x1, 7", 7, 512, 2048, 1)
    yield convolution("ResNet-50, strided 1x1", 56, 256, 512, 1, 2)
    yield convolution("MobileNet v2, depthwise, 112", 112, 32, 32, 3, 1, 32)
    yield convolution("MobileNet v2, depthwise, stride 2", 112, 96, 96, 3, 2, 96)
    yield convolution("MobileNet v3, depthwise 5x5", 14, 672, 672, 5, 1, 672)
    yield convolution("ShuffleNet, grouped 1x1", 28, 240, 240, 1, 1, 3)
    up = conv.ConvTranspose(strides=(2, 2), layout="NHWC")
    yield Case("U-Net, up, 32", up, (normal(1, 32, 32, 256), normal(256, 128, 2, 2), normal(128)), 2.0 * 2**27)


def some_bytes(*dims: int) -> Array:
    return np.random.default_rng(math.prod(dims)).integers(0, 256, dims, np.uint8)


def byte_convolution(label: str, size: int, ins: int, outs: int, k: int, stride: int = 1, group: int = 1) -> Case:
    """`convolution` of bytes, results included."""
    op = integer_products.QLinearConv(strides=(stride,) * 2, pads=(k // 2,) * 4, group=group, layout="NHWC")
    w, scales = some_bytes(outs, ins // group, k, k).view(np.int8), np.full(outs, 0.01, np.float32)
    scale, zero = np.array(0.02, np.float32), np.array(3, np.uint8)
    inputs = some_bytes(1, size, size, ins), scale, zero, w, scales, np.zeros(outs, np.int8), 5 * scale, zero
    side = (size - 1) // stride + 1
    return Case(f"{label}, bytes", op, (*inputs, np.zeros(outs, np.int32)), 2.0 * side**2 * w.size)


def byte_product(label: str, m: int, k: int, n: int) -> Case:
    one, zero = np.array(0.01, np.float32), np.array(3, np.uint8)
    b = some_bytes(k, n).view(np.int8), one, np.array(0, np.int8)
    inputs = some_bytes(m, k), one, zero, *b, np.array(0.5, np.float32), zero
    return Case(f"{label}, bytes", integer_products.QLinearMatMul(), inputs, 2.0 * m * k * n)


def of_bytes() -> Iterator[Case]:
    yield byte_convolution("ResNet-50, first layer", 224, 3, 64, 7, 2)
    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        yield byte_convolution(f"ResNet-50, 3x3, {size}", size, channels, channels, 3)
        yield byte_convolution(f"ResNet-50, 1x1, {size}", size, channels, 4 * channels, 1)
        yield byte_convolution(f"ResNet-50, 1x1 back, {size}", size, 4 * channels, channels, 1)
    yield byte_convolution("MobileNet v2, first layer", 224, 3, 32, 3, 2)
    for size, ins, outs in ((112, 16, 96), (56, 24, 144), (28, 32, 192), (14, 64, 384), (7, 160, 960)):
        yield byte_convolution(f"MobileNet v2, 1x1, {size}", size, ins, outs, 1)
        yield byte_convolution(f"MobileNet v2, 1x1 back, {size}", size, outs, ins, 1)
        yield byte_convolution(f"MobileNet v2, depthwise, {size}", size, outs, outs, 3, 1, outs)
    yield byte_convolution("MobileNet v2, depthwise, stride 2", 112, 96, 96, 3, 2, 96)
    yield byte_convolution("MobileNet v1, depthwise, 14", 14, 512, 512, 3, 1, 512)
    yield byte_convolution("MobileNet v1, 1x1, 14", 14, 512, 512, 1)
    yield byte_convolution("MobileNet v3, depthwise 5x5", 14, 672, 672, 5, 1, 672)
    yield byte_convolution("MobileNet v3, depthwise 5x5, stride 2", 56, 72, 72, 5, 2, 72)
    yield byte_product("GEMM 1024^3", 1024, 1024, 1024)
    yield byte_product("BERT-base, 128 x 768 x 3072", 128, 768, 3072)
    yield byte_product("MiniLM, 128 x 384 x 1536", 128, 384, 1536)
    yield byte_product("one row, 768 x 3072", 1, 768, 3072)


def form_product(label: str, name: str, m: int, k: int, n: int) -> Case:
    """Weights of any codes, of small scales."""
    form = FORMS[name]
    raw = some_bytes(n, k // form.block * form.size)
    for at in (form.scale, form.offset) if form.middle is None else (form.scale,):
        form.blocks(raw)[..., at : at + 2] = np.full(1, 0.01, np.float16).view(np.uint8)
    return Case(f"{label}, {name}", MatMulForm(name), (normal(m, k), raw), 2.0 * m * k * n)


def of_forms() -> Iterator[Case]:
    yield form_product("SmolLM2, one row to tokens", "Q8_0", 1, 576, 49152)
    for name in ("Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"):
        yield form_product("1B, 512 x 2048 x 2048", name, 512, 2048, 2048)


def products() -> Iterator[Case]:
    yield product("GEMM 1024^3", 1024, 1024, 1024)
    yield product("BERT-base, 128 x 768 x 3072", 128, 768, 3072)
    yield product("one row, 768 x 3072", 1, 768, 3072)
    yield product("eight rows, 768 x 3072", 8, 768, 3072)
    q = normal(1, 12, 128, 64)
    scores = 2.0 * 2 * 12 * 128 * 128 * 64
    yield Case("BERT-base, attention, 128", attention.FusedAttention(scale=0.125), (q, q, q), scores)
    for op, gates in ((recurrent.LSTM, 4), (recurrent.GRU, 3)):
        operands = (
            normal(100, 1, 256),
            normal(1, gates * 256, 256),
            normal(1, gates * 256, 256),
            normal(1, gates * 512),
        )
        flop = 2.0 * 100 * gates * 256 * 512
        yield Case("100 steps, 256 wide", op(hidden_size=256), operands, flop)


def moves() -> Iterator[Case]:
    image, tokens = normal(1, 56, 56, 128), normal(128, 768)
    yield Case("56x56x128", pointwise.Add(), (image, normal(*image.shape)))
    yield Case("128x3072", pointwise.Gelu(), (normal(128, 3072),))
    yield Case("56x56x128", pointwise.HardSwish(), (image,))
    yield Case("128x3072", pointwise.Sigmoid(), (normal(128, 3072),))
    yield Case("BERT-base, 12x128x128", reduce.Softmax(axis=-1), (normal(12, 128, 128),))
    yield Case("BERT-base, 128x768", norm.LayerNormalization(axis=-1), (tokens, normal(768), normal(768)))
    yield Case("ResNet-50, mean over 7x7", reduce.ReduceMean(), (normal(1, 7, 7, 2048), integers(1, 2)))
    op = pool.MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4, layout="NHWC")
    yield Case("ResNet-50, 112x112x64", op, (normal(1, 112, 112, 64),))
    average = pool.AveragePool(kernel_shape=(3, 3), strides=(1, 1), pads=(1,) * 4, layout="NHWC")
    yield Case("Inception, 28x28x192", average, (normal(1, 28, 28, 192),))
    yield Case("BERT-base, heads", shape.Transpose(perm=(1, 0, 2)), (normal(128, 12, 64),))
    yield Case("image to channels-last", shape.Transpose(perm=(0, 2, 3, 1)), (normal(1, 128, 56, 56),))
    yield Case("56x56, 64 + 64", shape.Concat(axis=3), (normal(1, 56, 56, 64), normal(1, 56, 56, 64)))
    ids = np.random.default_rng(0).integers(0, 30522, (1, 128))
    yield Case("BERT-base, embedding", gather.Gather(axis=0), (normal(30522, 768), ids))
    up = resize.Resize(
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor", layout="NHWC"
    )  # fmt: skip
    yield Case("YOLO, up, 20x20x128", up, (normal(1, 20, 20, 128), None, np.array([1, 1, 2, 2], "f4")))
    up = resize.Resize(mode="linear", layout="NHWC")
    yield Case("bilinear, up, 40x40x64", up, (normal(1, 40, 40, 64), None, np.array([1, 1, 2, 2], "f4")))


def rarer() -> Iterator[Case]:
    image = normal(1, 56, 56, 128)
    channels = tuple(normal(128) for _ in range(4))
    yield Case("56x56x128", norm.BatchNormalization(layout="NHWC"), (image, *channels[:3], np.abs(channels[3])))
    yield Case("56x56x128", norm.InstanceNormalization(layout="NHWC"), (image, *channels[:2]))
    yield Case("AlexNet, 55x55x96", norm.LRN(size=5, layout="NHWC"), (normal(1, 55, 55, 96),))
    yield Case("128x768", norm.LpNormalization(axis=-1, p=2), (normal(128, 768),))
    yield Case("128x768", reduce.ReduceLogSumExp(), (normal(128, 768), integers(1)))
    yield Case("segmentation, 256x256x21", reduce.ArgMax(axis=3), (normal(1, 256, 256, 21),))
    yield Case("128x768", reduce.CumSum(), (normal(128, 768), np.array(1, np.int64)))
    yield Case("ImageNet classes, 5 best", reduce.TopK(), (normal(8, 1000), integers(5)))
    yield Case("56x56x128 in halves", shape.Split(axis=3, num_outputs=2), (image,))
    yield Case("56x56x128, 64 channels", slicing.Slice(), (image, integers(0), integers(64), integers(3)))
    around = integers(0, 1, 1, 0, 0, 1, 1, 0)
    yield Case("56x56x128, one around", slicing.Pad(mode="constant"), (image, around))
    yield Case("1x128 to 12x128x128", shape.Expand(), (normal(1, 128), integers(12, 128, 128)))
    yield Case("128 to 128x128", shape.Tile(), (normal(1, 128), integers(128, 1)))
    yield Case("super-resolution, 224x224x9", shape.DepthToSpace(blocksize=3, mode="CRD"), (normal(1, 9, 224, 224),))
    yield Case("128x768", quantize.DynamicQuantizeLinear(), (normal(128, 768),))
    a, b = (np.random.default_rng(0).integers(0, 200, dims, np.uint8) for dims in ((128, 768), (768, 768)))
    zero = np.array(0, np.uint8)
    op = integer_products.MatMulInteger()
    yield Case("BERT-base, 128 x 768 x 768", op, (a, b, zero, zero), 2.0 * 128 * 768 * 768)


def indexed() -> Iterator[Case]:
    tokens, rng = normal(128, 768), np.random.default_rng(0)
    order = rng.integers(0, 128, (128, 768))
    yield Case("128x768", gather.GatherElements(axis=0), (tokens, order))
    yield Case("128x768", gather.ScatterElements(axis=0), (tokens, order, normal(128, 768)))
    yield Case("4096 of 256x256, 64 wide", gather.GatherND(), (normal(256, 256, 64), rng.integers(0, 256, (4096, 2))))
    cache, new = normal(1, 12, 512, 64), normal(1, 12, 1, 64)
    at = np.stack(np.meshgrid([0], np.arange(12), [100], indexing="ij"), -1)
    yield Case("cache of keys, one token", gather.ScatterND(), (cache, at, new))
    yield Case("512 of 1000", gather.OneHot(), (rng.integers(0, 1000, 512), np.array(1000), np.array([0, 1], "f4")))
    table = normal(512, 32)
    yield Case("12 heads of 64, 128 tokens", rotary.RotaryEmbedding(), (
        normal(1, 12, 128, 64), table, table, np.arange(128)[None],
    ))  # fmt: skip


def of_states() -> Iterator[Case]:
    """Layers of a Gated DeltaNet, a token and a prompt."""
    for what, t in (("one token", 1), ("128 tokens", 128)):
        rows, gates, state = normal(1, t, 4096), -np.abs(normal(1, t, 32)), normal(1, 32, 128, 128)
        operands = rows, rows / np.float32(128), rows, state, gates, -gates
        yield Case(f"32 heads of 128, {what}", linear.LinearAttention(32, 32), operands, 6.0 * t * state.size)
        taps = normal(1, 8192, t), normal(8192, 1, 4), normal(8192), normal(1, 8192, 3)
        yield Case(f"8192 channels, {what}", linear.CausalConvWithState(True), taps, 8.0 * t * 8192)


def rest() -> Iterator[Case]:
    image = normal(1, 56, 56, 128)
    yield Case("56x56x128", pool.LpPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4, layout="NHWC"), (image,))
    yield Case("8x1000", reduce.Hardmax(), (normal(8, 1000),))
    yield Case("128x768, i32", reduce.ReduceSum(), (normal(128, 768).astype("i4"), integers(1)))
    scale, zero = np.array(0.05, np.float32), np.array(128, np.uint8)
    yield Case("128x768", quantize.QuantizeLinear(), (normal(128, 768), scale, zero))
    small = np.random.default_rng(0).integers(0, 256, (128, 768), np.uint8)
    yield Case("128x768", quantize.DequantizeLinear(), (small, scale, zero))
    yield Case("224x224x3", shape.SpaceToDepth(blocksize=2), (normal(1, 3, 224, 224),))
    yield Case("mask, 512x512", fill.Trilu(), (normal(512, 512),))
    yield Case("56x56x128", shape.Flatten(), (image,))
    operands = (normal(100, 1, 256), normal(1, 256, 256), normal(1, 256, 256), normal(1, 512))
    yield Case("100 steps, 256 wide", recurrent.RNN(hidden_size=256), operands, 2.0 * 100 * 256 * 512)


def layers() -> list[Case]:
    """Layers of real networks."""
    found = [*convolutions(), *products(), *of_bytes(), *of_forms(), *moves(), *rarer(), *indexed()]
    return [*found, *of_states(), *rest()]


def largest_test_case(op: type[Op], accepts: Callable[[Case], bool], draws: int = 60) -> Case | None:
    """Of some test cases of the operator, the one with most elements that is accepted; None when none is."""
    found: list[Case] = []
    if op not in CASES:
        return None

    @seed(0)
    @settings(
        max_examples=draws,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(CASES[op]())
    def draw(drawn: TestCase) -> None:
        case = Case("largest test case", drawn.op, drawn.inputs)
        if accepts(case):
            found.append(case)

    draw()
    return max(found, key=lambda c: sum(a.size for a in c.inputs if a is not None), default=None)
