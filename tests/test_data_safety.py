"""The content of an operand never leads a kernel outside of memory, and what it cannot mean is refused by name."""

from __future__ import annotations

import inspect
import itertools
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import bolt_numba as bn
from bolt_numba.cli import machine
from bolt_numba.errors import BoltError, DataError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.registry import Fault, select
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.gather import (
    Compress,
    Gather,
    GatherElements,
    GatherND,
    NonZero,
    ScatterElements,
    ScatterND,
)
from bolt_numba.ops.arrays.generate import Trilu
from bolt_numba.ops.arrays.slicing import ReverseSequence
from bolt_numba.ops.data.trees import TreeEnsemble
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention, TensorScatter
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.detection.regions import MaxRoiPool, RoiAlign
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.ops.layers.resize import GridSample
from bolt_numba.ops.pointwise import Not
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import OPS, Op, result_tuple
from bolt_numba.types import BOOL, F32, I64, U8, Array, TensorType, type_of
from tests.cases import CASES, Case
from tests.harness import plan, types_of

X = np.arange(24, dtype=np.float32).reshape(4, 6)
ENDS = (-(2**63), -(2**31) - 1, 2**31, 2**61, 2**63 - 1)


def session_of(op: Op, inputs: Sequence[Array | None], constant: Sequence[int] = ()) -> bn.Session:
    """A session of one node called ``it``, whose operands are inputs x0, x1, … but for some constants."""
    graph = Graph("one")
    b = Builder(graph)
    operands = [
        a if a is None or i in constant else graph.add_input(f"x{i}", type_of(a).with_value(None))
        for i, a in enumerate(inputs)
    ]
    for i, value in enumerate(b.node(op, *operands, name="it").outputs):
        graph.add_output(value, f"y{i}")
    return bn.compile(graph, threads=2)


def run(op: Op, inputs: Sequence[Array | None], constant: Sequence[int] = ()) -> list[Array]:
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constant}
    return session_of(op, inputs, constant).run(None, feeds)


def lengths_of(kind: type[Op], lengths: Sequence[int]) -> tuple[Op, list[Array | None], tuple[int, ...]]:
    gates = kind.gates  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    x, w, r = (rng.standard_normal(s, np.float32) for s in ((3, 2, 4), (1, gates * 5, 4), (1, gates * 5, 5)))
    return kind(), [x, w, r, None, np.array(lengths, np.int32)], (1, 2)


def index_case(kind: type[Op], index: int) -> tuple[Op, list[Array | None]]:
    """An operator on `X` with one index along its first axis among good ones."""
    if kind in (GatherND, ScatterND):
        tuples = np.array([[0], [index], [-4]])
        return kind(), [X, tuples] if kind is GatherND else [X, tuples, X[:3] + 1]
    if kind is Gather:
        return Gather(0), [X, np.array([[0, 3], [-4, index]])]
    places = np.tile(np.array([[0], [index], [3]]), (1, 6))
    return kind(0), [X, places] if kind is GatherElements else [X, places, X[:3] + 1]  # type: ignore[call-arg]


@pytest.mark.parametrize("index", [4, -5, *ENDS])
@pytest.mark.parametrize("kind", [Gather, GatherElements, GatherND, ScatterElements, ScatterND])
def test_indices_out_of_range_are_refused_by_name(kind: type[Op], index: int) -> None:
    op, inputs = index_case(kind, index)
    said = rf"{kind.name}: indices\[.*\]: got {index}, wanted -4 to 3"
    with pytest.raises(DataError, match=f"node 'it': {said}"):
        run(op, inputs)
    with pytest.raises(DataError, match=f"node 'it': {said}"):
        run(op, inputs, constant=[1])
    with pytest.raises(DataError, match=said):
        op.reference(*inputs)


def test_a_session_runs_on_after_a_refusal() -> None:
    session = session_of(Gather(0), [X, np.array([0])])
    for index in (4, 1, -5, -1):
        if -4 <= index < 4:
            np.testing.assert_array_equal(session(X, np.array([index]))["y0"], X[[index]])
        else:
            with pytest.raises(DataError, match=rf"indices\[0\]: got {index}, wanted -4 to 3"):
                session(X, np.array([index]))


