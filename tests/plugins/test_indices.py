"""Indices that lie outside: SDKs that would read or write there do not get them, others refuse them as we do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import DataError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.plugins import registry
from bolt_numba.types import F32, I64, Array, Sym, TensorType, type_of
from tests.graphs import make

SDKS = [name for name in ("jax", "onnxruntime", "openvino") if not registry.obstacle(name)]
X = np.random.default_rng(0).standard_normal((4, 6)).astype(F32)
IMAGES = X.reshape(2, 1, 3, 4)
BOXES = np.array([[0, 0, 2, 2], [0, 0, 3, 3], [1, 1, 3, 2]], F32)
TABLE = X[:, :3].copy()
FAR = (4, -5, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 40)


def columns(*rows: int) -> Array:
    return np.tile(np.array(rows, I64)[:, None], (1, 6))


def case(name: str, index: int) -> tuple[Any, list[Array], int]:
    """An operator, its operands with an index, and the place of the indices."""
    one = np.array([0, index, 1], I64)
    table: dict[str, tuple[Any, list[Array], int]] = {
        "Gather": (make("Gather", axis=0), [X, one], 1),
        "GatherElements": (make("GatherElements", axis=0), [X, columns(0, index)], 1),
        "GatherND": (make("GatherND"), [X, one[:, None]], 1),
        "ScatterElements": (make("ScatterElements", axis=0), [X, columns(0, index), X[:2]], 1),
        "ScatterND": (make("ScatterND"), [X, one[:2, None], X[:2]], 1),
        "ReverseSequence": (make("ReverseSequence", batch_axis=1, time_axis=0), [X, np.tile(one, 2)], 1),
        "RoiAlign": (make("RoiAlign", output_height=1, output_width=1, sampling_ratio=2), [IMAGES, BOXES, one], 2),
        "RotaryEmbedding": (make("RotaryEmbedding"), [X.reshape(1, 1, 4, 6), TABLE, TABLE,
                                                      np.array([[0, 1, index, 2]], I64)], 3),
    }  # fmt: skip
    return table[name]


CASES = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "ReverseSequence", "RoiAlign",
         "RotaryEmbedding")  # fmt: skip


def graph_of(op: Any, arrays: list[Array], constant: int = -1) -> tuple[Graph, dict[str, Array]]:
    """One node between others, so that indices and data come from values of the graph."""
    graph = Graph("one")
    b = Builder(graph)
    operands = []
    for i, array in enumerate(arrays):
        given = b.const(array) if i == constant else graph.add_input(f"x{i}", type_of(array).with_value(None))
        operands.append(b(make("Relu"), given) if i != constant and array.dtype == F32 else given)
    graph.add_output(b(make("Neg"), b(op, *operands)), "y")
    return graph, {f"x{i}": a for i, a in enumerate(arrays) if i != constant}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", SDKS)
def test_indices_outside_are_refused_on_every_device(device: str, name: str) -> None:
    op, arrays, _ = case(name, 1)
    graph, _ = graph_of(op, arrays)
    with bn.compile(graph, device=[device, "cpu"], threads=1) as session, bn.compile(graph, threads=1) as own:
        for index in (1, *FAR, 0):
            op, arrays, _ = case(name, index)
            feeds = {f"x{i}": a for i, a in enumerate(arrays)}
            if index in (0, 1):
                np.testing.assert_allclose(session(**feeds)[0], own(**feeds)[0], rtol=1e-4, atol=1e-5)
                continue
            if name == "ReverseSequence" and index == 4:
                continue
            with pytest.raises(DataError, match=r"wanted .* to "):
                session(**feeds)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", SDKS)
def test_constant_indices_inside_go_there(device: str, name: str) -> None:
    op, arrays, place = case(name, 1)
    graph, feeds = graph_of(op, arrays, place)
    with bn.compile(graph, device=[device, "cpu"], fallback="forbid", threads=1) as session:
        np.testing.assert_allclose(session(**feeds)[0], bn.compile(graph, threads=1)(**feeds)[0], rtol=1e-4, atol=1e-5)
        if (device, name) not in (("openvino", "RotaryEmbedding"), ("jax", "RoiAlign")):
            assert {row["device"] for row in session.report().placed} == {device}


@pytest.mark.parametrize(
    ("device", "sdk_shapes"), [(d, s) for d in SDKS for s in ("fixed", "free") if d != "jax" or s == "fixed"]
)
def test_a_constant_index_is_held_to_an_axis_whose_size_comes_later(device: str, sdk_shapes: str) -> None:
    graph = Graph("rows")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    graph.add_output(b(make("Gather", axis=0), b(make("Relu"), x), np.array([3, -1])), "y")
    properties = {device: {"shapes": sdk_shapes} if device != "jax" else {}}
    with bn.compile(graph, device=[device, "cpu"], properties=properties, threads=1) as session:
        for n in (5, 4):
            rows = X[:, :4].repeat(2, 0)[:n]
            np.testing.assert_array_equal(session(x=rows)[0], np.maximum(rows, 0)[[3, -1]])
        with pytest.raises(DataError, match=r"indices\[0\]: got 3, wanted -2 to 1"):
            session(x=X[:2, :4].copy())
        np.testing.assert_array_equal(session(x=X[:, :4].copy())[0], np.maximum(X[:, :4], 0)[[3, -1]])


@pytest.mark.skipif("openvino" not in SDKS, reason="openvino is not installed")
def test_indices_of_64_bits_are_not_cut() -> None:
    graph = Graph("hot")
    b = Builder(graph)
    at = graph.add_input("at", TensorType(I64, (2,)))
    hot = b(make("OneHot"), at, np.array(3), np.array([0, 1], F32))
    graph.add_output(b(make("Relu"), hot), "y")
    with bn.compile(graph, device=["openvino", "cpu"], threads=1) as session:
        np.testing.assert_array_equal(session(at=np.array([1, 1 << 40]))[0], [[0, 1, 0], [0, 0, 0]])
