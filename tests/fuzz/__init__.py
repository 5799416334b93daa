"""Fuzzing by coverage: readers of files get changed copies of good ones.  ``python -m tests.fuzz --help``."""
