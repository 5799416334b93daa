"""Operators that exporters spell out as small graphs are found, and take constants into their weights."""
