"""What llama.cpp computes of the small decoders of `gguf_files`: logits behind the last tokens, written to a file.

It needs llama-cpp-python: python -m tests.converters.gguf_golden
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench.llama_cpp import Llama
from tests.gguf_files import FAMILIES, IDS, LLAMA_CPP, SHOWN, VOCABULARY


def main() -> None:
    found = {}
    for name, tiny in FAMILIES.items():
        tiny.extra = {"tokenizer.ggml.model": "no_vocab", f"{tiny.arch}.vocab_size": VOCABULARY}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "m.gguf")
            path.write_bytes(tiny.data())
            model = Llama(path, 1, context=64, plain=True)
            made = model.logits([IDS[0].tolist()], 0, every=True)[-SHOWN:]
            found[name] = [[round(float(x), 5) for x in row] for row in made]
            model.close()
    LLAMA_CPP.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
