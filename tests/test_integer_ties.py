"""Fused integer operators give the codes of their definition for all pairs of bytes, ties to even included.

Scales are powers of two, so each definition is exact in f32, and every second code or so is a tie.  A code is
``round(x / scale) + zero point``: with an odd zero point, rounding the sum of both would take ties the other way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise import Clip, LeakyRelu, Relu
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import F32, I8, I32, I64, U8, AnyDType, Array, TensorType
from tests.lower_isa import IS_LOWER
from tests.rule_cases import o

Body = Callable[[Builder, Value, Value], Any]
KINDS = [(U8, U8), (I8, I8), (U8, I8)]
ENDS: dict[AnyDType, tuple[int, int, int]] = {U8: (0, 255, 77), I8: (-128, 127, -3)}
"""Zero points: the least, the greatest, an odd one between."""
PLACES = [(2, 2, 2), (0, 0, 0), (1, 1, 1), (0, 1, 2), (1, 0, 0), (2, 0, 1)]
NUMBERS = np.array([0, 0.25, 1.75, -2.25, np.inf, -np.inf, np.nan, 3e38], F32)
"""Added to what bytes stand for: ties, and what is no number."""


def numbers(*dims: int) -> Array:
    return np.resize(NUMBERS, dims)


def filters(dtype: AnyDType, *dims: int) -> Array:
    return np.resize(np.array([1, -1, 3, 2, -5], dtype), dims)


def weights(b: Builder, *dims: int) -> Value:
    return b(DequantizeLinear(0), filters(I8, *dims), np.array(0.5, F32), np.array(0, I8))  # type: ignore[no-any-return]


def bias(b: Builder, n: int) -> Value:
    """In units of the sums, 0.25."""
    return b(DequantizeLinear(0), filters(I32, n), np.full(n, 0.25, F32), np.zeros(n, I32))  # type: ignore[no-any-return]


POINTWISE: dict[str, Body] = {
    "add": lambda b, x, y: b(o("Add"), x, y),
    "sub": lambda b, x, y: b(o("Sub"), x, y),
    "mul": lambda b, x, y: b(o("Mul"), x, y),
    "relu of a sum": lambda b, x, y: b(Relu(), b(o("Add"), x, y)),
    "clip of a difference": lambda b, x, y: b(Clip(-3.0, 6.0), b(o("Sub"), x, y)),
    "sum of a product": lambda b, x, y: b(o("Add"), b(o("Mul"), x, y), x),
    "sum of three": lambda b, x, y: b(o("Sub"), b(o("Add"), x, y), y),
    "sum with floats": lambda b, x, y: b(o("Add"), b(o("Sub"), x, y), numbers(1 << 16)),
    "relu of a sum with floats": lambda b, x, y: b(Relu(), b(o("Add"), x, numbers(1 << 16))),
    "of one": lambda b, x, y: b(o("Add"), x, np.array(0.75, F32)),
    "greatest": lambda b, x, y: b(o("Max"), x, y),
}
"""Of x and y: [65536]."""


def with_residual(b: Builder, x: Value, y: Value) -> Any:
    return b(o("Add"), b(Conv(), x, weights(b, 2, 2, 1, 1), bias(b, 2)), y)


SPATIAL: dict[str, Body] = {
    "convolution": lambda b, x, y: b(Conv(), x, weights(b, 3, 2, 1, 1), bias(b, 3)),
    "activated convolution": lambda b, x, y: b(LeakyRelu(0.5), b(Conv(), x, weights(b, 3, 2, 1, 1), bias(b, 3))),
    "bounded convolution": lambda b, x, y: b(Clip(-2.0, 6.0), b(Conv(), x, weights(b, 3, 2, 1, 1))),
    "convolution and residual": with_residual,
    "depthwise convolution": lambda b, x, y: b(Conv(group=2, pads=(0, 1, 0, 0)), x, weights(b, 2, 1, 1, 2), bias(b, 2)),
    "transposed convolution": lambda b, x, y: b(ConvTranspose((1, 2)), x, weights(b, 2, 2, 1, 2)),
    "matrix product": lambda b, x, y: b(
        o("MatMul"), b(o("Transpose", (0, 2, 3, 1)), x), b(o("Transpose", (1, 0)), weights(b, 3, 2))
    ),
    "mean of channels": lambda b, x, y: b(o("ReduceMean"), x, np.array([1], I64)),
    "many depthwise convolutions": lambda b, x, y: b(
        Conv(group=40, pads=(1, 1, 1, 1)), b(o("Concat", 1), *[x] * 20), weights(b, 40, 1, 3, 3), bias(b, 40)
    ),
}
"""Of x: [1, 2, 256, 256], all pairs along the channels, and y like x."""
WINDOWS: dict[str, Body] = {
    "mean": lambda b, x, y: b(AveragePool((1, 2), (1, 2), layout="NHWC"), x),
    "resize": lambda b, x, y: b(Resize("linear", layout="NHWC"), x, None, None, np.array([1, 2, 256, 256], I64)),
}
"""Of x: [1, 256, 512, 2], all pairs side by side."""


def graph_of(
    body: Body,
    kinds: tuple[AnyDType, AnyDType],
    places: tuple[int, ...],
    shape: tuple[int, ...],
    step: float,
    scales: Any = (0.5, 0.25),
) -> Graph:
    """Bytes of two inputs become numbers, ``body`` computes, the result becomes bytes of the first one's dtype."""
    graph = Graph("pairs")
    b, ends = Builder(graph), []
    for name, dtype, scale, place in zip("xy", kinds, scales, places, strict=False):
        value = graph.add_input(name, TensorType(dtype, shape))
        ends.append(b(DequantizeLinear(), value, np.array(scale, F32), np.array(ENDS[dtype][place], dtype)))
    zero = np.array(ENDS[kinds[0]][places[2]], kinds[0])
    graph.add_output(b(QuantizeLinear(), body(b, *ends), np.array(step, F32), zero), "codes")
    return graph


