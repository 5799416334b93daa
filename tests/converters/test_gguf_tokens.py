"""Tokenizers of GGUF files cut and merge as llama.cpp does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

import bolt_numba as bn
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.converters.gguf.tokenizer import RULES
from tests import models
from tests.gguf_files import BY_SCORES, BYTEWISE, Tiny

GOLDEN = Path(__file__).parents[1] / "golden" / "text" / "smollm2.json"
TEXT = "I'LL see\n\n  café x2 = 12345;\tdon't! "
CUTS = {
    "default": "I|'|LL| see|\n\n | café| x|2| |=| |123|45|;|\t|don|'|t|!| ",
    "falcon": "I|'|LL| see|\n\n | café| x|2| |=| |123|45|;|\t|don|'|t|!| ",
    "gpt-2": "I|'|LL| see|\n\n | café| x|2| =| 12345|;|\t|don|'t|!| ",
    "smollm": "I|'|LL| see|\n\n | café| x|2| =| |1|2|3|4|5|;|\t|don|'t|!| ",
    "llama-bpe": "I|'LL| see|\n\n| | café| x|2| =| |123|45|;|\tdon|'t|!| ",
    "qwen2": "I|'LL| see|\n\n| | café| x|2| =| |1|2|3|4|5|;|\tdon|'t|!| ",
    "tekken": "I|'LL| see|\n\n| | café| x|2| =| |1|2|3|4|5|;|\tdon|'t|!| ",
    "gpt-4o": "I'LL| see|\n\n| | café| x|2| =| |123|45|;|\tdon't|!| ",
}
"""Words, as llama.cpp of llama-cpp-python 0.3.36 cuts them."""


def facts(extra: dict[str, Any]) -> dict[str, str]:
    tiny = Tiny("llama")
    tiny.extra = extra
    return bn.load(tiny.data()).metadata


def tokenizer(extra: dict[str, Any]) -> Any:
    return Tokenizer.from_str(facts(extra)["tokenizer"])


def test_each_rule_is_one_of_those_that_are_tried() -> None:
    assert {RULES[name] for name in CUTS} == set(RULES.values())


@pytest.mark.parametrize("name", CUTS)
def test_texts_are_cut_into_words(name: str) -> None:
    made = tokenizer(BYTEWISE | {"tokenizer.ggml.pre": name})
    words = [TEXT[a:b] for _, (a, b) in made.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert "|".join(words) == CUTS[name]


def merged(letters: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Neighbours of the least rank become one, the first where there are several, until none has a rank."""
    while True:
        ranks = [rank(a, b) for a, b in pairwise(letters)]
        found = [r for r in ranks if r is not None]
        if not found:
            return letters
        at = ranks.index(min(found))
        letters = [*letters[:at], letters[at] + letters[at + 1], *letters[at + 2 :]]


def texts(letters: str) -> Sequence[str]:
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(list(letters), rng.integers(1, 20))) for _ in range(300)]


def test_bytes_are_merged_by_rank() -> None:
    own = BYTEWISE
    made = tokenizer(
        own | {"tokenizer.ggml.merges": ["h", "x h", " he", *own["tokenizer.ggml.merges"]]}
    )  # of no tokens
    ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(own["tokenizer.ggml.merges"])}
    for text in texts("hello wrd"):
        words = [word for word, _ in made.pre_tokenizer.pre_tokenize_str(text)]
        wanted = [part for word in words for part in merged(list(word), lambda a, b: ranks.get((a, b)))]
        assert made.encode(text).tokens == wanted
        assert made.decode(made.encode(text).ids) == text


@pytest.mark.parametrize("prefix", [True, False])
def test_letters_are_merged_by_score_and_others_are_bytes(prefix: bool) -> None:
    own = BY_SCORES | {"tokenizer.ggml.add_space_prefix": prefix}
    made, scores = tokenizer(own), own["tokenizer.ggml.scores"]
    ids = {text: i for i, text in enumerate(own["tokenizer.ggml.tokens"])}
    for text in texts("hello wrd☃"):
        letters = list((" " * prefix + text).replace(" ", "\u2581"))
        found = merged(letters, lambda a, b: -scores[ids[a + b]] if a + b in ids else None)
        wanted = [ids[part] for p in found for part in ([p] if p in ids else [f"<0x{b:02X}>" for b in p.encode()])]
        assert made.encode(text).ids == wanted, text
        assert made.decode(made.encode(text).ids) == text


def test_names_of_special_tokens_are_tokens() -> None:
    ids = tokenizer(BYTEWISE).encode("<|im_start|>hello<user><|im_end|>").ids
    assert ids == [1, 22, 28, 2]
    assert tokenizer(BY_SCORES).encode("hello</s>hello").tokens == ["\u2581", "hello", "</s>", "\u2581", "hello"]


def test_what_a_generator_asks_for() -> None:
    given = facts(BYTEWISE)
    assert {key: given[key] for key in ("bos", "eos", "add_bos", "chat_template", "context_length")} == {
        "bos": "1", "eos": "[2, 0]", "add_bos": "false", "chat_template": "{{ messages }}", "context_length": "64",
    }  # fmt: skip
    assert facts(BY_SCORES)["add_bos"] == facts(BYTEWISE | {"tokenizer.ggml.add_bos_token": True})["add_bos"] == "true"
    assert facts(BYTEWISE | {"tokenizer.ggml.pre": "llama-bpe"})["add_bos"] == "true"
    assert "sampling" not in given
    asked = {"temp": 0.6, "min_p": -1.0, "top_k": 40, "penalty_repeat": 1.1, "mirostat": 0}
    told = facts(BYTEWISE | {f"general.sampling.{key}": value for key, value in asked.items()})["sampling"]
    assert json.loads(told) == {"temperature": 0.6, "top_k": 40, "min_p": 0, "repetition_penalty": 1.1}
    with pytest.raises(InvalidModelError, match=r"general.sampling.\*': got no number of top_p"):
        facts(BYTEWISE | {"general.sampling.top_p": "many"})
    assert set(facts({})) == {"format", "architecture", "context_length"}


def test_smollm2_cuts_hard_texts_as_llama_cpp_does() -> None:
    made = Tokenizer.from_str(bn.load(models.fetch("smollm2.gguf")).metadata["tokenizer"])
    rows = json.loads(GOLDEN.read_text())["texts"]
    assert {row["text"]: made.encode(row["text"]).ids for row in rows} == {row["text"]: row["special"] for row in rows}


def test_ends_of_parts_do_not_end_an_answer() -> None:
    """Where a vocabulary has both tokens that end whole ones, as llama.cpp sees it."""
    tokens = ["<|end|>", "<|return|>", "<|call|>", "a"]
    own = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-4o", "tokenizer.ggml.merges": []}
    for kinds, wanted in (([3, 3, 3, 1], [1, 2]), ([3, 3, 1, 1], [0, 1])):
        given = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.array(kinds, np.int32)}
        assert json.loads(facts(own | given)["eos"]) == wanted
