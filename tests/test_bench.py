"""The bench itself: two tiny models through real processes, its tables, and the comparison of two results."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import arithmetic, compare, report, run
from bench.contest import Turn, summary
from bench.zoo import ZOO

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOLT_NUMBA_MODELS", str(folder))
        patch.setattr(run, "machine", lambda: dict(MACHINE))
        words = "--models mlp,kws_dscnn --peers bolt,onnxruntime,mnn --turns 1 --turn-s 0.02 --patience-s 0"
        args = run.arguments([*words.split(), "--output", str(folder / "r.json")])
        run.run(args, lambda line: None)
    loaded: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return loaded


MACHINE = {
    "processor": "p", "cores": 2, "isa": "i", "date": "d", "peak_gflops": 100.0, "copy_gb_s": 10.0, "copy_gb_s_2": 20.0,
    "load_at_start": 0.0,
}  # fmt: skip


def test_engines_run_and_agree(result: dict[str, Any]) -> None:
    rows = {(r["model"], r["peer"]): r for r in result["rows"]}
    for model in ("mlp", "kws_dscnn"):
        for peer in ("bolt", "onnxruntime"):
            row = rows[model, peer]
            assert row["agrees"], row
            assert 0 < row["best_ms"] <= row["median_ms"]
            assert row["peak_rss_mib"] > 10
        assert rows[model, "mnn"]["error"], "an engine without its model file is left out with a word"


def test_tables_hold_the_ratio(result: dict[str, Any]) -> None:
    found = report.cases(result["rows"])["mlp", 1]
    table = report.latency(result)
    line = dict(zip(table[0], table[1], strict=True))
    assert line["model"] == "mlp"
    assert line["best peer"] == "onnxruntime"
    assert float(line["best / bolt"]) == pytest.approx(report.ratio(found, "onnxruntime"), abs=0.01)
    assert "| mlp | 1 |" in report.as_markdown(result)


def test_compare_tells_what_changed(result: dict[str, Any]) -> None:
    slower = copy.deepcopy(result)
    for row in slower["rows"]:
        if row["peer"] == "bolt" and row["model"] == "mlp":
            row["median_ms"] *= 1.5
    found = compare.changes(result, slower, 0.05, "onnxruntime")
    assert [line[:3] for line in found] == [["mlp", "1", "bolt"]]
    assert found[0][-1] == "1.50"
    assert compare.changes(result, result, 0.05, "onnxruntime") == []


def test_wrong_results_are_no_peers() -> None:
    time = {"median_ms": 1.0, "best_ms": 1.0, "noisy": False}
    engines = {"bolt": {**time, "agrees": True}, "a": {**time, "agrees": False}}
    assert report.best_peer(engines) is None
    assert report.ratio(engines, "a") is None


def test_disturbed_turns_do_not_count() -> None:
    turns = [Turn([0.001, 0.001], True), Turn([0.001], True), Turn([1.0], False)]
    assert summary(turns)["median_ms"] == pytest.approx(1.0)
    assert summary(turns[1:])["noisy"]


def test_difference() -> None:
    a = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    assert run.difference([a.transpose(0, 2, 3, 1)], [a]) == 0
    assert run.difference([a + 2.3], [a]) == pytest.approx(0.1)
    assert run.difference([a[:, :1]], [a]) == float("inf")


def test_work_of_known_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spotter has 3.2 million multiply-adds here; the perceptron 64 * 64 + 64 * 10."""
    monkeypatch.setenv("BOLT_NUMBA_MODELS", str(tmp_path))
    flops = {name: arithmetic.work(ZOO[name].path(), ZOO[name].feeds())["gflop"] for name in ("mlp", "kws_dscnn")}
    assert flops["mlp"] == pytest.approx(2 * (64 * 64 + 64 * 10) / 1e9)
    assert flops["kws_dscnn"] is not None
    assert 6e-3 < flops["kws_dscnn"] < 9e-3
