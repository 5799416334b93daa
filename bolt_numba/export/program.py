"""A native program of a model: its plans for a target, as the block that C runs (`export.layout`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import bolt_numba
from bolt_numba.base.records import record
from bolt_numba.converters.onnx.types import CODES
from bolt_numba.errors import DeviceError, InternalError, ShapeError
from bolt_numba.export.layout import (
    FUNCTIONS,
    PatchKind,
    ProgramFlag,
    ProgramTable,
    ResultKind,
    ValueKind,
)
from bolt_numba.export.plans import Planned, Shapes, planned
from bolt_numba.export.tables import ProgramBlock, Tables
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels.machine_code import blob_parts
from bolt_numba.kernels.targets import target_code
from bolt_numba.ops.content import asked_for
from bolt_numba.runtime.slots import INPUT, TEMP

if TYPE_CHECKING:
    from bolt_numba.devices.program import Program
    from bolt_numba.runtime.plan import Plan


@record(eq=False)
class NativeProgram:
    """kernels: what the rows of the table KERNELS are."""

    planned: Planned
    block: ProgramBlock
    kernels: list[Any]


def native_program(
    graph: Graph,
    *,
    shapes: Sequence[Shapes] = (),
    target: str = "native",
    threads: int = 1,
    kept: Sequence[str] = (),
    precision: str = "f32",
    numerics: str = "default",
    flags: int = 0,
) -> NativeProgram:
    """The program of a graph for each set of shapes.

    kept: outputs of the graph that are intermediate values of the model.  flags: a sum of `ProgramFlag`.
    Raises BoltError where nodes cannot leave Python, and DeviceError where code for the target must be linked.
    """
    found = planned(graph, shapes, target, threads, precision, numerics)
    writer = _Writer(found, flags)
    for plan, program, inputs in zip(found.plans, found.programs, found.inputs, strict=True):
        writer.plan(plan, program, inputs)
    writer.values(set(kept))
    isa = found.cpu.isa
    block = writer.tables.block(isa.level, ",".join(isa.features), graph.name, bolt_numba.__version__, flags)
    return NativeProgram(found, block, list(writer.kernels.values()))


class _Writer:
    """Fills the tables."""

    def __init__(self, found: Planned, flags: int) -> None:
        self.found, self.flags, self.tables = found, flags, Tables()
        self.kernels: dict[int, Any] = {}
        self.numbers: dict[str, int] = {}

    def plan(self, plan: Plan, program: Program | None, inputs: Sequence[tuple[int, ...]]) -> None:
        tables = self.tables
        results, steps = tables.count(ProgramTable.RESULTS), tables.count(ProgramTable.STEPS)
        patches, faults = tables.count(ProgramTable.PATCHES), tables.count(ProgramTable.FAULTS)
        for slot in plan.results:
            kind, which = ResultKind.MADE, -1
            if slot.kind == INPUT:
                kind, which = ResultKind.INPUT, slot.index
            elif slot.kind != TEMP:
                assert slot.const is not None
                kind, which = ResultKind.ARRAY, tables.array(np.ascontiguousarray(slot.const))
            tables.add(ProgramTable.RESULTS, kind=kind, which=which)
        if program is not None:
            self._steps(plan, program)
            self._patches(program)
            self._faults(program)
        sizes = [d for dims in (*inputs, *(slot.type.dims for slot in plan.results)) for d in dims]
        image = b"" if program is None else program.image.tobytes()
        tables.add(
            ProgramTable.PLANS, dims=tables.dims(sizes), image=tables.image(image), image_nbytes=len(image),
            first_step=steps, steps=tables.count(ProgramTable.STEPS) - steps,
            first_patch=patches, patches=tables.count(ProgramTable.PATCHES) - patches,
            first_fault=faults, faults=tables.count(ProgramTable.FAULTS) - faults,
            fault_counter=program.faults_at if program is not None and program.faults else -1, results=results,
            arena_nbytes=sum(plan.memory.arenas.values()), threads=1 if program is None else program.threads,
        )  # fmt: skip

    def _steps(self, plan: Plan, program: Program) -> None:
        tables, numbers = self.tables, [self.kernel(kernel) for kernel in program.links.kernels]
        rows = zip(
            program.links.steps.tolist(),
            program.record_offsets.tolist(),
            program.flags.tolist(),
            program.step_jobs,
            strict=True,
        )
        for kernel, record_at, parallel, job in rows:
            label = tables.string(plan.jobs[job].name)
            tables.add(ProgramTable.STEPS, kernel=numbers[kernel], record=record_at, parallel=parallel, label=label)

    def _patches(self, program: Program) -> None:
        links = program.links
        kernels = [self.kernel(kernel) for kernel in links.kernels]
        arrays = [self.tables.array(array) for array in links.arrays]
        for word, which, offset in links.in_kernels.tolist():
            self._patch(PatchKind.KERNEL, kernels[which], word, offset)
        for word, which, offset in links.in_arrays.tolist():
            self._patch(PatchKind.ARRAY, arrays[which], word, offset)
        own = ((PatchKind.ARENA, program.arena_places, program.arena_offsets),
               (PatchKind.IMAGE, program.own_places, program.own_offsets))  # fmt: skip
        for kind, words, offsets in own:
            for word, offset in zip(words.tolist(), offsets.tolist(), strict=True):
                self._patch(kind, -1, word, offset)
        for kind, places in ((PatchKind.INPUT, program.inputs), (PatchKind.OUTPUT, program.outputs)):
            for which, rows in places.items():
                for word, offset in rows:
                    self._patch(kind, which, word, offset)

    def _patch(self, kind: PatchKind, which: int, word: int, offset: int) -> None:
        self.tables.add(ProgramTable.PATCHES, kind=kind, which=which, word=word, offset=offset)

    def _faults(self, program: Program) -> None:
        tables = self.tables
        for job, operand in program.faults:
            slot = job.ins[operand]
            assert slot is not None, "a kernel checks what is there"
            tables.add(
                ProgramTable.FAULTS, label=tables.string(job.name), text=tables.string(asked_for(job.op, operand)),
                rank=len(slot.type.dims), dims=tables.dims(slot.type.dims),
            )  # fmt: skip

    def kernel(self, kernel: Any) -> int:
        """Number of a kernel, of which equal ones are one."""
        number = self.numbers.get(kernel.symbol)
        if number is None:
            number = self.numbers[kernel.symbol] = len(self.kernels)
            self.kernels[number] = kernel
            self._add_kernel(kernel)
        return number

    def _add_kernel(self, kernel: Any) -> None:
        tables, name = self.tables, self.tables.string(kernel.name)
        if self.flags & ProgramFlag.LINKED:
            tables.add(ProgramTable.KERNELS, name=name, code=-1, nbytes=0, first_import=0, imports=0)
            return
        parts = blob_parts(target_code(kernel))
        if parts is None:
            wanted = "wanted code that needs no linker; export a folder for this target"
            raise DeviceError(f"kernel '{kernel.name}': got an object file, {wanted}")
        at, first = tables.code(parts.code), tables.count(ProgramTable.IMPORTS)
        for slot, function in parts.calls:
            if function not in FUNCTIONS:
                raise InternalError(f"kernel '{kernel.name}': calls: got {function!r}, wanted one of {FUNCTIONS}")
            tables.add(ProgramTable.IMPORTS, name=tables.string(function), slot=at + slot)
        tables.add(
            ProgramTable.KERNELS, name=name, code=at + parts.entry, nbytes=len(parts.code), first_import=first,
            imports=len(parts.calls),
        )  # fmt: skip

    def values(self, kept: set[str]) -> None:
        """What the model takes and gives, states with it."""
        graph = self.found.graph
        states, inputs, outputs = len(graph.states), len(graph.inputs), len(graph.outputs)
        for number, value in enumerate(graph.inputs):
            place = number - (inputs - states)
            if place < 0:
                self._value(value.name, value, ValueKind.INPUT)
            else:
                first = self.tables.array(np.ascontiguousarray(graph.states[place]))
                self._value(value.name, value, ValueKind.STATE_IN, inputs + outputs - states + place, first)
        for number, (name, value) in enumerate(zip(graph.output_names, graph.outputs, strict=True)):
            is_state = number >= outputs - states
            kind = ValueKind.KEPT if name in kept else ValueKind.OUTPUT
            self._value(name, value, ValueKind.STATE_OUT if is_state else kind)

    def _value(self, name: str, value: Value, kind: ValueKind, source: int = -1, first: int = -1) -> None:
        tables, t = self.tables, value.type
        shape = (-1,) * self._rank(name, value) if t.shape is None else t.shape
        sizes = [d if isinstance(d, int) else -1 for d in shape]
        tables.add(
            ProgramTable.VALUES, name=tables.string(name), kind=kind, dtype=CODES[t.dtype],
            rank=len(shape), dims=tables.dims(sizes), source=source, first=first,
        )  # fmt: skip

    def _rank(self, name: str, value: Value) -> int:
        """Of a value whose rank only plans know."""
        graph, found = self.found.graph, self.found
        if value in graph.inputs:
            ranks = {len(inputs[graph.inputs.index(value)]) for inputs in found.inputs}
        else:
            ranks = {len(plan.results[graph.outputs.index(value)].type.dims) for plan in found.plans}
        if len(ranks) > 1:
            raise ShapeError(
                f"{graph.name}: export: value {name!r}: got ranks {sorted(ranks)}, wanted one of all plans"
            )
        return ranks.pop()