@pytest.mark.parametrize("lengths", [(4, 1), (1, -1), (2**31 - 1, 3), (3, -(2**31))])
@pytest.mark.parametrize("kind", [LSTM, GRU, RNN])
def test_lengths_of_sequences_are_held_to_the_time_axis(kind: type[Op], lengths: tuple[int, int]) -> None:
    op, inputs, weights = lengths_of(kind, lengths)
    place = next(i for i, length in enumerate(lengths) if not 0 <= length <= 3)
    said = rf"sequence_lens\[{place}\]: got {lengths[place]}, wanted 0 to 3"
    for constant in (weights, (*weights, 4), ()):
        with pytest.raises(DataError, match=said):
            run(op, inputs, constant)
    with pytest.raises(DataError, match=said):
        op.reference(*inputs)


@pytest.mark.parametrize("length", [7, -1, *ENDS])
def test_lengths_to_reverse_are_held_to_the_time_axis(length: int) -> None:
    inputs = [X, np.array([1, 2, length, 6])]
    op = ReverseSequence(batch_axis=0, time_axis=1)
    for constant in ((), (1,)):
        with pytest.raises(DataError, match=rf"sequence_lens\[2\]: got {length}, wanted 0 to 6"):
            run(op, inputs, constant)
    with pytest.raises(DataError, match=r"sequence_lens\[2\]"):
        op.reference(*inputs)


@pytest.mark.parametrize("start", [-1, 5, *ENDS])
def test_places_in_a_cache_are_held_to_it(start: int) -> None:
    past, new = np.zeros((2, 1, 6, 3), np.float32), np.ones((2, 1, 2, 3), np.float32)
    inputs = [past, new, np.array([0, start])]
    for constant in ((), (2,)):
        with pytest.raises(DataError, match=rf"write_indices\[1\]: got {start}, wanted 0 to 4"):
            run(TensorScatter(), inputs, constant)
    with pytest.raises(DataError, match=r"write_indices\[1\]"):
        TensorScatter().reference(*inputs)


def refused_alike(op: Op, inputs: list[Array | None], said: str, constants: Sequence[Sequence[int]] = ((),)) -> None:
    """The session and the reference refuse in the same words."""
    for constant in constants:
        with pytest.raises(DataError, match=f"node 'it': {op.name}: {said}"):
            run(op, inputs, constant)
    with pytest.raises(DataError, match=said):
        op.reference(*inputs)


@pytest.mark.parametrize("image", [-1, 2, *ENDS])
def test_images_of_regions_are_those_that_there_are(image: int) -> None:
    rois = np.array([[0, 0, 3, 3], [1, 1, 4, 4]], np.float32)
    said = rf"batch_indices\[1\]: got {image}, wanted 0 to 1"
    refused_alike(RoiAlign(), [np.ones((2, 3, 5, 5), np.float32), rois, np.array([0, image])], said, [(), (2,)])


def test_the_first_of_several_images_that_are_not_there_is_named() -> None:
    inputs = [np.ones((2, 3, 5, 5), np.float32), np.ones((4, 4), np.float32), np.array([0, 7, 5, 1])]
    refused_alike(RoiAlign(), inputs, r"batch_indices\[1\]: got 7, wanted 0 to 1", [(), (2,)])


def test_a_node_alike_with_other_constant_indices_is_held_to_them_too() -> None:
    graph, count = Graph("alike"), 100  # more than are a part of what nodes have in common
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (2, 3, 5, 5)))
    rois = graph.add_input("rois", TensorType(F32, (count, 4)))
    for name, image in (("good", 1), ("bad", 2)):
        images = np.zeros(count, np.int64)
        images[7] = image
        graph.add_output(b.node(RoiAlign(), x, rois, images, name=name).output)
    with pytest.raises(DataError, match=r"node 'bad': RoiAlign: batch_indices\[7\]: got 2, wanted 0 to 1"):
        bn.Session(graph, threads=1)(np.ones((2, 3, 5, 5), np.float32), np.ones((count, 4), np.float32))


