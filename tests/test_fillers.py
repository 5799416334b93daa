"""Tables that kernels fill for new sizes are those that NumPy makes for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.base.follow import Trail, value_of
from bolt_numba.base.selects import is_filled
from bolt_numba.base.turns import wait
from bolt_numba.devices.fillers import Fillers, TableBlock
from bolt_numba.devices.tape_code import TapeCode
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.convolution.conv import pixel_table, run_rows
from bolt_numba.kernels.cpu.movement.table_gather import _joined, _offsets
from bolt_numba.kernels.cpu.spatial.pool import _table
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.windows import Windows
from bolt_numba.runtime.tape import Taped
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.harness import served


def filled_at(trail: Trail, names: Sequence[str], tables: Sequence[Any], sizes: Sequence[int]) -> list[Array]:
    """The tables at these sizes, in their own dtype and shape; what they ask besides is computed, too."""
    laid = TableBlock([(table, ()) for table in tables])
    bounds = [n for t in tables for n in (*t.shape, t.greatest)]
    tape = TapeCode(trail, names, [*laid.wanted, *bounds])
    found = tape.at(sizes)
    assert found is not None
    made = []
    for table, content in zip(tables, Fillers(laid, tape).arrays(found[0]), strict=True):
        shape = [int(found[0][tape.register(n)]) for n in table.shape]
        array = content.view(table.dtype).reshape(shape)
        places = array[:, 0] if table.filler == "windows" else array
        assert array.size == 0 or places.max() <= found[0][tape.register(table.greatest)]
        assert array.size == 0 or places.min() >= table.least
        made.append(array)
    return made


axes = st.tuples(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3)
)
"""Of an axis two sizes, then kernel, stride, dilation and padding in front."""


def outs_of(sizes: Sequence[Any], rows: Sequence[Sequence[int]]) -> tuple[Any, ...]:
    return tuple([(size + 2 * row[5]) // row[3] + 1 for size, row in zip(sizes, rows, strict=True)])


@settings(deadline=None, max_examples=150)
@given(st.lists(axes, min_size=1, max_size=4), st.booleans())
def test_taps(rows: list[tuple[int, ...]], merged: bool) -> None:
    _, sizes, kernel, strides, dilations, pads = (tuple(column) for column in zip(*rows, strict=True))
    windows = Windows(kernel, strides, dilations, pads * 2, "NOTSET", False)
    trail, names = Trail(), [f"n0_{axis}" for axis in range(len(rows))]
    followed = tuple([trail.number(name, row[0]) for name, row in zip(names, rows, strict=True)])
    taps, run = pixel_table(windows, followed, outs_of(followed, rows)), run_rows(windows, followed, merged)
    assert is_filled(taps.table)
    wanted = pixel_table(windows, sizes, outs_of(sizes, rows))
    for got, array in zip(
        filled_at(trail, names, [taps.table, taps.edges], sizes), (wanted.table, wanted.edges), strict=True
    ):
        np.testing.assert_array_equal(got, array)
    numbers = TapeCode(trail, names, [taps.outside, *run.tolist()])
    found = numbers.at(sizes)
    assert found is not None
    got = [int(found[0][numbers.register(n)]) for n in (taps.outside, *run.tolist())]
    assert got == [wanted.outside, *run_rows(windows, sizes, merged).tolist()]


@settings(deadline=None, max_examples=100)
@given(axes, st.integers(0, 3), st.booleans(), st.integers(1, 8))
def test_windows_of_pools(row: tuple[int, ...], after: int, all_count: bool, step: int) -> None:
    first, size, kernel, stride, dilation, before = row
    trail = Trail()
    number = trail.number("n0_0", first)
    out, more = ((n + before) // stride + 1 for n in (number, size))
    table = _table(number, out, kernel, stride, dilation, (before, after), all_count, step)
    (got,) = filled_at(trail, ["n0_0"], [table], [size])
    np.testing.assert_array_equal(got, _table(size, more, kernel, stride, dilation, (before, after), all_count, step))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([None, 2, 4]), st.integers(1, 5))
def test_elements_that_are_repeated(first: int, size: int, repeat: int | None, stride: int) -> None:
    trail = Trail()
    number = trail.number("n0_0", first)
    one = _offsets(repeat, number * (repeat or 1), stride)
    got = filled_at(trail, ["n0_0"], [one, _joined([one])], [size])
    wanted = _offsets(repeat, size * (repeat or 1), stride)
    np.testing.assert_array_equal(got[0], wanted)
    np.testing.assert_array_equal(got[1], _joined([wanted]))
    assert value_of(number) == first


def net() -> Graph:
    """Layers whose tables follow from the sizes of an image."""
    graph = Graph()
    build, draw = Builder(graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(F32, (1, 3, Sym("h"), Sym("w"))))
    weight = build.const(draw.standard_normal((24, 3, 3, 3), np.float32))
    x = build(Conv(strides=(2, 2), pads=(1, 1, 1, 1)), x, weight)
    x = build(MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), x)
    scales = build.const(np.array([1, 1, 2, 2], np.float32))
    up = Resize(mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")
    x = build(up, x, None, scales)
    graph.add_output(x, "y")
    return graph


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_that_pass_by_and_known_ones_have_tables_of_their_own(threads: int) -> None:
    """No size sees the tables of another, whichever come between."""
    graph, draw = net(), np.random.default_rng(1)
    session = bn.compile(graph, threads=threads, stand_ins=False)
    sizes = [
        (8 * a, 8 * b) for a, b in ((2, 3), (4, 2), (3, 5), (5, 4), (6, 3), (2, 7), (7, 2), (3, 3), (4, 6), (9, 4))
    ]
    images = [draw.standard_normal((1, 3, *size), np.float32) for size in sizes]
    wanted = [bn.compile(graph, threads=1).run(None, {"x": image})[0] for image in images]
    for order in (range(10), range(10), range(9, -1, -1), (5, 9, 5, 8, 9, 6)):
        for i in order:
            np.testing.assert_array_equal(session.run(None, {"x": images[i]})[0], wanted[i])
        wait(session._runner.serving)
        session._runner.prepared.clear()
        for image in images[5:8]:  # what passes by is not kept, what somebody prepares is
            session._runner.prepare([image])
    kept = [p for p in session._runner.prepared.values() if type(p) is Taped]
    assert kept
    assert all(p.tables.nbytes for p in kept)


def test_ranges_of_floats_are_rounded_as_numpy_does() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n] x) => (float[m] y) <float a = {-5.0}, float d = {0.01}> {
            size = Shape (x)
            one = Squeeze (size)
            end = Cast <to = 1> (one)
            r = Range (a, end, d)
            y = Floor (r)
        }""").SerializeToString()  # fmt: skip
    session = bn.compile(model, threads=1, stand_ins=False)
    for n in range(1, 13):
        got = session(np.zeros(n, np.float32))["y"]
        numbers = np.float32(-5) + np.arange(got.size).astype(np.float32) * np.float32(0.01)
        np.testing.assert_array_equal(got, np.floor(numbers))
        wait(session._runner.serving)
    assert served(session._runner) > 4


