"""Pointwise operators and fused chains of them."""
