"""Transposed convolution, channels last: every output phase is a small dense convolution of the input."""
