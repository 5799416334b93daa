"""Stages: rules and passes of one's own take part; every rule that is written belongs to a stage."""

from __future__ import annotations

import importlib
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import passes
from bolt_numba.errors import BoltError, DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Abs, Add, Neg, Relu
from bolt_numba.passes.pipeline import STAGES, PipelineRun, Stage, all_rules, run_pipeline, with_rules, with_stage
from bolt_numba.passes.pipeline.portable import RULES as PORTABLE
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rewrite, rule
from bolt_numba.passes.trace import Trace
from bolt_numba.plugins import lowering
from bolt_numba.surgery import packed
from bolt_numba.types import F32, TensorType
from tests.missing import ROOT, modules_of, rules_without_stage, told, written_rules

LOWERINGS = [rule for rule, _ in written_rules([lowering])]
"""What drivers can list."""


@rule(Pat(Relu, (Pat(Abs, name="inner"),)))
def relu_of_abs(m: Match, b: Builder) -> Result:
    return m["inner"]


@rule(Pat(Abs, (Pat(name="x"),)))
def abs_is_relu(m: Match, b: Builder) -> Result:
    """Wrong on purpose, so that results show whether it ran."""
    return b(Relu(), m["x"])


def negate_results(graph: Graph, run: PipelineRun) -> None:
    b = Builder(graph)
    graph.outputs = [b(Neg(), value) for value in graph.outputs]


def graph_of_abs() -> Graph:
    g = Graph("abs")
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (4,)))
    g.add_output(b(Abs(), b(Abs(), x)), "y")
    return g


X = np.array([-2, -1, 0, 3], np.float32)


@pytest.mark.parametrize("stage", [s.name for s in STAGES])
def test_a_rule_of_ones_own_runs_in_any_stage(stage: str) -> None:
    session = bn.compile(graph_of_abs(), stages=with_rules(stage, abs_is_relu))
    assert session(X)["y"].tolist() == [0, 0, 0, 3]
    assert bn.compile(graph_of_abs())(X)["y"].tolist() == [2, 1, 0, 3]


def test_a_rule_of_ones_own_sees_what_the_stage_made() -> None:
    """It runs beside the stage's rules, to one fixed point."""
    g = Graph("twice")
    b = Builder(g)
    g.add_output(b(Relu(), b(Neg(), b(Neg(), b(Abs(), g.add_input("x", TensorType(F32, (4,))))))), "y")
    trace = Trace()
    made = run_pipeline(g, trace=trace, stages=with_rules("canonical", relu_of_abs), check=True)
    assert trace.counts()["relu_of_abs"] == 1
    assert [n.op.name for n in made.nodes] == ["Abs"]


def test_a_pass_of_ones_own_stands_where_it_is_put() -> None:
    mine = Stage("mine", (negate_results,))
    for stages in (with_stage(mine), with_stage(mine, after="partition"), with_stage(mine, before="canonical")):
        session = bn.compile(graph_of_abs(), stages=stages)
        assert session(X)["y"].tolist() == [-2, -1, 0, -3]
        session.close()
        assert session(X)["y"].tolist() == [-2, -1, 0, -3]  # the passes ran again
    order = [s.name for s in with_stage(mine, after="partition")]
    assert order[order.index("partition") + 1] == "mine"
    run_pipeline(graph_of_abs(), stages=with_stage(mine, after="fuse"), check=True)


def test_sessions_for_intermediate_values_have_the_stages() -> None:
    session = bn.compile(graph_of_abs(), stages=with_rules("fuse", abs_is_relu))
    inner = session.graph.nodes[0].output.name
    assert session.run([inner], {"x": X})[0].tolist() == [0, 0, 0, 3]


def test_a_session_with_stages_is_not_pickled() -> None:
    with pytest.raises(BoltError, match="pickle: session of 'abs': got stages of its own"):
        pickle.dumps(bn.compile(graph_of_abs(), stages=STAGES))


def test_wrong_stages_are_refused() -> None:
    mine = Stage("mine")
    for stages, text in (
        (lambda: with_rules("fusing", relu_of_abs), "stage: got 'fusing', wanted one of"),
        (lambda: with_rules("fuse", relu_of_abs.rewrite), "rule: got a function, wanted what @rule makes"),
        (lambda: with_stage(mine, after="nowhere"), "stage: got 'nowhere', wanted one of"),
        (lambda: with_stage(mine, before="fuse", after="fuse"), "wanted one of them"),
        (lambda: with_stage(Stage("fuse")), "there is one of that name"),
    ):
        with pytest.raises(BoltError, match=text):
            stages()
    with pytest.raises(DeviceError, match="stages: 'abs': got a packed graph"):
        bn.compile(packed(graph_of_abs(), threads=(1,)), stages=STAGES)


