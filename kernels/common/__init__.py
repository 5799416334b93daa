"""Operators whose kernels and makers are written once, for every device of ours."""
