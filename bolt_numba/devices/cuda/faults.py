"""Records of what the steps of a run refuse in the content of operands, in the memory of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.devices.cuda.memory import Buffer, CudaMemory
from bolt_numba.devices.program import fault_of
from bolt_numba.kernels.cuda.faults import FAULT
from bolt_numba.kernels.registry import Fault
from bolt_numba.runtime.slots import Job


class Faults:
    """One record for each operand that a step of these jobs checks; of one run at a time."""

    def __init__(self, jobs: Sequence[Job], memory: CudaMemory, stream: Any) -> None:
        found = [(job, arg.operand) for job in jobs for s in job.steps or () for arg in s.args.values()
                 if isinstance(arg, Fault)]  # fmt: skip
        self.checked = list({(id(job), operand): (job, operand) for job, operand in found}.values())
        self.driver, self.stream = memory.driver, stream
        self.none = np.zeros((len(self.checked), FAULT), np.int64)
        self.records: Buffer | None = memory.upload(self.none) if self.checked else None
        self.is_clean = True

    def address(self, job: Job, operand: int) -> int:
        assert self.records is not None
        number = next(i for i, (other, of) in enumerate(self.checked) if other is job and of == operand)
        return self.records.address + 8 * FAULT * number

    def begin(self) -> None:
        """Before a run: forget what one that was interrupted has left."""
        if self.records is not None:
            if not self.is_clean:
                self.driver.write(self.records.address, self.none, self.stream)
            self.is_clean = False

    def check(self) -> None:
        """Wait for the run if it checks anything; raises the DataError of the first record."""
        if self.records is None:
            return
        found = np.empty_like(self.none)
        self.driver.read(self.records.address, found, self.stream)
        self.is_clean = not found[:, 0].any()
        if not self.is_clean:
            number = int(found[:, 0].argmax())
            raise fault_of(*self.checked[number], found[number, 1:].tolist())
