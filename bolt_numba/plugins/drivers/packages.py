"""What is installed here, and on which processor: on both depends what an SDK keeps of a graph."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

from bolt_numba.base.config import MAX_THREADS
from bolt_numba.base.digest import sha256
from bolt_numba.base.errors import DeviceError
from bolt_numba.plugins.interface import Setting

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
