"""Every registered kernel against its operator's reference, on the operator's cases, for each instruction set.

A kernel is tested by being registered; one that accepts no drawn case fails, for its test would prove nothing.
"""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.registry import KERNELS, Context, Entry, Step, Types, load
from bolt_numba.ops.arrays.reduce import ReduceProd
from bolt_numba.ops.arrays.signal import DFT
from bolt_numba.ops.layers.detection.regions import RoiAlign
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.integer_products import ConvInteger, QLinearConv
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import BF16, F16, F32, I8, NUMERICS, PRECISIONS, U8, Array, TensorType
from tests.cases import CASES, Case
from tests.harness import PlainContext, plans, run_planned
from tests.level import few, is_quick
from tests.lower_isa import IS_LOWER
from tests.missing import no_cases
from tests.near import assert_near

F8 = np.dtype(ml_dtypes.float8_e4m3fn)
EXAMPLES = int(os.environ.get("BOLT_NUMBA_TEST_EXAMPLES", few(25, 3)))
MORE = few(400, 40), 400
"""Cases that an operator's kernels choose from beyond that, where they accept few, or none of the former."""
MOST = few(MORE[1], 4)
"""How many of them run."""
ENOUGH, EACH = max(2 * EXAMPLES // 5, 1), max(EXAMPLES // 8, 1)
"""Cases that a kernel should run, and those in which an operand is given, or an attribute set."""
Feature: TypeAlias = Hashable
"""An operand and whether it is given, an attribute and whether it is set, a way that the maker takes."""
_SIZED = re.compile(r"_?(?:bf|f|i|u|float|int|uint)?\d+(?:x\d+)?")
"""What differs by dtypes and sizes in names of kernels."""
NEAR: dict[type[Op], float] = {AveragePool: 1e-6}
"""Operators whose kernels round even whole numbers: AveragePool multiplies by the reciprocal of the count."""

NEVER = {f"{op}-pointwise_in_place" for op in ("IsNaN", "IsInf")} | {"MatMul-matmul_strassen"}
"""The first are registered with all pointwise operators, but their results are never as wide as their operands; the
last is taken by tuning alone."""
if not target().has_bf16:
    NEVER.add("FusedAttention-attention_bf16")  # it pays where the processor multiplies pairs


def winograd(size: int) -> Case:
    """A convolution large enough to be worth the transforms, whose rounding is relative to its greatest result."""
    rng = np.random.default_rng(size)
    shapes = (1, size, size, 64), (64, 64, 3, 3), (64,)
    op = Conv(pads=(1, 1, 1, 1), layout="NHWC")
    return Case(op, tuple(rng.integers(-4, 5, shape).astype(F32) for shape in shapes), exact=False, rtol=1e-5)


def pointwise_conv(op: Op, filters: tuple[int, ...]) -> Case:
    """A product large enough for sums of tiles to pay: 256 x 192 x 128."""
    rng = np.random.default_rng(5)
    shapes = (1, 16, 16, 128), filters, filters[:1]
    return Case(op, tuple(rng.integers(-4, 5, shape).astype(F32) for shape in shapes))


EXTRA: dict[str, Case] = {
    "Cast-convert": Case(Cast(F16), (np.arange(40, dtype=F32),)),
    "Cast-cast_by_table": Case(Cast(F8), (np.arange(40, dtype=F32),)),
    "Conv-depthwise": Case(
        Conv(group=40, layout="NHWC"),
        (np.arange(1200, dtype=F32).reshape(1, 5, 6, 40) / 1200, np.arange(360, dtype=F32).reshape(40, 1, 3, 3) / 360),
        exact=False,
    ),
    "Conv-conv_strassen": pointwise_conv(Conv(layout="NHWC"), (192, 128, 1, 1)),
    "Conv-winograd_6": winograd(24),
    "Conv-winograd_4": winograd(16),
    "Conv-winograd_2": winograd(6),
    "ConvInteger-conv_bytes_pixels": Case(
        ConvInteger(group=40, layout="NHWC"),
        ((7 * np.arange(1200)).astype(U8).reshape(1, 5, 6, 40), np.arange(360).reshape(40, 1, 3, 3).astype(I8)),
    ),
    "QLinearConv-conv_bytes_pixels": Case(
        QLinearConv(group=40, layout="NHWC"),
        (
            (7 * np.arange(1200)).astype(U8).reshape(1, 5, 6, 40),
            np.float32(0.5),
            U8.type(3),
            np.arange(360).reshape(40, 1, 3, 3).astype(I8),
            np.float32(0.25),
            I8.type(0),
            np.float32(64),
            U8.type(5),
        ),
    ),
    "DFT-long_dft": Case(
        DFT(onesided=True), (np.random.default_rng(0).random((1, 1350, 2, 1), F32), None, np.array(1)), exact=False
    ),
    "RoiAlign-roi_align": Case(
        RoiAlign("avg", 2, 2),
        (
            np.arange(1, 37, dtype=F32).reshape(1, 1, 6, 6),
            np.array([[2, 2, 2, 5], [3, 3, 1, 1], [0, 0, 4, 4]], F32),
            np.zeros(3, np.int64),
        ),
    ),
    "ReduceProd-reduce_plain": Case(ReduceProd(), (np.arange(1, 11).reshape(2, 5), np.array([1]))),
}
"""Cases of kernels that no drawn case is large or rare enough for."""

load("cpu")
NOTHING = [op for (op, _), rows in KERNELS.items() if any(e.name == "reduce_nothing" for e in rows)]
EXTRA |= {f"{op.__name__}-reduce_nothing": Case(op(), (np.ones((3, 0, 2), F32), np.array([1]))) for op in NOTHING}
ENTRIES = [e for (_, device), rows in KERNELS.items() if device == "cpu" for e in rows]


def name_of(entry: Entry) -> str:
    return f"{entry.op.__name__}-{entry.name}"


def constants(case: Case, all_known: bool) -> list[bool]:
    """Which operands the maker sees: all but the first, or only those that decide shapes."""
    return [(i > 0 and all_known) or i in case.op.value_inputs for i in range(len(case.inputs))]


def assert_close(got: Array, wanted: Array, case: Case, least: float = 0.0, floor: float = 0.0) -> None:
    """Bit-equal up to the sign of zero where the case is exact, else within its tolerance, or ``least`` if larger.

    floor: what the tolerance is of at least, where an activation cuts what was rounded.
    """
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    rtol = NEAR.get(type(case.op), 0.0) if case.exact else max(case.rtol, least)
    if not rtol or got.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, wanted)
        return
    assert_near(got, wanted, rtol, floor=floor)


