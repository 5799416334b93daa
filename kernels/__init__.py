"""Kernels by device, and the registry that tells which kernel runs which operator."""
