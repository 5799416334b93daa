"""Workflows call targets that exist, trust only fixed commits, and pass the linters where these are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOOLS = os.pathsep.join([str(ROOT / "build" / "release" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])


def of_each_workflow() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", WORKFLOWS, ids=[file.stem for file in WORKFLOWS])


def linter(name: str) -> str:
    found = shutil.which(name, path=TOOLS)
    if found is None:
        pytest.skip(f"{name} is not installed: make workflows")
    return found


@of_each_workflow()
def test_all_that_runs_is_a_target_of_make(file: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z0-9-]+):", (ROOT / "Makefile").read_text()))
    commands = re.findall(r"(?m)^\s*(?:- )?run: *(.*)$", file.read_text())
    called = [set(command.split()[1:]) - {"PYTHON=python"} for command in commands if command.startswith("make ")]
    assert len(called) == len(commands) >= 1
    assert set().union(*called) <= targets


@of_each_workflow()
def test_actions_are_pinned_by_commit(file: Path) -> None:
    used = re.findall(r"uses: (?!\$/)(.*)$", file.read_text(), re.MULTILINE)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)] == []


def test_they_run_each_python_that_the_index_is_told() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minors = [c.rpartition(" ")[2] for c in about["classifiers"] if re.search(r":: 3\.\d+$", c)]
    for name in ("ci", "release"):
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
        assert re.findall(r'"(3\.\d+)"', re.findall(r"python: \[(.*)\]", text)[0]) == minors


def test_zizmor_finds_no_weakness() -> None:
    command = [linter("zizmor"), "--offline", "--persona=pedantic", "--no-progress", ".github"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_of_workflows_is_kept() -> None:
    command = [linter("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
