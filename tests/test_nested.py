"""Values that are no tensors: sequences, optionals, maps and strings, through every way to run a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import bolt_numba as bn
from bolt_numba.errors import BoltError, DataError, DTypeError, InvalidModelError, ShapeError
from bolt_numba.ir import spec, store
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import as_value, interpret
from bolt_numba.ir.text import to_text
from bolt_numba.ops.data.ml import CastMap, DictVectorizer, ZipMap
from bolt_numba.ops.data.sequence import (
    ConcatFromSequence,
    Optional,
    OptionalEmpty,
    OptionalGetElement,
    OptionalHasElement,
    SequenceAt,
    SequenceConstruct,
    SequenceEmpty,
    SequenceErase,
    SequenceInsert,
    SequenceLength,
    SplitToSequence,
)
from bolt_numba.ops.pointwise import Add, Cast
from bolt_numba.types import (
    BOOL,
    F32,
    I64,
    STRING,
    Array,
    Sym,
    TensorType,
    map_of,
    optional_of,
    sequence_of,
)  # fmt: skip
from bolt_numba.verification import compare

N = TensorType(F32, (Sym("n"), 2))
FEW = settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def rows(*counts: int) -> list[Array]:
    """Matrices of these many rows, all different."""
    made, start = [], 0
    for n in counts:
        made.append(np.arange(start, start + 2 * n, dtype=np.float32).reshape(n, 2))
        start += 2 * n
    return made


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            same(a, b)
    elif wanted is None or isinstance(wanted, dict):
        assert got == wanted
    else:
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def run_all(graph: Graph, feeds: dict[str, Any]) -> list[Any]:
    """Results, the same from the interpreter, the runtime, and the graph as stored and loaded again."""
    spec.verify(graph)
    wanted = list(interpret(graph, feeds).values())
    again = store.load_bolt(store.to_bytes(graph))
    texts = [re.sub(r"_\d+\b", "", to_text(g)) for g in (graph, again)]  # made-up symbols are numbered anew
    assert texts[0] == texts[1]
    for g in (graph, again):
        session = bn.compile(g, threads=1)
        for _ in range(2):  # the second time the plans are there
            same(session.run(None, feeds), wanted)
    return wanted


def test_a_graph_of_sequences() -> None:
    graph = Graph("lists")
    sequence = graph.add_input("sequence", sequence_of(N))
    extra = graph.add_input("extra", N)
    b = Builder(graph)
    longer = b(SequenceInsert(), sequence, extra, np.array(-1))
    shorter = b(SequenceErase(), longer, np.array(0))
    graph.add_output(shorter, "shorter")
    graph.add_output(b(Add(), b(SequenceAt(), shorter, np.array(0)), 1.0), "first")
    graph.add_output(b(SequenceLength(), shorter), "length")
    graph.add_output(b(ConcatFromSequence(0), shorter), "joined")
    s, e = rows(1, 3, 2), np.full((2, 2), 9, np.float32)
    shorter_, first, length, joined = run_all(graph, {"sequence": s, "extra": e})
    same(shorter_, [s[1], e, s[2]])
    same(first, s[1] + 1)
    assert length == 3
    same(joined, np.concatenate([s[1], e, s[2]]))
    assert "seq(f32[n, 2])" in to_text(graph)


@FEW
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(-7, 7))
def test_positions(counts: list[int], place: int) -> None:
    """Insert, erase and at, at any position, as plain lists have it."""
    s, new = rows(*counts), np.zeros((1, 2), np.float32)
    at = np.array(place)
    inside = -len(s) <= place < len(s)
    for operator, operands in ((SequenceAt(), (s, at)), (SequenceErase(), (s, at))):
        if inside:
            operator.reference(*operands)
        else:
            with pytest.raises(DataError, match="position"):
                operator.reference(*operands)
    if inside:
        same(SequenceAt().reference(s, at)[0], s[place])
        same(SequenceErase().reference(s, at)[0], [v for i, v in enumerate(s) if i != place % len(s)])
    if -len(s) <= place <= len(s):
        wanted = list(s)
        wanted.insert(place if place >= 0 else place + len(s), new)
        same(SequenceInsert().reference(s, new, at)[0], wanted)


@FEW
@given(st.integers(1, 6), st.data())
def test_split_and_join(size: int, data: st.DataObject) -> None:
    """Parts joined again are what was split, and the standard's evaluator splits the same way."""
    x = np.arange(size * 6, dtype=np.float32).reshape(2, size, 3)
    each = data.draw(st.integers(1, size + 1))
    sizes = np.array([each, size - each] if each < size else [size])
    for split in (None, np.array(each), sizes):
        (parts,) = SplitToSequence(axis=1).reference(x, split)
        same(ConcatFromSequence(axis=1).reference(parts), x)
        names = ["x"] if split is None else ["x", "s"]
        node = onnx.helper.make_node("SplitToSequence", names, ["y"], axis=1)
        (wanted,) = ReferenceEvaluator(node).run(None, {"x": x, "s": split})
        same(parts, list(wanted))
    (alone,) = SplitToSequence(axis=1, keepdims=False).reference(x)
    same(ConcatFromSequence(axis=1, new_axis=True).reference(alone), x)


