"""Pointwise operators: references against plain NumPy facts, generated kernels against references."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.codegen.chain import can_generate, geometry
from bolt_numba.codegen.formula import UntranslatableError, activation_text
from bolt_numba.errors import DTypeError, ShapeError
from bolt_numba.kernels.registry import select
from bolt_numba.ops import pointwise as ops
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import FLOATS, INTS, Pointwise
from bolt_numba.ops.registry import OPS
from bolt_numba.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    AnyDType,
    Array,
    Sym,
    TensorType,
)
from tests.harness import plan, run_kernel, run_planned

RNG = np.random.default_rng(7)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-45, 3e38, -3e38, 1.0, -1.0, 0.5, -0.5, 2.0, 100.0],
    np.float32,
)
ROWS: list[Any] = [c for c in OPS.values() if issubclass(c, Pointwise)]
UNARY_F32 = [c for c in ROWS if c.arity == 1 and F32 in c.dtypes and c is not ops.Cast]
VARIANTS = [
    ops.Clip(-0.5, 2.0), ops.Clip(lo=0.0), ops.Clip(hi=6.0), ops.LeakyRelu(0.25), ops.Elu(0.5), ops.Celu(2.0),
    ops.Gelu("tanh"), ops.Swish(1.7), ops.HardSigmoid(1 / 6, 0.5), ops.Shrink(1.0, 1.5), ops.ThresholdedRelu(0.25),
    ops.IsInf(detect_negative=False), ops.IsInf(detect_positive=False), ops.IsInf(False, False),
]  # fmt: skip


def reals(*shape: int, low: float = -4, high: float = 4) -> Array:
    return RNG.uniform(low, high, shape).astype(np.float32)


def integers(dtype: Any, *shape: int) -> Array:
    dtype = np.dtype(dtype)
    low = 0 if dtype.kind in "ub" else -9
    return RNG.integers(low, 2 if dtype == BOOL else 10, shape).astype(dtype)


def assert_ulps(got: Array, wanted: Array, ulps: float, *inputs: Array, floor: float = 0.0) -> None:
    """Equal, both NaN, or within ``ulps`` units in the last place (of at least ``floor``).  inputs: named if not."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(wanted), max(floor, np.finfo(wanted.dtype).smallest_subnormal)))
        close = np.abs(got - wanted) <= ulps * unit
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    bad = np.flatnonzero(~(same | close))
    at, *found = [[a.flat[i] for i in bad[:1] if a.size == got.size] for a in (got, wanted, *inputs)]
    assert not bad.size, f"got {at}, wanted {found[0]} of {found[1:]}; {bad.size} of {got.size} differ"


