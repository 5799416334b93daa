"""`bench.text`: its decoder, its folder for onnxruntime-genai, what a turn measures, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bench import genai, generators, text
from tests import models

SIZES = text.Sizes(layers=2, hidden=64, inner=96, heads=4, groups=2, words=400)
IDS = [[300, 17, 42, 399, 0]]
CLOSE = 0.06
"""What rounding activations may change of logarithms, whose standard deviation is 1."""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "seeded.gguf"
    path.write_bytes(text.seeded(models.fetch("smollm2.gguf"), SIZES))
    return path


def test_the_folder_for_others_computes_what_the_file_does(seeded: Path, tmp_path: Path) -> None:
    """Weights of Q4_0 are whole codes from their middle, so both have the same; activations are rounded to bytes."""
    folder = genai.write(seeded, tmp_path / "folder", 16)
    past = np.zeros((1, 2, 0, 16), np.float32)
    caches = {f"past_key_values.{i}.{part}": past for i in range(SIZES.layers) for part in ("key", "value")}
    asked = {"input_ids": np.array(IDS), "attention_mask": np.ones((1, 5), np.int64), **caches}
    theirs = bn.compile(folder / "model.onnx", threads=1).run(["logits"], asked)[0][0, -1]
    with bn.text.Generator(seeded, context=16, threads=1) as ours:
        found = ours.submit(IDS[0], max_tokens=1, logprobs=20).result()
    assert found.logprobs is not None
    likely = theirs - np.log(np.exp(theirs).sum())
    for token, _, logprob in found.logprobs[0].others:
        assert abs(likely[token] - logprob) < CLOSE


def test_a_step_reads_all_weights_and_a_prompt_multiplies_those_of_layers(seeded: Path) -> None:
    layer = 64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 96
    read = (2 * layer + 400 * 64) // 32 * 18 + 5 * 64 * 4
    assert text.cost(seeded) == (read, 2 * 2 * layer)


@pytest.mark.parametrize(("doing", "each"), [("decode", 0.5), ("prefill", 4.0), ("eight", 0.5 / 8)])
def test_a_turn_leaves_out_the_prompt_of_steps(doing: str, each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes 4 s for a token of a prompt, and half a second for a step."""
    clock, asked = [0.0], set[tuple[int, int]]()

    class Engine:
        def generate(self, prompts: Sequence[Sequence[int]], count: int) -> None:
            asked.add((len(prompts), len(prompts[0])))
            clock[0] += 4.0 * len(prompts[0]) + 0.5 * (count - 1)

    monkeypatch.setattr(generators.time, "perf_counter", lambda: clock[0])
    task = generators.TASKS[doing]
    made = generators.turn(Engine(), task, np.random.default_rng(0), 1.0)
    assert made == {"times": [pytest.approx(each)]}
    assert asked == {(task.sequences, task.tokens)}


def test_the_table() -> None:
    """A step of 100 MB at 100 a second is half of 20 GB/s; 200 MOP at 1000 a second is a fifth of 1000 GOP/s."""
    started = {"first_s": 0.25, "mb": 200.0, "two_mb": 300.0}
    rows: dict[str, dict[str, Any]] = {
        "bolt": {"decode": 100.0, "prefill": 1000.0, "eight": 400.0, **started},
        "other": {"decode": 50.0, "prefill": 500.0, "eight": 50.0, **started},
        "third": {"error": "it does not run"},
    }
    lines = text.table(rows, text.Cost(100_000_000, 200_000_000), 20.0, 1000.0).splitlines()
    assert lines[2:] == [
        "| bolt | 100 | 50 % | 1.00 | 1000 | 20 % | 1.00 | 400 | 4.0 | 0.25 | 200 | 300 |",
        "| other | 50 | 25 % | 0.50 | 500 | 10 % | 0.50 | 50 | 1.0 | 0.25 | 200 | 300 |",
        "| third | it does not run |",
    ]


def test_a_worker_says_what_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing")
    with pytest.raises(RuntimeError, match=r"broken\.gguf: header"):
        text.begin("bolt decode", broken, 1, text.Options())
