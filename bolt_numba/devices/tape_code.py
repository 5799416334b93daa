"""What is computed of sizes when a new shape comes: the lines of a trail as integer operations, natively.

The lines of a trail (`bolt_numba.base.follow`) become a tape of integer operations (`kernels.cpu.tape`).  Lines that
are more than that, such as tables, run in Python between its parts, and what they gave for the same numbers is kept.
Numbers of later stages (`runtime.stops`) are told when a program has run so far; what they decide is evaluated then.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from bolt_numba.base.follow import Followed, LostError, Trail
from bolt_numba.base.records import record
from bolt_numba.base.swallowed import swallowed
from bolt_numba.base.types import Array
from bolt_numba.devices.program import pointer
from bolt_numba.kernels.cpu.tape import COMPARISONS, EXACT, GUARDS, MOST_NUMBER, OPERATIONS, evaluate

_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
COMPARED = {_NUMBER[guard]: _NUMBER[guard.removeprefix("is ")] for guard in GUARDS}
"""Of guards that compare, by their numbers, the comparison."""
_NUMERAL = re.compile(r"\(-\d+\)|-?\d+|True|False").fullmatch
_REAL = re.compile(r"\(?-?\d+\.?\d*(e[+-]?\d+)?\)?").fullmatch
_NAMES = re.compile(r"\b(?:v\d+|n\d+_\d+)\b").findall
_BEYOND = int(MOST_NUMBER)
_EXACT = int(EXACT)
NOTHING = b"-"
"""In the place of what Python read where it has not been asked yet."""
_KEPT = 16
"""Results of a piece in Python that are kept, by the numbers that it read."""


_OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


_Operation = tuple[str, str, str]
_Line = tuple[str, str, _Operation | None]
"""Name of the result, text, and what that is on registers; None: Python runs the text."""
_Level = tuple[int, int]
"""Stage and part of a line."""
Found = tuple[Array, dict[str, Any], tuple[bytes, ...]]
"""Registers of some numbers, the objects that Python gave, and of each stage what it read for that."""


@record(eq=False)
class _PythonLines:
    """Lines that Python runs and that have results in common.

    reads: registers of the numbers that ``run`` is given; names: of the objects of earlier parts.  run: gives what
    registers from ``to`` on hold, and objects by name; None: something does not hold.
    """

    reads: Array
    names: tuple[str, ...]
    run: Any
    to: int
    kept: dict[tuple[int, ...], Any] = field(default_factory=dict)


@record(eq=False)
class _TapeRows:
    """Rows of a tape, and what runs in Python behind them."""

    first: int
    last: int
    pieces: list[_PythonLines]


@record(eq=False)
class _TapeStage:
    """Parts of a tape that need no numbers of later stages.

    call: where its record of `evaluate` for all rows is behind the registers; those of its parts begin at ``calls``.
    reads: registers that Python reads.
    """

    parts: list[_TapeRows]
    call: int
    calls: int
    reads: Array


class TapeCode:
    """What lines of a trail compute from its numbers.  wanted: followed numbers, tables and others that are asked for.

    numbers: names, those of later stages last; ``numbers`` is how many are of the first stage.  Raises LostError where
    that is not possible.
    """

    def __init__(self, trail: Trail, numbers: Sequence[str], wanted: Iterable[Any]) -> None:
        self.trail = trail
        self.registers: dict[str, int] = {name: 1 + i for i, name in enumerate(numbers)}
        self.numbers = len(numbers) - len(trail.stages)
        self.told, self.later = len(numbers), trail.stages
        self._stage_of: dict[int, int] = {self.registers[name]: stage for name, stage in trail.stages.items()}
        self._constants: dict[int, int] = {}
        names: set[str] = set()
        for one in wanted:
            if type(one) is Followed:
                names.update(_NAMES(one._text))
            else:
                self._constant(str(one))
        lines = list(self._operations(self._needed(names)))
        self._lay_out(lines, self._levels(lines))

    # --- lines to parts ----------------------------------------------------------------------------------------------

    def _needed(self, names: set[str]) -> list[tuple[str, str]]:
        """The lines that these names and all guards come from, in order."""
        made = []
        for name, text in reversed(self.trail.lines):
            self.trail.turn()
            if name and name not in names:
                continue
            names.update(_NAMES(text) if name else _NAMES(" ".join(self._guard(text)[1:])))
            made.append((name, text))
        return made[::-1]

    def _operations(self, lines: Iterable[tuple[str, str]]) -> Iterator[_Line]:
        """The lines with what they are as operations, and lines between them that make reals of integers."""
        made = set[str]()
        for name, text in lines:
            self.trail.turn()
            found = self._operation(name, text)
            for atom in found[1:] if found else ():
                if atom[0] == "f" and atom not in made:
                    made.add(atom)
                    yield atom, "", ("float", atom[1:], "0")
            yield name, text, found

    def _operation(self, name: str, text: str) -> _Operation | None:
        """A line as an operation on registers: what, and its operands; None where Python has to run it."""
        found = self.trail.forms.get(name) if name else self._guard(text)
        if found is None or (name and self._kind(name) is None):
            return None
        sign, atoms = found[0], [*found[1:]]
        kinds = [self._kind(atom) for atom in atoms]
        if None in kinds:
            return None
        if sign == "/" or float in kinds:
            sign, is_choice = f"f{sign}", sign in ("max", "min")
            atoms = [_as_real(atom, kind) for atom, kind in zip(atoms, kinds, strict=True)]
            if "" in atoms or (is_choice and kinds[0] is not kinds[1]):
                return None
        elif sign in COMPARISONS:
            atoms = list(map(_clipped, atoms))
        elif any(_NUMERAL(atom) and abs(_plain(atom)) > _BEYOND for atom in atoms):
            return None
        return (sign, *atoms) if sign in _NUMBER else None  # type: ignore[return-value]

    def _guard(self, text: str) -> _Operation:
        """What has to hold as an operation: that of a comparison of integers is one with it."""
        atom = text.removeprefix("not ")
        form = self.trail.forms.get(atom)
        if form is None or form[0] not in COMPARISONS or {*map(self._kind, form[1:])} != {int}:
            return "is" if atom == text else "is not", atom, "0"
        sign = form[0] if atom == text else _OPPOSITE[form[0]]
        return f"is {sign}", *map(_clipped, form[1:])  # type: ignore[return-value]

    def _kind(self, atom: str) -> Any:
        """What a register holds of a name or a numeral: an int, a float; None: nothing."""
        if atom[0] not in "vn":
            return int if _NUMERAL(atom) else float if _REAL(atom) else None
        if _NAMES(atom) != [atom]:
            return None
        return {bool: int, int: int, float: float}.get(type(self.trail.values[atom]))

    def _levels(self, lines: Sequence[_Line]) -> list[_Level]:
        """Of each line the stage and the part of it that it belongs to."""
        level: dict[str, tuple[_Level, bool]] = {name: ((stage, 0), True) for name, stage in self.later.items()}
        made = []
        for name, text, operation in lines:
            self.trail.turn()
            is_native = operation is not None
            found = 0, 0
            for other in operation[1:] if operation is not None else _NAMES(text):
                (stage, part), native = level.get(other, ((0, 0), True))
                found = max(found, (stage, part + (is_native and not native)))
            if name:
                level[name] = found, is_native
            made.append(found)
        return made

    def _lay_out(self, lines: Sequence[_Line], levels: Sequence[_Level]) -> None:
        stages = range(1 + max(self.later.values(), default=0))
        order = sorted({*levels, *((stage, 0) for stage in stages)})
        native: dict[_Level, list[tuple[str, _Operation]]] = {level: [] for level in order}
        lines_of: dict[_Level, list[tuple[str, str]]] = {level: [] for level in order}
        for (name, text, found), level in zip(lines, levels, strict=True):
            if found is None:
                lines_of[level].append((name, text))
            else:
                native[level].append((name, found))
        for _, operation in (line for part in native.values() for line in part):
            self.trail.turn()
            for atom in operation[1:]:
                self._constant(atom)
        python = {level: _apart(lines_of[level]) for level in order}
        self.base = 1 + self.told + len(self._constants)
        for level in order:
            for name in [name for piece in python[level] for name, _ in piece if name and self._kind(name)]:
                self.registers[name], self._stage_of[self.base] = self.base, level[0]
                self.base += 1
        rows: list[tuple[int, int, int]] = []
        parts: list[list[_TapeRows]] = [[] for _ in stages]
        for level in order:
            first = len(rows)
            for name, (what, a, b) in native[level]:
                self.trail.turn()
                if name:
                    self.registers[name] = self.base + len(rows)
                rows.append((_NUMBER[what], self._register(a), self._register(b)))
            parts[level[0]].append(_TapeRows(first, len(rows), list(map(self._python, python[level]))))
        self.rows = np.array(rows, np.int64).reshape(-1, 3)
        self.calls = self.base + len(rows)
        self._add_calls(parts)
        nothing = tuple([bool(len(stage.reads)) * NOTHING for stage in self.stages])
        self.last: Found = self.start, {}, nothing

    def _add_calls(self, parts: Sequence[Sequence[_TapeRows]]) -> None:
        """Stages of parts, and the records of their calls of `evaluate` behind the registers."""
        at, ranges, self.stages = self.calls, list[tuple[int, int]](), list[_TapeStage]()
        for own in parts:
            pieces = [piece for part in own for piece in part.pieces]
            reads = [piece.reads for piece in pieces]
            if any(piece.names for piece in pieces):  # objects, which come from what other stages read
                reads += [stage.reads for stage in self.stages]
            read = np.unique(np.concatenate(reads)) if reads else np.empty(0, np.int64)
            self.stages.append(_TapeStage(list(own), at, at + 5, read))
            ranges += [(own[0].first, own[-1].last), *((part.first, part.last) for part in own)]
            at += 5 * (1 + len(own))
        self.start = np.zeros(at, np.int64)
        self.start[0] = 1
        for number, register in self._constants.items():
            self.start[register] = number
        for (first, last), call in zip(ranges, range(self.calls, at, 5), strict=True):
            self.start[call : call + 5] = self.rows.ctypes.data, 0, first, last, self.base

    def _constant(self, atom: str) -> None:
        if atom[0] not in "vnf":
            number = _plain(atom)
            self._constants.setdefault(number, 1 + self.told + len(self._constants))

    def _register(self, atom: str) -> int:
        return self.registers[atom] if atom[0] in "vnf" else self._constants[_plain(atom)]

    def _python(self, texts: Sequence[tuple[str, str]]) -> _PythonLines:
        """Lines as a function."""
        own = {name for name, _ in texts if name}
        read = dict.fromkeys(n for _, text in texts for n in _NAMES(text) if n not in own)
        numbers = [n for n in read if n in self.registers]
        given_objects = tuple(n for n in read if n not in self.registers)
        made_numbers = [name for name, _ in texts if name and self._kind(name)]
        objects = [name for name, _ in texts if name and not self._kind(name)]
        body = [f"    {name} = {text}\n" if name else f"    if not ({text}): return None\n" for name, text in texts]
        given = f"    {', '.join(numbers)}, = numbers\n" if numbers else ""
        given += "".join([f"    {name} = real_of({name})\n" for name in numbers if self._kind(name) is float])
        given += f"    {', '.join(given_objects)}, = objects\n" if given_objects else ""
        named = ", ".join(f"{name!r}: {name}" for name in objects)
        bits = [f"bits_of({name})" if self._kind(name) is float else name for name in made_numbers]
        made = f"    return [{', '.join(bits)}], {{{named}}}\n"
        scope = {**self.trail.scope, "bits_of": _bits_of, "real_of": _real_of}
        exec(f"def made(numbers, objects):\n{given}{''.join(body)}{made}", scope)
        reads = np.array([self.registers[n] for n in numbers], np.int64)
        return _PythonLines(reads, given_objects, scope["made"], self.registers[made_numbers[0]] if made_numbers else 0)

    # --- use ---------------------------------------------------------------------------------------------------------

    @property
    def constants(self) -> dict[int, int]:
        """Numbers that are the same for all sizes, and their registers."""
        return self._constants

    @property
    def given(self) -> range:
        """Registers of the numbers that Python gives."""
        return range(1 + self.told + len(self._constants), self.base)

    @property
    def reads(self) -> Array:
        """Registers that Python reads in the first stage."""
        return self.stages[0].reads

    @property
    def has_pieces(self) -> bool:
        """Whether anything runs in Python."""
        return any(part.pieces for stage in self.stages for part in stage.parts)

    def stage_of(self, register: int) -> int:
        """The stage in which a register is known."""
        if register >= self.base:
            row = register - self.base
            return next(i for i, stage in enumerate(self.stages) if row < stage.parts[-1].last)
        return self._stage_of.get(register, 0)

    def own(self, registers: Array) -> Array:
        """A copy of registers, whose calls are of the copy."""
        made = registers.copy()
        made[self.calls + 1 :: 5] = pointer(made)
        return made

    def register(self, number: Any) -> int:
        """Where one of the numbers that are wanted is found."""
        found = self.registers.get(number._text) if type(number) is Followed else self._constants.get(number)
        if found is None:
            raise LostError("a number that no register holds")
        return found

    def at(self, sizes: Sequence[int]) -> Found | None:
        """All registers and objects of the first stage for these numbers; None where something does not hold.

        What Python gave last is tried first: all rows are then one native call, as long as Python would read the same.
        """
        last = self.last
        registers = self.own(last[0])
        registers[1 : 1 + self.numbers] = sizes
        evaluate.call_at(pointer(registers) + 8 * self.calls)
        if registers[0] and registers[self.reads].tobytes() == last[2][0]:
            return registers, *last[1:]
        return self.by_parts(0, registers, *last[1:]) if len(self.reads) else None

    def by_parts(self, stage: int, registers: Array, objects: dict[str, Any], reads: tuple[bytes, ...]) -> Found | None:
        """The same for one stage, with what Python gives; registers: those of the numbers that it reads are set."""
        address, objects, call = pointer(registers), dict(objects), self.stages[stage].calls
        registers[0] = 1
        for part in self.stages[stage].parts:
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
        reads = *reads[:stage], registers[self.stages[stage].reads].tobytes(), *reads[stage + 1 :]
        self.last = registers.copy(), objects, reads
        return registers, objects, reads

    def _run(self, piece: _PythonLines, registers: Array, objects: dict[str, Any]) -> Any:
        numbers = tuple(registers[piece.reads].tolist())
        if piece.names:
            return _tried(piece, numbers, [objects[name] for name in piece.names])
        made = piece.kept.get(numbers, piece)
        if made is piece:
            if len(piece.kept) >= _KEPT:
                piece.kept.clear()
            made = piece.kept[numbers] = _tried(piece, numbers, ())
        return made


def told_later(trail: Trail) -> set[str]:
    """Names of what follows from numbers of later stages."""
    later = {*trail.stages}
    for name, text in trail.lines:
        if name and not later.isdisjoint(_NAMES(text)):
            later.add(name)
    return later


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


def _tried(piece: _PythonLines, numbers: Sequence[int], objects: Sequence[Any]) -> Any:
    try:
        made = piece.run(numbers, objects)
        return made if made is None else (np.array(made[0], np.int64), made[1])
    except Exception as error:  # what it computes may end in one before it comes to what decides otherwise
        swallowed("tape", error, ArithmeticError, ValueError, TypeError)  # TypeError: of a part that gave None
        return None


def _clipped(atom: str) -> str:
    """An integer beyond all that registers hold compares with them as the first such one does."""
    return str(max(-_BEYOND, min(_BEYOND, _plain(atom)))) if _NUMERAL(atom) else atom


def _as_real(atom: str, kind: Any) -> str:
    """The atom of the same number as an f64; '' where f64 may not hold it."""
    if atom[0] in "vn":
        return f"f{atom}" if kind is int else atom
    if kind is int and abs(_plain(atom)) >= _EXACT:
        return ""
    return str(_bits_of(float(_plain(atom) if kind is int else atom.strip("()"))))


def _bits_of(real: float) -> int:
    return int(struct.unpack("q", struct.pack("d", real))[0])


def _real_of(bits: int) -> float:
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def _plain(atom: str) -> int:
    return int(atom == "True") if atom in ("True", "False") else int(atom.strip("()"))
