"""Beam search finds what transformers finds, and on any tables the likeliest text where it keeps all."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import OptionError
from bolt_numba.text.encoded.beams import BeamSearch, BeamSettings
from bolt_numba.text.sampling import logprobs
from tests.text.golden_beams import CASES, END, FILE, LONGEST, START, WORDS, logits, table

NAMES = {
    "suppress_tokens": "never", "begin_suppress_tokens": "at_first", "forced_bos_token_id": "begin_with",
    "forced_eos_token_id": "end_with",
}  # fmt: skip


def search(tables: Any, ends: list[int], **settings: Any) -> BeamSearch:
    beams = BeamSearch(BeamSettings(**settings), [START], ends)
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
        made = found.result()[1]
        assert made == row["tokens"][: len(made)], row  # its results are padded
        assert {*row["tokens"][len(made) :]} <= {2}, row


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
    assert found.result()[0] == pytest.approx(best)


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
    assert found.result()[1] == []
