"""Benchmarks: every claim of speed comes from here."""
