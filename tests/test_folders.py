"""Folders of the cache: those of the system, of the user, of a user who has no home, of several in one folder."""

from __future__ import annotations

import errno
import json
import os
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest

from bolt_numba.base.files import kept, trusted
from bolt_numba.errors import BoltError
from bolt_numba.kernels import jit, prune
from bolt_numba.runtime.reports.tune import Tuner
from tests.test_jit import fresh, times
from tests.test_security import ATTACKER, GROUP, VICTIM, as_root, as_user, public

__all__ = ["public"]
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a system without owners of files")


@pytest.fixture(autouse=True)
def nothing_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "_warned", set())
    monkeypatch.setattr(trusted, "_sound", {})
    monkeypatch.setattr(kept, "_told", set())
    kept._folders.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def everything_is_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Other users may not reach the folders that this one's Python imports from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        assert times(fresh(2)) == 14


def compiles(factor: int) -> list[Any]:
    """How often a kernel was compiled to be run, and what the user is told meanwhile."""
    seen: list[str] = []
    stop = jit.on_compile(lambda name, done: seen.append(name) if done else None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert times(fresh(factor)) == 7 * factor
    stop()
    return [len(seen), *(str(w.message) for w in told)]


def compiles_anew(factor: int) -> list[Any]:
    """The same in a child, which knows as little as another process."""
    for known in (trusted._warned, trusted._sound, kept._told):
        known.clear()
    kept._folders.cache_clear()
    return compiles(factor)


@as_root
def test_what_root_compiled_serves_others_from_the_systems_folder(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public / "system"))
    before = os.umask(0o022)
    try:
        assert compiles(3) == [1]
    finally:
        os.umask(before)
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", str(public / "system"))
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public / "own"))
    assert as_user(VICTIM, lambda: compiles_anew(3)) == [0]
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public / "system"))
    assert as_user(VICTIM, lambda: compiles_anew(3)) == [0], "it is the user's that is read, too"
    count, told = as_user(VICTIM, lambda: compiles_anew(5))
    assert count == 1
    folder = public / "system"
    assert told.startswith(f"{folder}: compiled kernels cannot be kept: {folder} cannot be written; ")
    assert told.endswith("let BOLT_NUMBA_CACHE_DIR name a folder of this user")


@as_root
def test_a_folder_that_cannot_be_read_is_told(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (public / "system").mkdir(mode=0o700)
    (public / "home").mkdir()
    os.chown(public / "home", VICTIM, GROUP)
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", str(public / "system"))
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public / "home" / "cache"))
    count, told = as_user(VICTIM, lambda: compiles_anew(3))
    assert count == 1
    assert told == (
        f"{public / 'system'}: compiled kernels cannot be read: Permission denied; "
        "its owner runs `bolt-numba cache share`"
    )
    assert as_user(VICTIM, lambda: compiles_anew(3)) == [0]


@as_root
def test_users_of_one_folder_neither_compile_twice_nor_evict_each_other(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = public / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(shared))
    for user in (VICTIM, ATTACKER):
        assert as_user(user, lambda: compiles_anew(3)) == [1], "what another user compiled is not run"
    for user in (VICTIM, ATTACKER):
        assert as_user(user, lambda: compiles_anew(3)) == [0]
    assert {p.name for p in shared.iterdir()} == {f"user-{VICTIM}", f"user-{ATTACKER}"}
    assert compiles_anew(5) == [1]
    assert as_user(VICTIM, lambda: compiles_anew(5)) == [0], "what root compiled is"

    def pruned() -> list[int]:
        monkeypatch.setattr(prune._Seen, "written", prune.UNSEEN)
        return [prune.prune(jit.cache_dir(), 1), prune.cache_bytes(), jit.clear_cache()]

    assert as_user(VICTIM, pruned) == [1, 0, 0]
    assert pruned() == [1, 0, 0]
    assert as_user(ATTACKER, lambda: compiles_anew(3)) == [0]
    assert as_user(VICTIM, lambda: compiles_anew(3)) == [1]


@as_root
def test_users_who_trust_each_other_compile_once(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = public / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(shared))
    monkeypatch.setenv("BOLT_NUMBA_TRUSTED_USERS", f"{VICTIM}, {ATTACKER}")
    before = os.umask(0o022)
    try:
        assert as_user(VICTIM, lambda: compiles_anew(3)) == [1]
    finally:
        os.umask(before)
    assert as_user(ATTACKER, lambda: compiles_anew(3)) == [0]
    monkeypatch.setenv("BOLT_NUMBA_TRUSTED_USERS", str(ATTACKER))
    assert as_user(ATTACKER, lambda: compiles_anew(3)) == [1]
    monkeypatch.setenv("BOLT_NUMBA_TRUSTED_USERS", "me")
    with pytest.raises(BoltError, match="BOLT_NUMBA_TRUSTED_USERS: got 'me', wanted numbers of users"):
        kept.folders()


