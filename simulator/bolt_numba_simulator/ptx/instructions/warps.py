"""What lanes of a warp do together: shuffles, votes, matches, reductions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.state.spaces import fault
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import BOOL, U32, Lanes, RefusedError, dtype_of


class _Members:
    """Holds the mask of a collective against the lanes that come."""

    def __init__(self, m: Any, ins: Statement, text: str | None) -> None:
        self.m, self.ins = m, ins
        self.mask = None if text is None else m.read(text, U32)

    def __call__(self, idx: Lanes) -> Any:
        """Lanes, sorted."""
        m, lanes = self.m, self.m.every[idx]
        if self.mask is None:
            return lanes
        named = np.broadcast_to(self.mask(idx), lanes.shape)
        bit = np.uint32(1) << m.lane[lanes].astype(U32)
        if not (named & bit).all():
            at = int(np.flatnonzero(named & bit == 0)[0])
            raise fault(
                self.ins,
                f"a thread that the mask 0x{int(named[at]):x} of a warp's operation does not name",
                int(lanes[at]),
            )
        came = together(m, lanes, np.ones(lanes.shape, np.bool_))
        alive = together(m, np.flatnonzero(m.alive), np.ones(int(m.alive.sum()), np.bool_))
        missing = named & alive[m.warp_index[lanes]] & ~came[m.warp_index[lanes]]
        if missing.any():
            at = int(np.flatnonzero(missing)[0])
            raise fault(self.ins, "threads that a warp's operation names have not come: they diverged", int(lanes[at]))
        return lanes


def together(m: Any, lanes: Any, yes: Any) -> Any:
    """For each warp of the machine, bits of the lanes that say yes."""
    say = np.zeros(m.n, np.bool_)
    say[lanes] = yes
    return np.packbits(say.reshape(-1, 32), axis=1, bitorder="little").view(U32).reshape(-1)


@opcode("activemask")
def activemask(m: Any, ins: Statement) -> Any:
    target = m.target(ins.args[0], U32)

    def act(idx: Lanes) -> None:
        lanes = m.every[idx]
        target[idx] = together(m, lanes, True)[m.warp_index[lanes]]

    return m.indexed(act)


@opcode("elect")
def elect(m: Any, ins: Statement) -> Any:
    """The lowest lane of the warp."""
    names = re.split(r"\s*\|\s*", ins.args[0])
    target, chosen = m.target(names[0], U32), m.target(names[1], BOOL)

    def act(idx: Lanes) -> None:
        lanes = m.every[idx]
        warps, first = np.unique(m.warp_index[lanes], return_index=True)
        lowest = np.zeros(m.n // 32, np.int64)
        lowest[warps] = lanes[first]
        target[idx] = lowest[m.warp_index[lanes]] % 32
        chosen[idx] = lowest[m.warp_index[lanes]] == lanes

    return m.indexed(act)


@opcode("shfl")
def shfl(m: Any, ins: Statement) -> Any:
    if ins.modifiers[0] != "sync":
        raise RefusedError("not modelled")
    mode = ins.modifiers[1]
    names = re.split(r"\s*\|\s*", ins.args[0])
    target, inside = m.target(names[0], U32), m.target(names[1], BOOL) if len(names) > 1 else None
    value, by, clamp = (m.read(arg, U32) for arg in ins.args[1:4])
    members = _Members(m, ins, ins.args[4])
    values, present = np.zeros(m.n, U32), np.zeros(m.n, np.bool_)

    def act(idx: Lanes) -> None:
        lanes = members(idx)
        values[idx] = value(idx)
        lane = m.lane[lanes]
        b, c = by(idx).astype(np.int64) & 31, clamp(idx).astype(np.int64)
        limit, segment = c & 31, c >> 8 & 31
        highest, lowest = (lane & segment) | (limit & ~segment), lane & segment
        if mode == "up":
            to = lane - b
            ok = to >= highest
        else:
            to = {"down": lane + b, "bfly": lane ^ b, "idx": lowest | (b & ~segment)}[mode]
            ok = to <= highest
        to = np.where(ok, to, lane)
        if lanes.size < m.n:
            present[...] = False
            present[lanes] = True
            bad = ~present[lanes - lane + to]
            if bad.any():
                raise fault(ins, "a shuffle reads from a lane that takes no part", int(lanes[np.flatnonzero(bad)[0]]))
        target[idx] = values[lanes - lane + to]
        if inside is not None:
            inside[idx] = ok

    return m.indexed(act)


@opcode("vote")
def vote(m: Any, ins: Statement) -> Any:
    if ins.modifiers[0] != "sync":
        raise RefusedError("not modelled")
    mode, negated = ins.modifiers[1], ins.args[1].startswith("!")
    value = m.read(ins.args[1].lstrip("!"), BOOL)
    target = m.target(ins.args[0], U32 if mode == "ballot" else BOOL)
    members = _Members(m, ins, ins.args[2])

    def act(idx: Lanes) -> None:
        lanes = members(idx)
        yes = np.broadcast_to(value(idx), lanes.shape)
        found = together(m, lanes, ~yes if negated else yes)[m.warp_index[lanes]]
        came = together(m, lanes, True)[m.warp_index[lanes]]
        results = {"ballot": found, "any": found != 0, "all": found == came, "uni": (found == 0) | (found == came)}
        target[idx] = results[mode]

    return m.indexed(act)


@opcode("match")
def match(m: Any, ins: Statement) -> Any:
    """Lanes of the warp whose value is the same."""
    everyone = "all" in ins.modifiers
    names = re.split(r"\s*\|\s*", ins.args[0])
    target, same = m.target(names[0], U32), m.target(names[1], BOOL) if len(names) > 1 else None
    value, members = m.read(ins.args[1], dtype_of(ins.modifiers)), _Members(m, ins, ins.args[2])

    def act(idx: Lanes) -> None:
        lanes = members(idx)
        values, found = np.broadcast_to(value(idx), lanes.shape), np.zeros(m.n, U32)
        for one in np.unique(values):
            here = lanes[values == one]
            found[here] = together(m, here, True)[m.warp_index[here]]
        if everyone:
            ok = found[lanes] == together(m, lanes, True)[m.warp_index[lanes]]
            target[idx] = np.where(ok, found[lanes], 0)
            if same is not None:
                same[idx] = ok
        else:
            target[idx] = found[lanes]

    return m.indexed(act)


@opcode("redux")
def redux(m: Any, ins: Statement) -> Any:
    op = next(name for name in ins.modifiers if name != "sync")
    ufuncs: dict[str, np.ufunc] = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    dtype = dtype_of(ins.modifiers)
    if dtype.kind == "f":
        raise RefusedError("not modelled")
    target, value, members = m.target(ins.args[0], dtype), m.read(ins.args[1], dtype), _Members(m, ins, ins.args[2])

    def act(idx: Lanes) -> None:
        lanes = members(idx)
        values = np.broadcast_to(value(idx), lanes.shape)
        warps, first = np.unique(m.warp_index[lanes], return_index=True)
        found = np.zeros(m.n // 32, dtype)
        found[warps] = ufuncs[op].reduceat(values, first, dtype=dtype)
        target[idx] = found[m.warp_index[lanes]]

    return m.indexed(act)


def whole_warps(m: Any, idx: Lanes, ins: Statement) -> Any:
    """Lanes of an operation that needs all of each warp."""
    lanes = m.every[idx]
    if lanes.size % 32 or (m.lane[lanes].reshape(-1, 32) != np.arange(32)).any():
        warps, counts = np.unique(m.warp_index[lanes], return_counts=True)
        lane = int(lanes[m.warp_index[lanes] == warps[counts < 32][0]][0])
        raise fault(ins, "an operation of a whole warp by some of its threads", lane)
    return lanes
