"""Folders of decoders: their texts are what onnxruntime makes of the same networks, run over all tokens at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.decoders import GROUPS
from bench.decoders import SIZE as WIDTH
from bolt_numba.cli.serving import repository_of
from bolt_numba.serve import ModelSettings
from bolt_numba.text import Generator
from bolt_numba.text.decoders import GrowingDecoder, MaskedDecoder
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
