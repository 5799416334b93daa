"""Texts from decoders: those of a run over all tokens at once, whatever runs beside them and however it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.text import Generator
from bolt_numba.types import Array
from tests.text.decoders import GROUPS, SIZE, whole

pytest.importorskip("tokenizers")
PROMPTS = ["Once upon a time", "x", "The train is late, and the cat sleeps.", "Once upon a bridge", "日本 cat"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("decoder") / "small.bolt")


@pytest.fixture(scope="module")
def one(file: Path) -> Iterator[Generator]:
    with Generator(file, threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def many(file: Path) -> Iterator[Generator]:
    with Generator(file, sequences=3, threads=1) as made:
        yield made


def logits_of(session: Any, tokens: list[int]) -> Array:
    """Logits of all tokens, of one run without a past."""
    count = len(tokens)
    caches = {s.name: np.zeros((1, GROUPS, count + 1, SIZE), "f4") for s in session.inputs if "past_key" in s.name}
    feeds = {"input_ids": np.array([tokens]), "past_lengths": np.zeros(1, "i4"), "rows": np.arange(count), **caches}
    made: Array = session(feeds)["logits"]
    return made


@pytest.fixture(scope="module")
def session(file: Path) -> Any:
    return bn.compile(file, threads=1)


def greedy(session: Any, tokens: list[int], count: int) -> list[int]:
    made = list(tokens)
    for _ in range(count):
        made.append(int(logits_of(session, made)[-1].argmax()))
        if made[-1] == 257:
            break
    return made[len(tokens) :]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_those_of_whole_runs(one: Generator, session: Any, prompt: str) -> None:
    made = one.generate(prompt, max_tokens=12)
    assert made.tokens == greedy(session, one.tokens(prompt), 12)
    assert made.prompt_tokens == len(prompt.encode())
    assert made.finish_reason == ("stop" if made.tokens[-1] == 257 else "length")


def test_many_at_once_make_what_each_makes_alone(one: Generator, many: Generator) -> None:
    settings: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 3}, {"repetition_penalty": 1.3, "max_tokens": 5}]
    asked = [(prompt, {"max_tokens": 20, **how}) for prompt in PROMPTS for how in settings]
    answers = [many.submit(prompt, **how) for prompt, how in asked]
    for (prompt, how), answer in zip(asked, answers, strict=True):
        alone = one.generate(prompt, **how)
        assert answer.result().tokens == alone.tokens, (prompt, how)
        assert answer.result().text == alone.text
    assert [made.tokens for made in many.generate(PROMPTS, max_tokens=8)] == [
        one.generate(prompt, max_tokens=8).tokens for prompt in PROMPTS
    ]


def test_a_prefix_is_computed_once(one: Generator, many: Generator) -> None:
    first = one.generate("The cat sleeps. ", max_tokens=4)
    text = one.tokens("The cat sleeps. ") + first.tokens
    again = one.submit([*text, 65, 66], max_tokens=4).result()
    assert again.reused_tokens == len(text) - 1  # the last token was never fed
    with Generator(one.name, threads=1) as fresh:
        assert fresh.submit([*text, 65, 66], max_tokens=4).result().tokens == again.tokens
    many.generate("A beginning that others share", max_tokens=2)
    both = [many.submit("A beginning that others share: " + end, max_tokens=9) for end in ("a", "b", "c")]
    for end, answer in zip("abc", both, strict=True):  # copied between slots
        assert answer.result().reused_tokens >= len("A beginning that others share")
        assert answer.result().tokens == one.generate("A beginning that others share: " + end, max_tokens=9).tokens


def test_guesses_do_not_change_a_text(file: Path, one: Generator, tmp_path: Path) -> None:
    other = whole(tmp_path / "other.bolt", layers=1, seed=5)
    for made in (
        Generator(file, look_up=True, threads=1, sequences=2), Generator(file, draft=one, threads=1, sequences=2),
        Generator(file, draft=Generator(other, threads=1), threads=1, sequences=2),
    ):  # fmt: skip
        with made:
            for how in ({}, {"temperature": 0.7, "seed": 1}):
                answers = [made.submit(prompt, max_tokens=40, **how) for prompt in PROMPTS]
                alone = [one.generate(prompt, max_tokens=40, **how) for prompt in PROMPTS]
                assert [a.result().tokens for a in answers] == [a.tokens for a in alone]


def test_a_draft_saves_steps(file: Path, one: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    with Generator(file, draft=one, threads=1) as made:
        runs = []
        run = made.decoder.run
        monkeypatch.setattr(made.decoder, "run", lambda parts: runs.append(parts) or run(parts))
        made.generate("Once upon a time", max_tokens=33)
        assert len(runs) <= 1 + 33 // 8 + 1


def test_the_seed_decides(one: Generator) -> None:
    made = {seed: one.generate("Once", max_tokens=30, temperature=1.0, seed=seed).tokens for seed in (1, 2)}
    assert made[1] != made[2]
    assert made[1] == one.generate("Once", max_tokens=30, temperature=1.0, seed=1).tokens
    free = {tuple(one.generate("Once", max_tokens=30, temperature=1.0).tokens) for _ in range(3)}
    assert len(free) > 1


def test_pieces_are_the_text(one: Generator) -> None:
    whole_text = one.generate("Once upon", max_tokens=30, temperature=1.5, seed=4)
    pieces = [*one.stream("Once upon", max_tokens=30, temperature=1.5, seed=4)]
    assert "".join(piece.text for piece in pieces) == whole_text.text
    assert [token for piece in pieces for token in piece.tokens] == whole_text.tokens
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == whole_text.finish_reason


def test_a_stop_ends_the_text(one: Generator) -> None:
    text = one.generate("Once upon", max_tokens=40, temperature=1.5, seed=4).text
    for stop in (text[5:7], text[9], text[3:12]):
        found = one.generate("Once upon", max_tokens=40, temperature=1.5, seed=4, stop=[stop, "never this"])
        assert (found.text, found.finish_reason) == (text[: text.index(stop)], "stop")
        streamed = "".join(piece.text for piece in one.stream(
            "Once upon", max_tokens=40, temperature=1.5, seed=4, stop=stop
        ))  # fmt: skip
        assert streamed == found.text


def test_log_probabilities_are_the_models(one: Generator, session: Any) -> None:
    made = one.generate("Once", max_tokens=4, temperature=0.8, seed=2, logprobs=3, repetition_penalty=2.0)
    assert made.logprobs is not None
    tokens = one.tokens("Once")
    for token, likely in zip(made.tokens, made.logprobs, strict=True):
        rows = logits_of(session, tokens)[-1].astype("f8")
        wanted = rows - np.log(np.exp(rows - rows.max()).sum()) - rows.max()
        assert likely.token == token
        assert likely.logprob == pytest.approx(wanted[token], abs=1e-5)
        assert [other[0] for other in likely.others] == np.argsort(-wanted)[:3].tolist()
        tokens.append(token)


def test_perplexity(one: Generator, session: Any) -> None:
    text = "The cat sleeps, and the train is late. " * 7
    found, every = one.perplexity(text[:100]), one.tokens(text[:100])
    rows = logits_of(session, every).astype("f8")
    lost = [np.log(np.exp(r - r.max()).sum()) + r.max() - r[t] for r, t in zip(rows[:-1], every[1:], strict=True)]
    assert found == pytest.approx(np.exp(np.mean(lost)), rel=1e-4)
    assert np.isfinite(one.perplexity(text))


def test_json_follows_its_schema(one: Generator) -> None:
    pytest.importorskip("llguidance")
    parts = {"a": {"type": "integer"}, "b": {"enum": ["x", "yes"]}}
    schema = {"type": "object", "properties": parts, "required": ["a", "b"], "additionalProperties": False}
    made = one.generate("Some JSON:", max_tokens=80, json_schema=schema, temperature=1.0, seed=7)
    found = json.loads(made.text)
    assert isinstance(found["a"], int)
    assert found["b"] in ("x", "yes")
    assert made.finish_reason == "stop"
    assert one.generate("Y", grammar='start: "yes" | "no"', max_tokens=9).text in ("yes", "no")


def test_a_reader_that_leaves_cancels(many: Generator) -> None:
    reader = many.stream("Once", max_tokens=100, temperature=1.0, seed=0)
    next(reader)
    reader.close()
    answer = many.submit("Once upon", max_tokens=110, temperature=1.0, seed=0)
    answer.cancel()
    made = answer.result(10)
    assert made.finish_reason == "cancelled"


def test_many_threads_submit(many: Generator, one: Generator) -> None:
    wanted = {prompt: one.generate(prompt, max_tokens=10).tokens for prompt in PROMPTS}
    wrong: list[Any] = []

    def ask() -> None:
        wrong.extend(prompt for prompt in PROMPTS if many.generate(prompt, max_tokens=10).tokens != wanted[prompt])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
