"""Attacks from outside: damaged files, altered models, operands that do not fit.  ``python -m tests.attack --help``."""