def as_multiplied(operand: Array | None, precision: str) -> Array | None:
    """An operand as kernels of a precision multiply it; a bias, which they do not round, is near enough."""
    if operand is None or operand.dtype != F32 or precision == "f32":
        return operand
    return operand.astype({"bf16": BF16, "f16": F16}[precision]).astype(F32)


def check(entry: Entry, case: Case, all_known: bool) -> bool:
    """Run one case at every level of numerics and precision; False when the kernel does not take it."""
    found = plans(entry, case.inputs, constants(case, all_known), instance=case.op)
    if not found or not all(t.is_static for t in found[0].outs):
        return False
    results = result_tuple(case.op.reference(*(as_multiplied(a, entry.precision) for a in case.inputs)))
    floor = 0.0
    if entry.error is not None and entry.precision == "f32":  # near as far as the filters allow, which the maker tells
        bound = entry.error(case.op, found[0].ins, PlainContext())
        case = replace(case, exact=False, rtol=max(case.rtol, bound))
        if getattr(case.op, "activation", None) is not None:
            (sums,) = result_tuple(replace(case.op, activation=None).reference(*case.inputs))
            floor = float(np.abs(sums[np.isfinite(sums)]).max(initial=0.0))
    for planned in found:
        for got, wanted in zip(run_planned(planned, case.inputs), results, strict=True):
            assert_close(got, wanted, case, 0.0 if entry.precision == "f32" else 2e-2, floor)
    return True


def taken_cases(entry: Entry, seen: Counter[Feature]) -> int:
    """Check up to `EXAMPLES` cases; returns how many the kernel took.  seen: counts their features."""
    assert entry.op in CASES, no_cases(entry.op)
    taken = 0

    @settings(
        deadline=None,
        database=None,
        derandomize=True,
        max_examples=EXAMPLES,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=CASES[entry.op](), all_known=st.booleans())
    def run(case: Case, all_known: bool) -> None:
        nonlocal taken
        if check(entry, case, all_known):
            taken += 1
            seen.update(features(case, all_known))

    run()
    return taken


