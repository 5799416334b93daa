"""llama.cpp through the C functions of `llama-cpp-python`: tokens, logits, and the rate of its own fastest path."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.types import Array

F32 = 0


class Llama:
    """A GGUF file with a cache for ``sequences`` of ``context`` tokens each.

    plain: f32 caches, no flash attention, weights as they are stored; else what llama.cpp chooses itself.
    """

    def __init__(self, path: Path, threads: int, sequences: int = 1, context: int = 1024, plain: bool = False) -> None:
        self.c: Any = importlib.import_module("llama_cpp")
        self.quiet = self.c.llama_log_callback(lambda *_: None)
        self.c.llama_log_set(self.quiet, None)
        self.c.llama_backend_init()
        loaded = self.c.llama_model_default_params()
        loaded.n_gpu_layers, loaded.use_extra_bufts = 0, not plain
        self.model = self.c.llama_model_load_from_file(str(path).encode(), loaded)
        run = self.c.llama_context_default_params()
        run.n_ctx, run.n_batch, run.n_ubatch = sequences * context, max(512, sequences), 512
        run.n_seq_max, run.kv_unified = sequences, False
        run.n_threads = run.n_threads_batch = threads
        if plain:
            run.flash_attn_type, run.type_k, run.type_v = 0, F32, F32
        self.state = self.c.llama_init_from_model(self.model, run)
        if not self.model or not self.state:
            raise RuntimeError(f"{path.name}: llama.cpp does not load it")
        self.words = self.c.llama_model_get_vocab(self.model)
        self.count = self.c.llama_vocab_n_tokens(self.words)
        self.batch = self.c.llama_batch_init(run.n_batch, 0, 1)
        self.most = run.n_batch

    def ids(self, text: str, special: bool = False) -> list[int]:
        """Tokens of a text.  special: names such as ``<|im_end|>`` are tokens, and what begins a text is added."""
        whole, room = text.encode(), len(text.encode()) + 8
        found = (self.c.llama_token * room)()
        made = self.c.llama_tokenize(self.words, whole, len(whole), found, room, special, special)
        return list(found[:made])

    def ends(self, token: int) -> bool:
        return bool(self.c.llama_vocab_is_eog(self.words, token))

    def forget(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.state), True)

    def logits(self, rows: Sequence[Sequence[int]], at: int, every: bool = False) -> Array:
        """Logits [n, vocab] behind the last token of each row, or behind each token; ``at`` is their first position."""
        size = len(rows[0])
        total = self.batch.n_tokens = len(rows) * size
        for i in range(total):
            row, place = divmod(i, size)
            self.batch.token[i], self.batch.pos[i] = rows[row][place], at + place
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, row
            self.batch.logits[i] = every or place == size - 1
        if self.c.llama_decode(self.state, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        found = self.c.llama_get_logits(self.state)
        return np.ctypeslib.as_array(found, (total if every else len(rows), self.count))

    def greedy(self, rows: Sequence[Sequence[int]]) -> Iterator[Array]:
        """Logits of one greedy step after another; what comes next is their best token."""
        self.forget()
        at, size = 0, len(rows[0])
        for begin in range(0, size, self.most // len(rows)):
            part = [row[begin : begin + self.most // len(rows)] for row in rows]
            made, at = self.logits(part, at), at + len(part[0])
        while True:
            yield made
            made, at = self.logits([[int(token)] for token in made.argmax(1)], at), at + 1

    def perplexity(self, ids: Sequence[int], context: int) -> float:
        """As `bolt_numba.text.Generator.perplexity`: windows that begin in the middle of the last count what is new."""
        found = list[Array]()
        for start in range(0, max(len(ids) - context // 2, 1), context // 2):
            self.forget()
            window, new = ids[start : start + context], context // 2 if start else 1
            for at in range(0, len(window), self.most):
                rows = np.asarray(self.logits([window[at : at + self.most]], at, every=True), np.float64)
                own = np.array(window[at + 1 : at + 1 + len(rows)])
                rows = rows[: len(own)] - rows[: len(own)].max(-1, keepdims=True)
                lost = np.log(np.exp(rows).sum(-1)) - rows[np.arange(len(own)), own]
                found.append(lost[max(new - 1 - at, 0) :])
        return float(np.exp(np.concatenate(found).mean()))

    def close(self) -> None:
        self.c.llama_batch_free(self.batch)
        self.c.llama_free(self.state)
        self.c.llama_model_free(self.model)
