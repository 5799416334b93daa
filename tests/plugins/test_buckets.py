"""Rows are padded up to the next size where no row depends on another, and results are cut back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.devices.parts import bound
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.registry import OPS
from bolt_numba.plugins.buckets import PROOFS, buckets_of, mixing, next_size
from bolt_numba.types import F32, I64, Sym, TensorType
from tests.graphs import graphs, integers, make
from tests.plugins.plain_driver import PlainDriver
from tests.plugins.two_parts import BROKEN, cache, driver, expect, session_of

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")
BUCKETS = {"plain": {"buckets": "n:4,8"}}


def test_shapes_share_what_is_compiled(driver: PlainDriver) -> None:
    session = session_of(properties=BUCKETS, fallback="forbid")
    for n in (2, 3, 4, 2, 1):
        expect(session, n, n)
    assert driver.calls["compile"] == 2
    for n in (5, 8, 6, 3):
        expect(session, n, n)
    assert driver.calls["compile"] == 4
    assert {value.type.shape for graph in driver.compiled for value in graph.inputs} == {(4, 8), (8, 8)}
    expect(session, 9)
    assert driver.calls["compile"] == 6, "what no size holds is compiled as it is"


@pytest.mark.parametrize("failure", ["compile", "request", "run"])
def test_failures_do_not_care_for_padding(driver: PlainDriver, failure: str) -> None:
    driver.fails[failure] = BROKEN
    session = session_of(properties={"plain": {"buckets": "n:4,8", "self_check": True}})
    for n in (2, 3, 5):
        expect(session, n)


def test_a_wrong_result_is_seen_through_padding(driver: PlainDriver) -> None:
    driver.wrong = 100.0
    session = session_of(properties={"plain": {"buckets": "n:4,8", "self_check": True}})
    expect(session, 3)
    assert any("self-check" in reason for row in session.report() for reason in row.get("fallbacks", ()))


def test_padding_that_no_memory_holds_is_a_failure_of_the_device(
    driver: PlainDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(bound, "_Padded", full)
    session = session_of(properties=BUCKETS)
    expect(session)
    assert all("MemoryError" in row["state"] for row in session.report() if row["op"] == "Foreign")


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("Softmax", {"axis": 0}), ("Transpose", {"perm": (1, 0)}), ("CumSum", {}), ("ReduceSum", {"keepdims": True})],
)
def test_rows_that_mix_are_not_padded(driver: PlainDriver, operator: str, attributes: Any) -> None:
    driver.only = None
    graph = Graph("mixing")
    build = Builder(graph)
    x = build(make("Relu"), graph.add_input("x", TensorType(F32, (Sym("n"), 4))))
    more = [np.array(0)] if operator == "CumSum" else [np.array([0])] if operator == "ReduceSum" else []
    graph.add_output(build(make(operator, **attributes), x, *more), "y")
    session = bn.compile(graph, device="plain", properties=BUCKETS, fallback="forbid", threads=1)
    given_x = integers(np.random.default_rng(0), 3, 4)
    np.testing.assert_allclose(session(x=given_x)[0], interpret(graph, {"x": given_x})["y"], rtol=1e-5)
    (row,) = session.report()
    assert any(note.startswith("buckets: ") for note in row["notes"])
    assert [value.type.shape for value in driver.compiled[0].inputs] == [(3, 4)]


def layers(b: Builder, x: Value, rng: Any) -> Value:
    """An image network: [n, 3, 8, 8] to [n, 5]."""
    y = b(make("Conv", pads=(1, 1, 1, 1)), x, integers(rng, 4, 3, 3, 3), integers(rng, 4))
    y = b(make("Add"), b(make("Relu"), y), b(make("Mul"), y, np.float32(0.5)))
    y = b(make("MaxPool", kernel_shape=(2, 2), strides=(2, 2)), y)
    y = b(make("Concat", axis=1), y, y)
    y = b(make("Flatten", axis=1), y)
    y = b(make("MatMul"), y, integers(rng, 128, 5))
    return b(make("Softmax", axis=-1), b(make("ReduceMax", keepdims=True), y, np.array([1])))  # type: ignore[no-any-return]


def test_an_image_network_is_padded(driver: PlainDriver) -> None:
    driver.only = None
    graph, rng = Graph("images"), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(F32, (Sym("batch"), 3, 8, 8)))
    graph.add_output(layers(Builder(graph), x, rng), "y")
    properties = {"plain": {"buckets": "other:2; batch:4"}}
    session = bn.compile(graph, device="plain", properties=properties, fallback="forbid", threads=1)
    for n in (1, 3, 4):
        image = integers(rng, n, 3, 8, 8)
        np.testing.assert_allclose(session(x=image)[0], interpret(graph, {"x": image})["y"], rtol=1e-4, atol=1e-5)
    assert driver.calls["compile"] == 1


def test_rows_of_words_are_looked_up() -> None:
    graph = Graph("words")
    ids = graph.add_input("ids", TensorType(I64, (Sym("n"), 5)))
    graph.add_output(Builder(graph)(make("Gather", axis=0), np.ones((9, 4), F32), ids))
    assert mixing(graph, "n") == ""
    assert mixing(graph, "m") == "no operand has 'm' rows"


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 4), st.integers(0, 4), st.randoms(use_true_random=False))
def test_what_is_proven_holds(graph: Graph, size: int, more: int, random: Any) -> None:
    """Rows of random graphs are the same with any rows behind them, where the proof says so."""
    if mixing(graph, "n"):
        return
    rng = np.random.default_rng(random.randrange(1 << 30))
    feeds = {v.name: integers(rng, size, 4) for v in graph.inputs}
    longer = {name: np.concatenate([array, integers(rng, more, 4)]) for name, array in feeds.items()}
    wanted, got = interpret(graph, feeds), interpret(graph, longer)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name][: len(array)], array)


def test_proofs_are_of_operators_that_are() -> None:
    assert PROOFS.keys() <= OPS.keys()


def test_sizes_are_read() -> None:
    assert buckets_of("batch: 8, 1,32; n:2") == {"batch": (1, 8, 32), "n": (2,)}
    assert buckets_of("") == {}
    assert [next_size(n, (1, 8)) for n in (1, 2, 8, 9)] == [1, 8, 8, 9]


@pytest.mark.parametrize("text", ["batch", "8,16", "batch:0", "batch:a", ":4", "batch:", "n:" + "9" * 5000])
def test_other_sizes_are_refused(driver: PlainDriver, text: str) -> None:
    with pytest.raises(DeviceError, match="properties: buckets: got"):
        session_of(properties={"plain": {"buckets": text}})
