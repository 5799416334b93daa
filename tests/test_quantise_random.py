"""Random networks in the QDQ form: whatever rules meet in them, results are those of the references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.pointwise import Relu, Sigmoid
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import F32, I8, U8
from tests.rule_cases import i64, o
from tests.test_quantise import ACTIVATIONS, Layers, any_bytes, data_for

CHANNELS, LAYERS = 8, 6
Layer = Callable[[Layers, Value, Value], Any]


def rounded(net: Layers, v: Value) -> Value:
    """Quantised by numbers of its own, and back."""
    dtype = (U8, I8)[net.rng.integers(2)]
    zero = (np.array(0, dtype), any_bytes(net.rng, dtype))[net.rng.integers(2)]
    scale = np.array(net.rng.uniform(0.02, 0.08), F32)
    return net.real(net.b(o("QuantizeLinear"), v, scale, zero), scale, zero)


def convolution(net: Layers, v: Value, _: Value) -> Any:
    group = int(net.rng.choice([1, 1, CHANNELS]))
    scales = net.rng.uniform(0.005, 0.02, CHANNELS).astype(F32)
    filters = any_bytes(net.rng, I8, CHANNELS, CHANNELS // group, 3, 3)
    bias = [net.rng.normal(0, 1, CHANNELS).astype(F32)] * int(net.rng.integers(2))
    w = net.real(filters, scales, np.zeros(CHANNELS, I8), 0)
    y = net.b(o("Conv", pads=(1, 1, 1, 1), group=group), v, w, *bias)
    activation = ACTIVATIONS[net.rng.integers(len(ACTIVATIONS))]
    return y if activation is None else net.b(activation, y)


def joined(net: Layers, v: Value, other: Value) -> Any:
    return net.b(o("Slice"), net.b(o("Concat", 1), v, other), i64(4), i64(4 + CHANNELS), i64(1))


def moved(net: Layers, v: Value, _: Value) -> Any:
    inner = net.b(o("Slice"), v, i64(1), i64(2**62), i64(2))
    return net.b(o("Pad"), inner, i64(0, 0, 1, 0, 0, 0, 0, 0))


def pooled(kind: str) -> Layer:
    return lambda net, v, _: net.b(o(kind, (3, 3), (1, 1), (1, 1, 1, 1)), v)


KINDS: tuple[Layer, ...] = (
    *(convolution, convolution, convolution, convolution, joined, moved, pooled("MaxPool"), pooled("AveragePool")),
    lambda net, v, other: net.b(o("Add"), v, other),
    lambda net, v, other: net.b(o("Mul"), v, other),
    lambda net, v, _: net.b((Relu(), Sigmoid())[net.rng.integers(2)], v),
    lambda net, v, _: net.b(o("Mul"), v, net.b(o("ReduceMean"), v, i64(2, 3))),
)


def network(seed: int) -> Graph:
    """Layers that read any layer before; most results are rounded, some inputs have sizes that only the run tells."""
    net = Layers(seed, x=(F32, *(("n", CHANNELS, "h", "w") if seed % 3 == 0 else (1, CHANNELS, 8, 8))))
    values = [rounded(net, net.inputs[0])]
    for _ in range(LAYERS):
        v, other = (values[net.rng.integers(len(values))] for _ in range(2))
        y = KINDS[net.rng.integers(len(KINDS))](net, v, other)
        values.append(rounded(net, y) if net.rng.random() < 0.75 else y)
    net.graph.add_output(net.stored(values[-1], 0.05, U8, np.array(128, U8)), "y")
    if net.rng.random() < 0.3:
        net.graph.add_output(values[len(values) // 2], "z")
    return net.graph


@pytest.mark.parametrize("seed", range(24))
def test_random_networks(seed: int) -> None:
    graph = network(seed)
    run_pipeline(graph, check=True)
    data = data_for(graph, seed, n=2, h=7, w=9)
    got, wanted = bn.compile(graph, threads=1)(**data)["y"], interpret(graph, data)["y"]
    apart = np.abs(got.astype(int) - wanted.astype(int))
    assert apart.max() <= 3, "a level between two layers may become a few behind more of them"
    assert (apart > 0).mean() <= 0.1
