"""Code of CUDA kernels: from the cache, else compiled now and kept."""

from __future__ import annotations

import functools

from bolt_numba.kernels.cuda.declare import CudaKernel


@functools.cache
def ptx(kernel: CudaKernel, arch: str) -> str:
    """PTX text for one architecture."""
    from bolt_numba.kernels.cuda.compiler import ptx_of

    return ptx_of(kernel, arch)


@functools.cache
def cubin(kernel: CudaKernel, arch: str) -> bytes:
    """Machine code for one architecture."""
    from bolt_numba.kernels.cuda.compiler import cubin_of

    return cubin_of(kernel, arch)
