"""Folders of decoders: their texts are what onnxruntime makes of the same networks, run over all tokens at once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.decoders import GROUPS
from bench.decoders import SIZE as WIDTH
from bolt_numba.cli.app import run
from bolt_numba.cli.console import plain
from bolt_numba.cli.serving import repository_of
from bolt_numba.errors import InvalidModelError
from bolt_numba.serve import ModelSettings
from bolt_numba.text import Generator
from bolt_numba.text.decoders import GrowingDecoder, MaskedDecoder
from bolt_numba.text.opened import layout_beside
from tests.serve.serving import running
from tests.serve.test_rest import ask
from tests.text.exported_decoders import HEADS, genai, optimum

pytest.importorskip("tokenizers")
onnxruntime = pytest.importorskip("onnxruntime")
PROMPTS = ["Once upon a time", "x", "The train is late, and the cat sleeps."]


def greedy(file: Path, heads: int, tokens: list[int], count: int) -> list[int]:
    """Tokens by onnxruntime, which begins anew for each."""
    session = onnxruntime.InferenceSession(file)
    made = list(tokens)
    for _ in range(count):
        ids = np.array([made])
        known: dict[str, Any] = {
            "input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(made))[None],
            "use_cache_branch": np.array([False]),
        }  # fmt: skip
        empty = np.zeros((1, heads, 0, WIDTH), "f4")
        logits = session.run(["logits"], {x.name: known.get(x.name, empty) for x in session.get_inputs()})[0]
        made.append(int(logits[0, -1].argmax()))
        if made[-1] in (257, 258):
            break
    return made[len(tokens) :]


FOLDERS: dict[str, tuple[Callable[[Path], Path], str, int, type]] = {
    "genai": (genai, "decoder.onnx", GROUPS, MaskedDecoder),
    "optimum": (optimum, "model.onnx", HEADS, GrowingDecoder),
    "merged": (lambda path: optimum(path, True), "decoder_model_merged.onnx", HEADS, GrowingDecoder),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_greedy_tokens_are_onnxruntimes(kind: str, tmp_path: Path) -> None:
    make, name, heads, layout = FOLDERS[kind]
    folder = make(tmp_path / kind)
    with Generator(folder, sequences=2, context=200, threads=1, look_up=True) as generator:
        assert type(generator.decoder) is layout
        wanted = [greedy(folder / name, heads, generator.tokens(prompt), 12) for prompt in PROMPTS]
        made = generator.generate(PROMPTS, max_tokens=12)
        assert [each.tokens for each in made] == wanted
        again = generator.generate(PROMPTS[2] + " And so", max_tokens=12)  # a past that is cut behind what it shares
        assert again.reused_tokens >= len(PROMPTS[2])
        assert again.tokens == greedy(folder / name, heads, generator.tokens(PROMPTS[2] + " And so"), 12)
        chat = generator.chat([{"role": "user", "content": "Hi"}], max_tokens=3)
        assert chat.prompt_tokens == len("user: Hi\nassistant:")


@pytest.mark.parametrize(("kind", "asked", "usual"), [
    ("genai", {"do_sample": False, "temperature": 0.6, "top_k": 1, "min_length": 0}, {"temperature": 0, "top_k": 1}),
    ("genai", {"do_sample": True, "top_p": 0.9}, {"temperature": 1.0, "top_k": 50, "top_p": 0.9}),
    ("optimum", {"temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ("optimum", {"do_sample": True, "top_k": 20, "temperature": 0.6, "max_new_tokens": 9, "min_new_tokens": 2},
     {"temperature": 0.6, "top_k": 20, "top_p": 1.0, "max_tokens": 9, "min_tokens": 2}),
])  # fmt: skip
def test_models_say_how_texts_are_made(kind: str, asked: Any, usual: Any, tmp_path: Path) -> None:
    make, name, _, _ = FOLDERS[kind]
    assert layout_beside(said(make(tmp_path), kind, asked) / name).usual == usual


def said(folder: Path, kind: str, asked: Any) -> Path:
    """A folder whose file of settings asks for something."""
    path = folder / ("genai_config.json" if kind == "genai" else "generation_config.json")
    own = json.loads(path.read_text())
    path.write_text(json.dumps(own | ({"search": asked} if kind == "genai" else asked)))
    return folder


@pytest.mark.parametrize(("asked", "told"), [
    ({"top_p": 7}, "generation_config.json: top_p: got 7"), ({"max_length": "x"}, "max_length: got 'x'"),
    ({"do_sample": True, "temperature": [1]}, "generation_config.json: temperature: got"),
])  # fmt: skip
def test_what_models_cannot_ask_for(asked: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=re.escape(told)):
        layout_beside(said(optimum(tmp_path), "optimum", asked) / "model.onnx")


def test_settings_go_before_what_a_model_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"do_sample": True, "temperature": 5.0, "top_k": 0, "max_length": 12 + len(PROMPTS[0])}
    said(optimum(tmp_path), "optimum", asked)
    with Generator(tmp_path, context=200, threads=1) as made:
        assert "usual={'temperature': 5.0, 'top_k': 0, 'top_p': 1.0}" in repr(made)
        likeliest = greedy(tmp_path / "model.onnx", HEADS, made.tokens(PROMPTS[0]), 12)
        drawn = [made.generate(PROMPTS[0], seed=seed).tokens for seed in range(4)]
        assert {tuple(one) for one in drawn} != {tuple(likeliest)}
        assert max(map(len, drawn)) == 12
        assert made.generate(PROMPTS[0], temperature=0).tokens == likeliest
        assert len(made.generate(PROMPTS[0], temperature=0, max_tokens=14).tokens) in (14, len(likeliest))
        written = [made.generate(PROMPTS[0], seed=seed, max_tokens=12).text for seed in range(2)]
        text = made.generate(PROMPTS[0], temperature=0, max_tokens=12).text
    for how, wanted in (["--seed", "0"], written[0]), (["--seed", "1"], written[1]), (["--greedy"], text):
        asked = ["generate", str(tmp_path), PROMPTS[0], "--max-tokens", "12", "--context", "200", "--threads", "1"]
        assert run([*asked, *how]) == 0
        assert capsys.readouterr().out == plain(wanted) + "\n"


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_of_few_bits_cost_perplexity(
    bits: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    own, text = optimum(tmp_path / "own") / "model.onnx", tmp_path / "page.txt"
    text.write_text(" ".join(PROMPTS))
    target = tmp_path / "narrow.onnx"
    asked = ["quantize", str(own), "--weights-only", str(bits), "--threads", "1", "-o", str(target)]
    assert run([*asked, "--perplexity", str(text), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    before, after = (told["perplexity"][when] for when in ("before", "after"))
    assert told["bytes"] < own.stat().st_size / (3 if bits == 8 else 4)
    for wanted in (before, after):
        with Generator(own, threads=1) as made:
            assert made.perplexity(text.read_text()) == pytest.approx(wanted, rel=1e-6)
        shutil.copy(target, own)
    optimum(tmp_path / "own")
    assert 0 < abs(after / before - 1) < (0.05 if bits == 8 else 0.6)
    assert run([*asked, "--perplexity", str(text)]) == 0
    assert f"perplexity: {before:.4f} before, {after:.4f} after" in capsys.readouterr().out
    assert run(["quantize", str(own), "--perplexity", str(text)]) == 2


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_are_served(kind: str, tmp_path: Path) -> None:
    make, name, _, _ = FOLDERS[kind]
    (tmp_path / "served" / "mine").mkdir(parents=True)
    folder = make(tmp_path / "served" / "mine" / "1")
    asked = {"model": "mine", "prompt": PROMPTS, "max_tokens": 6, "temperature": 0}
    with Generator(folder, context=200, threads=1) as generator:
        wanted = [made.text for made in generator.generate(PROMPTS, max_tokens=6)]
    usual = ModelSettings(sequences=2, context=200, compile={"threads": 1})
    assert repository_of([folder], usual).files == {"1": folder / name}
    with running(tmp_path / "served", usual=usual) as server:
        status, told, _ = ask(server, "/v1/completions", asked)
    assert (status, [choice["text"] for choice in told["choices"]]) == (200, wanted), told
