"""What LLVM and the system say of this machine's processor, remembered between processes: asking imports LLVM."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from contextlib import suppress
from pathlib import Path

from bolt_numba.base.digest import sha256
from bolt_numba.base.kept import contents, keep

Processor = tuple[str, dict[str, bool], tuple[int, int, int, int]]
_CPUINFO = Path("/proc/cpuinfo")
_TELLING = (b"vendor_id", b"cpu family", b"model", b"stepping", b"flags", b"Features", b"CPU")
"""Lines that do not change from read to read."""
_ENOUGH = 1 << 14
"""Bytes that hold the description of one processor."""
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN = (32 << 10, 8, 1 << 20, 32 << 20)
"""Caches of a processor that does not tell."""


@functools.cache
def processor() -> Processor:
    """LLVM's name of the processor, the features it has, and its caches.

    These are bytes of a core's first-level cache of data and the ways of that, and bytes of a core's second-level cache
    and of the last one.
    """
    key = _key()
    name = f"processors/{key}.json"
    for _, found in contents(name) if key else ():
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            match json.loads(found or b"null"):
                case {"cpu": str(cpu), "features": dict(features), "caches": [l1, ways, l2, l3]} if (
                    all(type(v) is bool for v in features.values())
                    and all(type(v) is int and v > 0 for v in (l1, ways, l2, l3))
                ):
                    return cpu, features, (l1, ways, l2, l3)
    made = _ask()
    if key:
        keep(name, json.dumps({"cpu": made[0], "features": made[1], "caches": made[2]}).encode())
    return made


def _ask() -> Processor:
    import llvmlite.binding as llvm

    features = {str(k): bool(v) for k, v in dict(llvm.get_host_cpu_features()).items()}
    return str(llvm.get_host_cpu_name()), features, _caches()


def _caches() -> tuple[int, int, int, int]:
    """As Linux describes them; those of `_UNKNOWN` for what it does not tell."""
    l1, ways, l2, l3 = _UNKNOWN
    for place in sorted(_CACHES.glob("index*")):
        with suppress(OSError, ValueError, KeyError):
            level, kind, size = ((place / name).read_text().strip() for name in ("level", "type", "size"))
            nbytes = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]
            if level == "1" and kind == "Data":
                l1, ways = nbytes, int((place / "ways_of_associativity").read_text()) or ways
            elif level == "2":
                l2 = nbytes // _cores(place)
            elif level == "3":
                l3 = nbytes
    return l1, ways, l2, l3


def _cores(place: Path) -> int:
    """Cores that share a cache: its processors, but for those that are threads of one core."""
    threads = (_CACHES.parent / "topology" / "thread_siblings").read_text()
    return max(_bits((place / "shared_cpu_map").read_text()) // max(_bits(threads), 1), 1)


def _bits(mask: str) -> int:
    return int(mask.strip().replace(",", ""), 16).bit_count()


def _key() -> str:
    """Names the processor as the system describes it and the version of LLVM; "" where the system does not."""
    try:
        with _CPUINFO.open("rb") as file:
            text = file.read(_ENOUGH).partition(b"\n\n")[0]
    except OSError:
        return ""
    lines = [x for x in text.splitlines() if x.startswith(_TELLING)]
    state = sha256(b"\n".join(lines) + installed_version("llvmlite").encode())
    return state.hexdigest()[:16] if any(x.startswith((b"flags", b"Features")) for x in lines) else ""


@functools.cache
def installed_version(package: str) -> str:
    """Version of an installed package, which is not imported; `importlib.metadata` would import an e-mail parser."""
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin is not None:
        names = os.listdir(Path(spec.origin).parent.parent)
        found = [n for n in names if n.startswith(f"{package}-") and n.endswith(".dist-info")]
        if len(found) == 1:
            return found[0][len(package) + 1 : -len(".dist-info")]
    from importlib import metadata

    return metadata.version(package)
