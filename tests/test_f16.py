"""Precision f16: weights in float16 against f64 sums of weights rounded alike, what does not fit, and sessions."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.halves.f16 import fits, pack_panels_f16
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products.pack import PANEL, pack_panels, source_rows
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.registry import KERNELS, QueryContext, load, select
from bolt_numba.kernels.targets import TARGETS, object_code, twin
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import F16, F32, Array, TensorType
from tests.harness import run_kernel
from tests.lower_isa import IS_LOWER
from tests.near import assert_near

RNG = np.random.default_rng(5)
load("cpu")


def rounded(x: Array) -> Array:
    """The nearest float16, as f64."""
    return x.astype(F16).astype(np.float64)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (2, LANES), (33, PANEL), (64, PANEL + 1), (75, 2 * PANEL + LANES)])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_panels_are_those_of_f32_rounded(k: int, n: int, swap: bool, dtype: Any) -> None:
    source = real(n, k).T if swap else real(k, n)
    wanted = pack_panels(source.astype(dtype), source_rows(1, k), 2.0).astype(F16)
    permuted = source_rows(3, k // 3)
    if k % 3 == 0:
        got = pack_panels_f16(np.stack([source, -source]).astype(dtype), permuted, threads=2)
        np.testing.assert_array_equal(got, pack_panels(np.stack([source, -source]).astype(dtype), permuted).astype(F16))
    np.testing.assert_array_equal(pack_panels_f16(source.astype(dtype), source_rows(1, k), 2.0), wanted)


def test_what_fits() -> None:
    w = real(8, 6)
    assert fits(w, -1)[0]
    assert not fits(w, -1, 1e6)[0]
    for value in (7e4, np.inf, -np.inf, np.nan):
        bad = w.copy()
        bad[3, 2] = value
        assert not fits(bad, -1)[0]
    tiny = w.copy()
    tiny[:, 4] *= np.float32(1e-6)  # a column whose digits would be lost
    assert not fits(tiny, -1)[0]
    assert fits(tiny.astype(F16), -1)[0]
    tiny[:, 4] = 0
    tiny[0] *= np.float32(1e-6)  # what is lost beside larger weights of the column is not
    assert fits(tiny, -1)[0]
    assert not fits(tiny.T * np.float32(1), 0, 1e9)[0]


def network(scale: float = 1.0) -> Graph:
    """Two products, the second with weights times ``scale``."""
    graph = Graph("network")
    b, rng = Builder(graph), np.random.default_rng(0)
    value = graph.add_input("x", TensorType(F32, (4, 64)))
    value = b(Relu(), b(MatMul(), value, rng.standard_normal((64, 96), np.float32) / 8))
    graph.add_output(b(MatMul(), value, rng.standard_normal((96, 10), np.float32) * np.float32(scale)), "y")
    return graph


@pytest.mark.parametrize("numerics", ["strict", "default", "fast"])
def test_sessions(numerics: str) -> None:
    x, graph = real(4, 64), network()
    wanted = bn.compile(graph)(x)[0]
    session = bn.compile(graph, precision="fp16", numerics=numerics)
    got = session(x)[0]
    assert 1e-5 < np.abs(got - wanted).max() / np.abs(wanted).max() < 2e-3
    assert [r["runner"] for r in session.report()] == ["matmul_f16"] * 2
    plain = bn.compile(graph)
    plain(x)
    # panels are padded alike, and only they are halved
    assert session.memory()["packed"] < 0.55 * plain.memory()["packed"]
    again = pickle.loads(pickle.dumps(session))
    np.testing.assert_array_equal(again(x)[0], got)
    np.testing.assert_array_equal(bn.compile(graph, precision="f16", numerics=numerics, threads=2)(x)[0], got)


@pytest.mark.parametrize("numerics", ["strict", "default", "fast"])
@pytest.mark.parametrize("scale", [1e6, 1e-8])
def test_weights_that_do_not_fit_stay_f32(numerics: str, scale: float) -> None:
    x, graph = real(4, 64), network(scale)
    session = bn.compile(graph, precision="f16", numerics=numerics)
    wanted, got = bn.compile(graph)(x)[0], session(x)[0]
    assert np.abs(got - wanted).max() < 2e-3 * np.abs(wanted).max()
    assert [r["runner"] for r in session.report()] == ["matmul_f16", "matmul"]


def test_nodes_alike_of_which_one_does_not_fit() -> None:
    graph = Graph("alike")
    b = Builder(graph)
    value = graph.add_input("x", TensorType(F32, (4, 64)))
    weights = [real(64, 64) / 8 for _ in range(3)]
    weights[1][5, 5] = 1e5
    for w in weights:
        value = b(MatMul(), value, w)
    graph.add_output(value, "y")
    x = real(4, 64)
    session = bn.compile(graph, precision="f16")
    wanted, got = bn.compile(graph)(x)[0], session(x)[0]
    assert np.isfinite(got).all()
    assert np.abs(got - wanted).max() < 2e-3 * np.abs(wanted).max()
    assert [r["runner"] for r in session.report()][:2] == ["matmul_f16", "matmul"]


def test_convolutions_of_few_pixels_take_it() -> None:
    names = []
    for size in (1, 40):
        ins = [TensorType(F32, (1, size, size, 64)), TensorType(F32, (96, 64, 1, 1), value=real(96, 64, 1, 1))]
        entry = select(Conv(layout="NHWC"), ins, QueryContext(precision="f16"))
        assert entry is not None
        names.append(entry.name)
    assert names[0] == "conv_f16"
    assert names[1] != "conv_f16"


def test_verify_knows_what_f16_may_lose() -> None:
    report = bn.verify(network(), "reference", precision="f16")
    assert report.ok
    assert 1e-6 < report.error < 2e-3


@pytest.mark.parametrize(("steps", "batch", "inputs", "hidden"), [(7, 1, 40, 34), (1, 1, 9, 48), (4, 3, 64, 20)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_recurrent(layer: Any, direction: str, steps: int, batch: int, inputs: int, hidden: int) -> None:
    """As the reference says with weights rounded alike."""
    count, d = (4 if layer is LSTM else 3), (1 if direction == "forward" else 2)
    how: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    op = LSTM(**how) if layer is LSTM else GRU(**how, linear_before_reset=1)
    scale = np.float32(hidden**-0.5)
    x, b = real(steps, batch, inputs), real(d, 2 * count * hidden)
    w, r = real(d, count * hidden, inputs) * scale, real(d, count * hidden, hidden) * scale
    entry = next(e for e in KERNELS[layer, "cpu"] if e.precision == "f16")
    got = run_kernel(entry, [x, w, r, b], (1, 2), constant=[False, True, True, True], instance=op)
    wanted = op.reference(x.astype(np.float64), rounded(w), rounded(r), b.astype(np.float64))
    for one, two in zip(got, wanted, strict=True):
        assert_near(one, two, 2e-6, floor=1)


def test_recurrent_layers_that_do_not_fit_stay_f32() -> None:
    graph = Graph("lstm")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (3, 1, 8)))
    for hidden, most in ((8, 1.0), (7, 1.0), (8, 1e5)):
        w, r = real(1, 4 * hidden, 8), real(1, 4 * hidden, hidden)
        w[0, 3, 3] = most
        graph.add_output(b(LSTM(hidden_size=hidden), x, w, r)[0])
    session = bn.compile(graph, precision="f16")
    session(real(3, 1, 8))
    assert [r["runner"] for r in session.report()] == ["lstm_f16", "lstm", "lstm"]


CONVERTS = ("avx512", "avxvnni", "avx2")
"""Targets of x86 that have an instruction for it."""


@pytest.mark.skipif(IS_LOWER, reason="its targets are not this process's")
@pytest.mark.parametrize("name", TARGETS)
def test_weights_are_widened_in_registers(name: str) -> None:
    """By instructions where the target has them, never by calls of a library."""
    made = twin(name)
    kernel = sys.modules[f"{made.__name__}.halves.f16"].sweep_f16
    code = object_code(kernel)
    for call in (b"__extendhfsf2", b"__truncsfhf2", b"__gnu_h2f_ieee", b"__gnu_f2h_ieee"):
        assert call not in code
    if target().is_x86 and not name.startswith("aarch64"):
        compiler = sys.modules[type(kernel).__module__.rpartition(".")[0] + ".compiler"]
        assert ("vcvtph2ps" in compiler.assembly(kernel)) == (name in CONVERTS)