def pairs(kinds: tuple[AnyDType, AnyDType]) -> list[Array]:
    grid = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    return [part.reshape(-1).view(kind) for part, kind in zip(grid, kinds, strict=True)]


def same_codes(graph: Graph, data: dict[str, Array]) -> None:
    with np.errstate(all="ignore"):
        wanted = interpret(graph, data)["codes"]
    for numerics in ("default", "strict"):
        got = bn.compile(graph, numerics=numerics)(**data)["codes"]
        bad = np.flatnonzero(got != wanted)
        assert not bad.size, f"{bad.size} of {got.size}: {got.flat[bad[0]]}, wanted {wanted.flat[bad[0]]} at {bad[0]}"


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str, places: tuple[int, ...]) -> None:
    for kinds in KINDS[:: 2 if IS_LOWER else 1]:
        x, y = pairs(kinds)
        steps = (0.5, 16.0) if name in ("mul", "sum of a product") else (0.5,)
        for step in steps:
            same_codes(graph_of(POINTWISE[name], kinds, places, x.shape, step), {"x": x, "y": y})


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("name", SPATIAL)
def test_sums_of_bytes(name: str, places: tuple[int, ...]) -> None:
    for dtype in (U8, I8):
        one, two = pairs((dtype, dtype))
        x = np.stack([one, two]).reshape(1, 2, 256, 256)
        same_codes(graph_of(SPATIAL[name], (dtype, dtype), places, x.shape, 0.5), {"x": x, "y": x})


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_bytes(name: str, places: tuple[int, ...]) -> None:
    for dtype in (U8, I8):
        x = np.stack([np.stack(pairs((dtype, dtype)), -1)] * 2, -1).reshape(1, 256, 512, 2)
        graph = graph_of(WINDOWS[name], (dtype, dtype), places, x.shape, 0.5)
        assert [n.op.name for n in run_pipeline(graph).nodes] == ["BetweenBytes"]
        same_codes(graph, {"x": x, "y": x})


@pytest.mark.parametrize("name", ["add", "sub", "mul", "sum of a product"])
def test_other_scales(name: str) -> None:
    """A number within 2 ** -12 of the middle between two codes may get either; all others get theirs."""
    rng, (x, y) = np.random.default_rng(1), pairs((U8, U8))
    for _ in range(4):
        scales = rng.uniform(0.005, 0.1, 3).astype(F32)
        graph = graph_of(POINTWISE[name], (U8, U8), (2, 2, 2), x.shape, float(scales[2]), scales[:2])
        got, zero = bn.compile(graph)(x=x, y=y)["codes"], ENDS[U8][2]
        a, b = ((v.astype(float) - zero) * float(s) for v, s in zip((x, y), scales, strict=False))
        real = {"add": a + b, "sub": a - b, "mul": a * b}.get(name, a * b + a) / float(scales[2])
        apart = got != np.clip(np.rint(real) + zero, 0, 255)
        assert np.abs(np.abs(real - np.trunc(real)) - 0.5)[apart].max(initial=0) < 2.0**-12
