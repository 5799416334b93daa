"""Networks of twofold values: sessions give what the float graph gives, bit by bit, whatever the form and the shape."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.ops.layers.products.binary import BinaryPack, packed_bits, unpacked_values
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.quantize.layers import layers_of
from bolt_numba.surgery import packed
from bolt_numba.types import F32, Array
from tests.rule_cases import f32, graph_of, i64, o
from tests.rule_cases_binary import weights, where

FORMS: dict[str, Any] = {
    "sign": lambda b, x: b(o("Sign"), x),
    "where": where,
    "larq": lambda b, x: where(b, x, "GreaterOrEqual"),
    "less": lambda b, x: where(b, x, "Less", 0, -1, 1),
    "cast": lambda b, x: b(o("Cast", F32), b(o("Greater"), x, f32(0.5))),
    "round": lambda b, x: b(o("Round"), b(o("Clip", 0, 1), x)),
}
"""How files spell twofold values."""


def whole(rng: Any, *shape: int) -> Array:
    """Small whole numbers, of which many are 0."""
    return np.asarray(rng.integers(-2, 3, shape), F32)


def statistics(rng: Any, k: int) -> tuple[Array, ...]:
    """A batch norm's scales of both signs, biases, means and variances that round nothing and let many sums tie."""
    scale = rng.choice(f32(-2, -0.5, 0, 0.5, 1, 2), k)
    return scale, whole(rng, k), whole(rng, k), rng.choice(f32(1, 4, 0.25), k)


def network(form: str, plan: Any, seed: int) -> Any:
    """Layers of (filters, kernel, stride, pad value or None); what stands between two is a batch norm."""
    rng = np.random.default_rng(seed)

    def build(b: Builder, x: Value) -> Value:
        for i, (k, kernel, stride, pad) in enumerate(plan):
            y = FORMS[form](b, x)
            reach, same = kernel // 2, {"pads": (kernel // 2,) * 4}
            if pad is not None:
                y = b(o("Pad"), y, i64(0, 0, reach, reach, 0, 0, reach, reach), f32(pad)[0])
                same = {}
            w = weights(k, (x.type.shape or ())[1], kernel, kernel, seed=seed + i, each=2.0 ** rng.integers(-1, 2))
            y = b(o("Conv", strides=(stride, stride), **same), y, w)
            x = b(o("BatchNormalization", 0.0), y, *statistics(rng, k)) if i % 3 < 2 else y
        return x

    return build


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


LAYER = st.tuples(
    st.integers(1, 70), st.sampled_from([1, 3, 3, 5]), st.sampled_from([1, 1, 2]), st.sampled_from([None, None, 0, 1])
)


