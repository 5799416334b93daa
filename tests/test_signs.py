"""Signed activations become unsigned ones where products read them: the same bytes come out, and no step turns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul
from bolt_numba.passes.quantised.signs import use_unsigned_bytes
from bolt_numba.types import F32, I8, U8, AnyDType
from tests.rule_cases import graph_of, i64, o
from tests.test_byte_moves import dq, feeds, names, q, scale

POINT = -37


def conv(b: Builder, x: Value, filters: int = 4, y: AnyDType | None = I8, r: Value | None = None) -> Any:
    """A 1x1 convolution of signed bytes to bytes, or to f32."""
    rng = np.random.default_rng(filters)
    w = rng.integers(-127, 128, (filters, x.type.dims[1], 1, 1)).astype(I8)
    operands = [x, scale(0.1), np.array(POINT, I8), w, scale(0.05), np.array(0, I8)]
    operands += [None, None] if y is None else [scale(0.2), np.array(5, y)]
    operands += [None] if r is None else [None, r, scale(0.3), np.array(-9, I8)]
    return b(QLinearConv(residual=r is not None), *operands)


def table(b: Builder, x: Value, dtype: AnyDType = I8) -> Any:
    return b(ByteTable(), x, np.random.default_rng(3).integers(0, 256, 256).astype(U8).view(dtype))


BETWEEN: dict[str, Callable[[Builder, Value], Any]] = {
    "nothing": lambda b, x: x,
    "reshape": lambda b, x: b(o("Reshape"), b(o("Reshape"), x, i64(4, -1)), i64(1, 4, 4, 6)),
    "slice": lambda b, x: b(o("Slice"), x, i64(1), i64(4), i64(2)),
    "gather": lambda b, x: b(o("Gather", 2), x, i64(3, 0, 3)),
    "split": lambda b, x: b(o("Concat", 3), *b.node(o("Split", 3, 2), x).outputs[::-1]),
    "pad": lambda b, x: b(o("Pad"), x, i64(0, 0, 1, 0, 0, 0, 1, 2)),
    "pad with a number": lambda b, x: b(o("Pad"), x, i64(0, 0, 1, 0, 0, 0, 1, 2), np.array(POINT, I8)),
    "pad with an edge": lambda b, x: b(o("Pad", "edge"), x, i64(0, 0, 1, 0, 0, 0, 1, 2)),
    "clip": lambda b, x: b(o("Clip", lo=-20, hi=90), x),
    "clip below": lambda b, x: b(o("Clip", lo=POINT), x),
    "pool": lambda b, x: b(o("MaxPool", (2, 2), (1, 1), (1, 0, 0, 1)), x),
    "nearest": lambda b, x: b(o("Resize"), x, None, np.array([1, 1, 2, 2], F32)),
    "greatest": lambda b, x: b(o("ReduceMax"), x, i64(2)),
    "join": lambda b, x: b(o("Concat", 1), x, conv(b, x, 3)),
    "join with a constant": lambda b, x: b(o("Concat", 2), x, np.full((1, 4, 1, 6), -100, I8)),
    "greater": lambda b, x: b(o("Max"), x, conv(b, x)),
    "choice": lambda b, x: b(o("Where"), np.arange(6) % 2 == 0, x, conv(b, x)),
    "table": table,
    "table of unsigned bytes": lambda b, x: table(b, table(b, x, U8)),
    "conversions": lambda b, x: q(b, b(o("Abs"), dq(b, x, 0.25, 3)), 0.3, -128, I8),
    "sum": lambda b, x: q(b, b(o("Add"), dq(b, x, 0.25, 3), dq(b, conv(b, x), 0.5)), 0.3, 4, I8),
    "residual": lambda b, x: conv(b, x, r=x),
    "unknown": lambda b, x: b(o("Cast", I8), b(o("Cast", F32), x)),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_the_same_bytes_come_out(name: str) -> None:
    graph = graph_of(lambda b, x: conv(b, BETWEEN[name](b, conv(b, q(b, x, 0.1, -7, I8)))), {"x": (1, 4, 4, 6)})
    made = graph.clone()
    assert use_unsigned_bytes(made)
    assert not verify(made)
    assert all(n.operands[0].type.dtype == U8 for n in made.nodes if isinstance(n.op, QLinearConv))  # type: ignore[union-attr]
    assert [v.type for v in made.outputs] == [v.type for v in graph.outputs]
    data = feeds(graph, 5)
    want = interpret(graph, data)
    for result, array in interpret(made, data).items():
        np.testing.assert_array_equal(array, want[result])
    for got in bn.compile(graph)(**data), bn.compile(graph, threads=2)(**data):
        for result, array in want.items():
            differ = int((got[result] != array).sum())  # a sum is rounded once where a convolution takes it in
            assert differ <= (2 if name == "sum" else 0)
    added = names(made).count("ByteTable") - names(graph).count("ByteTable")
    assert added == (name == "unknown"), "behind what is not known"


def test_values_that_others_read_are_signed_again() -> None:
    def build(b: Builder, x: Value) -> Any:
        y = q(b, x, 0.3, 7, I8)
        return conv(b, y, y=None), y, b(o("ArgMax", 1), y), dq(b, y, 0.3, 7), b(o("Cast", F32), y)

    graph = graph_of(build, {"x": (1, 4, 4, 6)})
    made = graph.clone()
    assert use_unsigned_bytes(made)
    assert names(made).count("ByteTable") == 1
    data = feeds(graph, 2)
    want = interpret(graph, data)
    for result, array in interpret(made, data).items():
        np.testing.assert_array_equal(array, want[result])


def test_both_factors_of_a_product() -> None:
    def build(b: Builder, x: Value, y: Value) -> Any:
        a, z = q(b, x, 0.3, 7, I8), b(o("Transpose", (0, 2, 1)), q(b, y, 0.2, -3, I8))
        numbers = scale(0.3), np.array(7, I8), z, scale(0.2), np.array(-3, I8), scale(9), np.array(-128, I8)
        return b(QLinearMatMul(), a, *numbers)

    graph = graph_of(build, {"x": (2, 5, 8), "y": (2, 6, 8)})
    made = graph.clone()
    assert use_unsigned_bytes(made)
    assert names(made) == ["QuantizeLinear", "QuantizeLinear", "Transpose", "QLinearMatMul"]
    data = feeds(graph, 2)
    for result, array in interpret(made, data).items():
        np.testing.assert_array_equal(array, interpret(graph, data)[result])


def test_inputs_and_zero_points_of_the_run_stay() -> None:
    def build(b: Builder, x: Value, zero: Value) -> Any:
        operands = q(b, x, 0.2, 3, I8), scale(0.1), zero, np.ones((4, 4, 1, 1), I8), scale(0.05), np.array(0, I8)
        return b(QLinearConv(), *operands)

    assert not use_unsigned_bytes(graph_of(build, {"x": (1, 4, 2, 2), "zero": (I8,)}))
    assert not use_unsigned_bytes(graph_of(conv, {"x": (I8, 1, 4, 2, 2)}))
    unsigned = graph_of(lambda b, x: table(b, x), {"x": (U8, 1, 4, 2, 2)})
    assert not use_unsigned_bytes(unsigned)
