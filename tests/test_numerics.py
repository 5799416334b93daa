"""What `numerics` guarantees, on operands whose scales are far apart: measured against f64, beside onnxruntime."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.registry import KERNELS, QueryContext, candidates, load, select
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add
from bolt_numba.sessions.clones import with_outputs
from bolt_numba.surgery import packed
from bolt_numba.types import F32, NUMERICS, Array, TensorType
from tests.harness import types_of


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def layers(rng: np.random.Generator) -> Graph:
    """A 1x1 and a 3x3 convolution, each large enough for the algorithm that saves multiplications."""
    graph = Graph("layers")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (1, 128, 24, 24)))
    for taps, pads in ((1, 0), (3, 1)):
        w = rng.standard_normal((128, 128, taps, taps)).astype(F32) / np.float32(11 * taps)
        x = build(Conv(pads=(pads,) * 4), x, w)
    graph.add_output(x, "y")
    return graph


def runners(session: bn.Session) -> list[str]:
    session.warmup()
    return [re.sub(r"_\d$", "", row["runner"]) for row in session.report() if row["op"] == "Conv"]


WANTED = {
    "strict": ["conv", "conv"],
    "default": ["conv_strassen", "winograd"],
    "fast": ["conv_strassen", "winograd"],
}


@pytest.mark.parametrize("numerics", NUMERICS)
def test_sessions_take_what_their_level_allows(numerics: str, rng: np.random.Generator) -> None:
    graph = layers(rng)
    session = bn.compile(graph, numerics=numerics, threads=1)
    assert runners(session) == WANTED[numerics]
    again = pickle.loads(pickle.dumps(session))
    assert again.numerics == numerics
    assert runners(again) == WANTED[numerics]
    assert ("numerics" in repr(again)) == (numerics != "default")
    assert runners(with_outputs(session, (graph.nodes[0].outputs[0].name,))) == WANTED[numerics]


def test_default_is_the_default_and_others_are_refused(rng: np.random.Generator) -> None:
    graph = layers(rng)
    assert bn.compile(graph).numerics == "default"
    with pytest.raises(DeviceError, match="numerics: got 'exact', wanted one of strict, default, fast"):
        bn.compile(graph, numerics="exact")


@pytest.mark.parametrize("made_for", NUMERICS)
@pytest.mark.parametrize("numerics", NUMERICS)
def test_packed_files_serve_every_level(made_for: str, numerics: str, rng: np.random.Generator) -> None:
    graph = layers(rng)
    x = rng.standard_normal((1, 128, 24, 24), F32)
    wanted = bn.compile(graph, numerics=numerics, threads=1)(x)[0]
    session = bn.compile(packed(graph, threads=[1], numerics=made_for), numerics=numerics, threads=1)
    np.testing.assert_array_equal(session(x)[0], wanted)
    assert runners(session) == WANTED[numerics]


def test_onnxruntimes_names_take_the_level_too(rng: np.random.Generator) -> None:
    options = bn.SessionOptions()
    options.add_session_config_entry("bolt_numba.numerics", "strict")
    session = bn.InferenceSession(layers(rng), options)
    assert session._session.numerics == "strict"


@pytest.mark.parametrize("numerics", NUMERICS)
def test_tuning_chooses_among_what_the_level_allows(numerics: str, rng: np.random.Generator) -> None:
    def names(op: Conv | MatMul, *shapes: tuple[int, ...]) -> set[str]:
        arrays: list[Array | None] = [rng.standard_normal(s, F32) for s in shapes]
        return {e.name for e in candidates(op, types_of(arrays), QueryContext(numerics=numerics))}

    conv, square = Conv(layout="NHWC"), Conv(layout="NHWC", pads=(1, 1, 1, 1))
    winograd = {"winograd_2", "winograd_4", "winograd_6"}
    winograd -= {"strict": winograd, "default": {"winograd_6"}, "fast": set()}[numerics]
    assert names(square, (1, 24, 24, 64), (64, 64, 3, 3)) == {"conv"} | winograd
    pointwise = {"conv", *(["conv_strassen"] if numerics != "strict" else [])}
    assert names(conv, (1, 24, 24, 128), (192, 128, 1, 1)) == pointwise
    wide = {"matmul_strassen"} if numerics == "fast" else set()
    assert names(MatMul(), (256, 256), (256, 256)) == {"matmul"} | wide


def test_a_level_allows_what_stricter_ones_do() -> None:
    """Every operator that has a kernel has a strict one: no level ends at a reference."""
    load("cpu")
    assert all(any(e.numerics == "strict" for e in rows) for rows in KERNELS.values() if rows)


def test_narrow_operands_keep_to_the_level(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((1, 24, 24, 64)).astype("f2"), rng.standard_normal((64, 64, 3, 3)).astype("f2")
    op = Conv(layout="NHWC", pads=(1, 1, 1, 1))
    for numerics, wanted in (("strict", "conv (f32)"), ("default", "winograd_")):
        entry = select(op, types_of([x, w]), QueryContext(numerics=numerics))
        assert entry is not None
        assert entry.name.startswith(wanted)


@pytest.mark.parametrize(
    ("group", "channels", "size", "runner"),
    [(1, 16, 2, "conv"), (16, 16, 2, "depthwise"), (4, 16, 2, "grouped"), (0, 2, 1, "matmul")],
)
def test_strict_adds_the_bias_to_the_whole_sum(group: int, channels: int, size: int, runner: str) -> None:
    """2**24 and -2**24 cancel: a bias of a half that is added before or between them is lost."""
    graph = Graph("product")
    build = Builder(graph)
    far = np.array([2.0**24, -(2.0**24)], F32)
    half = np.full(16, 0.5, F32)
    if group:
        w = np.zeros((16, channels // group, 1, size), F32)
        w[:, 0, 0] = far
        x = graph.add_input("x", TensorType(F32, (1, channels, 1, 4)))
        y = build(Conv(group=group), x, build.const(w), build.const(half))
    else:
        x = graph.add_input("x", TensorType(F32, (3, 2)))
        y = build(MatMul(), x, build.const(np.repeat(far[:, None], 16, 1)))
        y = build(Add(), y, build.const(half))
    graph.add_output(y)
    session = bn.compile(graph, numerics="strict")
    (got,) = session.run(None, {"x": np.ones(x.type.dims, F32)})
    assert runner in {row["runner"] for row in session.report()}
    np.testing.assert_array_equal(got, np.full(got.shape, 0.5, F32))


@pytest.mark.parametrize(("numerics", "terms"), [("strict", 256), ("default", 1024), ("fast", 1024)])
def test_a_sum_begins_anew_after_as_many_terms_as_the_level_says(numerics: str, terms: int) -> None:
    """To 2**24 nothing adds a one; the sums behind the first one count all of theirs."""
    depth, rows, taps = 2048, 2, 2
    w = np.ones((depth, 16), F32)
    w[0] = 2.0**24
    filters = np.ascontiguousarray(w.T.reshape(16, 1, taps, depth // taps).transpose(0, 3, 1, 2))
    graph = Graph("products")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (rows, depth)))
    image = graph.add_input("image", TensorType(F32, (1, depth // taps, 1, rows + taps - 1)))
    graph.add_output(build(MatMul(), x, build.const(w)), "matrix")
    graph.add_output(build(Conv(), image, build.const(filters)), "convolution")
    session = bn.compile(graph, numerics=numerics)
    for got in session.run(None, {v.name: np.ones(v.type.dims, F32) for v in graph.inputs}):
        np.testing.assert_array_equal(got, np.full(got.shape, 2.0**24 + depth - terms, F32))
