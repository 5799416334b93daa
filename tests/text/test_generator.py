"""Texts from decoders: those of a run over all tokens at once, whatever runs beside them and however it is asked."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import (
    BoltError,
    BudgetError,
    DataError,
    DTypeError,
    InvalidModelError,
    OptionError,
    TimeLimitError,
)
from bolt_numba.sessions.bound import BoundRun
from bolt_numba.text import Generator, Sampling, batching
from bolt_numba.text.sampling import Sampler
from bolt_numba.text.spelling import Speller
from bolt_numba.types import Array
from tests.models import FetchError, fetch
from tests.text.decoders import GROUPS, SIZE, greedy, logits_of, whole

pytest.importorskip("tokenizers")
PROMPTS = ["Once upon a time", "x", "The train is late, and the cat sleeps.", "Once upon a bridge", "日本 cat"]


@pytest.fixture(scope="module")
def many(file: Path) -> Iterator[Generator]:
    with Generator(file, sequences=3, threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def session(file: Path) -> Any:
    return bn.compile(file, threads=1)


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


def test_caches_of_bytes_make_nearly_the_same_texts(file: Path, one: Generator) -> None:
    """And take the memory that they should."""
    with Generator(file, threads=1, sequences=2, cache="int8") as made:
        assert made.decoder.caches["past_key_values.0.key"].shape[-1] == SIZE + 4
        wanted = [one.generate(prompt, max_tokens=8, temperature=0.0).tokens for prompt in PROMPTS]
        got = [each.tokens for each in made.generate(PROMPTS, max_tokens=8, temperature=0.0)]
        assert sum(a == b for a, b in zip(got, wanted, strict=True)) >= len(PROMPTS) - 1
        assert made.perplexity(PROMPTS[2]) == pytest.approx(one.perplexity(PROMPTS[2]), rel=0.02)


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
        assert len(runs) <= 1 + 33 // 4 + 1


def test_the_seed_decides(one: Generator) -> None:
    one.generate("Once upon", max_tokens=9)
    assert one.generate("Once upon", max_tokens=9, seed=1).reused_tokens == 0  # what was there before has no part in it
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


@pytest.mark.parametrize("count", [3000, 6000])
def test_grammars_may_be_deep(one: Generator, count: int) -> None:
    pytest.importorskip("llguidance")
    rules = [f"r{i}: r{i + 1}" for i in range(count)]
    assert one.generate("x", grammar="\n".join(["start: r0", *rules, f'r{count}: "yes"']), max_tokens=5).text == "yes"
    inner = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(count // 4)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**inner, f"a{count // 4}": {"type": "null"}}}
    assert one.generate("x", json_schema=schema, max_tokens=2).text.startswith("[")


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


def test_smollm2_makes_the_same_texts_however_it_is_asked() -> None:
    try:
        file = fetch("smollm2.gguf")
    except FetchError as error:
        pytest.skip(str(error))
    prompts = ["The capital of France is", "def fibonacci(n):", "A list: apple, pear, apple, pear,", "Water boils at"]
    with Generator(file) as alone, Generator(file, sequences=4) as together, Generator(file, look_up=True) as guessing:
        for how in ({}, {"temperature": 0.8, "seed": 5}):
            wanted = [alone.generate(prompt, max_tokens=40, **how).tokens for prompt in prompts]
            assert [each.tokens for each in together.generate(prompts, max_tokens=40, **how)] == wanted
            assert [guessing.generate(prompt, max_tokens=40, **how).tokens for prompt in prompts] == wanted
        asked = [{"role": "user", "content": "What is the capital of France?"}]
        first = alone.chat(asked, max_tokens=20)
        assert first.text == "The capital of France is Paris."
        asked += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And of Italy?"}]
        assert alone.chat(asked, max_tokens=20).reused_tokens >= first.prompt_tokens
        assert 3 < alone.perplexity("The capital of France is Paris, and the capital of Italy is Rome.") < 8


# --- parts -----------------------------------------------------------------------------------------------------------


def drawn(logits: Array, count: int = 1500, **settings: Any) -> dict[int, float]:
    """How often each token is chosen."""
    sampler = Sampler(Sampling(temperature=settings.pop("temperature", 1.0), seed=0, **settings), [])
    made = [sampler(logits) for _ in range(count)]
    return {token: made.count(token) / count for token in sorted({*made})}


def test_tokens_are_drawn_by_their_probabilities() -> None:
    chances = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(chances).astype("f4")
    for settings, kept in (
        ({}, [0, 1, 2, 3]), ({"top_k": 2}, [0, 1]), ({"top_p": 0.7}, [0, 1]), ({"top_p": 0.81}, [0, 1, 2]),
        ({"min_p": 0.25}, [0, 1, 2]), ({"top_k": 3, "top_p": 0.5}, [0]), ({"top_p": 0.0}, [0]),
        ({"temperature": 0.5}, [0, 1, 2, 3]),
    ):  # fmt: skip
        found = drawn(logits, **settings)
        wanted = chances ** (1 / settings.get("temperature", 1.0))
        wanted = wanted[kept] / wanted[kept].sum()
        assert [*found] == kept or settings == {"temperature": 0.5}
        assert np.allclose([found.get(k, 0) for k in kept], wanted, atol=0.05), settings
    wide = np.zeros(5000, "f4")
    wide[7] = 3.0
    assert len(drawn(wide, top_p=0.9)) > 1100  # more than what is looked at first


def test_repetitions_are_less_likely() -> None:
    logits = np.array([2.0, 1.9, -1.0], "f4")
    assert Sampler(Sampling(), [0])(logits) == 0
    sampler = Sampler(Sampling(repetition_penalty=1.2), [0])
    assert [sampler(logits), sampler(logits)] == [1, 0]
    sampler = Sampler(Sampling(frequency_penalty=0.15), [0, 0, 0])  # tokens of the prompt do not count
    assert [sampler(logits) for _ in range(4)] == [0, 1, 0, 1]
    sampler = Sampler(Sampling(presence_penalty=0.15), [])
    assert [sampler(logits) for _ in range(4)] == [0, 1, 0, 0]
    assert Sampler(Sampling(logit_bias={1: 0.2}), [])(logits) == 1
    sampler = Sampler(Sampling(min_tokens=2), [], ends=[0, 1])
    assert [sampler(logits) for _ in range(3)] == [2, 2, 0]
    with pytest.raises(DataError, match=r"logits: got nan, wanted numbers"):
        Sampler(Sampling(), [])(np.full(3, np.nan, "f4"))


class Letters:
    """A tokenizer of bytes."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode(errors="replace")


