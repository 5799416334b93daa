"""Between bytes nothing is a float that need not be: moves, tables and chains give what the QDQ form gives, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import F32, I8, I16, U8, U16, AnyDType, Array
from tests.harness import run_kernel
from tests.rule_cases import graph_of, i64, o

Build = Callable[..., Any]
CONVERSIONS = {"QuantizeLinear", "DequantizeLinear"}


def scale(number: float) -> Array:
    return np.array(number, F32)


def dq(b: Builder, x: Value, s: float, z: int = 0) -> Value:
    return b(o("DequantizeLinear"), x, scale(s), np.array(z, x.type.dtype))


def q(b: Builder, x: Value, s: float, z: int = 0, dtype: AnyDType = U8) -> Value:
    return b(o("QuantizeLinear"), x, scale(s), np.array(z, dtype))


def feeds(graph: Graph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made = {}
    for v in graph.inputs:
        t = v.type.dtype
        made[v.name] = (
            rng.normal(0, 20, v.type.dims).astype(t)
            if t == F32
            else rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, v.type.dims).astype(t)
        )
    return made


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def agrees(graph: Graph, seed: int = 1) -> list[str]:
    """Run the graph as it is by the references and as a session; equal bit for bit.  The operators of the session."""
    data = feeds(graph, seed)
    want = interpret(graph, data)
    made = run_pipeline(graph, check=True)
    got = bn.compile(graph)(**data)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array, err_msg=f"{name}: {names(made)}")
    return names(made)


MOVES: dict[str, tuple[Build, tuple[int, ...]]] = {
    "reshape": (lambda b, x: b(o("Reshape"), x, i64(4, -1)), (2, 4, 6)),
    "transpose": (lambda b, x: b(o("Transpose", (2, 0, 1)), x), (2, 4, 6)),
    "slice": (lambda b, x: b(o("Slice"), x, i64(1), i64(5), i64(2), i64(2)), (2, 4, 6)),
    "gather": (lambda b, x: b(o("Gather", 1), x, i64(3, 0, 3)), (2, 4, 6)),
    "pad": (lambda b, x: b(o("Pad"), x, i64(0, 1, 0, 1, 0, 2)), (2, 4, 6)),
    "pad_edge": (lambda b, x: b(o("Pad", "edge"), x, i64(0, 1, 0, 1, 0, 2)), (2, 4, 6)),
    "pad_with_a_code": (lambda b, x: b(o("Pad"), x, i64(1, 0, 0, 0, 0, 0), scale(1.5)), (2, 4, 6)),
    "expand": (lambda b, x: b(o("Expand"), x, i64(2, 4, 6)), (2, 1, 6)),
    "tile": (lambda b, x: b(o("Tile"), x, i64(1, 3, 1)), (2, 1, 6)),
    "depth_to_space": (lambda b, x: b(o("DepthToSpace", 2), x), (1, 8, 3, 3)),
    "space_to_depth": (lambda b, x: b(o("SpaceToDepth", 2), x), (1, 3, 4, 4)),
    "max_pool": (lambda b, x: b(o("MaxPool", (3, 3), (2, 2), (1, 1, 1, 1)), x), (1, 5, 7, 9)),
    "nearest": (lambda b, x: b(o("Resize"), x, None, np.array([1, 1, 2, 2], F32)), (1, 3, 4, 5)),
    "reduce_max": (lambda b, x: b(o("ReduceMax"), x, i64(2)), (2, 4, 6)),
    "relu": (lambda b, x: b(o("Relu"), x), (2, 4, 6)),
}


@pytest.mark.parametrize("dtype", [U8, I8, I16], ids=["u8", "i8", "i16"])
@pytest.mark.parametrize("move", MOVES)
def test_moves_between_equal_scales_run_on_the_codes(move: str, dtype: AnyDType) -> None:
    build, shape = MOVES[move]
    point = 7 if dtype != U8 else 130

    def graph(b: Builder, x: Value) -> Any:
        return q(b, build(b, dq(b, x, 0.25, point)), 0.25, point, dtype)

    left = agrees(graph_of(graph, {"x": (dtype, *shape)}))  # type: ignore[arg-type]
    assert not CONVERSIONS & set(left), left


@pytest.mark.parametrize("move", MOVES)
def test_between_other_scales_stands_a_table(move: str) -> None:
    build, shape = MOVES[move]
    made = graph_of(lambda b, x: q(b, build(b, dq(b, x, 0.25, 3)), 0.4, -9, I8), {"x": (U8, *shape)})  # type: ignore[arg-type]
    left = agrees(made)
    assert not CONVERSIONS & set(left), left
    assert "ByteTable" in left


def test_what_has_no_code_stays_float() -> None:
    made = graph_of(
        lambda b, x: q(b, b(o("Pad"), dq(b, x, 0.25, 3), i64(1, 1), scale(0.3)), 0.25, 3), {"x": (U8, 6)}  # type: ignore[arg-type]
    )
    assert set(agrees(made)) >= CONVERSIONS
    for pool in (o("MaxPool", (2,), (1,), (2, 2)), o("MaxPool", (2,), (1,), (1, 1), (5,))):  # a window in the padding
        empty = graph_of(lambda b, x, pool=pool: b(pool, dq(b, x, 0.25, 3)), {"x": (U8, 1, 2, 4)})  # type: ignore[arg-type, misc]
        assert agrees(empty)[0] == "DequantizeLinear"
    for reduce in ("ReduceMax", "ReduceMin"):  # of no element: an infinity
        none = graph_of(lambda b, x, op=reduce: b(o(op), dq(b, x, 0.25, 3), i64(0)), {"x": (U8, 0, 3)})  # type: ignore[arg-type, misc]
        assert agrees(none)[0] == "DequantizeLinear"


def test_joins_of_equal_and_of_other_scales() -> None:
    def graph(b: Builder, x: Value, y: Value, z: Value) -> Any:
        return q(b, b(o("Concat", 1), dq(b, x, 0.5, 3), dq(b, y, 0.25, 9), dq(b, z, 0.5, 3)), 0.5, 3)

    shapes: Any = {"x": (U8, 2, 3), "y": (U8, 2, 4), "z": (U8, 2, 5)}
    assert sorted(agrees(graph_of(graph, shapes))) == ["ByteTable", "Concat"]


def test_comparisons_of_equal_scales() -> None:
    def graph(b: Builder, x: Value, y: Value) -> Any:
        u, v = dq(b, x, 0.5, 3), dq(b, y, 0.5, 3)
        return q(b, b(o("Max"), u, v), 0.5, 3), q(b, b(o("Min"), u, v), 0.5, 3), b(o("ArgMax", 1), u)

    assert not CONVERSIONS & set(agrees(graph_of(graph, {"x": (U8, 2, 7), "y": (U8, 2, 7)})))  # type: ignore[arg-type]


def silu_in_parts(b: Builder, x: Value) -> Value:
    """As quantisers write it: the result of Sigmoid is quantised, too."""
    wide = dq(b, x, 0.05, 120)
    gate = q(b, b(o("Sigmoid"), wide), 1 / 256)
    return q(b, b(o("Mul"), wide, dq(b, gate, 1 / 256)), 0.04, 10)


def gelu_in_parts(b: Builder, x: Value) -> Value:
    """As quantisers write it: numbers are quantised, too."""
    wide, one = dq(b, x, 0.04, 114), dq(b, b.const(np.array(255, U8)), 1 / 255)
    error = dq(b, q(b, b(o("Erf"), b(o("Mul"), wide, scale(0.7071))), 1 / 127, 127), 1 / 127, 127)
    total = dq(b, q(b, b(o("Add"), error, one), 2 / 255), 2 / 255)
    return q(b, b(o("Mul"), b(o("Mul"), wide, total), scale(0.5)), 0.02, 7)


FUNCTIONS: dict[str, Build] = {
    "gelu_in_parts": gelu_in_parts,
    "hard_swish": lambda b, x: q(b, b(o("HardSwish"), dq(b, x, 0.1, 128)), 0.06, 4),
    "gelu": lambda b, x: q(b, b(o("Gelu"), dq(b, x, 0.1, 128)), 0.05, -120, I8),
    "several": lambda b, x: q(b, b(o("Tanh"), b(o("Mul"), b(o("Exp"), dq(b, x, 0.01)), scale(0.3))), 1 / 127, 0, I8),
    "silu_in_parts": silu_in_parts,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_byte_are_one_table(name: str) -> None:
    assert agrees(graph_of(FUNCTIONS[name], {"x": (U8, 3, 67)})) == ["ByteTable"]  # type: ignore[arg-type]


def test_a_table_is_not_made_of_two_bytes() -> None:
    made = graph_of(
        lambda b, x, y: q(b, b(o("Mul"), dq(b, x, 0.1), dq(b, y, 0.1)), 0.5), {"x": (U8, 5), "y": (U8, 5)}  # type: ignore[arg-type]
    )
    assert "ByteTable" not in agrees(made)


def test_quantising_goes_before_a_move_of_floats() -> None:
    def graph(b: Builder, x: Value) -> Any:
        return q(b, b(o("Transpose", (1, 0)), b(o("Softmax"), x)), 1 / 255)

    left = agrees(graph_of(graph, {"x": (4, 6)}))
    assert left.index("QuantizeLinear") < left.index("Transpose")


@pytest.mark.parametrize("channels", [3, 20, 70, 130])
@pytest.mark.parametrize("dtype", [U8, I8], ids=["u8", "i8"])
def test_the_greatest_of_bytes(channels: int, dtype: AnyDType) -> None:
    """Channels on both sides of the vectors that pooling works with, and windows cut at the borders."""
    op = o("MaxPool", (3, 3), (2, 2), (1, 1, 1, 1), layout="NHWC")
    kind = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(kind.min, kind.max + 1, (2, 5, 7, channels)).astype(dtype)
    made = run_kernel(op, [x])
    np.testing.assert_array_equal(made[0], op.reference(x))


@pytest.mark.parametrize("number", [0.1, 1 / 3, 2.0**-70, 2.0**70, 1.0])
def test_quantising_divides_as_the_reference_does(number: float) -> None:
    """Halves, infinities, NaN, and scales beyond those that are divided by with multiply-adds."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(-300, 300, 0.5), rng.normal(0, 99, 3000), [np.inf, -np.inf, np.nan, 3e15]])
    x = x.astype(F32) * np.float32(number)
    for zero in (np.array(3, U8), np.array(-9, I8)):
        op, given = o("QuantizeLinear"), [x, scale(number), zero]
        np.testing.assert_array_equal(run_kernel(op, given)[0], op.reference(*given))


