"""Rules that drivers list: each fires on cases of its operator, and the interpreter gives the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from bolt_numba import ops
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.decomposed.decompose import DECOMPOSITIONS
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.detection.boxes import DetectionOutput
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.integer_products import QLinearMatMul
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.ops.layers.products.matmul_forms import GatherForm
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.ops.registry import OPS, Op
from bolt_numba.passes.layout.channels_last import to_last
from bolt_numba.passes.rewrite import FIRED, Rule, rewrite
from bolt_numba.passes.trace import Trace
from bolt_numba.plugins import lowering
from bolt_numba.types import F16, F32, I8, I64, TensorType
from tests.cases import CASES, Case
from tests.graphs import make
from tests.near import assert_near
from tests.plugins.drivers import ROUNDED, few, graph_of

SETS = ("ACTIVATIONS", "BYTES", "CHANNELS_FIRST", "CONVERSIONS", "FUSED", "NORMS", "SIGNED", "STEPS_FIRST", "SUMS")
RULES: list[Rule] = [rule for name in SETS for rule in getattr(lowering, name)]
LAYOUT = {"channels_first"}
STEPS = {rule.name for rule in lowering.STEPS_FIRST}
ops.load_all()


def roots(rule: Rule) -> list[type[Op]]:
    """Operators that a rule is for."""
    if rule.name in LAYOUT:
        return [Conv, MaxPool]
    kinds: Any = rule.pattern.op
    return list(kinds) if isinstance(kinds, tuple) else [kinds]


@pytest.mark.parametrize("name", sorted(STEPS))
def test_layers_whose_batch_stands_first(name: str) -> None:
    rng, graph = np.random.default_rng(0), Graph("layer")
    build, op = Builder(graph), make(name, direction="bidirectional", layout=1)
    x = graph.add_input("x", TensorType(F32, (5, 4, 3)))
    weights = [rng.standard_normal((2, 2 * op.gates, n)).astype(F32) for n in (3, 2)]
    states = [graph.add_input(f"s{i}", TensorType(F32, (5, 2, 2))) for i in range(op.states)]
    for value in build.node(op, x, *weights, None, np.array([4, 1, 2, 4, 3], np.int32), *states).outputs:
        graph.add_output(value)
    feeds = {v.name: rng.standard_normal(v.type.dims).astype(F32) for v in graph.inputs}
    want = interpret(graph, feeds)
    rewrite(graph, lowering.STEPS_FIRST, strict=True)
    assert {getattr(node.op, "layout", 0) for node in graph.nodes} == {0}
    for key, got in interpret(graph, feeds).items():
        assert_near(got, want[key], 1e-5)


@pytest.mark.parametrize("rule", [r for r in RULES if r.name not in STEPS], ids=lambda rule: rule.name)
def test_rule_fires_and_keeps_what_is_computed(rule: Rule) -> None:
    fired = 0

    def check(case: Case) -> None:
        nonlocal fired
        graph, feeds = graph_of(case, lambda i: i > 0)
        if not graph.inputs:
            return
        named = {v.name: a for v, a in zip(graph.inputs, feeds, strict=True)}
        want = interpret(graph, named)
        before = FIRED[rule.name]
        rewrite(graph, [lowering.unfused, rule], strict=True)
        if FIRED[rule.name] == before:
            return
        verify(graph)
        for name, got in interpret(graph, named).items():
            assert got.dtype == want[name].dtype
            if got.dtype.kind == "f":
                assert_near(got, want[name], 2e-5, str(case), floor=0.1)
            else:
                step = case.op.name in ROUNDED and rule.name != "signed_weights"
                np.testing.assert_allclose(got, want[name], rtol=0, atol=step, err_msg=str(case))
        fired += 1

    for op in roots(rule):
        with np.errstate(all="ignore"):
            settings(few, max_examples=60)(given(CASES[op]())(check))()
    assert fired >= 2


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (2, 1), (2, 2), (1, 1)])
def test_a_bias_of_integers_has_the_scales_of_rows_and_columns(rows: int, columns: int) -> None:
    graph = Graph("product")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(I8, (2, 3)))
    scales = [np.array([0.5, 0.125], F32)[:rows], np.array([0.25, 2.0], F32)[:columns]]
    zeros = [np.zeros(s.shape, np.int8) for s in scales]
    w, bias = np.array([[1, -2], [3, 4], [-5, 6]], np.int8), np.array([8, -16], np.int32)
    product = build(QLinearMatMul(), x, scales[0], zeros[0], w, scales[1], zeros[1], None, None, bias)
    graph.add_output(product)
    feeds = {"x": np.array([[1, 2, 3], [-4, 5, -6]], np.int8)}
    want = interpret(graph, feeds)
    rewrite(graph, lowering.BYTES, strict=True)
    assert "QLinearMatMul" not in {node.op.name for node in graph.nodes}
    for name, got in interpret(graph, feeds).items():
        np.testing.assert_array_equal(got, want[name])


HIDDEN = np.array([[0, -np.inf, 0], [0, 0, 0]], F32)


@pytest.mark.parametrize(
    ("op", "shapes", "last", "reason"),
    [
        (Softmax(-1), [(2, 3)], F16, "narrow floats"),
        (FusedAttention(1.0), [(2, 4), (3, 4), (3, 5)], HIDDEN, "rows that see nothing"),
        (FusedAttention(1.0), [(2, 4), (3, 4), (3, 5), (2, 3)], F32, "rows that see nothing"),
        (FusedAttention(1.0), [(2, 4), (3, 4), (3, 5)], np.where(np.isfinite(HIDDEN), HIDDEN, F32.type(-9)), ""),
        (RotaryEmbedding(), [(1, 1, 2, 4), (5, 2), (5, 2), (1, 2)], I64, "positions that only the run tells"),
        (RotaryEmbedding(), [(1, 1, 2, 4), (5, 2), (5, 2)], np.array([[3, 1]]), ""),
    ],
)
def test_what_would_compute_something_else_stays(op: Op, shapes: list[Any], last: Any, reason: str) -> None:
    """last: dtype of the last input, or a constant behind all inputs."""
    graph, is_constant = Graph("one"), isinstance(last, np.ndarray)
    dtypes = [F32] * len(shapes) if is_constant else [*[F32] * (len(shapes) - 1), last]
    given = [graph.add_input(f"x{i}", TensorType(*row)) for i, row in enumerate(zip(dtypes, shapes, strict=True))]
    graph.add_output(Builder(graph)(op, *given, *[last] * is_constant))
    trace = Trace()
    rewrite(graph, lowering.apart(type(op)), trace=trace, strict=True)
    assert (op in [node.op for node in graph.nodes]) == bool(reason)
    assert not reason or any(reason in why for why in trace.refusals.values())


def test_a_softmax_is_taken_apart_by_several_rules() -> None:
    graph = Graph("softmax")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (3, 5)))
    graph.add_output(build(Softmax(-1), x))
    rewrite(graph, lowering.SUMS, strict=True)
    assert [node.op.name for node in graph.nodes] == ["ReduceMax", "Sub", "Exp", "ReduceSum", "Div"]


def test_a_part_gets_its_channels_last_between_few_transposes() -> None:
    rng = np.random.default_rng(0)
    graph = Graph("images")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (1, 3, 8, 8)))
    for size in (3, 4, 4):
        w = rng.standard_normal((4, size, 3, 3)).astype(F32)
        last = x = build(Relu(), build(Conv(pads=(1, 1, 1, 1)), x, w))
    graph.add_output(build(Add(), build(MaxPool((2, 2), strides=(2, 2)), last), np.float32(1)))
    made = lowering.with_channels_last(graph)
    verify(made)
    layouts = [getattr(node.op, "layout", None) for node in made.nodes]
    assert layouts.count("NHWC") == 4
    assert "NCHW" not in layouts
    assert [node.op.name for node in made.nodes].count("Transpose") == 2
    feeds = {"x": rng.standard_normal((1, 3, 8, 8)).astype(F32)}
    for name, want in interpret(graph, feeds).items():
        assert_near(interpret(made, feeds)[name], want, 1e-5)
    assert to_last(4) in [getattr(node.op, "perm", None) for node in made.nodes]


def test_the_page_names_every_operator_once_and_every_rule() -> None:
    text = (Path(__file__).parents[2] / "docs" / "plugins" / "operators.md").read_text()
    tables, rules = text.split("## Lowerings")
    named = Counter(re.findall(r"`(\w+)`", tables.partition("## May come")[2]))

    assert {name: count for name, count in named.items() if count > 1} == {}
    assert named.keys() == OPS.keys()
    for row in rows():
        assert row in rules


def rows() -> list[str]:
    """A row of the page for each decomposition, by the first line of what builds it."""
    made = []
    for name in SETS:
        for each in getattr(lowering, name):
            kind: Any = each.pattern.op
            if each.name in OPS:
                what = (DECOMPOSITIONS[kind].__doc__ or "").removesuffix(".").replace("``", "`")
                made.append(f"| `{name}` | `{each.name}` | {what} |")
    return made


def test_every_decomposition_is_in_a_set_but_those_of_which_no_device_gets_the_operator() -> None:
    in_sets = {each.pattern.op for each in RULES if each.name in OPS}
    assert DECOMPOSITIONS.keys() - in_sets == {DetectionOutput, GatherForm, MatMulExperts}  # the CPU looks up
