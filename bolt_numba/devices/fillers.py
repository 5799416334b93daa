"""Tables that kernels fill in when a program's sizes change: where they are in one block of memory, and the calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from bolt_numba.base.follow import Followed
from bolt_numba.base.selects import FilledTable
from bolt_numba.base.types import Array
from bolt_numba.devices.program import pointer
from bolt_numba.devices.tape_code import TapeCode
from bolt_numba.devices.threads import run_native
from bolt_numba.kernels.cpu.executor import run_steps
from bolt_numba.kernels.cpu.fillers import FILLERS
from bolt_numba.kernels.cpu.tape import ADDRESS, WORD, fill
from bolt_numba.runtime.device import HOST

LINE = 64
"""Bytes at whose multiples tables begin."""
Places = Sequence[tuple[int, Any]]
"""Words of an image, and how many bytes behind the begin of a table the address there is."""


class TableBlock:
    """Tables that kernels fill, one behind the other in a block.

    begins: where each begins; end: bytes of the block; followed.  places: where their addresses are.
    """

    def __init__(self, filled: Sequence[tuple[FilledTable, Places]]) -> None:
        self.tables, self.places = [table for table, _ in filled], [places for _, places in filled]
        *self.begins, self.end = accumulate((-(-t.nbytes // LINE) * LINE for t in self.tables), initial=0)

    @property
    def wanted(self) -> list[Any]:
        """All numbers that are asked for."""
        given = [number for table in self.tables for number in table.args.values()]
        return [*self.begins, self.end, *given, *(table.nbytes for table in self.tables)]

    def rows(self, kind: int) -> list[tuple[int, int, Any]]:
        """What writes their addresses into an image."""
        places = zip(self.begins, self.places, strict=True)
        return [(8 * word, kind, begin + offset) for begin, rows in places for word, offset in rows]


class Fillers:
    """The calls that fill tables.

    reads: registers of all that the tables follow from; end: of the bytes of the block.  places: of each table, the
    registers of its begin and of its bytes.
    """

    def __init__(self, laid: TableBlock, tape: TapeCode) -> None:
        tables, begins, self.end = laid.tables, laid.begins, tape.register(laid.end)
        self.places = [(tape.register(b), tape.register(t.nbytes)) for b, t in zip(begins, tables, strict=True)]
        numbers = [n for n in (*(n for t in tables for n in t.args.values()), *begins) if type(n) is Followed]
        self.reads = np.unique(np.array([tape.register(n) for n in numbers], np.int64))
        kernels, rows, words, offsets = [], list[tuple[int, int, int]](), list[int](), list[int]()
        for table, begin in zip(tables, begins, strict=True):
            kernels.append(FILLERS[table.filler])
            offsets.append(8 * len(words))
            for name in kernels[-1].fields:
                number = begin if name == "to" else table.args[name]
                if name == "to" or type(number) is Followed:
                    rows.append((8 * len(words), ADDRESS if name == "to" else WORD, tape.register(number)))
                words.append(0 if type(number) is Followed else int(number))
        self.rows, self.words, self.offsets = (np.array(row, np.int64) for row in (rows, words, offsets))
        self.kernels = np.array([kernel.address for kernel in kernels], np.int64)
        self.none = np.zeros(len(tables), np.int64)

    def made(self, registers: Array) -> Array:
        """A block of its own, filled."""
        block: Array = HOST.allocate(int(registers[self.end]))
        Refill(self, registers).write(block)
        return block

    def arrays(self, registers: Array) -> list[Array]:
        """Each table as bytes."""
        block, places = self.made(registers), registers[np.array(self.places)].tolist()
        return [block[first : first + nbytes] for first, nbytes in places]


class Refill:
    """The calls of fillers for registers that change, one block at a time."""

    def __init__(self, fillers: Fillers, registers: Array) -> None:
        words, self.base = fillers.words.copy(), np.zeros(1, np.int64)
        values = pointer(fillers.rows), len(fillers.rows), pointer(registers), pointer(words), pointer(self.base)
        record, params = np.array(values), fillers.offsets + pointer(words)
        call = run_steps.record(
            kernels=fillers.kernels, params=params, flags=fillers.none, ticks=np.zeros(len(params) + 1, np.int64),
            steps=len(params), timed=0, stop=None,
        )  # fmt: skip
        self.kept = fillers, registers, words, record, params, call
        self.record, self.call = pointer(record), call.ctypes.data

    def write(self, block: Array) -> None:
        """Write all tables into the block."""
        self.base[0] = id(block)
        fill.call_at(self.record)
        run_native(self.call, 1)