@lru_cache(maxsize=2)  # those of all operators take gigabytes
def many_cases(op: type[Op], count: int) -> list[tuple[Case, bool]]:
    """``count`` cases of an operator, and whether operands are constants in them."""
    assert op in CASES, no_cases(op)
    found = []

    @settings(derandomize=True, max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=CASES[op](), all_known=st.booleans())
    def run(case: Case, all_known: bool) -> None:
        found.append((case, all_known))

    run()
    return found


def features(case: Case, all_known: bool) -> set[Feature]:
    """What a kernel may treat in another way: which operands are given and known, and which attributes are set."""
    operands = {(str(i), a is not None) for i, a in enumerate(case.inputs)}
    plain = type(case.op)
    attributes = {(name, repr(value) != repr(getattr(plain, name, None))) for name, value in vars(case.op).items()}
    return {*operands, *attributes, ("all known", all_known)}


def way(steps: Iterable[Step]) -> Feature:
    """Which kernels a maker calls, in order, whatever their sizes."""
    return "way", tuple(_SIZED.sub("", step.kernel.name) for step in steps)


def ways(entry: Entry, case: Case, all_known: bool) -> set[Feature]:
    """Those of all levels of numerics and precisions."""
    return {way(one.steps) for one in plans(entry, case.inputs, constants(case, all_known), instance=case.op)}


def is_thin(entry: Entry, seen: Counter[Feature]) -> bool:
    """Whether few cases have an operand that may be omitted."""
    names = enumerate(inspect.signature(entry.op.infer).parameters.values(), -1)  # the first is ``self``
    return any(seen[str(i), True] < EACH for i, name in names if name.default is None)


def varied(
    drawn: list[tuple[Any, set[Any]]], seen: Counter[Any], each: int, most: int, run: Callable[[Any], bool]
) -> int:
    """Run up to ``most`` cases, each the one with most features that fewer than ``each`` have had; how many ran.

    run: whether it took the case.
    """
    taken = 0
    if is_quick():  # few cases show more where two of what they set meet
        set_in = [sorted(name for name, value in shown if value is True) for _, shown in drawn]
        drawn = [(case, {*shown, *combinations(names, 2)}) for (case, shown), names in zip(drawn, set_in, strict=True)]
    missing = [(case, {one for one in shown if seen[one] < each}) for case, shown in drawn]
    while missing and taken < most:
        case, shown = missing.pop(max(range(len(missing)), key=lambda place: len(missing[place][1])))
        if not shown:
            break
        if run(case):
            seen.update(shown)
            taken += 1
            enough = {one for one in shown if seen[one] >= each}
            for _, others in missing:
                others -= enough
    return taken


def various_cases(entry: Entry, seen: Counter[Feature], taken: int) -> int:
    """Check cases with features that were seen too rarely; how many there are.  taken: how many ran before."""
    for count in MORE:
        drawn = [(pair, features(*pair) | ways(entry, *pair)) for pair in many_cases(entry.op, count)]
        taken += varied(drawn, seen, EACH, MOST, lambda pair: check(entry, *pair))
        if seen or (is_quick() and taken):
            break
    return taken


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_kernel_equals_reference(entry: Entry) -> None:
    name = name_of(entry)
    seen: Counter[Feature] = Counter()
    taken = 0 if is_quick() else taken_cases(entry, seen)
    taken += name in EXTRA and check(entry, EXTRA[name], True)
    if name in NEVER:
        assert not taken, f"{name} accepts cases: take it off the list"
        return
    if not taken or is_quick() or (not IS_LOWER and (taken < ENOUGH or is_thin(entry, seen))):
        taken = various_cases(entry, seen, taken)
    assert taken, (
        f"{name}: accepts none of the cases: add one that it takes to tests/cases, or to EXTRA of {__file__}: "
        f'"{name}": Case({entry.op.__name__}(...), (operand, ...)),'
    )


@pytest.mark.parametrize(
    ("name", "value"), [*(("numerics", v) for v in NUMERICS), *(("precision", v) for v in PRECISIONS)]
)
def test_a_fault_of_one_level_or_precision_is_found(name: str, value: str) -> None:
    """A bias that is left out there, and only there."""
    (entry,) = (e for e in ENTRIES if name_of(e) == "LayerNormalization-row_normalisation")
    case = Case(LayerNormalization(), tuple(np.random.default_rng(0).random((3, 40), F32)), exact=False)

    def make(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
        return entry.make(op, ins[:2] if getattr(context, name) == value else ins, outs, context)

    assert check(entry, case, True)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(replace(entry, make=make), case, True)
