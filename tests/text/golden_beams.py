"""Writes tests/golden/text/beams.json: what `generate` of transformers makes of models that are tables.

    python -m tests.text.golden_beams        # with torch and transformers

The logits of a token depend on the one before, on the position and on the source text, so that the tests have them
without either package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.types import Array

FILE = Path(__file__).parent.parent / "golden" / "text" / "beams.json"
WORDS, LONGEST, END, START = 12, 10, 0, 1
CASES: list[dict[str, Any]] = [
    {"num_beams": beams, "length_penalty": penalty, "early_stopping": early}
    for beams in (1, 2, 4) for penalty in (0.0, 1.0, 2.0, -1.0) for early in (False, True, "never")
] + [
    {"num_beams": 4, "no_repeat_ngram_size": 2}, {"num_beams": 1, "no_repeat_ngram_size": 1},
    {"num_beams": 3, "forced_eos_token_id": END, "bad_words_ids": [[3], [5]]},
    {"num_beams": 3, "forced_bos_token_id": 4},
    {"num_beams": 2, "suppress_tokens": [2, 3], "begin_suppress_tokens": [6, 0]},
    {"num_beams": 3, "forced_bos_token_id": 4, "begin_suppress_tokens": [5, 7]},
    {"num_beams": 4, "eos_token_id": [END, 7]}, {"num_beams": 3, "min_length": 5}, {"num_beams": 1, "min_length": 7},
]  # fmt: skip
SEEDS = 6
PROMPT, SEVERAL = [1, 5, 2], [
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": penalty, "early_stopping": early}
    for penalty in (1.0, -1.0) for early in (False, True, "never")
]  # fmt: skip
"""A longer beginning, of which the likeliest texts are wanted, each without it."""


def table(seed: int) -> tuple[Array, Array]:
    """Logits by the token before, and by the position."""
    random = np.random.default_rng(seed)
    return (
        random.standard_normal((WORDS, WORDS)).astype(np.float32) * 2,
        random.standard_normal((LONGEST + 1, WORDS)).astype(np.float32),
    )


def logits(tables: tuple[Array, Array], last: Any, position: int) -> Array:
    """[texts, vocabulary] behind tokens at a position, counted from 0."""
    return np.asarray(tables[0][last] + tables[1][position])


def main() -> None:
    import torch
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
    from transformers.generation import GenerationMixin
    from transformers.modeling_outputs import CausalLMOutput

    class TableModel(PreTrainedModel, GenerationMixin):
        config_class = PretrainedConfig
        main_input_name = "input_ids"

        def __init__(self, config: PretrainedConfig, tables: tuple[Array, Array]) -> None:
            super().__init__(config)
            self.tables = [torch.nn.Parameter(torch.tensor(t), requires_grad=False) for t in tables]
            self.held = torch.nn.Parameter(torch.zeros(1))

        def prepare_inputs_for_generation(self, input_ids: Any, **_: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

        def forward(self, input_ids: Any, **_: Any) -> CausalLMOutput:
            return CausalLMOutput(logits=(self.tables[0][input_ids] + self.tables[1][: input_ids.shape[1]]))

    rows = []
    for case in CASES:
        for seed in range(SEEDS):
            model = TableModel(PretrainedConfig(vocab_size=WORDS), table(seed))
            common = {"eos_token_id": END, "pad_token_id": 2, "max_length": LONGEST, "use_cache": False, **case}
            made = model.generate(torch.tensor([[START]]), generation_config=GenerationConfig(**common))
            rows.append({"seed": seed, "settings": case, "tokens": made[0].tolist()[1:]})
    for case in SEVERAL:
        for seed in range(SEEDS):
            model = TableModel(PretrainedConfig(vocab_size=WORDS), table(seed))
            common = {"eos_token_id": END, "pad_token_id": 2, "max_length": LONGEST, "use_cache": False, **case}
            made = model.generate(torch.tensor([PROMPT]), generation_config=GenerationConfig(**common))
            rows.append({"seed": seed, "settings": case, "texts": [row[len(PROMPT) :] for row in made.tolist()]})
    FILE.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