def test_empty_and_constructed() -> None:
    graph = Graph("made")
    x = graph.add_input("x", N)
    b = Builder(graph)
    graph.add_output(b(SequenceInsert(), b(SequenceEmpty(F32)), x), "one")
    graph.add_output(b(SequenceConstruct(), x, np.ones((1, 2), np.float32), x), "three")
    graph.add_output(b(SequenceLength(), b(SequenceEmpty(I64))), "none")
    (value,) = rows(2)
    same(run_all(graph, {"x": value}), [[value], [value, np.ones((1, 2), np.float32), value], np.array(0)])
    with pytest.raises(DTypeError):
        b(SequenceInsert(), b(SequenceEmpty(I64)), x)
    with pytest.raises(ShapeError, match="at least 1"):
        ConcatFromSequence(0).reference([])


@pytest.mark.parametrize("held", [True, False])
def test_optionals(held: bool) -> None:
    graph = Graph("maybe")
    given = graph.add_input("given", optional_of(sequence_of(N)))
    x = graph.add_input("x", N)
    b = Builder(graph)
    graph.add_output(b(OptionalHasElement(), given), "has")
    graph.add_output(b(OptionalGetElement(), b(Optional(), x)), "same")
    graph.add_output(b(OptionalEmpty(F32, 1)), "nothing")
    graph.add_output(given, "given_again")
    (value,) = rows(3)
    feeds = {"given": [value] if held else None, "x": value}
    same(run_all(graph, feeds), [np.array(held), value, None, feeds["given"]])
    with pytest.raises(ShapeError, match="content of the optional"):
        OptionalGetElement().reference(None)


def test_maps() -> None:
    graph = Graph("maps")
    scores = graph.add_input("scores", TensorType(F32, (Sym("n"), 2)))
    counts = graph.add_input("counts", map_of(STRING, TensorType(F32, ())))
    places = graph.add_input("places", map_of(I64, TensorType(F32, ())))
    b = Builder(graph)
    graph.add_output(b(ZipMap(), scores, np.array(["no", "yes"], object)), "zipped")
    graph.add_output(b(DictVectorizer(), counts, np.array(["a", "b", "c"], object)), "vector")
    graph.add_output(b(CastMap(F32, 4), places), "sparse")
    graph.add_output(b(CastMap(STRING), places), "dense")
    feeds = {"scores": rows(2)[0], "counts": {"c": 2.0, "x": 5.0}, "places": {3: 1.5, 1: 2.0}}
    zipped, vector, sparse, dense = run_all(graph, feeds)
    assert zipped == [{"no": 0.0, "yes": 1.0}, {"no": 2.0, "yes": 3.0}]
    same(vector, np.array([[0, 0, 2]], np.float32))
    same(sparse, np.array([[0, 2, 0, 1.5]], np.float32))
    assert dense.tolist() == [["2.0", "1.5"]]
    with pytest.raises(DTypeError, match="wanted map"):
        b(DictVectorizer(), scores, np.array(["a"], object))


def test_strings_to_numbers_and_back() -> None:
    graph = Graph("texts")
    text = graph.add_input("text", TensorType(STRING, (Sym("n"),)))
    b = Builder(graph)
    number = b(Cast(F32), text)
    graph.add_output(b(Add(), number, 1.0), "more")
    graph.add_output(b(Cast(STRING), number), "again")
    graph.add_output(b(Cast(I64), text), "whole")
    given = np.array(["1", "-2.5", "1e3", "inf", "NaN"], object)
    more, again, _ = run_all(graph, {"text": given[:3]})
    same(more, np.array([2, -1.5, 1001], np.float32))
    assert again.tolist() == ["1", "-2.5", "1000"]
    assert bn.compile(graph)(given[:2].astype(str))["again"].tolist() == ["1", "-2.5"]
    assert Cast(STRING).reference(Cast(F32).reference(given)).tolist() == ["1", "-2.5", "1000", "INF", "NaN"]
    assert Cast(STRING).reference(np.array([True, False])).tolist() == ["1", "0"]
    assert Cast(I64).reference(np.array(["7", "9007199254740993"], object)).tolist() == [7, 9007199254740993]


LOOP = """<ir_version: 8, opset_import: ["": 17]> g (int64 trips, float[n] x) => (seq(float[k]) ys, float[m] all) {
    start = SequenceConstruct (x)
    yes = Constant <value = bool {1}> ()
    ys = Loop (trips, yes, start) <body = b (int64 i, bool c, seq(float[q]) s) => (bool c2, seq(float[q]) t) {
        c2 = Identity (c)
        last = SequenceAt (s, i)
        twice = Concat <axis = 0> (last, last)
        t = SequenceInsert (s, twice)
    }>
    all = ConcatFromSequence <axis = 0> (ys)
}"""


