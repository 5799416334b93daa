"""Folders of encoders and decoders as Optimum lays them out, with small seeded weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto as T

from bench.decoders import HEADS, HIDDEN, SIZE, WORDS, Writer, _heads, _layer_norm, model, value
from tests.text.decoders import tokenizer

LAYERS, START, END = 2, 5, 6
MERGED, PAIR, ALONE = "merged", "pair", "alone"
SIDES = [f"{i}.{side}.{part}" for i in range(LAYERS) for side in ("decoder", "encoder") for part in ("key", "value")]


def folder(path: Path, kind: str, **said: Any) -> Path:
    """kind: how its decoder is stored.  said: beside the usual settings."""
    path.mkdir(exist_ok=True)
    networks = {"encoder_model": encoder()}
    if kind == MERGED:
        networks["decoder_model_merged"] = merged()
    else:
        networks["decoder_model"] = decoder(True)
    if kind == PAIR:
        networks["decoder_with_past_model"] = decoder(False)
    for name, data in networks.items():
        (path / f"{name}.onnx").write_bytes(data)
    own = {"decoder_start_token_id": START, "eos_token_id": END, "max_length": 12, "num_beams": 3, **said}
    (path / "generation_config.json").write_text(json.dumps(own))
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 64, "num_beams": 1}))
    (path / "tokenizer.json").write_text(tokenizer())
    return path


def encoder() -> bytes:
    b = Writer()
    x = b("Gather", b.weights("words", WORDS, HIDDEN), "input_ids")
    kept = b("Unsqueeze", b("Cast", "attention_mask", to=T.FLOAT), b.const("last", np.array([2])))
    mixed = b("Relu", b("MatMul", b("Mul", x, kept), b.weights("mix", HIDDEN, HIDDEN)))
    b("Mul", mixed, b.const("loud", np.float32(6)), outs=["last_hidden_state"])
    inputs = [value(name, ["b", "s"], T.INT64) for name in ("input_ids", "attention_mask")]
    return model(b.graph(inputs, [value("last_hidden_state", ["b", "s", HIDDEN])]))


def body(b: Writer, is_first: bool, before: str = "") -> list[str]:
    """A decoder of Whisper's type; what it gives: logits, and keys and values of both sides or of its own."""
    b.random = np.random.default_rng(1)
    made = [f"{before}logits"]
    loud = b.const("loud", np.float32(8))
    x = b("Mul", b("Gather", b.weights("words", WORDS, HIDDEN), "input_ids"), loud)
    for i in range(LAYERS):
        for side in ("decoder", "encoder"):
            normal, of_encoder = _layer_norm(b, x), side == "encoder"
            q = b("MatMul", normal, b.weights(f"q{i}{side}", HIDDEN, HIDDEN))
            pair = []
            for part in ("key", "value"):
                past, present = (f"past_key_values.{i}.{side}.{part}", f"{before}present.{i}.{side}.{part}")
                weights = b.weights(f"{part}{i}{side}", HIDDEN, HIDDEN)
                if of_encoder and not is_first:
                    pair.append(past)
                    continue
                new = _heads(b, b("MatMul", "encoder_hidden_states" if of_encoder else normal, weights))
                pair.append(
                    b("Identity", new, outs=[present]) if is_first else b("Concat", past, new, axis=2, outs=[present])
                )
                made.append(present)
            x = b("Add", x, attended(b, f"o{i}{side}", q, *pair, causal=is_first and not of_encoder))
    b("MatMul", _layer_norm(b, x), b.weights("head", HIDDEN, WORDS), outs=[made[0]])
    return made


def attended(b: Writer, name: str, q: str, k: str, v: str, causal: bool) -> str:
    """Attention and the product behind it.  q: [b, s, hidden]; k, v: [b, heads, t, size]."""
    q = b("Mul", _heads(b, q), b.const("root", np.float32(SIZE**-0.5)))
    scores = b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2]))
    if causal:
        far = b("Expand", b.const("far", np.float32(-1e9)), b("Shape", scores))
        scores = b("Add", scores, b("Trilu", far, b.const("above", np.array(1)), upper=1))
    rows = b("Transpose", b("MatMul", b("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = b("Reshape", rows, b.const("join", np.array([0, 0, HIDDEN])))
    made: str = b("MatMul", joined, b.weights(name, HIDDEN, HIDDEN))
    return made


def given(pasts: bool, hidden: bool = True) -> list[Any]:
    inputs = [value("input_ids", ["b", "s"], T.INT64), value("encoder_attention_mask", ["b", "e"], T.INT64)]
    inputs += [value("encoder_hidden_states", ["b", "e", HIDDEN])] if hidden else []
    rooms = {"decoder": "p", "encoder": "e"}
    if pasts:
        inputs += [value(f"past_key_values.{n}", ["b", HEADS, rooms[n.split(".")[1]], SIZE]) for n in SIDES]
    return inputs


def decoder(is_first: bool) -> bytes:
    b = Writer()
    made = body(b, is_first)
    return model(b.graph(given(not is_first, is_first), [value(name, None) for name in made]))


def merged() -> bytes:
    """Both in one; the branch with a past gives something without use for the keys and values of the encoder."""
    outer, branches, names = Writer(), [], ["logits", *(f"present.{name}" for name in SIDES)]
    for is_first in (True, False):
        b = Writer()
        made = {name.split(".", 1)[1] for name in body(b, is_first, f"{is_first}.")}
        for name in names:
            if name not in made:
                b("Identity", b.const("none", np.zeros((0, HEADS, 1, SIZE), np.float32)), outs=[f"{is_first}.{name}"])
        outer.constants |= b.constants
        b.constants = {}
        branches.append(b.graph([], [value(f"{is_first}.{name}", None) for name in names], f"first_{is_first}"))
    outer("If", "use_cache_branch", outs=names, then_branch=branches[1], else_branch=branches[0])
    inputs = [*given(True), value("use_cache_branch", [1], T.BOOL)]
    return model(outer.graph(inputs, [value(name, None) for name in names]))
