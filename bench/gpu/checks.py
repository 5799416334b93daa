"""Every kernel on the device: the property tests of ``tests/cuda``, which hold each against its reference."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEVICE = "BOLT_NUMBA_TEST_GPU"
"""Environment variable that tells `tests/cuda/harness.py` on which device kernels run."""
_BY_HARNESS = "from tests.cuda.harness import", "from tests.cuda.property import"
LIMIT_S = 420
"""Seconds after which the tests end, whatever is left."""
PROCESSES = 8


def files(small: bool) -> list[str]:
    """The tests that run kernels by the harness.  small: one file only."""
    if small:
        return ["tests/cuda/test_elementwise.py"]
    found = sorted((ROOT / "tests" / "cuda").glob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in found if any(line in file.read_text() for line in _BY_HARNESS)]


def check_kernels(device: str, small: bool) -> dict[str, Any]:
    """How many tests passed, and what those say that did not.  small: one file only."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files(small),
                   f"--junitxml={report}", "-o", "filterwarnings=default"]  # fmt: skip
        if not small and importlib.util.find_spec("xdist") is not None:
            command += ["-n", str(min(PROCESSES, os.cpu_count() or 1))]
        environment = {**os.environ, DEVICE: device, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            return {"error": f"got no end within {LIMIT_S} s: {said[-1000:]}"}
        if not report.is_file():
            return {"error": (done.stdout + done.stderr)[-2000:]}
        return _counted(report)


def _counted(report: Path) -> dict[str, Any]:
    failures, counts = [], {"passed": 0, "failed": 0, "skipped": 0}
    for case in ET.parse(report).iter("testcase"):
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is not None:
            counts["failed"] += 1
            failures.append(f"{case.get('classname')}::{case.get('name')}: {(wrong.get('message') or '')[:300]}")
        else:
            counts["skipped" if case.find("skipped") is not None else "passed"] += 1
    return {**counts, "failures": failures}
