"""What is computed of sizes when a new shape comes: the lines of a trail as integer operations, natively.

The lines of a trail (`bolt_numba.base.follow`) become a tape of integer operations (`kernels.cpu.tape`).  Lines that
are more than that, such as tables, run in Python between its parts, and what they gave for the same numbers is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from bolt_numba.base.follow import Followed, LostError, Trail
from bolt_numba.base.records import record
from bolt_numba.devices.program import pointer
from bolt_numba.kernels.cpu.tape import COMPARISONS, MOST, OPERATIONS, evaluate
from bolt_numba.types import Array

_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_ATOM = re.compile(r"v\d+|n\d+_\d+|\(-\d+\)|-?\d+|True|False").fullmatch
_NAMES = re.compile(r"\b(?:v\d+|n\d+_\d+)\b").findall
_BEYOND = int(MOST)
_KEPT = 16
"""Results of a piece in Python that are kept, by the numbers that it read."""


Last = tuple[Array, bytes, dict[str, Any]]
"""Registers of some numbers, what Python read of them, and the objects that it gave."""


@record(eq=False)
class _Piece:
    """Lines that Python runs and that have results in common.

    reads: registers of the numbers that ``run`` is given; names: of the objects of earlier parts.  run: gives integers
    for the registers from ``to`` on, and objects by name; None: something does not hold.
    """

    reads: Array
    names: tuple[str, ...]
    run: Any
    to: int
    kept: dict[tuple[int, ...], Any] = field(default_factory=dict)


@record(eq=False)
class _Part:
    """Rows of a tape, and what runs in Python behind them."""

    first: int
    last: int
    pieces: list[_Piece]


class TapeCode:
    """What lines of a trail compute from its numbers.  wanted: followed numbers, tables and others that are asked for.

    Raises LostError where that is not possible.
    """

    def __init__(self, trail: Trail, numbers: Sequence[str], wanted: Iterable[Any]) -> None:
        self.trail = trail
        self.registers: dict[str, int] = {name: 1 + i for i, name in enumerate(numbers)}
        self.numbers = len(numbers)
        self._constants: dict[int, int] = {}
        names: set[str] = set()
        for one in wanted:
            if type(one) is Followed:
                names.update(_NAMES(one._text))
            else:
                self._constant(str(one))
        lines = self._needed(names)
        levels = self._levels(lines)
        self._lay_out(lines, levels)

    # --- lines to parts ----------------------------------------------------------------------------------------------

    def _needed(self, names: set[str]) -> list[tuple[str, str]]:
        """The lines that these names and all guards come from, in order."""
        made = []
        for name, text in reversed(self.trail.lines):
            if name and name not in names:
                continue
            names.update(_NAMES(text))
            made.append((name, text))
        return made[::-1]

    def _operation(self, name: str, text: str) -> tuple[str, str, str] | None:
        """A line as an operation on integers: what, and its operands; None where Python has to run it."""
        if name:
            found = self.trail.forms.get(name)
            if found is None or found[0] not in _NUMBER or type(self.trail.values[name]) not in (int, bool):
                return None
        elif text.startswith("not "):
            found = "is not", text[4:], "0"
        else:
            found = "is", text, "0"
        if found[0] in COMPARISONS:
            found = found[0], _clipped(found[1]), _clipped(found[2])
        return found if self._is_integer(found[1]) and self._is_integer(found[2]) else None

    def _is_integer(self, atom: str) -> bool:
        if not _ATOM(atom):
            return False
        if atom[0] not in "vn":
            return abs(_plain(atom)) <= _BEYOND
        return type(self.trail.values[atom]) in (int, bool)

    def _levels(self, lines: Sequence[tuple[str, str]]) -> list[tuple[int, tuple[str, str, str] | None]]:
        """Of each line the part that it belongs to, and its operation if it is native."""
        level: dict[str, tuple[int, bool]] = {}
        made = []
        for name, text in lines:
            operation = self._operation(name, text)
            is_native = operation is not None
            found = 0
            for other in _NAMES(text):
                part, native = level.get(other, (0, True))
                found = max(found, part + (is_native and not native))
            if name:
                level[name] = found, is_native
            made.append((found, operation))
        return made

    def _lay_out(
        self, lines: Sequence[tuple[str, str]], levels: Sequence[tuple[int, tuple[str, str, str] | None]]
    ) -> None:
        count = max((level for level, _ in levels), default=-1) + 1
        native: list[list[tuple[str, tuple[str, str, str]]]] = [[] for _ in range(count)]
        lines_of: list[list[tuple[str, str]]] = [[] for _ in range(count)]
        for (name, text), (level, found) in zip(lines, levels, strict=True):
            if found is None:
                lines_of[level].append((name, text))
            else:
                native[level].append((name, found))
        for _, operation in (line for part in native for line in part):
            for atom in operation[1:]:
                self._constant(atom)
        python = list(map(_apart, lines_of))
        texts = [line for part in python for piece in part for line in piece]
        integers = [name for name, _ in texts if name and self._is_integer(name)]
        first_integer = 1 + self.numbers + len(self._constants)
        for i, name in enumerate(integers):
            self.registers[name] = first_integer + i
        self.base = first_integer + len(integers)
        rows: list[tuple[int, int, int]] = []
        self.parts: list[_Part] = []
        for operations, pieces in zip(native, python, strict=True):
            first = len(rows)
            for name, (what, a, b) in operations:
                if name:
                    self.registers[name] = self.base + len(rows)
                rows.append((_NUMBER[what], self._register(a), self._register(b)))
            self.parts.append(_Part(first, len(rows), list(map(self._python, pieces))))
        self.rows = np.array(rows, np.int64).reshape(-1, 3)
        self.calls = self.base + len(rows)
        self.start = np.zeros(self.calls + 5 * (1 + len(self.parts)), np.int64)
        self.start[0] = 1
        for number, register in self._constants.items():
            self.start[register] = number
        ranges = [(0, len(rows)), *((part.first, part.last) for part in self.parts)]
        for (first, last), at in zip(ranges, range(self.calls, len(self.start), 5), strict=True):
            self.start[at : at + 5] = self.rows.ctypes.data, 0, first, last, self.base
        reads = [piece.reads for part in self.parts for piece in part.pieces]
        self.reads = np.unique(np.concatenate(reads)) if reads else np.empty(0, np.int64)
        self.last: Last | None = None if reads else (self.start, b"", {})

    def _constant(self, atom: str) -> None:
        if atom[0] not in "vn":
            number = _plain(atom)
            self._constants.setdefault(number, 1 + self.numbers + len(self._constants))

    def _register(self, atom: str) -> int:
        return self.registers[atom] if atom[0] in "vn" else self._constants[_plain(atom)]

    def _python(self, texts: Sequence[tuple[str, str]]) -> _Piece:
        """Lines as a function."""
        own = {name for name, _ in texts if name}
        read = dict.fromkeys(n for _, text in texts for n in _NAMES(text) if n not in own)
        numbers = [n for n in read if n in self.registers]
        given_objects = tuple(n for n in read if n not in self.registers)
        integers = [name for name, _ in texts if name and self._is_integer(name)]
        objects = [name for name, _ in texts if name and not self._is_integer(name)]
        body = [f"    {name} = {text}\n" if name else f"    if not ({text}): return None\n" for name, text in texts]
        given = f"    {', '.join(numbers)}, = numbers\n" if numbers else ""
        given += f"    {', '.join(given_objects)}, = objects\n" if given_objects else ""
        named = ", ".join(f"{name!r}: {name}" for name in objects)
        made = f"    return [{', '.join(integers)}], {{{named}}}\n"
        scope = dict(self.trail.scope)
        exec(f"def made(numbers, objects):\n{given}{''.join(body)}{made}", scope)
        reads = np.array([self.registers[n] for n in numbers], np.int64)
        return _Piece(reads, given_objects, scope["made"], self.registers[integers[0]] if integers else 0)

    # --- use ---------------------------------------------------------------------------------------------------------

    @property
    def constants(self) -> dict[int, int]:
        """Numbers that are the same for all sizes, and their registers."""
        return self._constants

    @property
    def integers(self) -> range:
        """Registers of the integers that Python gives."""
        return range(1 + self.numbers + len(self._constants), self.base)

    def register(self, number: Any) -> int:
        """Where one of the integers that are wanted is found."""
        found = self.registers.get(number._text) if type(number) is Followed else self._constants.get(number)
        if found is None:
            raise LostError("a number that no register holds")
        return found

    def at(self, sizes: Sequence[int]) -> tuple[Array, dict[str, Any]] | None:
        """All registers and objects for these numbers; None where something does not hold.

        What Python gave last is tried first: all rows are then one native call, as long as Python would read the same.
        """
        call, last = self.calls, self.last
        if last is not None:
            registers = last[0].copy()  # behind them are the records of the calls of `evaluate`
            registers[1 : 1 + self.numbers] = sizes
            registers[call + 1] = address = pointer(registers)
            evaluate.call_at(address + 8 * call)
            if registers[0] and registers[self.reads].tobytes() == last[1]:
                return registers, last[2]
            if not len(self.reads):
                return None
        return self._by_parts(sizes)

    def _by_parts(self, sizes: Sequence[int]) -> tuple[Array, dict[str, Any]] | None:
        registers = self.start.copy()
        registers[1 : 1 + self.numbers] = sizes
        address, call = pointer(registers), self.calls + 5
        registers[call + 1 :: 5] = address
        objects: dict[str, Any] = {}
        for part in self.parts:
            evaluate.call_at(address + 8 * call)
            if not registers[0]:
                return None
            call += 5
            for piece in part.pieces:
                made = self._run(piece, registers, objects)
                if made is None:
                    return None
                registers[piece.to : piece.to + len(made[0])] = made[0]
                objects.update(made[1])
        self.last = registers, registers[self.reads].tobytes(), objects
        return registers, objects

    def _run(self, piece: _Piece, registers: Array, objects: dict[str, Any]) -> Any:
        numbers = tuple(registers[piece.reads].tolist())
        if piece.names:
            return _tried(piece, numbers, [objects[name] for name in piece.names])
        made = piece.kept.get(numbers, piece)
        if made is piece:
            if len(piece.kept) >= _KEPT:
                piece.kept.clear()
            made = piece.kept[numbers] = _tried(piece, numbers, ())
        return made


def _apart(lines: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Lines in pieces, in order, of which none reads a result of another."""
    own, pieces = {name for name, _ in lines if name}, list[list[tuple[str, str]]]()
    piece_of: dict[str, list[tuple[str, str]]] = {}
    for name, text in lines:
        joined = list({id(p): p for n in _NAMES(text) if n in own for p in [piece_of[n]]}.values())
        piece = [line for p in joined for line in p]
        pieces = [p for p in pieces if all(p is not other for other in joined)]
        pieces.append(piece := [*piece, (name, text)])
        piece_of |= {n: piece for n, _ in piece if n}
    return pieces


def _tried(piece: _Piece, numbers: Sequence[int], objects: Sequence[Any]) -> Any:
    try:
        made = piece.run(numbers, objects)
        return made if made is None else (np.array(made[0], np.int64), made[1])
    except Exception:  # what it computes may end in an error before it comes to what decides otherwise
        return None


def _clipped(atom: str) -> str:
    """A number beyond all that registers hold compares with them as the first such one does."""
    is_number = _ATOM(atom) and atom[0] not in "vn"
    return str(max(-_BEYOND, min(_BEYOND, _plain(atom)))) if is_number else atom


def _plain(atom: str) -> int:
    return int(atom == "True") if atom in ("True", "False") else int(atom.strip("()"))