GATHERED = """
    p{i} = Greater ({x}, zero)
    ones{i} = Cast <to = 7> (p{i})
    count{i} = ReduceSum <keepdims = 0> (ones{i})
    numbers{i} = Range (s0, count{i}, s1)
    z{i} = Gather ({x}, numbers{i})"""
COUNTED = """<ir_version: 9, opset_import: ["" : 18]>
g (float[n] x, float[m] y) => (float[k] z0, float[l] z1, int32[a] r, int32[b] q)
    <float zero = {0.0}, int64 s0 = {0}, int64 s1 = {1}, int32 t0 = {0}, int32 t1 = {1}> {"""


def test_what_python_gives_a_stage_is_of_these_sizes() -> None:
    """Ranges of i32, which Python makes: of an input's size, and of one that data decide in front of another stop."""
    ends = "".join(
        f"""
    s{name} = Shape ({of})
    n{name} = Squeeze (s{name})
    c{name} = Cast <to = 6> (n{name})
    {name} = Range (t0, c{name}, t1)"""
        for name, of in (("r", "x"), ("q", "z0"))
    )
    text = COUNTED + "".join(GATHERED.format(i=i, x=x) for i, x in enumerate("xy")) + ends + "\n}"
    session = bn.compile(onnx.parser.parse_model(text).SerializeToString(), threads=1, stand_ins=False)
    rows = [(9 + i, 3 + i % 4, 4 + i % 4) for i in range(9)]
    rows += [(20, 4, 5), (20, 4, 6), (30, 9, 6), (30, 9, 8), (21, 5, 8), (40, 6, 7), (20, 4, 5), (33, 4, 9), (20, 4, 4)]
    for n, first, second in rows:
        x, y = -np.ones(n, np.float32), -np.ones(50, np.float32)
        x[:first], y[:second] = 1, 1
        made = session(x, y)
        assert made["z0"].tolist() == [1] * first
        assert made["z1"].tolist() == [1] * second
        assert made["r"].tolist() == [*range(n)]
        assert made["q"].tolist() == [*range(first)]
        wait(session._runner.serving)
    assert served(session._runner) > 4
