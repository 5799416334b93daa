"""How many threads a session has where nobody says: affinity, quotas of control groups of both versions, OpenMP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bolt_numba.base import config
from bolt_numba.cli.machine import _threads

MANY = 64


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups in a folder; the process has many processors, and its group's path stands in ``cgroup``."""
    monkeypatch.setattr(config, "GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(config, "OF_PROCESS", str(tmp_path / "cgroup"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(MANY)))
    for name in ("OMP_NUM_THREADS", "BOLT_NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    config.quotas.cache_clear()
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    config.quotas.cache_clear()


def test_no_groups_at_all(system: Path) -> None:
    assert config.processors() == config.default_threads() == MANY


@pytest.mark.parametrize(
    ("text", "count"), [("max 100000", MANY), ("150000 100000", 2), ("1000 100000", 1), ("x", MANY)]
)
def test_the_quota_of_a_container(text: str, count: int, system: Path) -> None:
    write(system / "groups" / "cpu.max", text + "\n")
    assert config.processors() == count


def test_nested_groups_and_the_lowest_quota_of_them(system: Path) -> None:
    write(system / "cgroup", "0::/pods/one/worker\n")
    write(system / "groups" / "pods" / "one" / "worker" / "cpu.max", "max 100000")
    write(system / "groups" / "pods" / "one" / "cpu.max", "300000 100000")
    write(system / "groups" / "pods" / "cpu.max", "800000 100000")
    assert config.processors() == 3
    assert f"3 by the quota of {system}/groups/pods/one" in _threads()


def test_groups_of_version_one(system: Path) -> None:
    write(system / "cgroup", "3:memory:/other\n4:cpu,cpuacct:/job\n")
    write(system / "groups" / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us", "250000\n")
    write(system / "groups" / "cpu,cpuacct" / "job" / "cpu.cfs_period_us", "100000\n")
    write(system / "groups" / "memory" / "other" / "cpu.cfs_quota_us", "100000\n")
    assert config.processors() == 3
    write(system / "groups" / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us", "-1\n")
    assert config.processors() == MANY


def test_a_path_of_the_host_that_is_not_there(system: Path) -> None:
    write(system / "cgroup", "0::/../../elsewhere\nnonsense\n")
    write(system / "groups" / "cpu.max", "400000 100000")
    assert config.processors() == 4


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("3,2", 3), ("", MANY), ("0", MANY), ("many", MANY), ("100", MANY), ("9" * 30, MANY)]
)
def test_openmp_is_an_upper_bound(text: str, count: int, system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert config.default_threads() == count
    assert config.processors() == MANY
    monkeypatch.setenv("BOLT_NUMBA_NUM_THREADS", "5")
    assert config.default_threads() == 5
    assert "5 by BOLT_NUMBA_NUM_THREADS" in _threads()
