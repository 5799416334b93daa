"""The processor that an export is for: what it may be called, and the device that plans for it and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.follow import Trail
from bolt_numba.devices.cpu import Cpu
from bolt_numba.devices.followed import FollowedProgram
from bolt_numba.devices.program import Program, laid_out
from bolt_numba.kernels.targets import TARGETS, is_foreign, packs_here
from bolt_numba.runtime.slots import Job
from bolt_numba.runtime.stops import Stop

NATIVE = "native"
"""The target that is the instruction set of this process."""


def target_names() -> list[str]:
    """What a target may be called: by the level of its instructions."""
    return [NATIVE, *(target.level for target in TARGETS.values())]


def _own_name(target: str) -> str:
    """What `kernels.targets` calls a target, "" for this process's own.  Raises DeviceError for an unknown one."""
    if target == NATIVE:
        return ""
    found = {name: name for name in TARGETS} | {made.level: name for name, made in TARGETS.items()}
    if target not in found:
        raise DeviceError(f"target: got {target!r}, wanted one of {', '.join(target_names())}")
    return found[target]


class PlannedCpu(Cpu):
    """The processor of a target, for which programs are laid out and not linked."""

    def __init__(self, target: str = NATIVE) -> None:
        self.target = _own_name(target)
        super().__init__(self.target)
        self.is_foreign = bool(self.target) and is_foreign(self.target)
        if self.target and not packs_here(self.target):
            raise DeviceError(f"target: got {target!r}, wanted one whose vectors this processor has: they pack weights")

    def prepare(self, jobs: Sequence[Job]) -> None:
        if not self.is_foreign:
            super().prepare(jobs)

    def build(self, jobs: Sequence[Job], threads: int) -> Program:
        return laid_out(jobs, threads)

    def followed(
        self, jobs: Sequence[Job], threads: int, trail: Trail, numbers: Sequence[str], dims: Sequence[Any],
        sums: Sequence[Any], stops: Sequence[Stop],
    ) -> FollowedProgram:  # fmt: skip
        self.prepare(jobs)
        return FollowedProgram(jobs, threads, trail, numbers, dims, sums)
