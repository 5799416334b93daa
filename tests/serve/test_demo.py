"""`make serve-demo`: a server begins, answers, tells its counts, and ends."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.test_adapters import FOLDER, ROOT


def test_the_demo_serves_and_ends() -> None:
    if (found := importlib.util.find_spec("magika")) is None or found.origin is None:
        pytest.skip("magika is not installed")
    folder = Path(found.origin).parent / "models" / "standard_v3_3"
    command = [sys.executable, FOLDER / "demo.py", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for line in ("a script: python", "a page: html", "a program: c", 'outcome="ok",version="1"} 3.0', "ended with 0."):
        assert line in done.stdout
