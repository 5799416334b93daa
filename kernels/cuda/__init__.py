"""Kernels in Numba CUDA: `declare` says what one is, `compiler` makes PTX and cubins of it, the folders hold makers.

A module of kernels may define ``samples() -> dict[str, CudaKernel]``: by a name that is its own in the module, one
kernel of each kind that its makers register (dtypes, tiles, architectures).  `tests/cuda/test_resources.py` compiles
them all and holds registers, local and shared memory and classes of instructions against `tests/cuda/resources.json`,
which ``python -m tests.cuda.resources`` writes anew.
"""
