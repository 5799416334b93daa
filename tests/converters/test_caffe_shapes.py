"""Sizes of Caffe's windows, for any attributes, against BVLC's own rules written as loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bench.caffe_nets import caffemodel
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import F32, Array

few = settings(deadline=None, database=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))
numbers = st.integers(1, 5)


def net(kind: str, param: str, x: Array) -> bytes:
    shape = " ".join(f"dim: {d}" for d in x.shape)
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }}\n'
    return (text + f'layer {{ name: "l" type: "{kind}" bottom: "x" top: "y" {param} }}').encode()


def windows(size: int, kernel: int, stride: int, pad: int, up: bool) -> list[tuple[int, int]]:
    """Begin and end of each window, before they are cut at the image; ends reach into the padding at most."""
    count = (-(-(size + 2 * pad - kernel) // stride) if up else (size + 2 * pad - kernel) // stride) + 1
    if pad and (count - 1) * stride >= size + pad:
        count -= 1
    return [(i * stride - pad, min(i * stride - pad + kernel, size + pad)) for i in range(count)]


def pooled(x: Array, kernel: int, stride: int, pad: int, up: bool, kind: str) -> Array:
    rows, columns = (windows(s, kernel, stride, pad, up) for s in x.shape[2:])
    y = np.zeros((*x.shape[:2], len(rows), len(columns)))
    for i, (top, bottom) in enumerate(rows):
        for j, (left, right) in enumerate(columns):
            part = x[:, :, max(top, 0) : bottom, max(left, 0) : right]
            area = (bottom - top) * (right - left)
            y[:, :, i, j] = part.max((2, 3)) if kind == "MAX" else part.sum((2, 3)) / area
    return y


@few
@given(height=st.integers(1, 12), width=st.integers(1, 12), kernel=numbers, stride=numbers, pad=st.integers(0, 3),
       up=st.booleans(), kind=st.sampled_from(["MAX", "AVE"]))  # fmt: skip
def test_pools(height: int, width: int, kernel: int, stride: int, pad: int, up: bool, kind: str) -> None:
    assume(pad < kernel <= min(height, width) + 2 * pad)
    assume(all(begin < s for s in (height, width) for begin, _ in windows(s, kernel, stride, pad, up)))
    x = np.random.default_rng(height * width).normal(0, 1, (1, 2, height, width)).astype(F32)
    mode = "CEIL" if up else "FLOOR"
    param = f"pooling_param {{ pool: {kind} kernel_size: {kernel} stride: {stride} pad: {pad} round_mode: {mode} }}"
    graph = bn.load(net("Pooling", param, x))
    y = interpret(graph, {"x": x})["y"]
    assert graph.outputs[0].type.shape == y.shape
    np.testing.assert_allclose(y, pooled(x, kernel, stride, pad, up, kind), rtol=1e-5, atol=1e-6)


def test_a_window_behind_the_image_has_what_an_empty_one_has() -> None:
    """Without padding BVLC keeps it: the least number of f32, and 0 / 0."""
    x = np.ones((1, 1, 4, 4), F32)
    nets = (net("Pooling", f"pooling_param {{ pool: {kind} kernel_size: 1 stride: 2 }}", x) for kind in ("MAX", "AVE"))
    least, nothing = (interpret(bn.load(text), {"x": x})["y"] for text in nets)
    assert least.shape == nothing.shape == (1, 1, 3, 3)
    assert (least[0, 0, 2] == np.finfo(F32).min).all()
    assert np.isnan(nothing[0, 0, 2]).all()
    assert (least[0, 0, :2, :2] == 1).all()


@pytest.mark.parametrize("size", ["kernel_size: 2 stride: 2", "global_pooling: true"])
def test_a_mean_by_its_own_weights(size: str) -> None:
    """As BVLC's stochastic pool is at test; 0 where all weights are 0."""
    x = np.array([[[[0, 0, 1, 3], [0, 0, 0, 4]], [[1, 1, 0, 0], [1, 1, 0, 2]]]], F32)
    graph = bn.load(net("Pooling", f"pooling_param {{ pool: STOCHASTIC {size} }}", x))
    part = x.reshape(1, 2, 1, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 1, 2, 4)
    part = x.reshape(1, 2, 1, 1, 8) if "global" in size else part
    total = part.sum(-1)
    wanted = np.where(total > 0, (part**2).sum(-1) / np.maximum(total, 1), 0)
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], wanted, rtol=1e-6)


@few
@given(size=st.integers(1, 9), kernel=numbers, stride=numbers, pad=st.integers(0, 3), dilation=st.integers(1, 3))
def test_convolutions_and_their_transposes(size: int, kernel: int, stride: int, pad: int, dilation: int) -> None:
    span = dilation * (kernel - 1) + 1
    x = np.ones((1, 1, size), F32)
    weights = {"l": ("", [np.arange(1, kernel + 1, dtype=F32).reshape(1, 1, kernel)])}
    param = f"convolution_param {{ num_output: 1 kernel_size: {kernel} stride: {stride} pad: {pad} dilation: {dilation}"
    model = caffemodel("net", weights)
    if size + 2 * pad >= span:
        graph = bn.load(net("Convolution", f"{param} bias_term: false }}", x), weights=model)
        assert graph.outputs[0].type.shape == (1, 1, (size + 2 * pad - span) // stride + 1)
    wanted = stride * (size - 1) + span - 2 * pad
    assume(wanted > 0)
    graph = bn.load(net("Deconvolution", f"{param} bias_term: false }}", x), weights=model)
    y = np.zeros(wanted + 2 * pad)
    for i, k in np.ndindex(size, kernel):
        y[i * stride + k * dilation] += k + 1
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"][0, 0], y[pad : pad + wanted])
