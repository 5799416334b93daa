"""Dtypes, dimensions and tensor types as programs name them: all of `bolt_numba.base.types`."""

from bolt_numba.base.types import *  # noqa: F403
