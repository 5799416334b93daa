"""What symbolic shapes hide from the passes: models of open shapes give at each size what the references give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError, DataError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops import pointwise as ops
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Slice, Squeeze, Tile, Unsqueeze
from bolt_numba.types import BOOL, F32, I64, Array, Dim, Sym, TensorType
from tests.graphs import choice

SIGNED = (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Pow, ops.Min, ops.Max, ops.PRelu, ops.Equal, ops.Less)


def wanted_of(graph: Graph, feeds: dict[str, Array]) -> Array | None:
    """What the references give; None where they refuse."""
    try:
        return next(iter(interpret(graph, feeds).values()))
    except BoltError:
        return None


def held(graph: Graph, feeds: dict[str, Array]) -> None:
    """The session gives what the references give, and refuses what they refuse."""
    wanted = wanted_of(graph, feeds)
    session = bn.compile(graph, threads=1)
    if wanted is None:
        with pytest.raises((ShapeError, DataError)):
            session.run(None, feeds)
    else:
        (got,) = session.run(None, feeds)
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("dtype", [F32, I64], ids=str)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("op", SIGNED, ids=lambda op: op.__name__)
def test_a_constant_of_one_number_widens_a_symbol_that_is_1(op: Any, first: bool, dtype: Any) -> None:
    """x of [n] with a constant of [2]: the result is [2], also where n is 1."""
    if op is ops.PRelu and (first or dtype != F32):
        pytest.skip("only the slope is a constant")
    for number in (-1, 0, 1, 2):
        graph = Graph("wide")
        x, c = graph.add_input("x", TensorType(dtype, (Sym("n"),))), np.full(2, number, dtype)
        graph.add_output(Builder(graph)(op(), *((c, x) if first else (x, c))), "y")
        for n in (1, 2, 3):
            held(graph, {"x": np.arange(1, n + 1, dtype=dtype)})


@pytest.mark.parametrize("content", [[6], [-1], [0], [7], [-2], [2, 3], [2, -1], [-1, -1], [4, -1]], ids=str)
def test_shapes_from_data_are_held_to(content: list[int]) -> None:
    graph = Graph("reshape")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 3)))
    shape = graph.add_input("shape", TensorType(I64, (len(content),)))
    graph.add_output(Builder(graph)(Reshape(), x, shape), "y")
    held(graph, {"x": np.arange(6, dtype=F32).reshape(2, 3), "shape": np.array(content)})


@pytest.mark.parametrize("axis", [0, 1, -1, -2, 2, -3, 2**31, -(2**63)])
@pytest.mark.parametrize("op", [Squeeze, Unsqueeze])
def test_axes_from_data_are_held_to(op: Any, axis: int) -> None:
    graph = Graph("axes")
    x = graph.add_input("x", TensorType(F32, (1,)))
    axes = graph.add_input("axes", TensorType(I64, (1,)))
    graph.add_output(Builder(graph)(op(), x, axes), "y")
    held(graph, {"x": np.ones(1, F32), "axes": np.array([axis])})


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize(("op", "count"), [(Tile, 1), (Slice, 2), (Expand, 1)])
def test_operands_for_axes_that_there_are_not(op: Any, count: int, length: int) -> None:
    """A number has no axes, so an operand that is as long as there are axes is empty (but Expand may add one)."""
    graph = Graph("number")
    x = graph.add_input("x", TensorType(F32, ()))
    more = [graph.add_input(f"n{i}", TensorType(I64, (Sym(f"k{i}"),))) for i in range(count)]
    y = Builder(graph)(op(), x, *more)
    graph.add_output(y, "y")
    feeds = {"x": np.array(3, F32)} | {f"n{i}": np.full(length, i + 1) for i in range(count)}
    if op is Expand or not length:
        held(graph, feeds)
    else:
        with pytest.raises(ShapeError):
            bn.compile(graph, threads=1).run(None, feeds)


@pytest.mark.parametrize("size", [1, 4])
def test_an_axis_of_one_name_is_expanded_to_one_of_another(size: int) -> None:
    """Such an Expand was dropped: nothing told the sizes apart."""
    graph = Graph("expand")
    x, y = (graph.add_input(name, TensorType(F32, (Sym(name),))) for name in ("n", "m"))
    b = Builder(graph)
    graph.add_output(b(Expand(), x, b(Shape(), y)), "z")
    held(graph, {"n": np.ones(size, F32), "m": np.ones(4, F32)})


@pytest.mark.parametrize("sizes", [(1, 8), (8, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 1)], ids=str)
def test_axes_that_are_squeezed_are_1(axes: tuple[int, ...], sizes: tuple[int, int]) -> None:
    for then in (False, True):
        graph = Graph("squeeze")
        b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), Sym("m"))))
        y = b(Squeeze(), x, np.array(axes))
        graph.add_output(b(Reshape(), y, np.array([-1, 1])) if then else y, "y")
        held(graph, {"x": np.ones(sizes, F32)})


@pytest.mark.parametrize("conditions", [0, 1, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_branches_are_held_to_what_they_declare(conditions: int, size: int) -> None:
    graph = Graph("branches")
    b = Builder(graph)
    made = choice(b, graph.add_input("x", TensorType(F32, (2,))), True).node
    assert made is not None
    other = Graph("open")
    cond = other.add_input("cond", TensorType(BOOL, (Sym("k"),)))
    x = other.add_input("x", TensorType(F32, (Sym("n"),)))
    captures = [x if v is not None and v.type.dtype == F32 else v for v in made.inputs[1:]]
    other.add_output(Builder(other).node(made.op, cond, *captures).outputs[0], "y")
    held(other, {"cond": np.ones(conditions, bool), "x": np.arange(size, dtype=F32)})


N, M = Sym("n"), Sym("m")


@pytest.mark.parametrize(
    ("quotient", "wanted"),
    [
        (N // N, "(n)//(n)"), ((N + 1) // (N + 1), 1), ((N - 1) // (N - 1), "(n + -1)//(n + -1)"), (N // M, "(n)//(m)"),
        (N // 0, "(n)//0"), (N % 0, "(n)%(0)"), (4 // N, "4//(n)"), ((2 * N) // 2, "n"), ((2 * N) % 2, 0),
        (N % N, "(n)%(n)"),
    ],
    ids=str,
)  # fmt: skip
def test_quotients_claim_nothing_that_a_size_of_0_belies(quotient: Any, wanted: Any) -> None:
    assert (str(quotient) if isinstance(quotient, Sym) else quotient) == wanted


@pytest.mark.parametrize("shift", [0, -5])
@pytest.mark.parametrize("divisor", ["itself", 0, 3, -2, 1])
@pytest.mark.parametrize("op", [ops.Div(), ops.Mod(), ops.Mod(True)], ids=str)
def test_sizes_are_divided_as_numbers_are(op: Any, divisor: Any, shift: int) -> None:
    """Of an axis of no elements by itself, by 0, of less than 0: what inference knows is what the run gives."""
    graph = Graph("divided")
    b = Builder(graph)
    size = b(ops.Add(), b(Shape(), graph.add_input("x", TensorType(F32, (N,)))), np.array([shift]))
    quotient = b(op, size, size if divisor == "itself" else np.array([divisor]))
    graph.add_output(b(Expand(), np.ones(1, F32), b(ops.Abs(), quotient)), "y")
    graph.add_output(quotient, "q")
    for n in (0, 1, 5, 7):
        feeds = {"x": np.ones(n, F32)}
        (y, q), given = interpret(graph, feeds).values(), np.array([n + shift])
        np.testing.assert_array_equal(q, op.reference(given, given if divisor == "itself" else np.array([divisor])))
        got = bn.compile(graph, threads=1)(feeds)
        np.testing.assert_array_equal(got["q"], q)
        assert got["y"].shape == y.shape == (abs(int(q[0])),)


def test_a_division_that_cuts_is_not_named_as_one_that_floors() -> None:
    """(n - 5) // 3 of a window is not what ONNX's Div gives where n is 1."""
    content = np.array([N - 5], object)
    (cut,) = ops.Div().reference(content, np.array([3], object))
    assert cut != (N - 5) // 3
    (even,) = ops.Div().reference(np.array([2 * N - 6], object), np.array([2], object))
    assert even == N - 3


