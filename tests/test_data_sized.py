"""Kernels whose results' sizes depend on data, against their operators' references, between guard pages."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.export.program import native_program
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.language.lang import store_f32
from bolt_numba.kernels.data_sized import DATA_SIZED, DataSized
from bolt_numba.kernels.jit import I64 as LONG
from bolt_numba.kernels.jit import PTR, native
from bolt_numba.kernels.registry import load
from bolt_numba.ops.arrays.gather import Compress, Gather, NonZero
from bolt_numba.ops.arrays.reduce import ReduceMax, TopK
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.pointwise import Cast, Greater
from bolt_numba.ops.registry import result_tuple
from bolt_numba.types import F32, F64, I64, U8, Array, TensorType
from tests.beyond import summary, watched
from tests.cases import CASES, Case
from tests.harness import guarded, run_kernel, types_of
from tests.missing import no_cases
from tests.native_programs import Interpreter

load("cpu")
ENTRIES = list(DATA_SIZED.values())


def run_guarded(entry: DataSized, case: Case, right: bool) -> tuple[Array, ...]:
    """Results with every operand, result and workspace next to an unreadable page."""
    places: list[Array] = []

    def empty(shape: Any, dtype: Any) -> Array:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        places.append(guarded(size, right, 0xAB))
        return places[-1].view(dtype).reshape(shape)

    operands = []
    for a in case.inputs:
        place = None if a is None else empty(a.shape, a.dtype)
        if place is not None:
            place[...] = a
        operands.append(place)
    given = len(places)
    with watched() as touched:
        made = tuple(np.array(r) for r in entry.compute(case.op, operands, empty))
    if touched.first:
        values = {f"{'operand' if i < given else 'memory'} {i}": a.ctypes.data for i, a in enumerate(places)}
        said = summary(touched, values, dict(zip(values, places, strict=True)), places)
        raise AssertionError(f"kernels of {entry.name}: {said}")
    for a, place in zip(case.inputs, operands, strict=True):
        assert a is None or place is None or a.tobytes() == place.tobytes(), f"{entry.name}: an operand was written"
    return made


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_sized_kernel_equals_reference(entry: DataSized) -> None:
    assert entry.op in CASES, no_cases(entry.op)
    taken = 0

    @settings(deadline=None, database=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))
    @given(case=CASES[entry.op](), right=st.booleans())
    def run(case: Case, right: bool) -> None:
        nonlocal taken
        if not entry.accepts(case.op, types_of(case.inputs)):
            return
        taken += 1
        wanted = result_tuple(case.op.reference(*case.inputs))
        for got, want in zip(run_guarded(entry, case, right), wanted, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got, want)

    run()
    assert taken > 10


@native(y=PTR, n=LONG, extents=lambda a: {"y": 4 * a.n})
def writes_one_more(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n + 1):
        store_f32(p.y + 4 * i, np.float32(1))


@pytest.mark.skipif(sys.platform != "linux", reason="pages are opened on Linux only")
def test_a_kernel_that_reaches_too_far_is_told_in_a_line() -> None:
    def compute(op: Any, operands: Any, empty: Any) -> tuple[Array, ...]:
        y: Array = empty((10,), F32)
        writes_one_more.run(y=y, n=10)
        return (y,)

    entry = DataSized(NonZero, "cpu", compute, lambda *_: True, "too_far")
    with pytest.raises(AssertionError, match="kernels of too_far: writes byte 1 behind the 40 bytes of 'memory 1'"):
        run_guarded(entry, Case(NonZero(), (np.ones(3, F32),)), True)


def test_a_session_runs_cuts_by_kernels() -> None:
    graph = Graph("selected")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (4, 30)))
    scores = b(ReduceMax(keepdims=False), x, np.array([1]))
    index = b(NonZero(), b(Greater(), scores, np.float32(0)))
    rows = b(Gather(), x, b(Reshape(), index, np.array([-1])))
    k = b(Cast(I64), b(ReduceMax(), rows))
    graph.add_output(b(TopK(), x, b(Reshape(), k, np.array([1])))[0], "y")
    session = bn.compile(graph, threads=1)
    given = np.random.default_rng(0).uniform(-9, 9, (4, 30)).astype(np.float32)
    given[1] = -1
    wanted = int(given.max())
    np.testing.assert_array_equal(session(given), -np.sort(-given, axis=1)[:, :wanted])
    runners = {row["op"]: row["runner"] for row in session.report()}
    assert (runners["NonZero"], runners["TopK"]) == ("nonzero", "topk")


@pytest.mark.parametrize("dtype", [F32, F64, I64, U8])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 40, 900, 3000])
def test_first_of_long_lines(dtype: Any, largest: bool, k: int) -> None:
    """Both algorithms, with equal elements, zeros of both signs and NaN."""
    x = np.random.default_rng(k).integers(-50 if dtype != U8 else 0, 50, (2, 3000)).astype(dtype)
    if dtype.kind == "f":
        x[0, 7], x[0, 9], x[1, 50:60] = np.nan, np.nan, -0.0
    op = TopK(-1, largest)
    for got, want in zip(run_kernel(op, (x, np.array([k]))), op.reference(x, np.array([k])), strict=True):
        np.testing.assert_array_equal(got, want)


def test_rows_of_nothing_take_no_time() -> None:
    graph = Graph("rows")
    graph.add_output(Builder(graph)(NonZero(), graph.add_input("x", TensorType(F32, (1 << 40, 0)))), "y")
    assert bn.compile(graph, threads=1)(np.zeros((1 << 40, 0), F32))["y"].shape == (2, 0)


@pytest.mark.parametrize("dtype", [F32, I64, np.dtype(bool)], ids=str)
@pytest.mark.parametrize("number", [0, 3])
def test_a_scalar_that_is_not_zero_has_a_place_without_coordinates(number: int, dtype: Any) -> None:
    """As the standard's text says.  onnxruntime gives one coordinate, and so does NumPy of old."""
    x, wanted = np.array(number, dtype), np.zeros((0, int(number != 0)), np.int64)
    entry = next(e for e in ENTRIES if e.op is NonZero)
    for got in (NonZero().reference(x), *run_guarded(entry, Case(NonZero(), (x,)), True)):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    graph = Graph("scalar")
    graph.add_output(Builder(graph)(NonZero(), graph.add_input("x", TensorType(dtype, ()))), "y")
    assert bn.compile(graph, threads=1)(x)["y"].shape == wanted.shape
    assert Interpreter(native_program(graph).block.tobytes()).run({"x": x})["y"].shape == wanted.shape


@pytest.mark.parametrize(("dtype", "width"), [(F32, 2), (U8, 4), (U8, 2), (I64, 1), (F32, 3)])
def test_rows_as_short_as_an_element_of_another_dtype_are_picked(dtype: Any, width: int) -> None:
    x = np.arange(5 * width).astype(dtype).reshape(5, width)
    kept = np.array([True, False, True, True, False])
    case = Case(Compress(0), (x, kept))
    entry = next(e for e in ENTRIES if e.op is Compress)
    for right in (False, True):
        np.testing.assert_array_equal(run_guarded(entry, case, right)[0], x[kept])
