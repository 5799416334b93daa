"""A simulated GPU: runs the PTX of kernels with NumPy, every thread of some blocks a lane, and checks what they do.

What a GPU does not say is an error here: reads of what nothing has written, accesses out of bounds or misaligned,
shared memory that two warps use without a barrier between, copies that nobody waited for, barriers that not all reach.

Approximate instructions (``ex2.approx``, ``rcp.approx``, ``tanh.approx``) are exact here, and numbers below the normal
ones are never flushed to zero: a test must allow for the GPU's error.  Sums of tensor cores are f32 sums.
Nothing here says how long a kernel takes; `SimulationReport` counts what it does.
"""

from bolt_numba.base.errors import SimulationError
from bolt_numba_simulator.ptx.instructions.copies import TensorMap
from bolt_numba_simulator.ptx.program import Module
from bolt_numba_simulator.ptx.report import Counts, SimulationReport
from bolt_numba_simulator.ptx.state.memory import GlobalMemory
from bolt_numba_simulator.ptx.state.types import ALL_CHECKS, Checks

__all__ = [
    "ALL_CHECKS",
    "Checks",
    "Counts",
    "GlobalMemory",
    "Module",
    "SimulationError",
    "SimulationReport",
    "TensorMap",
]
