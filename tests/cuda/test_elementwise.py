"""Pointwise operators and chains on the simulated GPU, against their references."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels import registry
from bolt_numba.kernels.registry import QueryContext
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import OPS
from bolt_numba.types import BF16, F16, F32, F64, TensorType
from tests.cuda.harness import counted, expect, expect_together, run_op
from tests.cuda.property import taken_cases
from tests.test_pointwise import SPECIAL, VARIANTS, integers, reals

INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
FUNCTIONS = [
    c for c in OPS.values() if issubclass(c, Pointwise) and c.arity == 1 and F32 in c.dtypes and c is not p.Cast
]
TOGETHER = 8
"""Functions of a kernel."""
TOLERANCE = {F32: 2e-6, F16: 1e-3, BF16: 8e-3}


def test_every_pointwise_operator_has_a_kernel_for_each_float_and_integer() -> None:
    """But for functions of f64, and powers that need one."""
    for op in [c for c in OPS.values() if issubclass(c, Pointwise) and c not in (p.Cast, p.Where)]:
        for dtype in op.dtypes:
            if (dtype.kind in "OV" and dtype != BF16) or dtype.name.startswith("float8") or (dtype == F64 and op.ulp):
                continue
            ins = [TensorType(dtype, (4,))] * op.arity
            assert registry.candidates(op(), ins, QueryContext(precision="f32"), "cuda"), (op.__name__, dtype)


def points(op: Any) -> Any:
    """Of the domain of a function, and beyond."""
    return np.concatenate([np.linspace(*op.domain, 101, dtype=np.float32), SPECIAL])


@pytest.mark.parametrize("group", range(0, len(FUNCTIONS) + len(VARIANTS), TOGETHER))
def test_functions_of_f32(group: int) -> None:
    chosen = [*(c() for c in FUNCTIONS), *VARIANTS][group : group + TOGETHER]
    expect_together(
        [(op, (points(op),)) for op in chosen], rtol=lambda op: max(op.ulp, 1) * 1.2e-7,
        atol=lambda op: 5e-8 if isinstance(op, (p.HardSigmoid, p.HardSwish)) else 1e-38,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_functions_of_halves(dtype: Any) -> None:
    with np.errstate(over="ignore"):
        x = np.concatenate([reals(75), SPECIAL]).astype(dtype)
    functions = p.Relu(), p.Gelu(), p.Exp(), p.Clip(-0.5, 2.0), p.Swish(1.7), p.Round()
    expect_together([(op, (x,)) for op in functions], rtol=TOLERANCE[dtype], atol=1e-7)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.__name__)
def test_integers(dtype: Any) -> None:
    x, y = integers(dtype, 5, 8), integers(dtype, 5, 8)
    pairs = (p.Add(), p.Div(), p.Mod(), p.Max(), p.Less(), p.BitwiseXor(), p.BitShift("RIGHT"))
    others = (p.Where(), (x > y, x, y)), (p.Clip(2, 5), (x,)), (p.Pow(), (x, np.abs(y)))
    expect_together([*((op, (x, y)) for op in pairs), *others])


def test_logic() -> None:
    x, y = integers(np.bool_, 3, 21), integers(np.bool_, 21)
    pairs = [(op, (x, y)) for op in (p.And(), p.Xor(), p.Equal())]
    expect_together([*pairs, (p.Not(), (x,)), (p.Where(), (x, x, y))])


KINDS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint32, np.int64, np.uint64, np.bool_)


@pytest.mark.parametrize("source", KINDS, ids=lambda d: d.__name__)
def test_casts(source: Any) -> None:
    numbers = np.array([0, 1, 2.5, 3.99, 77.25, 126, 300, 40000, -1, -2.5, -77, 70000, 3e9, -3e9, 1e19, np.nan, np.inf])
    with np.errstate(all="ignore"):
        x = numbers[: {1: 5, 2: 9}.get(np.dtype(source).itemsize, 17) if np.dtype(source).kind in "iub" else 17]
        x = np.nan_to_num(x).astype(source) if np.dtype(source).kind in "iub" else x.astype(source)
    expect_together([(p.Cast(to=np.dtype(to)), (x,)) for to in KINDS], rtol=0, atol=0)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_operands_are_broadcast(data: st.DataObject) -> None:
    """Any loops: rows that divide into vectors, rows that do not, operands that stand still, empty ones."""
    dims = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 20]), min_size=0, max_size=4)))
    dims = data.draw(st.sampled_from([dims, dims, dims, (*dims, 0)]))
    other = tuple(1 if data.draw(st.booleans()) else d for d in dims)[data.draw(st.integers(0, len(dims))) :]
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.int8]))
    x, y = integers(dtype, *dims), integers(dtype, *other)
    expect(p.Sub(), *((x, y) if data.draw(st.booleans()) else (y, x)), rtol=0, atol=0)


def test_powers_of_known_exponents_need_no_logarithm() -> None:
    x = reals(40, low=0.1)
    for exponent in (2.0, 0.5, -1.0, 3.0, 1.7):
        expect(p.Pow(), x, np.float32(exponent), constants=(1,), rtol=5e-7)
    expect(p.Pow(), x, np.array(3, np.int32))


def test_a_chain_keeps_its_values_in_registers() -> None:
    """Two results, numbers of steps, an operand that is one number and one that stands still in a row."""
    steps = ((p.Mul(), (0, 1)), (p.LeakyRelu(0.25), (3,)), (p.Add(), (4, 2)), (p.Tanh(), (5,)))
    expect(Chain(steps, (6, 4)), reals(3, 5, 12), reals(3, 1, 1), reals(1), rtol=1e-6)


@pytest.mark.parametrize("codes", [np.uint8, np.int8, np.uint16], ids=lambda d: d.__name__)
def test_bytes_are_floats_between_conversions(codes: Any) -> None:
    x, scale, zero = integers(codes, 6, 10), np.float32(0.25), np.array(3, codes)
    steps = ((DequantizeLinear(), (0, 1, 2)), (p.Gelu(), (4,)), (QuantizeLinear(), (5, 3, 2)))
    expect(Chain(steps, (6,)), x, scale, zero, np.array(0.03125, np.float32))


@pytest.mark.parametrize("codes", [np.uint8, np.int8, np.int16], ids=lambda d: d.__name__)
def test_scales_of_an_axis_and_of_blocks(codes: Any) -> None:
    x, q = reals(3, 5, 16), integers(codes, 3, 5, 16)
    scale, zero = reals(5, low=0.01, high=0.1), integers(codes, 5)
    expect(QuantizeLinear(axis=1), x, scale, zero)
    expect(DequantizeLinear(axis=1), q, scale, zero)
    scale, zero = reals(3, 5, 4, low=0.01, high=0.1), integers(codes, 3, 5, 4)
    expect(QuantizeLinear(axis=2, block_size=4), x, scale, zero)
    expect(DequantizeLinear(axis=2, block_size=4), q, scale)


def test_codes_of_halves_and_wide_integers() -> None:
    x = np.concatenate([reals(30), SPECIAL])
    expect(QuantizeLinear(), x, np.float32(0.02))
    with np.errstate(over="ignore"):
        expect(QuantizeLinear(), x.astype(F16), np.array(0.02, F16))
    expect(DequantizeLinear(), 1000 * integers(np.int32, 40), np.float32(0.3), np.int32(7))
    expect(DequantizeLinear(axis=-1), integers(np.int8, 3, 8), reals(8).astype(F16), rtol=1e-3)


@pytest.mark.parametrize("dtype", [F32, F16, np.uint8], ids=str)
def test_memory_is_moved_by_whole_sectors(dtype: Any) -> None:
    """And a thread takes few instructions for each element."""
    x = integers(dtype, 16, 1024)
    with counted() as report:
        run_op(p.Max(), x, x)
    assert report.efficiency("ld.global") == report.efficiency("st.global") == 1
    assert report.executed() * 32 < 25 * x.size
    assert report.executed("ld.global", "st.global") * 32 * 8 <= 3 * x.size * max(np.dtype(dtype).itemsize // 2, 1)


def test_operands_that_are_no_multiple_of_16_bytes_away_are_read_one_by_one() -> None:
    """A row of odd length, its broadcast neighbour, and a length that leaves a rest."""
    for n in (1, 7, 1023):
        expect(p.Add(), reals(3, n), reals(n), rtol=0, atol=0)
        expect(p.Add(), reals(n), reals(n), rtol=0, atol=0)


def test_tables_of_bytes() -> None:
    x, table = integers(np.uint8, 5, 41), integers(np.int8, 256)
    expect(ByteTable(), x, table)
    expect(ByteTable(), x.view(np.int8), table.view(np.uint8))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_casts_of_narrow_numbers(name: str) -> None:
    to = np.dtype(getattr(ml_dtypes, name))
    with np.errstate(all="ignore"):
        x = np.concatenate([40 * reals(50), SPECIAL])
        for given in (x, x.astype(F16)):
            expect(p.Cast(to=to), given, rtol=0, atol=0)
        for back in (F32, F16):
            expect(p.Cast(to=back), (2 * np.abs(reals(50))).astype(to), rtol=0, atol=0)


@pytest.mark.parametrize("x", [reals(3, 41), reals(9, low=1), np.zeros(5, np.float32), SPECIAL[:4]], ids=str)
def test_ranges_decide_scales(x: Any) -> None:
    expect(DynamicQuantizeLinear(), x)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("op", [Chain, p.Where, p.Pow, QuantizeLinear], ids=lambda op: op.__name__)
def test_drawn_cases(op: Any, dtype: Any) -> None:
    if dtype == F32:
        assert taken_cases(op, dtype, 4, rtol=2e-5, atol=1e-6) >= 3
    else:
        assert taken_cases(op, dtype, 2, rtol=8e-3, atol=4e-3)
