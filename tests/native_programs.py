"""Runs the block of a native program from its tables alone, as the C library does: step by step, on one thread."""

from __future__ import annotations

import ctypes
import mmap
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bolt_numba.base.selects import divisor
from bolt_numba.converters.onnx.types import DTYPES
from bolt_numba.export.layout import (
    COLUMNS,
    CONTENT,
    FAULT_WORDS,
    HeaderWord,
    PatchKind,
    ProgramTable,
    ResultKind,
    TapeOperation,
    ValueKind,
    WriteKind,
)
from bolt_numba.kernels.machine_code import _function, _library
from bolt_numba.runtime.device import HOST
from bolt_numba.types import Array


class Interpreter:
    """A loaded program: code made executable, and where its arrays are."""

    def __init__(self, block: bytes) -> None:
        self.pages = mmap.mmap(-1, len(block))
        self.pages.write(block)
        self.block = np.frombuffer(self.pages, np.uint8)
        _library(None).mprotect(self.block.ctypes.data, len(block), mmap.PROT_READ)  # as in a file
        self.words = self.block[: len(block) // 8 * 8].view(np.int64)
        self.code = self._executable()
        self.kernels = [self.code + row["code"] for row in self.rows(ProgramTable.KERNELS)]
        self.values = self.rows(ProgramTable.VALUES)
        self.arrays = [(self.place(ProgramTable.DATA)[0] + r["offset"], r["nbytes"])
                       for r in self.rows(ProgramTable.ARRAYS)]  # fmt: skip

    def place(self, table: ProgramTable) -> tuple[int, int]:
        at = HeaderWord.FIRST_TABLE + 2 * table
        return int(self.words[at]), int(self.words[at + 1])

    def rows(self, table: ProgramTable, first: int = 0, count: int | None = None) -> list[dict[str, int]]:
        names = [column.name.lower() for column in COLUMNS[table]]
        at, total = self.place(table)
        numbers = self.words[at // 8 :][: total * len(names)].reshape(total, len(names)).tolist()
        return [dict(zip(names, row, strict=True)) for row in numbers[first:][:count]]

    def string(self, offset: int) -> str:
        at = self.place(ProgramTable.STRINGS)[0] + offset
        return ctypes.string_at(self.block.ctypes.data + at).decode()

    def _executable(self) -> int:
        at, nbytes = self.place(ProgramTable.CODE)
        made = self.block[at : at + nbytes].copy()
        for row in self.rows(ProgramTable.IMPORTS):
            made[row["slot"] :][:8].view(np.int64)[0] = _function(self.string(row["name"]))
        self.memory = mmap.mmap(-1, max(nbytes, 1), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.memory.write(made.tobytes())
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def dims(self, first: int, count: int) -> tuple[int, ...]:
        return tuple(row["size"] for row in self.rows(ProgramTable.DIMS, first, count))

    def plan_for(self, shapes: Sequence[tuple[int, ...]]) -> tuple[list[dict[str, int]], list[tuple[int, ...]]]:
        """The stages of these shapes of the inputs, and the greatest shapes of all values."""
        plans = self.rows(ProgramTable.PLANS)
        for number, plan in enumerate(plans):
            at, found = plan["dims"], []
            for value in self.values:
                found.append(self.dims(at, value["rank"]))
                at += value["rank"]
            if plan["stages"] and self._fits(plan, found, shapes):
                return plans[number : number + plan["stages"]], [*shapes, *found[len(shapes) :]]
        raise LookupError(f"no plan for {shapes}")

    def _fits(self, plan: dict[str, int], found: list[tuple[int, ...]], shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether a plan is for these shapes of the inputs; those that it has are the greatest where it has a tape."""
        if not plan["numbers"]:
            return found[: len(shapes)] == list(shapes)
        pairs = list(zip(found, shapes, strict=False))
        are_small = all(len(a) == len(b) and all(n <= most for n, most in zip(b, a, strict=True)) for a, b in pairs)
        return are_small and self.evaluated(plan, lambda value, axis: shapes[value][axis]) is not None

    def evaluated(self, plan: dict[str, int], number: Callable[[int, int], int]) -> list[int] | None:
        """The registers of a tape, of which this gives the numbers; None where it does not hold."""
        numbers = self.rows(ProgramTable.NUMBERS, plan["first_number"], plan["numbers"])
        registers = [1, *(number(row["value"], row["axis"]) for row in numbers)]
        finds = self.rows(ProgramTable.FINDS)
        for row in self.rows(ProgramTable.OPERATIONS, plan["first_operation"], plan["operations"]):
            what, a, b = TapeOperation(row["what"]), row["a"], row["b"]
            if what is TapeOperation.CONST:
                registers.append(a)
                continue
            if what is TapeOperation.FIND:
                rows = finds[b : b + finds[b]["rows"]]
                row = next((r for r in rows if r["first"] <= registers[a] <= r["last"]), None)
                if row is None:
                    return None
                registers.append(row["value"] + row["slope"] * (registers[a] - row["first"]))
                continue
            made = _computed(what, registers[a], registers[b])
            if made is None:
                return None
            registers.append(made)
        return registers

    def _write(self, plan: dict[str, int], image: Array, registers: Sequence[int]) -> None:
        """What a tape writes into an image."""
        kinds = {WriteKind.WORD: "<i8", WriteKind.HALF: "<i4", WriteKind.FLOAT: "<f4", WriteKind.DOUBLE: "<f8"}
        kinds[WriteKind.ROUNDED] = "<f4"
        for row in self.rows(ProgramTable.WRITES, plan["first_write"], plan["writes"]):
            kind, at, number = WriteKind(row["kind"]), row["at"], registers[row["register"]]
            if kind is WriteKind.ARRAY:
                image[at : at + 8].view(np.int64)[0] += self.block.ctypes.data + self.arrays[number][0]
            elif kind is WriteKind.FLAG:
                assert 0 <= at < plan["steps"], "as the library in C demands"
            else:
                dtype = np.dtype(kinds[kind])
                made = np.int64(number) if kind is not WriteKind.ROUNDED else np.int64(number).view(np.float64)
                image[at : at + dtype.itemsize].view(dtype)[0] = made.astype(dtype)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, states too; states that are not given are as at first."""
        taken = (ValueKind.INPUT, ValueKind.STATE_IN)
        inputs = [self._input(v, feeds) for v in self.values if v["kind"] in taken]
        stages, shapes = self.plan_for([a.shape for a in inputs])
        given = self.values[len(inputs) :]
        outputs = [np.empty(s, DTYPES[v["dtype"]]) for s, v in zip(shapes[len(inputs) :], given, strict=True)]
        places = self.rows(ProgramTable.PLACES, stages[0]["first_place"], stages[0]["places"])
        between = [np.empty(self.dims(p["dims"], p["rank"]), DTYPES[p["dtype"]]) for p in places]
        arrays = [*inputs, *outputs, *between]
        plan = stages[0]
        while True:
            image = self._run_stage(plan, arrays, len(inputs), places)
            if not plan["choices"]:
                break
            number = int(arrays[plan["choice"]].flat[0]) if plan["choice"] >= 0 else 0
            choices = self.rows(ProgramTable.CHOICES, plan["first_choice"], plan["choices"])
            plan = stages[next(c["stage"] for c in choices if c["low"] <= number <= c["high"])]
        for place, array, i in zip(places, between, range(len(inputs) + len(outputs), len(arrays)), strict=True):
            if place["length"] >= 0:
                arrays[i] = _shortened(array, place["axis"], int(arrays[place["length"]].flat[0]))
        found = self._results(plan, image.view(np.int64), arrays, len(inputs), outputs)
        return {self.string(v["name"]): a for v, a in zip(given, found, strict=True)}

    def _number(self, arrays: list[Array], places: list[dict[str, int]], value: int, axis: int) -> int:
        """A size of an array at this moment, or what it holds."""
        place = places[value - len(self.values)] if value >= len(self.values) else {"length": -1, "axis": -1}
        if axis == CONTENT or (place["length"] >= 0 and place["axis"] == axis):
            return int(arrays[value if axis == CONTENT else place["length"]].flat[0])
        return arrays[value].shape[axis]

    def _run_stage(self, plan: dict[str, int], arrays: list[Array], inputs: int, places: list[dict[str, int]]) -> Array:
        """Run the steps of a stage; its image."""
        image = HOST.allocate(plan["image_nbytes"])
        at = self.place(ProgramTable.IMAGES)[0] + plan["image"]
        image[:] = self.block[at : at + len(image)]
        words = image.view(np.int64)
        if plan["numbers"]:
            registers = self.evaluated(plan, partial(self._number, arrays, places))
            assert registers is not None, "it was chosen for these"
            self._write(plan, image, registers)
        arena = HOST.allocate(plan["arena_nbytes"])
        self._patch(plan, words, arena, arrays, inputs)
        for row in self.rows(ProgramTable.STEPS, plan["first_step"], plan["steps"]):
            call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(self.kernels[row["kernel"]])
            call(image.ctypes.data + row["record"], 0, 1)
        self._refuse(plan, words)
        return image

    def _results(
        self, plan: dict[str, int], words: Array, arrays: list[Array], inputs: int, outputs: list[Array]
    ) -> list[Array]:
        """What the last stage gives."""
        at, made = plan["sizes"], []
        for row, whole in zip(self.rows(ProgramTable.RESULTS, plan["results"], len(outputs)), outputs, strict=True):
            output = whole
            if at >= 0:
                shape = words[at : at + whole.ndim].tolist()
                output, at = whole.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape), at + whole.ndim
            if row["kind"] == ResultKind.INPUT:
                output = arrays[row["which"]].reshape(output.shape if plan["stages"] else arrays[row["which"]].shape)
            elif row["kind"] == ResultKind.ARRAY:
                place, nbytes = self.arrays[row["which"]]
                output = self.block[place : place + nbytes].view(output.dtype)[: output.size].reshape(output.shape)
            made.append(output.copy())
        return made

    def _input(self, value: dict[str, int], feeds: Mapping[str, Array]) -> Array:
        name = self.string(value["name"])
        if name not in feeds and value["kind"] == ValueKind.STATE_IN:
            at, nbytes = self.arrays[value["first"]]
            return (
                self.block[at : at + nbytes]
                .view(DTYPES[value["dtype"]])
                .reshape(self.dims(value["dims"], value["rank"]))
            )
        return np.asarray(feeds[name], DTYPES[value["dtype"]], order="C")

    def _patch(self, plan: dict[str, int], words: Array, arena: Array, arrays: list[Any], inputs: int) -> None:
        base = self.block.ctypes.data
        for row in self.rows(ProgramTable.PATCHES, plan["first_patch"], plan["patches"]):
            which = row["which"]
            address = {
                PatchKind.KERNEL: lambda which=which: self.kernels[which],
                PatchKind.ARRAY: lambda which=which: base + self.arrays[which][0],
                PatchKind.ARENA: lambda: arena.ctypes.data,
                PatchKind.IMAGE: lambda: words.ctypes.data,
                PatchKind.INPUT: lambda which=which: arrays[which].ctypes.data,
                PatchKind.OUTPUT: lambda which=which: arrays[inputs + which].ctypes.data,
            }[PatchKind(row["kind"])]()
            assert abs(int(words[row["word"]])) < 1 << 40, "the block holds no address"
            words[row["word"]] += address + row["offset"]

    def _refuse(self, plan: dict[str, int], words: Array) -> None:
        counter = plan["fault_counter"]
        if counter < 0 or not words[counter]:
            return
        for number, row in enumerate(self.rows(ProgramTable.FAULTS, plan["first_fault"], plan["faults"])):
            at = counter + FAULT_WORDS * (number + 1)
            if words[at]:
                value, low, high = words[at + 2 : at + 5].tolist()
                label, text = self.string(row["label"]), self.string(row["text"])
                raise LookupError(f"{label}: {text}: got {value}, wanted {low} to {high}")


def _shortened(array: Array, axis: int, length: int) -> Array:
    """The dense beginning of an array that is as long as data say."""
    shape = [*array.shape[:axis], length, *array.shape[axis + 1 :]]
    return array.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape)


def _computed(what: TapeOperation, a: int, b: int) -> int | None:
    """The result of an operation on registers, None where it does not hold."""
    if TapeOperation.REAL_LESS <= what <= TapeOperation.REAL:
        return _computed_real(what, a, b)
    formulas: dict[TapeOperation, Callable[[int, int], int]] = {
        TapeOperation.ADD: operator.add, TapeOperation.SUBTRACT: operator.sub, TapeOperation.MULTIPLY: operator.mul,
        TapeOperation.DIVIDE: operator.floordiv, TapeOperation.REMAINDER: operator.mod, TapeOperation.GREATEST: max,
        TapeOperation.LEAST: min, TapeOperation.LESS: operator.lt, TapeOperation.LESS_EQUAL: operator.le,
        TapeOperation.GREATER: operator.gt, TapeOperation.GREATER_EQUAL: operator.ge, TapeOperation.EQUAL: operator.eq,
        TapeOperation.NOT_EQUAL: operator.ne, TapeOperation.AND: operator.and_, TapeOperation.OR: operator.or_,
        TapeOperation.XOR: operator.xor, TapeOperation.SHIFT_LEFT: operator.lshift,
        TapeOperation.SHIFT_RIGHT: operator.rshift, TapeOperation.NEGATE: lambda a, b: -a,
        TapeOperation.ABSOLUTE: lambda a, b: abs(a), TapeOperation.NOT: lambda a, b: not a,
        TapeOperation.DIVISOR: divisor,
    }  # fmt: skip
    if what in (TapeOperation.IS, TapeOperation.IS_NOT):
        return 0 if (a != 0) == (what is TapeOperation.IS) else None
    if what in (TapeOperation.DIVIDE, TapeOperation.REMAINDER) and b == 0:
        return None
    made = int(formulas[what](a, b))
    return made if abs(made) < 1 << 62 else None


def _computed_real(what: TapeOperation, a: int, b: int) -> int | None:
    u, v = np.array([a, b], np.int64).view(np.float64).tolist()
    formulas: dict[TapeOperation, Callable[[float, float], float]] = {
        TapeOperation.REAL_LESS: operator.lt, TapeOperation.REAL_LESS_EQUAL: operator.le,
        TapeOperation.REAL_GREATER: operator.gt, TapeOperation.REAL_GREATER_EQUAL: operator.ge,
        TapeOperation.REAL_EQUAL: operator.eq, TapeOperation.REAL_NOT_EQUAL: operator.ne,
        TapeOperation.REAL_ADD: operator.add, TapeOperation.REAL_SUBTRACT: operator.sub,
        TapeOperation.REAL_MULTIPLY: operator.mul, TapeOperation.REAL_DIVIDE: operator.truediv,
        TapeOperation.REAL_GREATEST: max, TapeOperation.REAL_LEAST: min, TapeOperation.REAL: lambda u, v: float(a),
    }  # fmt: skip
    if (what is TapeOperation.REAL_DIVIDE and v == 0) or (what is TapeOperation.REAL and abs(a) > 1 << 53):
        return None
    made = formulas[what](u, v)
    return int(made) if isinstance(made, bool) else int(np.float64(made).view(np.int64))
