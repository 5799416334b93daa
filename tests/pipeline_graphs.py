"""Small networks in the forms that exporters write; used by test_pipeline and its golden files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.types import F32, I64
from tests.rule_cases import f32, graph_of, i64, o, whole

NETWORKS: dict[str, tuple[Callable[..., Any], dict[str, tuple[Any, ...]]]] = {}


def network(**shapes: tuple[Any, ...]) -> Callable[[Any], Any]:
    def register(build: Any) -> Any:
        NETWORKS[build.__name__] = build, shapes
        return build

    return register


def graph(name: str) -> Graph:
    """A fresh graph of the network ``name``."""
    made = graph_of(*NETWORKS[name])
    made.name = name
    return made


def conv(
    b: Builder, x: Any, c: int, k: int, kernel: int = 3, group: int = 1, stride: int = 1, bias: bool = True
) -> Any:
    pad = kernel // 2
    w = whole(k, c // group, kernel, kernel, seed=c + k)
    op = o("Conv", pads=(pad,) * 4, strides=(stride,) * 2, group=group)
    return b(op, x, w, whole(k, seed=k) if bias else None)


def batch_norm(b: Builder, x: Any, c: int) -> Any:
    return b(
        o("BatchNormalization", epsilon=0.0), x, whole(c, seed=1), whole(c, seed=2), whole(c, seed=3), np.ones(c, F32)
    )


@network(x=(1, 3, 8, 8))
def residual(b: Builder, x: Value) -> Any:
    """Convolution, batch norm and relu twice, added to a shortcut; a classifier on the mean."""
    y = b(o("Relu"), batch_norm(b, conv(b, x, 3, 4, bias=False), 4))
    z = batch_norm(b, conv(b, y, 4, 4, bias=False), 4)
    z = b(o("Relu"), b(o("Add"), z, y))
    z = b(o("Flatten"), b(o("ReduceMean"), z, i64(2, 3)))
    return b(o("Softmax"), b(o("Add"), b(o("MatMul"), z, whole(4, 5)), whole(5)))


@network(x=("n", 8, "h", "w"))
def squeeze_excite(b: Builder, x: Value) -> Any:
    y = conv(b, x, 8, 8, group=8)
    gate = b(o("ReduceMean"), y, i64(2, 3))
    gate = b(o("Relu"), conv(b, gate, 8, 4, 1))
    gate = b(o("HardSigmoid"), conv(b, gate, 4, 8, 1))
    return conv(b, b(o("Mul"), y, gate), 8, 6, 1)


@network(x=(1, 4, 8, 8))
def dense_block(b: Builder, x: Value) -> Any:
    """Each layer reads the concatenation of all before, through its own batch norm."""
    features = x
    for c in (4, 6, 8):
        y = conv(b, b(o("Relu"), batch_norm(b, features, c)), c, 2)
        features = b(o("Concat", 1), features, y)
    return b(o("AveragePool", (2, 2), strides=(2, 2)), features)


@network(x=(1, 4, 6, 6))
def channel_shuffle(b: Builder, x: Value) -> Any:
    y = conv(b, x, 4, 8, 1, group=2)
    y = b(o("Reshape"), y, i64(1, 2, 4, 6, 6))
    y = b(o("Reshape"), b(o("Transpose", (0, 2, 1, 3, 4)), y), i64(1, 8, 6, 6))
    return conv(b, y, 8, 8, group=8)


@network(x=(1, 8, 8, 3))
def tensorflow_style(b: Builder, x: Value) -> Any:
    """Channels last with a transpose around every convolution, bias as an Add."""
    for c, k in ((3, 4), (4, 4)):
        y = b(o("Transpose", (0, 3, 1, 2)), b(o("Cast", F32), x))
        y = b(o("Conv", pads=(1, 1, 1, 1)), y, whole(k, c, 3, 3))
        y = b(o("Add"), b(o("Transpose", (0, 2, 3, 1)), y), whole(1, 1, 1, k))
        x = b(o("Relu"), b(o("Sub"), y, whole(k, seed=5)))
    return x


@network(x=(1, 3, 4, 12))
def text_head(b: Builder, x: Value) -> Any:
    """Image to sequence: a row of columns, each classified."""
    y = b(o("Relu"), conv(b, x, 3, 6))
    y = b(o("MaxPool", (4, 1), strides=(4, 1)), y)
    y = b(o("Transpose", (0, 2, 1)), b(o("Squeeze"), y, i64(2)))
    return b(o("Softmax", 2), b(o("Add"), b(o("MatMul"), y, whole(6, 5)), whole(5)))


@network(x=(1, 1, 32))
def speech_frames(b: Builder, x: Value) -> Any:
    """Windows by convolution, magnitudes, a convolution over time, in one dimension."""
    y = b(o("Conv", strides=(4,)), b(o("Pad", "reflect"), x, i64(0, 0, 4, 0, 0, 4)), whole(10, 1, 8))
    real = b(o("Slice"), y, i64(0), i64(5), i64(1))
    imaginary = b(o("Slice"), y, i64(5), i64(99), i64(1))
    power = b(o("Add"), b(o("Pow"), real, f32(2)), b(o("Pow"), imaginary, f32(2)))
    return b(o("Relu"), b(o("Conv", pads=(1, 1)), b(o("Sqrt"), power), whole(4, 5, 3), whole(4)))


def _layer_norm(b: Builder, x: Any) -> Any:
    mean = b(o("ReduceMean"), x, i64(-1))
    d = b(o("Sub"), x, mean)
    variance = b(o("ReduceMean"), b(o("Pow"), d, f32(2)), i64(-1))
    y = b(o("Div"), d, b(o("Sqrt"), b(o("Add"), variance, f32(1e-5))))
    return b(o("Add"), b(o("Mul"), y, whole(8, seed=8)), whole(8, seed=9))


def _heads(b: Builder, x: Any, n: Any, seed: int) -> Any:
    y = b(o("Add"), b(o("MatMul"), x, whole(8, 8, seed=seed)), whole(8, seed=seed))
    shape = b(o("Concat", 0), n, i64(2, 4))
    return b(o("Transpose", (0, 2, 1, 3)), b(o("Reshape"), y, shape))


@network(x=("batch", "sequence", 8), mask=("batch", 1, 1, "sequence"))
def transformer(b: Builder, x: Value, mask: Value) -> Any:
    """One layer as exporters spell it: norms, heads, scores divided by a root, gelu by erf."""
    y = _layer_norm(b, x)
    n = b(o("Shape", 0, 2), y)
    q, k, v = (_heads(b, y, n, seed) for seed in (1, 2, 3))
    scores = b(o("Div"), b(o("MatMul"), q, b(o("Transpose", (0, 1, 3, 2)), k)), f32(2).reshape(()))
    weights = b(o("Softmax"), b(o("Add"), scores, mask))
    y = b(o("Transpose", (0, 2, 1, 3)), b(o("MatMul"), weights, v))
    y = b(o("Reshape"), y, b(o("Concat", 0), n, i64(8)))
    x = b(o("Add"), x, b(o("Add"), b(o("MatMul"), y, whole(8, 8)), whole(8)))
    y = b(o("Add"), b(o("MatMul"), _layer_norm(b, x), whole(8, 16)), whole(16))
    g = b(o("Add"), b(o("Erf"), b(o("Div"), y, f32(np.sqrt(2)).reshape(()))), f32(1).reshape(()))
    y = b(o("Mul"), b(o("Mul"), y, g), f32(0.5).reshape(()))
    return b(o("Add"), x, b(o("Add"), b(o("MatMul"), y, whole(16, 8)), whole(8)))


@network(x=(1, 3, 8, 8))
def hard_swish_block(b: Builder, x: Value) -> Any:
    """x * clip(x + 3, 0, 6) / 6 behind a convolution, then scalars before a pointwise and a depthwise one."""
    y = conv(b, x, 3, 4)
    y = b(o("Div"), b(o("Mul"), y, b(o("Clip", 0.0, 6.0), b(o("Add"), y, f32(3)))), f32(6))
    y = b(o("Add"), b(o("Mul"), f32(2), y), f32(-1))
    y = b(o("Sigmoid"), conv(b, y, 4, 4, 1))
    return conv(b, b(o("Add"), b(o("Mul"), f32(2), y), f32(-1)), 4, 4, 3, group=4)


@network(x=("n", 3, "h", "w"))
def pyramid(b: Builder, x: Value) -> Any:
    """Two scales joined by a resize, transposed convolution and sigmoid at the end."""
    fine = b(o("Relu"), conv(b, x, 3, 4, stride=2))
    coarse = b(o("Relu"), conv(b, fine, 4, 4, stride=2))
    up = b(o("Resize", "nearest", "asymmetric", "floor"), coarse, None, f32(1, 1, 2, 2))
    y = b(
        o("Concat", 1),
        conv(b, up, 4, 2, 1),
        b(o("Resize", "nearest", "asymmetric", "floor"), up, None, f32(1, 1, 1, 1)),
    )
    return b(o("Sigmoid"), b(o("ConvTranspose", strides=(2, 2)), y, whole(6, 1, 2, 2), f32(1)))


@network(x=(2, 4))
def control_flow(b: Builder, x: Value) -> Any:
    """A branch chosen by the shape: it disappears."""
    branches = []
    for name in ("Relu", "Neg"):
        g = Graph(name)
        y = g.add_input("y", x.type)
        g.add_output(Builder(g)(o(name), y))
        branches.append(g)
    cond = b(o("Equal"), b(o("Gather", 0), b(o("Shape"), x), np.array(1, I64)), np.array(4, I64))
    return b(o("Add"), b.node(o("If", *branches), cond, x).output, b(o("Identity"), x))


@network(x=("n", 4, 6, 6))
def group_norm_block(b: Builder, x: Value) -> Any:
    """Group norm as exporters spell it, a gate x * sigmoid(x), a convolution and the way around them."""
    y = b(o("InstanceNormalization"), b(o("Reshape"), x, i64(0, 2, -1)), f32(1, 1), f32(0, 0))
    y = b(o("Reshape"), y, b(o("Shape"), x))
    y = b(o("Add"), b(o("Mul"), y, whole(4, 1, 1, seed=6)), whole(4, 1, 1, seed=7))
    y = b(o("Mul"), y, b(o("Sigmoid"), y))
    return b(o("Add"), conv(b, y, 4, 4), x)
