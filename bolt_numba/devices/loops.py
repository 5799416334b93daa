"""Loops whose body is one program of the CPU: their iterations run in one native call (`kernels.cpu.loop`).

What an iteration leaves and the next one reads changes places.  Where shapes, or content that decides shapes, vary, the
body's tape is evaluated natively before each iteration; one that fails a guard is left to Python.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from bolt_numba.base.budget import is_granted
from bolt_numba.base.follow import LostError
from bolt_numba.base.types import I32, Array
from bolt_numba.devices.followed import OWN_BASES, FollowedProgram, FollowedRun
from bolt_numba.devices.program import NativeRun, pointer
from bolt_numba.devices.stages import turning
from bolt_numba.devices.threads import native_call
from bolt_numba.kernels.cpu.executor import DATA
from bolt_numba.kernels.cpu.loop import ARRAY, run_loop
from bolt_numba.kernels.cpu.stages import ENDED, FAULT, FULL, run_stages, turn
from bolt_numba.ops.control import Trips
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.prepared import Prepared
from bolt_numba.runtime.slots import INPUT, TEMP
from bolt_numba.runtime.tape import Tape, Taped

LOOK_S = 0.02
"""Seconds after which Python looks at interrupts and limits again."""
MOST_TRIPS, MOST_BYTES = 1 << 16, 1 << 24
"""Iterations of one call, and bytes of all their results that are kept."""
Row = tuple[int, ...]
SPARE = 4096
"""Bytes that a value which grows has to spare, beside as much as it needs."""
_AT = {name: i for i, name in enumerate(run_loop.fields)}
_CALL = slice(_AT["kernel"], _AT["third"] + 1)
_ARENA = list(turn.fields).index("arena_nbytes")


def run_ahead(
    run: NativeRun, prepared: Prepared, trips: Trips, arrays: Sequence[Array], deciding: Iterable[int]
) -> int:
    """Run iterations from the one whose body is given ``arrays``; how many ran, 0 where Python has to.

    deciding: inputs of the body for whose content it was planned.
    """
    made: Iterations | None = run.loop
    try:
        if made is None or not made.fit(prepared, trips):
            run.loop = None
            made = run.loop = Iterations(run, prepared, trips, arrays, deciding)
        return made.go(run, prepared, trips, arrays)
    except LostError:
        return 0


class _Carried:
    """A value that iterations hand on and that varies.

    which: of the carried ones; source, number: operand and result of the body.  is_same: whether both are one buffer.
    dims: registers of the operand's dimensions where the value grows.  least: bytes that a result has at least.
    room: stage and row among the rooms of the tape's stages, of one that grows.
    """

    def __init__(self, which: int, source: int, number: int, is_same: bool, dims: slice | None, least: int) -> None:
        self.which, self.source, self.number, self.is_same = which, source, number, is_same
        self.dims, self.least, self.room = dims, least, (0, 0)


class Iterations:
    """Tables of `kernels.cpu.loop` for a run of a body at certain sizes, which serve all loops of it, one at a time.

    rows: of each array that the body reads, then of each that it writes, then of constants: its address, and how many
    bytes further the iteration after has it.  given: registers of the sizes, None of a program of fixed sizes.
    late: results whose size data decide; shapes: of those that are stacked, which have to be as they were last.
    listed: of results of any shapes, which may be late: bytes that an iteration has room for, and where its log is.
    """

    def __init__(
        self, run: NativeRun, prepared: Prepared, trips: Trips, arrays: Sequence[Array], deciding: Iterable[int]
    ) -> None:
        self.tape: Tape | None = prepared.tape if isinstance(prepared, Taped) else None
        self.given = prepared.registers if isinstance(prepared, Taped) else None
        self.results = prepared.results
        self.head, self.tail = (2, 1) if trips.is_counted else (0, 0)  # of operands and results, what a loop adds
        self.sliced = self.head + len(trips.carried)
        self.last = self.tail + len(trips.carried)
        if any(self._varies(i, len(trips.sliced)) for i in deciding):
            raise LostError("content that decides shapes and varies")
        self.inputs = len(arrays)
        self.trip, self.end, self.why = np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64)
        self.rows = [0] * 2 * (self.inputs + len(self.results))
        self.tables: dict[str, list[Row]] = {"copies": [], "swaps": [], "logs": [], "flows": []}
        self.late = set() if self.tape is None else self.tape.late
        listed = {*range(len(self.results) - trips.listed, len(self.results))} & self.late
        self.shapes = {n: self._late_shape(n, trips) for n in self.late if n >= self.last and n not in listed}
        self.kept: list[Array] = []
        self.condition = self._condition(prepared, arrays)
        ranks = accumulate((a.ndim for a in arrays), initial=1)
        self.first = [*ranks]  # registers of the dimensions of operands
        self.carried = [c for c in [self._carried(w, prepared, trips, arrays) for w in range(len(trips.carried))] if c]
        self.scanned, self.listed = list[tuple[int, Any, Any, int]](), dict[int, tuple[int, int]]()
        for number in range(self.last, len(self.results)):
            self._scanned(number, number in listed, prepared, trips, arrays)
        self.growing = {c.source for c in self.carried if c.dims is not None}
        if any(source in self.growing for source, *_ in self.tables["copies"]):
            raise LostError("a result that is an operand which grows")
        self.fixed = 2 * sum(c.least for c in self.carried if c.dims is None)
        self.each = sum(row for *_, row in self.scanned)
        self._lay_out(run, prepared, trips, arrays)

    def fit(self, prepared: Prepared, trips: Trips) -> bool:
        """Whether they are of the same sizes."""
        if self.tape is None:
            return True
        if self.given is not prepared.registers:  # type: ignore[attr-defined]
            return False
        if any(self._late_shape(number, trips) != shape for number, shape in self.shapes.items()):
            return False
        return all(self._row_of(n, trips) <= row for n, _, _, row in self.scanned if n in self.listed)

    def _varies(self, index: int, sliced: int) -> bool:
        """Whether an input of the body is not the same in all iterations."""
        if index < self.head:
            return index == 0
        if index >= self.sliced:
            return index < self.sliced + sliced
        slot = self.results[self.tail + index - self.head]
        return slot.kind != INPUT or slot.index != index

    def _type(self, number: int, prepared: Prepared, trips: Trips, arrays: Sequence[Array]) -> tuple[Row, Any]:
        """Shape and dtype of a result."""
        slot = self.results[number]
        if number in self.late:
            return self._late_shape(number, trips), slot.type.dtype
        if slot.kind == TEMP:
            return prepared.type_of(number)
        source: Any = arrays[slot.index] if slot.kind == INPUT else slot.const
        return source.shape, source.dtype

    def _late_shape(self, number: int, trips: Trips) -> Row:
        """The shape that a result whose size data decide had last; the condition is none."""
        assert self.tape is not None, "it has them"
        which, told = number - self.tail, self.tape.program.stages.shapes
        if 0 <= which < len(trips.carried) and isinstance(trips.carried[which], np.ndarray):
            return trips.carried[which].shape  # type: ignore[no-any-return]
        if number >= self.last and trips.scanned[number - self.last]:
            return trips.scanned[number - self.last][-1].shape[1:]
        if number < self.last or number not in told:
            raise LostError("results of a size that no iteration has told")
        return tuple(told[number])

    def _row_of(self, number: int, trips: Trips) -> int:
        """Bytes of an iteration's result of any shape, with some to spare."""
        nbytes = math.prod(self._late_shape(number, trips)) * self.results[number].type.dtype.itemsize
        return -(-2 * nbytes // 64) * 64 + SPARE

    def _condition(self, prepared: Prepared, arrays: Sequence[Array]) -> int | None:
        """The array where an iteration finds whether another follows, by its number; None: always."""
        if not self.head:
            return None
        slot = self.results[0]
        if 0 in self.late:
            raise LostError("a condition of a size by data")
        if slot.kind == TEMP:
            shape, dtype = prepared.type_of(0)
            made = np.empty(shape, dtype)
            self.kept.append(made)
            self.rows[2 * self.inputs] = pointer(made)
        else:
            shape = arrays[slot.index].shape if slot.kind == INPUT else slot.const.shape  # type: ignore[union-attr]
        if math.prod(shape) != 1 or (slot.const is not None and not slot.const.all()):
            raise LostError("a condition that ends the loop")
        if slot.kind == TEMP:
            return self.inputs
        return slot.index if slot.kind == INPUT and slot.index != 1 else None

    def _carried(self, which: int, prepared: Prepared, trips: Trips, arrays: Sequence[Array]) -> _Carried | None:
        """What a value is that iterations hand on; None: one that stays as it is."""
        number, source, old = self.tail + which, self.head + which, trips.carried[which]
        shape, dtype = self._type(number, prepared, trips, arrays)
        slot, is_tensor = self.results[number], isinstance(old, np.ndarray)
        if not is_tensor or dtype.kind == "O" or old.dtype != dtype or old.ndim != len(shape):
            raise LostError("a carried value that is not of one type")
        if not self._varies(source, len(trips.sliced)):
            return None
        grows = number in self.late or old.shape != tuple(shape)
        if grows and (self.tape is None or slot.kind != TEMP):
            raise LostError("a carried value that grows")
        is_same = slot.kind == TEMP and not grows and prepared.can_overwrite(number, source)
        if not is_same:
            self.tables["swaps"].append((source, self.inputs + number))
        self._copied(number, arrays)
        dims = slice(self.first[source], self.first[source + 1]) if grows else None
        return _Carried(which, source, number, is_same, dims, math.prod(shape) * dtype.itemsize)

    def _copied(self, number: int, arrays: Sequence[Array]) -> None:
        """Have a result that is an operand or a constant itself copied."""
        slot, copies = self.results[number], self.tables["copies"]
        if slot.kind == INPUT:
            copies.append((slot.index, self.inputs + number, arrays[slot.index].nbytes))
        elif slot.kind != TEMP:
            const = np.ascontiguousarray(slot.const)
            self.kept.append(const)
            copies.append((len(self.rows) // 2, self.inputs + number, const.nbytes))
            self.rows += [pointer(const), 0]

    def _scanned(self, number: int, is_listed: bool, prepared: Prepared, trips: Trips, arrays: Sequence[Array]) -> None:
        """What is kept of a result of all iterations: its number, shape, dtype, and bytes of an iteration."""
        shape, dtype = self._type(number, prepared, trips, arrays)
        if dtype.kind == "O":
            raise LostError("results that are Python's objects")
        if is_listed:
            row = self._row_of(number, trips)
            self.scanned.append((number, (row,), np.uint8, row))
            self.listed[number] = 0, 0
        else:
            row = math.prod(shape) * dtype.itemsize
            self.scanned.append((number, tuple(shape), dtype, row))
        self.rows[2 * (self.inputs + number) + 1] = row
        self._copied(number, arrays)

    def _lay_out(self, run: NativeRun, prepared: Prepared, trips: Trips, arrays: Sequence[Array]) -> None:
        """The record of `run_loop` and all tables; what differs by loop is written when one begins."""
        self.pack, at = struct.Struct(f"{len(self.rows)}q").pack_into, len(self.rows)
        values: dict[str, int] = {"trip": pointer(self.trip), "end": pointer(self.end)}
        if self.tape is not None:
            held, rooms = self._wanted(self.tape, prepared, trips, arrays)
        self.tables["places"] = self._places(run)
        words = chain.from_iterable(chain.from_iterable(self.tables.values()))
        self.words = np.array([*self.rows, *words], np.int64)
        self.view: Any = memoryview(self.words)  # type: ignore[arg-type]
        begin = pointer(self.words)
        for name, rows in self.tables.items():
            values[name], values[f"count_{name}"] = begin + 8 * at, len(rows)
            at += sum(map(len, rows))
        values["arrays"], values["count_arrays"] = begin, len(self.rows) // 2
        values["cond"] = 0 if self.condition is None else begin + ARRAY * self.condition
        values["fault"] = pointer(run.image) + 8 * run.counter if run.counter else 0
        if self.tape is not None:
            values |= self._turning(self.tape, run, arrays, held, rooms)  # type: ignore[arg-type]
        self.record = np.array([values.get(name, 0) for name in run_loop.fields], np.int64)
        self.address = pointer(self.record)

    def _places(self, run: NativeRun) -> list[Row]:
        """Where the body has the addresses of all arrays; that of a tape finds them by its bases."""
        if isinstance(run, FollowedRun):
            return []
        image, tables = pointer(run.image), ((run.program.inputs, 0), (run.program.outputs, self.inputs))
        return [
            (image + 8 * at, which + first, to) for x, first in tables for which, rows in x.items() for at, to in rows
        ]

    def _wanted(
        self, tape: Tape, prepared: Prepared, trips: Trips, arrays: Sequence[Array]
    ) -> tuple[list[list[Row]], list[list[Row]]]:
        """Of each stage, what registers must be, and which results have how much room."""
        code, tables, grown = tape.program.tape, self.tables, {c.number: c for c in self.carried if c.dims is not None}
        held, rooms = [list[Row]() for _ in code.stages], [list[Row]() for _ in code.stages]
        fillers = tape.program.fillers
        # What Python and kernels gave holds as long as they would read the same.
        reads = [*code.reads.tolist(), *(() if fillers is None else fillers.reads.tolist())]
        held[0] += zip(reads, prepared.registers[reads].tolist(), strict=True)  # type: ignore[attr-defined]
        for number, row in enumerate(tape.results):
            if row is None:
                continue
            stage, places = tape.program.sized[number]
            if number in grown:
                found = grown[number]
                found.room = stage, len(rooms[stage])
                rooms[stage].append((row[0], row[1], row[2].itemsize, 0))
                tables["flows"] += [(p, found.dims.start + axis, 0) for axis, p in enumerate(places)]  # type: ignore[union-attr]
            elif number in self.listed:
                rooms[stage].append((row[0], row[1], row[2].itemsize, self._row_of(number, trips)))
                self.listed[number] = len(tables["logs"]), len(tables["logs"]) + len(places)
                tables["logs"] += [(place,) for place in places]
            else:
                held[stage] += zip(places, self._type(number, prepared, trips, arrays)[0], strict=True)
        return held, rooms

    def _turning(
        self, tape: Tape, run: FollowedRun, arrays: Sequence[Array], held: list[list[Row]], rooms: list[list[Row]]
    ) -> dict[str, int]:
        """What turns the body's program to the sizes of an iteration; its own registers are turned with it."""
        program: FollowedProgram = tape.program
        late, at, opened = run.stages, self.first[-1], list[Row]()
        for i, size in tape.open:
            item, row = arrays[i].itemsize, pointer(self.words) + ARRAY * i
            opened += [(at + k, row, item * k, int(arrays[i].dtype == I32)) for k in range(size)]
            at += size
        open_, must = np.array(opened, np.int64).reshape(-1, 4), np.array(held[0], np.int64).reshape(-1, 2)
        self.rooms = [np.array(found, np.int64).reshape(-1, 4) for found in rooms]
        self.turn = turning(run, 0, int(program.sums[0]), 0, open_, must, self.rooms[0], self.why)
        self.kept += [open_, must]
        values = {
            "turn": turn.address, "turn_record": pointer(self.turn), "why": pointer(self.why),
            "registers": pointer(run.own),
        }  # fmt: skip
        self.held: list[Array] = []
        if late is not None:
            self.held = late.held_with(held)
            values |= {"kernel": run_stages.address, "first": late.address, "third": 1, "inner": pointer(late.end) + 8}
        return values

    def go(self, run: NativeRun, prepared: Prepared, trips: Trips, arrays: Sequence[Array]) -> int:
        """Run iterations; takes over what they leave."""
        pairs, grown = self._begin(trips, arrays)
        left = MOST_TRIPS if trips.limit is None else trips.limit - trips.number
        most = max(1, min(left, trips.pace, min(MOST_BYTES, trips.granted) // max(1, self.each)))
        rows, chunks = self.rows, []
        for number, shape, dtype, _ in self.scanned:
            chunk = np.empty((most, *shape), dtype)
            rows[2 * (self.inputs + number)] = pointer(chunk)
            chunks.append(chunk)
        record, log = self.record, None
        if self.listed:
            log = np.empty((most, len(self.tables["logs"])), np.int64)
            record[_AT["log"]] = pointer(log)
        if self.tape is not None:
            self._turn(run, prepared, grown)  # type: ignore[arg-type]
        if self.tape is None or not self.held:
            record[_CALL] = native_call(run.address, run.threads)
        record[_AT["most"]] = most
        self.pack(self.view, 0, *rows)
        start = time.perf_counter()
        run_loop.call_at(self.address)
        done, why = self.end.tolist()
        if why == FAULT:
            raise run.fault()
        if why == FULL and isinstance(run, FollowedRun) and run.stages is not None:
            run.stages.learn()
        if done:
            self._take_over(done, trips, pairs, chunks, log, run)
            trips.keep = why != ENDED
            trips.pace = min(MOST_TRIPS, 1 + int(LOOK_S * done / max(time.perf_counter() - start, 1e-9)))
        return int(done)

    def _begin(
        self, trips: Trips, arrays: Sequence[Array]
    ) -> tuple[list[tuple[Array, Array]], list[tuple[tuple[int, int], int]]]:
        """Have the rows of operands and carried values; of each of these its two arrays, or one twice.

        Also the rooms of those that grow.
        """
        rows, wanted = self.rows, self.fixed
        rows[: 2 * self.inputs : 2] = map(pointer, arrays)
        if self.head:
            self.trip[0] = trips.number
            rows[0] = pointer(self.trip)
        for k, given in enumerate(trips.sliced, self.sliced):
            if not given[trips.number, ...].flags.c_contiguous:
                raise LostError("rows that are not contiguous")
            rows[2 * k + 1] = given.strides[0]
        pairs, grown = list[tuple[Array, Array]](), list[tuple[tuple[int, int], int]]()
        for carried in self.carried if self.growing else ():
            if carried.dims is not None:
                nbytes = trips.carried[carried.which].nbytes
                nbytes = nbytes if carried.number in self.late else max(nbytes, carried.least)
                grown.append((carried.room, 2 * nbytes + SPARE))
                wanted += 2 * grown[-1][1]
        if wanted > trips.granted and not is_granted(wanted):
            raise LostError("memory for carried values")
        rooms = iter(grown)
        for carried in self.carried:
            old = trips.carried[carried.which]
            if carried.dims is None:
                one = old.copy()
                two = one if carried.is_same else np.empty_like(one)
            else:
                _, room = next(rooms)
                one, two = np.empty(room, np.uint8), np.empty(room, np.uint8)
                one[: old.nbytes] = old.reshape(-1).view(np.uint8)
            pairs.append((one, two))
            rows[2 * carried.source], rows[2 * (self.inputs + carried.number)] = pointer(one), pointer(two)
        return pairs, grown

    def _turn(self, run: FollowedRun, prepared: Taped, grown: Sequence[tuple[tuple[int, int], int]]) -> None:
        """Turn the run's own registers to the sizes of the first iteration."""
        code, run.sizes = run.followed.tape, None  # the loop changes the registers
        if run.registers is not run.own:
            run.own[: code.calls] = prepared.registers[: code.calls]
            run.found = prepared.found
            run.turn_to((run.own, *prepared.found[1:]), prepared.tables)
        for (stage, row), room in grown:
            self.rooms[stage][row, 3] = room
        arena = run.arena
        assert arena is not None, "it was taken"
        if len(self.rooms[0]) and arena.nbytes < 2 * prepared.arena and is_granted(2 * prepared.arena + SPARE):
            arena = run.arena = HOST.allocate(2 * prepared.arena + SPARE)
        given, made = run.followed.reach
        at = np.array([*range(given), *range(self.inputs, self.inputs + made)], np.int64)
        run.bases[:OWN_BASES] = id(arena), id(prepared.tables)
        run.bases[OWN_BASES:] = pointer(self.words) + ARRAY * at - DATA  # rows stand for arrays
        self.turn[_ARENA] = len(arena)
        if run.stages is not None:
            run.stages.lend(self.held, self.rooms)

    def _take_over(
        self, done: int, trips: Trips, pairs: Sequence[tuple[Array, Array]], chunks: Sequence[Array],
        log: Array | None, run: NativeRun,
    ) -> None:  # fmt: skip
        trips.number += done
        for carried, (one, two) in zip(self.carried, pairs, strict=True):
            last = two if done % 2 else one
            if carried.dims is not None:
                shape, dtype = run.own[carried.dims].tolist(), trips.carried[carried.which].dtype  # type: ignore[attr-defined]
                last = last[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            trips.carried[carried.which] = last
        most = len(chunks[0]) if chunks else done
        for (number, *_), kept, chunk in zip(self.scanned, trips.scanned, chunks, strict=True):
            if number not in self.listed:
                kept.append(chunk if done == most else chunk[:done].copy())  # a view would keep all of it
                continue
            (begin, end), dtype = self.listed[number], self.results[number].type.dtype
            assert log is not None, "it has results of any shapes"
            for row, dims in zip(chunk[:done], log[:done, begin:end].tolist(), strict=True):
                kept.append(row[: math.prod(dims) * dtype.itemsize].view(dtype).reshape(1, *dims).copy())
