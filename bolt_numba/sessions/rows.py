"""Rows of any shapes through one session: those of one shape run together, in few sizes, so that plans serve again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from bolt_numba.base.errors import BoltError, DTypeError, ShapeError
from bolt_numba.base.types import Array, TensorSpec
from bolt_numba.sessions.inputs import contradiction, inputs_among, names_of, shared_symbols, wanted_of
from bolt_numba.sessions.outputs import Outputs

if TYPE_CHECKING:
    from bolt_numba.sessions.session import Session

MAX_BATCH = 32
"""Rows that run together; where all numbers of a batch decide how one is rounded, each row runs by itself."""
_most: WeakKeyDictionary[Session, int] = WeakKeyDictionary()
"""Rows that sessions run together: who asks row after row does not look at a whole graph each time."""


def run_rows(session: Session, rows: Any, outputs: Sequence[str] | None) -> list[Outputs]:
    """As `Session.run_rows`."""
    names = [spec.name for spec in session.outputs] if outputs is None else names_of(outputs)
    if session._states is not None:
        raise BoltError("run_rows: got a model that keeps something from run to run, wanted one without states")
    if isinstance(rows, Mapping) or not np.iterable(rows):
        raise DTypeError(f"rows: got a {type(rows).__name__}, wanted a list of inputs by name")
    wanted = [wanted_of(_of_row(spec)) for spec in session.inputs]
    given: list[list[Array]] = [[] for _ in wanted]
    count = 0
    for row in rows:
        try:
            for column, array in zip(given, inputs_among(wanted, row, ()), strict=True):
                column.append(array)
            session._check_known(row)
        except BoltError as error:
            raise type(error)(f"row {count}: {error}") from error
        count += 1
    made: list[Any] = [None] * count
    if session not in _most:
        is_shared = any(node.op.name.startswith("DynamicQuantize") for node in session.graph.nodes)
        _most[session] = 1 if is_shared else MAX_BATCH
    for numbers, results in in_parts(session, names, given, count, _most[session]):
        for at, number in enumerate(numbers):
            made[number] = Outputs(names, [r[at, ...] if isinstance(r, np.ndarray) else r[at] for r in results])
    return made


def in_parts(
    session: Session, names: Sequence[str], given: Sequence[Any], rows: int, most: int
) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Results of outputs by the numbers of their rows; there may be more of them, of rows that only fill up.

    given: of each input an array of all rows, or a list of the rows where they differ in shape.  most: rows of a run,
    where the model does not fix them.  Raises what a run does, with the number of the row, ShapeError for one in which
    a symbol of the model has several sizes.
    """
    each = [_of_row(spec) for spec in session.inputs]
    if shared := shared_symbols(each):
        for i in range(rows if any(isinstance(column, list) for column in given) else min(rows, 1)):
            if (told := contradiction(shared, each, [column[i] for column in given])) is not None:
                raise ShapeError(f"row {i}: {told}, wanted one size")
    fixed = [spec.shape[0] for spec in session.inputs if spec.shape and isinstance(spec.shape[0], int)]
    left: Sequence[int] = range(rows)
    shapes = {tuple(column[i].shape for column in given if isinstance(column, list)) for i in left}
    if fixed in ([], [1] * len(fixed)) and len(shapes) > 1:
        done = set()
        for number, results in _packed(session, names, given, rows):
            done.add(number)
            yield [number], results
        left = [number for number in left if number not in done]
    for numbers in _parts(session.inputs, given, left, fixed[0] if fixed else most, bool(fixed)):
        yield numbers, _run(session, names, given, numbers, fixed[0] if fixed else 0)


def _packed(
    session: Session, names: Sequence[str], given: Sequence[Any], rows: int
) -> Iterator[tuple[int, list[Array]]]:
    """Results of rows that run one after another in one, by their numbers, where the model allows that."""
    order = [spec.name for spec in session.outputs]
    if session._budget is not None or session._texts is not None or {*names} - {*order}:
        return
    from bolt_numba.runtime.packing import packing_of  # other models do without

    packing = packing_of(session._runner)
    if packing is not None:
        feeds = {i: [np.ascontiguousarray(column[i][None]) for column in given] for i in range(rows)}
        fitting = {i: f for i, f in feeds.items() if contradiction(session._shared, session.inputs, f) is None}
        for number, results in packing.run(fitting):
            yield number, [results[order.index(name)] for name in names]


def _of_row(spec: TensorSpec) -> TensorSpec:
    """An input of one row, which has no first axis; a scalar is one."""
    if spec.nested is not None:
        raise DTypeError(f"input {spec.name!r}: got {spec.nested}, wanted an array of rows")
    return TensorSpec(spec.name, spec.dtype, spec.shape and spec.shape[1:])


def _parts(
    specs: Sequence[TensorSpec], given: Sequence[Any], rows: Sequence[int], most: int, is_fixed: bool
) -> Iterator[Sequence[int]]:
    """Numbers of rows that run together: those of the same shapes, in powers of two at the end."""
    groups: dict[Hashable, Any] = {(): rows}
    pairs = [(column, spec.shape == ()) for column, spec in zip(given, specs, strict=True)]
    if any(is_scalar or isinstance(column, list) for column, is_scalar in pairs):  # a run has one such scalar
        groups = {}
        for i in rows:
            key = tuple(column[i].item() if is_scalar else column[i].shape for column, is_scalar in pairs)
            groups.setdefault(key, []).append(i)
    for numbers in groups.values():
        while numbers:
            size = min(most, len(numbers) if is_fixed else 1 << (len(numbers).bit_length() - 1))
            yield numbers[:size]
            numbers = numbers[size:]


def _run(
    session: Session, names: Sequence[str], given: Sequence[Any], numbers: Sequence[int], fixed: int
) -> list[Any]:
    """Results of rows of the same shapes.  fixed: so many rows the model wants, else 0; the last row fills up."""
    taken = [*numbers, *[numbers[-1]] * (fixed - len(numbers))] if fixed > len(numbers) else numbers
    feeds = {spec.name: _taken(c, taken) for spec, c in zip(session.inputs, given, strict=True)}
    feeds |= {spec.name: feeds[spec.name][0] for spec in session.inputs if spec.shape == ()}
    try:
        results: list[Any] = session.run(names, feeds)
        for name, found in zip(names, results, strict=True):
            if not np.iterable(found) or sum(1 for _ in found) != len(taken):
                raise ShapeError(f"output {name!r}: got other than {len(taken)} rows, as many as were given")
    except BoltError as error:
        if len(numbers) == 1:
            raise type(error)(f"row {numbers[0]}: {error}") from error
        alone = [_run(session, names, given, [number], fixed) for number in numbers]  # the one at fault is named
        return [[result[0] for result in results] for results in zip(*alone, strict=True)]
    return results


def _taken(column: Any, numbers: Sequence[int]) -> Array:
    """Rows of a column; those that follow one another are not copied."""
    if isinstance(column, list):
        return np.stack([column[number] for number in numbers])
    return column[numbers.start : numbers.stop] if isinstance(numbers, range) else column[numbers]  # type: ignore[no-any-return]