def test_a_loop_that_carries_a_sequence_of_growing_tensors() -> None:
    session = bn.compile(onnx.parser.parse_model(LOOP).SerializeToString(), threads=1)
    for trips in (0, 1, 3):
        ys, joined = session(np.array(trips), np.array([1, 2], np.float32))
        assert [len(y) for y in ys] == [2 * 2**i for i in range(trips + 1)]
        same(joined, np.concatenate(list(ys)))


def test_verify_looks_into_sequences() -> None:
    model = onnx.parser.parse_model(LOOP).SerializeToString()
    feeds = {"trips": np.array(2), "x": np.array([1, 2], np.float32)}
    for against in ("onnxruntime", "reference"):
        report = bn.verify(model, against=against, feeds=feeds, threads=1)
        assert report.ok, report
        assert {c.name: c.dtype for c in report.checks if c.kind == "output"} == {"ys": "nested", "all": "f32"}
    a, b = np.zeros(2, np.float32), np.ones(2, np.float32)
    assert not compare("s", "output", [a, a], [a, b], 1e-3, 1e-4).ok
    assert compare("s", "output", [a, a], [a], 1e-3, 1e-4).note == "got 2 tensors, wanted 1"
    assert compare("m", "output", [{1: 0.5}], [{1: 0.5}], 1e-3, 1e-4).ok
    assert not compare("m", "output", [{1: 0.5}], [{2: 0.5}], 1e-3, 1e-4).ok
    assert not compare("o", "output", None, a, 1e-3, 1e-4).ok


CHOICE = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[n] x) => (seq(float[k]) y) {
    y = If (c) <
        then_branch = a () => (seq(float[k]) p) { p = SequenceConstruct (x, x) },
        else_branch = b () => (seq(float[k]) q) { e = SequenceEmpty () q = SequenceInsert (e, x) }>
}"""


def test_a_branch_that_gives_a_sequence() -> None:
    session = bn.compile(onnx.parser.parse_model(CHOICE).SerializeToString(), threads=1)
    x = np.array([1, 2, 3], np.float32)
    same(session(np.array(True), x)["y"], [x, x])
    same(session(np.array(False), x)["y"], [x])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (np.zeros((2, 2), np.float32), DTypeError),
        ([np.zeros((2, 2))], DTypeError),
        ([np.zeros(3, np.float32)], ShapeError),
    ],
)
def test_inputs_of_the_wrong_type(given: Any, error: type[BoltError]) -> None:
    graph = Graph("typed")
    graph.add_output(Builder(graph)(SequenceLength(), graph.add_input("s", sequence_of(N))), "n")
    session = bn.compile(graph)
    assert session.inputs[0].nested == sequence_of(N)
    with pytest.raises(error, match="'s"):
        session(given)
    with pytest.raises(error):
        interpret(graph, {"s": given})


def test_types_are_values() -> None:
    a, b = sequence_of(N), sequence_of(TensorType(F32, (Sym("n"), 2)))
    assert a == b
    assert hash(a) == hash(b)
    different: Sequence[TensorType] = (a, optional_of(N), map_of(I64, N), TensorType(STRING, None), sequence_of(a))
    assert len({str(t) for t in different}) == len(set(different)) == len(different)
    assert str(sequence_of(optional_of(TensorType(I64, None)))) == "seq(optional(i64[?]))"


def test_a_stored_type_of_too_many_levels_is_refused() -> None:
    deep = N
    for _ in range(12):
        deep = sequence_of(deep)
    graph = Graph("deep")
    graph.add_output(graph.add_input("x", deep))
    with pytest.raises(InvalidModelError, match="levels"):
        store.load_bolt(store.to_bytes(graph))


@pytest.mark.parametrize("odd", [None, 1.5, b"x", ["a"]])
def test_elements_of_strings_are_texts(odd: object) -> None:
    graph = Graph("texts")
    graph.add_output(Builder(graph)(Cast(I64), graph.add_input("x", TensorType(STRING, (2,)))), "y")
    given = np.array(["1", ""], object)
    given[1] = odd
    with pytest.raises(DTypeError, match=r"got .* at \[1\], .*, wanted texts"):
        bn.compile(graph)(given)


def test_a_long_sequence_is_handed_on_as_it_is() -> None:
    arrays = [np.zeros(1, F32)] * 3
    kept = as_value(arrays, sequence_of(TensorType(F32, None)))
    assert kept == arrays
    assert kept is not arrays
    flags = as_value([np.array([2], np.uint8).view(bool)], sequence_of(TensorType(BOOL, None)))
    assert flags[0].view(np.uint8) == 1
