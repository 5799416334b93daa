"""Runs a kernel's instructions, each over all lanes of a batch of blocks at once.

Lanes that diverge are run in groups, lowest instruction first, which brings them together again where their ways meet.
An instruction is decoded once into two calls without arguments.  ``full`` works on all lanes, those that have ended
included, whose registers nobody sees.  ``masked`` works on the lanes of ``mask``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import Any, cast

import numpy as np

from bolt_numba.base.errors import SimulationError
from bolt_numba.base.records import record
from bolt_numba_simulator.ptx.instructions.barriers import Barriers
from bolt_numba_simulator.ptx.instructions.table import OPCODES
from bolt_numba_simulator.ptx.state.memory import GlobalMemory
from bolt_numba_simulator.ptx.state.operands import LaneOperands
from bolt_numba_simulator.ptx.state.registers import LaneRegisters, written
from bolt_numba_simulator.ptx.state.spaces import LocalMemory, SharedMemory
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import Checks, FaultError, RefusedError

Call = Callable[[], Any]
STEPS = 4_000_000
"""Runs of straight code after which a launch counts as one that never ends."""
_PATIENCE = 200
"""So often a group may jump back while others wait to run; then these have a turn."""
ENDS = {"bra", "brx", "ret", "exit", "trap", "bar", "barrier", "brkpt"}


@record(eq=False)
class Straight:
    """Instructions that run one after another.  kind: how they end, an opcode of `ENDS`, "wait", or "" to go on."""

    first: int
    full: list[Call] = field(default_factory=list)
    masked: list[Call] = field(default_factory=list)
    kind: str = ""
    ending: Statement | None = None
    target: int = -1
    targets: Any = None
    guard: Any = None
    act: Any = None
    runs: int = 0
    names: Counter[str] = field(default_factory=Counter)


class Machine(LaneOperands):
    """A kernel decoded for batches of so many blocks."""

    def __init__(self, program: Any, threads: tuple[int, int, int], blocks: int) -> None:
        self.program, self.threads, self.blocks = program, threads, blocks
        self.routine = program.routine
        count = threads[0] * threads[1] * threads[2]
        self.warps = -(-count // 32)
        self.per_block = 32 * self.warps
        self.n = n = blocks * self.per_block
        lane = np.arange(n)
        self.block, self.linear = lane // self.per_block, lane % self.per_block
        self.lane, self.warp = lane % 32, self.linear // 32
        self.real, self.warp_index = self.linear < count, lane // 32
        self.every = np.arange(n)
        self.mask, self.guard = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.where = self.mask
        self.alive, self.pc = np.zeros(n, np.bool_), np.zeros(n, np.int64)
        self.idx: Any = slice(None)
        self.registers = LaneRegisters(program.places, n)
        self.specials: dict[str, Any] = {}
        self.params = np.zeros(max(program.param_bytes, 8), np.uint8)
        self.shared = SharedMemory(self, program)
        self.local = LocalMemory(program.local_bytes, n)
        self.barriers = Barriers(self)
        self.memory = GlobalMemory(1)
        self.checks, self.report = Checks(), cast(Any, None)
        self.copies: list[Any] = []
        self.group = np.zeros(n, np.int64)
        self.products: dict[int, list[list[Any]]] = {}
        self.fragments: dict[Any, Any] = {}
        self.versions: dict[str, int] = {}
        self.code = self._decode()

    # -- decoding

    def _decode(self) -> list[Straight]:
        code, labels = self.routine.code, self.routine.labels
        starts = {0, *labels.values()}
        for at, ins in enumerate(code):
            if ins.op in ENDS:
                starts.add(at + 1)
            elif _waits(ins):
                starts |= {at, at + 1}
        order = sorted(at for at in starts if at <= len(code))
        self.number = {at: i for i, at in enumerate(order)}
        made, refused = [], []
        for at, end in zip(order, [*order[1:], len(code)], strict=True):
            block = Straight(at)
            made.append(block)
            self.fragments = {}
            for ins in code[at:end]:
                try:
                    self._add(block, ins)
                except RefusedError as e:
                    refused.append(f"line {ins.line}: {ins.text} ({e})")
                except (KeyError, IndexError) as e:
                    refused.append(f"line {ins.line}: {ins.text} (operand {e})")
        if not made or made[-1].first < len(code):
            made.append(Straight(len(code)))
        self.number.setdefault(len(code), len(made) - 1)
        if refused:
            raise RefusedError("\n  ".join(dict.fromkeys(refused)))
        made[-1].kind = made[-1].kind or "exit"
        return made

    def _add(self, block: Straight, ins: Statement) -> None:
        block.names[".".join([ins.op, *ins.modifiers])] += 1
        guard = None if ins.guard is None else self.registers.arrays[ins.guard]
        if ins.op in ENDS or _waits(ins):
            block.kind, block.ending, block.guard = ins.op if ins.op in ENDS else "wait", ins, guard
            if ins.op == "bra":
                block.target = self.number[self.routine.labels[ins.args[-1]]]
            elif ins.op == "brx":
                numbers = [self.number[self.routine.labels[name]] for name in self.routine.tables[ins.args[-1]]]
                block.targets, block.act = np.array(numbers), self.read(ins.args[0], np.uint32)
            elif block.kind == "wait" or ins.op in ("bar", "barrier"):
                block.act = OPCODES[ins.op](self, ins)
            return
        if ins.op not in OPCODES:
            raise RefusedError("not modelled")
        self.where = self.mask if guard is None else self.guard
        full, masked = OPCODES[ins.op](self, ins)
        self.where = self.mask
        for name in written(ins, self.routine.registers):
            self.versions[name] = self.versions.get(name, 0) + 1
        if guard is not None:
            full = masked = self._guarded(guard, ins.negated, masked)
        block.full.append(full)
        block.masked.append(masked)

    def _guarded(self, guard: Any, negated: bool, masked: Call) -> Call:
        def run() -> None:
            if negated:
                np.greater(self.mask, guard, out=self.guard)
            else:
                np.logical_and(self.mask, guard, out=self.guard)
            if self.guard.any():
                kept, self.idx = self.idx, np.flatnonzero(self.guard)
                masked()
                self.idx = kept

        return run

    # -- running

    def run(self, launch: Any, ids: Any) -> None:
        """Blocks of a launch with these numbers."""
        self.memory, self.checks, self.report = launch.memory, launch.checks, launch.report
        self._begin(launch, ids)
        steps = 0
        try:
            while self._regroup():
                steps = self._run_group(steps)
        except FaultError as e:
            raise self._error(e, self.at) from None
        if self.report is not None:
            for block in self.code:
                for name, count in block.names.items():
                    self.report.instructions[name] += count * block.runs
                block.runs = 0

    def _begin(self, launch: Any, ids: Any) -> None:
        self.alive[...] = self.real & (self.block < len(ids))
        self.pc[...] = 0
        self.group[...] = 0
        self.copies.clear()
        self.products.clear()
        self.turn = self.impatience = 0
        self.at: Straight = self.code[0]
        self.block_ids = np.zeros(self.blocks, np.int64)
        self.block_ids[: len(ids)] = ids
        self.grid, self.shared_bytes = launch.grid, launch.shared
        self.params[: len(launch.params)] = launch.params
        self.shared.restart(launch.shared, launch.checks)
        self.local.restart()
        self.barriers.restart()
        self._fill_specials()

    def _regroup(self) -> bool:
        """Choose the lanes that run next; False when all have ended."""
        ready = np.flatnonzero(self.alive & (self.barriers.waits < 0))
        if ready.size == 0:
            if not self.alive.any():
                return False
            raise self._deadlock()
        places = self.pc[ready]
        low = int(places.min())
        if self.impatience > _PATIENCE:
            low, self.impatience = int(places.max()), 0
        here = places == low
        self.act = ready if here.all() else ready[here]
        self.limit = len(self.code) if self.act.size == ready.size else int(places[~here].min())
        self.mask[...] = False
        self.mask[self.act] = True
        self.full = bool(self.act.size == np.count_nonzero(self.alive))
        self.idx = slice(None) if self.act.size == self.n else self.act
        if self.report is not None:
            self.active_warps = int(self.mask.reshape(-1, 32).any(1).sum())
        return True

    def _run_group(self, steps: int) -> int:
        p = int(self.pc[self.act[0]])
        code = self.code
        while True:
            self.at = block = code[p]
            steps += 1
            if steps > STEPS:
                raise FaultError(f"still runs after {STEPS} steps", int(self.act[0]))
            if self.report is not None:
                block.runs += self.active_warps
            for call in block.full if self.full else block.masked:
                call()
            following = p + 1 if block.kind == "" else self._end(block, p)
            if following < 0:
                return steps
            if following <= p and self.limit < len(code):
                self.impatience += 1
            p = following
            if p >= self.limit or self.impatience > _PATIENCE:
                self.pc[self.act] = p
                return steps

    def _end(self, block: Straight, p: int) -> int:
        """What runs next; -1 where the group has ended or parted."""
        act, rest = self.act, self.act[:0]
        if block.guard is not None:
            taken = (
                block.guard[self.idx] if block.ending is None or not block.ending.negated else ~block.guard[self.idx]
            )
            if self.idx is not act and act.size != taken.size:
                taken = taken[act]
            if not taken.any():
                return p + 1
            if not taken.all():
                act, rest = act[taken], act[~taken]
        if block.kind == "bra":
            if not rest.size:
                return block.target
            self.pc[act] = block.target
        elif block.kind == "brx":
            chosen = np.broadcast_to(block.act(act), act.shape)
            self.pc[act] = block.targets[np.minimum(chosen, block.targets.size - 1)]
        elif block.kind in ("ret", "exit"):
            self.alive[act] = False
            self.barriers.release()
        elif block.kind in ("bar", "barrier"):
            self.pc[act] = p + 1
            block.act(act)
        elif block.kind == "wait":
            self.pc[act] = p + 1
            self.pc[block.act(act)] = p
        else:
            raise FaultError(f"reached {block.kind}", int(act[0]))
        self.pc[rest] = p + 1
        return -1

    # -- errors

    def _error(self, fault: FaultError, block: Straight) -> SimulationError:
        ins: Statement | None = getattr(fault, "instruction", None) or block.ending
        where = f"{ins.text!r} (line {ins.line})" if ins is not None else "its end"
        who = "" if fault.lane is None else f", {self.who(fault.lane)}"
        return SimulationError(f"{self.program.name}: {fault.what}: got {where}{who}, wanted no fault")

    def who(self, lane: int) -> str:
        """Block and thread of a lane."""
        b, t = int(self.block_ids[self.block[lane]]), int(self.linear[lane])
        gx, gy, _ = self.grid
        x, y, _ = self.threads
        return f"block ({b % gx}, {b // gx % gy}, {b // (gx * gy)}), thread ({t % x}, {t // x % y}, {t // (x * y)})"

    def _deadlock(self) -> FaultError:
        waiting = np.flatnonzero(self.alive)
        places = Counter(self.pc[waiting].tolist())
        lines = []
        for place, count in places.most_common(4):
            waits = self.code[place].kind == "wait"
            ins = self.code[place if waits else place - 1].ending
            lines.append(
                f"{count} threads at {ins.text!r} (line {ins.line})" if ins is not None else f"{count} threads"
            )
        self.at = Straight(0, ending=None)
        return FaultError(f"deadlock, {'; '.join(lines)}", int(waiting[0]))


def _waits(ins: Statement) -> bool:
    return ins.op == "mbarrier" and ins.modifiers[0] in ("try_wait", "test_wait")
