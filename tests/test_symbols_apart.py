"""Inputs that give one symbol several sizes, and symbols that turn out as 1 beside a number."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape
from bolt_numba.ops.layers.products.matmul import Einsum, MatMul
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.surgery import packed, with_states
from bolt_numba.types import F32, Array, Dim, Sym, TensorType
from tests.near import assert_near

RNG = np.random.default_rng(4)
N, K = Sym("n"), Sym("k")


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(F32)


def of_two(build: Any, x: tuple[Dim, ...] = (N, K), y: tuple[Dim, ...] = (N, K)) -> Graph:
    graph = Graph("two")
    operands = [graph.add_input(name, TensorType(F32, dims)) for name, dims in (("x", x), ("y", y))]
    graph.add_output(build(Builder(graph), *operands), "z")
    return graph


CASES: dict[str, tuple[Any, tuple[int, int], tuple[int, int], Any, Any]] = {
    "one row for all": (lambda b, x, y: b(Add(), x, y), (1, 3), (4, 3), lambda x, y: x + y, lambda x: x + x),
    "all for one row": (lambda b, x, y: b(Add(), b(Relu(), x), y), (4, 3), (1, 3), lambda x, y: np.maximum(x, 0) + y,
                        lambda x: np.maximum(x, 0) + x),
    "joined": (lambda b, x, y: b(Concat(0), x, y), (2, 3), (5, 3), lambda x, y: np.concatenate([x, y]),
               lambda x: np.concatenate([x, x])),
    "of the other's shape": (lambda b, x, y: b(Reshape(), x, b(Shape(), y)), (4, 3), (2, 6),
                             lambda x, y: x.reshape(2, 6), lambda x: x),
    "a length": (
        lambda b, x, y: b(Add(), b(Gather(0), b(Shape(), y), np.array(0)), b(Gather(0), b(Shape(), x), np.array(0))),
        (4, 3), (2, 6), lambda x, y: np.array(6), lambda x: np.array(8),
    ),
    "named axes": (lambda b, x, y: b(Einsum("ij,ij->ij"), x, y), (1, 3), (4, 3), lambda x, y: x * y, lambda x: x * x),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_symbol_may_have_several_sizes_where_operators_allow_it(
    name: str, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    build, x_shape, y_shape, meant, equal = CASES[name]
    session = bn.compile(of_two(build), threads=threads)
    x, y = real(*x_shape), real(*y_shape)
    got = session(x, y)["z"]
    assert_near(got, meant(x, y), 1e-6)
    assert_near(session(x, y)["z"], meant(x, y), 1e-6)
    assert_near(session(x, x)["z"], equal(x), 1e-6)
    into = np.empty_like(got)
    session.run_into({"x": x, "y": y}, {"z": into})
    np.testing.assert_array_equal(into, got)
    session.warmup(x=x_shape, y=y_shape)
    assert session.profile(x, y, runs=1).total > 0
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert re.search(r"two: dimension '[nk]': got \d in input 'y', but \d in 'x'", said)


def test_what_operators_do_not_allow_is_refused_with_both_reasons() -> None:
    session = bn.compile(of_two(lambda b, x, y: b(Add(), x, y)))
    with pytest.raises(bn.ShapeError, match=r"dimension 'n': got 5 in input 'y', but 2 in 'x': .*Add"):
        session(real(2, 3), real(5, 3))
    assert session(real(2, 3), real(2, 3))["z"].shape == (2, 3)


SUMMED = (lambda b, x, y: b(Expand(), x, b(Shape(), b(Add(), x, y))), lambda x, y: np.broadcast_to(x, (x + y).shape))
TWO = {
    "expanded to a sum": SUMMED,
    "of the shape of a sum": (lambda b, x, y: b(Shape(), b(Add(), x, y)), lambda x, y: np.array((x + y).shape)),
    "a sum of the first's shape": (
        lambda b, x, y: b(Reshape(), b(Add(), x, y), b(Shape(), x)), lambda x, y: (x + y).reshape(x.shape)),
    "a sum of the second's shape": (
        lambda b, x, y: b(Reshape(), b(Add(), x, y), b(Shape(), y)), lambda x, y: (x + y).reshape(y.shape)),
    "of a sum's shape": (
        lambda b, x, y: b(Reshape(), x, b(Shape(), b(Add(), x, y))), lambda x, y: x.reshape((x + y).shape)),
    "of the second's shape": (lambda b, x, y: b(Reshape(), x, b(Shape(), y)), lambda x, y: x.reshape(y.shape)),
    "filled": (lambda b, x, y: b(Add(), b(Expand(), np.ones(1, F32), b(Shape(), b(Add(), y, x))), y),
               lambda x, y: np.ones((y + x).shape, F32) + y),
}  # fmt: skip


@pytest.mark.parametrize("dims", [(N, 3, Sym("m"), 3), (N, K, Sym("m"), Sym("l")), (N, K, N, K), (N, 3, N, K)])
@pytest.mark.parametrize("name", TWO)
def test_either_of_two_symbols_may_turn_out_as_1(name: str, dims: tuple[Any, ...]) -> None:
    """Nothing that is known of one before the run is taken of the other: shapes are right, or the node says why not."""
    build, meant = TWO[name]
    session = bn.compile(of_two(build, dims[:2], dims[2:]), threads=1)
    for x_shape, y_shape in (((1, 3), (4, 3)), ((4, 3), (1, 3)), ((4, 3), (4, 3)), ((4, 3), (4, 1)), ((4, 1), (1, 3)),
                             ((2, 3), (4, 3)), ((4, 3), (2, 6))):  # fmt: skip
        if any(isinstance(d, int) and d != n for d, n in zip(dims, x_shape + y_shape, strict=True)):
            continue
        x, y = real(*x_shape), real(*y_shape)
        try:
            wanted = meant(x, y)
        except ValueError:
            with pytest.raises(bn.ShapeError, match=r"(Add|Reshape|Expand).*: .*got .*wanted"):
                session(x, y)
        else:
            np.testing.assert_array_equal(session(x, y)["z"], wanted)


@pytest.mark.parametrize("dims", [("n", 3, "m", 3), ("n", "k", "m", "l"), ("n", 3, "n", 3)])
def test_the_third_operand_of_gemm_is_broadcast_to_the_product_alone(dims: tuple[Any, ...]) -> None:
    values = [helper.make_tensor_value_info(name, 1, d) for name, d in (("x", dims[:2]), ("c", dims[2:]), ("y", None))]
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], name="dense")
    graph = helper.make_graph([node], "g", values[:2], values[2:], [numpy_helper.from_array(np.eye(3, dtype=F32), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = bn.compile(model.SerializeToString(), threads=1)
    for x_shape, c_shape in (((4, 3), (1, 3)), ((4, 3), (4, 3)), ((1, 3), (1, 3))):
        x, c = real(*x_shape), real(*c_shape)
        assert_near(session(x, c)["y"], x + c, 1e-6)
    with pytest.raises(bn.ShapeError, match=r"node 'y': Reshape: shape: got \[1, 3\], wanted 12 elements, as in"):
        session(real(1, 3), real(4, 3))


def test_a_symbol_may_have_two_sizes_within_an_input() -> None:
    session = bn.compile(of_two(lambda b, x, y: b(MatMul(), x, y), (N, N), (N, N)))
    x, y = real(2, 3), real(3, 4)
    assert_near(session(x, y)["z"], x @ y, 1e-6)


def test_states_go_on_where_a_symbol_has_several_sizes() -> None:
    def sums(b: Builder, x: Any, y: Any) -> Any:
        held = b.graph.add_input("held", TensorType(F32, (3,)))
        b.graph.add_output(b(Add(), held, np.ones(3, F32)), "kept")
        return b(Add(), b(Add(), x, y), held)

    session = bn.compile(with_states(of_two(sums), {"held": "kept"}))
    x, y = real(1, 3), real(4, 3)
    assert_near(session(x, x)["z"], x + x, 1e-6)
    assert_near(session(x, y)["z"], x + y + 1, 1e-6)
    assert_near(session(x, x)["z"], x + x + 2, 1e-6)


def test_a_packed_model_knows_one_size_only() -> None:
    session = bn.compile(packed(of_two(lambda b, x, y: b(Add(), x, y))))
    with pytest.raises(bn.ShapeError, match=r"'n': got 4 in input 'y', but 1 in 'x'; a packed model .* wanted"):
        session(real(1, 3), real(4, 3))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ij->j", "bij,bjk->bik", "bij,bj->bi", "ijk,kl,jl->i"])
def test_axes_of_an_equation_may_be_of_length_1(equation: str) -> None:
    """The other operands say by a number how long the axis is, this one by a symbol."""
    terms = equation.split("->", maxsplit=1)[0].split(",")
    sizes = {"b": 2, "i": 3, "j": 4, "k": 5, "l": 6}
    for place, term in enumerate(terms):
        for axis, letter in enumerate(term):
            if sum(letter in t for t in terms) < 2:
                continue
            graph, feeds, dims = Graph("named"), [], []
            for i, t in enumerate(terms):
                shape: list[Dim] = [sizes[c] for c in t]
                feeds.append(real(*(1 if (i, k) == (place, axis) else sizes[c] for k, c in enumerate(t))))
                dims.append(tuple(Sym("s") if (i, k) == (place, axis) else d for k, d in enumerate(shape)))
            values = [graph.add_input(f"x{i}", TensorType(F32, d)) for i, d in enumerate(dims)]
            graph.add_output(Builder(graph)(Einsum(equation), *values), "y")
            session = bn.compile(graph)
            assert_near(session(*feeds)["y"], np.einsum(equation, *feeds), 1e-5)
            assert "Einsum" not in {row["op"] for row in session.report()}
