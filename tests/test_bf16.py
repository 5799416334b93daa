"""Precision bf16: products of bfloat16 against f64 sums of operands rounded alike, sessions, and what verify says."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import bolt_numba as bn
from bolt_numba.cli.app import app
from bolt_numba.devices.cpu import Cpu
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.attention.attention_bf16 import attention_bf16
from bolt_numba.kernels.cpu.halves.bf16 import conv_bf16, matmul_bf16
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products.pack import PANEL, panel_columns, source_rows
from bolt_numba.kernels.cpu.products.sweep_bf16 import pack_panels_bf16
from bolt_numba.kernels.registry import KERNELS, QueryContext, always, candidates, load, select
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Flatten
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM
from bolt_numba.ops.pointwise import Clip, Gelu, Relu
from bolt_numba.runtime.device import Device
from bolt_numba.types import F32, Array, TensorType
from bolt_numba.verification import compare
from tests.harness import plans, run_kernel, run_planned
from tests.models import FetchError, fetch
from tests.near import assert_near

RNG = np.random.default_rng(5)
load("cpu")
# These makers, whatever is cheaper.
ENTRIES = {
    kind: replace(next(e for e in KERNELS[kind, "cpu"] if e.name == maker.__name__), accepts=always)
    for kind, maker in ((Conv, conv_bf16), (MatMul, matmul_bf16), (FusedAttention, attention_bf16))
}


def rounded(x: Array) -> Array:
    """The nearest bfloat16, as f64."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    """Behind a product it is short: near the exact one, which another session has."""
    op, inputs = MatMul(activation=Gelu(approximate)), [real(30, 64) / 8, real(64, 40)]
    (got,) = run_kernel(ENTRIES[MatMul], inputs, (1, 2), constant=[False, True], instance=op)
    wanted = op.reference(*(rounded(x) for x in inputs))
    assert 1e-6 < np.abs(got - wanted).max() < 1.2e-4


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.tuples(st.integers(5, 40), st.integers(1, 70), st.integers(1, 70), st.integers(1, 40)),
    form=st.sampled_from(["plain", "causal", "masked", "SHD", "packed"]), heads=st.integers(1, 3),
)  # fmt: skip
def test_attention(sizes: tuple[int, int, int, int], form: str, heads: int) -> None:
    """Within what rounding the exponentials may change of a mean of values."""
    m, n, d, width = sizes
    n, width = (m, d) if form == "packed" else (n, width)
    turned = form in ("SHD", "packed")
    layouts = dict.fromkeys(("q_layout", "k_layout", "v_layout", "y_layout"), "SHD") if turned else {}
    op = FusedAttention(0.25, form == "causal", **layouts, packed=form == "packed")
    inputs: list[Array | None] = [real(2, heads, rows, depth) for rows, depth in ((m, d), (n, d), (n, width))]
    if turned:
        inputs = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in inputs if x is not None]
    if form == "packed":
        inputs = [real(2, m, 3 * heads, d)]
    exact = [rounded(x) for x in inputs if x is not None]
    if form == "masked":
        inputs.append(np.where(real(2, 1, m, n) > 1, np.float32(-1e4), real(2, 1, m, n)))
        exact.append(inputs[-1].astype(np.float64))  # type: ignore[union-attr]
    values, wanted = exact[0 if form == "packed" else 2], op.reference(*exact)
    for planned in plans(ENTRIES[FusedAttention], inputs, [False] * len(inputs), instance=op):
        (got,) = run_planned(planned, inputs)
        assert np.abs(got - wanted).max() < 1.01 * 2.0**-9 * np.abs(values).max()


def test_attention_takes_few_queries_as_they_are() -> None:
    ins = [TensorType(F32, (1, 2, 3, 16))] * 3
    names = [[e.name for e in candidates(FusedAttention(), ins, QueryContext(precision=p))] for p in ("f32", "bf16")]
    assert names == [["attention_f32"], ["attention_f32"]]


def gates(x: Array, h: Array, w: Array, r: Array, b: Array) -> tuple[Array, Array]:
    """Input and recurrent products of one direction with biases; all but the biases rounded."""
    w_bias, r_bias = np.split(b[0].astype(np.float64), 2)
    return rounded(x) @ rounded(w[0]).T + w_bias, rounded(h.astype(np.float32)) @ rounded(r[0]).T + r_bias


def sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(-x))
    return y


@pytest.mark.parametrize(("steps", "batch", "inputs", "hidden"), [(7, 1, 40, 33), (1, 1, 9, 48), (4, 3, 64, 20)])
@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_recurrent(layer: Any, steps: int, batch: int, inputs: int, hidden: int) -> None:
    count = 4 if layer is LSTM else 3
    op = LSTM(hidden_size=hidden) if layer is LSTM else GRU(hidden_size=hidden, linear_before_reset=1)
    scale = np.float32(hidden**-0.5)
    x, b = real(steps, batch, inputs), real(1, 2 * count * hidden)
    w, r = real(1, count * hidden, inputs) * scale, real(1, count * hidden, hidden) * scale
    entry = next(e for e in KERNELS[layer, "cpu"] if e.precision == "bf16")
    got, *_ = run_kernel(entry, [x, w, r, b], (1, 2), constant=[False, True, True, True], instance=op)
    h, c = np.zeros((batch, hidden)), np.zeros((batch, hidden))
    for t in range(steps):
        a, s = gates(x[t], h, w, r, b)
        if layer is LSTM:
            i, o, f, g = np.split(a + s, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (az, ar, an), (sz, sr, sn) = np.split(a, 3, axis=1), np.split(s, 3, axis=1)
            z = sigmoid(az + sz)
            h = (1 - z) * np.tanh(an + sigmoid(ar + sr) * sn) + z * h
        assert_near(got[t, 0], h, 2e-3, floor=1)  # a state on the edge may round the other way


@pytest.mark.parametrize(("k", "n"), [(1, 1), (2, LANES), (33, PANEL), (64, PANEL + 1), (75, 2 * PANEL + LANES)])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_panels_hold_pairs(k: int, n: int, swap: bool, depth: int) -> None:
    k -= k % depth if depth < k else 0
    depth = depth if k % depth == 0 else 1
    source = real(2, n, k).swapaxes(1, 2) if swap else real(2, k, n)
    packed = pack_panels_bf16(source, source_rows(k // depth, depth), 2.0)
    order = np.arange(k).reshape(depth, k // depth).T.reshape(-1)
    padded = np.zeros((2, k + k % 2, panel_columns(n)), np.float32)
    padded[:, :k, :n] = 2 * source[:, order]
    wanted = []
    for block in padded.astype(ml_dtypes.bfloat16).view(np.uint16):
        panels = [block[:, j : j + PANEL] for j in range(0, block.shape[1], PANEL)]
        pairs = [p.reshape(-1, 2, p.shape[1]).swapaxes(1, 2) for p in panels]
        wanted.append(np.concatenate([p.reshape(-1) for p in pairs]))
    np.testing.assert_array_equal(packed.view(np.uint16).reshape(2, -1), wanted)


def test_bands_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide convolution and the depthwise one behind it, joined or not: the same bits."""
    rng, graph = np.random.default_rng(0), Graph("bands")
    b = Builder(graph)
    value = graph.add_input("x", TensorType(F32, (1, 20, 90, 90)))
    value = b(Clip(0.0, 6.0), b(Conv(), value, rng.standard_normal((96, 20, 1, 1), np.float32)))
    filters = rng.standard_normal((96, 1, 3, 3), np.float32)
    graph.add_output(b(Conv(strides=(2, 2), pads=(1, 1, 1, 1), group=96), value, filters), "y")
    x = real(1, 20, 90, 90)
    joins = Cpu.join, Device.join
    for threads in (1, 2):
        sessions = []
        for join in joins:
            monkeypatch.setattr("bolt_numba.devices.cpu.BETWEEN_BYTES", 1 << 20)
            monkeypatch.setattr(Cpu, "join", join)
            sessions.append(bn.compile(graph, precision="bf16", threads=threads))
            sessions[-1](x)
        joined = [any(r["runner"] == "conv_bf16 + depthwise" for r in s.report()) for s in sessions]
        assert joined == [True, False]
        np.testing.assert_array_equal(sessions[0](x)[0], sessions[1](x)[0])


