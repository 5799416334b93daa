"""Programs of the CPU for any sizes: what varies in their records is computed by a tape (`devices.tape_code`)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

import numpy as np

from bolt_numba.base.files.mapped import for_kernels
from bolt_numba.base.follow import TABLES, Followed, LostError, Trail, followed, value_of
from bolt_numba.base.selects import FilledTable, either, is_filled, is_table
from bolt_numba.base.types import AnyDType, Array
from bolt_numba.devices.fillers import Fillers, Refill, TableBlock
from bolt_numba.devices.program import NativeRun, RecordImage, laid_out, linked, pointer
from bolt_numba.devices.stages import SPARE, StagedRun, Staging
from bolt_numba.devices.tape_code import Found, TapeCode, told_later
from bolt_numba.devices.threads import run_native
from bolt_numba.kernels.cpu.tape import ADDRESS, DOUBLE, FLOAT, HALF, ROUNDED, WORD, evaluate, fill, nothing
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.slots import Job
from bolt_numba.runtime.stops import Stop

WRITTEN = {WORD: "word", HALF: "half", FLOAT: "float", DOUBLE: "double", ROUNDED: "rounded", ADDRESS: "address"}
"""What numbers of kinds mean, in rows that say how registers are written."""
_KINDS = {"i8": WORD, "i4": HALF, "f4": FLOAT, "f8": DOUBLE}
ROOMY = 8
"""A block of tables this many times larger than what is in it is not kept."""
OWN_BASES = 2
"""Bases in front of those of a run's arrays: of the arena, and of the tables that kernels fill."""
_REALS = {"f4": ROUNDED, "f8": WORD}


