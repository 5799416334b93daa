"""Programs of the CPU that read numbers on their way (`runtime.stops`): what is between their stages.

A run is one native call (`kernels.cpu.stages`) as long as the tape holds and there is room for all results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.budget import is_granted
from bolt_numba.base.cancelling import IN_FORCE, stopping
from bolt_numba.base.errors import CancelledError
from bolt_numba.base.types import I32, AnyDType, Array
from bolt_numba.devices.program import pointer
from bolt_numba.devices.tape_code import NOTHING, Found
from bolt_numba.devices.threads import native_call
from bolt_numba.kernels.cpu.executor import STOP
from bolt_numba.kernels.cpu.stages import FAULT, LOST, RAN, run_stages, turn
from bolt_numba.kernels.cpu.tape import evaluate, fill
from bolt_numba.runtime.device import HOST
from bolt_numba.runtime.slots import CONST, INPUT, Slot
from bolt_numba.runtime.tape import ROOMY

SPARE = 4096
"""Bytes that results as long as data say get at first."""
_AT = {name: i for i, name in enumerate(turn.fields)}
_ARENA = _AT["arena_nbytes"]
Row = tuple[int, ...]
Late = tuple[int, int, int, AnyDType]
"""A result whose size a later stage tells: its number, first and end of its dimensions, its dtype."""


class Staging:
    """What is between the stages of a followed program, for any sizes.

    rows: of each stage, those of `kernels.cpu.tape.fill`.  late: results whose sizes are told on the way, by stage;
    rooms: bytes that runs begin with, by number, and shapes, their last ones.  arena_nbytes: that runs begin with.
    """

    def __init__(self, program: Any) -> None:
        self.program, self.code = program, program.tape
        count = 1 + len(program.stops)
        stage_of = [self.code.stage_of(r) for r in program.all_rows[:, 2].tolist()]
        self.rows = [program.all_rows[[found == s for found in stage_of]] for s in range(count)]
        laid, jobs = program.program, {id(stop.job): stop for stop in program.stops}
        self.ends, self.opens = list[int](), list[list[tuple[int, int, int, int]]]()
        for step, number in enumerate(laid.step_jobs):
            stop = jobs.get(id(program.jobs[number]))
            if stop is not None:
                self.ends.append(step + 1)
                item, word = stop.job.ins[0].type.dtype.itemsize, int(laid.record_offsets[step]) // 8
                names, is_i32 = enumerate(stop.names), int(stop.job.ins[0].type.dtype == I32)
                self.opens.append([(self.code.registers[name], word, item * k, is_i32) for k, name in names])
        self.ends.append(laid.steps)
        self.arenas = [self.code.register(stop.arena) for stop in program.stops]
        self.late: list[list[Late]] = [[] for _ in range(count)]
        self.rooms: dict[int, int] = {}
        self.shapes: dict[int, list[int]] = {}
        self.arena_nbytes = 0

    def number(self, registers: Array, number: Any) -> int:
        """What a followed number, or a plain one, is."""
        return int(registers[self.code.register(number)])

    def values(self, stage: int, registers: Array, inputs: Sequence[Any], outputs: Sequence[Any], arena: Any) -> Any:
        """Arrays of what is needed behind a stop, where the rest is to be run otherwise."""
        return [self._value(s, registers, inputs, outputs, arena) for s in self.program.stops[stage - 1].needed]

    def _value(self, slot: Slot, registers: Array, inputs: Any, outputs: Any, arena: Any) -> Array:
        dims = [self.number(registers, d) for d in slot.type.dims]
        dtype = slot.type.dtype
        if slot.kind == CONST:
            cells = [self.number(registers, n) for n in slot.const.reshape(-1).tolist()]  # type: ignore[union-attr]
            return np.array(cells, dtype).reshape(dims)
        if slot.kind == INPUT:
            return inputs[slot.index]  # type: ignore[no-any-return]
        root, offset = slot.root()
        first = self.number(registers, offset)
        if root.kind == INPUT or root.result >= 0:
            data = (inputs[root.index] if root.kind == INPUT else outputs[root.result]).reshape(-1).view(np.uint8)
        else:
            data = arena[self.number(registers, root.place) :]
        if slot.pitch is None:
            end = first + math.prod(dims) * dtype.itemsize
            return data[first:end].view(dtype).reshape(dims).copy()  # type: ignore[no-any-return]
        row = self.number(registers, slot.row) * dtype.itemsize
        strides = [row * math.prod(dims[axis + 1 : -1]) for axis in range(len(dims) - 1)]
        return np.ascontiguousarray(np.ndarray(dims, dtype, data.data, first, [*strides, dtype.itemsize]))


def turning(
    run: Any, stage: int, arena: int, filling: int, opened: Array, held: Array, rooms: Array, why: Array
) -> Array:
    """A record of `kernels.cpu.stages.turn`; arena: register of its bytes."""
    program, registers = run.followed, pointer(run.own)
    values = {
        "evaluate": evaluate.address, "evaluate_record": registers + 8 * program.tape.stages[stage].call,
        "registers": registers, "open": pointer(opened), "count_open": len(opened), "held": pointer(held),
        "count_held": len(held), "rooms": pointer(rooms), "count_rooms": len(rooms), "dims": pointer(program.dims),
        "arena": arena, "arena_nbytes": 0 if run.arena is None else len(run.arena), "fill": fill.address,
        "fill_record": filling, "why": pointer(why),
    }  # fmt: skip
    return np.array([values[name] for name in turn.fields], np.int64)


class StagedRun:
    """The stages of one run at a time.

    turns: a record of `kernels.cpu.stages.turn` for each stage but the first.  held: what Python read must be.
    lent: tables of what must be that the stages look at, its own or those of a loop.  sizes: bytes that there are for
    each late result.  told: what Python gave on the way, if it was asked.  stopped: the stage whose numbers the tape
    does not hold for, 0: it has run.
    """

    def __init__(self, run: Any, stages: Staging) -> None:
        self.run_, self.stages, self.code = run, stages, stages.code
        self.kept: list[Any] = []
        self.stops: list[int] = []
        self.end, self.why, self.stopped = np.zeros(2, np.int64), np.zeros(1, np.int64), 0
        self.lent: Sequence[Array] | None = None
        self.sizes: dict[int, int] = {}
        self.told: Found | None = None
        self.reads: tuple[bytes, ...] = ()
        self.held: list[Array] = [np.empty((0, 2), np.int64)]
        self.rooms: list[Array] = [np.empty((0, 4), np.int64)]
        self.turns: list[Array] = [np.zeros(0, np.int64)]
        self.fills: list[int] = [0]
        rows = [self._row(0, 0)]
        for stage in range(1, len(stages.rows)):
            self.turns.append(self._turn(stage))
            rows.append(self._row(stage, pointer(self.turns[stage])))
        table = np.array(rows, np.int64)
        fault = pointer(run.image) + 8 * run.counter if run.counter else 0
        self.record = np.array([pointer(table), 0, len(rows), fault, turn.address, pointer(self.end), 0])
        self.stops.append(pointer(self.record) + 8 * [*run_stages.fields].index("stop"))
        self.address = pointer(self.record)
        self.kept.append(table)

    def _row(self, stage: int, record: int) -> tuple[int, ...]:
        run = self.run_
        call = run.calling(1 + self.stages.ends[stage - 1] if stage else 0, 1 + self.stages.ends[stage])
        self.kept.append(call)
        self.stops.append(pointer(call) + STOP)
        return record, pointer(self.why), *native_call(pointer(call), run.threads)

    def _turn(self, stage: int) -> Array:
        run, stages, code = self.run_, self.stages, self.code
        filling = run.filling(stages.rows[stage])
        self.fills.append(pointer(filling))
        image = pointer(run.image)
        opened = np.array([(r, image + 8 * word, at, is_i32) for r, word, at, is_i32 in stages.opens[stage - 1]])
        reads = code.stages[stage].reads
        self.held.append(np.stack([reads, np.zeros_like(reads)], 1))
        late = stages.late[stage]
        self.rooms.append(np.array([(first, end, t.itemsize, 0) for _, first, end, t in late], np.int64).reshape(-1, 4))
        held, rooms = self.held[stage], self.rooms[stage]
        self.kept += [filling, opened]
        return turning(run, stage, stages.arenas[stage - 1], self.fills[stage], opened, held, rooms, self.why)

    def hold(self, reads: tuple[bytes, ...]) -> None:
        """Have the stages want what Python read when it gave what the run has."""
        self.told = None
        if reads != self.reads:
            self.reads, self.lent = reads, None
            for held, read in zip(self.held[1:], reads[1:], strict=True):
                held[:, 1] = np.iinfo(np.int64).min if read == NOTHING else np.frombuffer(read, np.int64)

    def held_with(self, held: Sequence[Sequence[Row]]) -> list[Array]:
        """Of each stage what must be in iterations of a loop: ``held``, too."""
        rows = [np.array(more, np.int64).reshape(-1, 2) for more in held]
        return [np.concatenate(both) for both in zip(self.held, rows, strict=True)]

    def lend(self, held: Sequence[Array], rooms: Sequence[Array]) -> None:
        """Have the next run look at what a loop wants.  held, rooms: of each stage."""
        if self.lent is not held:
            for stage in range(1, len(self.turns)):
                own = self.held[stage]
                held[stage][: len(own)] = own
                self._point(stage, held[stage], rooms[stage])
        self._begin(held)

    def _point(self, stage: int, held: Array, rooms: Array) -> None:
        """Have a stage look at these tables."""
        turned = self.turns[stage]
        turned[_AT["held"]], turned[_AT["count_held"]] = pointer(held), len(held)
        turned[_AT["rooms"]], turned[_AT["count_rooms"]] = pointer(rooms), len(rooms)

    def _begin(self, held: Sequence[Array]) -> None:
        """Have the stages know the arena of this run, and whose tables they look at."""
        self.lent, self.record[1], nbytes = held, 0, len(self.run_.arena)
        for turned in self.turns[1:]:
            turned[_ARENA] = nbytes

    def begin(self, sizes: dict[int, int]) -> None:
        """sizes: bytes that there are for each late result."""
        for stage in range(1, len(self.turns)) if self.lent is not self.held else ():
            self._point(stage, self.held[stage], self.rooms[stage])
        self._begin(self.held)
        if sizes != self.sizes:
            self.sizes = sizes
            for rooms, late in zip(self.rooms, self.stages.late, strict=True):
                for k, (number, *_) in enumerate(late):
                    rooms[k, 3] = sizes[number]

    def run(self, inputs: Sequence[Any], outputs: list[Any]) -> None:
        """Run all stages; outputs: get the late results.  Sets ``stopped``."""
        stages, rooms = self.stages, dict[int, int]()
        for late in stages.late:
            for number, *_ in late:
                rooms[number] = stages.rooms[number]
                outputs[number] = np.empty(rooms[number], np.uint8)
        self.begin(rooms)
        self.run_.have(inputs, outputs)
        done, self.stopped = 0, 0
        while True:
            self.record[1] = done
            if IN_FORCE:
                self._run_watched()
            else:
                run_stages.call_at(self.address)
            done, why = self.end.tolist()
            if why == RAN:
                self._trim(outputs)
                return
            if why == FAULT:
                raise self.run_.fault()
            if not (self._asked(done) if why == LOST else self._grown(done, inputs, outputs)):
                self.stopped = done
                return

    def _run_watched(self) -> None:
        try:
            with stopping(self.stops):
                run_stages.call_at(self.address)
        except CancelledError:
            if self.run_.counter and self.run_.words[self.run_.counter]:
                self.run_.fault()  # the next run has none of its own
            raise

    def needed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Array]:
        """What the rest is given where a run has stopped."""
        run = self.run_
        return self.stages.values(self.stopped, run.own, inputs, outputs, run.arena)  # type: ignore[no-any-return]

    def _asked(self, stage: int) -> bool:
        """Whether what Python gives holds for the numbers of a stage."""
        run = self.run_
        if not len(self.code.stages[stage].reads):
            return False
        found = run.found = self.code.by_parts(stage, run.own, *run.found[1:])
        if found is None:
            return False
        run.turn_to(found, run.tables)
        self.told = found[0].copy(), *found[1:]
        return True

    def _grown(self, stage: int, inputs: Sequence[Any], outputs: list[Any]) -> bool:
        """Have room for all of a stage, if all together is granted; what the stages before have left stays."""
        run, stages = self.run_, self.stages
        nbytes = int(run.own[stages.arenas[stage - 1]])
        rooms = {number: made.nbytes for number, made in enumerate(outputs) if made is not None}
        for number, first, end, dtype in stages.late[stage]:
            wanted = math.prod(run.own[stages.program.dims[first:end]].tolist()) * dtype.itemsize
            rooms[number] = max(rooms[number], wanted)
        if not is_granted(nbytes + sum(rooms.values())):
            return False
        if nbytes > len(run.arena):
            stages.arena_nbytes = max(stages.arena_nbytes, nbytes)
            arena = HOST.allocate(nbytes)
            arena[: len(run.arena)] = run.arena
            run.arena = arena
        for number, *_ in stages.late[stage]:
            if rooms[number] > outputs[number].nbytes:
                outputs[number] = np.empty(rooms[number], np.uint8)
        self.begin({number: outputs[number].nbytes for late in stages.late for number, *_ in late})
        run.have(inputs, outputs)
        for filling in (pointer(run.record), *self.fills[1:stage]):
            fill.call_at(filling)
        return True

    def learn(self) -> None:
        """Have the next runs begin with as much memory as the stage wanted that stopped."""
        stages, stage = self.stages, int(self.end[0])
        nbytes = int(self.run_.own[stages.arenas[stage - 1]]) if stage else 0
        if is_granted(nbytes):
            stages.arena_nbytes = max(stages.arena_nbytes, nbytes)

    def _trim(self, outputs: list[Any]) -> None:
        """Late results as long as they are."""
        stages = self.stages
        sizes = self.run_.own[stages.program.dims].tolist()
        for late in stages.late:
            for number, first, end, dtype in late:
                dims = sizes[first:end]
                room, nbytes = outputs[number], math.prod(dims) * dtype.itemsize
                made: Array = np.ndarray(dims, dtype, room)
                outputs[number] = made if room.nbytes <= 2 * nbytes else made.copy()
                stages.rooms[number] = max(SPARE, _next(stages.rooms[number], nbytes))
                stages.shapes[number] = dims
        stages.arena_nbytes = _next(stages.arena_nbytes, int(self.run_.own[stages.arenas[-1]]))


def _next(kept: int, nbytes: int) -> int:
    """Bytes that the next run begins with: what the greatest wanted, until what runs want is far less."""
    return max(nbytes, kept // 2 if kept > ROOMY * nbytes else kept)
