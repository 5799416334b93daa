"""Readers of operators, by family."""
