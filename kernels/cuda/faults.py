"""How a CUDA kernel says that the content of an operand asks for what is not there.

As on the CPU (`kernels.cpu.faults`), a step has a field `registry.Fault`: the address of a record of `FAULT` words, in
the memory of the GPU.  It reads each number once, tests it, reports what is out of range, and goes on without the
access.  The run reads all records back behind its last step.
"""

# mypy: disable-error-code="no-untyped-def"
from bolt_numba.kernels.cuda.language.lang import atomic_exchange_i32, store_i64
from bolt_numba.kernels.declare import inline

FAULT = 5
"""Words (i64) of a record: whether it is taken, position, value, low, high."""


@inline
def report(fault, position, value, low, high):
    """Say that the ``value`` at a flat ``position`` of the operand is not in low…high; the first to say so stays."""
    if atomic_exchange_i32(fault, 1) == 0:
        store_i64(fault + 8, position)
        store_i64(fault + 16, value)
        store_i64(fault + 24, low)
        store_i64(fault + 32, high)