def test_a_rule_that_fails_is_passed_over_or_told(
    monkeypatch: pytest.MonkeyPatch, nothing_swallowed: Counter[str]
) -> None:
    text = Rule("text", Pat(Abs), lambda match, build: "text")
    stages = with_rules("canonical", text)
    assert bn.compile(graph_of_abs(), stages=stages)(X)["y"].tolist() == [2, 1, 0, 3]
    assert {text.partition(":")[0] for text in nothing_swallowed} == {"rule 'text'"}
    nothing_swallowed.clear()
    monkeypatch.setenv("BOLT_NUMBA_CHECK", "1")
    with pytest.raises(BoltError, match="rule 'text': results: got str, wanted values"):
        bn.compile(graph_of_abs(), stages=stages)


def test_every_rule_that_is_written_belongs_to_a_stage() -> None:
    """A rule that no stage has, and that no driver can list, would do nothing, and nobody would notice."""
    known = [*all_rules(), *PORTABLE, *LOWERINGS]
    told(rules_without_stage(modules_of(passes, lowering), known))
    assert len(written_rules(modules_of(passes, lowering))) > 170
    places = [text.relative_to(ROOT) for text in (ROOT / "bolt_numba").rglob("*.py") if "@rule(" in text.read_text()]
    assert {place.parts[1:3] if place.parts[1] == "plugins" else place.parts[1] for place in places} == {
        "passes",
        ("plugins", "lowering.py"),
    }


@pytest.mark.parametrize("package", ["passes.quantised", "passes.partition", "passes.loops", "plugins.lowering"])
def test_a_rule_that_no_stage_has_is_found_in_any_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its name is that of one that runs."""
    module = next(modules_of(importlib.import_module(f"bolt_numba.{package}")))
    for name in ("planted", all_rules()[0].name):
        planted = Rule(name, Pat(Abs), lambda match, build: None)
        for value in (planted, (planted,), {"planted": planted}):
            monkeypatch.setattr(module, "PLANTED", value, raising=False)
            (line,) = rules_without_stage(modules_of(passes, lowering), [*all_rules(), *PORTABLE, *LOWERINGS])
            assert line.startswith(f"rule {name} (")


def test_no_two_rules_share_a_name() -> None:
    """Traces, refusals and cases tell rules by their names."""
    names = Counter(rule.name for rule, _ in written_rules(modules_of(passes)))
    assert {name: count for name, count in names.items() if count > 1} == {}


# ------------------------------------------------------------------------------------------------ integer constants


def dequantised_product() -> tuple[Graph, Any]:
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (8, 16), np.int8)
    g = Graph("weights in bytes")
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (2, 8)))
    scales = rng.uniform(0.01, 0.1, 16).astype(np.float32)
    weight = b(DequantizeLinear(axis=1), w, scales, np.zeros(16, np.int8))
    g.add_output(b(Add(), b(MatMul(), x, weight), rng.standard_normal(16).astype(np.float32)), "y")
    return g, w.astype(np.float32) * scales


def test_integer_constants_stay_until_the_stage_that_may_use_them() -> None:
    g, weight = dequantised_product()
    for stage in ("canonical", "recognise"):
        made = run_pipeline(g, until=stage, check=True)
        (node,) = [n for n in made.nodes if isinstance(n.op, DequantizeLinear)]
        assert node.inputs[0] is not None
        assert node.inputs[0].type.dtype == np.int8
    made = run_pipeline(g, check=True)
    assert [n.op.name for n in made.nodes] == ["MatMul"]  # the bias went into the product all the same
    kept = made.nodes[0].inputs[1]
    assert kept is not None
    assert kept.const is not None
    np.testing.assert_array_equal(kept.const, weight)


def test_a_rule_of_ones_own_may_take_the_integers() -> None:
    seen = []

    @rule(Pat(MatMul, (Pat(name="x"), Pat(DequantizeLinear, name="w"))))
    def see(m: Match, b: Builder) -> Result:
        seen.append(m.node("w").inputs[0])
        return m.refuse("only looking")

    quantise = Stage("mine", ((see,),))
    run_pipeline(dequantised_product()[0], stages=with_stage(quantise, before="quantise"))
    assert [v.type.dtype for v in seen] == [np.int8]


def test_without_integer_constants_nothing_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(graph: Graph, rules: Any, **more: Any) -> int:
        calls.append(len(graph.nodes))
        return rewrite(graph, rules, **more)

    monkeypatch.setattr("bolt_numba.passes.pipeline.rewrite", counted)
    run_pipeline(graph_of_abs())
    plain = len(calls)
    run_pipeline(dequantised_product()[0])
    assert len(calls) == 2 * plain + 1
