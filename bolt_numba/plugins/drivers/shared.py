"""What drivers share: memory that requests are bound to, anew only where it moved; packages and processor here."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np

from bolt_numba.base.config import MAX_THREADS
from bolt_numba.base.digest import sha256
from bolt_numba.base.errors import DeviceError
from bolt_numba.base.types import Array
from bolt_numba.plugins.interface import Setting


class Bindings:
    """Arrays that an SDK reads or writes where they lie.

    bind: tells the SDK that the operand of an index is at the address of an array.  It is called again where the array
    of a later run lies elsewhere or has another shape.  No array is kept alive.
    """

    def __init__(self, bind: Callable[[int, Array, int], None], count: int) -> None:
        self._bind = bind
        self._arrays: list[Callable[[], Any]] = [lambda: None] * count
        self._places: list[Any] = [None] * count

    def to(self, arrays: Sequence[Array]) -> None:
        """Bind what is not where it was in the last run."""
        for i, array in enumerate(arrays):
            if self._arrays[i]() is array:
                continue
            address = array.ctypes.data
            place = address, array.shape
            if place != self._places[i]:
                self._places[i] = None  # if the SDK refuses it, nothing is bound
                self._bind(i, array, address)
                self._places[i] = place
            self._arrays[i] = ref(array)


def borrowed(array: Array, address: int) -> Array:
    """The same memory as an array that may be written, and that keeps nothing alive."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    memory: Any = (ctypes.c_char * array.nbytes).from_address(address)
    made: Array = np.frombuffer(memory, array.dtype).reshape(array.shape)
    return made


CPU_FACTS = ("model name", "flags", "Features", "CPU part")
"""Lines of Linux's description of a processor on which compiled code may depend."""


def lacking(package: str) -> str:
    """Why a package cannot be used; empty where it can.  Nothing is imported."""
    if importlib.util.find_spec(package) is None:
        return f"the package {package} is not installed (pip install {package})"
    return ""


def version_of(package: str) -> str:
    """The installed version: the module's own word, or that of pip, which takes longer than a small model."""
    own = getattr(importlib.import_module(package), "__version__", None)
    if own:
        return str(own)
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def threads_of(device: str, given: Setting) -> int:
    """The property of that name; raises DeviceError for a number that would take the system's threads away."""
    count = int(given)
    if not 0 <= count <= MAX_THREADS:
        raise DeviceError(f"{device}: threads: got {count}, wanted 0 to {MAX_THREADS}")
    return count


def processor_digest() -> str:
    """Sixteen letters that differ between kinds of processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = [line for line in lines if line.partition("\t")[0].strip() in CPU_FACTS]
    text = "\n".join(facts) or f"{platform.machine()} {platform.processor()}"
    return sha256(text.encode()).hexdigest()[:16]
