"""Every environment variable that bolt-numba reads, in one table; nothing else is configured by the environment."""

from __future__ import annotations

import os
from functools import cache

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record


@record(frozen=True)
class Switch:
    """An environment variable: its name, what stands for it when it is not set, what it does."""

    name: str
    default: str
    meaning: str

    @property
    def value(self) -> str:
        """What the environment says, else ""."""
        return os.environ.get(self.name, "")


CACHE_DIR = Switch("BOLT_NUMBA_CACHE_DIR", "the user's cache folder", "where compiled kernels are kept")
SYSTEM_CACHE = Switch(
    "BOLT_NUMBA_SYSTEM_CACHE", "/var/cache/bolt_numba", "folders of kernels that are only read, before the user's own"
)
TRUSTED_USERS = Switch(
    "BOLT_NUMBA_TRUSTED_USERS", "root and the user", "numbers of more users whose kernels may be run, or all"
)
CACHE_MIB = Switch("BOLT_NUMBA_CACHE_MIB", "1024", "limit of the user's compiled kernels together, in MiB; 0: none")
PLANS_MIB = Switch("BOLT_NUMBA_PLANS_MIB", "1024", "limit of the plans kept for later processes, in MiB; 0: none are")
NUM_THREADS = Switch("BOLT_NUMBA_NUM_THREADS", "the processors, at most OMP_NUM_THREADS", "threads of a session")
ISA = Switch("BOLT_NUMBA_ISA", "what the processor has", "lower instructions: avx512, avx2, generic, or a level")
CHECK = Switch("BOLT_NUMBA_CHECK", "0", "1: check the graph against the spec after every stage of the passes")
MEMORY = Switch("BOLT_NUMBA_MEMORY", "half of what is free", "memory of one plan or one result, as 2G or 500M")
COMPILERS = Switch(
    "BOLT_NUMBA_COMPILERS", "the processors, at most 4", "processes that compile kernels at once; 1: no other than this"
)
STAND_INS = Switch("BOLT_NUMBA_STAND_INS", "1", "0: runs wait for kernels")
TRACEBACKS = Switch("BOLT_NUMBA_TRACEBACKS", "0", "1: errors of callers show the frames inside of bolt-numba, too")
SWITCHES = (
    CACHE_DIR, SYSTEM_CACHE, TRUSTED_USERS, CACHE_MIB, PLANS_MIB, NUM_THREADS, ISA, CHECK, MEMORY, COMPILERS, STAND_INS,
    TRACEBACKS,
)  # fmt: skip


MAX_THREADS = 1024
"""More threads than any processor has are a mistake, and each takes memory."""
MAX_PLANS = 32
"""Plans kept per region unless a session says otherwise."""


def default_threads() -> int:
    """Threads of a session that asks for none: ``BOLT_NUMBA_NUM_THREADS``, else the processors of this process.

    They are no more than ``OMP_NUM_THREADS``, where that is set.
    """
    wanted = NUM_THREADS.value
    if not wanted:
        return min(processors(), _of_openmp(), MAX_THREADS)
    if not wanted.isdecimal() or len(wanted) > 9 or not 1 <= int(wanted) <= MAX_THREADS:
        raise BoltError(f"{NUM_THREADS.name}: got {wanted[:40]!r}, wanted a number from 1 to {MAX_THREADS}")
    return int(wanted)


def default_stand_ins() -> bool:
    """Whether kernels that are there stand in for those that are not, in sessions that do not say."""
    wanted = STAND_INS.value or STAND_INS.default
    if wanted not in ("0", "1"):
        raise BoltError(f"{STAND_INS.name}: got {wanted[:40]!r}, wanted 0 or 1")
    return wanted == "1"


MAX_COMPILERS = 4
"""Processes that compile at once unless somebody wants more: each takes some 200 MiB."""


def compilers() -> int:
    """Processes that may compile at once: ``BOLT_NUMBA_COMPILERS``, else the processors of this process, but few."""
    wanted = COMPILERS.value
    if not wanted:
        return min(processors(), MAX_COMPILERS)
    if not wanted.isdecimal() or len(wanted) > 4 or int(wanted) < 1:
        raise BoltError(f"{COMPILERS.name}: got {wanted[:40]!r}, wanted a number from 1")
    return int(wanted)


def trusted_users() -> frozenset[int] | None:
    """Users, besides root and the one of this process, whose files may steer it; None: any; raises BoltError."""
    wanted = TRUSTED_USERS.value
    if wanted == "all":
        return None
    numbers = [part.strip() for part in wanted.split(",")] if wanted else []
    if not all(n.isdecimal() and n.isascii() and len(n) < 11 for n in numbers):
        raise BoltError(f"{TRUSTED_USERS.name}: got {wanted[:40]!r}, wanted numbers of users like 1000,1001, or all")
    return frozenset(map(int, numbers))


def cache_limit() -> int:
    """Bytes that compiled kernels may take together, 0 for any number; raises BoltError."""
    return _mebibytes(CACHE_MIB)


def plans_limit() -> int:
    """Bytes that kept plans may take together, 0: none are kept; raises BoltError."""
    return _mebibytes(PLANS_MIB)


def _mebibytes(switch: Switch) -> int:
    wanted = switch.value or switch.default
    if not wanted.isdecimal() or len(wanted) > 12:
        raise BoltError(f"{switch.name}: got {wanted[:40]!r}, wanted a number from 0")
    return int(wanted) << 20


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def memory_limit() -> int | None:
    """Bytes of ``BOLT_NUMBA_MEMORY``, None where it is not set."""
    wanted = MEMORY.value
    if not wanted:
        return None
    number, unit = (wanted[:-1], wanted[-1].upper()) if wanted[-1].isalpha() else (wanted, "")
    if not number.isdecimal() or len(number) > 18 or unit not in _UNITS or not int(number):
        raise BoltError(f"{MEMORY.name}: got {wanted[:40]!r}, wanted a number of bytes, or one with K, M, G or T")
    return int(number) * _UNITS[unit]


def processors() -> int:
    """Processors that this process may use: its affinity, and the quotas of its control groups."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min([count, *(quota for quota, _ in quotas())])


GROUPS, OF_PROCESS = "/sys/fs/cgroup", "/proc/self/cgroup"
"""Where control groups are mounted, and what says which of them a process is in."""


@cache
def quotas() -> list[tuple[int, str]]:
    """Processors that control groups of this process allow, with the file that says so: its own, and those above it."""
    found = []
    for folder in _groups():
        text = _text(f"{folder}/cpu.max")
        if not text and folder != GROUPS:  # version 1 has two files
            text = f"{_text(f'{folder}/cpu.cfs_quota_us')} {_text(f'{folder}/cpu.cfs_period_us')}"
        quota, period = [*text.split(), "", ""][:2]
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append((max(1, -(-int(quota) // int(period))), folder))
    return found


def _groups() -> list[str]:
    """Folders of the process's groups that have processors to give, in both versions."""
    found = [GROUPS]
    for line in _text(OF_PROCESS).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "" or "cpu" in controllers.split(","):
            top = f"{GROUPS}/{controllers}".rstrip("/")
            found.append(top)
            for part in path.split("/"):
                if part not in ("", ".."):
                    top = f"{top}/{part}"
                    found.append(top)
    return list(dict.fromkeys(found))


def _text(path: str) -> str:
    """A short file of the system; "" where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16).decode("ascii", "replace")
    except OSError:
        return ""


def _of_openmp() -> int:
    """Threads that ``OMP_NUM_THREADS`` allows, as Ray and Dask set it in their workers; any where it says nothing."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and len(first) < 10 and int(first) else MAX_THREADS
