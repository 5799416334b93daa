"""Folders of decoders as onnxruntime-genai and Optimum lay them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto as T

from bench.decoders import GROUPS, LONGEST, SIZE, Writer, llama, model, value
from tests.text.decoders import END, TEMPLATE, tokenizer

HEADS, WORDS, LAYERS = 2, 300, 2
HIDDEN = HEADS * SIZE
PARTS = [f"{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]


def genai(path: Path, **changed: Any) -> Path:
    """A folder of onnxruntime-genai, whose caches are shared between past and present."""
    names = {f"{kind}_{part}_names": f"{kind}.%d.{part}" for kind in ("past", "present") for part in ("key", "value")}
    ins, outs = ({k: v for k, v in names.items() if k.startswith(kind)} for kind in ("past", "present"))
    decoder = {
        "filename": "decoder.onnx", "num_hidden_layers": 4, "num_key_value_heads": GROUPS, "head_size": SIZE,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **ins},
        "outputs": {"logits": "logits", **outs},
    }  # fmt: skip
    own = {"model": {"context_length": LONGEST, "eos_token_id": 257, "decoder": decoder, **changed}}
    path.mkdir(exist_ok=True)
    (path / "decoder.onnx").write_bytes(llama())
    return _folder(path, {"genai_config.json": own})


def optimum(path: Path, merged: bool = False) -> Path:
    """A folder of Optimum, whose past grows; merged: with a branch for the first run."""
    path.mkdir(exist_ok=True)
    (path / ("decoder_model_merged.onnx" if merged else "model.onnx")).write_bytes(growing(merged))
    said = {"max_position_embeddings": LONGEST, "eos_token_id": 5}
    return _folder(path, {"config.json": said, "generation_config.json": {"eos_token_id": [257, 258]}})


def _folder(path: Path, files: dict[str, Any]) -> Path:
    tokens = {"chat_template": TEMPLATE, "eos_token": {"content": END}}
    for name, content in {**files, "tokenizer_config.json": tokens}.items():
        (path / name).write_text(json.dumps(content))
    (path / "tokenizer.json").write_text(tokenizer())
    return path


def growing(merged: bool = False) -> bytes:
    """A decoder with learnt positions, of standard operators."""
    outer, inputs = Writer(), ["input_ids", "attention_mask", "position_ids"]
    names = ["logits", *(f"present.{name}" for name in PARTS)]
    if merged:
        branches = []
        for is_first in (True, False):
            b = Writer()
            _body(b, is_first, f"{is_first}.")
            outer.constants |= b.constants
            b.constants = {}
            branches.append(b.graph([], [value(f"{is_first}.{name}", None) for name in names], f"first_{is_first}"))
        outer("If", "use_cache_branch", outs=names, then_branch=branches[1], else_branch=branches[0])
    else:
        _body(outer, False, "")
    given = [value(name, ["b", "t" if name == "attention_mask" else "s"], T.INT64) for name in inputs]
    given += [value("use_cache_branch", [1], T.BOOL)] if merged else []
    given += [value(f"past_key_values.{name}", ["b", HEADS, "p", SIZE]) for name in PARTS]
    shapes = [["b", "s", WORDS], *[["b", HEADS, "t", SIZE]] * len(PARTS)]
    return model(outer.graph(given, [value(name, shape) for name, shape in zip(names, shapes, strict=True)]))


def _body(b: Writer, is_first: bool, before: str) -> None:
    b.random = np.random.default_rng(1)
    weights = lambda name, *shape: b.const(name, (b.random.standard_normal(shape) / shape[0] ** 0.5).astype("f4"))  # noqa: E731
    words, places = weights("words", WORDS, HIDDEN), weights("places", LONGEST, HIDDEN)
    loud = b.const("loud", np.float32(8.0))
    x = b("Mul", b("Add", b("Gather", words, "input_ids"), b("Gather", places, "position_ids")), loud)
    end = b("Gather", b("Shape", "attention_mask"), b.const("one", np.array(1)))
    seen = b("Range", b.const("nought", np.array(0)), end, "one")
    hidden = b("Greater", seen, b("Unsqueeze", "position_ids", b.const("last", np.array([2]))))
    low, nil, head = (b.const(n, x) for n, x in (("low", np.float32(-1e9)), ("nil", np.float32(0)), ("head", [1])))
    mask = b("Unsqueeze", b("Where", hidden, low, nil), head)
    split, join = b.const("split", np.array([0, 0, HEADS, SIZE])), b.const("join", np.array([0, 0, HIDDEN]))
    for i in range(LAYERS):
        q, k, v = (
            b("Transpose", b("Reshape", b("MatMul", x, weights(f"{c}{i}", HIDDEN, HIDDEN)), split), perm=[0, 2, 1, 3])
            for c in "qkv"
        )
        made = []
        for part, new in (("key", k), ("value", v)):
            out = f"{before}present.{i}.{part}"
            operands = (new,) if is_first else (f"past_key_values.{i}.{part}", new)
            made.append(b("Concat", *operands, axis=2, outs=[out]))
        turned = b("Transpose", made[0], perm=[0, 1, 3, 2])
        scores = b("MatMul", b("Mul", q, b.const("root", np.float32(SIZE**-0.5))), turned)
        rows = b("MatMul", b("Softmax", b("Add", scores, mask), axis=-1), made[1])
        joined = b("Reshape", b("Transpose", rows, perm=[0, 2, 1, 3]), join)
        x = b("Add", x, b("MatMul", joined, weights(f"o{i}", HIDDEN, HIDDEN)))
    b("MatMul", x, weights("lm", HIDDEN, WORDS), outs=[f"{before}logits"])
