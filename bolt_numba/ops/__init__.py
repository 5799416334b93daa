"""Operators: what each one means."""
