"""How fast a generator makes texts, and what its steps read."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.errors import OptionError
from bolt_numba.base.options import count_of, options_of
from bolt_numba.base.records import record
from bolt_numba.ir.graph import Graph
from bolt_numba.text.generator import Generator

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords

BEGIN, STEPS = 16, 32
"""Tokens of a prompt whose steps are measured, and the steps."""
FIRST_TOKEN = 300
"""The first that prompts are drawn from, where there are more: those before may have a meaning of their own."""


@record(frozen=True)
class Rates:
    """Tokens a second: of a prompt of ``prompt_tokens``, of one sequence, of ``sequences`` at once, all together.

    step_mb: MB of weights that a step reads.
    """

    threads: int
    prompt_tokens: int
    sequences: int
    prompt: float
    one: float
    together: float
    step_mb: float

    @property
    def read_gbs(self) -> float:
        """GB/s that steps of one sequence read."""
        return self.one * self.step_mb / 1e3


def rates(
    model: str | os.PathLike[str], *, sequences: int = 8, context: int = 640, seconds: float = 3.0,
    **options: Unpack[OptionKeywords],
) -> Rates:  # fmt: skip
    """Measure a model.  A prompt has four fifths of the context; seconds: of all measurements together.

    Takes models and options as `Generator`, one thread where nothing is said, and raises as that does.
    """
    how: dict[str, Any] = {"threads": 1, "stand_ins": False, **options}
    threads = options_of("rates", how).thread_count
    count_of("sequences", sequences)
    joined = sequences + 1  # prompts are computed one by one, between steps
    if count_of("context", context) < (least := BEGIN + joined + STEPS):
        raise OptionError(f"context: got {context}, wanted at least {least}, which are measured")
    length = context * 4 // 5
    with Generator(model, sequences=sequences, context=context, **how) as made:
        tasks = {
            "prompt": (1, length, 0, 1), "one": (1, BEGIN, 1, 1 + STEPS),
            "together": (sequences, BEGIN, joined, joined + STEPS),
        }  # fmt: skip
        spent: dict[str, list[float]] = {name: [] for name in tasks}
        draw = np.random.default_rng(0)
        for count, tokens, _, many in tasks.values():  # what is done once for each size is no part of a rate
            go_on(made, prompts_of(made, draw, count, tokens), many)
        end = time.perf_counter() + seconds
        while not spent["together"] or time.perf_counter() < end:
            for name, (count, tokens, few, many) in tasks.items():
                took = [_seconds(made, prompts_of(made, draw, count, tokens), most) for most in (few, many) if most]
                spent[name].append((took[-1] - sum(took[:-1])) / (count * (many - few) if few else tokens))
        mb = step_bytes(made.session.graph) / 1e6
    found = {name: 1 / statistics.median(times) for name, times in spent.items()}
    return Rates(threads, length, sequences, **found, step_mb=mb)


def prompts_of(generator: Generator, draw: np.random.Generator, count: int, tokens: int) -> list[list[int]]:
    """So many prompts of tokens drawn at random, so that none begins as another."""
    most = generator.tokenizer.get_vocab_size()
    drawn: list[list[int]] = draw.integers(min(FIRST_TOKEN, most // 2), most, (count, tokens)).tolist()
    return drawn


def go_on(generator: Generator, prompts: Sequence[list[int]], count: int) -> None:
    """Make exactly so many tokens behind each prompt: none that ends a text is taken for its end."""
    batch = generator._batch
    ends, batch.ends = batch.ends, frozenset()
    try:
        for answer in [generator.submit(prompt, max_tokens=count) for prompt in prompts]:
            answer.result()
    finally:
        batch.ends = ends


def _seconds(generator: Generator, prompts: Sequence[list[int]], count: int) -> float:
    start = time.perf_counter()
    go_on(generator, prompts, count)
    return time.perf_counter() - start


def step_bytes(graph: Graph) -> int:
    """Bytes of all weights but those of which only rows are read."""
    read = {id(array): array.nbytes for array in graph.weights()}
    for value in graph.constants():
        read.pop(id(value.const), None)
    for node in (node for node in graph.nodes if not node.op.name.startswith("Gather")):
        read |= {id(value.const): value.const.nbytes for value in node.inputs if value and value.const is not None}
    return sum(read.values())
