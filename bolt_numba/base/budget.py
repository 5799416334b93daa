"""What a computation may take: memory is asked for here before it is allocated, and work before it is done.

What data or attributes can make large asks by `ask` and `spend`: plans, results of references, and references for what
they need besides.  Nobody hands a budget on: the one in force belongs to the thread (`within`).
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.cancelling import IN_FORCE, CancelToken, check, is_cancelled
from bolt_numba.base.config import MEMORY, memory_limit
from bolt_numba.base.errors import BudgetError, CancelledError, OptionError, TimeLimitError

MIB = 1 << 20
GRANTED_BYTES = 16 * MIB
"""Bytes that are granted without looking at what is free, unless a limit is given."""
SHARE = 0.5
"""The part of what is free that one plan or one result may take where no limit is given."""
CALL = 1000
"""Operations on elements that take as long as one call of NumPy."""
BLAS = 16
"""Multiplications of a matrix product that take as long as one operation on an element."""
UNBOUNDED = 1 << 62


class Budget:
    """Limits in force: ``work`` left (None: any), ``memory`` in bytes (None: as outside of it).

    seconds: of a run that is `begun`, None: any.  ends: when that is over, by `time.monotonic`.
    """

    __slots__ = ("ends", "memory", "seconds", "work")

    memory: int | None

    def __init__(self, work: int | None = None, memory: Any = None, seconds: Any = None) -> None:
        seconds = seconds.item() if isinstance(seconds, np.number) else seconds  # f32 has no greatest f64
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds <= sys.float_info.max):
            raise OptionError(f"time_limit: got {seconds!r:.80}, wanted a number of seconds above 0")
        self.seconds, self.ends = None if seconds is None else float(seconds), math.inf
        if memory is not None and (isinstance(memory, bool) or not isinstance(memory, (int, np.integer)) or memory < 1):
            raise OptionError(f"memory_limit: got {memory!r}, wanted a number of bytes from 1")
        self.work, self.memory = work, None if memory is None else int(memory)

    def begun(self) -> Budget:
        """What a run that begins now may take."""
        if self.seconds is None:
            return self
        made = Budget(self.work, self.memory, self.seconds)
        made.ends = time.monotonic() + self.seconds
        return made

    def late(self, what: str) -> TimeLimitError:
        """The error of a run that takes longer than it may, seen by ``what``."""
        said = f"got a run of more than {self.seconds:g} s, wanted at most that (raise it by time_limit=)"
        return TimeLimitError(f"{what}: time: {said}")


def limits_of(memory: Any, seconds: Any) -> Budget | None:
    """A budget of a session; None where there is no limit."""
    return None if memory is None and seconds is None else Budget(None, memory, seconds)


_IN_FORCE: ContextVar[Budget] = ContextVar("bolt_numba_budget", default=Budget())  # noqa: B039  # never written to


class within:  # noqa: N801  # a context manager, half as dear as one made of a generator
    """Put a budget in force: ``with within(budget): ...``.  A run that takes too long ends by a TimeLimitError."""

    __slots__ = ("budget", "ender", "timer", "token")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.ender: CancelToken | None = None

    def __enter__(self) -> Budget:
        around = _IN_FORCE.get()
        if self.budget.memory is None:
            self.budget.memory = around.memory
        self.token: Token[Budget] = _IN_FORCE.set(self.budget)
        if self.budget.ends < math.inf:
            self.ender = CancelToken().__enter__()
            left = min(max(self.budget.ends - time.monotonic(), 0), threading.TIMEOUT_MAX)
            self.timer = threading.Timer(left, self.ender.cancel)
            self.timer.daemon = True
            self.timer.start()
        return self.budget

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        _IN_FORCE.reset(self.token)
        if self.ender is not None:
            self.timer.cancel()
            self.ender.__exit__()
            if isinstance(error, CancelledError) and self.ender.is_cancelled and not is_cancelled():
                raise self.budget.late("run") from None


def one_run() -> within:
    """Put in force what one run that begins now may take of the budget."""
    return within(_IN_FORCE.get().begun())


def limit_in_force() -> int | None:
    """Bytes of the budget in force, None where the environment says or nobody."""
    return _IN_FORCE.get().memory


def unasked() -> int:
    """Bytes for which `ask` says yes at once."""
    return _limit() or GRANTED_BYTES


def _limit() -> int | None:
    given = _IN_FORCE.get().memory
    return memory_limit() if given is None else given


def ask(nbytes: int, what: str) -> None:
    """Raise BudgetError, which names ``what``, unless so much memory may be allocated."""
    if nbytes <= unasked():
        return
    allowed = _allowed()
    if nbytes > allowed:
        raise BudgetError(
            f"{what}: memory: got {shown(nbytes)}, wanted at most {shown(allowed)} "
            f"(raise it by memory_limit= or {MEMORY.name})"
        )


def is_granted(nbytes: int) -> bool:
    """Whether `ask` would say yes."""
    return nbytes <= unasked() or nbytes <= _allowed()


def _allowed() -> int:
    limit = _limit()
    return int(free_memory() * SHARE) if limit is None else limit


def spend(operations: int, what: str) -> None:
    """Take elementary operations from the work that is left; raises BudgetError when there is not enough.

    Raises TimeLimitError where the run has taken longer than it may, CancelledError where it shall end.
    """
    budget = _IN_FORCE.get()
    if budget.seconds is not None and time.monotonic() > budget.ends:
        raise budget.late(what)
    if IN_FORCE:
        check()
    if budget.work is None:
        return
    if operations > budget.work:
        raise BudgetError(f"{what}: work: got {operations} operations, wanted at most {budget.work}")
    budget.work -= operations


def shown(nbytes: int) -> str:
    """A number of bytes for people."""
    return f"{nbytes} bytes" if nbytes < MIB else f"{nbytes / MIB:.0f} MiB"


def free_memory() -> int:
    """Bytes that this process may still take: the machine's, its control group's, its address space's."""
    return max(0, min(_machine(), _control_group(), _address_space()))


