"""Counts of instructions: told apart by 2 %, stored by versions, and, at length, as they are stored."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench import counts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="valgrind is for Linux")
NAME = re.compile(r"\d{4}-\d{2}-\d{2}-(.+)\.json")


def test_more_than_2_percent_is_an_alarm() -> None:
    lines, bad = counts.compared({"a": 1019, "b": 1021, "c": 900, "new": 5}, {"a": 1000, "b": 1000, "c": 1000})
    assert bad == ["b"]
    assert [line.split()[2:3] for line in lines] == [["+1.90"], ["+2.10"], ["-10.00"], []]


def test_twelve_cases_are_stored() -> None:
    assert len(counts.CASES) == 12
    assert counts.stored()
    assert all(row.keys() == counts.CASES.keys() for row in counts.stored().values())


def test_results_are_compared_and_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {"row": 1000}
    monkeypatch.setattr(counts, "STORED", tmp_path / "counts.json")
    monkeypatch.setattr(counts, "count", lambda names: dict(found))
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    assert counts.main(["row"]) == 0  # nothing to compare with
    assert counts.main(["row", "--write"]) == 0
    assert counts.stored() == {counts.key(): found}
    found["row"] = 1030
    assert counts.main(["row"]) == 1
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(SystemExit, match="valgrind is not installed"):
        counts.main(["row"])


def test_cases_run_without_valgrind() -> None:
    """Its requests are then instructions that do nothing."""
    command = [sys.executable, "-m", "bench.counts", "--child", "call", "forest"]
    done = subprocess.run(command, cwd=Path(counts.__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(shutil.which("valgrind") is None, reason=counts.MISSING)
def test_instructions_are_as_stored() -> None:
    if counts.key() not in counts.stored():
        pytest.skip(f"nothing is stored for {counts.key()}")
    found = counts.count(list(counts.CASES))
    lines, bad = counts.compared(found, counts.stored()[counts.key()])
    assert not bad, "\n".join(lines)


def test_the_newest_result_of_each_machine_and_kind_is_kept() -> None:
    kinds = Counter(found[1] for file in counts.STORED.parent.iterdir() if (found := NAME.fullmatch(file.name)))
    assert len(kinds) > 5
    assert [kind for kind, number in kinds.items() if number > 1] == []
