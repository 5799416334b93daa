"""A tape gives what a plan made anew gives, for every operator and for graphs, or refuses the sizes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.base.follow import LostError, Trail
from bolt_numba.devices import in_order
from bolt_numba.devices.followed import FollowedRun
from bolt_numba.devices.program import NativeRun, _record_form, pointer
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels.cpu.tape import fill, nothing
from bolt_numba.ops.arrays.quantize import QuantizeLinear
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Concat, Reshape
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.integer_products import QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul, Relu, Sigmoid
from bolt_numba.ops.registry import Op
from bolt_numba.runtime import tape
from bolt_numba.runtime.packs import MakerContext, Packs
from bolt_numba.runtime.plan import Planner
from bolt_numba.runtime.region import region_of
from bolt_numba.runtime.runner import Runner, run_plan
from bolt_numba.runtime.slots import CONST, TEMP
from bolt_numba.runtime.tape import Tape, Taped
from bolt_numba.types import F32, STRING, Sym, TensorType
from tests.cases import CASES, Case
from tests.harness import served
from tests.level import few

pytestmark = pytest.mark.usefixtures("tapes_at_once")
EXAMPLES = int(os.environ.get("BOLT_NUMBA_TEST_EXAMPLES", few(6, 1)))
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 64, 100)
THREADS = 2


def same_words(taped: Taped, plan: Any, arrays: Sequence[Any]) -> None:
    """The program of a tape at its sizes has the numbers, tables and places of a plan made anew.

    Where results are made of sizes, a plan has these as constants and a tape writes them: then they are the same.
    """
    sizes = [i for i, slot in enumerate(plan.results) if slot.kind == CONST and taped.empties[i] is not None]
    if sizes:
        made = run_plan(taped, [np.zeros(a.shape, a.dtype) for a in arrays])
        for i in sizes:
            np.testing.assert_array_equal(made[i], plan.results[i].const)
        return
    assert taped.empties == [(s.type.dims, s.type.dtype) if s.kind == TEMP else None for s in plan.results]
    if not plan.segments:
        assert not taped.tape.plan.jobs
        return
    (segment,) = plan.segments
    fresh = segment.executable
    run: FollowedRun = taped.turned()  # keeps its arena
    arrays = [[np.zeros(1)] * (1 + max(used, default=0)) for used in run.followed.used]
    run.have(*arrays)
    fill.call_at(pointer(run.record))
    arena = np.zeros(max(plan.memory.arenas.values(), default=0) + 64, np.uint8)
    wanted, got = (np.array(r.image.view(np.int64)) for r in (NativeRun(fresh, arena), run))
    places = places_of(run, fresh)
    assert len(places) == len(wanted)
    got = got[places]
    for place, which, offset in fresh.links.in_arrays.tolist():
        array = fresh.links.arrays[which]
        nbytes = array.nbytes - offset
        assert ctypes.string_at(int(got[place]), nbytes) == array.reshape(-1).view(np.uint8)[offset:].tobytes()
    addresses = [*fresh.arena_places.tolist(), *fresh.own_places.tolist(), *fresh.links.in_arrays[:, 0].tolist()]
    for array_of, others in zip(arrays, (fresh.inputs, fresh.outputs), strict=True):
        for which, rows in others.items():
            assert [got[word] - pointer(array_of[which]) for word, _ in rows] == [offset for _, offset in rows]
            addresses += [word for word, _ in rows]
    assert [sorted(used) for used in run.followed.used] == [sorted(fresh.inputs), sorted(fresh.outputs)]
    got[addresses] = wanted[addresses] = 0
    np.testing.assert_array_equal(got, wanted)
    kernels, _, flags = (table[1:] for table in run.steps)
    np.testing.assert_array_equal(flags[kernels != nothing.address], fresh.flags)


def places_of(run: FollowedRun, fresh: Any) -> list[int]:
    """Where each i64 of a program of certain sizes is in that of a tape, which has steps that other sizes have, too."""
    kernels, made = run.steps[0][1:], []
    run_steps = np.flatnonzero(kernels != nothing.address)
    np.testing.assert_array_equal(kernels[run_steps], fresh.kernels)
    ends = []
    for step, first, own in zip(run_steps, run.program.record_offsets[run_steps], fresh.record_offsets, strict=True):
        words = _record_form(run.program.links.kernels[run.program.links.steps[step]].params).packer.size // 8
        made += [int(first) // 8 + i for i in range(words)]
        ends.append(int(own) // 8 + words)
    last = run.program.links.kernels[run.program.links.steps[-1]].params
    end = int(run.program.record_offsets[-1]) // 8 + _record_form(last).packer.size // 8
    return made + [end + i for i in range(len(fresh.image) // 8 - ends[-1])]


def check(graph: Graph, sizes: Sequence[Sequence[TensorType]]) -> int:
    """Hold the tape of the first input types to plans for all; for how many it holds, 0 where there is no tape."""
    runner, plans = Runner(region_of(graph), THREADS, Packs(), in_order()), []
    for types in sizes:
        try:
            plans.append(Planner(region_of(graph), MakerContext(THREADS, runner.packs, in_order())).plan(types))
            plans[-1].link()  # packs what the tape wants packed
        except BoltError:
            plans.append(None)
    try:
        made = Tape(runner, MakerContext(THREADS, runner.packs, in_order(), chooses=True), sizes[0])
    except (LostError, BoltError):
        return 0
    held, passing = 0, made.context()
    for types, plan in zip(sizes, plans, strict=True):
        arrays = [np.broadcast_to(np.zeros((), t.dtype), t.dims) for t in types]
        found = passing.at(made._sizes(arrays, [a.shape for a in arrays]) or [])  # as the sizes before have left it
        taped = made.at(arrays)
        if found is not None:
            assert taped is not None
            kept = made.program.tape.calls
            np.testing.assert_array_equal(passing.own[:kept], taped.registers[:kept])
            np.testing.assert_equal(passing.objects, taped.found[1])
        if plan is None:
            assert taped is None, types
        elif taped is not None:
            same_words(taped, plan, arrays)
            held += 1
    assert held, "a tape holds for the sizes that it was made of"
    return held


def one_node(case: Case) -> Graph | None:
    """A graph of one node whose operands that are no constants have sizes of their own."""
    graph = Graph()
    build = Builder(graph)
    operands: list[Value | None] = []
    for i, array in enumerate(case.inputs):
        if array is None:
            operands.append(None)
        elif i in case.op.value_inputs or (i and array.size > 1):
            operands.append(build.const(array))
        else:
            shape = tuple([Sym(f"d{i}_{axis}") for axis in range(array.ndim)])
            operands.append(graph.add_input(f"x{i}", TensorType(array.dtype, shape)))
    try:
        made = build(case.op, *operands)
    except BoltError:  # symbols leave too much open
        return None
    for value in made if isinstance(made, tuple) else [made]:
        graph.add_output(value)
    return graph


def resized(case: Case, graph: Graph, change: dict[int, int]) -> list[TensorType]:
    """Types of the inputs for a case, with other sizes; sizes that are equal stay so."""
    arrays = [case.inputs[int(v.name[1:])] for v in graph.inputs]
    return [TensorType(a.dtype, tuple([change.get(d, d) for d in a.shape])) for a in arrays if a is not None]


def is_planned(op: type[Op]) -> bool:
    return not issubclass(op, ControlFlow) and not op.has_side_state


@pytest.mark.parametrize("op", sorted(filter(is_planned, CASES), key=lambda op: op.name), ids=lambda op: op.name)
def test_every_operator(op: type[Op]) -> None:
    held = 0

    @settings(
        deadline=None, database=None, derandomize=True, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck)
    )
    @given(case=CASES[op](), draw=st.data())
    def run(case: Case, draw: st.DataObject) -> None:
        nonlocal held
        graph = one_node(case)
        if graph is None or not graph.inputs or any(v.type.dtype == STRING for v in graph.inputs):
            return
        known = sorted({d for array in case.inputs if array is not None for d in array.shape})
        changes: list[dict[int, int]] = [{}]
        for _ in range(4):
            some = draw.draw(st.sets(st.sampled_from(known), max_size=2)) if known else set()
            changes.append({d: draw.draw(st.sampled_from(SIZES)) for d in sorted(some)})
        held += check(graph, [resized(case, graph, change) for change in changes])

    run()
    assert held or EXAMPLES < 6 or op.name not in USUAL


USUAL = {
    "Add", "AveragePool", "Cast", "Clip", "Concat", "Conv", "ConvTranspose", "FusedAttention", "Gather", "Gemm",
    "LayerNormalization", "MatMul", "MaxPool", "Mul", "ReduceMean", "Relu", "Reshape", "Slice", "Softmax", "Split",
    "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators of most models: what is planned of them with other sizes comes from tapes."""