# ---- chains whose ends are bytes


def residual(b: Builder, x: Value, y: Value) -> Value:
    return q(b, b(o("Relu"), b(o("Add"), dq(b, x, 0.0713, 131), dq(b, y, 0.0339, -7))), 0.0611, 2)


def difference(b: Builder, x: Value, y: Value) -> Value:
    return q(b, b(o("Sub"), dq(b, x, 0.0713, 131), dq(b, y, 0.0339, -7)), 0.0611, 2, I8)


def three(b: Builder, x: Value, y: Value) -> Value:
    """The first operand counts twice, the second time with a scale of its own."""
    total = b(o("Add"), b(o("Add"), dq(b, x, 0.0713, 131), dq(b, y, 0.0339, -7)), dq(b, x, 0.25, 0))
    return q(b, total, 0.4, 2)


S = np.array([0.0713, 0.0339, 0.0611, 0.4], F32).astype(float)
SUMS: dict[str, tuple[Build, Callable[[Array, Array], Array]]] = {
    "residual": (residual, lambda x, y: np.maximum((S[0] * (x - 131) + S[1] * (y + 7)) / S[2], 0)),
    "difference": (difference, lambda x, y: (S[0] * (x - 131) - S[1] * (y + 7)) / S[2]),
    "three": (three, lambda x, y: (S[0] * (x - 131) + S[1] * (y + 7) + x / 4) / S[3]),
}


