"""Searches for sequences (domain com.microsoft) against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import bolt_numba as bn
from bolt_numba.types import Array
from tests.converters.search_models import WORDS, gpt, i32, search, translator
from tests.converters.test_onnx_microsoft_decoder import agrees, node_model
from tests.near import assert_near

onnxruntime = pytest.importorskip("onnxruntime")
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("GreedySearch", {}),
    "gpt": ("BeamSearch", {}),
    "t5": ("BeamSearch", {}),
    "t5 of states": ("BeamSearch", {"hidden": False}),
    "t5 in one graph each": ("BeamSearch", {"first": False, "hidden": False}),
    "t5 of all words": ("BeamSearch", {"whole": True}),
    "whisper": ("WhisperBeamSearch", {"sound": True}),
    "whisper by its number": ("BeamSearch", {"sound": True}),
}


def judged(model: ModelProto, feeds: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
    data = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    inputs = {name: feeds[name] for name in (x.name for x in wanted.get_inputs())}
    return bn.compile(data, threads=1).run(None, inputs), wanted.run(None, inputs)


def drawn(kind: str, seed: int) -> tuple[str, dict[str, Array], list[str], dict[str, Any]]:
    """A search of one kind: operator, operands, which of them are constants, attributes."""
    op, form = FORMS[kind]
    rng = np.random.default_rng(seed)

    def some(share: float) -> bool:
        return bool(rng.random() < share)

    n, length, sound = int(rng.integers(1, 4)), int(rng.integers(1, 5)), form.get("sound", False)
    start = 1 if op != "GreedySearch" and kind != "gpt" else length
    ids = rng.standard_normal((n, 5, 6)) if sound else rng.integers(0, WORDS, (n, length))
    most = start + int(rng.integers(2, 10))
    feeds = {"input_ids": ids.astype(np.float32 if sound else np.int32), "max_length": i32(most),
             "min_length": i32(int(rng.integers(0, most)))}  # fmt: skip
    if some(0.4):
        feeds["repetition_penalty"] = np.array([rng.choice([1, 1.3, 0.7, 2.5])], np.float32)
    if some(0.3):
        feeds["vocab_mask"] = (rng.random(WORDS) < 0.8).astype(np.int32)
    if some(0.3):
        feeds["prefix_vocab_mask"] = (rng.random((n, WORDS)) < 0.7).astype(np.int32)
    if some(0.3) and not sound:
        feeds["attention_mask"] = ((rng.random((n, length)) < 0.7) | (np.arange(length) == length - 1)).astype(np.int32)
    seed, sharp = int(rng.integers(5)), float(rng.choice([1, 4]))
    ends = {"eos_token_id": int(rng.integers(WORDS)), "pad_token_id": int(rng.integers(WORDS))}
    attributes: dict[str, Any] = ends | ({"no_repeat_ngram_size": int(rng.integers(1, 4))} if some(0.3) else {})
    if kind in ("greedy", "gpt"):
        attributes["decoder"] = gpt(seed, sharp=sharp)
        attributes |= {"init_decoder": gpt(9)} if some(0.2) else {}
    else:
        attributes |= translator(seed, sharp=sharp, **form)
        attributes |= {"model_type": 1 + sound, "decoder_start_token_id": int(rng.integers(WORDS))}
    if op != "GreedySearch":
        beams = int(rng.integers(1, 5))
        feeds |= {"num_beams": i32(beams), "num_return_sequences": i32(int(rng.integers(1, beams + 1))),
                  "length_penalty": np.array([rng.choice([1, 0, 2, -1])], np.float32)}  # fmt: skip
        attributes["early_stopping"] = int(some(0.4))
    if op == "WhisperBeamSearch" and some(0.5):
        feeds["temperature"] = np.array([rng.choice([0.5, 2])], np.float32)
    held = [n for n in feeds if n != "input_ids" and some(0.5)] if some(0.5) else []
    return op, feeds, held, attributes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", FORMS)
def test_searches_find_what_onnxruntime_finds(kind: str, seed: int) -> None:
    """What comes behind the step in which all have ended it leaves as its memory was; here it is padding and zeros."""
    op, feeds, held, attributes = drawn(kind, seed)
    got, wanted = judged(search(op, feeds, held, **attributes), feeds)
    assert [g.shape for g in got] == [w.shape for w in wanted]
    if op == "GreedySearch":
        steps = int(np.argmin([*(got[0] == wanted[0]).all(0), False]))
        assert (got[0][:, steps:] == attributes["pad_token_id"]).all()
        assert steps > feeds["input_ids"].shape[1]
        return
    assert got[0].tolist() == wanted[0].tolist()
    assert_near(got[1], wanted[1], 1e-4)
    steps = len(got[2]) - int(np.argmax([step.any() for step in got[2][::-1]]))
    assert (got[2][steps:] == 0).all()
    assert_near(got[2][:steps], wanted[2][:steps], 1e-4)


def guesses() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(2)
    made: list[tuple[Any, ...]] = []
    for i in range(120):
        source, words = (rng.integers(0, 3, int(rng.integers(low, 9))) for low in (0, 1))
        start = int(rng.integers(0, len(source) + 1))
        guess = np.append(source[start:], rng.integers(0, 3))
        guess[int(rng.integers(len(guess)))] += rng.integers(0, 2)
        least = int(rng.integers(1, 4))
        made.append((source, words, start, None if i % 5 == 0 else guess, least, least + int(rng.integers(0, 3))))
    return made


def test_guesses_come_true_as_far_as_onnxruntime_finds() -> None:
    for source, words, start, guess, least, most in guesses():
        inputs = {"source": source, "words": words, "start": np.array([start]), "guess": guess}
        agrees("BifurcationDetector", inputs, 2, {"min_ngram_size": least, "max_ngram_size": most})
    inputs = {"source": i32(1, 2, 1).astype(np.int64), "words": np.array([1, 2]), "start": np.array([0])}
    agrees("BifurcationDetector", {**inputs, "guess": None}, 2, {})


@pytest.mark.parametrize(
    ("changes", "attributes", "said"),
    [
        ({"start": np.array([4])}, {}, r"start\[0\]: got 4, wanted 0 to 3"),
        ({"start": np.array([-1])}, {}, r"start\[0\]: got -1, wanted 0 to 3"),
        ({"guess": np.array([1, 2])}, {}, "words of guess: got 2, wanted 3"),
        ({"words": np.array([[1]])}, {}, r"rank of words: got 2"),
        ({}, {"min_ngram_size": 0}, r"least and most: got \(0, 3\)"),
        ({}, {"min_ngram_size": 3, "max_ngram_size": 2}, r"least and most: got \(3, 2\)"),
    ],
)
def test_guesses_that_cannot_be_are_refused(changes: dict[str, Array], attributes: dict[str, int], said: str) -> None:
    three = np.array([1, 2, 3])
    inputs = {"source": three, "words": three, "start": np.array([1]), "guess": three, **changes}
    with pytest.raises(bn.BoltError, match=said):
        bn.compile(node_model("BifurcationDetector", inputs, 2, attributes).SerializeToString()).run(None, inputs)
