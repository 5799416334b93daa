"""Winograd convolution F(4x4, 3x3), channels last: 2.25 to 4 times fewer multiplications than the direct sum."""