@pytest.mark.parametrize("shape", [(3, 5, 67), (1, 2, 3), (4, 4096)], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_bytes_are_those_of_the_conversions_but_at_boundaries(name: str, shape: tuple[int, ...]) -> None:
    """Where the code differs it does so by one, and the sum lies in the middle between the two."""
    build, exact = SUMS[name]
    graph = graph_of(build, {"x": (U8, *shape), "y": (I8, *shape)})  # type: ignore[arg-type]
    assert names(run_pipeline(graph)) == ["Chain"]
    for seed in range(3):
        data = feeds(graph, seed)
        got, want = (r["out0"].astype(int) for r in (bn.compile(graph)(**data), interpret(graph, data)))
        middle = np.abs(exact(*(data[n].astype(float) for n in "xy")) % 1 - 0.5) < 2.0**-12
        assert np.all((got == want) | (middle & (np.abs(got - want) == 1)))


def gated(b: Builder, x: Value, y: Value) -> Value:
    """A factor for each channel, as in squeeze-and-excitation."""
    return q(b, b(o("Mul"), dq(b, x, 0.0713, 131), dq(b, y, 1 / 256, -128)), 0.0611, -3, I8)


def to_floats(b: Builder, x: Value, y: Value) -> Value:
    return b(o("Sub"), dq(b, x, 0.0713, 131), dq(b, y, 0.0339, -7))


def on_the_way(b: Builder, x: Value, y: Value) -> Value:
    """Quantised between two operators, as quantisers write it.  Scales are powers of two, for ties to be exact."""
    total = dq(b, q(b, b(o("Add"), dq(b, x, 2**-4, 131), dq(b, y, 2**-5, -7)), 2**-3, 90), 2**-3, 90)
    return q(b, b(o("Mul"), total, dq(b, x, 2**-4, 131)), 0.5, 100)


PAIRS: dict[str, tuple[Build, tuple[int, ...], tuple[int, ...]]] = {
    "gated": (gated, (2, 9, 40), (2, 1, 40)),
    "gated_narrow": (gated, (2, 9, 3), (2, 1, 3)),
    "gated_by_rows": (gated, (6, 33), (6, 1)),
    "to_floats": (to_floats, (5, 67), (5, 67)),
    "on_the_way": (on_the_way, (5, 67), (5, 67)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_chains_read_and_write_bytes(name: str) -> None:
    build, left, right = PAIRS[name]
    for seed in range(5):
        assert agrees(graph_of(build, {"x": (U8, *left), "y": (I8, *right)}), seed) == ["Chain"]  # type: ignore[arg-type]


def test_chains_end_with_bytes_whatever_comes() -> None:
    """Infinities and NaN are limited as in QuantizeLinear."""
    graph = graph_of(lambda b, x: q(b, b(o("Neg"), x), 0.5, 3), {"x": (9,)})
    x = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1.25, 1.75, -1e-40, 0], F32)
    np.testing.assert_array_equal(bn.compile(graph)(x=x)["out0"], interpret(graph, {"x": x})["out0"])


def test_a_chain_reads_bytes_that_others_read_as_floats() -> None:
    def graph(b: Builder, x: Value, y: Value) -> Any:
        wide = dq(b, x, 0.05, 120)
        return b(o("Hardmax"), wide), q(b, b(o("Mul"), wide, dq(b, y, 0.1)), 0.1)

    left = agrees(graph_of(graph, {"x": (U8, 3, 16), "y": (U8, 3, 16)}))  # type: ignore[arg-type]
    assert sorted(left) == ["Chain", "DequantizeLinear", "Hardmax"]


def test_another_reader_of_one_operand_keeps_no_other_from_the_chain() -> None:
    def graph(b: Builder, x: Value, y: Value) -> Any:
        gate = q(b, b(o("Mul"), dq(b, x, 0.1), dq(b, y, 0.1)), 0.5)
        return gate, q(b, b(o("Mul"), dq(b, gate, 0.5), dq(b, y, 0.1)), 3.0)

    assert agrees(graph_of(graph, {"x": (U8, 3, 16), "y": (U8, 3, 16)})) == ["Chain", "Chain"]  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(16, 16), (17, 33), (40, 19), (2, 21, 100), (3, 1100, 16)], ids=str)
