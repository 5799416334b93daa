"""What LLVM says of this machine's processor, remembered between processes: asking takes the import of LLVM."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from contextlib import suppress
from pathlib import Path

from bolt_numba.base.config import cache_root
from bolt_numba.base.digest import sha256
from bolt_numba.base.trusted import read_trusted, write_private

Host = tuple[str, dict[str, bool]]
_CPUINFO = Path("/proc/cpuinfo")
_TELLING = (b"vendor_id", b"cpu family", b"model", b"stepping", b"flags", b"Features", b"CPU")
"""Lines that do not change from read to read."""
_ENOUGH = 1 << 14
"""Bytes that hold the description of one processor."""


@functools.cache
def host() -> Host:
    """LLVM's name of the processor and the features it has."""
    key = _key()
    path = cache_root() / "hosts" / f"{key}.json"
    if key:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            match json.loads(read_trusted(path) or b"null"):
                case {"cpu": str(cpu), "features": dict(features)} if all(type(v) is bool for v in features.values()):
                    return cpu, features
    made = _ask()
    if key:
        write_private(path, json.dumps({"cpu": made[0], "features": made[1]}).encode())
    return made


def _ask() -> Host:
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name()), {str(k): bool(v) for k, v in dict(llvm.get_host_cpu_features()).items()}


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
