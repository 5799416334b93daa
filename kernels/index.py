"""Which modules have makers of which operators, remembered between processes: most models need few of them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bolt_numba.config import cache_root

Place = tuple[str, str]
"""Module and name of a maker."""
_PREFIX = "bolt_numba.kernels."


@functools.cache
def index(device: str) -> dict[str, list[Place]] | None:
    """Makers by operator, the first to ask first; None where they are not known for the sources as they are."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = json.loads(_path(device).read_bytes())
        made = {str(op): [(str(module), str(name)) for module, name in places] for op, places in found.items()}
        if all(module.startswith(_PREFIX) for places in made.values() for module, _ in places):
            return made
    return None


def write_index(device: str, makers: Mapping[str, Sequence[Place]]) -> None:
    """Remember it for later processes; where that cannot be written, they import all modules."""
    path = _path(device)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(makers))
        partial.replace(path)


def _path(device: str) -> Path:
    """Named by the files of the device as they are: names, sizes and times."""
    state = hashlib.sha256()
    with os.scandir(Path(__file__).parent / device) as entries:
        for entry in sorted((e for e in entries if e.name.endswith(".py")), key=lambda e: e.name):
            found = entry.stat()
            state.update(f"{entry.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return cache_root() / "makers" / f"{device}-{state.hexdigest()[:16]}.json"
