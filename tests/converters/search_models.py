"""Small random decoders, and searches over them as onnxruntime has them (domain com.microsoft)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from bolt_numba.types import Array

F32, I32 = TensorProto.FLOAT, TensorProto.INT32
Add = Callable[..., None]
WORDS, WIDTH, HEADS, LAYERS, ROOM = 12, 8, 2, 2, 32
FIRST = ["input_ids", "max_length", "min_length"]
PENALTIES = ["repetition_penalty", "vocab_mask", "prefix_vocab_mask", "attention_mask"]
BEAMS = [*FIRST, "num_beams", "num_return_sequences", "length_penalty", *PENALTIES, "decoder_input_ids",
         "logits_processor"]  # fmt: skip
INPUTS = {
    "GreedySearch": [*FIRST, *PENALTIES],
    "Sampling": [*FIRST, *PENALTIES, "presence_mask", "seed"],
    "BeamSearch": BEAMS,
    "WhisperBeamSearch": [*BEAMS, "cross_qk_layer_head", "extra_decoding_ids", "temperature"],
}
OUTPUTS = {"GreedySearch": ["sequences"], "Sampling": ["sequences"]}


def i32(*values: int) -> Array:
    return np.array(values, np.int32)


def info(name: str, kind: int, *dims: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


class Nodes:
    """Nodes of a graph, and its constants: random ones by their names and shapes, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.rng, self.made, self.held = np.random.default_rng(seed), list[NodeProto](), dict[str, Array]()

    def __call__(self, op: str, inputs: list[str], *outputs: str, **attributes: Any) -> None:
        domain = "com.microsoft" if op == "Attention" else ""
        self.made.append(helper.make_node(op, inputs, outputs, name=outputs[0], domain=domain, **attributes))

    def hold(self, name: str, *shape: int, scale: float = 0.5) -> str:
        self.held[name] = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def const(self, name: str, value: Any) -> str:
        self.held[name] = np.array(value)
        return name

    def graph(self, name: str, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> GraphProto:
        return helper.make_graph(
            self.made, name, inputs, outputs, [numpy_helper.from_array(a, n) for n, a in self.held.items()]
        )

    def words(self, rows: str, words: int, sharp: float) -> None:
        self("Tanh", [rows], "bounded")
        self("MatMul", ["bounded", self.hold("head", WIDTH, words, scale=sharp / WIDTH**0.5)], "logits")


def gpt(seed: int = 0, *, words: int = WORDS, sharp: float = 4) -> GraphProto:
    """A decoder that goes on with its input.  sharp: how much its logits differ."""
    add = Nodes(seed)
    add("Gather", [add.hold("words", words, WIDTH), "input_ids"], "word")
    add("Gather", [add.hold("places", ROOM, WIDTH), "position_ids"], "place")
    add("Add", ["word", "place"], "x0")
    for i in range(LAYERS):
        weights = [add.hold(f"w{i}", WIDTH, 3 * WIDTH), add.hold(f"b{i}", 3 * WIDTH)]
        add("Attention", [f"x{i}", *weights, "attention_mask", f"past_{i}"], f"a{i}", f"present_{i}",
            num_heads=HEADS, unidirectional=1)  # fmt: skip
        add("Add", [f"x{i}", f"a{i}"], f"x{i + 1}")
    add.words(f"x{LAYERS}", words, sharp)
    caches = [
        [info(f"{name}_{i}", F32, 2, "rows", HEADS, name, WIDTH // HEADS) for i in range(LAYERS)]
        for name in ("past", "present")
    ]
    inputs = [info("input_ids", I32, "rows", "seq"), info("position_ids", I32, "rows", "seq"),
              info("attention_mask", I32, "rows", "total"), *caches[0]]  # fmt: skip
    return add.graph("decoder", inputs, [info("logits", F32, "rows", "seq", words), *caches[1]])


def _caches(name: str, kind: str, length: int | str) -> list[ValueInfoProto]:
    return [
        info(f"{name}_{part}_{kind}_{i}", F32, "rows", HEADS, length, WIDTH // HEADS)
        for i in range(LAYERS)
        for part in ("key", "value")
    ]


def _heads(add: Nodes, x: str, weight: str, out: str) -> str:
    add("MatMul", [x, add.hold(weight, WIDTH, WIDTH)], f"{out}_flat")
    add("Reshape", [f"{out}_flat", add.const("by_heads", [0, 0, HEADS, WIDTH // HEADS])], f"{out}_split")
    add("Transpose", [f"{out}_split"], out, perm=[0, 2, 1, 3])
    return out


def _attend(add: Nodes, q: str, k: str, v: str, weight: str, mask: str | None = None) -> str:
    name = f"{q}_of"
    add("Transpose", [k], f"{name}_k", perm=[0, 1, 3, 2])
    add("MatMul", [q, f"{name}_k"], f"{name}_scores")
    scores = f"{name}_scores"
    if mask is not None:
        add("Add", [scores, mask], scores := f"{name}_seen")  # type: ignore[misc]
    add("Softmax", [scores], f"{name}_share")
    add("MatMul", [f"{name}_share", v], f"{name}_heads")
    add("Transpose", [f"{name}_heads"], f"{name}_rows", perm=[0, 2, 1, 3])
    add("Reshape", [f"{name}_rows", add.const("flat", [0, 0, WIDTH])], f"{name}_flat")
    add("MatMul", [f"{name}_flat", add.hold(weight, WIDTH, WIDTH)], name)
    return name


def _decode(add: Nodes, ids: str, cross: str, mask: str | None, words: int, sharp: float, *, past: bool) -> None:
    """The decoder's part, whose words know how many were before; ``cross`` names what it has of the encoder."""
    add("Gather", [add.hold("words", words, WIDTH), ids], "word")
    add("Gather", [add.hold("places", ROOM, WIDTH), "before"], "place")
    add("Add", ["word", "place"], "x0")
    for i in range(LAYERS):
        q = _heads(add, f"x{i}", f"q{i}", f"query{i}")
        for part in ("key", "value"):
            new = _heads(add, f"x{i}", f"{part}_w{i}", f"{part}{i}")
            kept = f"present_{part}_self_{i}"
            if past:
                add("Concat", [f"past_{part}_self_{i}", new], kept, axis=2)
            else:
                add("Identity", [new], kept)
        own = _attend(add, q, f"present_key_self_{i}", f"present_value_self_{i}", f"o{i}")
        add("Add", [f"x{i}", own], f"y{i}")
        x = _heads(add, f"y{i}", f"xq{i}", f"asked{i}")
        other = _attend(add, x, f"{cross}_key_cross_{i}", f"{cross}_value_cross_{i}", f"xo{i}", mask)
        add("Add", [f"y{i}", other], f"x{i + 1}")
    add.words(f"x{LAYERS}", words, sharp)


def _mask(add: Nodes) -> str:
    add("Cast", ["encoder_attention_mask"], "seen", to=F32)
    add("Sub", ["seen", add.const("one", np.float32(1))], "hidden")
    add("Mul", ["hidden", add.const("far", np.float32(1e4))], "added")
    add("Unsqueeze", ["added", add.const("axes", [1, 2])], "mask")
    return "mask"


def translator(
    seed: int = 0, *, words: int = WORDS, sharp: float = 4, sound: bool = False, first: bool = True,
    hidden: bool = True, whole: bool = False,
) -> dict[str, GraphProto]:  # fmt: skip
    """An encoder and a decoder.

    sound: as Whisper's, of features, without a mask.  first: the encoder runs the decoder's first step.  hidden: the
    decoder takes the encoder's hidden states.  whole: the decoder takes all words so far.
    """
    encoder, decoder = Nodes(seed), Nodes(seed)
    masks = [] if sound else [info("encoder_attention_mask", I32, "rows", "source")]
    mask = None if sound else _mask(encoder)
    if sound:
        encoder("Transpose", ["encoder_input_ids"], "frames", perm=[0, 2, 1])
        encoder("MatMul", ["frames", encoder.hold("source_words", 5, WIDTH)], "heard")
    else:
        encoder("Gather", [encoder.hold("source_words", words, WIDTH), "encoder_input_ids"], "heard")
    decoder.hold("source_words", 5 if sound else words, WIDTH)  # so that the numbers behind are the same
    encoder("Tanh", ["heard"], "encoder_hidden_states")
    states = info("encoder_hidden_states", F32, "rows", "source", WIDTH)
    for add in (encoder, decoder):
        for part in ("key", "value"):
            for i in range(LAYERS):
                add.hold(f"cross_{part}{i}", WIDTH, WIDTH)
    for i in range(LAYERS):
        for part in ("key", "value"):
            _cross(encoder, part, i)
    given = "encoder_input_ids"
    inputs = [info(given, F32, "rows", 5, "source") if sound else info(given, I32, "rows", "source"), *masks]
    outputs = _caches("present", "cross", "source")
    if first:
        encoder("Cast", [encoder.const("none", [0])], "before", to=TensorProto.INT64)
        _decode(encoder, "decoder_input_ids", "present", mask, words, sharp, past=False)
        inputs.append(info("decoder_input_ids", I32, "rows", "start" if sound else 1))
        outputs = [info("logits", F32, "rows", "start", words), states, *_caches("present", "self", "start"), *outputs]
    decoder("Shape", ["past_key_self_0"], "before", start=2, end=3)
    ids = "input_ids"
    if whole:
        decoder("Slice", [ids, *(decoder.const(n, [v]) for n, v in (("from", -1), ("to", 2**62), ("axis", 1)))], "last")
        ids = "last"
    _decode(decoder, ids, "past", None if sound else _mask(decoder), words, sharp, past=True)
    taken = [info("input_ids", I32, "rows", "seq" if whole else 1), *masks, *[states] * hidden,
             *_caches("past", "self", "past"), *_caches("past", "cross", "source")]  # fmt: skip
    given_back = [info("logits", F32, "rows", 1, words), *_caches("present", "self", "total")]
    return {
        "encoder": encoder.graph("encoder", inputs, outputs),
        "decoder": decoder.graph("decoder", taken, given_back),
    }


def _cross(add: Nodes, part: str, i: int) -> None:
    out = f"present_{part}_cross_{i}"
    add("MatMul", ["encoder_hidden_states", f"cross_{part}{i}"], f"{out}_flat")
    add("Reshape", [f"{out}_flat", add.const("by_heads", [0, 0, HEADS, WIDTH // HEADS])], f"{out}_split")
    add("Transpose", [f"{out}_split"], out, perm=[0, 2, 1, 3])


def search(op: str, feeds: Mapping[str, Array], held: Collection[str] = (), **attributes: Any) -> ModelProto:
    """A model of one search whose operands are inputs, or constants those that are ``held``."""
    names = [name if name in feeds else "" for name in INPUTS[op]]
    while not names[-1]:
        names.pop()
    outputs = OUTPUTS.get(op, ["sequences", "sequences_scores", "scores"])
    node = helper.make_node(op, names, outputs, name="search", domain="com.microsoft", **attributes)
    dims = {n: [f"{n}_{i}" for i in range(a.ndim)] if a.ndim > 1 else [a.size] for n, a in feeds.items()}
    infos = [
        info(n, helper.np_dtype_to_tensor_dtype(a.dtype), *dims[n])
        for n, a in feeds.items()
        if n not in held
    ]  # fmt: skip
    results = [info(n, F32 if "scores" in n else I32) for n in outputs]
    for result in results:
        result.type.tensor_type.ClearField("shape")
    constants = [numpy_helper.from_array(feeds[n], n) for n in held]
    graph = helper.make_graph([node], "g", infos, results, constants)
    return model_of(graph)


def model_of(graph: GraphProto) -> ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
