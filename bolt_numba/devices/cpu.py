"""The CPU: steps are kernels of ``kernels/cpu``, a segment is a program that one native call runs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from bolt_numba.base.follow import LostError, Trail
from bolt_numba.base.types import TensorType
from bolt_numba.devices.program import Program, build_program
from bolt_numba.kernels import registry
from bolt_numba.kernels.cpu.executor import copy_rows, run_steps, team_run, team_worker
from bolt_numba.kernels.cpu.machine import L2, PAYS_BYTES
from bolt_numba.kernels.data_sized import DataSized, Sized, select_data_sized, select_sized
from bolt_numba.kernels.instructions.isa import Isa
from bolt_numba.kernels.precompile import compile_later, prepare
from bolt_numba.kernels.registry import Context, Entry, Given, In, Out, Pitch, Record, Step
from bolt_numba.ops.costs import bytes_of, work_of
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.slots import Job
from bolt_numba.runtime.stops import Stop

BETWEEN_BYTES = 2 * L2
"""Bytes between two layers from which threads compute them in bands: they would rather share less as it is.  Measured
on MobileNets.  One thread has both layers as one step whatever their size: `bands.choose_rows` says how many rows of it
are a band."""

STEP_S, BYTES_A_S, WORK_A_S = 2e-7, 2e10, 5e10
"""Seconds of a small step, and what a thread does in one: bytes, from caches mostly, and multiply-adds of f32."""

OF_ALL = (run_steps, team_run, team_worker, copy_rows)
"""Kernels that every model may come to need; `_of_all` has those of tapes, too."""


def _of_all() -> Iterator[Any]:
    """Only where kernels lack are the modules of tapes and loops imported for this."""
    from bolt_numba.kernels.cpu.loop import run_loop
    from bolt_numba.kernels.cpu.stages import OF_STAGES
    from bolt_numba.kernels.cpu.tape import OF_TAPES

    yield from (*OF_ALL, *OF_TAPES, *OF_STAGES, run_loop)


def _nothing() -> None:
    """What waits for no kernel."""


def kernels_of(calls: Iterable[Step | Record]) -> Iterator[Any]:
    """Every kernel that steps name: their own, and those whose addresses they are given."""
    for call in calls:
        kernel: Any = call.kernel
        yield kernel
        for name in kernel.codes:
            arg: Any = call.args[name]
            if isinstance(arg, Record):
                yield from kernels_of((arg,))
            elif arg:
                yield arg


class Cpu(Device):
    """Native programs in the host's memory.

    target: one of `kernels.targets.TARGETS` that this processor has; "" for all that it has.
    """

    aliases = True

    def __init__(self, target: str = "") -> None:
        self.name = "cpu"
        if target:
            from bolt_numba.kernels.targets import device_of, twin

            twin(target)
            self.name = device_of(target)

    @property
    def pack_form(self) -> str:
        return "" if self.name == "cpu" else self.name

    def select(self, op: Op, ins: Given, context: Context) -> Entry | None:
        return registry.select(op, ins, context, self.name)

    def ways(self, op: Op, ins: Given, context: Context) -> Iterable[tuple[Any, Entry]]:
        return registry.ways(op, ins, context, self.name)

    def candidates(self, op: Op, ins: Given, context: Context) -> list[Entry]:
        return registry.candidates(op, ins, context, self.name)

    def data_sized(self, op: Op, ins: Given) -> DataSized | None:
        return select_data_sized(op, ins, self.name)

    def sized(self, op: Op, ins: Given) -> Sized | None:
        return select_sized(op, ins, self.name)

    def seconds(self, op: Op, ins: Given, outs: Sequence[TensorType], threads: int) -> float:
        return STEP_S + max(bytes_of(ins, outs) / BYTES_A_S, work_of(op, ins, outs) / WORK_A_S) / threads

    def join(self, one: Step, two: Step, operands: int, between: TensorType, threads: int) -> Step | None:
        if len(between.dims) != 4:
            return None
        bands = import_module(f"bolt_numba.kernels.{self.name}.convolution.bands")  # only few models have such pairs
        joined: Step | None = bands.joined(one, two, operands, between.dims[1], threads)
        if joined is not None and threads > 1:
            joined.when = joined.when & (between.nbytes >= BETWEEN_BYTES)
        return joined

    def copy_step(self, source: In, target: Out, rows: int, nbytes: int, itemsize: int) -> Step:
        x_pitch, y_pitch = (Pitch(type(at)(at.index)) if rows > 1 else 0 for at in (source, target))
        sizes = {"rows": rows, "nbytes": nbytes, "itemsize": itemsize, "x_pitch": x_pitch, "y_pitch": y_pitch}
        return Step(copy_rows, {"x": source, "y": target, **sizes}, parallel=rows * nbytes > 2 * PAYS_BYTES)

    def numbers_step(self, table: Any, target: Out, itemsize: int) -> Step:
        pitches = {"x_pitch": 8 // itemsize, "y_pitch": 1}
        args = {"x": table, "y": target, "rows": table.size, "nbytes": itemsize, "itemsize": itemsize, **pitches}
        return Step(copy_rows, args, parallel=False)

    def read_step(self, source: In) -> Step:
        from bolt_numba.kernels.cpu.tape import nothing

        return Step(nothing, {"unused": source}, parallel=False)

    def besides(self) -> list[Any]:
        return [kernel for kernel in _of_all() if not kernel.is_ready]

    def lacking(self, steps: Sequence[Step]) -> list[Any]:
        return [kernel for kernel in kernels_of(steps) if not kernel.is_ready]

    def prepare(self, jobs: Sequence[Job]) -> None:
        prepare([kernel for job in jobs for kernel in kernels_of(job.steps or ())], _of_all())

    def build(self, jobs: Sequence[Job], threads: int) -> Program:
        return build_program(jobs, threads)

    def followed(
        self, jobs: Sequence[Job], threads: int, trail: Trail, numbers: Sequence[str], dims: Sequence[Any],
        sums: Sequence[Any], stops: Sequence[Stop],
    ) -> Any:  # fmt: skip
        from bolt_numba.devices.followed import FollowedProgram
        from bolt_numba.kernels.cpu.stages import OF_STAGES
        from bolt_numba.kernels.cpu.tape import OF_TAPES

        wanted = (*OF_TAPES, *OF_STAGES) if stops else OF_TAPES
        if not all(kernel.is_ready for kernel in wanted):
            compile_later(wanted, _nothing)
            raise LostError("kernels of tapes")
        return FollowedProgram(jobs, threads, trail, numbers, dims, sums, stops).linked()

    def run_ahead(self, *given: Any) -> int:
        from bolt_numba.devices.loops import run_ahead
        from bolt_numba.kernels.cpu.loop import run_loop

        if not run_loop.is_ready:
            compile_later([run_loop], _nothing)
            return 0
        return run_ahead(*given)

    @property
    def isa(self) -> Isa:
        """What its kernels may ask of the processor."""
        found: Isa = import_module(f"bolt_numba.kernels.{self.name}.language.lang").target()
        return found

    def describe(self) -> str:
        return f"{self.isa.name} on {platform.machine()} ({self.isa.level})"


DEVICE = Cpu()
