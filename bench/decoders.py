"""Decoders whose past grows by one in each call, as exporters write them, with small weights made at random."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from bench.models import Feeds

HEADS, GROUPS, SIZE, INNER, WORDS, LONGEST = 8, 4, 32, 704, 1000, 512
HIDDEN = HEADS * SIZE
MICROSOFT = "com.microsoft"


class Writer:
    """Nodes and constants of a graph that grows."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.random = np.random.default_rng(0)

    def __call__(self, op: str, *operands: str, outs: int | Sequence[str] = 1, **attributes: Any) -> Any:
        """Add a node; the names of its results."""
        name = f"v{len(self.nodes)}"
        made = [f"{name}_{i}" for i in range(outs)] if isinstance(outs, int) else list(outs)
        self.nodes.append(helper.make_node(op, operands, made, **attributes))
        return made[0] if len(made) == 1 else made

    def const(self, name: str, array: Any) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def weights(self, name: str, *shape: int) -> str:
        return self.const(name, (self.random.standard_normal(shape) / 16).astype(np.float32))

    def nibbles(self, x: str, name: str, k: int, n: int) -> str:
        """A product with weights of 4 bits in blocks of 32."""
        codes = self.const(name, self.random.integers(0, 256, (n, k // 32, 16), np.uint8))
        scales = self.const(f"{name}.scales", (self.random.random(n * k // 32) / 64).astype(np.float32))
        made: str = self("MatMulNBits", x, codes, scales, domain=MICROSOFT, K=k, N=n, bits=4, block_size=32)
        return made

    def graph(self, inputs: Sequence[Any], outputs: Sequence[Any], name: str = "g") -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, list(self.constants.values()))


def value(name: str, shape: Sequence[int | str] | None, kind: int = T.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(graph: onnx.GraphProto) -> bytes:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


def llama(layers: int = 4) -> bytes:
    """A Llama type of 4 bits with GroupQueryAttention, as onnxruntime-genai writes it."""
    b = Writer()
    one, axis = b.const("one", np.array([1])), b.const("axis", np.array(1))
    lengths = b("Cast", b("Sub", b("ReduceSum", "attention_mask", one, keepdims=1), one), to=T.INT32)
    total = b("Cast", b("Gather", b("Shape", "attention_mask"), axis), to=T.INT32)
    angles = np.outer(np.arange(LONGEST), 10000.0 ** (-np.arange(SIZE // 2) / (SIZE // 2)))
    turns = [b.const(name, f(angles).astype(np.float32)) for name, f in (("cos", np.cos), ("sin", np.sin))]
    x = b("Gather", b.weights("words", WORDS, HIDDEN), "input_ids")
    scale = b.const("scale", np.ones(HIDDEN, np.float32))
    normal = b("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-5)
    pasts, presents = [], []
    for i in range(layers):
        names = [f"{kind}.{i}.{part}" for kind in ("past", "present") for part in ("key", "value")]
        pasts += [value(name, ["b", GROUPS, "p", SIZE]) for name in names[:2]]
        presents += [value(name, ["b", GROUPS, "t", SIZE]) for name in names[2:]]
        q, k, v = (
            b.nibbles(normal, f"{c}{i}", HIDDEN, n * SIZE) for c, n in zip("qkv", (HEADS, GROUPS, GROUPS), strict=True)
        )
        attended = b(
            "GroupQueryAttention", q, k, v, *names[:2], lengths, total, *turns, outs=[f"a{i}", *names[2:]],
            domain=MICROSOFT, num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
        )[0]  # fmt: skip
        x, normal = _added(b, x, b.nibbles(attended, f"o{i}", HIDDEN, HIDDEN), scale)
        gate, up = (b.nibbles(normal, f"{c}{i}", HIDDEN, INNER) for c in ("gate", "up"))
        x, normal = _added(
            b, x, b.nibbles(b("Mul", b("Mul", gate, b("Sigmoid", gate)), up), f"down{i}", INNER, HIDDEN), scale
        )
    b("Identity", b.nibbles(normal, "head", HIDDEN, WORDS), outs=["logits"])
    ids, mask = value("input_ids", ["b", "s"], T.INT64), value("attention_mask", ["b", "t"], T.INT64)
    return model(b.graph([ids, mask, *pasts], [value("logits", None), *presents]))


def _added(b: Writer, x: str, more: str, scale: str) -> tuple[str, str]:
    """The sum, and the sum normalised."""
    normal, _, _, added = b("SkipSimplifiedLayerNormalization", x, more, scale, outs=4, domain=MICROSOFT, epsilon=1e-5)
    return added, normal


def _heads(b: Writer, x: str) -> str:
    made: str = b("Transpose", b("Reshape", x, b.const("split", np.array([0, 0, HEADS, SIZE]))), perm=[0, 2, 1, 3])
    return made


def _attended(b: Writer, name: str, q: str, k: str, v: str) -> str:
    """Attention of standard operators, and the product behind it.  q: [b, s, hidden]; k, v: [b, heads, t, size]."""
    scores = b(
        "MatMul", b("Mul", _heads(b, q), b.const("root", np.float32(SIZE**-0.5))), b("Transpose", k, perm=[0, 1, 3, 2])
    )
    rows = b("Transpose", b("MatMul", b("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = b("Reshape", rows, b.const("join", np.array([0, 0, HIDDEN])))
    made: str = b("MatMul", joined, b.weights(name, HIDDEN, HIDDEN))
    return made


def attention() -> bytes:
    """One layer of attention of standard operators."""
    b = Writer()
    q, k, v = (b("MatMul", "x", b.weights(c, HIDDEN, HIDDEN)) for c in "qkv")
    keys, values = (
        b("Concat", f"past.{part}", _heads(b, x), axis=2, outs=[f"present.{part}"])
        for part, x in (("key", k), ("value", v))
    )
    b("Identity", _attended(b, "o", q, keys, values), outs=["y"])
    pasts, presents = (
        [value(f"{kind}.{part}", ["b", HEADS, kind[:2], SIZE]) for part in ("key", "value")]
        for kind in ("past", "present")
    )
    return model(b.graph([value("x", ["b", "s", HIDDEN]), *pasts], [value("y", None), *presents]))


def whisper(layers: int = 2) -> bytes:
    """A decoder of Whisper's type, with its first step and the others merged by an If, as Optimum writes it."""
    branches, outer = [], Writer()
    names = [
        f"{i}.{side}.{part}" for i in range(layers) for side in ("decoder", "encoder") for part in ("key", "value")
    ]
    for is_first in (True, False):
        b = Writer()
        b.random = np.random.default_rng(1)
        x = b("Gather", outer.weights("words", WORDS, HIDDEN) if is_first else "words", "input_ids")
        for i in range(layers):
            for side in ("decoder", "encoder"):
                normal, source = _layer_norm(b, x), "encoder" if side == "encoder" else ""
                q = b("MatMul", normal, b.weights(f"q{i}{side}", HIDDEN, HIDDEN))
                made = []
                for part in ("key", "value"):
                    past, present = f"past.{i}.{side}.{part}", f"{is_first}.{i}.{side}.{part}"
                    if source and not is_first:
                        made.append(b("Identity", past, outs=[present]))
                        continue
                    new = _heads(b, b("MatMul", source or normal, b.weights(f"{part}{i}{side}", HIDDEN, HIDDEN)))
                    made.append(
                        b("Identity", new, outs=[present])
                        if is_first
                        else b("Concat", past, new, axis=2, outs=[present])
                    )
                x = b("Add", x, _attended(b, f"o{i}{side}", q, *made))
            inner = b("MatMul", _layer_norm(b, x), b.weights(f"up{i}", HIDDEN, 4 * HIDDEN))
            x = b("Add", x, b("MatMul", b("Relu", inner), b.weights(f"down{i}", 4 * HIDDEN, HIDDEN)))
        b("MatMul", x, b.weights("head", HIDDEN, WORDS), outs=[f"{is_first}.logits"])
        results = [value(f"{is_first}.{name}", None) for name in ("logits", *names)]
        outer.constants |= b.constants  # both branches share them
        b.constants = {}
        branches.append(b.graph([], results, f"first_{is_first}"))
    outs = ["logits", *(f"present.{name}" for name in names)]
    outer("If", "use_cache", outs=outs, then_branch=branches[1], else_branch=branches[0])
    inputs = [
        value("input_ids", ["b", "s"], T.INT64),
        value("encoder", ["b", "e", HIDDEN]),
        value("use_cache", [1], T.BOOL),
    ]
    pasts = [value(f"past.{n}", ["b", HEADS, "p" if "decoder" in n else "e2", SIZE]) for n in names]
    return model(outer.graph([*inputs, *pasts], [value(name, None) for name in outs]))


def _layer_norm(b: Writer, x: str) -> str:
    ones, zeros = b.const("ones", np.ones(HIDDEN, np.float32)), b.const("zeros", np.zeros(HIDDEN, np.float32))
    made: str = b("LayerNormalization", x, ones, zeros, axis=-1)
    return made


def feeds_of(name: str, past: Sequence[np.ndarray[Any, Any]], length: int) -> Feeds:
    """Inputs of a step.  past: results of the step before, but for the first; [] for zeros of this length."""
    random = np.random.default_rng(length)
    zeros = np.zeros((1, GROUPS if name == "llama" else HEADS, length, SIZE), np.float32)
    if name == "attention":
        x = random.standard_normal((1, 1, HIDDEN)).astype(np.float32)
        return {"x": x, **dict(zip(("past.key", "past.value"), past or (zeros, zeros), strict=True))}
    ids = random.integers(0, WORDS, (1, 1))
    if name == "llama":
        names = [f"past.{i}.{part}" for i in range(4) for part in ("key", "value")]
        mask = np.ones((1, length + 1), np.int64)
        return {"input_ids": ids, "attention_mask": mask, **dict(zip(names, past or [zeros] * 8, strict=True))}
    names = [
        f"past.{i}.{side}.{part}" for i in range(2) for side in ("decoder", "encoder") for part in ("key", "value")
    ]
    heard = np.zeros((1, HEADS, 100, SIZE), np.float32)
    held = past or [zeros, zeros, heard, heard] * 2
    more = {"encoder": np.zeros((1, 100, HIDDEN), np.float32), "use_cache": np.array([True])}
    return {"input_ids": ids, **more, **dict(zip(names, held, strict=True))}


DECODERS: dict[str, Callable[[], bytes]] = {"attention": attention, "llama": llama, "whisper": whisper}


def generate(run: Callable[[None, Feeds], Sequence[Any]], name: str, grows: bool, steps: int = 80) -> list[float]:
    """Seconds of each step of a decoder, with a past that begins at 20 and grows, or stays."""
    past: list[Any] = []
    spent = []
    for step in range(steps):
        feeds = feeds_of(name, past, 20 + step * grows)
        start = time.perf_counter()
        results = run(None, feeds)
        spent.append(time.perf_counter() - start)
        past = list(results[1:]) if grows else []
    return spent
