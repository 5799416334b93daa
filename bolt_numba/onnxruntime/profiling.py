"""A profile in the form of onnxruntime's: a list of events of Chrome's trace format."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bolt_numba.sessions.session import Session

RUNS = 5
"""Times that the last run is repeated; the events are medians."""


def write_trace(session: Session, feeds: Mapping[str, Any] | None, prefix: str) -> str:
    """Profile a run of these inputs, none where they are None, and write it; returns the file's name."""
    now = time.time_ns()
    path = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(now // 10**9))}_{now // 10**6 % 1000:03}.json"
    lines = [] if feeds is None else [json.dumps(event) for event in _events(session, feeds)]
    Path(path).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")  # one event a line, as there
    return path


def _events(session: Session, feeds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One event for the run and one for each step; times in microseconds."""
    profile = session.profile(feeds, runs=RUNS)
    common = {"ph": "X", "pid": 1, "tid": 1}
    events: list[dict[str, Any]] = [
        {"cat": "Session", "name": "model_run", "ts": 0, "dur": round(profile.total * 1e6), "args": {}} | common
    ]
    for index, row in enumerate(profile.rows):
        args = {"op_name": row.op, "provider": "CPUExecutionProvider", "node_index": str(index)}
        args |= {"kernel": row.runner, "output": row.output}
        name, start, spent = f"{row.node}_kernel_time", round(row.start * 1e6), round(row.seconds * 1e6)
        events.append({"cat": "Node", "name": name, "ts": start, "dur": spent, "args": args} | common)
    return events
