"""How much Python a session takes: calls, not seconds, so that busy machines do not matter.

What is counted, and what is not, says `tests.calls_child`, which runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DIGITS = {"compile": (8000, 1900), "first": (3500, 1050), "known": (17, 4)}
"""Most calls of Python functions, and moves from folder to folder, of the second session of a ten-node model.

Folders below a folder count as others.
"""
LARGE = {"chain": 236, "wide_sum": 85, "many_inputs": 125, "joined": 605}
"""Most calls for each further node, operand or input, from the file to the first result.  One of each node of a chain
counts what the node of the file becomes (`ForeignBuilder.node`)."""


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.calls_child"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("what", DIGITS)
def test_a_small_model_takes_few_calls(rows: dict[str, Any], what: str) -> None:
    calls, moves = DIGITS[what]
    assert rows[what]["calls"] <= calls, rows[what]
    assert rows[what]["moves"] <= moves, rows[what]


@pytest.mark.parametrize("name", LARGE)
def test_large_graphs_take_calls_in_proportion(rows: dict[str, Any], name: str) -> None:
    some, more, most = (rows[name][count] for count in ("250", "500", "1000"))
    assert (most - more) / 500 <= LARGE[name], rows[name]
    assert (most - more) / (more - some) < 2.1, "more than in proportion"
