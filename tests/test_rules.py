"""Every rewrite rule: it fires on its case, keeps the values and the types, and says why it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.ir.text import to_text
from bolt_numba.ops.pointwise import Abs, Add, Clip, Neg, Relu
from bolt_numba.passes.canonical.fold import FoldConstant, fold_rules
from bolt_numba.passes.pipeline import STAGES, PipelineRun, all_rules
from bolt_numba.passes.rewrite import Pat, Rule, match, rewrite
from bolt_numba.passes.trace import Trace
from bolt_numba.types import BOOL, F32, I64, NUMERICS, U8, Array, Sym, TensorType
from tests import (  # noqa: F401 - they register their cases
    rule_cases_binary,
    rule_cases_bytes,
    rule_cases_integers,
    rule_cases_loops,
    rule_cases_products,
)
from tests.missing import rules_without_case, told
from tests.near import assert_near
from tests.rule_cases import CASES, Case, f32, graph_of, i64, o, whole

RULES = {r.name: r for r in all_rules()}
HELPERS = {
    "recognise_safe_softplus": "recognise_softplus",
    "mul_by_zero": "",
    "inline_if": "",
    "select_once": "share_equal",
}
"""Rules that only make sense beside another one."""


def feeds(graph: Graph, seed: int = 7) -> dict[str, Array]:
    """Whole numbers for every input; symbols are 2."""
    rng = np.random.default_rng(seed)
    made = {}
    for v in graph.inputs:
        shape = [2 if isinstance(d, Sym) else d for d in v.type.shape or ()]
        low, high = (0, 2) if v.type.dtype in (BOOL, I64) else (-4, 5)
        made[v.name] = rng.integers(low, high, shape).astype(v.type.dtype)
    return made


def same(case: Case, before: Graph, after: Graph) -> None:
    data = feeds(before)
    want, got = interpret(before, data), interpret(after, data)
    assert want.keys() == got.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        if case.tolerance:
            assert_near(got[name], array, case.tolerance, name, floor=1)
        else:
            np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_fires_and_keeps_values(case: Case) -> None:
    graph = case.graph()
    before = graph.clone()
    trace = Trace(stage="test")
    rules = [RULES[n] for n in (case.rule, HELPERS.get(case.rule, "")) if n]
    rewrite(graph, rules, trace=trace, strict=True)
    assert trace.counts()[case.rule] >= 1, f"matched nowhere; refused: {trace.refusals}\n{to_text(before)}"
    assert [n.op.name for n in graph.nodes] == case.after.split()
    verify(graph)
    assert graph.output_names == before.output_names
    same(case, before, graph)


LEVELS = {"shift_before_weights": ("default", "fast"), "exact_floats": ("strict",)}
"""Rules that not all levels of numerics have."""


def test_levels_differ_by_these_rules_alone() -> None:
    having: dict[Any, list[str]] = {}
    for numerics in NUMERICS:
        run = PipelineRun(numerics=numerics)
        for place, part in enumerate(part for stage in STAGES for part in stage.parts):
            for rule in run.rules(part) if isinstance(part, tuple) else ():
                having.setdefault((place, rule.name), []).append(numerics)
    assert {name: tuple(levels) for (_, name), levels in having.items() if len(levels) < len(NUMERICS)} == LEVELS


def test_every_rule_has_a_case() -> None:
    told(rules_without_case(RULES, {c.rule for c in CASES}))


def conv(b: Builder, x: Value, **attributes: Any) -> Any:
    return b(o("Conv", **attributes), x, whole(3, x.type.dims[1], 1, 1))


def two_readers(b: Builder, x: Value) -> Any:
    y = conv(b, x)
    return b(o("Relu"), y), b(o("Neg"), y)


def chain_in_the_open(b: Builder, x: Value) -> Any:
    y = b(o("Neg"), x)
    return b(o("Relu"), y), y


def dynamic_filter(b: Builder, x: Value, w: Value) -> Any:
    return b(o("Mul"), b(o("Conv"), x, w), f32(2))


def masked_late(b: Builder, q: Value, k: Value, v: Value) -> Any:
    return b(o("MatMul"), b(o("Softmax", 1), b(o("MatMul", trans_b=True), q, k)), v)


IMAGE = {"x": (1, 2, 4, 4)}
REFUSALS: list[tuple[str, str, Callable[..., Any], dict[str, tuple[Any, ...]]]] = [
    ("fuse_activation", "has another reader", two_readers, IMAGE),
    ("fuse_activation", "has an activation already", lambda b, x: b(o("Abs"), conv(b, x, activation=Relu())), IMAGE),
    ("fuse_residual", "another shape", lambda b, x: b(o("Add"), conv(b, x), whole(3, 1, 1)), IMAGE),
    ("fuse_residual", "fused already", lambda b, x, r: b(o("Add"), conv(b, x, activation=Relu()), r),
     {**IMAGE, "r": (1, 3, 4, 4)}),
    ("fuse_chain", "has another reader", chain_in_the_open, {"x": (2, 3)}),
    ("fuse_chain", "has another shape", lambda b, x, y: b(o("Add"), b(o("Exp"), x), y), {"x": (3,), "y": (2, 3)}),
    ("affine_into_weights", "weight is not constant", dynamic_filter, {**IMAGE, "w": (3, 2, 1, 1)}),
    ("affine_into_weights", "not per channel", lambda b, x: b(o("Mul"), conv(b, x), whole(4)), IMAGE),
    ("affine_into_weights", "the chain goes on",
     lambda b, x: b(o("Add"), b(o("Mul"), conv(b, x), f32(2)), f32(1)), IMAGE),
    ("batch_norm_into_weights", "along another axis",
     lambda b, x: b(o("BatchNormalization", layout="NHWC"), conv(b, x), *(f32(1, 2, 3, 4),) * 4), IMAGE),
    ("split_batch_norm", "would hide that they do not fit",
     lambda b, x: b(o("BatchNormalization"), x, *(f32(1, 2, 3),) * 4), {"x": (2, "c", 4)}),
    ("split_batch_norm", "would hide that they do not fit",
     lambda b, x: b(o("BatchNormalization"), x, f32(1, 2), f32(1), f32(1, 2), f32(1, 2)), {"x": (2, "c", 4)}),
    ("shift_before_weights", "would not reach the pads",
     lambda b, x: conv(b, b(o("Add"), x, f32(1)), pads=(1, 1, 1, 1)), IMAGE),
    ("shift_before_weights", "no factor per channel", lambda b, x: conv(b, b(o("Add"), x, f32(123))), IMAGE),
    ("affine_before_weights", "no factor per channel", lambda b, x: conv(b, b(o("Add"), x, f32(1))), IMAGE),
    ("pad_into_window", "not a padding of the image",
     lambda b, x: conv(b, b(o("Pad"), x, i64(0, 1, 0, 0, 0, 0, 0, 0))), IMAGE),
    ("pad_into_max_pool", "may be the greatest",
     lambda b, x: b(o("MaxPool", (2, 2)), b(o("Pad"), x, i64(0, 0, 1, 1, 0, 0, 0, 0))), IMAGE),
    ("channels_last", "rank is not known", lambda b, x: b(o("LRN", 3), b(o("Squeeze"), x)), {"x": ("n", 2, "h", 4)}),
    ("recognise_clip", "not one number", lambda b, x: b(o("Max"), x, f32(1, 2, 3)), {"x": (2, 3)}),
    ("prelu_to_leaky", "not one number", lambda b, x: b(o("PRelu"), x, f32(1, 2, 3)), {"x": (2, 3)}),
    ("merge_casts", "may lose something", lambda b, x: b(o("Cast", F32), b(o("Cast", I64), x)), {"x": (2, 3)}),
    ("div_to_mul", "no power of two", lambda b, x: b(o("Div"), x, f32(3)), {"x": (2, 3)}),
    ("merge_add_constants", "has another reader",
     lambda b, x: (lambda y: (b(o("Add"), y, f32(2)), y))(b(o("Add"), x, f32(1))), {"x": (2, 3)}),
    ("attention", "not over the last axis", masked_late, {"q": (2, 4, 8), "k": (2, 5, 8), "v": (2, 5, 3)}),
    ("scale_into_matmul", "goes into the weight",
     lambda b, x: b(o("Mul"), b(o("MatMul"), x, whole(3, 4)), f32(2)), {"x": (2, 3)}),
    ("pin_shape", "cannot be a constant",
     lambda b, x: b(o("Reshape"), x, b(o("Concat", 0), b(o("Shape", 1, 3), x), i64(1), b(o("Shape", 0, 1), x))),
     {"x": ("n", "h", "w")}),
    ("pin_auto_pad", "sizes are not known",
     lambda b, x: b(o("MaxPool", (2, 2), auto_pad="SAME_UPPER"), x), {"x": (1, 2, "h", 4)}),
    ("drop_stats", "statistics are read",
     lambda b, x: b(o("LayerNormalization", stats=True), x, np.ones(3, F32)), {"x": (2, 3)}),
    ("recognise_layer_norm", "other axes",
     lambda b, x: b(o("RMSNormalization"), b(o("Sub"), x, b(o("ReduceMean"), x, i64(0))), np.ones(3, F32)),
     {"x": (2, 3)}),
    ("mask_from_where", "no low number",
     lambda b, c, x: b(o("Softmax"), b(o("Where"), c, x, f32(-5))), {"c": (BOOL, 2, 3), "x": (2, 3)}),
    ("dequantize_after_window", "there may be no element",
     lambda b, x: b(o("ReduceMax"), b(o("DequantizeLinear"), x, f32(1)[0]), i64(0)), {"x": (U8, "n", 3)}),
    ("dequantize_after_window", "there may be no element",
     lambda b, x: b(o("ReduceMin"), b(o("DequantizeLinear"), x, f32(1)[0]), i64(0)), {"x": (U8, 0, 3)}),
    ("sub_to_add", "no sign", lambda b, x: b(o("Sub"), x, np.ones(3, np.uint8)), {"x": (np.dtype("u1"), 2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reason", "build", "shapes"), REFUSALS, ids=[f"{r[0]}: {r[1]}" for r in REFUSALS])
def test_rule_refuses_with_the_reason(
    name: str, reason: str, build: Callable[..., Any], shapes: dict[str, tuple[Any, ...]]
) -> None:
    graph = graph_of(build, shapes)
    before = [n.op for n in graph.nodes]
    trace = Trace()
    rewrite(graph, [RULES[name]], trace=trace, strict=True)
    said = [why for (rule, _), why in trace.refusals.items() if rule == name]
    if name != "affine_into_weights" or "goes on" not in reason:
        assert [n.op for n in graph.nodes] == before
    assert any(reason in why for why in said), said


@pytest.mark.parametrize(("innermost", "fits"), [("Abs", True), ("Neg", False)])
def test_commutative_patterns_of_any_depth_match_at_once(innermost: str, fits: bool) -> None:
    """Both operands may be the next level at each of 60 levels: trying each order of each would take 2^60 ways."""
    pattern = Pat(Abs)
    for _ in range(60):
        pattern = Pat(Add, (pattern, Pat()), commutative=True)

    def build(b: Builder, x: Value) -> Any:
        y = b(o(innermost), x)
        for _ in range(60):
            y = b(o("Add"), y, y)
        return y

    graph = graph_of(build, {"x": (2,)})
    assert (match(pattern, graph, graph.nodes[-1]) is not None) == fits


def test_a_commutative_pattern_tries_the_other_order_where_names_want_it() -> None:
    pattern = Pat(Add, (Pat(Neg, (Pat(name="x"),)), Pat(name="x")), commutative=True)
    graph = graph_of(lambda b, x: (lambda y: b(o("Add"), y, b(o("Neg"), y)))(b(o("Neg"), x)), {"x": (2,)})
    found = match(pattern, graph, graph.nodes[-1])
    assert found is not None
    assert found["x"] is graph.nodes[0].output


def test_folding_keeps_to_its_budget() -> None:
    graph = graph_of(lambda b, x: b(o("Add"), x, b(o("Tile"), whole(1 << 20), i64(32))), {"x": (1,)})
    trace = Trace()
    rewrite(graph, fold_rules(growth=1 << 20), trace=trace)
    assert [n.op.name for n in graph.nodes] == ["Tile", "Add"]
    assert any("too large" in why for why in trace.refusals.values())


def test_the_budget_of_folding_knows_arrays_by_themselves() -> None:
    """A constant that lies where a collected one was adds to the budget as any other."""
    fold, adds = FoldConstant(), []
    left = fold.work.work
    for _ in range(50):
        value = Value("c", TensorType(F32, (1000,)), const=np.ones(1000, F32))
        fold._allow([value, value])
        assert fold.work.work is not None
        assert left is not None
        adds.append(fold.work.work - left)
        left = fold.work.work
        del value
    assert adds == [adds[0]] * 50
    assert adds[0] > 0


def test_constants_of_shape_take_no_memory() -> None:
    graph = graph_of(
        lambda b, x: b(o("MatMul"), x, b(o("ConstantOfShape", 0.5, F32), i64(25088, 4096))), {"x": (1, 25088)}
    )
    rewrite(graph, fold_rules())
    w = graph.nodes[0].inputs[1]
    assert w is not None
    assert w.const is not None
    assert w.const.shape == (25088, 4096)
    assert w.const.strides == (0, 0)


# ---- the engine


def test_long_chain_is_fast_and_needs_no_recursion() -> None:
    def build(b: Builder, x: Value) -> Any:
        for _ in range(2500):
            x = b(Neg(), b(Neg(), x))
        return b(Relu(), x)

    graph = graph_of(build, {"x": (2, 3)})
    trace = Trace()
    assert rewrite(graph, [RULES["drop_double"]], trace=trace) == 2500
    assert [n.op.name for n in graph.nodes] == ["Relu"]
    assert sum(s.seconds for s in trace.rewrites) < 0.5


def test_endless_loop_names_its_rules() -> None:
    loop = Rule("swap", Pat(Add, (Pat(name="a"), Pat(name="b"))), lambda m, b: b(Add(), m["b"], m["a"]))
    graph = graph_of(lambda b, x, y: b(Add(), x, y), {"x": (3,), "y": (3,)})
    with pytest.raises(Exception, match=r"fixed point.*swap"):
        rewrite(graph, [loop])


def test_rule_that_changes_the_type_is_refused() -> None:
    wrong = Rule("wrong", Pat(Relu, (Pat(name="x"),)), lambda m, b: b(o("Reshape"), m["x"], i64(6)))
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (2, 3)})
    trace = Trace()
    assert rewrite(graph, [wrong], trace=trace) == 0
    assert "changes the type" in trace.refusals["wrong", "Relu"]
    assert [n.op.name for n in graph.nodes] == ["Relu"]
    with pytest.raises(Exception, match="changes the type"):
        rewrite(graph, [wrong], strict=True)


def test_rule_that_fails_leaves_the_node_alone(nothing_swallowed: Counter[str]) -> None:
    broken = Rule("broken", Pat(Relu, (Pat(name="x"),)), lambda m, b: m["y"])
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (2, 3)})
    trace = Trace()
    assert rewrite(graph, [broken], trace=trace) == 0
    assert trace.refusals["broken", "Relu"].startswith("error")
    assert list(nothing_swallowed) == ["rule 'broken': KeyError: 'y'"]
    nothing_swallowed.clear()
    with pytest.raises(KeyError):
        rewrite(graph, [broken], strict=True)


def test_names_move_to_the_replacement() -> None:
    graph = Graph()
    x = graph.add_input("x", graph_of(lambda b, x: x, {"x": (2, 3)}).inputs[0].type)
    b = Builder(graph)
    y = b(Relu(), b(Relu(), x, name="inner"), name="answer")
    graph.add_output(b(Clip(-1.0, 2.0), y, name="end"), "end")
    rewrite(graph, [RULES["merge_clips"], RULES["drop_repeated"]])
    assert [n.output.name for n in graph.nodes] == ["end"]
    assert graph.output_names == ["end"]


def test_trace_tells_rule_place_and_nodes() -> None:
    graph = graph_of(lambda b, x: b(Add(), f32(1), x), {"x": (2, 3)})
    trace = Trace(stage="canonical")
    rewrite(graph, [RULES["constant_right"]], trace=trace)
    (step,) = trace.rewrites
    assert step.rule == "constant_right"
    assert "/passes/canonical/" in step.where
    assert "Add" in step.before
    assert len(step.after) == 1
    assert "[canonical] constant_right" in str(trace)


def test_repeated_name_wants_the_same_value() -> None:
    twice = Rule("twice", Pat(Add, (Pat(name="x"), Pat(name="x"))), lambda m, b: b(Neg(), m["x"]))
    graph = graph_of(lambda b, x, y: (b(Add(), x, y), b(Add(), y, y)), {"x": (3,), "y": (3,)})
    assert rewrite(graph, [twice]) == 1
    assert [n.op.name for n in graph.nodes] == ["Add", "Neg"]


def test_rules_reach_subgraphs() -> None:
    case = next(c for c in CASES if c.rule == "sink_if_constants")
    graph = case.graph()
    rewrite(graph, [RULES["sink_if_constants"], RULES["sub_to_add"], *fold_rules()])
    branches = [g for _, g in graph.subgraphs()]
    assert all(len(g.inputs) == 1 for g in branches)