def test_letters_are_never_split() -> None:
    text = "日本 😀 é\ud7ff".replace("\ud7ff", "!")
    speller = Speller(Letters(), list(b"begin "))
    pieces = [speller.add(token) for token in text.encode()]
    assert "".join(pieces) + speller.end() == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    speller = Speller(Letters(), [])
    assert speller.add(0xE6) + speller.end() == "\N{REPLACEMENT CHARACTER}"  # it was never whole


def test_what_may_be_a_stop_is_held_back() -> None:
    speller = Speller(Letters(), [], ["END", "NDX"])
    assert [speller.add(token) for token in b"aENxENDb"] == ["a", "", "", "ENx", "", "", "", ""]
    assert speller.is_stopped
    speller = Speller(Letters(), [], ["END"])
    assert ["".join(map(speller.add, b"aEN")), speller.end()] == ["a", "EN"]


def test_runs_over_the_same_arrays(session: Any) -> None:
    caches = {s.name: np.zeros((1, GROUPS, 9, SIZE), "f4") for s in session.inputs if "past_key" in s.name}
    ids, lengths, out = np.array([[1]]), np.zeros(1, "i4"), np.zeros((1, 300), "f4")
    feeds = {"input_ids": ids, "past_lengths": lengths, "rows": np.zeros(1, "i8"), **caches}
    presents = {name.replace("past_key_values", "present"): cache for name, cache in caches.items()}
    bound = BoundRun(session, feeds, {"logits": out, **presents})
    for number, token in enumerate((1, 2, 3, 4, 5)):
        ids[:], lengths[:] = token, number
        if number == 4:
            session.close()  # the plan is gone
        bound()
        assert np.allclose(out, logits_of(session, [1, 2, 3, 4, 5][: number + 1])[-1:], atol=1e-4)
        assert bound._plan is not None or number == 0


