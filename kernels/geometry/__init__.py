"""Geometry of kernels that no device decides: plan-time numbers, which the makers of every device read."""
