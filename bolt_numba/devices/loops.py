"""Loops whose body is one program of the CPU: their iterations run in one native call (`kernels.cpu.loop`).

What an iteration leaves and the next one reads changes places.  Where shapes, or content that decides shapes, vary, the
body's tape is evaluated natively before each iteration; one that fails a guard is left to Python.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, count
from typing import Any

import numpy as np

from bolt_numba.base.budget import is_granted, unasked
from bolt_numba.base.follow import LostError
from bolt_numba.devices.followed import FollowedProgram, FollowedRun
from bolt_numba.devices.program import NativeRun, pointer
from bolt_numba.devices.stages import turning
from bolt_numba.devices.threads import native_call
from bolt_numba.kernels.cpu.loop import ROW, run_loop
from bolt_numba.kernels.cpu.stages import ENDED, FAULT, FULL, run_stages, turn
from bolt_numba.ops.control import Trips
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.prepared import Prepared
from bolt_numba.runtime.slots import INPUT, TEMP
from bolt_numba.runtime.tape import Tape, Taped
from bolt_numba.types import I32, Array

LOOK_S = 0.02
"""Seconds after which Python looks at interrupts and limits again."""
MOST_TRIPS, MOST_BYTES = 1 << 16, 1 << 24
"""Iterations of one call, and bytes of all their results that are kept."""
Row = tuple[int, ...]
SPARE = 4096
"""Bytes that a value which grows has to spare, beside as much as it needs."""


def run_ahead(
    run: NativeRun, prepared: Prepared, trips: Trips, arrays: Sequence[Array], deciding: Iterable[int]
) -> int:
    """Run iterations from the one whose body is given ``arrays``; how many ran, 0 where Python has to.

    deciding: inputs of the body for whose content it was planned.
    """
    try:
        made = _Iterations(run, prepared, trips, arrays, deciding)
    except LostError:
        return 0
    return made.go()


class _Iterations:
    """Tables of `kernels.cpu.loop` for some iterations.

    now: addresses of what the body reads, and ``step`` bytes further what the iteration after reads; to: likewise of
    what it writes.  own: of each carried value that varies, the two arrays that change places (or one twice), and its
    shape, None where it grows.
    """

    def __init__(
        self, run: NativeRun, prepared: Prepared, trips: Trips, arrays: Sequence[Array], deciding: Iterable[int]
    ) -> None:
        self.run, self.prepared, self.trips, self.arrays = run, prepared, trips, arrays
        self.tape = prepared.tape if isinstance(prepared, Taped) else None
        self.head, self.tail = (2, 1) if trips.is_counted else (0, 0)  # of operands and results, what a loop adds
        self.sliced = self.head + len(trips.carried)
        if any(map(self._varies, deciding)):
            raise LostError("content that decides shapes and varies")
        self.trip, self.end = np.array([trips.number]), np.zeros(2, np.int64)
        self.now, self.to = [[pointer(a), 0] for a in arrays], [[0, 0] for _ in prepared.results]
        if trips.is_counted:
            self.now[0][0] = pointer(self.trip)
        for k, given in enumerate(trips.sliced):
            row = given[trips.number, ...]
            if not row.flags.c_contiguous:
                raise LostError("rows that are not contiguous")
            self.now[self.sliced + k] = [pointer(row), given.strides[0]]
        self.copies, self.swaps = list[Row](), list[Row]()
        self.tables: dict[str, list[Row]] = {"copies": self.copies, "swaps": self.swaps, "logs": [], "flows": []}
        self.late = set() if self.tape is None else self.tape.late
        listed = range(len(prepared.results) - trips.listed, len(prepared.results))
        self.listed: dict[int, tuple[int, int]] = dict.fromkeys(self.late & {*listed}, (0, 0))
        self.opened = np.empty((0, 4), np.int64)
        self.own: dict[int, tuple[Array, Array, Any]] = {}
        self.kept: list[Array] = []
        self.condition = self._condition()
        for which in range(len(trips.carried)):
            self._carried(which)
        self.chunks = self._chunks()
        grown = {self.head + which for which, (_, _, shape) in self.own.items() if shape is None}
        if any(source in grown for source, *_ in self.copies):
            raise LostError("a result that is an operand which grows")
        self.values = self._turning() if self.tape is not None else {}

    def _varies(self, index: int) -> bool:
        """Whether an input of the body is not the same in all iterations."""
        if index < self.head:
            return index == 0
        if index >= self.sliced:
            return index < self.sliced + len(self.trips.sliced)
        slot = self.prepared.results[self.tail + index - self.head]
        return slot.kind != INPUT or slot.index != index

    def _type(self, number: int) -> tuple[Sequence[int], Any]:
        """Shape and dtype of a result."""
        slot = self.prepared.results[number]
        if number in self.late:
            return self._late_shape(number - self.tail), slot.type.dtype
        if slot.kind == TEMP:
            return self.prepared.type_of(number)
        source: Any = self.arrays[slot.index] if slot.kind == INPUT else slot.const
        return source.shape, source.dtype

    def _late_shape(self, which: int) -> Sequence[int]:
        """The shape that a result whose size data decide had last; the condition is none."""
        assert self.tape is not None, "it has them"
        number, ends = self.tail + which, len(self.trips.carried)
        if 0 <= which < ends and isinstance(self.trips.carried[which], np.ndarray):
            return self.trips.carried[which].shape  # type: ignore[no-any-return]
        if which >= ends and self.trips.scanned[which - ends]:
            return self.trips.scanned[which - ends][-1].shape[1:]
        if which < ends or number not in self.tape.program.stages.shapes:
            raise LostError("results of a size that no iteration has told")
        return self.tape.program.stages.shapes[number]  # type: ignore[no-any-return]

    def _condition(self) -> tuple[str, int] | None:
        """Where an iteration finds whether another follows: among its results or operands, which; None: always."""
        if not self.trips.is_counted:
            return None
        shape, dtype = self._type(0)
        slot = self.prepared.results[0]
        if slot.kind == TEMP:
            made = np.empty(shape, dtype)
            self.kept.append(made)
            self.to[0][0] = pointer(made)
        if math.prod(shape) != 1 or (slot.const is not None and not slot.const.all()):
            raise LostError("a condition that ends the loop")
        if slot.kind == TEMP:
            return "outs", 0
        return ("ins", slot.index) if slot.kind == INPUT and slot.index != 1 else None

    def _carried(self, which: int) -> None:
        """Arrays for a value that iterations hand on."""
        number, source, old = self.tail + which, self.head + which, self.trips.carried[which]
        shape, dtype = self._type(number)
        slot, is_tensor = self.prepared.results[number], isinstance(old, np.ndarray)
        if not is_tensor or dtype.kind == "O" or old.dtype != dtype or old.ndim != len(shape):
            raise LostError("a carried value that is not of one type")
        if not self._varies(source):
            return
        grows = number in self.late or old.shape != tuple(shape)
        if grows and (self.tape is None or slot.kind != TEMP):
            raise LostError("a carried value that grows")
        room = max(old.nbytes, math.prod(shape) * dtype.itemsize)
        room = 2 * room + SPARE if grows else room
        if not is_granted(2 * room):
            raise LostError("memory for carried values")
        one = np.empty(room, np.uint8)
        one[: old.nbytes] = old.reshape(-1).view(np.uint8)
        is_same = slot.kind == TEMP and not grows and self.prepared.can_overwrite(number, source)
        two = one if is_same else np.empty(room, np.uint8)
        self.own[which] = one, two, None if grows else old.shape
        self.now[source][0], self.to[number][0] = pointer(one), pointer(two)
        if not is_same:
            self.swaps.append((source, number))
        self._copied(number)

    def _copied(self, number: int) -> None:
        """Have a result that is an operand or a constant itself copied."""
        slot = self.prepared.results[number]
        if slot.kind == TEMP:
            return
        if slot.kind == INPUT:
            self.copies.append((slot.index, number, self.arrays[slot.index].nbytes))
            return
        const = np.ascontiguousarray(slot.const)
        self.kept.append(const)
        self.copies.append((len(self.now), number, const.nbytes))
        self.now.append([pointer(const), 0])

    def _chunks(self) -> list[Array]:
        """Arrays for what is kept of all iterations, for as many as this call may run."""
        trips = self.trips
        types = [self._type(n) for n in range(self.tail + len(trips.carried), len(self.to))]
        if any(dtype.kind == "O" for _, dtype in types):
            raise LostError("results that are Python's objects")
        first = self.tail + len(trips.carried)
        rows = [math.prod(shape) * dtype.itemsize for shape, dtype in types]
        rows = [-(-2 * n // 64) * 64 + SPARE if first + i in self.listed else n for i, n in enumerate(rows)]
        left = MOST_TRIPS if trips.limit is None else trips.limit - trips.number
        self.count = max(1, min(left, trips.pace, min(MOST_BYTES, unasked()) // max(1, sum(rows))))
        made = [np.empty((self.count, *shape), dtype) for shape, dtype in types]
        for number in self.listed:
            made[number - first] = np.empty((self.count, rows[number - first]), np.uint8)
        for number, (chunk, row) in enumerate(zip(made, rows, strict=True), first):
            self.to[number] = [pointer(chunk), row]
            self._copied(number)
        return made

    def _turning(self) -> dict[str, Any]:
        """What turns the body's program to the sizes of an iteration; its own registers are turned with it."""
        tape, prepared, run = self.tape, self.prepared, self.run
        assert tape is not None
        assert isinstance(prepared, Taped)
        assert isinstance(run, FollowedRun)
        program: FollowedProgram = tape.program
        code, late = program.tape, run.stages
        if run.registers is not run.own:
            run.own[: code.calls] = prepared.registers[: code.calls]
            run.found = prepared.found
            run.turn_to((run.own, *prepared.found[1:]))
        self.registers = registers = run.own
        self.first = [*accumulate(tape.ranks, initial=1)]
        at, opened = self.first[-1], list[Row]()
        for i, size in tape.open:
            item = self.arrays[i].itemsize
            opened += [(at + k, i, item * k, self.arrays[i].dtype == I32) for k in range(size)]
            at += size
        held, rooms = self._wanted(tape)
        arena = run.arena
        assert arena is not None, "it was taken"
        if any(rooms) and arena.nbytes < 2 * prepared.arena and is_granted(2 * prepared.arena + SPARE):
            arena = run.arena = HOST.allocate(2 * prepared.arena + SPARE)
        run.bases[0] = pointer(arena)
        self.log, self.why = np.empty((self.count, len(self.tables["logs"])), np.int64), np.zeros(1, np.int64)
        self.opened, room = (np.array(rows, np.int64).reshape(-1, 4) for rows in (opened, rooms[0]))
        must = np.array(held[0], np.int64).reshape(-1, 2)
        record = turning(run, 0, int(program.sums[0]), run.fills, self.opened, must, room, self.why)
        self.kept += [room, must, record]
        values = {
            "turn": turn.address, "turn_record": pointer(record), "why": pointer(self.why), "log": pointer(self.log),
            "registers": pointer(registers),
        }  # fmt: skip
        if late is not None:
            values |= {"kernel": run_stages.address, "first": late.of_loop(held, rooms), "third": 1}
            values["inner"] = pointer(late.end) + 8
        return values

    def _wanted(self, tape: Tape) -> tuple[list[list[Row]], list[list[Row]]]:
        """Of each stage, what registers must be, and which results have how much room."""
        code, tables = tape.program.tape, self.tables
        held, rooms = [list[Row]() for _ in code.stages], [list[Row]() for _ in code.stages]
        # What Python gave holds as long as it would read the same.
        held[0] += zip(code.reads.tolist(), self.registers[code.reads].tolist(), strict=True)
        for number, row in enumerate(tape.results):
            if row is None:
                continue
            (stage, places), which = tape.program.sized[number], number - self.tail
            if which in self.own and self.own[which][2] is None:
                rooms[stage].append((row[0], row[1], row[2].itemsize, self.own[which][0].nbytes))
                tables["flows"] += [(p, self.first[self.head + which] + axis, 0) for axis, p in enumerate(places)]
            elif number in self.listed:
                rooms[stage].append((row[0], row[1], row[2].itemsize, self.to[number][1]))
                self.listed[number] = len(tables["logs"]), len(tables["logs"]) + len(places)
                tables["logs"] += [(place,) for place in places]
            else:
                held[stage] += zip(places, self._type(number)[0], strict=True)
        return held, rooms

    def _add_places(self) -> None:
        """Tables of all arrays and of the places where the body has their addresses: of a tape, among the bases."""
        run, places = self.run, list[Row]()
        if isinstance(run, FollowedRun):
            numbers, bases = count(1), pointer(run.bases)
            found = [{which: [(bases + 8 * next(numbers), 0)] for which in used} for used in run.followed.used]
        else:
            image = pointer(run.image)
            found = [{w: [(image + 8 * at, to) for at, to in rows] for w, rows in x} for x in (run.inputs, run.outputs)]
        for name, rows, of in zip(("ins", "outs"), (self.now, self.to), found, strict=True):
            made = self.tables[name] = list[Row]()
            for number, row in enumerate(rows):
                first = len(places)
                places += of.get(number, ())
                made.append((*row, first, len(places)))
        self.tables["places"] = places

    def go(self) -> int:
        """Run them; takes over what they leave."""
        run = self.run
        self._add_places()
        words: list[int] = []
        values = {"trip": pointer(self.trip), "most": self.count, "end": pointer(self.end)} | self.values
        at = {}
        for name, rows in self.tables.items():
            at[name], values[f"count_{name}"] = 8 * len(words), len(rows)
            words += chain.from_iterable(rows)
        tables = np.array(words)
        values |= {name: pointer(tables) + offset for name, offset in at.items()}
        self.opened[:, 1] = values["ins"] + ROW * self.opened[:, 1]
        if self.condition is not None:
            table, number = self.condition
            values["cond"] = values[table] + ROW * number
        values["fault"] = pointer(run.image) + 8 * run.counter if run.counter else 0
        if "kernel" not in values:
            values |= zip(("kernel", "first", "second", "third"), native_call(run.address, run.threads), strict=True)
        record = np.array([values.get(name, 0) for name in run_loop.fields])
        start = time.perf_counter()
        run_loop.call_at(pointer(record))
        done, why = self.end.tolist()
        if why == FAULT:
            raise run.fault()
        if why == FULL and isinstance(run, FollowedRun) and run.stages is not None:
            run.stages.learn()
        if done:
            self._take_over(done, tables[at["ins"] // 8 :].reshape(-1)[::4])
            self.trips.keep = why != ENDED
            self.trips.pace = min(MOST_TRIPS, 1 + int(LOOK_S * done / max(time.perf_counter() - start, 1e-9)))
        return int(done)

    def _take_over(self, done: int, now: Array) -> None:
        trips = self.trips
        trips.number += done
        for which, (one, two, shape) in self.own.items():
            source, dtype = self.head + which, trips.carried[which].dtype
            if shape is None:
                shape = self.registers[self.first[source] : self.first[source + 1]].tolist()
            last = one if now[source] == pointer(one) else two
            trips.carried[which] = last[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        first = self.tail + len(trips.carried)
        for number, (kept, chunk) in enumerate(zip(trips.scanned, self.chunks, strict=True), first):
            if number not in self.listed:
                kept.append(chunk if done == self.count else chunk[:done].copy())  # a view would keep all of it
                continue
            (begin, end), dtype = self.listed[number], self.prepared.results[number].type.dtype
            for row, dims in zip(chunk[:done], self.log[:done, begin:end].tolist(), strict=True):
                kept.append(row[: math.prod(dims) * dtype.itemsize].view(dtype).reshape(1, *dims).copy())
