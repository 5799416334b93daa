"""Barriers of a block: ``bar``, named or not, and mbarriers in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.state.spaces import SHARED_WINDOW, fault
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import BOOL, U32, U64, Lanes, RefusedError

NAMED = 16
_MBARRIER = 1000
"""What a lane waits for: the number of a named barrier, or this for an mbarrier."""


@record(eq=False)
class Mbarrier:
    """A barrier in shared memory.  clocks: what those know who have seen a phase end (see `order`)."""

    count: int
    pending: int
    nbytes: int = 0
    phase: int = 0
    clock: Any = None
    ended: Any = None


class Barriers:
    """Which lanes of a machine wait, and for what."""

    def __init__(self, machine: Any) -> None:
        self.m = machine
        self.waits = np.full(machine.n, -1, np.int64)
        self.arrived = np.zeros((NAMED, machine.blocks), np.int64)
        self.wanted = np.zeros((NAMED, machine.blocks), np.int64)
        self.restart()

    def restart(self) -> None:
        self.waits[...] = -1
        self.arrived[...] = self.wanted[...] = 0
        self.votes: list[Any] = []
        self.mbarriers: dict[tuple[int, int], Mbarrier] = {}
        self.waiting: dict[tuple[int, int, int], list[Any]] = {}
        self.early: dict[tuple[int, int], list[Any]] = {}

    def arrive(self, act: Any, number: int, count: int | None, waits: bool, ins: Statement) -> None:
        m = self.m
        if not 0 <= number < NAMED:
            raise fault(ins, f"barrier {number}, of which there are {NAMED}", int(act[0]))
        per_warp = np.bincount(act >> 5, minlength=m.n >> 5)
        alive = m.alive.reshape(-1, 32).sum(1)
        aligned = ins.op == "bar" or "aligned" in ins.modifiers
        parted = np.flatnonzero((per_warp > 0) & (per_warp < alive))
        if aligned and parted.size:
            lane = int(act[(act >> 5) == parted[0]][0])
            raise fault(ins, "barrier divergence: some threads of a warp are not at this barrier", lane)
        blocks = np.unique(m.block[act])
        if count is not None:
            self.wanted[number, blocks] = count
        if waits:
            self.waits[act] = number
        else:
            for block in blocks:
                warps = np.unique(m.warp[act[m.block[act] == block]])
                self.arrived[number, block] += 32 * warps.size
                self.early.setdefault((number, int(block)), []).append(warps)
        self.release(number)

    def release(self, *numbers: int) -> None:
        """Let go who has waited for all; a thread that has ended is waited for by nobody."""
        m = self.m
        for number in numbers or np.unique(self.waits[(self.waits >= 0) & (self.waits < NAMED)]):
            number = int(number)
            alive = 32 * m.alive.reshape(m.blocks, -1, 32).any(2).sum(1)
            wanted = np.where(self.wanted[number] > 0, -(-self.wanted[number] // 32) * 32, alive)
            here = self.waits == number
            arrived = self.arrived[number] + self._threads(here)
            done = (arrived >= wanted) & (arrived > 0)
            if not done.any():
                continue
            freed = here & done[m.block]
            self.arrived[number, done] = self.wanted[number, done] = 0
            self._order(number, done, freed)
            self.waits[freed] = -1
            self._vote(freed)

    def _threads(self, here: Any) -> Any:
        """Threads of each block that wait here; a warp that is there as a whole counts 32."""
        ways = here.reshape(-1, 32)
        whole = (here | ~self.m.alive).reshape(-1, 32).all(1) & ways.any(1)
        return np.where(whole, 32, ways.sum(1)).reshape(self.m.blocks, -1).sum(1)

    def _order(self, number: int, done: Any, freed: Any) -> None:
        m, order = self.m, self.m.shared.races
        if order is None:
            return
        whole = (m.alive & ~freed).reshape(m.blocks, -1).any(1)
        if not m.program.bulk:
            full = np.flatnonzero(done & ~whole)
            if full.size:
                order.full_barrier(full)
            done = done & whole
        for block in np.flatnonzero(done):
            warps = np.unique(m.warp[freed & (m.block == block)])
            order.barrier(int(block), warps, np.concatenate([warps, *self.early.pop((number, int(block)), [])]))

    def _vote(self, freed: Any) -> None:
        """Results of ``bar.red``."""
        m, kept = self.m, []
        for lanes, values, target, how in self.votes:
            now = freed[lanes]
            if not now.all():
                kept.append((lanes[~now], values[~now], target, how))
            lanes, values = lanes[now], values[now]
            yes = np.bincount(m.block[lanes], values, m.blocks).astype(np.int64)
            total = np.bincount(m.block[lanes], minlength=m.blocks)
            found = {"popc": yes, "and": yes == total, "or": yes > 0}[how]
            target[lanes] = found[m.block[lanes]]
        self.votes = kept

    # -- mbarriers

    def find(self, block: int, address: int, ins: Statement, lane: int) -> Mbarrier:
        found = self.mbarriers.get((block, address))
        if found is None:
            raise fault(ins, f"no mbarrier was initialised at byte {address} of shared memory", lane)
        return found

    def signal(
        self, block: int, address: int, arrivals: int, nbytes: int, clock: Any, ins: Statement, lane: int
    ) -> None:
        """Arrivals at an mbarrier, and bytes that it has yet to wait for (or, negative, that have come)."""
        found = self.find(block, address, ins, lane)
        found.pending -= arrivals
        found.nbytes += nbytes
        if clock is not None:
            found.clock = clock if found.clock is None else np.maximum(found.clock, clock)
        if found.pending < 0:
            raise fault(ins, f"more arrivals at an mbarrier than the {found.count} that it counts", lane)
        if found.pending == 0 and found.nbytes == 0:
            found.phase += 1
            found.pending, found.ended = found.count, found.clock
            for lanes in self.waiting.pop((block, address, found.phase - 1 & 1), []):
                self.waits[lanes] = -1

    def passed(self, act: Any, address: Any, parity: Any, ins: Statement) -> Any:
        """Which lanes need not wait for the phase of this parity; the others begin to."""
        m, order = self.m, self.m.shared.races
        ok = np.zeros(act.size, np.bool_)
        blocks = m.block[act]
        for block, where, odd in {*zip(blocks.tolist(), address.tolist(), parity.tolist(), strict=True)}:
            here = np.flatnonzero((blocks == block) & (address == where) & (parity == odd))
            found = self.find(block, where, ins, int(act[here[0]]))
            if found.phase & 1 == odd:
                self.waits[act[here]] = _MBARRIER
                self.waiting.setdefault((block, where, odd), []).append(act[here])
            else:
                ok[here] = True
                if order is not None and found.ended is not None:
                    order.learn(block, m.warp[act[here]], found.ended)
        return ok


@opcode("bar", "barrier")
def bar(m: Any, ins: Statement) -> Any:
    """Gives a function of the lanes that come; those of ``bar.warp`` are together by then."""
    how = [name for name in ins.modifiers if name not in ("cta", "aligned")]
    if how[0] == "warp":
        return lambda act: None
    if how[0] not in ("sync", "arrive", "red"):
        raise RefusedError("not modelled")
    args, target = list(ins.args), None
    if how[0] == "red":
        target = m.target(args.pop(0), BOOL if how[-1] == "pred" else U32)
        negated = args[-1].startswith("!")
        vote = m.read(args.pop().lstrip("!"), BOOL)
    number = m.read(args[0], U32)
    count = m.read(args[1], U32) if len(args) > 1 else None

    def act_on(act: Any) -> None:
        if target is not None:
            values = np.broadcast_to(vote(act), act.shape)
            m.barriers.votes.append((act, ~values if negated else values.copy(), target, how[1]))
        numbers = np.broadcast_to(number(act), act.shape)
        wanted = None if count is None else np.broadcast_to(count(act), act.shape)
        for one in np.unique(numbers):
            here = numbers == one
            m.barriers.arrive(
                act[here], int(one), None if wanted is None else int(wanted[here][0]), how[0] != "arrive", ins
            )

    return act_on


@opcode("mbarrier")
def mbarrier(m: Any, ins: Statement) -> Any:
    how = ins.modifiers
    if how[0] in ("try_wait", "test_wait"):
        return _wait(m, ins)
    if how[0] == "init":
        return _init(m, ins)
    if how[0] in ("arrive", "expect_tx", "complete_tx"):
        return _arrive(m, ins)
    if how[0] in ("inval", "fence"):
        return m.indexed(lambda idx: None)
    raise RefusedError("not modelled")


def _shared_address(m: Any, text: str) -> Any:
    """An address of shared memory that may be generic."""
    plain = m.address(text)

    def found(idx: Lanes) -> Any:
        address = plain(idx)
        return np.where(address >= SHARED_WINDOW, address - SHARED_WINDOW, address)

    return found


def _wait(m: Any, ins: Statement) -> Any:
    target, address = m.target(ins.args[0], BOOL), _shared_address(m, ins.args[1])
    parity = m.read(ins.args[2], U32 if "parity" in ins.modifiers else U64)

    def act_on(act: Any) -> Any:
        odd = np.broadcast_to(parity(act), act.shape).astype(np.int64) & 1
        ok = m.barriers.passed(act, address(act), odd, ins)
        target[act[ok]] = True
        return act[~ok]

    return act_on


def _init(m: Any, ins: Statement) -> Any:
    address, count = _shared_address(m, ins.args[0]), m.read(ins.args[1], U32)

    def act_on(idx: Lanes) -> None:
        lanes, where = m.every[idx], address(idx)
        offsets = m.shared.offsets(where, lanes, 8, ins)
        m.shared.written[(offsets[:, None] + np.arange(8)).reshape(-1)] = 255
        counts = np.broadcast_to(count(idx), lanes.shape)
        for lane, at, number in zip(lanes.tolist(), where.tolist(), counts.tolist(), strict=True):
            m.barriers.mbarriers[int(m.block[lane]), at] = Mbarrier(number, number)

    return m.indexed(act_on)


def _arrive(m: Any, ins: Statement) -> Any:
    how = ins.modifiers
    arrives = how[0] == "arrive"
    args = ins.args[1:] if arrives and not ins.args[0].startswith("[") else ins.args
    state = m.target(ins.args[0], U64) if len(args) < len(ins.args) else None
    address = _shared_address(m, args[0])
    number = m.read(args[1], U32) if len(args) > 1 else None
    sign = -1 if how[0] == "complete_tx" else 1
    moves = not arrives or "expect_tx" in how

    def act_on(idx: Lanes) -> None:
        lanes, where, order = m.every[idx], address(idx), m.shared.races
        numbers = np.broadcast_to(1 if number is None else number(idx), lanes.shape).astype(np.int64)
        blocks = m.block[lanes]
        for block, at in dict.fromkeys(zip(blocks.tolist(), where.tolist(), strict=True)):
            here = np.flatnonzero((blocks == block) & (where == at))
            total = int(numbers[here].sum())
            found = m.barriers.find(block, at, ins, int(lanes[here[0]]))
            if state is not None:
                state[lanes[here]] = found.phase
            arrivals = 0 if not arrives else here.size if moves else total
            clock = order.arrival(block, np.unique(m.warp[lanes[here]])) if order is not None and arrives else None
            m.barriers.signal(block, at, arrivals, sign * total if moves else 0, clock, ins, int(lanes[here[0]]))

    return m.indexed(act_on)
