"""Strings through every operator that takes them, as data, constants, in branches and loops: who refers to one counts.

An array of strings holds addresses of Python's objects.  A kernel, a fold, a move or a cut that copied them as bytes
would end the process some time later.  Here a result counts as many references as it holds, and gives them back.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import bolt_numba as bn
from bolt_numba.errors import BoltError, DataError, InternalError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.movement.selection import compress_rows
from bolt_numba.kernels.data_sized import DATA_SIZED, SIZED, select_data_sized, select_sized
from bolt_numba.kernels.extents import check_steps
from bolt_numba.kernels.registry import In, Out, Scratch, Step, load
from bolt_numba.ops.arrays.gather import Compress, ScatterElements, ScatterND, Unique
from bolt_numba.ops.control import If, Loop, Scan
from bolt_numba.ops.data.sequence import ConcatFromSequence, SequenceAt, SequenceInsert, SplitToSequence
from bolt_numba.ops.data.text import StringConcat
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import BOOL, F64, I64, STRING, Array, TensorType, type_of
from tests.cases import CASES, Case

ALL = sorted(CASES, key=lambda op: op.name)
EXAMPLES = settings(
    max_examples=4, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
HELD = 1000
"""References to each string that are kept until all of a case were counted right: one that was not fails the test and
ends nothing."""
_held: list[Any] = []

CONSTANTS: dict[str, Callable[[int, Array], bool]] = {
    "nothing": lambda i, a: False,
    "all but the first": lambda i, a: i > 0,
    "the strings": lambda i, a: a.dtype == STRING,
    "all but the strings": lambda i, a: a.dtype != STRING,
    "everything": lambda i, a: True,
}
"""Which operands are constants."""


def texts(a: Array) -> Array:
    """Strings that nobody else refers to, equal where the elements are and, of numbers, in the same order."""
    made = np.empty(a.shape, STRING)
    made.reshape(-1)[:] = [(f"{v}+" if isinstance(v, str) else f"{float(v) + 1e6:.3f}+")[:-1] for v in a.flat]
    _held.extend([v] * HELD for v in made.flat)
    return made


def is_accepted(op: Op, types: Sequence[TensorType | None]) -> bool:
    try:
        op.infer(*types)
    except BoltError:
        return False
    return True


def with_strings(case: Case) -> Iterator[list[Array | None]]:
    """Operands that `infer` accepts with strings in the place of each in turn, of all of one dtype, and as scalars."""
    dtypes = {i: a.dtype for i, a in enumerate(case.inputs) if a is not None}
    places = {(i,) for i in dtypes}
    places |= {tuple(i for i, d in dtypes.items() if d == wanted) for wanted in {*dtypes.values()}}
    for chosen, is_scalar in itertools.product(sorted(places), (False, True)):
        types = [None if a is None else TensorType(a.dtype, a.shape, a) for a in case.inputs]
        operands = list(case.inputs)
        for i in chosen:
            found = case.inputs[i]
            assert found is not None
            operands[i] = found.reshape(-1)[:1].reshape(()) if is_scalar and found.size else found
            types[i] = TensorType(STRING, operands[i].shape)
        if is_accepted(case.op, types):
            yield [texts(a) if i in chosen and a is not None else a for i, a in enumerate(operands)]


def built(op: Op, operands: Sequence[Array | None], is_constant: Callable[[int, Array], bool]) -> Graph:
    graph = Graph("objects")
    values: list[Any] = list(operands)
    for i, a in enumerate(operands):
        if a is not None and not is_constant(i, a):
            values[i] = graph.add_input(f"x{i}", TensorType(a.dtype, a.shape))
    for i, result in enumerate(result_tuple(Builder(graph)(op, *values))):
        graph.add_output(result, f"y{i}")
    return graph


def branched(inner: Graph) -> Graph:
    """The same in both branches of an If."""
    graph = Graph("branched")
    given = [graph.add_input(v.name, v.type) for v in inner.inputs]
    cond = graph.add_input("cond", TensorType(BOOL, ()))
    for i, result in enumerate(result_tuple(Builder(graph)(If(inner, inner.clone()), cond, *given))):
        graph.add_output(result, f"y{i}")
    return graph


def counts(strings: dict[int, str]) -> dict[int, int]:
    return {key: sys.getrefcount(v) for key, v in strings.items()}


def check(graph: Graph, feeds: dict[str, Any], wanted: Sequence[Array]) -> None:
    """A session gives what is wanted, and counts references."""
    session = bn.compile(graph, threads=1)
    for _ in range(2):
        session.run(None, feeds)
    operands = [*feeds.values(), *wanted]
    strings = {id(v): v for a in operands if a.dtype == STRING for v in a.flat if len(v) > 1}  # Python shares the rest
    gc.disable()  # other sessions
    before = counts(strings)
    results = session.run(None, feeds)
    after = counts(strings)
    found = Counter(id(v) for r in results if r.dtype == STRING for v in r.flat)
    assert after == {key: count + found[key] for key, count in before.items()}
    for got, want in zip(results, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)
        assert got.dtype != STRING or set(map(type, got.flat)) <= {str}
    del results, got
    assert counts(strings) == before


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("op", ALL, ids=[op.name for op in ALL])
def test_references_are_counted(op: type[Op]) -> None:
    @EXAMPLES
    @given(case=CASES[op]())
    def run(case: Case) -> None:
        for operands in with_strings(case):
            try:
                wanted = result_tuple(case.op.reference(*operands))
            except DataError:  # a string that it does not know
                continue
            for is_constant in CONSTANTS.values():
                graph = built(case.op, operands, is_constant)
                feeds = {v.name: operands[int(v.name[1:])] for v in graph.inputs}
                check(graph, feeds, wanted)
                check(branched(graph), {**feeds, "cond": np.array(True)}, wanted)
        _held.clear()

    run()


@pytest.mark.parametrize("shape", [(), (2,)])
def test_loops_over_strings(shape: tuple[int, ...]) -> None:
    """A scanned string is an array without axes, and what a body carries and leaves behind is counted."""
    t = TensorType(STRING, shape)
    scanned, looped = Graph("scanned"), Graph("looped")
    longer = Builder(scanned)(StringConcat(), scanned.add_input("s", t), scanned.add_input("x", t))
    for name in ("s2", "y"):
        scanned.add_output(longer, name)
    looped.add_input("i", TensorType(I64, ()))
    looped.add_output(looped.add_input("c", TensorType(BOOL, ())), "c2")
    longer = Builder(looped)(StringConcat(), looped.add_input("s", t), looped.add_input("x", t))
    for name in ("s2", "y"):
        looped.add_output(longer, name)
    first, more = texts(np.zeros(shape)), texts(np.broadcast_to(np.ones(shape), (3, *shape)))
    wanted = [first]
    for row in more:
        wanted.append(np.asarray(wanted[-1] + row, STRING))
    results = [wanted[-1], np.stack(wanted[1:])]
    check(built(Scan(scanned, 1, 1), (first, more), CONSTANTS["nothing"]), {"x0": first, "x1": more}, results)
    operands = np.array(3), None, first, more[0, ...]
    loop = built(Loop(looped, 1), operands, CONSTANTS["nothing"])
    check(loop, {v.name: operands[int(v.name[1:])] for v in loop.inputs}, results)


def test_lists_of_strings() -> None:
    graph, x = Graph("lists"), texts(np.arange(6).reshape(3, 2))
    b, given = Builder(graph), graph.add_input("x", TensorType(STRING, (3, 2)))
    rows = b(SplitToSequence(0, False), given)
    rows = b(SequenceInsert(), rows, b(SequenceAt(), rows, np.array(1)), np.array(0))
    graph.add_output(b(ConcatFromSequence(0, True), rows), "y")
    check(graph, {"x": x}, [x[[1, 0, 1, 2]]])


def test_strings_go_to_buffers_of_the_caller() -> None:
    graph, x = Graph("buffers"), texts(np.arange(6).reshape(3, 2))
    given = graph.add_input("x", TensorType(STRING, (3, 2)))
    graph.add_output(Builder(graph)(Compress(0), given, np.array([False, True, True])), "y")
    session, y = bn.compile(graph, threads=1), np.full((2, 2), "", STRING)
    before = [sys.getrefcount(v) for v in x.flat]
    for _ in range(3):
        session.run_into({"x": x}, {"y": y})
    assert y.tolist() == x[1:].tolist()
    assert [sys.getrefcount(v) for v in x.flat] == [n + (i > 1) for i, n in enumerate(before)]


def test_no_kernel_gets_an_array_of_objects() -> None:
    """Whoever asks: what computes where data decide sizes, steps of a maker, a call by hand."""
    x, kept = texts(np.arange(4)), np.array([True, False, True, True])
    types = [type_of(x), type_of(kept)]
    load("cpu")
    assert {op for op, _ in DATA_SIZED} >= {op for op, _ in SIZED} > {Compress}
    for op in {op for op, _ in DATA_SIZED}:
        asked: Any = op()
        assert select_data_sized(asked, types) is None
        assert select_sized(asked, types) is None
    refused = "operand of a kernel: got an array of objects, wanted numbers"
    args: dict[str, Any] = {"outer": 1, "n": 4, "m": 4, "room": 4, "run": 8}
    found = np.zeros(1, np.int64)
    with pytest.raises(InternalError, match=refused):
        compress_rows.record(x=x, y=np.zeros(4), kept=kept, found=found, **args)
    with pytest.raises(InternalError, match=refused):
        compress_rows.record(x=np.zeros(4), y=np.empty(4, STRING), kept=kept, found=found, **args)
    step = Step(compress_rows, {"x": In(0), "y": Out(0), "kept": In(1), "found": Scratch(8), **args})
    numbers = TensorType(F64, (4,))
    for ins, outs in ((types, [numbers]), ([numbers, types[1]], [types[0]])):
        with pytest.raises(InternalError, match=refused):
            check_steps(Compress(), [step], ins, outs)
    with pytest.raises(InternalError, match=refused):
        check_steps(Compress(), [Step(compress_rows, {**step.args, "x": x})], [numbers, types[1]], [numbers])


X = np.array([["b", "a", "c"], ["a", "b", "c"], ["b", "a", "c"]], STRING)


@pytest.mark.parametrize(
    ("axis", "order", "first", "inverse", "counts"),
    [
        (0, True, [1, 0], [1, 0, 1], [1, 2]),
        (0, False, [0, 1], [0, 1, 0], [2, 1]),
        (1, True, [1, 0, 2], [1, 0, 2], [1, 1, 1]),
        (-1, False, [0, 1, 2], [0, 1, 2], [1, 1, 1]),
        (None, True, [1, 0, 2], [1, 0, 2, 0, 1, 2, 1, 0, 2], [3, 3, 3]),
    ],
)
def test_unique_strings(axis: int | None, order: bool, first: list[int], inverse: list[int], counts: list[int]) -> None:
    """As onnxruntime gives them."""
    y = X.reshape(-1)[first] if axis is None else np.take(X, first, axis)
    lists = [np.array(found) for found in (first, inverse, counts)]
    check(built(Unique(axis, order), (X,), CONSTANTS["nothing"]), {"x0": X}, [y, *lists])


def test_reductions_of_scattered_strings() -> None:
    """As onnxruntime: added ones stand behind each other, other reductions are refused when the model is loaded."""
    x, index, updates = np.array(["a", "b", "c"], STRING), np.array([0, 0, 2]), np.array(["z", "A", "b"], STRING)
    for op, places in ((ScatterElements(0, "add"), index), (ScatterND("add"), index[:, None])):
        assert op.reference(x, places, updates).tolist() == ["azA", "b", "cb"]
        for reduction in ("mul", "max", "min"):
            other = dataclasses.replace(op, reduction=reduction)
            with pytest.raises(BoltError, match=f"reduction of strings: got {reduction}, wanted none or add"):
                built(other, (x, places, updates), CONSTANTS["nothing"])
