"""Small models for tests of the C library."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import Gather, NonZero
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.reduce import ReduceSum, Softmax
from bolt_numba.ops.arrays.shape import Concat, Identity, Shape, Transpose, Unsqueeze
from bolt_numba.ops.control import If, Loop
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Greater, Less, Mul, Relu
from bolt_numba.types import BOOL, F32, I64, Sym, TensorType

DIGITS = Path(__file__).parent.parent.parent / "examples" / "digits" / "digits.onnx"


def digits() -> Graph:
    return bn.load(DIGITS)


def dense() -> Graph:
    """Products that are large enough for threads to share."""
    rng = np.random.default_rng(3)
    g = Graph("dense")
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (Sym("n"), 256)))
    for _ in range(3):
        x = b(Relu(), b(MatMul(), x, rng.standard_normal((256, 256), F32) / 16))
    g.add_output(b(Softmax(-1), x), "y")
    return g


def ranged() -> Graph:
    """Rows of any number, with their number added: a tape with tables that depend on sizes."""
    g = Graph("ranged")
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (Sym("n"), 24)))
    y = b(MatMul(), x, np.random.default_rng(5).standard_normal((24, 24), F32) / 5)
    count = b(Range(), np.int64(0), b(Gather(0), b(Shape(), x), np.int64(0)), np.int64(1))
    g.add_output(b(Softmax(-1), b(Add(), y, b(Unsqueeze(), b(Cast(F32), count), np.array([1])))), "y")
    g.add_output(b(Transpose((1, 0)), y), "turned")
    g.add_output(x, "same")
    return g


def counter() -> Graph:
    """y = 2 (x + s), and s becomes x + s."""
    g = Graph("counter")
    x = g.add_input("x", TensorType(F32, (3,)))
    s = Value(g.unique_name("s"), TensorType(F32, (3,)))
    b = Builder(g)
    total = b(Add(), x, s, name="total")
    g.add_state(s, total, np.array([0, 10, 20], F32))
    g.add_output(b(Mul(), total, 2.0), "y")
    return g


def selector() -> Graph:
    """Where x is not 0, the same as halves, and x, once or twice as its sum says: sizes that data decide."""

    def branch(times: int) -> Graph:
        inner = Graph("branch")
        x = inner.add_input("x", TensorType(F32, (4, 3)))
        inner.add_output(Builder(inner)(Concat(0), *[x] * times) if times > 1 else Builder(inner)(Relu(), x), "y")
        return inner

    g = Graph("selector")
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (4, 3)))
    places = b(NonZero(), x, name="places")
    g.add_output(places, "places")
    g.add_output(b(Mul(), b(Cast(F32), b(Transpose((1, 0)), places)), 0.5), "halves")
    above = b(Greater(), b(ReduceSum(keepdims=False), x, np.array([0, 1])), np.float32(0))
    g.add_output(b(If(branch(1), branch(2)), above, x), "times")
    return g


def counting() -> Graph:
    """x and as many ones as n says."""
    body = Graph("body")
    body.add_input("i", TensorType(I64, ()))
    go, v = body.add_input("go", TensorType(BOOL, ())), body.add_input("v", TensorType(F32, (3,)))
    body.add_output(Builder(body)(Identity(), go), "go_on")
    body.add_output(Builder(body)(Add(), v, np.float32(1)), "more")
    g = Graph("counting")
    n, x = g.add_input("n", TensorType(I64, ())), g.add_input("x", TensorType(F32, (3,)))
    g.add_output(Builder(g)(Loop(body, 1), n, None, x), "y")
    return g


def doubling() -> Graph:
    """x, doubled while its sum is below 100, at most six times, and all steps of that."""
    body = Graph("body")
    body.add_input("i", TensorType(I64, ()))
    body.add_input("go", TensorType(BOOL, ()))
    b, v = Builder(body), body.add_input("v", TensorType(F32, (3,)))
    twice = b(Add(), v, v)
    body.add_output(b(Less(), b(ReduceSum(keepdims=False), twice, np.array([0])), np.float32(100)), "go_on")
    body.add_output(twice, "twice")
    body.add_output(twice, "step")
    g = Graph("doubling")
    last, steps = Builder(g)(Loop(body, 1), np.array(6), None, g.add_input("x", TensorType(F32, (3,))))
    g.add_output(last, "last")
    g.add_output(steps, "steps")
    return g


def nothing() -> Graph:
    """Of no pixels."""
    g = Graph("nothing")
    g.add_output(Builder(g)(Relu(), g.add_input("x", TensorType(F32, (0, 3)))), "y")
    return g


def lookup() -> Graph:
    """Rows of a table, by numbers that must be within it; the numbers themselves and a constant are outputs, too."""
    g = Graph("lookup")
    b = Builder(g)
    at = g.add_input("at", TensorType(I64, (2, 2)))
    table = g.add_input("table", TensorType(F32, (5, 3)))
    g.add_output(b(Gather(0), table, at, name="rows"), "found")
    g.add_output(at, "same")
    g.add_output(b.const(np.arange(4, dtype=F32)), "fixed")
    return g
