"""The list of public ONNX tests that do not pass (docs/onnx-missing.md) is right: nothing more and nothing less."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from bench.scoreboard.conftest import STATES, pytest_terminal_summary
from bench.scoreboard.page import page
from bolt_numba.onnx_backend import Backend
from tests import onnx_score

PAGE = Path(__file__).parents[2] / "docs" / "onnx-missing.md"
FAMILIES = (
    "_loop|dft|stft|mel_|window|gradient|dropout|sequence|optional|string|strnorm|tfidf|regex|ai_onnx_ml|image_decoder|ada"
)
"""What the listed tests are about, the operators beyond plain tensors, and those on sound."""


@pytest.mark.timeout(1800)
@pytest.mark.skipif(onnx.__version__ < "1.23", reason="the list is that of the suite of onnx 1.23")
def test_exactly_the_listed_tests_fail(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--include", FAMILIES, "--expect", str(PAGE), "--list", "--workers", "1"]
    assert onnx_score.main(options) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    names = onnx_score.listed(PAGE.read_text(encoding="utf-8"))
    assert len(names) == 11
    # A draw of Bernoulli's may be what a test of it wants, one time in fifty: those are listed, but not run here.
    assert all(name in shown for name in names if "bernoulli" not in name)


def test_the_page_of_results_shows_the_same() -> None:
    """`make scoreboard` writes it from a run of the entry for ONNX's scoreboard."""
    shown = re.findall(r"(?m)^- `(\w+)_cpu`$", (PAGE.parent / "onnx-results.md").read_text(encoding="utf-8"))
    listed = {name.partition("/")[2] for name in onnx_score.listed(PAGE.read_text(encoding="utf-8"))}
    assert set(shown) <= listed
    assert all("bernoulli" in name for name in listed - set(shown))  # a draw may be what a test of it wants


def test_a_run_of_the_scoreboard_becomes_files_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path))
    kind = "suite.py::OnnxBackendNodeModelTest::test_"
    stats = {"passed": [SimpleNamespace(nodeid=f"{kind}a_cpu")], "failed": [SimpleNamespace(nodeid=f"{kind}b_cpu")]}
    for _ in range(2):
        pytest_terminal_summary(SimpleNamespace(stats=stats))
    report, trend = (json.loads((tmp_path / name).read_text()) for name in ("report.json", "trend.json"))
    assert report["passed"] == ["OnnxBackendNodeModelTest::test_a_cpu"]
    assert [[each[state] for state in STATES] for each in trend] == [[1, 1, 0]] * 2
    assert {each["name"] for each in trend[0]["versions"]} == {"onnx", "bolt-numba"}
    text = page(report, trend)
    assert "| single operators | 1 | 1 | 0 |" in text
    assert text.endswith("- `test_b_cpu`\n")


def test_surprises_are_told() -> None:
    good, bad = (onnx_score.Result("node", n, s, "", 0.0) for n, s in (("a", "passed"), ("b", "failed")))
    assert onnx_score.unexpected([good, bad], {"node/b", "node/c"}) == []
    assert onnx_score.unexpected([good, bad], {"node/a"}) == ["unexpected: node/b failed", "unexpected: node/a passed"]


def test_the_values_of_the_loop_agree() -> None:
    """What the page says of the test that its own comparison cannot judge."""
    (case,) = [c for c in onnx_score.suite() if c.name == "test_loop16_seq_none"]
    model, sets = case.load()
    for inputs, (wanted,) in sets:
        (got,) = Backend.prepare(model).run(inputs)
        assert len(got) == len(wanted) > 1
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_bernoulli_draws_with_its_probability() -> None:
    """The tests of random numbers that no other generator can pass, judged by what they stand for."""
    node = onnx.helper.make_node("Bernoulli", ["p"], ["y"], seed=1.0)
    p = np.repeat(np.array([0.0, 0.2, 0.7, 1.0], np.float32), 20000)
    (y,) = Backend.run_node(node, [p])
    assert set(np.unique(y)) == {0.0, 1.0}
    np.testing.assert_allclose(y.reshape(4, -1).mean(1), [0, 0.2, 0.7, 1], atol=0.015)
    np.testing.assert_array_equal(Backend.run_node(node, [p])[0], y)