@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(FORMS)), st.lists(LAYER, min_size=1, max_size=4), st.integers(1, 200), st.integers(0, 999))
def test_sessions_give_what_the_floats_give(form: str, plan: Any, channels: int, seed: int) -> None:
    """Of any number of channels, with any padding; scales are powers of two, so the floats round nothing either."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(3, 12, 2).tolist()
    graph = graph_of(network(form, plan, seed), {"x": (2, channels, height, width)})
    x = whole(rng, *graph.inputs[0].type.dims)
    wanted = interpret(graph, {"x": x})["out0"]
    assert names(run_pipeline(graph)).count("BinaryConv") == len(plan)
    for threads in (1, 2):
        np.testing.assert_array_equal(bn.compile(graph, threads=threads)(x)[0], wanted)


def tied(form: str, plan: Any, seed: int) -> Any:
    """Layers of (filters, kernel) behind batch norms of whole numbers: irrational factors, yet many ties are exact."""
    rng = np.random.default_rng(seed)

    def norm(b: Builder, x: Value) -> Any:
        k, epsilon = (x.type.shape or ())[1], rng.choice([0, 1e-5, 1e-3])
        numbers = whole(rng, k) - rng.integers(0, 2), whole(rng, k), whole(rng, k), rng.integers(1, 9, k).astype(F32)
        return b(o("BatchNormalization", float(epsilon)), x, *numbers)

    def build(b: Builder, x: Value) -> tuple[Value, ...]:
        seen = x = norm(b, b(o("Conv"), x, whole(rng, 9, (x.type.shape or ())[1], 1, 1)) if seed % 3 else x)
        for i, (k, kernel) in enumerate(plan):
            x = norm(b, x) if i else x
            y, w = FORMS[form](b, x), weights(k, (x.type.shape or ())[1], kernel, kernel, seed=seed + i)
            x = b(o("Conv", pads=(kernel // 2,) * 4), y, w)
        return (x, seen) if seed % 2 else (x,)

    return build


@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(list(FORMS)),
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 3])), min_size=1, max_size=3),
    st.integers(1, 20),
    st.integers(0, 999),
)
def test_ties_behind_batch_norms_stay_ties(form: str, plan: Any, channels: int, seed: int) -> None:
    """A batch norm in the weights of floats, or written as x * a + c, would round a tie to one side."""
    graph = graph_of(tied(form, plan, seed), {"x": (2, channels, 6, 7)})
    x = whole(np.random.default_rng(seed), 2, channels, 6, 7)
    np.testing.assert_array_equal(bn.compile(graph, threads=1)(x)[0], interpret(graph, {"x": x})["out0"])


@pytest.mark.parametrize("form", FORMS)
def test_layers_hand_on_bits(form: str) -> None:
    """Behind a batch norm no float is made: its sign is a threshold of whole numbers."""

    def build(b: Builder, x: Value) -> Value:
        for i in range(3):
            y = b(o("Conv", pads=(1, 1, 1, 1)), FORMS[form](b, x), weights(40, 40, 3, 3, seed=i))
            x = b(o("BatchNormalization"), y, f32(*[1, -1] * 20), f32(*[0.37] * 40), *(f32(*[3] * 40),) * 2)
        return x

    graph = graph_of(build, {"x": (1, 40, 9, 10)})
    made = run_pipeline(graph, check=True)
    assert names(made) == ["BinaryPack", "Transpose", "BinaryConv", "BinaryConv", "BinaryConv", "Transpose"]
    x = whole(np.random.default_rng(3), 1, 40, 9, 10)
    np.testing.assert_allclose(bn.compile(graph)(x)[0], interpret(graph, {"x": x})["out0"], rtol=1e-5, atol=1e-5)


def test_dense_layers() -> None:
    rng = np.random.default_rng(4)

    def build(b: Builder, x: Value) -> Value:
        y = b(o("MatMul"), where(b, b(o("Flatten"), x)), weights(60, 33, each=0.5), whole(rng, 33))
        return b(o("MatMul", trans_b=True), b(o("Sign"), y), weights(7, 33))

    graph, x = graph_of(build, {"x": ("n", 3, 20)}), whole(rng, 5, 3, 20)
    assert names(run_pipeline(graph)).count("BinaryMatMul") == 2
    np.testing.assert_array_equal(bn.compile(graph)(x)[0], interpret(graph, {"x": x})["out0"])


def test_bits_of_shapes_that_only_the_run_tells() -> None:
    graph = graph_of(network("sign", [(33, 3, 1, None), (20, 3, 2, None)], 5), {"x": ("n", 40, "h", "w")})
    session, rng = bn.compile(graph, threads=1), np.random.default_rng(5)
    for n, h, w in ((1, 4, 5), (2, 7, 3), (0, 4, 4), (1, 1, 1), (3, 9, 2), (1, 5, 5), (2, 5, 6), (1, 12, 4)):
        x = whole(rng, n, 40, h, w)
        np.testing.assert_array_equal(session(x)[0], interpret(graph, {"x": x})["out0"])


def test_shortcuts_of_floats_stay() -> None:
    """Bi-Real: what a product adds to is in floats, and its sign is packed."""
    rng = np.random.default_rng(6)
    stats = [statistics(rng, 64) for _ in range(3)]

    def build(b: Builder, x: Value) -> Value:
        for i in range(3):
            y = b(o("Conv", pads=(1, 1, 1, 1)), b(o("Sign"), x), weights(64, 64, 3, 3, seed=i))
            x = b(o("Add"), b(o("BatchNormalization", 0.0), y, *stats[i]), x)
        return x

    graph, x = graph_of(build, {"x": (1, 64, 6, 7)}), whole(rng, 1, 64, 6, 7)
    assert "Add" not in names(run_pipeline(graph, check=True))
    np.testing.assert_array_equal(bn.compile(graph)(x)[0], interpret(graph, {"x": x})["out0"])


def unlike(b: Builder, x: Value) -> Value:
    return b(o("Conv"), where(b, x), weights(3, 4, 3, 3) * f32(1, 1, 1, 2).reshape(4, 1, 1))


REFUSED: dict[str, Any] = {
    "differ in magnitude": unlike,
    "not twofold": lambda b, x: b(o("Conv"), where(b, x, on=3), weights(3, 4, 3, 3)),
    "neither of the two numbers nor 0": lambda b, x: b(
        o("Conv"), b(o("Pad"), where(b, x), i64(0, 0, 1, 1, 0, 0, 1, 1), f32(0.5)[0]), weights(3, 4, 3, 3)
    ),
    "no whole words": lambda b, x: b(o("Conv", group=2), where(b, x), weights(4, 2, 3, 3)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_binary_stays_float(why: str) -> None:
    graph = graph_of(REFUSED[why], {"x": (1, 4, 5, 6)})
    assert "Conv" in names(run_pipeline(graph))
    x = whole(np.random.default_rng(7), 1, 4, 5, 6)
    np.testing.assert_array_equal(bn.compile(graph)(x)[0], interpret(graph, {"x": x})["out0"])


@pytest.mark.parametrize(("name", "instruction"), [("aarch64", "cnt\tv"), ("avx2", "vpshufb")])
def test_bits_are_counted_by_instructions(name: str, instruction: str) -> None:
    """Compiled for another processor."""
    done = subprocess.run([sys.executable, "-c", LOWERED.format(name=name)], capture_output=True, text=True, check=True)
    assert instruction in done.stdout


LOWERED = """
from bolt_numba.kernels.targets import assembly, twin
print(assembly(twin({name!r}).binary.sweep.sweep_bits))
"""


@pytest.mark.skipif(not target().has_popcount, reason="the processor counts bits of no vectors")
def test_bits_are_counted_by_this_processor() -> None:
    from bolt_numba.kernels.compiler import assembly
    from bolt_numba.kernels.cpu.binary.sweep import sweep_bits

    assert "vpopcntd" in assembly(sweep_bits)


def test_packed_files_hold_binary_layers(tmp_path: Path) -> None:
    graph = graph_of(network("sign", [(33, 3, 1, None), (20, 3, 2, None)], 8), {"x": (1, 40, 8, 7)})
    bn.save(packed(graph, threads=(1,)), tmp_path / "net.bolt")
    x = whole(np.random.default_rng(8), 1, 40, 8, 7)
    found = bn.compile(tmp_path / "net.bolt", threads=1)(x)[0]
    np.testing.assert_array_equal(found, interpret(graph, {"x": x})["out0"])


def test_quantisation_leaves_binary_layers_alone() -> None:
    def build(b: Builder, x: Value) -> Value:
        y = b(o("Conv"), x, np.random.default_rng(9).random((40, 3, 3, 3)).astype(F32))
        y = b(o("Conv"), b(o("Pad"), where(b, y), i64(0, 0, 1, 1, 0, 0, 1, 1)), weights(20, 40, 3, 3))
        return b(o("MatMul", trans_b=True), b(o("Flatten"), b(o("Sign"), y)), weights(5, 720))

    graph, x = graph_of(build, {"x": (1, 3, 8, 8)}), np.random.default_rng(9).random((4, 1, 3, 8, 8)).astype(F32)
    assert [layer.op for layer in layers_of(graph)] == ["Conv"]
    session = bn.compile(graph, precision="int8", calibration=[{"x": each} for each in x])
    assert {"BinaryConv", "BinaryMatMul"} <= {row.op for row in session.profile({"x": x[0]}).rows}


def test_a_bias_that_only_the_run_tells_stays_float() -> None:
    def build(b: Builder, x: Value, c: Value) -> Value:
        return b(o("Conv"), where(b, x), weights(3, 4, 3, 3), c)

    assert "Conv" in names(run_pipeline(graph_of(build, {"x": (1, 4, 5, 6), "c": (3,)})))


@pytest.mark.parametrize("compare", ["gt", "not_lt", "sign"])
def test_nan_compares_as_in_the_floats(compare: str) -> None:
    x = f32(np.nan, 1, -1, 0)
    bits = unpacked_values(BinaryPack(0, compare).reference(x, f32(0)), 4, 0, compare != "sign")
    wanted = {"gt": [0, 1, 0, 0], "not_lt": [1, 1, 0, 1], "sign": [0, 1, -1, 0]}[compare]
    np.testing.assert_array_equal(bits, f32(*wanted))


def test_words_hold_their_bits() -> None:
    for channels, axis in itertools.product((1, 31, 32, 33, 200), (0, 1, 2)):
        shape = [2, 3, 4]
        shape[axis] = channels
        bits = np.random.default_rng(channels).random(shape) > 0.5
        words = packed_bits(bits, axis)
        assert words.shape[axis] == -(-channels // 32)
        np.testing.assert_array_equal(unpacked_values(words, channels, axis, True), bits.astype(F32))


def test_the_network_of_the_bench_runs_on_bits() -> None:
    from bench.binary import birealnet18

    graph = bn.load(birealnet18(1).SerializeToString())
    made = names(run_pipeline(graph))
    assert made.count("BinaryConv") == 16
    assert not {"Sign", "Add", "BatchNormalization", "Chain"} & set(made)
