"""Kernels of signals: Fourier transforms."""
