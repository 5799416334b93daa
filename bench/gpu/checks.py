"""Every kernel on the device: the property tests of ``tests/cuda``, which hold each against its reference.

A file of tests is a process.  A kernel that breaks the GPU's context fails all that the process does afterwards, so
those tests run again in another one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DEVICE = "BOLT_NUMBA_TEST_GPU"
"""Environment variable that tells `tests/cuda/harness.py` on which device kernels run."""
_BY_HARNESS = "from tests.cuda.harness import", "from tests.cuda.property import"
PROCESSES = 8
ROUNDS = 8
"""Processes for one file, of which each but the last was broken by a test."""
_LINE = re.compile(r"^(\S+\.py::.*?) (PASSED|FAILED|SKIPPED)\b", re.MULTILINE)
"""A test that is over, as pytest says it at once."""
LOST = "wanted a new process to use it again"
"""What an error says once the GPU is lost to a process (`devices.cuda.library`)."""


class Outcome(NamedTuple):
    """Of a test.  how: "passed", "failed" or "skipped"."""

    how: str
    message: str = ""


def files(small: bool) -> list[str]:
    """The tests that run kernels by the harness.  small: one file only."""
    if small:
        return ["tests/cuda/test_elementwise.py"]
    found = sorted((ROOT / "tests" / "cuda").glob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in found if any(line in file.read_text() for line in _BY_HARNESS)]


def check_kernels(
    device: str, small: bool, seconds: float, keep: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """How many tests passed, and what those say that did not, or that did not end in time.

    small: one file only.  keep: gets what is known behind every file.
    """
    until = time.monotonic() + seconds
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(min(PROCESSES, os.cpu_count() or 1)) as pool:
        for done in as_completed([pool.submit(check_file, file, device, until) for file in files(small)]):
            outcomes |= done.result()
            keep(_summary(outcomes))
    return _summary(outcomes)


def _summary(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    counts = {how: sum(o.how == how for o in outcomes.values()) for how in ("passed", "failed", "skipped")}
    failures = [f"{name}: {o.message[:300]}" for name, o in outcomes.items() if o.how == "failed"]
    return {**counts, "failures": failures}


def check_file(file: str, device: str, until: float) -> dict[str, Outcome]:
    """Outcomes by name of a test; until: by the monotonic clock."""
    found: dict[str, Outcome] = {}
    wanted: Sequence[str] = [file]
    for _ in range(ROUNDS):
        outcomes = _run(wanted, device, until)
        found |= outcomes
        wanted = [name for name, o in outcomes.items() if o.how == "failed" and LOST in o.message][1:]
        if not wanted:
            break
    return found


def _run(wanted: Sequence[str], device: str, until: float) -> dict[str, Outcome]:
    """Outcomes of these tests in a new process, in their order; one of the first test where there is no report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *wanted, f"--junitxml={report}",
                   "-o", "filterwarnings=default"]  # fmt: skip
        environment = {**os.environ, DEVICE: device, "PYTHONPATH": str(ROOT), "BOLT_NUMBA_COMPILERS": "1"}
        left = max(until - time.monotonic(), 0)
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            known = {name: Outcome(how.lower()) for name, how in _LINE.findall(said)}
            return known | {f"{wanted[0]}: the rest": Outcome("failed", f"got no end within {left:.0f} s")}
        if not report.is_file():
            return {wanted[0]: Outcome("failed", (done.stdout + done.stderr)[-2000:])}
        return {_name(case, wanted[0]): _outcome(case) for case in ET.parse(report).iter("testcase")}


def _name(case: ET.Element, first: str) -> str:
    return f"{first.partition('::')[0]}::{case.get('name')}"


def _outcome(case: ET.Element) -> Outcome:
    wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
    if wrong is not None:
        message, text = wrong.get("message") or "", wrong.text or ""
        return Outcome("failed", message if LOST in message or LOST not in text else f"{LOST}: {message}")
    return Outcome("skipped" if case.find("skipped") is not None else "passed")
