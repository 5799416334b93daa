"""Beam search finds what transformers finds, and on any tables the likeliest text where it keeps all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError, OptionError
from bolt_numba.text import Generator
from bolt_numba.text.beams import BeamSearch, BeamSettings
from bolt_numba.text.sampling import logprobs
from tests.text.decoders import greedy, logits_of, whole
from tests.text.golden_beams import CASES, END, FILE, LONGEST, PROMPT, SEVERAL, START, WORDS, logits, table

NAMES = {
    "suppress_tokens": "never", "begin_suppress_tokens": "at_first", "forced_bos_token_id": "begin_with",
    "forced_eos_token_id": "end_with",
}  # fmt: skip


def search(tables: Any, ends: list[int], begin: Sequence[int] = (START,), **settings: Any) -> BeamSearch:
    beams = BeamSearch(BeamSettings(**settings), begin, ends)
    while not beams.is_done:
        before = beams.tokens
        kept = beams.step(logits(tables, [tokens[-1] for tokens in before], len(before[0]) - 1))
        for source, tokens in zip(kept, beams.tokens if kept else [], strict=True):
            assert tokens[:-1] == before[source]
    return beams


@pytest.mark.parametrize("case", range(len(CASES)))
def test_as_transformers(case: int) -> None:
    rows = [row for row in json.loads(FILE.read_text()) if row["settings"] == CASES[case]]
    assert rows
    for row in rows:
        given = dict(row["settings"])
        ends = given.pop("eos_token_id", END)
        never = [one for (one,) in given.pop("bad_words_ids", [])]
        own = {NAMES.get(name, name): value for name, value in given.items()}
        own |= {"min_tokens": max(0, own.pop("min_length", 0) - 1)}
        own |= {"never": [*own.get("never", ()), *never], "max_tokens": LONGEST - 1}
        found = search(table(row["seed"]), ends if isinstance(ends, list) else [ends], **own)
        made = found.results()[0][1]
        assert made == row["tokens"][: len(made)], row  # its results are padded
        assert {*row["tokens"][len(made) :]} <= {2}, row


@pytest.mark.parametrize("case", range(len(SEVERAL)))
def test_the_likeliest_few_as_transformers(case: int) -> None:
    """Behind a longer beginning, which does not count as a part of their length."""
    for row in [row for row in json.loads(FILE.read_text()) if row["settings"] == SEVERAL[case]]:
        settings, most = dict(row["settings"]), LONGEST - len(PROMPT)
        count = settings.pop("num_return_sequences")
        found = search(table(row["seed"]), [END], PROMPT, max_tokens=most, **settings)
        for (_, made), wanted in zip(found.results()[:count], row["texts"], strict=True):
            assert made == wanted[: len(made)], row
            assert {*wanted[len(made) :]} <= {2}, row


def test_the_likeliest_of_all_texts() -> None:
    """With a beam for each beginning, the score that is found is the greatest there is."""
    tables, longest = (table(9)[0][:4, :4], table(9)[1][:, :4]), 3
    best = -np.inf
    for tokens in itertools.product(range(4), repeat=longest):
        text = tokens[: tokens.index(END) + 1] if END in tokens else tokens
        score = sum(
            logprobs(logits(tables, [last], i))[0, token]
            for i, (last, token) in enumerate(zip([START, *text], text, strict=False))
        )
        best = max(best, score / len(text))
    found = search(tables, [END], max_tokens=longest, num_beams=64, early_stopping="never")
    assert found.results()[0][0] == pytest.approx(best)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"num_beams": 0}, "num_beams"), ({"num_beams": 65}, "num_beams"), ({"length_penalty": "1"}, "length_penalty"),
        ({"length_penalty": float("nan")}, "length_penalty"), ({"early_stopping": "soon"}, "early_stopping"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"), ({"max_tokens": 0}, "max_tokens"),
    ],
)  # fmt: skip
def test_settings_are_held_to_what_they_can_be(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        BeamSettings(**settings)


def test_all_tokens_may_be_out_of_reach() -> None:
    found = search(table(0), [END], num_beams=2, never=range(WORDS))
    assert found.results()[0][1] == []


# --- in generators ---------------------------------------------------------------------------------------------------

PROMPTS, BESIDE = ["Once upon a time", "x"], "The train is late, and the cat sleeps."


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    return whole(tmp_path_factory.mktemp("decoder") / "small.bolt")


@pytest.fixture(scope="module")
def session(file: Path) -> Any:
    return bn.compile(file, threads=1)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"length_penalty": 2.0}, {"early_stopping": True}], ids=str)
def test_searches_find_what_whole_runs_find(file: Path, session: Any, how: dict[str, Any]) -> None:
    """Slots change hands as texts go on from others; another text is made meanwhile, and one asks for a place."""
    with Generator(file, threads=1, sequences=5) as made:
        wanted = made.generate(BESIDE, max_tokens=12, temperature=0.0).tokens
        beside = [made.submit(BESIDE, max_tokens=12, temperature=0.0) for _ in range(3)]
        for prompt in PROMPTS:
            found = made.search(prompt, n=3, max_tokens=12, **how)
            tokens = made.tokens(prompt)
            beams = BeamSearch(BeamSettings(**{"num_beams": 4, "max_tokens": 12} | how), tokens, made.layout.ends)
            while not beams.is_done:
                beams.step(np.stack([logits_of(session, row)[-1] for row in beams.tokens]))
            scores, rows = zip(*beams.results()[:3], strict=True)
            assert [each.tokens for each in found] == [*rows]
            assert [each.score for each in found] == pytest.approx(scores, abs=1e-4)
        assert [each.result(60).tokens for each in beside] == [wanted] * 3
        assert made.under_way == (0, 0)
        (single,) = made.search(PROMPTS[0], num_beams=1, max_tokens=5)
        assert single.tokens == greedy(session, made.tokens(PROMPTS[0]), 5)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({}, "wanted as many sequences as beams"), ({"num_beams": 2, "n": 3}, "num_beams, n: got 3 of 2 beams"),
        ({"num_beams": 2, "n": 0}, "n: got 0"), ({"num_beams": 2, "width": 3}, "'width' is not one of"),
    ],
)  # fmt: skip
def test_searches_that_cannot_be(file: Path, how: dict[str, Any], told: str) -> None:
    with Generator(file, threads=1, sequences=3) as made, pytest.raises(OptionError, match=told):
        made.search("Once", **how)


def test_a_search_that_fails_leaves_its_places(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BeamSearch, "step", lambda self, logits: 1 / 0)
    with Generator(file, threads=1, sequences=3) as made:
        with pytest.raises(BoltError, match="ZeroDivisionError"):
            made.search("Once", num_beams=3)
        assert made.under_way == (0, 0)
