"""bolt-numba: neural-network inference in Python at machine speed."""
