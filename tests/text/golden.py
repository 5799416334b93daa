"""Fills `tests/golden/text/smollm2.json`: what llama.cpp makes of SmolLM2, as `tests/golden/README.md` describes it.

A new prompt is a row with its ``text`` or its ``messages``, a new text for the tokenizer one with its ``text``.
It needs llama-cpp-python and jinja2: python -m tests.text.golden SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import importlib.metadata
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.llama_cpp import Llama
from bolt_numba.converters.gguf.container import read_container

WHERE = Path(__file__).parents[1] / "golden" / "text" / "smollm2.json"
STEPS, FIRST, DIGITS = 200, 5, 6


def played(llama: Llama, ids: list[int]) -> dict[str, Any]:
    """Greedy tokens to the first that ends, the gap between the best two logits of each, and the first's best."""
    tokens: list[int] = []
    gaps: list[float] = []
    first: list[list[float]] = []
    for made in llama.greedy([ids]):
        best = np.argsort(made[0])[::-1][:FIRST]
        first = first or [[int(i), float(f"{made[0, i]:.{DIGITS}g}")] for i in best]
        tokens.append(int(made[0].argmax()))
        gaps.append(float(f"{made[0, best[0]] - made[0, best[1]]:.3g}"))
        if len(tokens) == STEPS or llama.ends(tokens[-1]):
            return {"tokens": tokens, "gaps": gaps, "first": first}
    raise AssertionError


def floats(model: Path, to: Path) -> Path:
    """The model with its weights as f32, which llama.cpp multiplies by activations in f32."""
    c: Any = importlib.import_module("llama_cpp")
    wanted = c.llama_model_quantize_default_params()
    wanted.ftype, wanted.allow_requantize, wanted.nthread = 0, True, 1
    if c.llama_model_quantize(str(model).encode(), str(to).encode(), ctypes.byref(wanted)) != 0:
        raise RuntimeError(f"{model.name}: llama.cpp does not write it as f32")
    return to


def fill(prompts: list[dict[str, Any]], texts: list[dict[str, Any]], model: Path) -> str:
    """What the rows have besides text and messages; what llama.cpp was compiled for."""
    template = importlib.import_module("jinja2").Template(
        read_container(model.read_bytes(), model.name).text("tokenizer.chat_template")
    )
    llama = Llama(model, 1, plain=True)
    for row in texts:
        row |= {"ids": llama.ids(row["text"]), "special": llama.ids(row["text"], special=True)}
    with tempfile.TemporaryDirectory() as scratch:
        other = Llama(floats(model, Path(scratch, "f32.gguf")), 1, plain=True)
        for row in prompts:
            if "messages" in row:
                row["text"] = template.render(messages=row["messages"], add_generation_prompt=True)
            row["ids"] = llama.ids(row["text"], special=True)
            row |= {"bytes": played(llama, row["ids"]), "floats": played(other, row["ids"])}
    return str(llama.c.llama_print_system_info().decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    model = parser.parse_args().model
    stored = json.loads(WHERE.read_text(encoding="utf-8"))
    system = fill(stored["prompts"], stored["texts"], model)
    stored["made"] = {
        "file": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest(), "system": system,
        "llama-cpp-python": importlib.metadata.version("llama-cpp-python"),
    }  # fmt: skip
    rows = {name: ",\n".join(map(json.dumps, stored[name])) for name in ("prompts", "texts")}
    parts = [f'"made": {json.dumps(stored["made"])}', *(f'"{name}": [\n{text}\n]' for name, text in rows.items())]
    WHERE.write_text("{" + ", ".join(parts) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