def networks() -> Iterator[tuple[str, Graph, list[list[TensorType]]]]:
    """Graphs with sizes that differ from plan to plan, and what to plan one after the other."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(F32)

    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), Sym("h"), Sym("w"), 3)))
    for channels, stride, kernel in ((16, 2, 3), (32, 1, 1), (32, 1, 3)):
        pads, c = (kernel // 2,) * 4, x.type.shape[-1]
        conv = Conv(layout="NHWC", strides=(stride, stride), pads=pads, activation=Relu())
        x = build(conv, x, weights(channels, c, kernel, kernel), weights(channels))
    x = build(Conv(layout="NHWC", pads=(1, 1, 1, 1), group=32), x, weights(32, 1, 3, 3), weights(32))
    pooled = build(AveragePool(kernel_shape=(2, 2), strides=(2, 2), layout="NHWC"), x)
    joined = build(Concat(axis=3), pooled, build(Sigmoid(), pooled))
    graph.add_output(build(Mul(), joined, build(ReduceMean(), joined, np.array([1, 2]))), "y")
    images = [(1, 32, 32), (1, 32, 48), (1, 64, 48), (2, 64, 48), (1, 6, 8), (1, 320, 8), (1, 3, 1), (3, 33, 47)]
    yield "images", graph, [[TensorType(F32, (*size, 3))] for size in images]
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), Sym("length"), 64)))
    for _ in range(2):
        q, k, v = (
            build(Reshape(), build(MatMul(), x, weights(64, 64), weights(64)), np.array([0, 0, 4, 16])) for _ in "qkv"
        )
        mixed = build(FusedAttention(0.25, False, "SHD", "SHD", "SHD", "SHD"), q, k, v)
        x = build(Add(), x, build(Reshape(), mixed, np.array([0, 0, 64])))
        x = build(LayerNormalization(), x, weights(64), weights(64))
    graph.add_output(x, "y")
    lengths = [(1, 16), (1, 32), (2, 32), (1, 1), (1, 7), (5, 130), (1, 16)]
    yield "layers", graph, [[TensorType(F32, (*size, 64))] for size in lengths]
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), Sym("length"), 64)))
    for _ in range(2):
        zero, scale = np.int8(0), np.float32(0.25)
        rounded = build(QuantizeLinear(), x, scale, zero)
        product = QLinearMatMul()
        x = build(product, rounded, scale, zero, weights(64, 64).astype(np.int8), scale, zero, None, None, weights(64))
    graph.add_output(x, "y")
    yield "bytes", graph, [[TensorType(F32, (*size, 64))] for size in lengths]


NETWORKS = [pytest.param(*row[1:], id=row[0]) for row in networks()]


@pytest.mark.parametrize(("graph", "sizes"), NETWORKS)
def test_networks(graph: Graph, sizes: list[list[TensorType]]) -> None:
    assert sum(check(graph, [first, *sizes]) for first in sizes) > len(sizes) + 3


@pytest.mark.parametrize(("graph", "sizes"), NETWORKS[:2])  # that of bytes holds for all sizes
def test_a_guard_that_lacks_is_found(
    graph: Graph, sizes: list[list[TensorType]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trail, "decided", lambda self, text: None)

    def check_all() -> None:
        for first in sizes:
            check(graph, [first, *sizes])

    with pytest.raises(AssertionError):
        check_all()


@pytest.mark.parametrize(("graph", "sizes"), NETWORKS)
def test_sessions_have_the_same_bits(
    graph: Graph, sizes: list[list[TensorType]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a shape came to be served; a known shape is served as it was."""
    monkeypatch.setattr(tape, "FIRST", 0)
    monkeypatch.setattr(tape, "NEXT", 0)
    rng = np.random.default_rng(0)
    session = bn.compile(graph, threads=1)
    possible = [types for types in sizes if min(types[0].dims[1:]) > 2]
    feeds = [[rng.standard_normal(t.dims).astype(F32) for t in types] for types in possible]
    wanted = [bn.compile(graph, threads=1)(*arrays)["y"].tobytes() for arrays in feeds]
    for most in (32, 2, 32):
        session._runner.max_plans = most
        for arrays, bits in zip(feeds, wanted, strict=True):
            for _ in range(2):
                assert session(*arrays)["y"].tobytes() == bits
    assert served(session._runner) > 0


