"""Weights of kept plans: processes share their pages, and what happens to files changes no result."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import batch
from bolt_numba.base.files.mapped import is_local
from bolt_numba.base.types import Array
from bolt_numba.devices import kept_plans
from bolt_numba.devices.program import pointer
from bolt_numba.sessions.session import Session
from bolt_numba.surgery import packed
from tests.test_kept_plans import X, folder, kept, known, plain, run, write  # noqa: F401

LARGE = np.random.default_rng(2).standard_normal((8, 48_000)).astype("f4")
"""More than a session holds of a model, and than is copied out of a file anyway."""
linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what processes share")


def large(path: Path) -> Path:
    """A model with free rows, packed where that is what it is called."""
    write(path.with_suffix(".onnx"), "n", LARGE)
    if path.suffix == ".bolt":
        bn.save(packed(bn.load(path.with_suffix(".onnx")), threads=[1], shapes={"x": (4, 8)}), path)
    return path


def plan_pages() -> dict[str, int]:
    """KiB of this process by kind, of the plans that it has mapped."""
    found: dict[str, int] = {}
    is_plan = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_plan = line.endswith(".plan")
        elif is_plan and line.endswith(" kB"):
            kind, count = line.split()[:2]
            found[kind[:-1]] = found.get(kind[:-1], 0) + int(count)
    return found


def is_of_a_plan(array: Array) -> bool:
    """Whether an array lies in a plan that is mapped."""
    rows = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if ".plan" in line]
    ends = [[int(end, 16) for end in row[0].split("-")] for row in rows]
    return any(low <= pointer(array) < high for low, high in ends)


@linux
@pytest.mark.parametrize("name", ["m.onnx", "m.bolt"])
def test_weights_are_pages_of_the_plan_that_processes_share(tmp_path: Path, name: str) -> None:
    model = large(tmp_path / name)
    first = kept(model)
    session = known(model)
    assert run(session).tobytes() == first.tobytes()
    ready, over = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # maps it anew, as a process that knows nothing of this one
        other = known(model)
        os.write(ready[1], b"y" if run(other).tobytes() == first.tobytes() else b"n")
        os.read(over[0], 1)
        os._exit(0)
    assert os.read(ready[0], 1) == b"y"
    pages = plan_pages()
    os.write(over[1], b".")
    os.waitpid(child, 0)
    assert pages["Private_Dirty"] == 0
    assert pages["Shared_Clean"] + pages["Shared_Dirty"] > LARGE.nbytes >> 10  # dirty: not on the disk yet


@linux
@pytest.mark.parametrize("name", ["m.onnx", "m.bolt"])
def test_a_complete_session_reads_weights_from_the_plan(tmp_path: Path, name: str) -> None:
    model = large(tmp_path / name)
    first = kept(model)
    session = known(model)
    rows = np.concatenate([X, X, X[:1]])
    wanted = plain(model)(x=rows, i=np.array([5, 0, 95]))["y"]
    assert session(x=rows, i=np.array([5, 0, 95]))["y"].tobytes() == wanted.tobytes()
    assert type(session) is Session
    assert run(session).tobytes() == first.tobytes()
    heavy = [array for array in session._packs.export_all().values() if array.nbytes >= LARGE.nbytes]
    assert heavy
    assert all(map(is_of_a_plan, heavy))


@pytest.mark.parametrize("name", ["m.onnx", "m.bolt"])
@pytest.mark.parametrize("change", [
    lambda path: os.truncate(path, 0), lambda path: path.write_bytes(bytes(path.stat().st_size)),
    lambda path: path.with_name("o").write_bytes(b"other") and path.with_name("o").replace(path), Path.unlink,
    lambda path: kept_plans.clear(),
], ids=["cut", "overwritten", "replaced", "removed", "cleared"])  # fmt: skip
def test_what_happens_to_files_changes_no_result(tmp_path: Path, name: str, change: Callable[[Path], Any]) -> None:
    model = large(tmp_path / name)
    first = kept(model)
    session = known(model)
    change(model)
    for _ in range(2):
        assert run(session).tobytes() == first.tobytes()


def test_workers_find_the_plan_that_prepare_kept(tmp_path: Path) -> None:
    made = batch.prepare(large(tmp_path / "m.onnx"), tmp_path / "p.bolt", shapes={"x": (4, 8)})
    wanted = plain(tmp_path / "m.onnx")(x=X, i=np.array([5, 0, 95]))["y"]
    assert run(known(Path(made))).tobytes() == wanted.tobytes()


@linux
def test_a_plan_on_a_server_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = large(tmp_path / "m.onnx")
    first = kept(model)
    monkeypatch.setattr(kept_plans, "is_local", lambda found: False)
    session = known(model)
    assert run(session).tobytes() == first.tobytes()
    assert not is_of_a_plan(session._known.plan.program.links.arrays[0])  # type: ignore[attr-defined]


@linux
def test_what_the_system_says_of_folders_tells_which_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.stat("/")
    for kind, wanted in (("ext4", True), ("overlay", True), ("nfs4", False), ("fuse.sshfs", False)):
        line = f"22 1 {os.major(found.st_dev)}:{os.minor(found.st_dev)} / / rw shared:1 - {kind} x rw\n"
        monkeypatch.setattr("pathlib.Path.read_text", lambda *a, line=line, **k: line)
        assert is_local(found) is wanted