def test_a_long_prompt_leaves_time_for_others(many: Generator, one: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PIECE", 8)
    runs = list[list[int]]()
    run, both = many.decoder.run, threading.Event()

    def noted(parts: Any) -> Any:
        both.wait()
        runs.append([len(p.tokens) for p in parts])
        return run(parts)

    monkeypatch.setattr(many.decoder, "run", noted)
    text = "A long text about a cat that sleeps while the train is late. "
    short, long = many.submit("Once", max_tokens=30, temperature=1.0, seed=1), many.submit(text, max_tokens=2)
    both.set()
    made = long.result()
    assert made.tokens == one.generate(text, max_tokens=2).tokens
    assert short.result().tokens == one.generate("Once", max_tokens=30, temperature=1.0, seed=1).tokens
    pieces = [i for i, lengths in enumerate(runs) if lengths == [8]]
    assert len(pieces) >= len(text) // 8 - 1
    assert any(runs[i + 1] == [1] for i in pieces)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "told"), [
    ({"temperature": -1}, "temperature: got -1, wanted a number from 0 to 100"),
    ({"temperature": True}, "temperature: got True"), ({"top_p": 2}, "top_p: got 2, wanted a number from 0 to 1"),
    ({"min_p": float("nan")}, "min_p: got nan"), ({"repetition_penalty": 0}, "wanted a number from 0.01 to 100"),
    ({"top_k": -1}, "top_k: got -1, wanted a whole number from 0"), ({"seed": 1.5}, "seed: got 1.5"),
    ({"logprobs": 101}, "logprobs: got 101, wanted at most 100"), ({"stop": [""]}, "stop: got ['']"),
    ({"max_tokens": 0}, "max_tokens: got 0"), ({"stop": ["a"] * 99}, "wanted at most 16 texts"),
    ({"min_tokens": None}, "min_tokens: got None"), ({"logit_bias": {-1: 1}}, "logit_bias: got {-1: 1}"),
    ({"logit_bias": {1: 101}}, "wanted numbers from -100 to 100"), ({"logit_bias": [1]}, "logit_bias: got [1]"),
    ({"logit_bias": {258: 1}}, "logit_bias: got 258, wanted tokens up to 257"),
    ({"tempreature": 1}, "did you mean 'temperature'?"), ({"json_schema": {}, "grammar": "x"}, "wanted one of the two"),
    ({"json_schema": "{"}, "json_schema: got '{', wanted one that can be read"),
    ({"json_schema": {1, 2}}, "json_schema: got {1, 2}"),
    ({"json_schema": {"type": "no"}}, "json_schema: got what cannot be followed"),
    ({"grammar": "start: ("}, "grammar: got what cannot be followed"),
])  # fmt: skip
def test_settings_that_cannot_be(one: Generator, settings: dict[str, Any], told: str) -> None:
    if {"json_schema", "grammar"} & settings.keys():
        pytest.importorskip("llguidance")
    with pytest.raises(OptionError, match=re.escape(told)):
        one.generate("x", **settings)


def test_tokens_that_have_no_logit_are_refused(tmp_path: Path) -> None:
    with Generator(whole(tmp_path / "few.bolt", vocab=200), threads=1) as few:
        with pytest.raises(OptionError, match="logit_bias: got 200, wanted tokens up to 199"):
            few.generate("x", logit_bias={200: 1}, max_tokens=1)
        with pytest.raises(DataError, match="tokens: got 200, wanted numbers from 0 to 199"):
            few.submit([200])
        assert few.generate("x", logit_bias={199: 100}, max_tokens=2).tokens == [199, 199]


