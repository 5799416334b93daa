"""NaN, infinities, signed zeros and the ends of the integers: every kernel gives what the reference gives.

Results that a kernel computes exactly agree bit by bit (NaN has any payload); of the others every zero, infinity and
NaN does, sign included, and numbers agree within the error that the row allows.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.registry import KERNELS, Entry, load
from bolt_numba.ops import pointwise as ops
from bolt_numba.ops.arrays import reduce as reductions
from bolt_numba.ops.arrays.quantize import DynamicQuantizeLinear
from bolt_numba.ops.layers import norm
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.ragged import RaggedAttention
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.resize import GridSample
from bolt_numba.ops.pointwise import LeakyRelu, ThresholdedRelu
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import OPS, Op, result_tuple
from bolt_numba.types import BOOL, F16, F32, F64, I8, I32, I64, U8, U32, U64, AnyDType, Array, TensorType
from tests.cases import CASES, Case
from tests.harness import PlainContext, plan, run_once, run_planned
from tests.level import few, is_quick
from tests.lower_isa import IS_LOWER
from tests.near import assert_near

INF, NAN = np.inf, np.nan
FLOATS = [0.0, -0.0, INF, -INF, NAN, 1e-30, -1e-30, 3e38, -3e38, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.0, -5.0, 90, -90]
ROWS: list[Any] = [c for c in OPS.values() if issubclass(c, Pointwise) and c is not ops.Cast]
ATTRIBUTES: dict[type[Any], list[Any]] = {
    ops.Clip: [ops.Clip(), ops.Clip(-1, 2), ops.Clip(lo=0), ops.Clip(hi=1), ops.Clip(2, 1), ops.Clip(0, 0)],
    ops.LeakyRelu: [ops.LeakyRelu(0.25), ops.LeakyRelu(0.0)],
    ops.Gelu: [ops.Gelu(), ops.Gelu("tanh")],
    ops.Swish: [ops.Swish(), ops.Swish(1.7)],
    ops.Celu: [ops.Celu(), ops.Celu(2.0)],
    ops.Elu: [ops.Elu(), ops.Elu(0.5)],
    ops.Shrink: [ops.Shrink(), ops.Shrink(1.0, 1.5)],
    ops.HardSigmoid: [ops.HardSigmoid(), ops.HardSigmoid(1 / 6, 0.5)],
    ops.IsInf: [ops.IsInf(), ops.IsInf(False, True), ops.IsInf(True, False)],
    ops.Mod: [ops.Mod(), ops.Mod(True)],
    ops.BitShift: [ops.BitShift("LEFT"), ops.BitShift("RIGHT")],
}
INSTANCES = [o for row in ROWS for o in ATTRIBUTES.get(row, [row()])]


CANCEL = (ops.HardSigmoid, ops.HardSwish, reductions.LogSoftmax)
"""Operators that lose what is small beside 1."""


def special(dtype: AnyDType) -> Array:
    if dtype == BOOL:
        return np.array([True, False])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        bits = 8 * dtype.itemsize
        made = {0, 1, 2, 3, 7, bits - 1, bits, info.max, info.max - 1, info.min, info.max // 2}
        return np.array(sorted(made | ({-1, -2, -7, info.min + 1} if dtype.kind == "i" else set())), dtype)
    return np.array(FLOATS).astype(dtype)


def same(got: Array, wanted: Array, ulps: float = 0.0, floor: float = 1e-30) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
        return
    a, b = got.reshape(-1), wanted.reshape(-1)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(b), np.asarray(floor, b.dtype)))
        close = (np.abs(a - b) <= ulps * unit) & (b != 0) & (np.signbit(a) == np.signbit(b)) if ulps else False
    equal = ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))
    bad = np.flatnonzero(~(equal | close))
    assert not bad.size, f"{bad.size} of {a.size}, first at {bad[0]}: got {a[bad[0]]}, wanted {b[bad[0]]}"


def run(op: Op, *inputs: Array, ulps: float = 0.0, constant: Any = None, needed: bool = True) -> bool:
    """Kernel against reference; False when there is no kernel."""
    with np.errstate(all="ignore"):
        wanted = result_tuple(op.reference(*inputs))
    planned = plan(op, list(inputs), constant)
    if planned is None:
        assert not needed, f"no kernel accepts {op}"
        return False
    for step in planned.steps if isinstance(op, Pointwise | Chain) else ():
        step.parallel = True
    for a, b in zip(run_planned(planned, list(inputs)), wanted, strict=True):
        try:
            same(a, b, ulps, 1.0 if isinstance(op, CANCEL) else 1e-30)
        except AssertionError as error:
            at = np.flatnonzero(~((a == b) & (np.signbit(a) == np.signbit(b)) | ((a != a) & (b != b))).reshape(-1))
            shown = [x.reshape(-1)[at[:9]] if x.shape == b.shape else x for x in inputs]
            pairs = f"{a.reshape(-1)[at[:9]]} != {b.reshape(-1)[at[:9]]}"
            raise AssertionError(f"{op}: {error} for {shown}: {pairs}") from None
    return True


def columns(arity: int, dtypes: tuple[AnyDType, ...]) -> list[Array]:
    """All combinations of special values, one operand each, ending so that the last ones are in a tail."""
    grid = np.array(list(itertools.product(*(range(special(d).size) for d in dtypes))))
    order = np.concatenate([np.arange(len(grid)), np.random.default_rng(0).permutation(len(grid))])
    order = order[: len(order) - (len(order) - 3) % 16]  # three elements beyond whole vectors
    return [special(d)[grid[order, k]] for k, d in enumerate(dtypes[:arity])]


@pytest.mark.parametrize("op", INSTANCES, ids=str)
def test_pointwise(op: Any) -> None:
    """All dtypes that have a kernel, or a few that stand for them; f32 has one."""
    chosen = {F32, F64, I64, BOOL} if IS_LOWER else {F32, F64, I64, U8, BOOL} if is_quick() else {*op.dtypes}
    for dtype in op.dtypes:
        if dtype.kind not in "iufb" or dtype == F16 or dtype not in chosen:
            continue
        if dtype.kind in "u" and isinstance(op, ops.Clip) and (op.lo or 0) < 0:
            continue
        kinds = (BOOL, F32, F32) if isinstance(op, ops.Where) else (dtype,) * op.arity
        run(op, *columns(op.arity, kinds), ulps=(op.ulp + 1) * (op.ulp > 0), needed=dtype == F32)


@pytest.mark.parametrize("base", [F32, I64] if IS_LOWER else [F32, F64, I8, I32, I64, U8, U64], ids=str)
def test_power_of_mixed_dtypes(base: Any) -> None:
    ulps = 4.0 if base.kind == "f" else 0.0
    exponents = (F32, F64, I8, I32, I64, U32, U64)
    ran = [run(ops.Pow(), *columns(2, (base, e)), ulps=ulps, needed=False) for e in exponents]
    assert sum(ran) > 1, "exponents of its own dtype and of others"


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, NAN, INF, -INF])
def test_constant_power(exponent: float) -> None:
    run(ops.Pow(), columns(1, (F32,))[0], np.array(exponent, F32), ulps=4)


def test_chain_of_several() -> None:
    steps = ((ops.Relu(), (0,)), (ops.Max(), (1, 0)), (ops.Clip(-1.0, 2.0), (2,)), (ops.Sign(), (3,)))
    run(Chain(steps, (1, 2, 3, 4)), np.tile(special(F32), 5))


def lines(dtype: AnyDType, n: int) -> Array:
    """[lines, n]: ordinary numbers with special ones at both ends, in the middle, alone and everywhere."""
    rng = np.random.default_rng(n)
    if dtype.kind in "iu":
        return rng.choice(special(dtype), (40, n))
    made = rng.integers(-3, 4, (80, n)).astype(dtype)
    pool = special(dtype)
    for row, value in zip(made[:57], np.tile(pool, 3), strict=True):
        row[rng.integers(0, n)] = value
    made[57:60] = rng.choice(np.array([0.0, -0.0]), (3, n))
    made[60:70] = rng.choice(pool, (10, n))
    made[70], made[71], made[72], made[73], made[74] = -INF, INF, NAN, -0.0, 0.0
    return made


SIZES = [1, 2, 3, 7, 16, 33, 100, 300]
EXTREMES = [reductions.ReduceMax, reductions.ReduceMin]
PLACES = [
    *(made for kind in (reductions.ArgMax, reductions.ArgMin) for made in (kind(-1), kind(-1, select_last_index=True))),
    reductions.Hardmax(-1),
]
SUMS = [
    (reductions.ReduceSum, 0), (reductions.ReduceMean, 4), (reductions.ReduceL1, 0), (reductions.ReduceL2, 4),
    (reductions.ReduceSumSquare, 4), (reductions.ReduceLogSum, 8), (reductions.ReduceLogSumExp, 16),
]  # fmt: skip


def both_ways(op: Any, x: Array, *rest: Array, **kwargs: Any) -> None:
    """Along rows, and along columns."""
    run(op(-1), x, *rest, **kwargs)
    run(op(0), np.ascontiguousarray(x.T), *rest, **kwargs)


@pytest.mark.parametrize("dtype", [F32, F64, I8, I64, U64], ids=str)
@pytest.mark.parametrize("op", EXTREMES, ids=lambda c: c.name)
def test_extremes(op: Any, dtype: Any) -> None:
    for n in SIZES:
        x = lines(dtype, n)
        run(op(), x, np.array([1]))
        run(op(), np.ascontiguousarray(x.T), np.array([0]))


@pytest.mark.parametrize("dtype", [F32, F64, I8, I64, U64], ids=str)
@pytest.mark.parametrize("op", PLACES, ids=str)
def test_places_of_extremes(op: Any, dtype: Any) -> None:
    if isinstance(op, reductions.Hardmax) and dtype.kind != "f":
        return
    for n in SIZES:
        x = lines(dtype, n)
        run(op, x)
        run(type(op)(0, *((True, op.select_last_index) if hasattr(op, "select_last_index") else ())), x.T.copy())


@pytest.mark.parametrize("dtype", [F32, F64, I8, I64, U64], ids=str)
def test_topk(dtype: Any) -> None:
    for n, largest in itertools.product(SIZES, (True, False)):
        for k in {1, n // 20, n // 2, n}:
            run(reductions.TopK(-1, largest), lines(dtype, n), np.array([k]))


@pytest.mark.parametrize(("op", "ulps"), SUMS, ids=lambda c: getattr(c, "name", ""))
def test_sums(op: Any, ulps: float) -> None:
    for n in SIZES:
        x = lines(F32, n)
        run(op(), x, np.array([1]), ulps=ulps)
        run(op(), np.ascontiguousarray(x.T), np.array([0]), ulps=ulps)


@pytest.mark.parametrize("op", [reductions.Softmax, reductions.LogSoftmax], ids=lambda c: c.name)
def test_softmax(op: Any) -> None:
    for n in SIZES:
        both_ways(op, lines(F32, n), ulps=32)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums(exclusive: bool, reverse: bool) -> None:
    for n in SIZES:
        run(reductions.CumSum(exclusive, reverse), lines(F32, n), np.array(1), needed=False)


@pytest.mark.parametrize("dtype", [F32, F64, I8, I64], ids=str)
@pytest.mark.parametrize("indices", [False, True])
def test_max_pool(indices: bool, dtype: Any) -> None:
    for channels in (1, 5, 8, 33):
        x = np.random.default_rng(channels).choice(special(dtype), (2, 6, 7, channels))
        op = MaxPool((3, 2), (2, 1), (1, 0, 1, 1), layout="NHWC", indices=indices)
        run(op, x, needed=dtype != F64 or indices)


@pytest.mark.parametrize("activation", [ops.Relu(), ops.Clip(-1, 2), ops.LeakyRelu(0.25), ops.Gelu()], ids=str)
def test_epilogue(activation: Any) -> None:
    """Every special value goes through a product as it is, then through the activation."""
    x = special(F32)
    for channels in (1, 9, 40):
        w = np.zeros((channels, 1, 1, 1), F32)
        w += 1
        op = Conv(layout="NHWC", activation=activation)
        run(op, x.reshape(1, 1, -1, 1), w, ulps=activation.ulp + 1)


def test_grid_sample_beyond_the_border() -> None:
    """Zeros outside are zeros, whatever stands at the border."""
    x = np.array([[NAN, 1, NAN], [2, 3, INF], [-INF, 4, NAN]], F32).reshape(1, 1, 3, 3)
    points = np.array([-1.5, -1.0, -0.6, 0.0, 0.4, 1.0, 1.4, 3.0, NAN, INF, -INF], F32)
    grid = np.stack(np.meshgrid(points, points), -1)[None]
    for mode, padding, align in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (False, True)
    ):
        run(GridSample(mode, padding, align), x, grid, ulps=64)
    far = GridSample("linear", "zeros").reference(x, np.full((1, 1, 1, 2), -9, F32))
    np.testing.assert_array_equal(far, 0)


@pytest.mark.parametrize("n", [3, 40, 200])
def test_a_range_with_a_nan_is_none(n: int) -> None:
    """Wherever it stands: other numbers that are looked at after it do not hide it."""
    for place in range(n):
        x = np.arange(n, dtype=F32)
        x[place] = NAN
        run(DynamicQuantizeLinear(), x)


@pytest.mark.parametrize("n", [3, 16, 100])
def test_a_level_at_a_tie_is_even(n: int) -> None:
    """DynamicQuantizeLinear divides: a product with the reciprocal takes some ties the other way."""
    rng = np.random.default_rng(n)
    for scale in (0.125, 0.1, 0.3, 1 / 255, 1.0, 0.7, 1e-3, 0.017) * 4:
        x = (rng.integers(-100, 155, n) + rng.choice([0, 0.5], n)) * scale
        run(DynamicQuantizeLinear(), x.astype(F32))


NORMS = [
    norm.RMSNormalization(), norm.LayerNormalization(), norm.LRN(3), norm.LRN(5, beta=0.5), norm.LRN(3, layout="NHWC"),
    *(norm.LpNormalization(axis, p) for axis in (0, -1) for p in (1, 2)),
    *(norm.InstanceNormalization(layout=layout) for layout in ("NCHW", "NHWC")),
    *(norm.GroupNormalization(1, layout=layout) for layout in ("NCHW", "NHWC")),
]  # fmt: skip


@pytest.mark.parametrize("number", [1e30, -1e30, 2e19, 1e38, -1e38, INF, -INF, NAN], ids=str)
@pytest.mark.parametrize("op", NORMS, ids=str)
def test_squares_beyond_the_range(op: Any, number: float) -> None:
    """A finite number over the root of an infinite sum is 0, an infinite one is NaN."""
    for n in (4, 33, 100):
        x = np.random.default_rng(n).integers(-3, 4, (6, n)).astype(F32)
        x[1, 2] = x[4, 0] = number
        if not isinstance(op, (norm.RMSNormalization, norm.LayerNormalization, norm.LpNormalization)):
            x = x.reshape(1, 6, n) if op.layout == "NHWC" else np.ascontiguousarray(x.T[None])
        channels = isinstance(op, (norm.InstanceNormalization, norm.GroupNormalization))
        rows = isinstance(op, (norm.RMSNormalization, norm.LayerNormalization))
        inputs = (x, *(np.ones(n, F32) for _ in range(2 * channels + rows)))
        planned = plan(op, inputs)
        assert planned is not None
        with np.errstate(all="ignore"):
            wanted = result_tuple(op.reference(*inputs))[0]
        assert_near(run_planned(planned, inputs)[0], wanted, 1e-5)


load("cpu")
ENTRIES = [e for (o, device), rows in KERNELS.items() if device == "cpu" and o in CASES for e in rows]
NO_NUMBERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), (1, 4, 6, 10)),
    **dict.fromkeys(("BetweenBytes", "QLinearConcat"), (1, 3)),
    **dict.fromkeys(("MatMulNBits", "GatherBlockQuantized"), (2, 3)),
    "DynamicQuantizeLSTM": (8, 10),
    "FitImage": (1, 2),
    "Histogram": (1, 2),
    "QuantizeRows": (0,),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), (1,)),
    "GroupQueryAttention": (2, 4),
    **dict.fromkeys(("DFT", "STFT"), (0, 2)),
}
"""Operands without such numbers, by operator: scales of codes, what preprocessing subtracts and divides by, limits that
the data have, gains; values of a cache, of which those behind the mask are not read; spectra, which have own tests;
rows whose scale is NaN then, so that their bytes mean nothing."""
ROUNDED = ("MatMulForm", "MatMulExperts")
"""Operators whose kernels round x in groups: one that is not finite is NaN, where products have an infinity."""
UNSIGNED_ZEROS = ("BinaryMatMul", "LayerNormalization", "MatMul", "Resize", "RoiAlign", "TreeEnsemble")
"""Operators that add zeros of their own, in another order."""


def drawn(op: type[Op], count: int) -> list[Case]:
    found: list[Case] = []

    @settings(
        deadline=None, database=None, derandomize=True, max_examples=count, suppress_health_check=list(HealthCheck)
    )
    @given(case=CASES[op]())
    def draw(case: Case) -> None:
        found.append(case)

    draw()
    return found


def spoilt(case: Case) -> list[tuple[Array | None, ...]]:
    """The operands of a case, with one special number in a seventh of the places of one of them."""
    made: list[tuple[Array | None, ...]] = []
    for k, operand in enumerate(case.inputs):
        if operand is None or operand.dtype not in (F16, F32, F64) or not operand.size:
            continue
        told = [*NO_NUMBERS.get(case.op.name, ()), *case.op.value_inputs]
        is_ragged = isinstance(case.op, RaggedAttention)
        attention = case.op.op if is_ragged else case.op
        if isinstance(attention, FusedAttention) and attention.causal:  # values that no query sees are not read
            told.append(is_ragged + (0 if attention.packed else 2))
        numbers = (NAN, -0.0) if case.op.name in ROUNDED else (NAN, INF, -INF, -0.0)
        for number in () if k in told else numbers:
            other = operand.copy()
            places = np.random.default_rng(k).choice(other.size, max(1, other.size // 7), replace=False)
            other.reshape(-1)[places] = number
            made.append((*case.inputs[:k], other, *case.inputs[k + 1 :]))
    return made


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.op.__name__}-{e.name}")
def test_every_operand(entry: Entry) -> None:
    """NaN, infinities and -0 in one operand after the other, of every kernel, constants among them."""
    for at, case in enumerate(drawn(entry.op, 2 if IS_LOWER else few(5, 1))):
        constant = [(i > 0 and at % 2 == 0) or i in case.op.value_inputs for i in range(len(case.inputs))]
        for inputs in spoilt(case):
            planned = plan(entry, inputs, constant, instance=case.op)
            if planned is None or not all(t.is_static for t in planned.outs):
                continue
            with np.errstate(all="ignore"):
                wanted = result_tuple(case.op.reference(*inputs))
            rounds = entry.name == "matmul_form_of_bytes"  # x, to 8 bits
            near = entry.error(case.op, planned.ins, PlainContext()) if rounds and entry.error else 1e-4
            for got, w in zip(run_once(planned, inputs), wanted, strict=True):
                if got.dtype.kind not in "fV":
                    np.testing.assert_array_equal(got, w)
                    continue
                assert_near(got, w, 0.1 if entry.precision != "f32" else max(case.rtol, near))
                if got.dtype.kind == "f" and case.op.name not in UNSIGNED_ZEROS:
                    zeros = (got == 0) & (w == 0)
                    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(w[zeros]))


def test_attributes_beyond_f32_are_infinite() -> None:
    """As the references have them in f32 arithmetic."""
    x = np.array([-1, 0.5, 2], F32)
    for op, wanted in ((LeakyRelu(1e300), [-INF, 0.5, 2]), (ThresholdedRelu(1e300), [0, 0, 0])):
        graph = Graph("g")
        graph.add_output(Builder(graph)(op, graph.add_input("x", TensorType(F32, (3,)))), "y")
        np.testing.assert_array_equal(bn.compile(graph)(x=x)[0], np.array(wanted, F32))


@pytest.mark.parametrize(("group", "channels"), [(1, 16), (4, 4), (16, 1)], ids=["all", "grouped", "depthwise"])
def test_weights_that_are_not_finite_meet_pads(group: int, channels: int) -> None:
    """Filters of one group multiply what is outside of the image by 0; those of several leave it out."""
    graph, image = Graph("pads"), {"x": np.ones((1, 16, 8, 8), np.float32)}
    x = graph.add_input("x", TensorType(F32, (1, 16, 8, 8)))
    w = np.ones((16, channels, 3, 3), np.float32)
    w[:, 0, 0, 0] = INF
    graph.add_output(Builder(graph)(Conv(pads=(1, 1, 1, 1), group=group), x, w), "y")
    wanted = interpret(graph, image)["y"]
    (got,) = bn.Session(graph, threads=1, stand_ins=False)(image)
    assert np.isnan(wanted[:, :, 0]).all()
    np.testing.assert_array_equal(got[:, :, 1:, 1:], wanted[:, :, 1:, 1:])
    sums = np.full(8, 6 * channels)
    sums[[0, -1]] = 4 * channels
    np.testing.assert_array_equal(got[0, :, 0], np.broadcast_to(NAN if group == 1 else sums, (16, 8)))
