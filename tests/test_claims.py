"""Processes that start at once share the work; one that dies or sleeps with its part holds up nobody for ever."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bolt_numba.base import forks
from bolt_numba.base.files import claims
from bolt_numba.kernels import jit
from tests.test_jit import fresh, times

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
NAME = "version/kernel"
_SLEEP = time.sleep


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@contextmanager
def claimant(name: str = NAME) -> Iterator[int]:
    """A process that has a claim, until it is killed."""
    source, end = os.pipe()
    child = os.fork()
    if not child:
        with claims.claimed(name):
            os.write(end, b"x")
            time.sleep(600)
        os._exit(0)
    assert os.read(source, 1) == b"x"
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(source)
        os.close(end)


def test_the_second_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    with claimant() as child:

        def sleep(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 3:
                os.kill(child, signal.SIGKILL)
            _SLEEP(seconds)

        monkeypatch.setattr(claims.time, "sleep", sleep)
        with claims.claimed(NAME) as has_waited:
            assert has_waited
    assert len(looks) >= 3


def test_a_file_system_without_locks_has_no_claims() -> None:
    def lock() -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    assert claims._wait(lock) == (True, False)


def test_the_claim_of_a_process_that_was_killed_is_gone(cache: Path) -> None:
    with claimant():
        pass
    assert [p.name for p in cache.glob("*/.*")] == [".kernel.claim.tmp"]
    with claims.claimed(NAME) as has_waited:
        assert not has_waited
    assert list(cache.glob("*/.*")) == []


def test_nobody_waits_for_ever(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "WAIT_S", 0.2)
    with claimant() as child:
        os.kill(child, signal.SIGSTOP)
        begin = time.monotonic()
        with claims.claimed(NAME):
            assert 0.1 < time.monotonic() - begin < 10
        assert len(list(cache.glob("*/.*"))) == 1, "it belongs to the other process"
    with claimant(jit._name(fresh(3))):
        assert times(fresh(3)) == 21


def test_a_child_of_fork_does_not_keep_the_claim_of_its_parent() -> None:
    with claims.claimed(NAME):
        child = os.fork()
        if not child:
            time.sleep(600)
    begin = time.monotonic()
    with claims.claimed(NAME) as has_waited:
        assert not has_waited
    assert time.monotonic() - begin < 5
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_folder_that_cannot_be_written_has_no_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "file"))
    with claims.claimed(NAME) as has_waited:
        assert not has_waited


_WORKER = """
import sys, time
from bolt_numba.kernels import jit
from bolt_numba.kernels.cpu.language import lang
seen = []
jit.on_compile(lambda name, done: seen.append(name) if done else None)
from bolt_numba.kernels import compiler
sys.stdin.read(1)
for i in range(6):
    text = f"def store{i}(p, tid, nthreads):\\n    store_i64(p.x, {i})\\n"
    jit.native_source(text, f"store{i}", {"x": jit.PTR}, store_i64=lang.store_i64).address
print(len(seen))
"""


def test_workers_that_start_at_once_compile_each_kernel_once() -> None:
    command = [sys.executable, "-c", _WORKER]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("x")
        worker.stdin.close()
    counts = []
    for worker in workers:
        assert worker.stdout is not None
        counts.append(int(worker.stdout.read()))
        worker.stdout.close()
        assert worker.wait() == 0
    assert sum(counts) == 6, counts


_FORK = """
import os, threading, time
from bolt_numba.kernels import compiles, jit

def compile():
    with jit._lock:
        compiles.begins("a kernel")
        import logging
        held.set()
        time.sleep(0.3)
        compiles.logger().info("compiled")

held = threading.Event()
thread = threading.Thread(target=compile)
thread.start()
held.wait()
start = time.monotonic()
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
thread.join()
print(time.monotonic() - start)
"""


def test_a_fork_waits_for_a_compile_that_is_logged() -> None:
    """`logging` has a lock that forks take, too; taken first, each would wait for the other."""
    found = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True)
    assert float(found.stdout) < forks.WAIT_S / 2


class _Owner:
    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 1


def test_all_that_an_object_names_is_made_anew_in_a_child() -> None:
    owner = _Owner()
    forks.renew_after_fork(owner, "lock", threading.Lock)
    forks.renew_after_fork(owner, "count", int)
    owner.lock.acquire()
    child = os.fork()
    if child == 0:
        os._exit(owner.lock.locked() or owner.count)
    assert os.waitpid(child, 0)[1] == 0
