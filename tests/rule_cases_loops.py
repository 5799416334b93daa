"""Cases of the rules for loops; `rule_cases` says how."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.types import F32
from tests.loop_graphs import i64, line, looped, o, row_at, written
from tests.rule_cases import fires, whole


@fires("hand_on_as_capture", "Loop", x=(2,), y=(2,))
def held(b: Builder, x: Value, y: Value) -> Any:
    return tuple(looped(b, lambda i, t, g, v, s: (None, [v, i(o("Add"), s, v)], []), i64(3), [x, y]))


def _counted(b: Builder, trips: Any, x: Value, again: Any) -> Any:
    def body(inner: Builder, trip: Value, going_on: Value, n: Value, total: Value) -> Any:
        after = inner(o("Add"), n, np.array(1, np.int64))
        return again(inner, after), [after, inner(o("Add"), total, inner(o("Cast", F32), n))], []

    return tuple(looped(b, body, trips, [np.array(2, np.int64), x]))


fires("trips_of_conditions", "Loop", x=(2,))(
    lambda b, x: _counted(b, None, x, lambda i, n: i(o("Less"), n, np.array(5, np.int64)))
)
fires("counters_by_trip", "Loop", x=(2,))(lambda b, x: _counted(b, i64(3), x, lambda i, n: None))


@fires("fixed_sizes", "Loop", x=(2,))
def open_sizes(b: Builder, x: Value) -> Any:
    return looped(b, lambda i, t, g, v: (None, [i(o("Neg"), v)], []), i64(3), [x], open_axes=[0])[0]


@fires("carried_twice", "Loop Reshape", x=(2,), y=(1, 2))
def twice(b: Builder, x: Value, y: Value) -> Any:
    def body(inner: Builder, trip: Value, going_on: Value, v: Value, shown: Value) -> Any:
        after = inner(o("Neg"), v)
        return None, [after, inner(o("Reshape"), after, i64(1, 2))], []

    return tuple(looped(b, body, i64(3), [x, y]))


def _rows(b: Builder, x: Value, y: Value, axis: int, first: int = 0, shows: bool = False) -> Any:
    def body(inner: Builder, trip: Value, going_on: Value, to: Value, rows: Value) -> Any:
        shape = [d if isinstance(d, int) else 1 for d in rows.type.shape or ()]
        shape[axis] = 1
        row = inner(o("Reshape"), row_at(inner, rows, line(inner, trip, 1, 0), axis), i64(*shape))
        shown = [inner(o("Neg"), to)] if shows else []
        return None, [written(inner, to, line(inner, trip, 1, first), row, axis)], shown

    return tuple(looped(b, body, i64(3), [y], [x]))


@fires("list_as_result", "Loop SequenceLength", x=(2,))
def grown(b: Builder, x: Value) -> Any:
    seq = b(o("SequenceEmpty"))
    body = lambda i, t, g, s, v: (None, [i(o("SequenceInsert"), s, v)], [])  # noqa: E731
    return b(o("SequenceLength"), looped(b, body, i64(3), [seq], [x])[0])


fires("row_by_gather", "Loop", x=(3, 2), y=(3, 2))(lambda b, x, y: _rows(b, x, y, 0))
fires("row_as_scatter", "Loop", x=(3, 2), y=(4, 2))(lambda b, x, y: _rows(b, x, y, 0, 1, True))
fires("row_as_scatter", "Loop", x=(2, 3), y=(2, 3))(lambda b, x, y: _rows(b, x, y, 1, 0, True))
fires("rows_as_results", "Loop", x=(3, 2), y=(3, 2))(lambda b, x, y: _rows(b, x, y, 0))
fires("rows_as_results", "Loop Transpose Slice Slice Concat", x=(2, 3), y=(2, 5))(lambda b, x, y: _rows(b, x, y, 1, 1))


@fires("loop_of_layer", "Reshape Reshape RNN Squeeze", 2e-6, x=(3, 2, 4))
def plain_layer(b: Builder, x: Value) -> Any:
    def body(inner: Builder, trip: Value, going_on: Value, h: Value, rows: Value) -> Any:
        ours = inner(o("MatMul"), inner(o("Gather"), rows, trip), whole(4, 5))
        return None, [inner(o("Tanh"), inner(o("Add"), ours, inner(o("MatMul"), h, whole(5, 5))))], []

    return looped(b, body, i64(3), [whole(2, 5)], [x])[0]
