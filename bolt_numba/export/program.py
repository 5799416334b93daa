"""A native program of a model: its plans for a target, as the block that C runs (`export.layout`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import bolt_numba
from bolt_numba.base.errors import DeviceError, InternalError, ShapeError
from bolt_numba.base.records import record
from bolt_numba.converters.onnx.types import CODES
from bolt_numba.export.layout import FUNCTIONS, PatchKind, ProgramFlag, ProgramTable, ResultKind, ValueKind
from bolt_numba.export.plans import Planned, PlannedSets, Shapes, planned
from bolt_numba.export.tables import ProgramBlock, Tables
from bolt_numba.export.tapes import Served, Slices, TapeWriter
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels.machine_code import blob_parts
from bolt_numba.kernels.targets import target_code
from bolt_numba.ops.content import asked_for
from bolt_numba.runtime.slots import INPUT, TEMP

if TYPE_CHECKING:
    from bolt_numba.devices.program import Program
    from bolt_numba.export.stages import RunStage, StagedPlan
    from bolt_numba.runtime.slots import Job, Slot


_OF_STAGES = (
    ProgramTable.STEPS, ProgramTable.PATCHES, ProgramTable.FAULTS, ProgramTable.CHOICES,
    ProgramTable.NUMBERS, ProgramTable.OPERATIONS, ProgramTable.WRITES,
)  # fmt: skip
"""Tables of which each stage has some rows."""
_FIXED = (PatchKind.KERNEL, PatchKind.ARRAY, PatchKind.IMAGE)
"""Addresses that have the same offset, whatever sizes a tape serves."""


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
    writer = _ProgramWriter(found, flags)
    for chain in found.chains:
        writer.chain(chain)
    writer.values(set(kept))
    isa = found.cpu.isa
    block = writer.tables.block(isa.level, ",".join(isa.features), graph.name, bolt_numba.__version__, flags)
    return NativeProgram(found, block, list(writer.kernels.values()))


class _ProgramWriter:
    """Fills the tables."""

    def __init__(self, found: Planned, flags: int) -> None:
        self.found, self.flags, self.tables = found, flags, Tables()
        self.kernels: dict[int, Any] = {}
        self.numbers: dict[str, int] = {}

    def chain(self, made: PlannedSets) -> None:
        """The stages of some sets of shapes."""
        chain, tables = made.plan, self.tables
        outputs = [place.type.dims for place in chain.types[chain.first_output : chain.first_place]]
        shapes = (*made.greatest, *outputs), made.begin
        dims, begin = (tables.dims([d for dims in all_ for d in dims]) for all_ in shapes)
        first = tables.count(ProgramTable.PLACES)
        for place in chain.places:
            t = place.type
            tables.add(
                ProgramTable.PLACES, dtype=CODES[t.dtype], rank=len(t.dims), dims=tables.dims(t.dims),
                length=place.length, axis=place.axis,
            )  # fmt: skip
        for number, stage in enumerate(chain.stages):
            heads = {"stages": 0, "first_place": 0, "places": 0}
            if number == 0:
                heads = {"stages": len(chain.stages), "first_place": first, "places": len(chain.places)}
            self._stage(chain, stage, {"dims": dims, "begin": begin, **heads}, is_first=number == 0)

    def _stage(self, chain: StagedPlan, stage: RunStage, heads: dict[str, int], is_first: bool) -> None:
        tables, program = self.tables, stage.program
        first = {table: tables.count(table) for table in _OF_STAGES}
        for low, high, then in stage.choices:
            tables.add(ProgramTable.CHOICES, low=low, high=high, stage=then)
        results = -1 if stage.results is None else self._results(stage)
        if program is not None:
            self._steps(stage, program)
            self._patches(stage, program)
            if not isinstance(stage.served, Served):
                self._faults(program)
        image, sizes = b"" if program is None else program.image.tobytes(), -1
        if isinstance(stage.served, Slices):
            stage.served.write(tables)
        elif stage.served is not None:
            image, sizes = self._tape(stage, stage.served)
        elif stage.results is not None and not is_first:
            sizes, shapes = len(image) // 8, [self._dims(chain, stage, slot) for slot in stage.results]
            image += np.array([d for dims in shapes for d in dims] or [0], np.int64).tobytes()
        counts = {table: tables.count(table) - before for table, before in first.items()}
        tables.add(
            ProgramTable.PLANS, image=tables.image(image), image_nbytes=len(image), sizes=sizes, results=results,
            first_step=first[ProgramTable.STEPS], steps=counts[ProgramTable.STEPS],
            first_patch=first[ProgramTable.PATCHES], patches=counts[ProgramTable.PATCHES],
            first_fault=first[ProgramTable.FAULTS], faults=counts[ProgramTable.FAULTS],
            first_choice=first[ProgramTable.CHOICES], choices=counts[ProgramTable.CHOICES], choice=stage.choice,
            first_number=first[ProgramTable.NUMBERS], numbers=counts[ProgramTable.NUMBERS],
            first_operation=first[ProgramTable.OPERATIONS], operations=counts[ProgramTable.OPERATIONS],
            first_write=first[ProgramTable.WRITES], writes=counts[ProgramTable.WRITES],
            fault_counter=program.faults_at if program is not None and program.faults else -1,
            arena_nbytes=stage.arena_nbytes, threads=1 if program is None else program.threads, **heads,
        )  # fmt: skip

    def _tape(self, stage: RunStage, served: Served) -> tuple[bytes, int]:
        """The rows of a tape; the image, with room for sizes behind it, and where those of outputs are."""
        program, tables = served.tape.program, self.tables
        image = np.array(program.program.image.view(np.int64))
        for word, _, offset in program.tables:
            image[word] = offset
        writer = TapeWriter(tables, served, stage.inputs)
        writer.write()
        writer.moved()
        numbers = [r for output in range(len(stage.results or ())) for r in writer.dims_of(output)]
        writer.sizes_at(len(image), numbers)
        end = len(image) + len(numbers)
        for job, operand in program.program.faults:
            registers = writer.refused(job, operand)
            writer.sizes_at(end, registers)
            self._fault(job, operand, len(registers), end)
            end += len(registers)
        return np.append(image, np.zeros(end - len(image) or 1, np.int64)).tobytes(), len(image)

    def _dims(self, chain: StagedPlan, stage: RunStage, slot: Slot) -> tuple[int, ...]:
        return (chain.types[stage.inputs[slot.index]] if slot.kind == INPUT else slot).type.dims

    def _results(self, stage: RunStage) -> int:
        """The rows of what a last stage gives; the first of them."""
        first = self.tables.count(ProgramTable.RESULTS)
        for slot in stage.results or ():
            kind, which = ResultKind.MADE, -1
            if slot.kind == INPUT:
                kind, which = ResultKind.INPUT, stage.inputs[slot.index]
            elif slot.kind != TEMP:
                assert slot.const is not None
                kind, which = ResultKind.ARRAY, self.tables.array(np.ascontiguousarray(slot.const))
            self.tables.add(ProgramTable.RESULTS, kind=kind, which=which)
        return first

    def _steps(self, stage: RunStage, program: Program) -> None:
        tables, numbers = self.tables, [self.kernel(kernel) for kernel in program.links.kernels]
        rows = zip(
            program.links.steps.tolist(),
            program.record_offsets.tolist(),
            program.flags.tolist(),
            program.step_jobs,
            strict=True,
        )
        for kernel, record_at, parallel, job in rows:
            label = tables.string(stage.jobs[job].name)
            tables.add(ProgramTable.STEPS, kernel=numbers[kernel], record=record_at, parallel=parallel, label=label)

    def _patches(self, stage: RunStage, program: Program) -> None:
        links, first = program.links, len(self.found.graph.inputs)
        kernels = [self.kernel(kernel) for kernel in links.kernels]
        arrays = [self.tables.array(array) for array in links.arrays]
        rows: list[tuple[PatchKind, int, int, int]] = []
        rows += [(PatchKind.KERNEL, kernels[which], word, at) for word, which, at in links.in_kernels.tolist()]
        rows += [(PatchKind.ARRAY, arrays[which], word, at) for word, which, at in links.in_arrays.tolist()]
        arena = zip(program.arena_places.tolist(), program.arena_offsets.tolist(), strict=True)
        if stage.served is not None:
            arena = zip(stage.served.arena_words, itertools.repeat(0), strict=False)
        rows += [(PatchKind.ARENA, -1, word, at) for word, at in arena]
        own = zip(program.own_places.tolist(), program.own_offsets.tolist(), strict=True)
        rows += [(PatchKind.IMAGE, -1, word, at) for word, at in own]
        for i, places in program.inputs.items():
            rows += [(PatchKind.INPUT, stage.inputs[i], word, at) for word, at in places]
        for i, places in program.outputs.items():
            rows += [(PatchKind.OUTPUT, stage.outputs[i] - first, word, at) for word, at in places]
        for kind, which, word, at in rows:
            is_in_word = stage.served is not None and kind not in _FIXED
            self.tables.add(ProgramTable.PATCHES, kind=kind, which=which, word=word, offset=0 if is_in_word else at)

    def _faults(self, program: Program) -> None:
        for job, operand in program.faults:
            slot = job.ins[operand]
            assert slot is not None, "a kernel checks what is there"
            self._fault(job, operand, len(slot.type.dims), -1, slot.type.dims)

    def _fault(self, job: Job, operand: int, rank: int, word: int, dims: Sequence[int] = ()) -> None:
        string = self.tables.string
        self.tables.add(
            ProgramTable.FAULTS, label=string(job.name), text=string(asked_for(job.op, operand)), rank=rank, word=word,
            dims=self.tables.dims(dims),
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
            ranks = {len(chain.begin[graph.inputs.index(value)]) for chain in found.chains}
        else:
            place = graph.outputs.index(value)
            chains = [chain.plan for chain in found.chains]
            ranks = {len(chain.types[chain.first_output + place].type.dims) for chain in chains}
        if len(ranks) > 1:
            raise ShapeError(
                f"{graph.called}: export: value {name!r}: got ranks {sorted(ranks)}, wanted one of all plans"
            )
        return ranks.pop()