@pytest.mark.parametrize(("place", "value"), [((0, 0), 2.0), ((1, 0), -1.0), ((1, 0), np.nan), ((0, 3), np.inf)])
def test_regions_to_pool_are_finite_and_of_images_that_there_are(place: tuple[int, int], value: float) -> None:
    rois = np.array([[0, 0, 0, 3, 3], [1, 1, 1, 4, 4]], np.float32)
    rois[place] = value
    said = rf"rois\[{place[0]}, {place[1]}\]: got {value}, wanted "
    refused_alike(MaxRoiPool((2, 2)), [np.ones((2, 3, 5, 5), np.float32), rois], said)


@pytest.mark.parametrize("position", [-1, 7, *ENDS])
def test_positions_are_rows_of_the_tables(position: int) -> None:
    x, table = np.ones((1, 2, 3, 8), np.float32), np.ones((7, 4), np.float32)
    said = rf"positions\[0, 1\]: got {position}, wanted 0 to 6"
    refused_alike(RotaryEmbedding(), [x, table, table, np.array([[6, position, 0]])], said, [(), (3,)])


@pytest.mark.parametrize("valid", [1, 8, -1, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("s", [2, 6])
def test_a_cache_is_not_filled_beyond_its_end(s: int, valid: int) -> None:
    if s == 2 and valid == 1:
        valid = 0
    q, past = np.ones((2, s, 8), np.float32), np.ones((2, 1, 8, 4), np.float32)
    inputs = [q, q[..., :4], q[..., :4], past, past, np.array([7, valid], np.int32), np.array([8], np.int32)]
    said = rf"seqlens_k\[1\]: got {valid}, wanted {s - 1} to 7"
    refused_alike(GroupQueryAttention(2, 1), inputs, said, [(), (6,)])


@pytest.mark.parametrize("s", [2, 6])
def test_a_bias_has_a_column_for_each_valid_key(s: int) -> None:
    """The cache has room for 8 positions, the bias is for 7 keys, and the second sequence has 8."""
    q, past = np.ones((2, s, 8), np.float32), np.ones((2, 1, 8, 4), np.float32)
    inputs = [q, q[..., :4], q[..., :4], past, past, np.array([6, 7], np.int32), np.array([7], np.int32)]
    inputs.append(np.zeros((1, 1, s, 7), np.float32))
    refused_alike(GroupQueryAttention(2, 1), inputs, rf"seqlens_k\[1\]: got 7, wanted {s - 1} to 6", [(), (6,)])


def stump(rows: int, nan_left: bool) -> list[Array | None]:
    """A tree of one test whose leaves give 3 and 5, then a leaf that gives nothing; rows of NaN."""
    ints = [np.array(a, np.int32) for a in ([0] * 4, [1, 0, 1, 2], [-1, 0, 1, 2], [0], [0, 1, 2, 2], [0, 0])]
    feature, child, leaf, roots, starts, targets = ints
    nan, missing = np.nan, np.array([nan_left, False, False, False])
    threshold, weights = np.array([0, nan, nan, nan], np.float32), np.array([3, 5], np.float32)
    x = np.full((rows, 1), nan, np.float32)
    return [x, feature, threshold, child, missing, leaf, roots, starts, targets, weights]


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("nan_left", [False, True])
def test_trees_end_in_any_leaf(nan_left: bool, count: int, rows: int) -> None:
    """Kernels fill up the trees by the last leaf, so one that gives something is left to the reference."""
    inputs = [a[:count] if i in (1, 2, 3, 4, 5) and a is not None else a for i, a in enumerate(stump(rows, nan_left))]
    want = np.full((rows, 1), 3 if nan_left else 5, np.float32)
    np.testing.assert_array_equal(TreeEnsemble().reference(*inputs), want)
    np.testing.assert_array_equal(run(TreeEnsemble(), inputs, range(1, 10))[0], want)
    assert (select(TreeEnsemble(), types_of(inputs, [False] + [True] * 9)) is not None) == (count == 4)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_no_walk_goes_on_from_a_leaf(place: int, rows: int) -> None:
    """NaN at a leaf that is said to track missing values would lead to the node before, and from the first outside."""
    inputs = stump(rows, True)
    _, _, threshold, child, missing, leaf, *_ = inputs
    assert threshold is not None
    assert child is not None
    assert missing is not None
    assert leaf is not None
    constant = range(1, 10)
    missing[place] = True
    if place == 0:  # a tree that is one leaf
        threshold[0], child[0], leaf[0] = np.nan, -1, 0
    with pytest.raises(ShapeError, match="TreeEnsemble: nodes"):
        TreeEnsemble().reference(*inputs)
    with pytest.raises(ShapeError, match="TreeEnsemble: nodes"):
        run(TreeEnsemble(), inputs, constant)


@pytest.mark.parametrize("k", [-7, -3, 0, 2, 9, *ENDS, 2**61 + 2, -(2**61)])
@pytest.mark.parametrize("upper", [False, True])
def test_triangles_at_any_diagonal(upper: bool, k: int) -> None:
    op, inputs = Trilu(upper), [X, np.array(k)]
    for constant in ((), (1,)):
        np.testing.assert_array_equal(run(op, inputs, constant)[0], op.reference(*inputs))


FAR, WIDE = (1 << 24) + 1, 1 << 16


@pytest.mark.parametrize("shape", [(1, 1, FAR, 1), (1, 1, 1, FAR), (1, 1, WIDE, WIDE // 2)])
def test_what_32_bits_cannot_number_is_for_the_references(shape: tuple[int, ...]) -> None:
    x, near = TensorType(F32, shape), TensorType(F32, (1, 1, 9, 9))
    for op, rest in (
        (GridSample(), [TensorType(F32, (1, 2, 2, 2))]),
        (RoiAlign(), [TensorType(F32, (1, 4)), TensorType(I64, (1,))]),
    ):
        assert select(op, [near, *rest]) is not None
        assert select(op, [x, *rest]) is None


def test_of_several_refusals_the_first_node_is_named() -> None:
    """Faults of several nodes: the first by the order of the program is named, and none is left over."""
    graph = Graph("two")
    b, x = Builder(graph), graph.add_input("x", type_of(X).with_value(None))
    first, second = (graph.add_input(n, TensorType(I64, (1,))) for n in "ij")
    rows = b.node(Gather(0), x, first, name="rows").output
    graph.add_output(b.node(Gather(1), rows, second, name="columns").output, "y")
    session = bn.compile(graph, threads=1)
    for i, j, said in ((9, 9, "rows"), (0, 9, "columns"), (9, 0, "rows")):
        with pytest.raises(DataError, match=f"node '{said}': Gather: "):
            session(X, np.array([i]), np.array([j]))
        assert session(X, np.array([1]), np.array([2]))["y"] == X[1, 2]


BYTES = np.array([0, 1, 2, 255, 128, 0], np.uint8)


@pytest.mark.parametrize("op", [Compress(1), NonZero(), Not()])
@pytest.mark.parametrize("source", ["feed", "cast", "constant"])
def test_bools_may_hold_any_byte(op: Op, source: str) -> None:
    operands: list[Any] = [X, BYTES.view(BOOL)] if isinstance(op, Compress) else [BYTES.view(BOOL)]
    wanted = result_tuple(op.reference(*(BYTES != 0 if a.dtype == BOOL else a for a in operands)))
    if source == "cast":
        graph = Graph("cast")
        b, given = Builder(graph), graph.add_input("x", type_of(BYTES).with_value(None))
        assert BYTES.dtype == U8
        bits = b(BitCast(BOOL), given)
        graph.add_output(b(op, *operands[:-1], bits), "y")
        found = bn.compile(graph).run(None, {"x": BYTES})
    else:
        found = run(op, operands, [len(operands) - 1] if source == "constant" else [])
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("axis", [0, None])
def test_a_condition_longer_than_its_axis(axis: int | None) -> None:
    condition = np.arange(40) % 2 == 0
    wanted = X[::2] if axis == 0 else X.reshape(-1)[::2]
    for constant in ((), (1,)):
        (found,) = run(Compress(axis), [X, condition], constant)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("op", [NonZero(), Compress(0), Compress(None)])
def test_another_thread_may_write_what_is_read_twice(op: Op) -> None:
    """Either the result of some moment's content, or a refusal that says so; memory stays whole in any case."""
    flags = np.zeros((1 << 16) if op != Compress(0) else 1 << 12, np.bool_)
    x = np.ones((len(flags), 1 if op == Compress(None) else 16), np.float32)
    inputs = [flags] if isinstance(op, NonZero) else [x, flags]
    session = session_of(op, inputs)
    stop, refusals = threading.Event(), list[str]()

    def write() -> None:
        while not stop.is_set():
            flags[...] = True
            flags[...] = False

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            try:
                (found,) = session.run(None, {f"x{i}": a for i, a in enumerate(inputs)})
            except DataError as error:
                refusals.append(str(error))
            else:
                assert found.size <= max(x.size, flags.size)
    finally:
        stop.set()
        writer.join()
    assert all("were counted" in said for said in refusals)


# ------------------------------------------------------------------------------------------------------ every operator


def float_may_stand_for(op: Op, ins: Sequence[TensorType | None], index: int) -> bool:
    """Whether an operand is taken as f32, too, alone or with some of those of its dtype: then it is only a value."""
    given = ins[index]
    assert given is not None
    others = [i for i, t in enumerate(ins) if i != index and t is not None and t.dtype == given.dtype]
    for count in range(len(others) + 1):
        for more in itertools.combinations(others, count):
            changed = [
                TensorType(F32, t.shape) if t is not None and i in (index, *more) else t for i, t in enumerate(ins)
            ]
            try:
                op.infer(*changed)
            except BoltError:
                continue
            return True
    return False


@pytest.mark.parametrize("kind", sorted(CASES, key=lambda op: op.name), ids=lambda op: op.name)
def test_every_operand_that_is_no_mere_value_says_where_it_is_bounded(kind: type[Op]) -> None:
    names = list(inspect.signature(kind.infer).parameters)[1:]
    assert set(kind.data_bounds) <= set(names), f"{kind.name}: data_bounds names what is no operand"
    missing = {names[i] for i in kind.value_inputs if i < len(names)} - set(kind.data_bounds)
    assert not missing, f"{kind.name}: data_bounds: nothing is said of {missing}"
    if issubclass(kind, Pointwise):
        return

    @settings(max_examples=8, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=CASES[kind]())
    def check(case: Case) -> None:
        ins = types_of(case.inputs, [True] * len(case.inputs))
        for i, t in enumerate(ins):
            name = names[min(i, len(names) - 1)]
            if t is not None and t.dtype.kind in "iub" and name not in kind.data_bounds:
                assert float_may_stand_for(case.op, ins, i), f"{kind.name}: data_bounds: nothing is said of {name}"

    check()


@pytest.mark.parametrize("kind", sorted(CASES, key=lambda op: op.name), ids=lambda op: op.name)
def test_what_a_kernel_refuses_is_said_of_its_operand(kind: type[Op]) -> None:
    names = list(inspect.signature(kind.infer).parameters)[1:]

    @settings(max_examples=4, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=CASES[kind]())
    def check(case: Case) -> None:
        planned = plan(case.op, case.inputs, [i in kind.value_inputs for i in range(len(case.inputs))])
        for step in planned.steps if planned is not None else ():
            for arg in step.args.values():
                assert not isinstance(arg, Fault) or names[arg.operand] in kind.data_bounds

    check()


def test_the_page_of_bounds_has_every_operator() -> None:
    rows, _, others = machine.safety_markdown().partition("## The others")
    for name, kind in OPS.items():
        for operand in kind.data_bounds:
            assert f"\n| {name} | `{operand}` | " in rows
        assert (name in re.findall(r"\w+", others)) is not bool(kind.data_bounds), name
