"""Kernels in Numba CUDA: `declare` says what one is, `compiler` makes PTX and cubins of it, the folders hold makers."""
