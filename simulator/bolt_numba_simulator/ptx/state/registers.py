"""Registers of all lanes as arrays.  Those that are never live together share one, which keeps them in caches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.state.text import Routine, Statement
from bolt_numba_simulator.ptx.state.types import BOOL, DTYPES, unsigned

_TOKEN = re.compile(r"[%A-Za-z_$][\w$@~%]*")
_NO_RESULT = {
    "st", "red", "bra", "brx", "bar", "barrier", "cp", "mbarrier", "wgmma", "ret", "exit", "trap", "fence", "membar",
    "prefetch", "stmatrix", "call", "setmaxnreg", "nanosleep", "griddepcontrol", "prefetchu",
}  # fmt: skip
"""Instructions whose first operand is read, or not only written."""


def _names(text: str, registers: dict[str, str]) -> Iterator[str]:
    return (name for name in _TOKEN.findall(text) if name in registers)


def _occurrences(routine: Routine) -> dict[str, list[int]]:
    """First and last instruction of each register, and whether the first reads it."""
    found: dict[str, list[int]] = {}
    for at, ins in enumerate(routine.code):
        written: set[str] = set()
        reads = set(_names(ins.guard or "", routine.registers))
        for i, arg in enumerate(ins.args):
            names = set(_names(arg, routine.registers))
            if i == 0 and ins.op not in _NO_RESULT:
                written |= names
            else:
                reads |= names
        if ins.guard:
            reads |= written
        for name in written | reads:
            found.setdefault(name, [at, at, int(name in reads)])[1] = at
    return found


def _backward(routine: Routine) -> set[tuple[int, int]]:
    """Jumps to earlier instructions: from where to where the loop reaches."""
    ways = set()
    for at, ins in enumerate(routine.code):
        to = []
        if ins.op == "bra":
            to = [ins.args[-1]]
        elif ins.op == "brx":
            to = routine.tables.get(ins.args[-1], [])
        ways |= {(routine.labels[name], at) for name in to if routine.labels.get(name, at + 1) <= at}
    return ways


def shared_places(routine: Routine) -> dict[str, tuple[int, int]]:
    """By register: bytes of a value (0: a predicate), and number of its array among those of that size."""
    found = _occurrences(routine)
    if not found:
        return {}
    names = list(found)
    first, last, reads = np.array([found[name] for name in names]).T
    loops = _backward(routine)
    while True:
        before = first.sum(), last.sum()
        for start, end in loops:
            last[(first < start) & (last >= start) & (last < end)] = end
            carried = (reads == 1) & (first >= start) & (first <= end)
            first[carried] = start
            last[carried] = np.maximum(last[carried], end)
        if before == (first.sum(), last.sum()):
            break
    places: dict[str, tuple[int, int]] = {}
    free: dict[int, list[tuple[int, int]]] = {}
    counts: dict[int, int] = {}
    for at in np.argsort(first, kind="stable"):
        kind = routine.registers[names[at]]
        size = 0 if kind == "pred" else DTYPES[kind].itemsize
        waiting = free.setdefault(size, [])
        index = next((i for i, (end, _) in enumerate(waiting) if end < first[at]), None)
        if index is None:
            number = counts.get(size, 0)
            counts[size] = number + 1
        else:
            _, number = waiting.pop(index)
        waiting.append((int(last[at]), number))
        places[names[at]] = size, number
    return places


class LaneRegisters:
    """Arrays of one machine by register."""

    def __init__(self, places: dict[str, tuple[int, int]], lanes: int) -> None:
        pool: dict[tuple[int, int], Any] = {}
        self.arrays: dict[str, Any] = {}
        for name, place in places.items():
            if place not in pool:
                pool[place] = np.zeros(lanes, BOOL if place[0] == 0 else unsigned(np.dtype(f"u{place[0]}")))
            self.arrays[name] = pool[place]
        self.nbytes = sum(array.nbytes for array in pool.values())


def written(ins: Statement, registers: dict[str, str]) -> set[str]:
    """LaneRegisters that an instruction may change."""
    if not ins.args or (ins.op in _NO_RESULT and ins.op != "wgmma"):
        return set()
    return set(_names(ins.args[0], registers))
