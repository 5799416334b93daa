"""Texts that flow as they are made: to the next node, to the caller, and piece by piece through another flow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from bolt_numba.errors import DTypeError
from bolt_numba.flow import Flow
from bolt_numba.text import Answer, Generator
from tests.text.decoders import whole

pytest.importorskip("tokenizers")
HOW: dict[str, Any] = {"max_tokens": 12}


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    with Generator(whole(tmp_path_factory.mktemp("decoder") / "small.bolt"), threads=1, sequences=2) as made:
        run = made.decoder.run
        made.decoder.run = lambda parts: (time.sleep(0.02), run(parts))[1]  # type: ignore[method-assign]
        yield made


def writing(generator: Generator, outputs: str) -> Flow:
    flow = Flow("texts", inputs="prompt", outputs=outputs, workers=2)
    return flow.function(lambda prompt: generator.submit(prompt, **HOW), "prompt", "pieces", name="write")


def test_the_next_node_reads_a_text_as_it_is_made(generator: Generator) -> None:
    seen = list[bool]()

    def read(pieces: Answer) -> str:
        told = list[str]()
        for piece in pieces:
            seen.append(pieces._ended.is_set())
            told.append(piece.text)
        return "".join(told)

    with writing(generator, "text").function(read, "pieces", "text") as flow:
        tasks = [flow.submit(prompt=prompt) for prompt in ("Once", "The cat", "x")]
        made = [task.result()["text"] for task in tasks]
        assert made == [one.text for one in generator.generate(["Once", "The cat", "x"], **HOW)]
        assert seen.count(False) > len(seen) // 2
        with pytest.raises(DTypeError, match="node 'write': "):
            flow(prompt=3)


def test_pieces_go_through_another_flow(generator: Generator) -> None:
    with writing(generator, "pieces") as flow, Flow("loud", inputs="text", outputs="loud") as loud:
        loud.function(str.upper, "text", "loud", name="upper")
        pieces, done = flow(prompt="Once")["pieces"], list[bool]()
        told = ""
        for result in loud.map(({"text": piece.text} for piece in pieces), ahead=1):
            done.append(pieces._ended.is_set())
            told += result["loud"]
        assert told == generator.generate("Once", **HOW).text.upper()
        assert not all(done[:-1])
