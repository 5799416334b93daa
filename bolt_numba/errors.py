"""The errors as programs name them: all of `bolt_numba.base.errors`."""

from bolt_numba.base.errors import *  # noqa: F403
