"""What the modules below a folder hold, remembered between processes, so that those nobody needs are not imported.

Some wheels bring it along (`bench/wheels.py`), for sources that have the sizes of theirs.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bolt_numba.base.digest import sha256
from bolt_numba.base.files.kept import BUILT_IN, contents, keep


def remembered(kind: str, folder: Path, *beside: Path) -> Any:
    """What `remember` wrote for the folders as they are; None where there is nothing, or nothing that can be read."""
    for _, found in contents(_name(kind, folder, *beside)):
        with suppress(ValueError, RecursionError):
            return json.loads(found or b"null")
    with suppress(OSError, ValueError):
        return json.loads((BUILT_IN / built_in_name(kind, folder, *beside)).read_bytes()) if BUILT_IN.is_dir() else None
    return None


def remember(kind: str, folder: Path, content: Any, *beside: Path) -> None:
    """Keep ``content`` for later processes; where that cannot be written, they import all modules.

    beside: folders whose modules have a part in it.
    """
    with suppress(OSError):  # the folder of the sources is gone
        keep(_name(kind, folder, *beside), json.dumps(content).encode())


def _name(kind: str, folder: Path, *beside: Path) -> str:
    return f"{kind}/{folder.name}-{state_of(folder, *beside)}.json"


def built_in_name(kind: str, *folders: Path) -> str:
    """What a file that came with the package is called; installing gives files new times, but not new sizes."""
    folder = folders[0]
    lines = (line.rpartition(" ")[0] for each in folders for line in _sources(each, ""))
    return f"{kind}-{folder.name}-{_digest(lines)}.json"


@functools.cache
def state_of(*folders: Path) -> str:
    """Names the sources below the folders: names, sizes and times, as they were when this process first looked.

    What it holds of them is never kept for those that an upgrade puts in their place meanwhile.
    """
    return _digest(line for folder in folders for line in _sources(folder, ""))


def _digest(lines: Iterable[str]) -> str:
    return sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _sources(folder: Path | str, below: str) -> Iterator[str]:
    """A line for each module in a folder and in those that it holds; images of containers keep whole seconds."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found = entry.stat()
                yield f"{below}{entry.name} {found.st_size} {int(found.st_mtime)}"
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path, f"{below}{entry.name}/")
