"""What the system says of this machine's processor: its instructions, by LLVM's names, and its caches.

Linux tells all of it in a few files.  Elsewhere LLVM is asked for the instructions, and imported for that.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from contextlib import suppress
from pathlib import Path

Processor = tuple[str, frozenset[str], tuple[int, int, int, int]]
_CPUINFO = Path("/proc/cpuinfo")
_ENOUGH = 1 << 14
"""Bytes that hold the description of one processor."""
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN = (32 << 10, 8, 1 << 20, 32 << 20)
"""Caches of a processor that does not tell."""
_BY_LLVM = {
    "lm": "64bit", "pni": "sse3", "sse4_1": "sse4.1", "abm": "lzcnt", "bmi1": "bmi", "lahf_lm": "sahf",
    "pclmulqdq": "pclmul", "asimd": "neon", "asimddp": "dotprod",
}  # fmt: skip
"""LLVM's names of instructions where those of Linux differ by more than an underscore."""


@functools.cache
def processor() -> Processor:
    """Name of the processor, LLVM's names of the instructions that it has, and its caches.

    The name is what Linux calls maker and family, else LLVM's.  The caches are bytes of a core's first-level cache of
    data and the ways of that, and bytes of a core's second-level cache and of the last one.
    """
    name, features = _described() or _asked()
    return name, features, _caches()


def _described() -> tuple[str, frozenset[str]] | None:
    """Name and instructions as Linux tells them; None where it does not."""
    try:
        with _CPUINFO.open("rb") as file:
            text = file.read(_ENOUGH).partition(b"\n\n")[0].decode("ascii", "replace")
    except OSError:
        return None
    lines: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*: *(.*)$", text, re.MULTILINE))
    flags = lines.get("flags", lines.get("Features", "")).split()
    if not flags:
        return None
    made = {_BY_LLVM.get(flag, flag.replace("_", "")) for flag in flags}
    names = (lines.get(key, "") for key in ("vendor_id", "cpu family", "CPU implementer", "CPU part"))
    return " ".join(filter(None, names)), frozenset(made | ({"crc32", "sse4.2"} if "sse4_2" in flags else set()))


def _asked() -> tuple[str, frozenset[str]]:
    """The same, as LLVM tells it; nothing where it is not installed."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return "", frozenset()
    return str(llvm.get_host_cpu_name()), frozenset(k for k, v in dict(llvm.get_host_cpu_features()).items() if v)


def _caches() -> tuple[int, int, int, int]:
    """As Linux describes them; those of `_UNKNOWN` for what it does not tell."""
    l1, ways, l2, l3 = _UNKNOWN
    with suppress(OSError):
        for name in sorted(n for n in os.listdir(_CACHES) if n.startswith("index")):
            with suppress(OSError, ValueError, KeyError):
                place = f"{_CACHES}/{name}"
                level, kind = _line(f"{place}/level"), _line(f"{place}/type")
                if kind == "Instruction":
                    continue
                size = _line(f"{place}/size")
                nbytes = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]
                if level == "1":
                    l1, ways = nbytes, int(_line(f"{place}/ways_of_associativity")) or ways
                elif level == "2":
                    l2 = nbytes // _cores(place)
                elif level == "3":
                    l3 = nbytes
    return l1, ways, l2, l3


def _line(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _cores(place: str) -> int:
    """Cores that share a cache: its processors, but for those that are threads of one core."""
    threads = _line(f"{_CACHES.parent}/topology/thread_siblings")
    return max(_bits(_line(f"{place}/shared_cpu_map")) // max(_bits(threads), 1), 1)


def _bits(mask: str) -> int:
    return int(mask.replace(",", ""), 16).bit_count()


@functools.cache
def installed_version(package: str) -> str:
    """Version of an installed package, which is not imported, or ""; `importlib.metadata` imports an e-mail parser."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return ""
    if spec.origin is not None:
        names = os.listdir(Path(spec.origin).parent.parent)
        found = [n for n in names if n.startswith(f"{package}-") and n.endswith(".dist-info")]
        if len(found) == 1:
            return found[0][len(package) + 1 : -len(".dist-info")]
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
