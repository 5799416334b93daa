"""How a kernel says that the content of an operand asks for what is not there.

A step that takes indices, counts or lengths from an operand has a field `registry.Fault`: the address of a record of
`FAULT` words.  It reads each number once, tests that, and where it is out of range it calls `report` and goes on
without the access, so memory is safe also while another thread writes the operand.  The runner looks at one
counter a run.
"""

# mypy: disable-error-code="no-untyped-def"
from bolt_numba.kernels.cpu.language.lang import atomic_add, atomic_compare_exchange, inline, load_i64, store_i64

FAULT = 8
"""Words (i64) of a record, a cache line: whether it is taken, position, value, low, high, address of the counter."""
COUNTER = 5


@inline
def report(fault, position, value, low, high):
    """Say that the ``value`` at a flat ``position`` of the operand is not in low…high; the first to say so stays."""
    if atomic_compare_exchange(fault, 0, 1):
        store_i64(fault + 8, position)
        store_i64(fault + 16, value)
        store_i64(fault + 24, low)
        store_i64(fault + 32, high)
        atomic_add(load_i64(fault + 8 * COUNTER), 1)
