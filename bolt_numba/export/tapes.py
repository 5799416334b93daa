"""Plans that serve many shapes: a tape of `runtime.tape` as rows of tables, which the library in C evaluates.

What a tape asks of Python, such as tables, is asked here once for each set of shapes.  What came of it goes into lists,
in which C finds it by the sizes of a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.devices.followed import WRITTEN
from bolt_numba.devices.tape_code import COMPARED
from bolt_numba.export.layout import CONTENT, ProgramTable, TapeOperation, WriteKind
from bolt_numba.runtime.slots import CONST, INPUT

if TYPE_CHECKING:
    from bolt_numba.export.tables import Tables
    from bolt_numba.runtime.slots import Job
    from bolt_numba.runtime.tape import Tape

_KINDS = {kind: WriteKind.WORD if name == "address" else WriteKind[name.upper()] for kind, name in WRITTEN.items()}
"""An address is a number to which a patch adds where the arena is."""


LEAST_SETS, SERVES = 4, 3
"""Sets of shapes from which on a tape is tried, and for how many it has to serve: it takes as much as two plans."""
FAILED = 16
"""Tapes that are tried in vain, one after another."""
MOST_KEYS = 1 << 60
"""Keys of sizes beyond which those that were tried are counted."""
Sizes = tuple[tuple[int, ...], ...]
"""The shapes of all inputs."""


def shared(
    sets: Sequence[Sizes], make: Callable[[Sizes], Tape | None]
) -> tuple[list[tuple[Served, list[Sizes]]], list[Sizes]]:
    """Tapes for sets of shapes, each made for the first that those before do not serve, and the sets that are left."""
    made, alone, left, failed = list[tuple[Served, list[Sizes]]](), list[Sizes](), list(sets), 0
    while left:
        tape = make(left[0]) if len(left) >= LEAST_SETS and failed < FAILED else None
        served = None if tape is None else Served(tape)
        taken = [] if served is None else [one for one in left if served.takes(one)]
        if served is None or len(taken) < SERVES:
            alone.append(left.pop(0))
            failed += 1
            continue
        made.append((served, taken))
        chosen, failed = set(taken), 0
        left = [one for one in left if one not in chosen]
    return made, alone


@record(eq=False)
class Slices:
    """Where the slices of an iteration go, as a tape of the number that a place holds.

    rows: index of an int64 of the image, what it is in the first iteration, and how much more in each one that follows.
    """

    iteration: int
    rows: list[tuple[int, int, int]]
    arena_words: Sequence[int] = ()

    def write(self, tables: Tables) -> None:
        tables.add(ProgramTable.NUMBERS, value=self.iteration, axis=CONTENT)
        rows = _OperationRows(tables, 1)
        for word, first, step in self.rows:
            moved = rows.add(TapeOperation.MULTIPLY, 1, rows.constant(step))
            register = rows.add(TapeOperation.ADD, moved, rows.constant(first))
            tables.add(ProgramTable.WRITES, kind=WriteKind.WORD, at=8 * word, register=register)


class Served:
    """A tape, and the sets of shapes that it serves.

    sizes: dimensions of all inputs of each set.  given, objects: what Python gave for them.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape, self.code = tape, tape.program.tape
        self.sizes: list[list[int]] = []
        self.given: list[Array] = []
        self.objects: list[dict[str, Any]] = []
        self.results: list[Array] = []
        self.arena_nbytes = 0

    def takes(self, shapes: Sizes) -> bool:
        """Add a set of shapes, if the tape holds for it."""
        sizes = [d for dims in shapes for d in dims]
        found = self.code.at(sizes)
        if found is None:
            return False
        (registers, objects, _), program, code = found, self.tape.program, self.code
        self.sizes.append(sizes)
        for number, table in enumerate([] if program.fillers is None else program.fillers.arrays(registers)):
            objects = {**objects, f"filled{number}": table}
        self.given.append(registers[code.given.start : code.given.stop])
        self.objects.append(objects)
        self.results.append(registers[program.dims])
        self.arena_nbytes = max(self.arena_nbytes, int(registers[program.sums[0]]))
        return True

    @property
    def arena_words(self) -> list[int]:
        """Which int64 of the image are addresses within the arena."""
        return [at // 8 for at, kind, _ in self.tape.program.rows.tolist() if WRITTEN[kind] == "address"]

    def result_dims(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The least and the greatest dimensions of a result."""
        slot = self.tape.plan.results[number]
        if slot.kind == CONST:
            return slot.type.dims, slot.type.dims
        if slot.kind == INPUT:
            first = sum(self.tape.ranks[: slot.index])
            columns = np.array(self.sizes)[:, first : first + self.tape.ranks[slot.index]]
        else:
            first, end, _ = self.tape.results[number]  # type: ignore[misc]
            columns = np.array(self.results)[:, first:end]
        return tuple(columns.min(0).tolist()), tuple(columns.max(0).tolist())


class _OperationRows:
    """Operations of a tape on their way into tables."""

    def __init__(self, tables: Tables, numbers: int) -> None:
        self.tables, self.first = tables, tables.count(ProgramTable.OPERATIONS)
        self.behind = 1 + numbers
        self.constants: dict[int, int] = {}

    def add(self, what: TapeOperation, a: int, b: int = 0) -> int:
        """The register of a result."""
        return self.behind + self.tables.add(ProgramTable.OPERATIONS, what=what, a=a, b=b) - self.first

    def constant(self, number: int) -> int:
        if number not in self.constants:
            self.constants[number] = self.add(TapeOperation.CONST, number)
        return self.constants[number]

    def must(self, what: TapeOperation, a: int, b: int) -> None:
        """A guard."""
        self.add(TapeOperation.IS, self.add(what, a, b))

    def found(self, key: int, keys: Array, values: Array) -> int:
        """What belongs to a key, which is one of these, in order."""
        rows, first = list(runs(keys, values)), self.tables.count(ProgramTable.FINDS)
        for i, (low, high, value, slope) in enumerate(rows):
            self.tables.add(ProgramTable.FINDS, first=low, last=high, value=value, slope=slope, rows=len(rows) - i)
        return self.add(TapeOperation.FIND, key, first)


def runs(keys: Array, values: Array) -> Iterator[tuple[int, int, int, int]]:
    """What values are by their keys, which ascend: (first, last, value, slope)."""
    step, slopes = np.diff(keys) == 1, np.diff(values)
    changes = np.flatnonzero((slopes[1:] != slopes[:-1]) | (step[1:] != step[:-1])) + 1
    ends = np.repeat(np.append(changes, len(slopes)), np.diff(np.concatenate([[0], changes, [len(slopes)]])))
    start = 0
    while start < len(keys):
        end = int(ends[start]) if start < len(slopes) and step[start] else start
        yield int(keys[start]), int(keys[end]), int(values[start]), int(slopes[start]) if end > start else 0
        start = end + 1


class TapeWriter:
    """Writes a tape into tables.  inputs: the numbers of what the stage reads."""

    def __init__(self, tables: Tables, served: Served, inputs: Sequence[int]) -> None:
        self.tables, self.served = tables, served
        self.program, self.code = served.tape.program, served.code
        numbers = 0
        for value, rank in zip(inputs, served.tape.ranks, strict=True):
            for axis in range(rank):
                tables.add(ProgramTable.NUMBERS, value=value, axis=axis)
                numbers += 1
        self.rows = _OperationRows(tables, numbers)
        self.registers = {i: i for i in range(1 + numbers)}
        self.objects: dict[str, int] = {}

    def write(self) -> None:
        """All operations, then what writes into the image."""
        for number, register in self.code.constants.items():
            self.registers[register] = self.rows.constant(number)
        if self.code.has_pieces or self.program.filled:
            self._found()
        for i, (what, a, b) in enumerate(self.code.rows.tolist()):
            a, b = self.registers[a], self.registers[b]
            if what in COMPARED:
                self.rows.must(TapeOperation(COMPARED[what]), a, b)
            else:
                self.registers[self.code.base + i] = self.rows.add(TapeOperation(what), a, b)
        for at, kind, register in self.program.rows.tolist():
            self.put(_KINDS[kind], at, self.registers[register])
        for at, _, register in self.program.flag_rows.tolist():
            self.put(WriteKind.FLAG, at // 8, self.registers[register])
        for word, name in self._tables():
            self.put(WriteKind.ARRAY, 8 * word, self.objects[name])

    def _tables(self) -> list[tuple[int, str]]:
        """Where in the image addresses of tables go, and names of these."""
        filled = [(word, f"filled{which}") for word, which in self.program.filled]
        return [(word, name) for word, name, _ in self.program.tables] + filled

    def put(self, kind: WriteKind, at: int, register: int) -> None:
        self.tables.add(ProgramTable.WRITES, kind=kind, at=at, register=register)

    def sizes_at(self, word: int, numbers: Sequence[int]) -> None:
        """Write registers of this tape into the image from a word on."""
        for i, register in enumerate(numbers):
            self.put(WriteKind.WORD, 8 * (word + i), register)

    def moved(self) -> None:
        """What is added to the addresses of inputs and outputs."""
        registers = self.program.moved.tolist()
        for _, places in itertools.chain(*self.program.places):
            for word, number in places:
                self.put(WriteKind.WORD, 8 * word, self.registers[registers[number]])

    def refused(self, job: Job, operand: int) -> list[int]:
        """Registers of the dimensions of an operand of which a kernel checks what it holds."""
        dims = self.program.refused[id(job), operand]
        return [self.registers[self.code.register(d)] for d in dims]

    def dims_of(self, output: int) -> list[int]:
        """Registers of the dimensions of a result."""
        tape = self.served.tape
        slot = tape.plan.results[output]
        if slot.kind == CONST:
            return [self.rows.constant(d) for d in slot.type.dims]
        if slot.kind == INPUT:
            first = 1 + sum(tape.ranks[: slot.index])
            return list(range(first, first + tape.ranks[slot.index]))
        first, end, _ = tape.results[output]  # type: ignore[misc]
        return [self.registers[r] for r in self.program.dims[first:end].tolist()]

    def _found(self) -> None:
        """Lists of what Python gave, by a key of the sizes; other sizes than those tried are in none."""
        key, keys = self._key(np.array(self.served.sizes, np.int64))
        order = np.argsort(keys)
        keys = keys[order]
        self.rows.found(key, keys, np.zeros(len(keys), np.int64))
        for i, register in enumerate(self.code.given):
            column = np.array([row[i] for row in self.served.given], np.int64)[order]
            self.registers[register] = self._column(key, keys, column)
        objects = [self.served.objects[i] for i in order.tolist()]
        for _, name in self._tables():
            if name not in self.objects:
                arrays = [self.tables.table(one[name]) for one in reversed(objects)]
                self.objects[name] = self._column(key, keys, np.array(arrays[::-1], np.int64))

    def _column(self, key: int, keys: Array, values: Array) -> int:
        if (values == values[0]).all() and abs(int(values[0])) < 1 << 62:
            return self.rows.constant(int(values[0]))
        return self.rows.found(key, keys, values)

    def _key(self, sizes: Array) -> tuple[int, Array]:
        """The register of a number that tells the sizes apart, and what it is for these."""
        rows, free, strides = self.rows, list[int](), 1
        key, keys = rows.constant(0), np.zeros(len(sizes), np.int64)
        for number in range(sizes.shape[1]):
            column, register = sizes[:, number], 1 + number
            same = [other for other in free if (sizes[:, other] == column).all()]
            low, high = int(column.min()), int(column.max())
            if low == high or same:
                rows.must(TapeOperation.EQUAL, register, 1 + same[0] if same else rows.constant(low))
                continue
            free.append(number)
            if strides * (high - low + 1) > MOST_KEYS:
                told, keys = np.unique(keys, return_inverse=True)
                strides = len(told)
                key = rows.found(key, told, np.arange(strides))
            rows.must(TapeOperation.GREATER_EQUAL, register, rows.constant(low))
            rows.must(TapeOperation.LESS_EQUAL, register, rows.constant(high))
            step = rows.add(TapeOperation.SUBTRACT, register, rows.constant(low))
            key = rows.add(TapeOperation.ADD, key, rows.add(TapeOperation.MULTIPLY, step, rows.constant(strides)))
            keys += (column - low) * strides
            strides *= high - low + 1
        return key, keys