def test_prompts_that_cannot_be(one: Generator, file: Path) -> None:
    for prompt, told in (
        ("", "prompt: got 0 tokens, wanted from 1 to 127"), ("x" * 128, "prompt: got 128 tokens"),
        ("x" * 10**6, "prompt: got 1000000 letters"), ([258], "prompt: tokens: got 258, wanted numbers from 0 to 257"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=re.escape(told)):
            one.submit(prompt)
    for odd in (3, ["a", 2], None, {"a": 1}):
        with pytest.raises(DTypeError):
            one.generate(odd)  # type: ignore[call-overload]
    with pytest.raises(DataError, match="text: got 1 tokens, wanted at least 2"):
        one.perplexity("x")
    assert one.generate("x" * 127).finish_reason in ("length", "stop")  # one token has a place
    with pytest.raises(OptionError, match="context: got 129, wanted from 2 to the 128"):
        Generator(file, context=129)


def test_files_that_are_no_decoder(tmp_path: Path, file: Path) -> None:
    with pytest.raises(InvalidModelError, match="got no model, wanted one of"):
        Generator(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(InvalidModelError, match=r"which has no network in it.*docs/generate\.md#your-own-model"):
        Generator(tmp_path)
    (tmp_path / "small.gguf").write_bytes(b"")
    with pytest.raises(InvalidModelError, match=r"got a folder of small\.gguf, wanted one of these"):
        Generator(tmp_path)
    with pytest.raises(InvalidModelError, match=r"got no tokenizer.*makes texts, see docs/generate\.md"):
        bn.text.Encoder(tmp_path / "small.gguf")
    graph = bn.load(file)
    graph.metadata = {}
    bn.save(graph, tmp_path / "model.bolt")
    with pytest.raises(InvalidModelError, match="got no tokenizer"):
        Generator(tmp_path)
    graph.metadata = {"format": "gguf"}
    bn.save(graph, tmp_path / "model.bolt")
    with pytest.raises(InvalidModelError, match="tokenizer: got none"):
        Generator(tmp_path / "model.bolt")
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": {"filename": "../model.onnx"}}}')
    with pytest.raises(InvalidModelError, match="wanted a name of a file beside it"):
        Generator(tmp_path)


def test_an_error_of_a_run_reaches_its_reader(many: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    good = many.submit("Once", max_tokens=100)
    take = Sampler.__call__

    def fail(self: Sampler, logits: Array) -> int:
        if self.settings.seed == 13:
            raise DataError("logits: got 13")
        return take(self, logits)

    monkeypatch.setattr(Sampler, "__call__", fail)
    with pytest.raises(DataError, match="got 13"):
        many.generate("Once", seed=13)
    assert good.result(60).finish_reason in ("length", "stop")
    with pytest.raises(TimeLimitError, match="answer: got no end within 0 s"):
        many.submit("Once", max_tokens=100).result(0)
    monkeypatch.setattr(many.decoder, "run", lambda parts: 1 / 0)
    with pytest.raises(BoltError, match="ZeroDivisionError"):
        many.generate("Once")


def test_what_is_given_to_the_other_call(one: Generator) -> None:
    with pytest.raises(DTypeError, match=r"wanted a list of messages.*`generate` goes on with a text"):
        one.chat("Hi")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="wanted a text or a list of texts: messages are for `chat`"):
        one.generate([{"role": "user", "content": "Hi"}])  # type: ignore[list-item]


def test_a_prompt_beyond_a_context_that_may_be_larger(file: Path, one: Generator) -> None:
    with pytest.raises(DataError, match=r"got 200 tokens, wanted from 1 to 127, below the context$"):
        one.generate("a" * 200)
    told = pytest.raises(DataError, match=r"below the context, which may be up to 128$")
    with Generator(file, context=64, threads=1) as made, told:
        made.generate("a" * 100)


def test_caches_are_asked_for_together(file: Path) -> None:
    told = "caches: sequences=50 of context=128: memory: got 2 MiB, wanted at most 1 MiB"
    with pytest.raises(BudgetError, match=told):
        Generator(file, sequences=50, memory_limit=1 << 20, threads=1)
