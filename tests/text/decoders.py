"""Small decoders of every layout, with weights made at random, and a tokenizer that knows letters and a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba import ops
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.types import F32, I32, I64, Array, Sym, TensorType
from tests.graphs import make

ops.load_all()
HEADS, GROUPS, SIZE, CONTEXT = 4, 2, 8, 128
HIDDEN = HEADS * SIZE


def decoder(layers: int = 2, vocab: int = 300, context: int = CONTEXT, sharp: float = 3.0, seed: int = 0) -> Graph:
    """A graph as the reader of GGUF makes it.  sharp: how far logits lie apart."""
    random = np.random.default_rng(seed)
    weights = lambda *shape: (random.standard_normal(shape) / np.sqrt(shape[-2])).astype(F32)  # noqa: E731
    graph = Graph("decoder")
    b = Builder(graph)
    n, s, r, room = Sym("batch"), Sym("sequence"), Sym("rows"), Sym("room")
    ids = graph.add_input("input_ids", TensorType(I64, (n, s)))
    lengths = graph.add_input("past_lengths", TensorType(I32, (n,)))
    rows = graph.add_input("rows", TensorType(I64, (r,)))
    pasts = [
        graph.add_input(f"past_key_values.{i}.{part}", TensorType(F32, (n, GROUPS, room, SIZE)))
        for i in range(layers) for part in ("key", "value")
    ]  # fmt: skip
    take = make("Gather", axis=0)
    count = b(take, b(make("Shape"), ids), np.array(1))
    steps = b(make("Range"), np.array(0), count, np.array(1))
    places = b(make("Add"), b(make("Cast", to=I64), b(make("Unsqueeze"), lengths, np.array([1]))), steps)
    total = b(make("Cast", to=I32), b(take, b(make("Shape"), pasts[0]), np.array(2))) if pasts else None
    last = b(make("Cast", to=I32), b(make("Sub"), count, np.array(1)))
    valid = b(make("Add"), lengths, last)
    angles = np.outer(np.arange(context + 64), 10000.0 ** (-np.arange(SIZE // 2) / (SIZE // 2)))
    turns = np.cos(angles).astype(F32), np.sin(angles).astype(F32)
    x = b(take, weights(vocab, HIDDEN) * np.float32(np.sqrt(vocab)), ids)
    presents: list[Value] = []
    for i in range(layers):
        normal = _normal(b, x)
        q, k, v = (b(make("MatMul"), normal, weights(HIDDEN, m * SIZE)) for m in (HEADS, GROUPS, GROUPS))
        q, k = (_turned(b, y, m, turns, places) for y, m in ((q, HEADS), (k, GROUPS)))
        attended, *made = b(
            make("GroupQueryAttention", num_heads=HEADS, kv_num_heads=GROUPS),
            q, k, v, pasts[2 * i], pasts[2 * i + 1], valid, total,
        )  # fmt: skip
        presents += made
        x = b(make("Add"), x, b(make("MatMul"), attended, weights(HIDDEN, HIDDEN)))
        inner = b(make("Sigmoid"), b(make("MatMul"), _normal(b, x), weights(HIDDEN, HIDDEN)))
        x = b(make("Add"), x, b(make("MatMul"), inner, weights(HIDDEN, HIDDEN)))
    flat = b(take, b(make("Reshape"), x, np.array([-1, HIDDEN])), rows)
    graph.add_output(b(make("MatMul"), _normal(b, flat), weights(HIDDEN, vocab) * np.float32(sharp)), "logits")
    for i, present in enumerate(presents):
        graph.add_output(present, f"present.{i // 2}.{('key', 'value')[i % 2]}")
    return graph


def _normal(b: Builder, x: Value) -> Value:
    made: Value = b(make("RMSNormalization", axis=-1, epsilon=1e-5), x, np.ones(HIDDEN, F32))
    return made


def _turned(b: Builder, x: Value, heads: int, turns: tuple[Array, Array], places: Value) -> Any:
    split = b(make("Reshape"), x, np.array([0, 0, heads, SIZE]))
    turned = b(make("RotaryEmbedding", layout="SHD"), split, *turns, places)
    return b(make("Reshape"), turned, np.array([0, 0, heads * SIZE]))


BEGIN, END = "<s>", "</s>"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"

CALLING = (
    "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.parameters | default({}) | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ c.function.name }} {{ c.function.arguments | tojson }}\n</tool_call>{% endfor %}{{ '\n' }}{% endfor %}"
    "assistant:"
)
"""As those of Hermes and Qwen, which name functions."""


def tokenizer() -> str:
    """A tokenizer of bytes, 0 to 255, and of two words that begin and end texts."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    own.decoder = decoders.ByteLevel()
    own.add_special_tokens([AddedToken(word, special=True) for word in (BEGIN, END)])
    made: str = own.to_str()
    return made


def whole(path: Path, template: str = TEMPLATE, context: int = CONTEXT, **options: Any) -> Path:
    """A file as one of GGUF is when it was read."""
    graph = decoder(context=context, **options)
    graph.metadata |= {
        "format": "gguf", "context_length": str(context), "tokenizer": tokenizer(), "bos": "256", "eos": "[257]",
        "add_bos": "false", "chat_template": template,
    }  # fmt: skip
    bn.save(graph, path)
    return path


def logits_of(session: Any, tokens: list[int]) -> Array:
    """Logits of all tokens, of one run without a past."""
    count = len(tokens)
    caches = {s.name: np.zeros((1, GROUPS, count + 1, SIZE), "f4") for s in session.inputs if "past_key" in s.name}
    feeds = {"input_ids": np.array([tokens]), "past_lengths": np.zeros(1, "i4"), "rows": np.arange(count), **caches}
    made: Array = session(feeds)["logits"]
    return made


def greedy(session: Any, tokens: list[int], count: int) -> list[int]:
    made = list(tokens)
    for _ in range(count):
        made.append(int(logits_of(session, made)[-1].argmax()))
        if made[-1] == 257:
            break
    return made[len(tokens) :]
