"""Runs the models of `budget_cases` and writes a line for each: how it ended, seconds of processor time, bytes."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import bolt_numba as bn
from tests.budget_cases import CASES

ROOM = 6 << 30
"""Address space beyond what the imports take: a runaway ends as an error, not as a dead machine."""


def peak() -> int:
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows["VmHWM"].split()[0]) << 10


def say(row: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def main(names: list[str]) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    for name in names or CASES:
        made, feeds = CASES[name][0]()
        data = made.SerializeToString()
        say({"name": name})
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        before, start, said = peak(), time.process_time(), ""
        try:
            bn.compile(data, threads=1)(feeds)
            ended = "ok"
        except bn.BoltError as error:
            ended, said = type(error).__name__, str(error)
        seconds = time.process_time() - start
        row = {"name": name, "ended": ended, "said": said, "seconds": seconds, "bytes": peak() - before}
        say(row)


if __name__ == "__main__":
    main(sys.argv[1:])
