"""Writes what the scoreboard keeps of a run to ``RESULTS_DIR``: ``report.json``, ``trend.json``."""

from __future__ import annotations

import importlib.metadata
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STATES = ("passed", "failed", "skipped")
PACKAGES = ("onnx", "bolt-numba")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names by state, and their numbers with the versions of packages."""
    folder = Path(os.environ["RESULTS_DIR"])
    date = datetime.now(UTC).strftime("%m/%d/%Y %H:%M:%S")
    stats = terminalreporter.stats
    names = {state: sorted(each.nodeid.partition("::")[2] for each in stats.get(state, [])) for state in STATES}
    _write(folder / "report.json", names | {"date": date})
    versions = [{"name": name, "version": importlib.metadata.version(name)} for name in PACKAGES]
    counts = {state: len(found) for state, found in names.items()}
    file = folder / "trend.json"
    before = json.loads(file.read_text()) if file.exists() else []
    _write(file, [*before, counts | {"date": date, "versions": versions}])


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=4, sort_keys=True) + "\n")