def test_blocks_of_bytes_change_places(shape: tuple[int, ...]) -> None:
    """Sizes that are no multiple of a block, and one whose columns several threads share."""
    x = np.random.default_rng(0).integers(0, 256, shape).astype(U8)
    perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    np.testing.assert_array_equal(run_kernel(o("Transpose", perm), [x])[0], x.transpose(perm))


def test_small_weights_behind_moves_stay_integers() -> None:
    """Their content is known without folding, whatever stands before the convolution."""

    def build(b: Builder, x: Value) -> Value:
        scales = np.array([0.5, 1, 0.25, 2], F32)
        w = b(o("DequantizeLinear", 3), np.arange(-18, 18, dtype=I8).reshape(1, 3, 3, 4), scales)
        turned = b(o("Reshape"), b(o("Transpose", (3, 0, 1, 2)), w), i64(4, 1, 3, 3))
        return q(b, b(o("Conv", group=4), dq(b, x, 0.25, 3), turned), 9, -9, I8)

    assert "QLinearConv" in names(run_pipeline(graph_of(build, {"x": (I8, 1, 4, 5, 6)}), check=True))


@pytest.mark.parametrize("dtype", [U8, I8, U16, I16])
@pytest.mark.parametrize("dims", [(3, 1, 5), (1, 5), (4, 1), (2, 1, 1, 1), (3, 4, 5), (1,)])
def test_broadcast_codes_of_any_width(dtype: AnyDType, dims: tuple[int, ...]) -> None:
    """Loops too short for vectors jump through what is broadcast, where that can be done for the width."""

    def build(b: Builder, x: Value, y: Value) -> Value:
        return q(b, b(o("Add"), dq(b, x, 0.25, 3), dq(b, y, 0.5, 9)), 0.25, 5, dtype)

    assert agrees(graph_of(build, {"x": (dtype, 2, 3, 4, 5), "y": (dtype, *dims)})) == ["Chain"]