def test_a_reshape_that_keeps_the_elements_before_it_has_one_column() -> None:
    """A divisor of no elements is refused there, so that the quotient of equals is 1."""
    graph = Graph("columns")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (N, 4)))
    count = b(ops.Mul(), b(Shape(0, 1), x), np.array([4]))
    y = b(Reshape(), x, b(Concat(0), count, np.array([-1])))
    assert y.type.shape == (4 * N, 1)


def turned(*dims: Dim) -> Graph:
    """A matrix in the shape of its transpose, computed."""
    graph = Graph("turned")
    x = graph.add_input("x", TensorType(F32, dims))
    b = Builder(graph)
    rows, columns = (b(Slice(), b(Shape(), x), np.array([i]), np.array([i + 1])) for i in (0, 1))
    graph.add_output(b(Reshape(), x, b(Concat(0), columns, rows)), "y")
    return graph


def test_a_computed_zero_of_an_empty_operand() -> None:
    """0 keeps a dimension, as in a constant shape; an open size that turns out 0 is solved as -1, as in onnxruntime."""
    (y,) = bn.Session(turned(Sym("n"), 5))(x=np.zeros((0, 5), np.float32))
    assert y.shape == (5, 0)
    with pytest.raises(bn.ShapeError, match=r"Reshape: shape: got \[5, 0\], wanted 0 elements"):
        bn.Session(turned(0, 5))(x=np.zeros((0, 5), np.float32))