def test_a_session_is_no_larger_for_many_shapes() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 16)))
    graph.add_output(Builder(graph)(MatMul(), x, np.ones((16, 16), F32)), "y")
    session = bn.compile(graph, threads=1)
    for n in range(1, 400):
        assert session(np.ones((n, 16), F32))["y"].shape == (n, 16)
    assert len(session._runner.prepared) <= session.options.max_plans
    (tapes,) = session._runner.tapes.values()
    assert len(tapes.tapes) <= 6


def test_a_tape_holds_no_arrays_of_a_run() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 16)))
    graph.add_output(Builder(graph)(Relu(), x), "y")
    session = bn.compile(graph, threads=1)
    for n in range(1, 9):
        session(np.ones((n, 16), F32))
    taped = session._runner.prepare([np.ones((9, 16), F32)])
    assert isinstance(taped, Taped)
    assert pointer(taped.registers)
    assert list(taped.plan.results[0].type.dims) == taped.sizes
    assert session.report()
    assert session.profile(np.ones((8, 16), F32), runs=1).rows


@pytest.mark.parametrize("threads", [1, 2])
def test_a_tape_has_every_algorithm_that_was_used(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that choose another one, and bands or not, need no tape of their own, and get the bits of a plan."""
    monkeypatch.setattr("bolt_numba.devices.cpu.BETWEEN_BYTES", 1 << 17)
    rng = np.random.default_rng(0)
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (1, Sym("h"), Sym("w"), 64)))
    y = build(Conv(layout="NHWC", pads=(1,) * 4), x, rng.standard_normal((64, 64, 3, 3), np.float32) / 16)
    y = build(Conv(layout="NHWC"), y, rng.standard_normal((128, 64, 1, 1), np.float32) / 8)
    y = build(Conv(layout="NHWC", pads=(1,) * 4, group=128), y, rng.standard_normal((128, 1, 3, 3), np.float32))
    graph.add_output(build(ReduceMean(), y, np.array([1, 2])), "y")
    session = bn.compile(graph, threads=threads, numerics="fast")
    runner = session._runner

    def run(*size: int) -> tuple[Any, set[str]]:
        feed = rng.standard_normal((1, *size, 64), np.float32)
        (wanted,) = bn.compile(graph, threads=threads, numerics="fast").run(None, {"x": feed})
        (got,) = session.run(None, {"x": feed})
        assert got.tobytes() == wanted.tobytes()
        prepared = runner.prepare([feed])
        return prepared, {job.runner for job in prepared.plan.jobs}

    ways = set().union(*(run(*size)[1] for size in ((6, 6), (24, 24), (8, 9), (42, 42))))
    assert {"winograd_2", "winograd_4", "winograd_6"} <= ways
    later = [run(*size) for size in ((7, 6), (25, 22), (14, 16), (48, 36), (60, 30))]
    assert all(isinstance(prepared, Taped) for prepared, _ in later)
    assert len(set().union(*(runners for _, runners in later)) & {"winograd_2", "winograd_4", "winograd_6"}) == 3
