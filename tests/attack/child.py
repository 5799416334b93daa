"""Cases run one after the other in a child process, which is replaced when it dies, hangs or eats memory.

The child reads numbers, one a line, and answers each with a line of JSON: kind, state, detail.  A line ``["at", place,
""]`` before the answer says what it is doing: while a kernel compiles or references judge it may take longer, and what
happens inside another engine is not our fault.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bolt_numba.base import config
from bolt_numba.benchmark import peak_rss
from bolt_numba.errors import BoltError, InternalError
from bolt_numba.kernels.jit import on_compile

SECONDS = 10.0
"""What a case may take of the processor."""
STUCK = 120.0
"""What it may take by the clock, on a machine that others keep busy."""
MEMORY = 2 << 30
"""What a case may take at most; the budget of plans and results is an eighth of it."""
STARTING = 120.0
"""Seconds that a fresh child may take until it is ready."""
PATIENT = 240.0
"""Seconds that a kernel may take to compile, and references to judge, on a busy machine."""
LIFE = 20_000
"""Cases that one child runs."""
GOOD = ("ran", "refused", "loaded", "peer")
"""States of a case that ended well; ``peer``: another engine died or hung on it."""


def refusal(error: Exception) -> tuple[str, str]:
    """State and detail of what was raised: a refusal, or a fault of ours, in a BoltError's clothes or not."""
    if isinstance(error, InternalError):
        return "fault", str(error)
    if isinstance(error, BoltError):
        return "refused", type(error).__name__
    return "unclean", f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Result:
    """One case: what was attacked, the number that makes the case again, and what came of it."""

    target: str
    seed: int
    kind: str
    state: str
    detail: str

    @property
    def is_good(self) -> bool:
        return self.state in GOOD


class Child:
    """A child process that runs ``command``, which ends in `serve`."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, config.MEMORY.name: f"{MEMORY >> 23}M"},
        )
        self.received = b""
        kind, state, detail = self.read(STARTING)
        if state not in GOOD:
            self.stop()
            raise SystemExit(f"{command}: the undamaged start: {kind} {state} {detail}")

    def read(self, seconds: float) -> tuple[str, str, str]:
        """The next answer, or what happened instead of one."""
        place = ""
        while True:
            line = self._line(PATIENT if place in ("compile", "judge") else seconds)
            if line is None:
                return ("?", "peer", "hang") if place == "peer" else ("?", "hang", f"over {seconds:g} s")
            if not line:
                code = self.process.wait()
                return "?", "peer" if place == "peer" else "dead", f"exit code {code}"
            kind, state, detail = json.loads(line)
            if kind != "at":
                return kind, state, detail
            place = state

    def _line(self, seconds: float) -> bytes | None:
        """The next line, b"" when there are no more, None when none comes in time."""
        assert self.process.stdout is not None
        start, used = time.monotonic(), self._used()
        while b"\n" not in self.received:
            ready, _, _ = select.select([self.process.stdout], [], [], min(seconds, 1.0))
            if not ready:
                waited = time.monotonic() - start
                if waited >= seconds and (self._used() - used >= seconds or waited >= STUCK):
                    return None
                continue
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                return b""
            self.received += more
        line, _, self.received = self.received.partition(b"\n")
        return line

    def _used(self) -> float:
        """Seconds that the child has had of the processor."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it is no more
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, seed: int) -> tuple[str, str, str]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seed}\n".encode())
        return self.read(SECONDS)

    @property
    def is_usable(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def drive(target: str, command: Sequence[str], seeds: Iterable[int]) -> Iterator[Result]:
    """Ask a child for every seed; a child that is lost is replaced."""
    child: Child | None = None
    try:
        for seed in seeds:
            child = child or Child(command)
            kind, state, detail = child.ask(seed)
            yield Result(target, seed, kind, state, detail)
            if kind == "?" or not child.is_usable:
                child.stop()
                child = None
    finally:
        if child is not None:
            child.stop()


def answer(*parts: str) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(parts) + "\n")
    sys.stdout.flush()


_peak: list[int] = []
"""Bytes that the engine took at most for the case, once others take memory."""


def at(place: str) -> None:
    """Tell the parent what comes next: run, compile, judge or peer."""
    if place in ("judge", "peer"):
        _peak.append(peak_rss() or 0)
    answer("at", place, "")


def tell_of_compiles() -> None:
    """Say from now on when a kernel compiles: the undamaged start may take as long as that does, too."""
    on_compile(lambda _, done: at("run" if done else "compile"))


def serve(run: Callable[[int], tuple[str, str, str]], first: tuple[str, str]) -> None:
    """The child: answers numbers until there are no more.

    run: number to kind, state, detail; first: state and detail of what is not damaged.
    """
    resource.setrlimit(resource.RLIMIT_AS, (3 * MEMORY, 3 * MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer("start", *first)
    for line in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # peak memory starts anew; see proc(5)
        _peak.clear()
        try:
            kind, state, detail = run(int(line))
        except Exception as error:
            kind, state, detail = "?", "broken", f"the attack itself: {type(error).__name__}: {error}"
        peak = _peak[0] if _peak else peak_rss() or 0
        if peak > MEMORY:
            state, detail = "memory", f"{peak >> 20} MiB"
        answer(kind, state, detail)


def summary(results: Iterable[Result], write: Callable[[str], object]) -> int:
    """Write every bad result as it comes, then a table, also where Control-C ends it; the number of bad ones."""
    counts: Counter[tuple[str, str]] = Counter()
    bad = 0
    with suppress(KeyboardInterrupt):
        for result in results:
            counts[result.kind, result.state] += 1
            if not result.is_good:
                bad += 1
                write(f"{result.state}: {result.target} seed {result.seed} ({result.kind}): {result.detail}\n")
    for (kind, state), number in sorted(counts.items()):
        write(f"{kind:10} {state:8} {number:7}\n")
    total = sum(counts.values())
    write(f"{total} cases, {total - bad} good, {bad} bad\n")
    return bad
