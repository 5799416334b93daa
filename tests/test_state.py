"""State passed in and out in one buffer: the same numbers as apart, and written directly where that is safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import ScatterND
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.norm import LRN
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM
from bolt_numba.ops.pointwise import Add, Exp, Mul, Neg, Tanh
from bolt_numba.runtime.copies import Spans
from bolt_numba.runtime.prepared import Prepared
from bolt_numba.runtime.tape import Taped
from bolt_numba.sessions.session import Session
from bolt_numba.types import F32, I64, Array, TensorType

RNG = np.random.default_rng(11)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(F32)


def graph_of(build: Callable[[Builder, Value, Value], list[Value]]) -> Graph:
    """Inputs x and s, both [6, 6]; the outputs are those the function gives."""
    g = Graph("state")
    x, s = (g.add_input(name, TensorType(F32, (6, 6))) for name in "xs")
    for i, y in enumerate(build(Builder(g), x, s)):
        g.add_output(y, f"y{i}")
    return g


def transposed(b: Builder, x: Value, s: Value) -> list[Value]:
    return [b(Transpose((1, 0)), s)]


def product(b: Builder, x: Value, s: Value) -> list[Value]:
    """Rows of the state are read while the result is written."""
    return [b(MatMul(), s, x)]


def product_then_softmax(b: Builder, x: Value, s: Value) -> list[Value]:
    """The state is read for the last time before the result is written."""
    return [b(Softmax(-1), b(Softmax(0), b(MatMul(), s, x)))]


def chain(b: Builder, x: Value, s: Value) -> list[Value]:
    return [b(Tanh(), b(Add(), b(Mul(), x, s), s))]


def read_later(b: Builder, x: Value, s: Value) -> list[Value]:
    return [b(Neg(), s), b(MatMul(), b(Exp(), x), s)]


def passed_through(b: Builder, x: Value, s: Value) -> list[Value]:
    return [b(Neg(), x), s]


def other_result(b: Builder, x: Value, s: Value) -> list[Value]:
    return [b(Add(), x, x), b(MatMul(), x, s)]


def by_reference(b: Builder, x: Value, s: Value) -> list[Value]:
    from bolt_numba.ops.arrays.shape import Reshape

    image = b(Reshape(), s, np.array([1, 6, 6, 1]))
    return [b(Reshape(), b(LRN(3), image), np.array([6, 6]))]


@pytest.mark.parametrize(
    ("build", "direct"),
    [
        (transposed, False),
        (product, False),
        (product_then_softmax, True),
        (chain, True),
        (read_later, False),
        (passed_through, False),
        (other_result, False),
        (by_reference, None),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
@pytest.mark.parametrize("threads", [1, 2])
def test_output_over_its_input(
    build: Callable[[Builder, Value, Value], list[Value]], direct: bool | None, threads: int
) -> None:
    sess = bn.compile(graph_of(build), threads=threads)
    x, s = real(6, 6), real(6, 6)
    wanted = sess(x, s)
    state = s.copy()
    buffers = {"y0": state} | {spec.name: np.empty((6, 6), F32) for spec in sess.outputs[1:]}
    sess.run_into({"x": x, "s": state}, buffers)
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, wanted[name])
    if direct is not None:
        assert sess._runner.prepare([x, s]).can_overwrite(0, 1) is direct


def test_partial_overlap_is_computed_apart() -> None:
    sess = bn.compile(graph_of(chain), threads=1)
    x, whole = real(6, 6), real(7, 6)
    wanted = sess(x, whole[:6].copy())[0]
    sess.run_into({"x": x, "s": whole[:6]}, {"y0": whole[1:]})
    np.testing.assert_array_equal(whole[1:], wanted)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from([1, 2, -1])), max_size=9), st.data())
@settings(max_examples=200, derandomize=True, deadline=None)
def test_what_shares_memory_is_found(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """As each buffer held against each array says."""
    memory = np.zeros(80, np.int16)
    arrays = [memory[first : first + 2 * n][:: abs(step)][:n][:: step // abs(step)] for first, n, step in rows]
    begin, n = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 12))
    buffer, may = memory[begin : begin + n], data.draw(st.sets(st.integers(0, 8)))
    near = [i for i, a in enumerate(arrays) if np.may_share_memory(a, buffer)]
    same = [i for i in near if (arrays[i].ctypes.data, arrays[i].size) == (buffer.ctypes.data, n)]
    same = [i for i in same if arrays[i].flags.c_contiguous]
    assert Spans(arrays).is_apart(buffer, lambda i: i in may) == all(i in same and i in may for i in near)


def test_row_is_written_into_a_cache_in_place() -> None:
    """A cache of keys as decoders keep it: the row of one position is scattered into the buffer itself."""
    g = Graph("cache")
    cache = g.add_input("cache", TensorType(F32, (8, 4)))
    at, row = g.add_input("at", TensorType(I64, (1, 1))), g.add_input("row", TensorType(F32, (1, 4)))
    g.add_output(Builder(g)(ScatterND(), cache, at, row), "present")
    sess = bn.compile(g, threads=1)
    kept = np.zeros((8, 4), F32)
    rows = real(3, 4)
    for position in range(3):
        feeds = {"cache": kept, "at": np.array([[position]]), "row": rows[position : position + 1]}
        sess.run_into(feeds, {"present": kept})
    np.testing.assert_array_equal(kept[:3], rows)
    assert not kept[3:].any()
    assert sess._runner.prepare([kept, np.array([[0]]), rows[:1]]).can_overwrite(0, 0)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layer", [LSTM, GRU], ids=lambda t: t.__name__)
def test_recurrent_state_goes_round(layer: type[LSTM] | type[GRU], threads: int, steps: int) -> None:
    g = Graph("layer")
    b = Builder(g)
    inputs, hidden, batch = 12, 20, 3
    names = ("h", "c")[: layer.states]
    x = g.add_input("x", TensorType(F32, (steps, batch, inputs)))
    states = [g.add_input(n, TensorType(F32, (1, batch, hidden))) for n in names]
    gates = layer.gates * hidden
    made = b(layer(), x, real(1, gates, inputs), real(1, gates, hidden), real(1, 2 * gates), None, *states)
    for name, value in zip(("y", *(f"{n}_next" for n in names)), made, strict=True):
        g.add_output(value, name)
    sess = bn.compile(g, threads=threads)
    apart = {n: real(1, batch, hidden) for n in names}
    together = {n: a.copy() for n, a in apart.items()}
    for _ in range(3):
        data = real(steps, batch, inputs)
        wanted = sess({"x": data, **apart})
        apart = {n: wanted[f"{n}_next"] for n in names}
        sess.run_into({"x": data, **together}, {f"{n}_next": a for n, a in together.items()})
        for n in names:
            np.testing.assert_array_equal(together[n], apart[n])
    prepared = sess._runner.prepare([data, *together.values()])
    assert prepared.can_overwrite(1, 1) is (steps > 1)  # a single step reads all of h while it writes it
    if layer is LSTM:
        assert prepared.can_overwrite(2, 2)


def test_a_plan_that_another_thread_drops_still_runs_where_its_targets_were_chosen(
    tapes_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan has zeros as a constant, which come last; a tape writes them first, over an input that is read later."""
    graph = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n, m] x) => (float[n, m] zeros, float[m, n] y) {
            size = Shape (x)
            zeros = ConstantOfShape (size)
            y = Transpose <perm = [1, 0]> (x)
        }""").SerializeToString()
    session, choose, used = bn.compile(graph, threads=1), Session._targets, []

    def dropped(self: Session, arrays: list[Array], buffers: Mapping[str, Array]) -> Any:
        made = choose(self, arrays, buffers)
        used.append(type(made.prepared))
        self._runner.prepared.clear()  # as another thread whose plans take all places
        return made

    monkeypatch.setattr(Session, "_targets", dropped)
    wanted = [(2, 3), (3, 4), (4, 5), (5, 6)]
    for shape in [*wanted, (7, 9)]:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        buffer, y = x.copy(), np.empty(shape[::-1], np.float32)
        session.run_into({"x": buffer}, {"zeros": buffer, "y": y})
        np.testing.assert_array_equal(y, x.T)
        assert not buffer.any()
    assert {*used} == {Prepared, Taped}
