"""Translators find what a search finds that computes all tokens in each step, by onnxruntime."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.cli.app import run
from bolt_numba.cli.console import plain as plainly
from bolt_numba.errors import DataError, DTypeError, InvalidModelError, OptionError
from bolt_numba.text.beams import BeamSearch, BeamSettings
from tests.text.translators import ALONE, END, MERGED, PAIR, START, folder

pytest.importorskip("tokenizers")
TEXTS = ["The train is late.", "a"]


@pytest.fixture(scope="module", params=[MERGED, PAIR, ALONE])
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return bn.text.Translator(folder(tmp_path_factory.mktemp("model") / request.param, request.param), threads=1)


def plain(path: Path, feeds: dict[str, Any], settings: BeamSettings) -> BeamSearch:
    """A search whose runs know nothing of earlier ones."""
    onnxruntime = pytest.importorskip("onnxruntime")
    encoder, decoder = (onnxruntime.InferenceSession(path / f"{name}_model.onnx") for name in ("encoder", "decoder"))
    (hidden,) = encoder.run(None, feeds)
    beams = BeamSearch(settings, [START], [END])
    while not beams.is_done:
        count = len(beams.tokens)
        given = {
            "input_ids": np.array(beams.tokens), "encoder_hidden_states": np.repeat(hidden, count, 0),
            "encoder_attention_mask": np.ones((count, hidden.shape[1]), np.int64),
        }  # fmt: skip
        names = {i.name for i in decoder.get_inputs()}
        beams.step(decoder.run(["logits"], {k: v for k, v in given.items() if k in names})[0][:, -1])
    return beams


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 1},
        {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0},
        {"no_repeat_ngram_size": 2},
    ],
)
def test_it_finds_what_a_plain_search_finds(translator: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    path = folder(tmp_path / "plain", ALONE)
    for text in TEXTS:
        ids = translator.tokenizer.rows([(text,)])[0].ids[None].astype(np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        wanted = plain(path, feeds, BeamSettings(**{"max_tokens": 11, "num_beams": 3} | settings)).results()[0]
        found = translator.translate(text, **settings)
        assert found.tokens == wanted[1]
        assert found.score == pytest.approx(wanted[0], abs=1e-4)
        assert found.text == translator.tokenizer.own.decode(found.tokens)
        assert translator.translate(feeds, **settings).tokens == found.tokens
    assert [one.tokens for one in translator.translate(TEXTS, **settings)][-1] == found.tokens


def test_a_text_may_begin_with_other_tokens(translator: Any) -> None:
    whole = translator.translate(TEXTS[0], num_beams=1, max_tokens=6).tokens
    assert translator.translate(TEXTS[0], [START, *whole[:2]], num_beams=1, max_tokens=4).tokens == whole[2:]


def test_the_length_that_files_say_counts_what_comes_first(translator: Any, tmp_path: Path) -> None:
    assert len(translator.translate(TEXTS[0], num_beams=1, min_tokens=99).tokens) == 12 - 1
    begun = translator.translate(TEXTS[0], [START, *[7] * 4], num_beams=1, min_tokens=99)
    assert len(begun.tokens) == 12 - 5
    plain = bn.text.Translator(folder(tmp_path / "model", PAIR, max_length=None))
    assert plain.settings["max_tokens"] == 20  # transformers makes as many where nobody says


def test_sizes_are_what_the_file_calls_alike(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A merged decoder names the length of what was encoded in several inputs, of which the first run has none."""
    with caplog.at_level("INFO"):
        bn.text.Translator(folder(tmp_path / "model", MERGED), threads=1).translate(TEXTS[0])
    assert "dimension" not in caplog.text


def test_a_command_translates(
    translator: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["translate", str(translator.folder), "--threads", "1"]
    assert run([*command, TEXTS[0]]) == 0
    assert capsys.readouterr().out == plainly(translator.translate(TEXTS[0]).text) + "\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n\n".join(TEXTS).encode())))
    assert run([*command, "-", "--beams", "2", "--max-tokens", "4"]) == 0
    first, last = (plainly(one.text) for one in translator.translate(TEXTS, num_beams=2, max_tokens=4))
    assert capsys.readouterr().out == f"{first}\n\n{last}\n"
    assert run([*command, "x" * 100]) == 1
    assert "wanted at most" in capsys.readouterr().err


def test_what_cannot_be_is_told(translator: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="num_beams"):
        translator.translate("a", num_beams=0)
    with pytest.raises(OptionError, match="beams"):
        translator.translate("a", beams=2)
    with pytest.raises(OptionError, match="begin"):
        translator.translate("a", ["x"])
    with pytest.raises(OptionError, match="never"):
        translator.translate("a", never=[5000])
    with pytest.raises(OptionError, match="at_first"):
        translator.translate("a", at_first=["x"])
    with pytest.raises(DTypeError, match="source"):
        translator.translate(3)
    with pytest.raises(DataError, match="more tokens than 64"):
        translator.translate("a b " * 100)
    with pytest.raises(InvalidModelError, match="no model"):
        bn.text.Translator(tmp_path)
    with pytest.raises(DTypeError, match="model"):
        bn.text.Translator(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"repetition_penalty": 1.3}, "repetition_penalty"), ({"decoder_start_token_id": None}, "decoder_start"),
        ({"eos_token_id": "x"}, "eos_token_id"), ({"bad_words_ids": [[1, 2]]}, "bad_words_ids"),
        ({"suppress_tokens": 3}, "never"), ({"begin_suppress_tokens": [2**40]}, "at_first"),
        ({"decoder_start_token_id": 2**40}, "decoder_start"), ({"max_length": "long"}, "max_length"),
        ({"num_beams": -3}, "num_beams"),
    ],
)  # fmt: skip
def test_settings_of_files_are_held_to_what_they_can_be(said: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidModelError, OptionError), match=told):
        bn.text.Translator(folder(tmp_path / "model", PAIR, **said))
