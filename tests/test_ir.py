"""Graph, builder, interpreter, spec, text and Graphviz."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.errors import BoltError, DTypeError, InvalidModelError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.dot import Mark, to_dot
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify, violations
from bolt_numba.ir.text import diff, to_text
from bolt_numba.types import BOOL, F32, F64, I64, Sym, TensorType
from tests.graphs import choice, feeds_of, graphs, make, toposort


def small() -> tuple[Graph, Value, Value]:
    """relu(x @ w) + 1, its input and the product."""
    graph = Graph("small")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 3)))
    product = build(make("MatMul"), x, np.arange(6, dtype=F32).reshape(3, 2), name="product")
    graph.add_output(build(make("Add"), build(make("Relu"), product, name="relu"), np.float32(1), name="sum"), "y")
    return graph, x, product


class TestInterpreter:
    def test_computes_outputs_and_any_named_value(self) -> None:
        graph, _, _ = small()
        x = np.array([[1, 0, -3]], F32)
        product = x @ np.arange(6, dtype=F32).reshape(3, 2)
        got = interpret(graph, {"x": x}, ["y", "product"])
        np.testing.assert_array_equal(got["product"], product)
        np.testing.assert_array_equal(got["y"], np.maximum(product, 0) + 1)
        assert list(interpret(graph, {"x": x})) == ["y"]

    @pytest.mark.parametrize(
        ("feeds", "error", "text"),
        [
            ({}, ShapeError, "wanted 'x'"),
            ({"x": np.zeros((1, 3), F32), "z": 1}, ShapeError, r"got \['z'\]"),
            ({"x": np.zeros((1, 3), F64)}, DTypeError, "got f64, wanted f32"),
            ({"x": np.zeros((1, 4), F32)}, ShapeError, r"got \(1, 4\), wanted f32\[n, 3\]"),
            ({"x": np.zeros(3, F32)}, ShapeError, r"got \(3,\)"),
        ],
    )
    def test_refuses_wrong_feeds(self, feeds: dict[str, np.ndarray], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            interpret(small()[0], feeds)

    def test_refuses_names_of_nothing(self) -> None:
        with pytest.raises(InvalidModelError, match="nothing"):
            interpret(small()[0], {"x": np.zeros((1, 3), F32)}, ["nothing"])

    def test_one_symbol_is_one_size(self) -> None:
        graph = Graph()
        x, y = (graph.add_input(n, TensorType(F32, (Sym("n"),))) for n in "xy")
        graph.add_output(Builder(graph)(make("Add"), x, y), "z")
        with pytest.raises(ShapeError, match="input 'y'"):
            interpret(graph, {"x": np.zeros(3, F32), "y": np.zeros(1, F32)})

    def test_a_result_that_is_not_as_inferred_is_an_error(self) -> None:
        graph, _, product = small()
        product.type = TensorType(F32, (Sym("n"), 7))
        with pytest.raises(ShapeError, match="MatMul: result 'product'"):
            interpret(graph, {"x": np.zeros((1, 3), F32)})

    def test_failure_of_a_reference_is_a_bolt_error(self) -> None:
        graph = Graph()
        x, index = graph.add_input("x", TensorType(F32, (3,))), graph.add_input("i", TensorType(I64, (1,)))
        graph.add_output(Builder(graph)(make("Gather", axis=0), x, index), "y")
        with pytest.raises(BoltError):
            interpret(graph, {"x": np.zeros(3, F32), "i": np.array([99])})

    @pytest.mark.parametrize("condition", [True, False])
    def test_if_runs_one_branch(self, condition: bool) -> None:
        graph = Graph()
        build = Builder(graph)
        x = graph.add_input("x", TensorType(F32, (2,)))
        flag = graph.add_input("flag", TensorType(BOOL, ()))
        made = choice(build, x, True)
        assert made.node is not None
        made.node.set_input(0, flag)
        graph.add_output(made, "y")
        verify(graph)
        got = interpret(graph, {"x": np.array([-2, 5], F32), "flag": np.array(condition)})["y"]
        np.testing.assert_array_equal(got, [2, -5] if condition else [0, 5])


class TestSpec:
    @settings(deadline=None, max_examples=60)
    @given(graph=graphs())
    def test_built_graphs_obey(self, graph: Graph) -> None:
        verify(graph)
        verify(graph.clone())

    def test_rows_begin_at_their_stage(self) -> None:
        graph, x, _ = small()
        build = Builder(graph)
        image = graph.add_input("image", TensorType(F32, (1, 2, 5, 5)))
        graph.add_output(build(make("Conv"), image, np.ones((3, 2, 3, 3), F32), name="conv"))
        build(make("Identity"), x, name="idle")
        assert violations(graph) == []
        assert {v.partition(":")[0] for v in violations(graph, "canonical")} == {"nothing dead", "nothing idle"}
        assert any(v.startswith("channels last: node 'conv'") for v in violations(graph, "layout"))
        assert not any(v.startswith("channels last") for v in violations(graph, "quantise"))

    def broken(self, graph: Graph, row: str) -> None:
        assert any(text.startswith(f"{row}:") for text in violations(graph)), violations(graph)
        with pytest.raises(InvalidModelError, match=re.escape(row)):
            verify(graph)

    def test_order(self) -> None:
        graph, _, _ = small()
        graph.nodes.reverse()
        self.broken(graph, "defined before use")

    def test_undefined_output(self) -> None:
        graph, _, _ = small()
        graph.outputs = [Value("nowhere", TensorType(F32, ()))]
        self.broken(graph, "defined before use")

    def test_use_lists(self) -> None:
        graph, x, _ = small()
        x.uses.append(graph.nodes[-1])
        self.broken(graph, "use lists")

    def test_forgotten_node_is_found_by_use_lists(self) -> None:
        graph, x, _ = small()
        Node(make("Relu"), [x], [x.type], "left over")
        self.broken(graph, "use lists")

    def test_names(self) -> None:
        graph, x, product = small()
        product.name = x.name
        self.broken(graph, "unique names")

    def test_output_names(self) -> None:
        graph, _, product = small()
        graph.add_output(product, "y")
        self.broken(graph, "output names")

    def test_single_assignment(self) -> None:
        graph, _, _ = small()
        graph.nodes[0].outputs[0].index = 1
        self.broken(graph, "single assignment")

    def test_types(self) -> None:
        graph, _, product = small()
        product.type = TensorType(F64, product.type.shape)
        self.broken(graph, "inferred types")

    def test_dimensions_and_symbols(self) -> None:
        graph, _, product = small()
        product.type = TensorType(F32, (Sym("m"), 2))
        self.broken(graph, "inferred types")

    def test_constants(self) -> None:
        graph, _, _ = small()
        graph.constants()[0].const = np.zeros(5, F32)
        self.broken(graph, "constants")

    def test_unregistered_operator(self) -> None:
        graph, _, _ = small()

        class Stranger:
            name = "Relu"

        graph.nodes[1].op = Stranger()  # type: ignore[assignment]
        self.broken(graph, "known operators")

    def test_captures(self) -> None:
        graph = Graph()
        x = graph.add_input("x", TensorType(F32, (2,)))
        graph.add_output(choice(Builder(graph), x, True), "y")
        graph.nodes[0].op.then_branch.inputs[0].type = TensorType(F64, (2,))  # type: ignore[attr-defined]
        assert any("capture" in text or "inferred" in text for text in violations(graph))

    def test_all_violations_are_listed(self) -> None:
        graph, x, product = small()
        product.name = x.name
        graph.add_output(product, "y")
        with pytest.raises(InvalidModelError) as caught:
            verify(graph)
        assert len(str(caught.value).splitlines()) >= 3

    def test_unknown_stage(self) -> None:
        with pytest.raises(ValueError, match="stage"):
            violations(small()[0], "later")


class TestText:
    def test_golden(self) -> None:
        assert to_text(small()[0]) == (
            "graph small\n"
            "  input %x: f32[n, 3]\n"
            "  %product: f32[n, 2] = MatMul(%x, <f32[3, 2] 0.0 1.0 2.0 3.0 4.0 5.0>)\n"
            "  %relu: f32[n, 2] = Relu(%product)\n"
            "  %sum: f32[n, 2] = Add(%relu, <f32[] 1.0>)\n"
            "  output %sum as y\n"
        )

    @settings(deadline=None, max_examples=30)
    @given(graph=graphs())
    def test_a_clone_is_the_same_text(self, graph: Graph) -> None:
        assert to_text(graph) == to_text(graph.clone())

    def test_large_constants_are_told_apart(self) -> None:
        texts = []
        for last in (0, 1):
            graph = Graph()
            data = np.zeros(100, F32)
            data[-1] = last
            graph.add_output(Builder(graph)(make("Add"), graph.add_input("x", TensorType(F32, (100,))), data), "y")
            texts.append(to_text(graph))
        assert texts[0] != texts[1]
        assert all("f32[100] #" in t for t in texts)

    def test_diff_names_what_changed(self) -> None:
        graph, _, _ = small()
        before = to_text(graph)
        graph.nodes[1].op = make("Neg")
        found = diff(before, to_text(graph))
        assert "-  %relu: f32[n, 2] = Relu(%product)" in found
        assert "+  %relu: f32[n, 2] = Neg(%product)" in found
        assert diff(before, before) == ""


class TestDot:
    def test_names_marks_and_edges(self) -> None:
        text = to_dot(small()[0], {"relu": Mark("by vector code", "red")})
        assert text.startswith('digraph "small" {')
        assert text.rstrip().endswith("}")
        assert text.count("->") == 4
        assert r"Relu\nrelu\nby vector code" in text
        assert 'fillcolor="red"' in text

    @settings(deadline=None, max_examples=30)
    @given(graph=graphs())
    def test_braces_and_quotes_match(self, graph: Graph) -> None:
        bare = re.sub(r'"(\\.|[^"\\])*"', "", to_dot(graph))
        assert '"' not in bare
        assert bare.count("{") == bare.count("}")


class TestGraph:
    @settings(deadline=None, max_examples=40)
    @given(graph=graphs(), seed=st.integers(0, 99))
    def test_any_topological_order_means_the_same(self, graph: Graph, seed: int) -> None:
        feeds = feeds_of(graph)
        wanted = interpret(graph, feeds)
        order = np.random.default_rng(seed).permutation(len(graph.nodes))
        graph.nodes = toposort([graph.nodes[i] for i in order])
        verify(graph)
        got = interpret(graph, feeds)
        assert all(np.array_equal(got[k], wanted[k]) for k in wanted)

    def test_replace_uses_and_drop_dead(self) -> None:
        graph, x, product = small()
        graph.replace_uses(graph.outputs[0], product)
        assert graph.drop_dead() == 2
        assert not product.uses
        assert len(x.uses) == 1
        verify(graph)
