"""Damaged model files: a BoltError or a correct run.  ``python -m tests.fuzz`` does the same at length."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import fuzz

COUNT = 100


@pytest.mark.timeout(600)
def test_mutations_end_well(tmp_path: Path) -> None:
    results = list(fuzz.fuzz(fuzz.default_files(tmp_path)[:6], COUNT, seed=7))
    assert len(results) == COUNT
    bad = [r for r in results if not r.is_good]
    assert not bad, "\n".join(f"{r.state}: {r.file} seed {r.seed} ({r.kind}): {r.detail}" for r in bad)
    kinds = Counter(r.kind for r in results)
    assert all(kinds[m.__name__] for m in fuzz.MUTATIONS)
    states = Counter(r.state for r in results)
    assert states["refused"] > COUNT / 4
    assert states["ran"] > 0


def test_mutations_are_the_same_every_time_and_never_the_file_itself() -> None:
    data = fuzz.DIGITS.read_bytes()
    for seed in range(30):
        kind, damaged = fuzz.mutation(data, seed)
        assert (kind, damaged) == fuzz.mutation(data, seed)
        if kind in ("truncated", "flipped"):
            assert damaged != data


def test_a_dead_child_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = fuzz.Child(fuzz.DIGITS)
    child.process.kill()
    child.process.wait()
    kind, state, detail = child.read(5)
    child.stop()
    assert (kind, state) == ("?", "dead")
    assert "-9" in detail


def test_a_hang_is_noticed() -> None:
    child = fuzz.Child(fuzz.DIGITS)
    assert child.read(0.05)[1] == "hang"
    child.stop()


def test_outcomes() -> None:
    data = fuzz.DIGITS.read_bytes()
    assert fuzz.outcome(data) == ("ran", "")
    assert fuzz.outcome(data[:1000])[0] == "refused"
    assert fuzz.outcome(np.random.default_rng(0).bytes(1000)) == ("refused", "InvalidModelError")