class _FollowedImage(RecordImage):
    """Takes note of what varies in records.

    numbers: byte offset, kind of `kernels.cpu.tape` and number.  tables: i64 of the image and what it is the address
    of, with an offset.  filled: those that kernels fill, likewise.  own_tables: those whose numbers the tape gives,
    which stand in the image themselves.  flags: of steps, by their number; whens: whether steps run.
    """

    def __init__(self, turn: Callable[[], None]) -> None:
        super().__init__()
        self.turn = turn
        self.numbers: list[tuple[int, int, Followed]] = []
        self.tables: list[tuple[int, Followed, int]] = []
        self.filled: dict[int, tuple[FilledTable, list[tuple[int, Any]]]] = {}
        self.own_tables: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
        self.flags: list[tuple[int, Followed]] = []
        self.whens: list[tuple[int, Followed]] = []
        self.steps = 0

    def add(self, job: Job, step: Any) -> int:
        self.turn()
        self.params, self.record_at = step.kernel.params, self.nbytes
        return super().add(job, step)

    def add_faults(self) -> tuple[int, list[tuple[int, int]]]:
        start, own = super().add_faults()
        end = sum(map(len, self.records))
        for array, places in self.own_tables.values():
            own += [(place, end + offset) for place, offset in places]
            for cell in array.cells.flat:
                if type(cell) is Followed:
                    self.numbers.append((end, WORD, cell))
                self.records.append(int(value_of(cell)).to_bytes(8, "little", signed=True))
                end += 8
        return start, own

    def places(self) -> Array:
        """None that stays: where addresses in the arena go is in ``arena``."""
        return np.empty((0, 2), np.int64)

    def flag(self, step: Any) -> bool:
        parallel: Any = step.parallel
        if type(step.when) is Followed:
            self.whens.append((self.steps, step.when))
            parallel = parallel is not False and step.when & parallel
        if type(parallel) is Followed:
            self.flags.append((self.steps, parallel))
        self.steps += 1
        return type(parallel) is Followed or bool(parallel)

    def _value(self, job: Job, arg: Any, where: int) -> Any:
        if type(arg) in TABLES or (type(arg) is Followed and isinstance(value_of(arg), np.ndarray)):
            self._array(arg, 0, where)
            return 0
        made: Any = arg if type(arg) is Followed else super()._value(job, arg, where)
        if type(made) is not Followed:
            return made
        dtype = next(kind for kind, offset in self.params.fields.values() if offset == where - self.record_at)
        if type(made._value) in (int, bool):
            kind = _KINDS[dtype.str[1:]]
            if kind == HALF:  # a guard: no number is cut
                shifted: Any = made
                bool(shifted + 2**31 >> 32 == 0)
            self.numbers.append((where, kind, made))
        else:
            number = made if type(made._value) is float else followed(float, made)
            self.numbers.append((where, _REALS[dtype.str[1:]], number))
        return value_of(made)

    def _array(self, array: Any, offset: Any, where: int) -> None:
        if is_filled(array):
            self.filled.setdefault(id(array), (array, []))[1].append((where // 8, offset))
            return
        if is_table(array):
            self.own_tables.setdefault(id(array), (array, []))[1].append((where // 8, offset))
            return
        if type(offset) is Followed:
            if offset != 0:  # a guard, which rows of a table up to a length pass
                raise LostError("a place within a constant")
            offset = 0
        if type(array) is Followed:
            self.tables.append((where // 8, array, offset))
            return
        super()._array(array, offset, where)

    def early(self, trail: Trail) -> list[tuple[FilledTable, list[tuple[int, Any]]]]:
        """The tables that kernels fill before the first stage; Python makes those of later ones."""
        later, made = told_later(trail), dict[Any, tuple[FilledTable, list[tuple[int, Any]]]]()
        for table, places in self.filled.values():
            texts = [*map(trail.text, table.args.values())]
            if later.isdisjoint(texts):
                made.setdefault((table.filler, *texts), (table, []))[1].extend(places)
                continue
            for word, offset in places:
                self._array(table.made(), offset, 8 * word)
        return [*made.values()]


class FollowedProgram:
    """A program, and the tape of what varies in it.

    numbers: names of the trail's own.  dims: dimensions of the results.  sums: more that is asked for, first the bytes
    of the arena.  stops: where it reads numbers.  sized: of each result that is made, the stage that tells its sizes,
    and their registers.  Raises LostError for what no tape can say.
    """

    def __init__(
        self, jobs: Sequence[Job], threads: int, trail: Trail, numbers: Sequence[str], dims: Sequence[Any],
        sums: Sequence[Any], stops: Sequence[Stop] = (),
    ) -> None:  # fmt: skip
        image, self.stops, self.jobs = _FollowedImage(trail.turn), stops, jobs
        self.program = program = laid_out(jobs, threads, image)
        self.refused = {(id(job), at): job.ins[at].type.dims for job, at in program.faults}  # type: ignore[union-attr]
        rows = [*program.inputs.values(), *program.outputs.values()]
        moved: list[Any] = [offset for places in rows for _, offset in places]
        numbers_of = count()
        self.places = [
            [(which, [(word, next(numbers_of)) for word, _ in places]) for which, places in rows.items()]
            for rows in (program.inputs, program.outputs)
        ]
        addresses = [(8 * word, ADDRESS, offset) for word, offset in image.arena]
        written = [*image.numbers, *addresses]
        filled = TableBlock(image.early(trail))
        in_tables, sums = filled.rows(ADDRESS + 1), [*sums[:-1], sums[-1] + filled.end]
        flags = [(8 * step, WORD, flag) for step, flag in image.flags]
        for step, when in image.whens:
            kernel = either(when, program.links.kernels[program.links.steps[step]].address, nothing.address)
            flags.append((8 * (program.steps + step), WORD, kernel))
        objects = [table for _, table, _ in image.tables]
        more = [d for dims in self.refused.values() for d in dims] + [d for stop in stops for d in stop.wanted()]
        wanted = [number for *_, number in (*written, *in_tables, *flags)]
        self.tape = tape = TapeCode(trail, numbers, [*wanted, *objects, *dims, *sums, *more, *moved, *filled.wanted])
        self.moved = np.array([tape.register(offset) for offset in moved], np.int64)
        self.rows, self.table_rows, self.flag_rows = (
            np.array([(at, kind, tape.register(n)) for at, kind, n in rows], np.int64).reshape(-1, 3)
            for rows in (written, in_tables, flags)
        )
        self.filled = [(word, which) for which, places in enumerate(filled.places) for word, _ in places]
        self.fillers = Fillers(filled, tape) if filled.tables else None
        self.sums, self.dims = (np.array([tape.register(n) for n in row], np.int64) for row in (sums, dims))
        self.asked = [*self.sums.tolist(), *self.dims.tolist()]
        self.told = itemgetter(*self.asked)
        self.used = [*program.inputs], [*program.outputs]
        self.reach = [1 + max(used, default=-1) for used in self.used]
        self.all_rows = np.concatenate([self.rows, self.table_rows, self._step_rows(), self._run_rows()])
        self.stages = Staging(self) if stops else None
        self.tables = [(word, table._text, offset) for word, table, offset in image.tables]

    def _step_rows(self) -> Array:
        """Rows of flags and kernels, which stand behind the records, each behind that of the step that fills all in."""
        steps, at = self.program.steps, self.flag_rows[:, 0] // 8
        places = self.program.image.nbytes + 8 * (1 + at + (at >= steps))
        return np.concatenate([places[:, None], self.flag_rows[:, 1:]], 1)

    def _run_rows(self) -> Array:
        """Rows of the addresses of a run's arrays."""
        rows = [
            (8 * word, ADDRESS + OWN_BASES + k * self.reach[0] + which, self.moved[at])
            for k, used in enumerate(self.places) for which, places in used for word, at in places
        ]  # fmt: skip
        return np.array(rows, np.int64).reshape(-1, 3)

    def take_results(self, results: Sequence[tuple[int, int, AnyDType] | None]) -> set[int]:
        """Which results have sizes of later stages.  results: first and end in ``dims``, and dtype, of those made."""
        self.sized: list[tuple[int, list[int]] | None] = [None] * len(results)
        for number, row in enumerate(results):
            registers = [] if row is None else self.dims[row[0] : row[1]].tolist()
            stage = max(map(self.tape.stage_of, registers), default=0)
            self.sized[number] = None if row is None else (stage, registers)
            if row is not None and stage and self.stages is not None:
                self.stages.late[stage].append((number, *row))
                self.stages.rooms[number] = SPARE
        return set() if self.stages is None else set(self.stages.rooms)

    def linked(self) -> FollowedProgram:
        """Itself, with the addresses of this process."""
        program = self.program
        program.image, program.kernels = linked(program.image.tobytes(), program.links)
        return self

    def tables_of(self, registers: Array) -> Array:
        """The tables that kernels fill for what a tape gives."""
        return np.empty(0, np.uint8) if self.fillers is None else self.fillers.made(registers)

    def bind(self) -> FollowedRun:
        return FollowedRun(self)


class FollowedRun(NativeRun):
    """A followed program's own parameter image, filled for each run by its first step.

    registers: of the sizes that it was turned to last; objects: what Python gave for them; tables: what kernels filled.
    own: registers that serve sizes that nobody keeps, found as of `TapeCode.last`; with stages they serve all runs;
    block: tables of them, as of ``key``; sizes: what they are of, and told: what is asked for.  record: of the first
    step.  bases: of `fill`: the arena, tables, inputs and outputs.
    """

    __slots__ = (
        "bases", "block", "cells", "evaluating", "followed", "found", "held", "key", "objects", "own", "pack_bases",
        "pack_sizes", "record", "refill", "registers", "runs", "sizes", "stages", "tables", "told",
    )  # fmt: skip

    def __init__(self, followed: FollowedProgram) -> None:
        program, count = followed.program, 1 + followed.program.steps
        size = program.image.nbytes
        whole = HOST.allocate(size + 16 * count)
        super().__init__(program, None, whole[:size])
        self.followed, self.runs = followed, [self.run]
        self.objects: dict[str, Any] | None = None
        self.held: list[Array] = []
        self.tables: Array | None = None
        self.block, self.key = np.empty(0, np.uint8), b""
        self.refill: Refill | None = None
        code = followed.tape
        self.found: Found | None = code.last
        self.own = self.registers = code.own(code.last[0])
        self.cells: Any = memoryview(self.own)  # type: ignore[arg-type]
        self.evaluating = pointer(self.own) + 8 * code.calls
        self.sizes: list[int] | None = None
        self.told: tuple[int, ...] = ()
        self.bases = np.zeros(OWN_BASES + sum(followed.reach), np.int64)
        self.pack_bases = struct.Struct(f"{len(self.bases)}q").pack_into
        self.pack_sizes = struct.Struct(f"{1 + code.numbers}q").pack_into
        self.record = self.filling(followed.all_rows if followed.stages is None else followed.stages.rows[0])
        flags, kernels = whole[size:].view(np.int64).reshape(2, count)
        flags[0], kernels[0] = 0, fill.address
        kernels[1:], params, flags[1:] = self.steps
        self.take_steps(kernels, np.array([pointer(self.record), *params]), flags)
        self.stages = None if followed.stages is None else StagedRun(self, followed.stages)
        self.turn_to((self.own, *self.found[1:]), None)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps from run to run."""
        return int(self.image.nbytes + self.own.nbytes + self.block.nbytes)

    def filling(self, rows: Array) -> Array:
        """A record of `fill`."""
        return np.array([pointer(rows), len(rows), pointer(self.own), pointer(self.image), pointer(self.bases)])

    def take(self, arenas: list[Array], nbytes: int) -> None:
        """Take one of these arenas for a run, or a new one."""
        try:
            self.arena = arenas.pop()
        except IndexError:
            self.arena = None
        if self.stages is not None:
            nbytes = max(nbytes, self.stages.stages.arena_nbytes)
        if self.arena is None or nbytes > len(self.arena):
            self.arena = HOST.allocate(nbytes)

    def at(self, sizes: list[int]) -> tuple[int, ...] | None:
        """What is asked for at these sizes, to which it is turned; None where something does not hold.

        Python is asked where it would not give the same again.  Nothing is done for the sizes of the last run.
        """
        followed, own = self.followed, self.own
        code, found = followed.tape, followed.tape.last
        if found is not self.found or self.registers is not own:
            own[: code.calls] = found[0][: code.calls]
            self.found = found
            self.turn_to((own, found[1], found[2]), None)
            self.sizes = None
        if sizes != self.sizes:
            self.sizes = self.tables = None
            self.pack_sizes(own, 0, 1, *sizes)  # type: ignore[arg-type]
            evaluate.call_at(self.evaluating)
            if not self.cells[0] or (found[2][0] and own[code.reads].tobytes() != found[2][0]):
                asked = self.found = code.by_parts(0, own, *found[1:]) if len(code.reads) else None
                if asked is None:
                    return None
                self.turn_to(asked, None)
            self.told, self.sizes = followed.told(self.cells), sizes
        return self.told

    def _filled(self) -> Array:
        """The tables of its own registers, in memory that is there if it is enough."""
        fillers, own = self.followed.fillers, self.own
        if fillers is not None:
            key, nbytes = own[fillers.reads].tobytes(), int(own[fillers.end])
            if key != self.key:
                if nbytes > self.block.nbytes or ROOMY * nbytes < self.block.nbytes:
                    self.block = HOST.allocate(nbytes + nbytes // 4)
                if self.refill is None:
                    self.refill = Refill(fillers, own)
                self.refill.write(self.block)
                self.key = key
        return self.block

    def turn_to(self, found: Found, tables: Array | None) -> None:
        """Have the next runs for what a tape gives for other sizes.  tables: None: the run fills them."""
        followed, self.tables = self.followed, tables
        registers, objects, reads = found
        if self.stages is not None:
            self.stages.hold(reads)
            if registers is not self.own:  # they change in each run
                calls = followed.tape.calls
                self.own[:calls] = registers[:calls]
                self.found, registers, self.sizes = found, self.own, None
        if registers is not self.registers:
            self.registers = registers
            self.record[2] = pointer(registers)
        if objects is not self.objects:
            self.objects = objects
            self.held = []
            for word, name, offset in followed.tables:
                if name in objects:  # else a later stage has it
                    self.held.append(for_kernels(objects[name]))
                    self.words[word] = pointer(self.held[-1]) + offset

    def have(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Have the next run read and write these arrays."""
        if self.tables is None:
            self.tables = self._filled()
        given, made = self.followed.reach
        own = id(self.arena), id(self.tables)
        self.pack_bases(self.bases, 0, *own, *map(id, inputs[:given]), *map(id, outputs[:made]))  # type: ignore[arg-type]

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if self.stages is not None:
            self.stages.run(inputs, outputs)  # type: ignore[arg-type]
            return
        self.have(inputs, outputs)
        try:
            run_native(self.address, self.threads)
        finally:
            if self.counter and self.words[self.counter]:
                raise self.fault()

    def dims(self, job: Job, operand: int) -> tuple[int, ...] | None:
        tape, dims = self.followed.tape, self.followed.refused[id(job), operand]
        return tuple([int(self.registers[tape.register(d)]) for d in dims])
