"""Kernels in Numba CUDA: `declare` says what one is, `compiler` makes PTX and cubins of it, the folders hold makers.

`tests/cuda/samples.py` has one kernel of each kind that makers register (dtypes, tiles, architectures).
`tests/cuda/test_resources.py` compiles them all and holds registers, local and shared memory and classes of
instructions against `tests/cuda/resources.json`, which ``python -m tests.cuda.resources`` writes anew.
"""