def check(op: Any, *inputs: Array) -> None:
    """The kernel gives the reference's result, exactly or within the row's ulp."""
    wanted = op.reference(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    planned = plan(op, list(inputs))
    assert planned is not None, f"no kernel accepts {op}"
    for step in planned.steps:
        step.parallel = True  # shares of the work as for large operands
    for a, b in zip(run_planned(planned, list(inputs)), wanted, strict=True):
        if b.dtype == F32:
            assert_ulps(a, b, getattr(op, "ulp", 0) + 1, *inputs)
        else:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize("row", ROWS, ids=lambda c: c.name)
def test_reference_keeps_inferred_type(row: Any) -> None:
    op = row(to=F16) if row is ops.Cast else row()
    for dtype in row.dtypes:
        if dtype == np.dtype(object):
            continue
        inputs = [integers(dtype, 3, 1), integers(dtype, 4), integers(dtype, 1, 4)][: row.arity]
        made = op.reference(*inputs)
        kind = op.infer(*(TensorType(a.dtype, a.shape) for a in inputs))
        assert (made.dtype, made.shape) == (kind.dtype, kind.shape)


def test_rows_are_values() -> None:
    assert ops.LeakyRelu(0.2) == ops.LeakyRelu(alpha=0.2)
    assert hash(ops.Clip(0, 6)) == hash(ops.Clip(0, 6))
    assert pickle.loads(pickle.dumps(ops.Gelu("tanh"))) == ops.Gelu("tanh")
    assert str(ops.LeakyRelu(0.2)) == "LeakyRelu(alpha=0.2)"


def test_integer_division_truncates() -> None:
    x, y = np.array([7, -7, 7, -7, 8, 5]), np.array([2, 2, -2, -2, 2, 0])
    np.testing.assert_array_equal(ops.Div().reference(x, y), [3, -3, -3, 3, 4, 0])
    np.testing.assert_array_equal(ops.Mod().reference(x, y)[:5], [1, 1, -1, -1, 0])
    np.testing.assert_array_equal(ops.Mod(fmod=True).reference(x, y)[:5], [1, -1, 1, -1, 0])


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_floats_round_once(dtype: Any) -> None:
    x = reals(1000).astype(dtype)
    wanted = np.exp(x.astype(np.float64)).astype(np.float32).astype(dtype)
    np.testing.assert_array_equal(ops.Exp().reference(x), wanted)


def test_cast_follows_onnx() -> None:
    x = np.array([1.9, -1.9, 0.0, 300.0], np.float32)
    np.testing.assert_array_equal(ops.Cast(to=I32).reference(x), [1, -1, 0, 300])
    np.testing.assert_array_equal(ops.Cast(to=BOOL).reference(x), [True, True, False, True])
    e4m3 = np.dtype(ml_dtypes.float8_e4m3fn)
    wide = np.array([1e9, -np.inf, np.nan, 0.3], np.float32)
    saturated = ops.Cast(to=e4m3).reference(wide).astype(np.float32)
    np.testing.assert_array_equal(saturated, np.array([448, -448, np.nan, 0.3125], np.float32))
    with pytest.raises(DTypeError, match="Cast: dtype of the result"):
        ops.Cast(to=np.dtype("S3")).infer(TensorType(F32, (1,)))


def test_shape_arithmetic_on_symbols() -> None:
    n = Sym("n")
    shape = np.array([n, 4, -1], object)
    assert list(ops.Mul().reference(shape, np.array([2, 3, 1]))) == [n * 2, 12, -1]
    assert list(ops.Div().reference(shape, np.array(2)))[:2] == [n // 2, 2]
    is_open = ops.Equal().reference(shape, np.array(-1))
    np.testing.assert_array_equal(is_open, [False, False, True])
    assert list(ops.Where().reference(is_open, np.array(1), shape)) == [n, 4, 1]
    with pytest.raises(ValueError, match="decided at run time"):
        ops.Equal().reference(shape, np.array(5))


def test_infer_refuses() -> None:
    f, i = TensorType(F32, (2, 3)), TensorType(I64, (2, 3))
    with pytest.raises(DTypeError, match=r"Add: dtype of operand 1: got i64, wanted f32"):
        ops.Add().infer(f, i)
    with pytest.raises(DTypeError, match="Sqrt: dtype of operand 0"):
        ops.Sqrt().infer(i)
    with pytest.raises(ShapeError, match="Add: shapes to broadcast"):
        ops.Add().infer(f, TensorType(F32, (4, 3)))
    with pytest.raises(ShapeError, match="Add: number of operands: got 1, wanted 2"):
        ops.Add().infer(f)
    with pytest.raises(DTypeError, match="Where: dtype of condition"):
        ops.Where().infer(f, f, f)


# ------------------------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize("op", [*(c() for c in UNARY_F32), *VARIANTS], ids=str)
def test_unary_f32(op: Any) -> None:
    low, high = op.domain
    x = np.concatenate([reals(1003, low=low, high=high), SPECIAL])
    with np.errstate(all="ignore"):
        wanted = op.reference(x)
    (got,) = run_kernel(op, [x])
    if wanted.dtype == BOOL:
        np.testing.assert_array_equal(got, wanted)
        return
    if isinstance(op, ops.Gelu | ops.Mish | ops.Swish):  # inf * 0 at -inf: the limit 0 is as good
        keep = x != -np.inf
        got, wanted = got[keep], wanted[keep]
    floor = 1.0 if isinstance(op, ops.HardSigmoid | ops.HardSwish) else 1e-30  # these cancel at their corner
    assert_ulps(got, wanted, op.ulp + 1, floor=floor if op.ulp else 0.0)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Equal", "Less", "GreaterOrEqual"])
def test_binary_f32_special_values(name: str) -> None:
    x, y = (a.reshape(-1).copy() for a in np.meshgrid(SPECIAL, SPECIAL))
    check(getattr(ops, name)(), x, y)


SHAPES = [
    ((5,), (5,)), ((2, 3), ()), ((), ()), ((3, 4, 5), (5,)), ((3, 4, 5), (4, 1)), ((3, 1, 5, 1, 7), (2, 1, 6, 1)),
    ((4, 1, 3), (1, 5, 1)), ((2, 1, 2, 1, 2, 1, 2, 33), (1, 2, 1, 2, 1, 2, 1, 33)), ((0, 3), (3,)), ((1, 1), (1,)),
    ((2, 4096), (4096,)), ((3, 5000), (3, 1)), ((9000,), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for dtype in (F32, I64):
        check(ops.Sub(), integers(dtype, *a), integers(dtype, *b))
        check(ops.Sub(), integers(dtype, *b), integers(dtype, *a))


@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 31, 63, 64, 65, 4095, 4096, 4097, 8193])
def test_sizes_around_tile_and_block(n: int) -> None:
    check(ops.Add(), integers(F32, n), integers(F32, n))
    check(ops.Greater(), integers(F32, n), integers(F32, n))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers(dtype: Any) -> None:
    x, y = integers(dtype, 7, 33), integers(dtype, 7, 33)
    for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        check(getattr(ops, name)(), x, y)
    check(ops.Mod(), x, y)
    check(ops.Mod(fmod=True), x, y)
    for op in (ops.Abs(), ops.Sign(), ops.Clip(-3, 5) if dtype.kind == "i" else ops.Clip(3, 5), ops.BitwiseNot()):
        check(op, x)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_remainders_of_floats(dtype: Any) -> None:
    x = np.array([7.5, -7.5, 7.5, -7.5, 1e30, -0.0, 3.0, np.nan, 5.0, 2.0], dtype)
    y = np.array([2.0, 2.0, -2.0, -2.0, 3.0, 1.0, np.inf, 1.0, 0.0, 2.0], dtype)
    for op in (ops.Mod(), ops.Mod(fmod=True)):
        check(op, x, y)


@pytest.mark.parametrize("dtype", [I64, U64], ids=str)
def test_wide_integers_keep_every_bit(dtype: Any) -> None:
    top = np.iinfo(dtype).max
    x, y = np.array([top, top - 1, top // 3, 7], dtype), np.array([2, top - 2, 5, 0], dtype)
    for op in (ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Mod(), ops.Mod(fmod=True), ops.Max(), ops.Less()):
        check(op, x, y)
    for unary in (ops.Abs(), ops.Sign(), ops.Clip(3, int(top) - 3), ops.Cast(to=I64), ops.Cast(to=U64)):
        check(unary, x)
    check(ops.Where(), y > 3, x, y)


@pytest.mark.parametrize("dtype", [U8, U16, U32, U64, I8, I64], ids=str)
def test_bit_shift(dtype: Any) -> None:
    x, y = integers(dtype, 50), integers(dtype, 50)
    y[:4] = [0, 7, 8, 100]
    x[4] = np.iinfo(dtype).max - 2
    check(ops.BitShift("LEFT"), x, y)
    check(ops.BitShift("RIGHT"), x, y)


@pytest.mark.parametrize("source", [F32, F64, I8, I32, I64, U8, BOOL], ids=str)
@pytest.mark.parametrize("to", [F32, F64, I8, I32, I64, U16, BOOL], ids=str)
def test_cast(source: Any, to: Any) -> None:
    x = integers(source, 70)
    check(ops.Cast(to=to), np.abs(x) if source.kind == "f" and to.kind == "u" else x)


def test_logic_and_select() -> None:
    p, q = integers(BOOL, 4, 50), integers(BOOL, 50)
    for op in (ops.And(), ops.Or(), ops.Xor(), ops.Equal()):
        check(op, p, q)
    check(ops.Not(), p)
    check(ops.Where(), p, q, ~q)
    for dtype in (F32, F64, I64, I8):
        check(ops.Where(), p, integers(dtype, 50), integers(dtype, 1))


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 0.3, 2.5])
def test_constant_powers(exponent: float) -> None:
    check(ops.Pow(), reals(100, low=0.01), np.array(exponent, np.float32))


@pytest.mark.parametrize("dtype", [I8, I64, U8])
def test_integer_powers(dtype: AnyDType) -> None:
    exponents = np.array([0, 1, 2, 3, 7, 24, 100] + ([-1, -2, -3, -9, -100] if dtype.kind == "i" else []), dtype)
    bases = np.array([0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 1.9, -25.0, 1e-30, -1e30, np.inf, -np.inf, np.nan], F32)
    check(ops.Pow(), bases[:, None], exponents)
    if dtype == I64:
        check(ops.Pow(), bases[:, None], np.array([2**40, 2**40 + 1, -(2**63), -(2**40) - 1], dtype))
        check(ops.Pow(), reals(100, low=0.999), np.array(1 << 20))


def test_doubles() -> None:
    x, y = integers(F64, 5, 9), integers(F64, 9)
    for op in (ops.Add(), ops.Div(), ops.Max(), ops.Less(), ops.PRelu()):
        check(op, x, y)
    check(ops.Sqrt(), np.abs(x))


# ------------------------------------------------------------------------------------------------------------- chains


def test_chain_with_several_results_and_bool() -> None:
    chain = Chain(
        ((ops.Add(), (0, 1)), (ops.Relu(), (2,)), (ops.Greater(), (3, 0)), (ops.Where(), (4, 3, 1))), (3, 4, 5)
    )
    check(chain, integers(F32, 4, 60), integers(F32, 60))
    check(chain, integers(F32, 4, 60), integers(F32, 4, 1))


def test_chain_of_mixed_dtypes() -> None:
    chain = Chain(((ops.Cast(to=F32), (0,)), (ops.Mul(), (2, 1)), (ops.Cast(to=I32), (3,))), (4,))
    check(chain, integers(U8, 30, 20), integers(F32, 20))


STEPS = [ops.Add(), ops.Sub(), ops.Mul(), ops.Max(), ops.Min(), ops.Relu(), ops.Neg(), ops.Abs(), ops.Clip(-3.0, 3.0)]


@settings(deadline=None, max_examples=12, derandomize=True)
@given(data=st.data())
def test_random_chains(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    steps = []
    for i in range(data.draw(st.integers(1, 4))):
        op = data.draw(st.sampled_from(STEPS))
        steps.append((op, tuple(data.draw(st.integers(0, count + i - 1)) for _ in range(op.arity))))
    shapes = [(3, 37)] + [data.draw(st.sampled_from([(3, 37), (37,), (3, 1), ()])) for _ in range(count - 1)]
    chain = Chain(tuple(steps), (count + len(steps) - 1,))
    inputs = [integers(F32, *s) for s in shapes]
    if select(chain, [TensorType(a.dtype, a.shape) for a in inputs]) is None:
        assert chain.reference(*inputs).shape != (3, 37)  # only a result that lost an operand's axes is refused
        return
    check(chain, *inputs)


def test_refusals() -> None:
    double = TensorType(F64, (4,))
    assert not can_generate(ops.Exp(), [double])
    assert select(ops.Exp(), [double]) is None
    small = Chain(((ops.Add(), (0, 1)), (ops.Relu(), (0,))), (2, 3))  # results of different shape
    assert select(small, [TensorType(F32, (3,)), TensorType(F32, (2, 3))]) is None
    assert select(ops.Relu(), [TensorType(F32, (Sym("n"),))]) is None
    with pytest.raises(UntranslatableError):
        activation_text(ops.Add())
    with pytest.raises(ShapeError, match="operands of step Relu"):
        Chain(((ops.Relu(), (3,)),), (1,)).infer(TensorType(F32, (1,)))


def test_equal_kernels_are_shared() -> None:
    first = plan(ops.Add(), [reals(3, 40), reals(40)])
    second = plan(ops.Add(), [reals(7, 90), reals(90)])
    assert first is not None
    assert second is not None
    assert first.steps[0].kernel is second.steps[0].kernel


def test_attributes_are_parameters() -> None:
    """Values of attributes do not make kernels: they share one, but for a factor of 1, which is not multiplied by."""
    x = reals(3, 40)
    groups: list[list[Any]] = [
        [ops.LeakyRelu(a) for a in (0.01, 0.1, 0.2, 0.25, 0.3, -1.0)],
        [ops.Clip(0.0, 6.0), ops.Clip(-1, 1), ops.Clip(-np.inf, 2.5)], [ops.Clip(hi=6.0), ops.Clip(hi=1)],
        [ops.Elu(2.0), ops.Elu(0.5)], [ops.Selu(), ops.Selu(1.5, 2.0)], [ops.Celu(0.5), ops.Celu(2.0)],
        [ops.HardSigmoid(), ops.HardSigmoid(1 / 6, 0.5)], [ops.ThresholdedRelu(2.0), ops.ThresholdedRelu(0.5)],
        [ops.Swish(0.5), ops.Swish(1.7)], [ops.Shrink(), ops.Shrink(1.0, 1.5)],
    ]  # fmt: skip
    for group in groups:
        kernels = set()
        for op in group:
            planned = plan(op, [x])
            assert planned is not None
            np.testing.assert_allclose(run_planned(planned, [x])[0], op.reference(x), rtol=1e-6, atol=1e-6)
            kernels.add(planned.steps[0].kernel.digest)
        assert len(kernels) == 1, group
    chains = [Chain(((ops.LeakyRelu(a), (0,)), (ops.Clip(-a, a), (1,))), (2,)) for a in (0.5, 0.25)]
    assert len({plan(c, [x]).steps[0].kernel.digest for c in chains}) == 1  # type: ignore[union-attr]
    for bounds in ((3, 5), (0, 2**64 - 2)):
        check(ops.Clip(*bounds), np.array([0, 4, 2**64 - 1], U64))


def test_in_place_only_where_sizes_agree() -> None:
    wide, narrow = TensorType(F64, (1, 16)), TensorType(F64, (8, 16))
    entry = select(ops.Less(), [wide, narrow])
    assert entry is not None
    assert entry.inplace == ()
    same = select(ops.Add(), [narrow, narrow])
    assert same is not None
    assert 0 in same.inplace


def test_geometry_merges_axes() -> None:
    assert geometry((2, 3, 4), [(2, 3, 4), (2, 3, 4)]).outer == ()
    nest = geometry((2, 3, 4, 5), [(2, 3, 4, 5), (4, 5)])
    assert (nest.outer, nest.inner, nest.strides) == ((6,), 20, ((20,), (0,)))
    assert geometry((2, 3, 4), [(2, 3, 4), (1,)]).forms == "vn"
    channel = geometry((2, 3, 4, 5), [(2, 3, 4, 5), (3, 1, 1)])
    assert (channel.outer, channel.inner, channel.forms) == ((2, 3), 20, "vs")


def test_geometry_lengthens_short_runs() -> None:
    nest = geometry((100, 40, 3), [(100, 40, 3), (3,), (40, 1)], short=32)
    assert (nest.outer, nest.inner, nest.forms) == ((100, 1), 120, "vgg")
    assert nest.tables[0] is None
    assert nest.tables[1] is not None
    assert nest.tables[2] is not None
    np.testing.assert_array_equal(nest.tables[1][:7], [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(nest.tables[2][:7], [0, 0, 0, 1, 1, 1, 2])
    split = geometry((50176, 3), [(50176, 3), (3,)], short=32)
    assert split.inner * split.outer[0] == 50176 * 3
    assert 1024 < split.inner <= 4096


@pytest.mark.parametrize("dtype", [F32, I32, I64], ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((500, 3), (3,)),
        ((7, 30, 2), (30, 1)),
        ((7, 30, 2), (7, 30, 1)),
        ((1009, 3), (3,)),
        ((9, 4, 5, 3), (9, 1, 5, 1)),
    ],
)
def test_short_runs(dtype: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(ops.Sub(), integers(dtype, *a), integers(dtype, *b))
    check(ops.Greater(), integers(dtype, *b), integers(dtype, *a))


def test_every_float_row_has_a_formula_that_generates() -> None:
    missing = []
    for row in ROWS:
        if F32 in row.dtypes and row is not ops.Cast:
            kinds = [TensorType(F32, (4,))] * row.arity
            if not can_generate(row(), kinds):
                missing.append(row.name)
    assert missing == []
    assert FLOATS[0] == F32
