"""Which modules have makers of which operators, remembered between processes: most models need few of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from bolt_numba.base.files.folder_index import remember, remembered

Place = tuple[str, str, str]
"""Module, name and precision of a maker."""
_PREFIX = "bolt_numba.kernels."
_KIND = "makers"
_FOLDER = Path(__file__).parent
COMMON = "common"
"""Folder of makers for every device."""


@functools.cache
def makers_of(device: str) -> dict[str, list[Place]] | None:
    """Makers by operator, the first to ask first; None where they are not known for the sources as they are."""
    found = remembered(_KIND, _FOLDER / device, _FOLDER / COMMON)
    try:
        made = {op: [(module, name, precision) for module, name, precision in places] for op, places in found.items()}
        good = all(m.startswith(_PREFIX) and isinstance(n, str) for places in made.values() for m, n, _ in places)
    except (ValueError, AttributeError, TypeError):
        return None
    return made if good else None


def write_index(device: str, makers: Mapping[str, Sequence[Place]]) -> None:
    """Remember it for later processes."""
    remember(_KIND, _FOLDER / device, makers, _FOLDER / COMMON)
