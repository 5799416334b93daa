"""Operators that files name themselves: by tools, by makers of models."""
