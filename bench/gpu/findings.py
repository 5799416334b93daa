"""What a run has found so far, on disk behind every case: one that is cut off loses the case that it was at."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.page import markdown, plots

RESERVED_S = {"checks": 150.0}
"""Seconds that parts before leave to one that is still to come."""


class Findings:
    """Results of parts by name in ``gpu.json`` and ``gpu.md`` of a folder; those of parts not run anew stay there.

    device: what they are of; those of another device go.  parts: that are wanted, in order.  seconds: after which no
    case begins; what is left out by that has its name in ``left_out``.
    """

    def __init__(self, folder: Path, device: str, parts: Sequence[str], seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.parts, self.until = folder, list(parts), time.monotonic() + seconds
        self.by_part: dict[str, Any] = {"ran_on": device}
        file = folder / "gpu.json"
        before = json.loads(file.read_text()) if file.is_file() else {}
        if before.get("ran_on") == device:
            self.by_part = {name: found for name, found in before.items() if name not in parts}
        self.by_part["left_out"] = [name for name in before.get("left_out", ()) if name.split(" ")[0] not in parts]

    def left(self, part: str) -> float:
        """Seconds that a part still has."""
        later = self.parts[self.parts.index(part) + 1 :]
        return self.until - time.monotonic() - sum(RESERVED_S.get(name, 0.0) for name in later)

    def has_time(self, part: str, case: str, wanted: float = 0.0) -> bool:
        """Whether a case may begin that takes about so many seconds; it counts as left out where it may not."""
        if self.left(part) > wanted:
            return True
        self.by_part["left_out"].append(f"{part} {case}")
        return False

    def rows(self, part: str) -> list[Any]:
        """A list for a part's rows, which `save` keeps."""
        made: list[Any] = []
        self.by_part[part] = made
        return made

    def save(self) -> None:
        (self.folder / "gpu.json").write_text(json.dumps(self.by_part, indent=1, default=str) + "\n")
        (self.folder / "gpu.md").write_text(markdown(self.by_part))

    def end(self, part: str, seconds: float) -> None:
        """A part is done, in so many seconds."""
        self.by_part.setdefault("took_s", {})[part] = round(seconds, 1)
        self.save()
        plots(self.by_part, self.folder)
