"""Served texts of which some fail, and requests for more texts than anybody makes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from bolt_numba.errors import DataError
from bolt_numba.serve import ModelSettings
from bolt_numba.text.sampling import Sampler
from bolt_numba.types import Array
from tests.serve.serving import Running, running
from tests.serve.test_rest import ask
from tests.text.decoders import whole

pytest.importorskip("tokenizers")
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file = whole(tmp_path_factory.mktemp("decoder") / "small.bolt")
    with running(files={"small": file}, usual=ModelSettings(sequences=2, compile={"threads": 1})) as found:
        yield found


def test_a_text_that_fails_is_told_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Sampler.__call__

    def fail(self: Sampler, logits: Array) -> int:
        if self.settings.seed == 14 and len(self.seen) > 5:
            raise DataError("logits: got 13")
        return take(self, logits)

    monkeypatch.setattr(Sampler, "__call__", fail)
    how = {"max_tokens": 100, "seed": 13, "n": 2, "stream": True, "repetition_penalty": 1.1, "temperature": 1}
    sent = ask(server, COMPLETIONS, {"model": "small", "prompt": "a", **how})[1]
    rows = [json.loads(line.removeprefix(b"data: ")) for line in sent.split(b"\n\n") if line]
    ends = [row["choices"][0]["finish_reason"] for row in rows[:-1]]
    assert {*ends} <= {None, "length", "stop"}  # the other one
    assert len([end for end in ends if end]) == 1
    assert "got 13" in rows[-1]["error"]["message"]
    assert ask(server, COMPLETIONS, {"model": "small", "prompt": "a", "max_tokens": 2})[0] == 200


def test_what_is_refused_takes_no_memory_for_its_texts(server: Running) -> None:
    body = json.dumps({"model": "small", "prompt": [""] * 100_000, "n": 128}).encode()
    tracemalloc.start()
    try:
        status, told, _ = ask(server, COMPLETIONS, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status in (400, 413)
    assert "n, prompt: texts: got 12800000" in told["error"]["message"]
    assert peak < 40 << 20


@pytest.mark.parametrize("prompt", [[1, "a"], [[]], [["a"]], ["a", [1, None]], []])
def test_prompts_are_texts_or_tokens(server: Running, prompt: Any) -> None:
    status, told, _ = ask(server, COMPLETIONS, {"model": "small", "prompt": prompt})
    assert status == 400
    assert told["error"]["param"] == "prompt"
    assert "wanted a text, a list of texts, tokens, or lists of them" in told["error"]["message"]
