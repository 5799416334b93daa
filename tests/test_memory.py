"""Buffers that are alive at once never overlap; sharing happens where it may."""

from __future__ import annotations

import itertools
import platform
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.devices import in_order
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.gather import ScatterElements, ScatterND
from bolt_numba.ops.arrays.shape import Concat, Reshape
from bolt_numba.ops.pointwise import Add, Exp, Neg, Relu
from bolt_numba.ops.registry import Op
from bolt_numba.runtime import memory
from bolt_numba.runtime.memory import ALIGN, Block, place
from bolt_numba.runtime.packs import MakerContext, Packs
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.region import region_of
from bolt_numba.runtime.runner import Runner
from bolt_numba.types import F32, I64, TensorType

blocks = st.lists(
    st.builds(lambda n, a, b: Block(n, a, a + b), st.integers(1, 5000), st.integers(0, 12), st.integers(0, 6)),
    max_size=40,
)


@settings(deadline=None, max_examples=100)
@given(blocks)
def test_live_blocks_do_not_overlap(found: list[Block]) -> None:
    total = place(found)
    for i, a in enumerate(found):
        assert a.offset % ALIGN == 0
        assert 0 <= a.offset <= total - a.nbytes
        for b in found[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_thousands_of_blocks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the looks end, blocks are apart all the same."""
    monkeypatch.setattr(memory, "LOOKS", 1000)
    found = [Block(64 * (1 + i % 3), i % 7, 50 + i % 11) for i in range(300)]
    total = place(found)
    places = sorted((b.offset, b.offset + b.nbytes) for b in found)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    assert places[-1][1] <= total


def test_a_chain_of_equal_buffers_needs_two() -> None:
    found = [Block(1024, i, i + 1) for i in range(20)]
    assert place(found) == 2 * 1024


def plan_of(graph: Graph, *shapes: tuple[int, ...]) -> Plan:
    return Planner(region_of(graph), MakerContext(1, Packs(), in_order())).plan([TensorType(F32, s) for s in shapes])


def check(graph: Graph, **feeds: np.ndarray) -> None:
    runner = Runner(region_of(graph), 1, Packs(), in_order())
    got = runner.run([feeds[v.name] for v in graph.inputs])
    want = interpret(graph, feeds)
    for name, array in zip(graph.output_names, got, strict=True):
        np.testing.assert_allclose(array, want[name], rtol=1e-6)


def test_pointwise_chain_runs_in_place() -> None:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (64, 64)))
    y = b(Exp(), x)
    for _ in range(5):
        y = b(Relu(), b(Add(), y, np.float32(1)))
    g.add_output(b(Exp(), y), "y")
    assert plan_of(g, (64, 64)).memory.nbytes <= 2 * 64 * 64 * 4
    check(g, x=np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64))


@pytest.mark.parametrize("op", [ScatterElements(axis=0), ScatterElements(axis=0, reduction="add"), ScatterND()])
@pytest.mark.parametrize("places", [{0, 2}, {0, 1}])
def test_no_result_takes_the_memory_of_what_its_steps_read_otherwise(op: Op, places: set[int]) -> None:
    """Updates, or indices, that are the data themselves are read while the data are written."""
    g, rng = Graph(), np.random.default_rng(0)
    rows = rng.integers(0, 8, (8, 1) if type(op) is ScatterND else (8, 8))
    shape = rows.shape if 1 in places else (8, 8)
    x, b = g.add_input("x", TensorType(I64, shape)), Builder(g)
    data, given = b(Neg(), x), (None, rows, rng.integers(0, 99, shape))
    g.add_output(b(Neg(), b(op, *[data if i in places else given[i] for i in range(3)])), "y")
    check(g, x=-rng.integers(0, 8, shape))


def test_a_join_along_an_inner_axis_within_one_along_the_last() -> None:
    """Rows of the outer join lie apart in a way that the inner one cannot write."""
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (1, 5, 4)))
    pairs = [
        b(Concat(2), *(b(Reshape(), b(Add(), x, np.float32(i + j)), np.array([1, 5, 1, 4])) for j in (0, 10)))
        for i in range(2)
    ]
    g.add_output(b(Concat(3), *pairs), "y")
    check(g, x=np.arange(20, dtype=np.float32).reshape(1, 5, 4))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_join_that_lies_in_one_join_is_read_by_another(is_first: bool) -> None:
    """Its rows lie apart then, and the other join must copy them so, though it places none of its operands."""
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (5, 4)))
    pair = b(Concat(1), b(Relu(), x), b(Exp(), x))
    readers = [lambda: b(Concat(1), x, pair), lambda: b(Concat(1), pair, b(Relu(), b(Add(), x, np.float32(1))))]
    for i, read in enumerate(readers if is_first else reversed(readers)):
        g.add_output(b(Add(), read(), np.float32(1)), f"y{i}")
    check(g, x=np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4))


@pytest.mark.parametrize("axis", [0, 1])
def test_concat_writes_in_place_when_it_can(axis: int) -> None:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (3, 5)))
    left, right = b(Exp(), x), b(Relu(), x)
    inner = b(Concat(axis), left, right)
    outer = b(Concat(axis), inner, x, b(Add(), left, np.float32(2)))
    g.add_output(b(Relu(), outer), "y")
    g.add_output(left, "left")
    plan = plan_of(g, (3, 5))
    if axis == 0:
        assert any("in place" in job.runner for job in plan.jobs)
    check(g, x=np.arange(-7, 8, dtype=np.float32).reshape(3, 5))


def test_outputs_that_are_inputs_constants_or_views() -> None:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(F32, (2, 6)))
    y = b(Exp(), x)
    views = b(Reshape(), x, np.array([3, 4])), b(Reshape(), y, np.array([12]))
    for value in (x, views[0], y, views[1], b.const(np.ones(3, "f4")), y):
        g.add_output(value, f"out{len(g.outputs)}")
    feed = np.arange(12, dtype=np.float32).reshape(2, 6)
    check(g, x=feed)
    outputs = Runner(region_of(g), 1, Packs(), in_order()).run([feed])
    for i, array in enumerate(outputs):
        assert not np.may_share_memory(array, feed)
        assert not any(np.may_share_memory(array, other) for other in outputs[:i])


FAULTS_OF_A_CALLER = """
import resource

import numpy as np
import onnx

import bolt_numba as bn

model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[1024, 2048] x) => (float[1, 1] y) '
    '{ e = Softmax<axis = 1>(x) f = Softmax<axis = 0>(e) y = ReduceMax<axes = [0, 1]>(f) }')
session = bn.InferenceSession(model.SerializeToString())
data = np.ones((1024, 2048), np.float32)
for step in range(20):
    if step == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    session.run(None, {"x": data})
    parts = [np.ones(150_000, np.float32) for _ in range(8)]
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory in other ways")
def test_a_caller_does_not_fault_in_new_pages_beside_a_session() -> None:
    """What a caller makes and drops between fifteen runs has 17,600 pages."""
    found = subprocess.run([sys.executable, "-c", FAULTS_OF_A_CALLER], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1500
