"""The folder of compiled kernels stays under its limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bolt_numba.base.config import cache_limit
from bolt_numba.errors import BoltError
from bolt_numba.kernels import code_files, prune
from bolt_numba.kernels.jit import I64, PTR, native

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(prune._Seen, "written", prune.UNSEEN)
    return tmp_path


def put(root: Path, folder: str, name: str, used: int, size: int = 100) -> Path:
    file = root / folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x" * size)
    os.utime(file, (used, used))
    return file


def names(root: Path) -> set[str]:
    return {f.name for f in root.glob("*/*")}


def test_others_go_first_then_the_oldest(root: Path) -> None:
    for i in range(4):
        put(root, "avx2-new", f"own{i}.kernel", used=1000 + i)
        put(root, "avx2-old", f"old{i}.kernel", used=5000 + i)
    put(root, "avx2-new", "tuned.json", used=1)
    assert prune.prune(root / "avx2-new", 800) == 0
    assert prune.prune(root / "avx2-new", 700) == 2
    assert names(root) == {"old2.kernel", "old3.kernel", "own0.kernel", "own1.kernel", "own2.kernel", "own3.kernel",
                           "tuned.json"}  # fmt: skip
    assert prune.prune(root / "avx2-new", 300) == 4
    assert names(root) == {"own2.kernel", "own3.kernel", "tuned.json"}
    assert not (root / "avx2-old").exists()
    assert prune.cache_bytes() == 200


def test_kernels_of_the_cpu_and_of_gpus_are_both_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing one kind leaves the other that this process reads, and removes what it has no use for."""
    monkeypatch.setenv("BOLT_NUMBA_CACHE_MIB", "1")
    folders = "avx2-new", "cuda-new"
    for one, other in (folders, folders[::-1]):
        monkeypatch.setattr(prune._Seen, "written", prune.UNSEEN)
        put(root, "avx2-old", "old.kernel", used=9000, size=MIB)
        put(root, one, "one.kernel", used=1000, size=MIB // 4)
        assert code_files.found(f"{one}/lacking.kernel") is None
        code_files.write(f"{other}/other.kernel", bytes(MIB // 4))
        assert names(root) == {"one.kernel", "other.kernel"}
        for file in root.glob("*/*"):
            file.unlink()


def test_reading_counts_as_use(root: Path) -> None:
    read = put(root, "a-b", "read.kernel", used=1000)
    put(root, "a-b", "idle.kernel", used=2000)
    os.utime(read, (9000, 1000))
    prune.prune(root / "a-b", 150)
    assert names(root) == {"read.kernel"}


def test_links_and_other_folders_are_left_alone(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    precious = put(outside, "x-y", "precious.kernel", used=1)
    (root / "linked-folder").symlink_to(outside / "x-y")
    put(root, "plain", "other.kernel", used=1)
    put(root, "a-b", "own.kernel", used=1)
    assert prune.prune(root / "a-b", 10) == 1
    assert precious.exists()
    assert names(root) == {"other.kernel", "precious.kernel"}


def test_abandoned_temporary_files_go(root: Path) -> None:
    put(root, "a-b", "own.kernel", used=1)
    put(root, "a-b", "left.tmp", used=1)
    prune.prune(root / "a-b", 10)
    assert names(root) == set()


def test_writing_prunes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = put(root, "avx2-old", "old.kernel", used=1000, size=2 * MIB)
    monkeypatch.setenv("BOLT_NUMBA_CACHE_MIB", "0")
    prune.written(root / "avx2-new", 10)
    assert old.exists()
    monkeypatch.setenv("BOLT_NUMBA_CACHE_MIB", "1")

    @native(x=PTR, n=I64)
    def noop_for_prune(p: Any, tid: int, nthreads: int) -> None:
        pass

    assert noop_for_prune.address
    assert not old.exists()
    assert len(list(root.glob("*/noop_for_prune-*.kernel"))) == 1


def test_a_process_looks_seldom(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    monkeypatch.setattr(prune, "prune", lambda own, *_: (looks.append(own), setattr(prune._Seen, "written", 0)))
    for _ in range(100):
        prune.written(root, MIB // 2)
    assert 1 <= len(looks) <= 3


def test_several_processes_prune_at_once(root: Path) -> None:
    for i in range(400):
        put(root, f"isa-{i % 3}", f"{i}.kernel", used=i)
    code = "import pathlib, sys, bolt_numba.kernels.prune as p; p.prune(pathlib.Path(sys.argv[1]), 9000)"
    running = [subprocess.Popen([sys.executable, "-c", code, str(root / "isa-0")]) for _ in range(3)]
    assert [p.wait(600) for p in running] == [0, 0, 0]
    assert prune.cache_bytes() <= 9000


def test_the_limit_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOLT_NUMBA_CACHE_MIB", raising=False)
    assert cache_limit() == 1024 * MIB
    monkeypatch.setenv("BOLT_NUMBA_CACHE_MIB", "12")
    assert cache_limit() == 12 * MIB
    monkeypatch.setenv("BOLT_NUMBA_CACHE_MIB", "much")
    with pytest.raises(BoltError, match="BOLT_NUMBA_CACHE_MIB: got 'much', wanted a number from 0"):
        cache_limit()
