"""The lengths of sequences are data: a step says which are not among the steps of time."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, cuda_kernel
from bolt_numba.kernels.cuda.faults import FAULT_AT, report
from bolt_numba.kernels.cuda.language.lang import cuda, load_i32


@cuda_kernel(
    threads=BLOCK, blocks=lambda a: 1, extents=lambda a: {"lengths": 4 * a.n}, lengths=PTR, fault=FAULT_AT, n=I64,
    steps=I64,
)  # fmt: skip
def check_lengths(lengths, fault, n, steps):
    """lengths: i32 [n], each in 0…steps."""
    for i in range(cuda.threadIdx.x, n, BLOCK):
        length = load_i32(lengths + 4 * i)
        if length < 0 or length > steps:
            report(fault, i, length, 0, steps)
