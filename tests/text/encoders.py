"""Small encoders and their tokenizers, as folders that Hugging Face and sentence-transformers lay out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "flight", "train", "cat")
WIDTH = 6
TOKENS, SCORES = "last_hidden_state", "logits"


def tokenizer(**changed: Any) -> dict[str, Any]:
    """A tokenizer.json: words between blanks, framed by [CLS] and [SEP]."""
    marks = {mark: {"id": mark, "ids": [WORDS.index(mark)], "tokens": [mark]} for mark in ("[CLS]", "[SEP]")}
    special = lambda mark, kind: {"SpecialToken": {"id": mark, "type_id": kind}}  # noqa: E731
    text = lambda which, kind: {"Sequence": {"id": which, "type_id": kind}}  # noqa: E731
    single = [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None,
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": [*single, text("B", 1), special("[SEP]", 1)],
            "special_tokens": marks,
        },
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "[UNK]"},
        **changed,
    }  # fmt: skip


def network(
    path: Path, output: str = TOKENS, inputs: Sequence[str] = ("input_ids", "attention_mask", "token_type_ids"),
    length: int | str = "sequence", kind: int = TensorProto.INT64, positions: int = 0,
) -> Path:  # fmt: skip
    """A network whose tokens know of all others of their text that the mask lets through.

    output: "last_hidden_state", "sentence_embedding" (the means of the tokens), or "logits" (one number a text).
    positions: that it has a row of a table for, which tokens add; 0: it has none, and takes any.
    """
    table = np.random.default_rng(0).normal(size=(len(WORDS), WIDTH)).astype("f4")
    held = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "axis")]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["own"]),
        helper.make_node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["seen", "last"], ["column"]),
        helper.make_node("Mul", ["own", "column"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis"], ["sum"], keepdims=1),
        helper.make_node("Softmax", ["sum"], ["shared"], axis=-1),
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["types", "last"], ["type_column"]),
        helper.make_node("Add", ["own", "shared"], ["mixed"]),
        helper.make_node("Add", ["mixed", "type_column"], [TOKENS]),
    ]
    held.append(numpy_helper.from_array(np.array([2]), "last"))
    if positions:
        held += [numpy_helper.from_array(np.zeros((positions, WIDTH), "f4"), "rows")]
        held += [numpy_helper.from_array(np.array([0]), "begin")]
        nodes[0].output[0] = "bare"
        nodes[1:1] = [
            helper.make_node("Shape", ["input_ids"], ["count"], start=1, end=2),
            helper.make_node("Slice", ["rows", "begin", "count", "begin"], ["first"]),
            helper.make_node("Add", ["bare", "first"], ["own"]),
        ]
    shape: list[Any] = ["batch", length, WIDTH]
    if output != TOKENS:
        nodes.append(helper.make_node("ReduceMean", [TOKENS, "axis"], ["sentence_embedding"], keepdims=0))
        shape = ["batch", WIDTH]
    if output == SCORES:
        nodes.append(helper.make_node("ReduceMax", ["sentence_embedding", "axis"], [SCORES], keepdims=1))
        shape = ["batch", 1]
    infos = [helper.make_tensor_value_info(name, kind, ["batch", length]) for name in inputs]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "encoder", infos, [result], held)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def folder(path: Path, *, files: dict[str, Any] | None = None, model: str = "model.onnx", **options: Any) -> Path:
    """A folder with a network, its tokenizer and more files, which hold JSON."""
    (path / model).parent.mkdir(parents=True, exist_ok=True)
    network(path / model, **options)
    for name, content in {"tokenizer.json": tokenizer(), **(files or {})}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return path
