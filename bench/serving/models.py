"""The models that servers are compared with, as one file for all of them, and their requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.zoo import ZOO
from bolt_numba.types import Array
from tests.models import fetch, folder

REVISION = 1
"""Part of the folder's name: raise it when a file changes."""
REQUESTS = 32
"""Different requests, which are sent in turn."""
LINE_HEIGHT, LINE_WIDTHS = 48, (160, 208, 256, 320, 400, 480)
TOKENS = (8, 128)
OCR_OUTPUT, TOKENS_OUTPUT = "softmax_11.tmp_0", "last_hidden_state"

Feeds = dict[str, Array]


@dataclass(frozen=True)
class Served:
    """A model: what makes its file, and one request by a generator of random numbers.

    lists: whether requests are also written as numbers in JSON, which pictures are not.
    single: whether the bytes of one input may be a body.
    """

    build: Callable[[], onnx.ModelProto]
    feeds: Callable[[np.random.Generator], Feeds]
    lists: bool = False
    single: bool = True


def _free_batch(name: str) -> onnx.ModelProto:
    """A network of the zoo that takes any number of rows."""
    made = onnx.load(ZOO[name].path())
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    return made


def _recognition() -> onnx.ModelProto:
    """PP-OCR's recognition for lines of one height, which gives the likeliest letters and how likely they are."""
    made = onnx.load(fetch("ch_PP-OCRv4_rec_infer.onnx"))
    made.graph.input[0].type.tensor_type.shape.dim[2].dim_value = LINE_HEIGHT
    made.graph.node.append(helper.make_node("ArgMax", [OCR_OUTPUT], ["letters"], axis=2, keepdims=0))
    made.graph.node.append(helper.make_node("ReduceMax", [OCR_OUTPUT], ["scores"], axes=[2], keepdims=0))
    del made.graph.output[:]
    for name, kind in (("letters", TensorProto.INT64), ("scores", TensorProto.FLOAT)):
        made.graph.output.append(helper.make_tensor_value_info(name, kind, ["rows", "letters"]))
    return made


def _embedding() -> onnx.ModelProto:
    """MiniLM with the mean over its tokens behind it."""
    made = onnx.load(fetch("minilm.onnx"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "own_axis"))
    made.graph.node.extend([
        helper.make_node("Cast", ["attention_mask"], ["own_mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["own_mask", "own_axis"], ["own_row"]),
        helper.make_node("MatMul", ["own_row", TOKENS_OUTPUT], ["own_sums"]),
        helper.make_node("Squeeze", ["own_sums", "own_axis"], ["own_sum"]),
        helper.make_node("ReduceSum", ["own_mask", "own_axis"], ["own_count"], keepdims=1),
        helper.make_node("Div", ["own_sum", "own_count"], ["sentence"]),
    ])  # fmt: skip
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info("sentence", TensorProto.FLOAT, ["batch", 384]))
    return made


def _normal(name: str, *shape: int) -> Callable[[np.random.Generator], Feeds]:
    return lambda rng: {name: rng.standard_normal(shape, np.float32)}


def _line(rng: np.random.Generator) -> Feeds:
    return {"x": rng.standard_normal((1, 3, LINE_HEIGHT, int(rng.choice(LINE_WIDTHS))), np.float32)}


def _tokens(rng: np.random.Generator) -> Feeds:
    ids = rng.integers(1000, 20000, (1, int(rng.integers(TOKENS[0], TOKENS[1] + 1))))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


MODELS = {
    "keyword_cnn": Served(lambda: _free_batch("kws_dscnn"), _normal("input", 1, 1, 49, 10), lists=True),
    "mobilenet_v2": Served(lambda: _free_batch("mobilenet_v2"), _normal("input", 1, 3, 224, 224)),
    "ppocr_rec": Served(_recognition, _line),
    "minilm": Served(_embedding, _tokens, lists=True, single=False),
}


def path_of(name: str) -> Path:
    """The file of a model, made when it is not there yet."""
    target = folder() / f"served-{REVISION}" / f"{name}.onnx"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{name}.{os.getpid()}")
        partial.write_bytes(MODELS[name].build().SerializeToString())
        partial.replace(target)
    return target


def requests_of(name: str) -> list[Feeds]:
    """The inputs of different requests, the same in every run."""
    rng = np.random.default_rng(0)
    return [MODELS[name].feeds(rng) for _ in range(REQUESTS)]
