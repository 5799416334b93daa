"""What must be installed to compile CUDA kernels, and what to do where it is not."""

from __future__ import annotations

import functools
import os

from bolt_numba.base.errors import KernelError
from bolt_numba.kernels.compiles import logger

COMPILERS = ("numba-cuda", "numba", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")
"""Distributions on whose versions code depends."""
SERIES = "0.30."
"""Versions of Numba CUDA whose parts the compiler uses."""
REMEDY = "pip install 'bolt-numba[cuda]'"


@functools.cache
def versions() -> dict[str, str]:
    """Of the compilers; "" for what is not installed."""
    from importlib import metadata  # it imports an e-mail parser

    found = {}
    for name in COMPILERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def lacking_compiler() -> str:
    """What keeps CUDA kernels from being compiled here, or ""; Numba CUDA is not imported."""
    if not versions()["numba-cuda"]:
        return f"numba-cuda: got none, wanted {SERIES}x: {REMEDY}"
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return "NUMBA_ENABLE_CUDASIM: got a simulator in the place of the compiler, wanted the variable unset"
    return ""


def is_known() -> bool:
    """Whether the compilers are those that were tried with these kernels, all of them as packages."""
    return versions()["numba-cuda"].startswith(SERIES) and all(versions().values())


def check_compiler(kernel: str) -> None:
    """Raise KernelError where nothing can be compiled."""
    if lack := lacking_compiler():
        raise KernelError(f"kernel '{kernel}': code for GPUs: got none in the cache and no compiler; {lack}")
    if not versions()["numba-cuda"].startswith(SERIES):
        _tell_unknown()


@functools.cache
def _tell_unknown() -> None:
    """Once: whether it works shows when it compiles."""
    text = "numba-cuda: got %s, which was never tried, wanted %sx: %s"
    logger().warning(text, versions()["numba-cuda"], SERIES, REMEDY)