def _machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:  # no such table on this system
        pass
    return UNBOUNDED


def _control_group(own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """What is left to the process's control group and to those around it, of either version: the least.

    A container may see its own group at the root, and the whole path beside; what is not there has no say.
    """
    try:
        lines = own.read_text()
    except OSError:  # no control groups on this system
        return UNBOUNDED
    return min([_left_to(*files) for files in _group_files(lines, str(groups))], default=UNBOUNDED)


@functools.lru_cache(maxsize=8)
def _group_files(lines: str, groups: str) -> list[tuple[str, str, str, str]]:
    """What `_left_to` reads of each group around the process."""
    found = []
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names, root = (_VERSION_1, f"{groups}/memory") if controllers else (_VERSION_2, groups)
        parts = [part for part in path.split("/") if part and ".." not in path]
        for depth in range(len(parts) + 1):
            folder = "/".join([root, *parts[:depth]])
            found.append((f"{folder}/{names[0]}", f"{folder}/{names[1]}", f"{folder}/memory.stat", names[2]))
    return found


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file ")
"""Files of a control group that hold its limit and its use, and the row of ``memory.stat`` of what it caches."""


def _left_to(limit: str, use: str, rows: str, cached: str) -> int:
    """What is left to one control group; its cached files can be dropped, so that they count as free."""
    try:
        allowed, used = int(_text(limit)), int(_text(use))
        return allowed - used + sum(int(row.split()[1]) for row in _text(rows).splitlines() if row.startswith(cached))
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return UNBOUNDED


def _text(path: str) -> str:
    """Content of a small file: every plan of a large model asks, and a `Path` takes five times as long."""
    with open(path, "rb", 0) as file:
        return file.read().decode()


def _address_space() -> int:
    try:
        import resource
    except ImportError:  # not on this system
        return UNBOUNDED
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return UNBOUNDED
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        used = 0
    return limit - used
