"""The CPU: steps are kernels of ``kernels/cpu``, a segment is a program that one native call runs."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from bolt_numba.devices.program import Program, build_program
from bolt_numba.kernels import registry
from bolt_numba.kernels.cpu.executor import copy_rows
from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.registry import Context, Entry, In, Out, Pitch, Step, Types
from bolt_numba.kernels.sized import Sized, select_sized
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.slots import Job
from bolt_numba.types import TensorType

PARALLEL_BYTES = 1 << 19
"""Bytes from which threads share a copy."""


class Cpu(Device):
    """Native programs in the host's memory."""

    name = "cpu"
    aliases = True

    def select(self, op: Op, ins: Types, context: Context) -> Entry | None:
        return registry.select(op, ins, context)

    def candidates(self, op: Op, ins: Types, context: Context) -> list[Entry]:
        return registry.candidates(op, ins, context)

    def sized(self, op: Op, ins: Types) -> Sized | None:
        return select_sized(op, ins)

    def join(self, one: Step, two: Step, operands: int, between: TensorType, threads: int) -> Step | None:
        if len(between.dims) != 4:
            return None
        from bolt_numba.kernels.cpu.convolution.bands import joined  # only few models have such pairs

        return joined(one, two, operands, between.dims[1], threads)

    def copy_step(self, source: In, target: Out, rows: int, nbytes: int, itemsize: int) -> Step:
        x_pitch, y_pitch = (Pitch(type(at)(at.index)) if rows > 1 else 0 for at in (source, target))
        sizes = {"rows": rows, "nbytes": nbytes, "itemsize": itemsize, "x_pitch": x_pitch, "y_pitch": y_pitch}
        return Step(copy_rows, {"x": source, "y": target, **sizes}, parallel=rows * nbytes > PARALLEL_BYTES)

    def build(self, jobs: Sequence[Job], threads: int) -> Program:
        return build_program(jobs, threads)

    def describe(self) -> str:
        isa = target()
        return f"{isa.name} on {platform.machine()} ({isa.cpu})"


DEVICE = Cpu()
