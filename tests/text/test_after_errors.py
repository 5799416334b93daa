"""Generators whose callers fail, leave or close: what goes on, and what comes next."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.cli import writing
from bolt_numba.cli.app import run
from bolt_numba.errors import DataError, OptionError
from bolt_numba.text import Generator, Sampling, TextPiece
from bolt_numba.text.batching import Writing
from bolt_numba.text.sampling import Sampler
from tests.text.decoders import CONTEXT, whole
from tests.text.test_generator import logits_of

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("decoder") / "small.bolt")


@pytest.fixture
def made(file: Path) -> Iterator[Generator]:
    with Generator(file, sequences=2, threads=1) as found:
        yield found


def test_who_watches_and_fails_ends_no_other_text(made: Generator) -> None:
    def fail(piece: TextPiece) -> None:
        raise ValueError("mine")

    wanted = made.generate("Once", max_tokens=60).tokens
    answers = [made.submit("Once", max_tokens=60, watch=watch) for watch in (None, fail, None, fail)]
    assert [answers[i].result(60).tokens for i in (0, 2)] == [wanted] * 2
    for answer in (answers[1], answers[3]):
        with pytest.raises(ValueError, match="mine"):
            answer.result(60)


def test_close_ends_all_that_is_under_way(made: Generator) -> None:
    long = [*range(60, 60 + CONTEXT // 2)]
    answers = [made.submit(long, max_tokens=60) for _ in range(6)]
    made.close()
    assert {answer.result(0).finish_reason for answer in answers} <= {"cancelled", "stop", "length"}
    assert answers[-1].result(0).finish_reason == "cancelled"
    assert made.under_way == (0, 0)
    assert made.generate("Once", max_tokens=2).tokens  # it plans anew


def test_a_child_of_fork_leaves_texts_to_its_parent(made: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, begun = made._batch, list[Writing]()
    gone = threading.Thread(target=str)
    gone.start()
    gone.join()
    begin = batch._begin
    monkeypatch.setattr(batch, "_begin", lambda writing, *rest: begun.append(writing) or begin(writing, *rest))
    monkeypatch.setattr(batch, "thread", gone)  # as a child finds it
    stale: Any = object()
    batch.waiting.append(stale)
    assert made.generate("Once", max_tokens=2).tokens
    assert stale not in begun


def test_no_thread_no_text(made: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no more")))
        with pytest.raises(bn.BoltError, match="no more"):
            made.submit("Once")
    assert made.under_way == (0, 0)
    made.close()
    assert made.generate("Once", max_tokens=2).tokens


def test_a_text_is_known_from_where_texts_begin(tmp_path: Path) -> None:
    graph = bn.load(whole(tmp_path / "small.bolt"))
    graph.metadata["add_bos"] = "true"
    bn.save(graph, tmp_path / "begun.bolt")
    with Generator(tmp_path / "begun.bolt", threads=1) as begun, Generator(tmp_path / "small.bolt", threads=1) as plain:
        text = "The cat sleeps."
        tokens = begun.tokens(text)
        assert tokens == [256, *plain.tokens(text)]
        rows = logits_of(begun.session, tokens).astype("f8")
        lost = [np.log(np.exp(r - r.max()).sum()) + r.max() - r[t] for r, t in zip(rows[:-1], tokens[1:], strict=True)]
        assert begun.perplexity(text) == pytest.approx(np.exp(np.mean(lost)), rel=1e-4)


def test_a_context_has_place_for_a_prompt_and_a_token(file: Path) -> None:
    with pytest.raises(OptionError, match=f"context: got 1, wanted from 2 to the {CONTEXT}"):
        Generator(file, context=1)


@pytest.mark.parametrize("stop", [5, None, {"a": 1}, [3], b"ab"])
def test_stops_are_texts(stop: Any) -> None:
    with pytest.raises(OptionError, match=r"stop: got .*, wanted at most 16 texts"):
        Sampling(stop=stop)


def test_logits_are_finite() -> None:
    with pytest.raises(DataError, match="logits: got inf, wanted numbers"):
        Sampler(Sampling(temperature=1.0), [])(np.array([0.0, np.inf, 1.0], "f4"))


def test_stacks_stay_as_large_as_they_were(made: Generator) -> None:
    pytest.importorskip("llguidance")
    before = threading.stack_size()
    threads = [
        threading.Thread(target=made.generate, args=("x",), kwargs={"grammar": f'start: "{i}"', "max_tokens": 2})
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert threading.stack_size() == before


def test_no_part_of_what_is_typed_is_left_out(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOST_BYTES", 8)
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"The cat sleeps.")))
    assert run(["perplexity", str(file), "-"]) == 1
    assert "standard input: got more than 8 bytes" in capsys.readouterr().err
