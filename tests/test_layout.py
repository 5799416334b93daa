"""Transposes: how operators run on permuted operands, and random networks through the whole pipeline."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.passes.layout.mincut import FlowNetwork
from bolt_numba.passes.layout.permuted import compose, inverse, moves_data, permuted
from bolt_numba.passes.layout.transposes import move_transposes, total_cost, wiring
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import F32, I64, Array, Sym, TensorType
from tests.graphs import graphs
from tests.near import assert_near
from tests.rule_cases import f32, graph_of, i64, o, whole


def test_permutations_compose_as_transposes_do() -> None:
    x = whole(2, 3, 4)
    for p, q in itertools.product(itertools.permutations(range(3)), repeat=2):
        np.testing.assert_array_equal(x.transpose(p).transpose(q), x.transpose(compose(p, q)))
        assert compose(p, inverse(p)) == (0, 1, 2)


def test_axes_of_length_one_move_no_data() -> None:
    assert not moves_data((0, 2, 3, 1), (5, 7, 1, 1))
    assert moves_data((0, 2, 3, 1), (5, 7, 2, 1))


OPERATORS: list[tuple[Any, tuple[Any, ...]]] = [
    (o("Relu"), ()),
    (o("Add"), (whole(3, 1, 1),)),
    (o("Where"), (whole(2, 3, 4, 5), f32(1))),
    (o("Softmax", 1), ()),
    (o("LogSoftmax", -1), ()),
    (o("LpNormalization", 2, 1), ()),
    (o("Split", 3, 2), (i64(2, 3),)),
    (o("TopK", 1), (i64(2),)),
    (o("Concat", -3), (whole(2, 1, 4, 5),)),
    (o("Slice"), (i64(1, 0), i64(3, 9), i64(1, -1), i64(1, 2))),
    (o("Slice"), (i64(1, 1), i64(2, 3))),
    (o("Pad"), (i64(0, 1, 0, 2, 1, 0, 0, 0),)),
    (o("Pad", "reflect"), (i64(1, 2), None, i64(3,))),
    (o("Tile"), (i64(1, 2, 1, 2),)),
    (o("Expand"), (i64(2, 3, 4, 5),)),
    (o("QuantizeLinear", 1), (f32(0.5),)),
    (o("QuantizeLinear", -2), (whole(4) ** 2 + np.float32(1), np.zeros(4, np.int8))),
    (o("DynamicQuantizeLinear"), ()),
    (o("CumSum"), (np.array(2, I64),)),
    (o("ReduceSum"), (i64(1, 3),)),
    (o("ReduceMax", keepdims=False), (i64(2),)),
    (o("ArgMax", 1), ()),
    (o("ArgMax", 2, False), ()),
    (o("Reshape"), (i64(2, 3, 20),)),
    (o("Reshape"), (i64(2, 3, 2, 2, 5),)),
    (o("Reshape"), (i64(2, 1, 3, 4, 1, 5),)),
    (o("Shape", 1, 4), ()),
    (o("Size"), ()),
    (o("Histogram"), (np.float32(-5), np.float32(5))),
    (o("LayerNormalization"), (np.ones(5, F32),)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "more"), OPERATORS, ids=lambda v: getattr(v, "name", ""))
def test_operators_give_the_same_on_permuted_operands(op: Any, more: tuple[Any, ...]) -> None:
    """Whatever plan there is for a permutation, it computes the permuted results."""
    carried = 0
    for p in itertools.permutations(range(4)):
        graph = Graph()
        b = Builder(graph)
        x = graph.add_input("x", TensorType(F32, (2, 3, 4, 5)))
        first = b(o("Cast", np.dtype("?")), x) if op.name == "Where" else x
        node = b.node(op, first, *more)
        plan = permuted(node, "in", 0, p)
        if plan is None:
            continue
        carried += 1
        data = whole(2, 3, 4, 5)
        operands = [
            v if v is None or q is None else b(Transpose(q), v) for v, q in zip(node.inputs, plan.ins, strict=True)
        ]
        changed = plan.build(b, operands)
        for old, new, q in zip(node.outputs, changed.outputs, plan.outs, strict=True):
            graph.add_output(old if q is None else b(Transpose(q), old))
            graph.add_output(new)
        results = list(interpret(graph, {"x": data}).values())
        for want, got in zip(results[::2], results[1::2], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{op} under {p}")
    assert carried >= 2


def test_reshape_is_carried_both_ways() -> None:
    graph = graph_of(lambda b, x: b(o("Reshape"), x, i64(1, 2, 4, 6, 5)), {"x": (1, 8, 6, 5)})
    node = graph.nodes[0]
    forward = permuted(node, "in", 0, (0, 2, 3, 1))
    assert forward is not None
    assert forward.outs == ((0, 3, 4, 1, 2),)
    backward = permuted(node, "out", 0, (0, 3, 4, 1, 2))
    assert backward is not None
    assert backward.ins[0] == (0, 2, 3, 1)
    assert permuted(node, "out", 0, (0, 2, 3, 4, 1)) is None


def test_a_reduction_to_a_scalar_has_no_axes_to_carry() -> None:
    for op, more in ((o("ReduceMax", keepdims=False), (i64(0),)), (o("ArgMax", 0, False), ())):
        node = graph_of(lambda b, x, op=op, more=more: b(op, x, *more), {"x": (4,)}).nodes[0]
        assert permuted(node, "out", 0, ()) is None
        carried = permuted(node, "in", 0, (0,))
        assert carried is not None
        assert carried.outs == ((),)


def test_minimum_cut_takes_the_cheaper_side() -> None:
    net = FlowNetwork()
    net.add(net.source, "a", 5)
    net.add("a", "b", 3)
    net.add("b", net.sink, 4)
    assert net.source_side() == {"a"}
    shared = FlowNetwork()
    shared.add(shared.source, "a", 2)
    shared.add(shared.source, "b", 2)
    shared.any_source(["a", "b"], shared.sink, 3)
    assert shared.source_side() == {"a", "b"}


def test_moving_never_costs_more() -> None:
    def build(b: Builder, x: Value) -> Any:
        y = b(o("Transpose", (0, 2, 3, 1)), x)
        z = b(o("Relu"), y)
        return b(o("Transpose", (0, 3, 1, 2)), b(o("Add"), z, y)), z

    graph = graph_of(build, {"x": (2, 3, 4, 5)})
    before = wiring(graph)
    move_transposes(graph)
    verify(graph)
    after = wiring(graph)
    assert total_cost(after, after.roots.values(), {}) <= total_cost(before, before.roots.values(), {})


def test_components_that_meet_do_not_undo_each_other() -> None:
    """Two components that share a value once took turns for ever."""

    def build(b: Builder, x: Value) -> Any:
        left = STEPS["last"](b, x, x)
        right = _split(b, STEPS["conv"](b, STEPS["conv"](b, _split(b, x, x), x), x), x)
        return b(o("ReduceMean", keepdims=False), b(o("Max"), left, right), i64(2, 3))

    graph = graph_of(build, {"x": (1, 4, 6, 6)})
    made = run_pipeline(graph, check=True)
    assert sum(n.op.name == "Transpose" for n in made.nodes) == 1
    rounds = graph_of(build, {"x": (1, 4, 6, 6)})
    assert move_transposes(rounds) < len(rounds.nodes)


# ---- random networks


@st.composite
def image_networks(draw: st.DrawFn) -> Graph:
    """Operators on images [n, 4, 6, 6], channels first or last, joined at random."""
    graph = Graph("random")
    b = Builder(graph)
    n: Any = Sym("n") if draw(st.booleans()) else 1
    values = [graph.add_input("x", TensorType(F32, (n, 4, 6, 6)))]
    for _ in range(draw(st.integers(2, 9))):
        x = draw(st.sampled_from(values[-3:]))
        values.append(_grown(draw, b, x, values))
    y = values[-1]
    if draw(st.booleans()):
        y = b(o("ReduceMean", keepdims=False), y, i64(2, 3))
    graph.add_output(y)
    if draw(st.booleans()):
        graph.add_output(draw(st.sampled_from(values)), "extra")
    graph.drop_dead()
    return graph


def _grown(draw: st.DrawFn, b: Builder, x: Value, values: list[Value]) -> Value:
    """One more image of the same shape."""
    kind = draw(st.sampled_from(sorted(STEPS)))
    made = STEPS[kind](b, x, draw(st.sampled_from(values)))
    assert isinstance(made, Value)
    return made


def _split(b: Builder, x: Value, other: Value) -> Any:
    left, right = b(o("Split", 1, 2), x, i64(1, 3))
    return b(o("Concat", 1), right, left)


def _shuffle(b: Builder, x: Value, other: Value) -> Any:
    y = b(o("Reshape"), x, i64(0, 2, 2, 6, 6))
    return b(o("Reshape"), b(o("Transpose", (0, 2, 1, 3, 4)), y), i64(0, 4, 6, 6))


def _gate(b: Builder, x: Value, other: Value) -> Any:
    mean = b(o("ReduceMax"), x, i64(2, 3))
    return b(o("Mul"), b(o("Clip", -1.0, 1.0), b(o("Conv"), mean, whole(4, 4, 1, 1, seed=4))), x)


def _last(b: Builder, x: Value, other: Value) -> Any:
    y = b(o("Transpose", (0, 2, 3, 1)), x)
    return b(o("Transpose", (0, 3, 1, 2)), b(o("Min"), b(o("Neg"), y), whole(4)))


def _pad_slice(b: Builder, x: Value, other: Value) -> Any:
    y = b(o("Pad"), x, i64(0, 0, 1, 2, 0, 0, 0, 1))
    return b(o("Slice"), y, i64(1, 1), i64(7, 7), i64(2, 3))


def _rows(b: Builder, x: Value, other: Value) -> Any:
    y = b(o("Transpose", (0, 2, 1)), b(o("Reshape"), x, i64(0, 4, 36)))
    y = b(o("MatMul"), y, whole(4, 4, seed=5))
    return b(o("Reshape"), b(o("Transpose", (0, 2, 1)), b(o("Clip", -3.0, 3.0), y)), i64(0, 4, 6, 6))


STEPS: dict[str, Any] = {
    "conv": lambda b, x, y: b(o("Clip", -2.0, 2.0), b(o("Conv", pads=(1, 1, 1, 1)), x, whole(4, 4, 3, 3), whole(4))),
    "depthwise": lambda b, x, y: b(o("Sign"), b(o("Conv", group=4), x, whole(4, 1, 1, 1, seed=3))),
    "batch norm": lambda b, x, y: b(o("BatchNormalization", epsilon=0.0), x, *[whole(4)] * 3, np.ones(4, F32)),
    "pool": lambda b, x, y: b(o("MaxPool", (3, 3), (), (1, 1, 1, 1)), x),
    "add": lambda b, x, y: b(o("Add"), x, y),
    "max": lambda b, x, y: b(o("Max"), y, x),
    "channels": lambda b, x, y: b(o("Add"), x, whole(4, 1, 1)),
    "relu": lambda b, x, y: b(o("Relu"), x),
    "transpose": lambda b, x, y: b(o("Transpose", (0, 1, 3, 2)), x),
    "split": _split,
    "shuffle": _shuffle,
    "gate": _gate,
    "last": _last,
    "pad": _pad_slice,
    "rows": _rows,
}  # fmt: skip


def _check(graph: Graph, data: dict[str, Array]) -> None:
    verify(graph)
    want = interpret(graph, data)
    made = run_pipeline(graph, check=True)
    got = interpret(made, data)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_near(got[name], array, 1e-4, name, floor=1)


@settings(max_examples=150, deadline=None)
@given(graph=image_networks())
def test_random_image_networks_keep_their_values(graph: Graph) -> None:
    n = 2 if isinstance(graph.inputs[0].type.shape[0], Sym) else 1  # type: ignore[index]
    _check(graph, {"x": whole(n, 4, 6, 6, seed=11)})


@settings(max_examples=100, deadline=None)
@given(graph=graphs())
def test_random_graphs_keep_their_values(graph: Graph) -> None:
    _check(graph, {v.name: whole(3, 4, seed=i) for i, v in enumerate(graph.inputs)})