@as_root
@pytest.mark.parametrize(("trusted_users", "expected"), [("", 1), (str(ATTACKER), 1), ("all", 0)])
def test_a_folder_where_all_may_rename_is_used_if_all_are_trusted(
    public: Path, monkeypatch: pytest.MonkeyPatch, trusted_users: str, expected: int
) -> None:
    """As the volumes of some containers are, which have one user."""
    (public / "volume").mkdir()
    (public / "volume").chmod(0o777)
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public / "volume"))
    monkeypatch.setenv("BOLT_NUMBA_TRUSTED_USERS", trusted_users)
    assert as_user(VICTIM, lambda: compiles_anew(3))[0] == 1
    assert as_user(VICTIM, lambda: compiles_anew(3))[0] == expected


@as_root
def test_only_own_files_are_removed(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root writes where another user has put files of his own."""
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public))
    assert compiles(3) == [1]
    other = public / "avx2-x" / "other.kernel"
    other.parent.mkdir()
    other.write_bytes(b"x" * 5000)
    os.chown(other.parent, ATTACKER, GROUP)
    assert prune.prune(jit.cache_dir(), 1) == 1
    assert other.exists()


@as_root
@pytest.mark.parametrize("home", [None, "", "relative", "/", "/nonexistent", "/root"])
def test_a_user_without_a_home_keeps_kernels_in_a_private_folder(
    public: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    for name in ("BOLT_NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", "")
    monkeypatch.setenv("TMPDIR", str(public))
    public.chmod(0o1777)
    monkeypatch.chdir(public)
    count, told = as_user(VICTIM, lambda: compiles_anew(3))
    assert count == 1
    until = "compiled kernels are kept here until the system removes them"
    assert told.startswith(f"{public}/bolt_numba-{VICTIM}: {until}: ")
    assert as_user(VICTIM, lambda: compiles_anew(3)) == [0]
    (made,) = public.iterdir()
    assert made.name == f"bolt_numba-{VICTIM}"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    os.chown(made, ATTACKER, GROUP)
    count, *told = as_user(VICTIM, lambda: compiles_anew(3))
    assert count == 1
    assert f"got owner {ATTACKER}" in "".join(told), "a folder that another user had put there"


@as_root
def test_a_home_that_belongs_to_another_user_is_not_used(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under sudo, which leaves HOME."""
    (public / "home").mkdir()
    os.chown(public / "home", VICTIM, GROUP)
    for name in ("BOLT_NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(public / "home"))
    monkeypatch.setenv("TMPDIR", str(public))
    found = kept.folders()
    assert found.own == public / "bolt_numba-0"
    assert f"got owner {VICTIM}" in found.obstacle


@pytest.mark.parametrize("named", ["~/cache", "cache"])
def test_a_folder_is_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """No shell has read what is set in a Dockerfile, and services go to other folders when they start."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", named)
    assert kept.keep("kind/file", b"x") is None
    monkeypatch.chdir("/")
    assert [found for _, found in kept.contents("kind/file")] == [b"x"]
    assert kept.folders().own == tmp_path / "cache"


def test_a_folder_that_is_a_file_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "file"))
    count, told = compiles(3)
    assert count == 1
    assert f"compiled kernels cannot be kept: {tmp_path / 'file'} is no folder" in told
    assert compiles(4) == [1], "it is told once"


def test_a_folder_without_kernels_for_this_processor_and_version_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image whose stages have two versions of Python."""
    (tmp_path / "system" / "avx1024-x").mkdir(parents=True)
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", str(tmp_path / "system"))
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "own"))
    count, told = compiles(3)
    assert count == 1
    assert f"{tmp_path / 'system'}: has no kernels for this processor and these versions" in told
    assert compiles(4) == [1]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "rename", full)
    count, told = compiles(3)
    assert count == 1
    assert f"{tmp_path}: compiled kernels cannot be kept: No space left on device" in told
    assert [p.name for p in tmp_path.rglob("*.*") if p.is_file()] == []


def test_the_system_is_asked_before_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("first", "second", "own"):
        monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / folder))
        assert kept.keep("kind/file", folder.encode()) is None
    system = os.pathsep.join(map(str, (tmp_path / "first", tmp_path / "absent", "", tmp_path / "second")))
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", system)
    assert [found for _, found in kept.contents("kind/file")] == [b"first", b"second", b"own"]
    assert kept.folders().read == (tmp_path / "first", tmp_path / "second", tmp_path / "own")
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", "")
    assert kept.folders().read == (tmp_path / "own",)


def test_measured_choices_of_the_system_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, known in (
        ("system", {"a": ["x", True], "b": ["x", True]}),
        ("own", {"b": ["y", True], "c": ["y", True]}),
    ):
        monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / folder))
        assert kept.keep(f"{jit.version_name()}/{jit.TUNED}", json.dumps(known).encode()) is None
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", str(tmp_path / "system"))
    assert {key: choice.kernel for key, choice in Tuner(1)._known.items()} == {"a": "x", "b": "x", "c": "y"}


def test_a_damaged_kernel_of_the_system_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "system"))
    assert compiles(3) == [1]
    jit._path(fresh(3)).write_bytes(b"damaged")
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", str(tmp_path / "system"))
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "own"))
    assert compiles(3) == [1]
    assert compiles(3) == [0]
    assert jit._path(fresh(3)).is_relative_to(tmp_path / "own")