def test_only_sessions_that_ask_for_it_get_it() -> None:
    for size in (64, 1024):
        ins = [TensorType(F32, (size, size)), TensorType(F32, (size, size), value=real(size, size))]
        names = [e.name for p in ("f32", "bf16") if (e := select(MatMul(), ins, QueryContext(precision=p))) is not None]
        assert names[0] != names[1] == "matmul_bf16"
    with pytest.raises(DeviceError, match="precision: got 'int3', wanted one of f32, bf16, f16; 8 bits"):
        bn.Session(network(), precision="int3")
    assert bn.Session(network(), precision="fp32").precision == "f32"


def network() -> bn.Graph:
    """A convolution of few channels, one of more with stride, and a classifier."""
    rng, graph = np.random.default_rng(0), Graph("network")
    b = Builder(graph)
    value = graph.add_input("x", TensorType(F32, (1, 3, 32, 32)))
    for count, depth, stride in ((32, 3, 1), (64, 32, 2)):
        w = rng.standard_normal((count, depth, 3, 3), np.float32) * np.float32((2 / (9 * depth)) ** 0.5)
        value = b(Relu(), b(Conv(strides=(stride, stride), pads=(1, 1, 1, 1)), value, w))
    value = b(Flatten(), b(ReduceMean(), value, np.array([2, 3])))
    graph.add_output(b(MatMul(), value, rng.standard_normal((64, 10), np.float32)), "scores")
    return graph


def test_sessions() -> None:
    x = real(1, 3, 32, 32)
    graph = network()
    plain, narrow = bn.compile(graph), bn.compile(graph, precision="bf16", threads=1)
    wanted, got = plain(x)[0], narrow(x)[0]
    error = float(np.abs(got - wanted).max() / np.abs(wanted).max())
    assert 1e-6 < error < 1e-2
    assert any(r["runner"] == "conv_bf16" for r in narrow.report())
    assert "bf16" in repr(narrow)
    again = pickle.loads(pickle.dumps(narrow))
    assert again.precision == "bf16"
    np.testing.assert_array_equal(again(x)[0], got)
    np.testing.assert_array_equal(bn.compile(graph, precision="bf16", threads=2)(x)[0], got)


def test_verify_reports_the_error() -> None:
    report = bn.verify(network(), "reference", precision="bf16")
    assert report.ok
    assert 1e-5 < report.error < 1e-2
    assert f"error of bf16: {100 * report.error:.3g} % of the largest value" in str(report)
    assert not bn.verify(network(), "reference", precision="bf16", rtol=1e-6, atol=1e-7).ok
    assert bn.verify(network(), "reference").error < 1e-5


def test_the_error_of_what_ought_to_be_zero() -> None:
    zeros = np.zeros(3, np.float32)
    made = [compare("y", "output", got, zeros, 0.05, 1e-4).scaled for got in (zeros, zeros + 1e-9)]
    assert made == [0, np.inf]


def test_command_line(tmp_path: Path) -> None:
    path = str(tmp_path / "network.bolt")
    bn.save(network(), path)

    def call(*args: str) -> Any:
        done = CliRunner().invoke(app, [*args, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    report = call("verify", path, "--against", "reference", "--precision", "bf16")
    assert report["precision"] == "bf16"
    assert 1e-5 < report["error"] < 1e-2
    means = [call("run", path, "--precision", p)["outputs"][0]["mean"] for p in ("f32", "bf16")]
    assert means[0] != means[1]
    rows = call("profile", path, "--precision", "bf16", "--runs", "1")
    assert "conv_bf16" in json.dumps(rows)
    figures = call("bench", path, "--precision", "bf16", "--seconds", "0.1", "--no-processes")
    assert figures["precision"] == "bf16"
    assert CliRunner().invoke(app, ["run", path, "--precision", "f8"]).exit_code == 2
    assert CliRunner().invoke(app, ["convert", path, "--precision", "bf16"]).exit_code == 2
    ready = str(tmp_path / "ready.bolt")
    call("convert", path, "--pack", "--precision", "bf16", "-o", ready)
    x = real(1, 3, 32, 32)
    for precision in ("f32", "bf16"):
        one, two = (bn.compile(p, precision=precision)(x)[0] for p in (path, ready))
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("name", "limit", "runner"), [("open_nsfw.onnx", 0.03, "conv_bf16"), ("minilm.onnx", 0.01, "matmul_bf16")]
)
def test_real_models(name: str, limit: float, runner: str) -> None:
    """A residual network and a transformer with learnt weights: close to f32, and they say the same."""
    try:
        path = str(fetch(name))
    except FetchError as error:
        pytest.skip(str(error))
    plain, narrow = bn.compile(path), bn.compile(path, precision="bf16")
    rng = np.random.default_rng(0)
    for _ in range(3):
        if name == "minilm.onnx":
            ids = rng.integers(1000, 20000, (1, 32))
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        else:
            feeds = {"input_1": rng.standard_normal((1, 224, 224, 3), np.float32)}
        feeds = {s.name: feeds.get(s.name, next(iter(feeds.values()))) for s in plain.inputs}
        wanted, got = plain(feeds)[0], narrow(feeds)[0]
        assert np.abs(got - wanted).max() < limit * np.abs(wanted).max()
        same = got.argmax(-1) == wanted.argmax(-1)
        assert same.mean() > 0.9
    assert any(r["runner"] == runner for r in narrow.report())


def test_exact_functions_stay_exact_behind_short_ones() -> None:
    """Whoever asked first: nodes of f32 have their own function, in one process with those of bfloat16."""
    code = (
        "from bolt_numba.kernels.cpu.products.epilogue import tile_function as f\n"
        "from bolt_numba.ops.pointwise import Gelu\n"
        "found = {short: f(Gelu(), short).digest for short in (%s)}\n"
        "print(found[False], found[True])"
    )
    orders = ("True, False", "False, True")
    told = [subprocess.check_output([sys.executable, "-c", code % order], text=True).split() for order in orders]
    assert told[0] == told[1]
    assert told[0][0] != told[0][1]
