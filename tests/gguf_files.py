"""Small GGUF files with seeded weights, and what decoders of their families compute: plain NumPy, one sequence."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.ops.layers.products.forms import FORMS, Form
from bolt_numba.types import BF16, F16, F32, Array

KINDS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ2_S": 22, "BF16": 30,
    "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39,
}  # fmt: skip
HALVES = {"F16": F16, "BF16": BF16}
NUMBERS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}
VOCABULARY, CONTEXT = 40, 64
_SPACE = "\u2581"
BYTEWISE: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdehlnortw12 !".replace(" ", "\u0120"),
                              "he", "ll", "hell", "hello", "\u0120w", "or", "\u0120wor", "ld", "\u0120world", "<user>"],
    "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "l d", "\u0120wor ld"],
    "tokenizer.ggml.token_type": np.array([3] * 3 + [1] * 25 + [4], np.int32), "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": "{{ messages }}",
}  # fmt: skip
"""A vocabulary of bytes that are merged by rank."""
BY_SCORES: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0xE2>", "<0x98>", "<0x83>", _SPACE, *"abcdehlorw",
                              "he", "lo", "ll", "hel", "hello", _SPACE * 2, f"{_SPACE}w", "or", f"{_SPACE}wor", "ld"],
    "tokenizer.ggml.scores": -np.arange(27, dtype=np.float32), "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.token_type": np.array([2, 3, 3, 6, 6, 6] + [1] * 21, np.int32), "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}  # fmt: skip
"""One of letters that are merged by score."""


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value: Any) -> bytes:
    """Kind and content of a key's value: a text, bool, int (u32), float (f32), an array, a list of texts, or both."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", 9, NUMBERS[value.dtype.str[1:]], value.size) + value.tobytes()
    kind, code = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(value)]
    return struct.pack(f"<I{code}", kind, value)


def file_of(
    values: Mapping[str, Any], tensors: Mapping[str, tuple[str, Sequence[int], bytes]], version: int = 3
) -> bytes:
    """A file of keys and tensors: kind, shape (the last axis lies together) and bytes of each."""
    made = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(values))
    made += b"".join(text(key) + value_bytes(value) for key, value in values.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        made += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        made += struct.pack("<IQ", KINDS[kind], len(data))
        data += raw + bytes(-len(raw) % 32)
    return made + bytes(-len(made) % 32) + data


def numbers_of(form: Form) -> list[int]:
    """Where in a block its scale lies, and its offset if it has one."""
    return [form.scale, form.offset] if form.middle is None else [form.scale]


def put_number(form: Form, blocks: Array, at: int, values: Array) -> None:
    """A scale or offset of each block [n, blocks, size], as near as the form has it."""
    if form.power:
        blocks[..., at] = np.round(np.log2(np.maximum(np.abs(values), 1e-30))) + 128
    else:
        number = values.astype(form.plain or np.float16)[..., None].view(np.uint8)
        blocks[..., at : at + number.shape[-1]] = number


def stored(kind: str, n: int, k: int, rng: np.random.Generator) -> tuple[bytes, Array]:
    """Bytes of a matrix with seeded weights, and the weights."""
    if kind not in FORMS or FORMS[kind].plain is not None:
        made = (rng.standard_normal((n, k)) / np.sqrt(k)).astype(HALVES.get(kind, F32))
        return made.tobytes(), made.astype(F32)
    form = FORMS[kind]
    raw = rng.integers(0, 256, (n, k // form.block, form.size), np.uint8)
    for at in numbers_of(form):
        size = (0.01 if at == form.scale else -0.05) / (max(form.table) - 128 if form.table else 1 << form.bits)
        put_number(form, raw, at, rng.uniform(0.5, 1, raw.shape[:2]) * size)
    raw = raw.reshape(n, -1)
    return raw.tobytes(), form.weights(raw)


GELU, WITH_BIASES = ("gemma", "gemma2", "gemma3", "phi2", "falcon", "starcoder2"), ("phi2", "starcoder2", "gpt-oss")
CENTRED, PARALLEL = ("phi2", "falcon", "starcoder2", "command-r", "cohere2"), ("phi2", "falcon", "command-r", "cohere2")
NEIGHBOURS = ("llama", "smollm3", "granite", "granitemoe", "command-r", "cohere2")
"""Families that are alike."""


class Tiny:
    """A decoder of a family as its file has it.

    keys: beside the usual ones.  kind: of matrices.  weights: what tensors mean, by name.  extra: further keys of the
    file, those of a tokenizer.  sines, slower: what these are multiplied by, and by what each pair turns slower.
    """

    def __init__(self, arch: str, kind: str = "F32", layers: int = 2, width: int = 24, **keys: Any) -> None:
        self.arch, self.rng, self.kind = arch, np.random.default_rng(len(arch) + 1), kind
        self.layers, self.width, self.inner, self.heads, self.kv_heads = layers, width, width, 4, 2
        self.head = 8 if width < 64 else width // 4
        self.keys = {
            "block_count": layers, "embedding_length": width, "feed_forward_length": self.inner,
            "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": self.head,
            "attention.value_length": self.head, "context_length": CONTEXT, "rope.freq_base": 100.0,
            "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
        } | {key.replace("__", "."): value for key, value in keys.items()}  # fmt: skip
        self.weights: dict[str, Array] = {}
        self.tensors: dict[str, tuple[str, Sequence[int], bytes]] = {}
        self.extra: dict[str, Any] = {}
        self.sines, self.slower = 1.0, np.ones(self.head // 2)
        q, kv = self.heads * self.head, self.kv_heads * self.head
        self.matrix("token_embd", VOCABULARY, width)
        self.norm("output_norm")
        if arch in ("phi2", "qwen2moe", "olmo2", "gpt-oss"):
            self.matrix("output", VOCABULARY, width, has_bias=arch == "phi2")
        for i in range(layers):
            self._layer(f"blk.{i}.", q, kv)

    def _layer(self, at: str, q: int, kv: int) -> None:
        after = ("post_attention_norm", "post_ffw_norm") if self.arch in ("gemma2", "gemma3", "olmo2") else ()
        second = {"gpt-oss": ("post_attention_norm",), **dict.fromkeys(PARALLEL, ())}.get(self.arch, ("ffn_norm",))
        for name in (*(("attn_norm", *second) if self.arch != "olmo2" else ()), *after):
            self.norm(at + name)
        if self.arch == "falcon" and "large" in self.keys:
            self.norm(f"{at}attn_norm_2")
        every = self.arch in WITH_BIASES
        if self.arch in ("phi3", "falcon"):
            self.matrix(f"{at}attn_qkv", q + 2 * kv, self.width)
        else:
            for part, n in {"q": q, "k": kv, "v": kv}.items():
                self.matrix(f"{at}attn_{part}", n, self.width, every or self.arch in ("qwen2", "qwen2moe"))
        if self.arch == "gpt-oss":
            self.vector(f"{at}attn_sinks", self.heads)
        self.matrix(f"{at}attn_output", self.width, q, every)
        if "expert_count" in self.keys:
            self._experts(f"{at}ffn_")
        else:
            self.feed_forward(f"{at}ffn_", "", self.inner, every)
        if self.arch in ("qwen3", "qwen3moe", "gemma3", "olmo2"):
            for part, n in {"q": q, "k": kv}.items():
                self.vector(f"{at}attn_{part}_norm", n if self.arch == "olmo2" else self.head)

    def _experts(self, at: str) -> None:
        count, inner = self.keys["expert_count"], self.keys.get("expert_feed_forward_length", self.inner)
        kind, self.kind = self.kind, "F32"
        self.matrix(f"{at}gate_inp", count, self.width, self.arch == "gpt-oss")
        self.kind = kind
        sizes = {"gate": (inner, self.width), "up": (inner, self.width), "down": (self.width, inner)}
        for part, (n, k) in sizes.items():
            raw, made = stored(self.kind, count * n, k, self.rng)
            self.weights[f"{at}{part}_exps"] = made.reshape(count, n, k)
            self.tensors[f"{at}{part}_exps.weight"] = self.kind, (count, n, k), raw
            if self.arch == "gpt-oss":
                self.vector(f"{at}{part}_exps", count * n, ".bias")
                self.tensors[f"{at}{part}_exps.bias"] = ("F32", (count, n), self.tensors[f"{at}{part}_exps.bias"][2])
        if "expert_shared_feed_forward_length" in self.keys:
            self.feed_forward(at, "_shexp", self.keys["expert_shared_feed_forward_length"])
        if self.arch == "qwen2moe":
            self.vector(f"{at}gate_inp_shexp", self.width)

    def feed_forward(self, at: str, ending: str, inner: int, has_bias: bool = False) -> None:
        if self.arch not in ("phi3", "phi2", "falcon", "starcoder2"):
            self.matrix(f"{at}gate{ending}", inner, self.width, has_bias)
        self.matrix(f"{at}up{ending}", 2 * inner if self.arch == "phi3" else inner, self.width, has_bias)
        self.matrix(f"{at}down{ending}", self.width, inner, has_bias)

    def matrix(self, name: str, n: int, k: int, has_bias: bool = False) -> None:
        raw, self.weights[name] = stored(self.kind, n, k, self.rng)
        self.tensors[f"{name}.weight"] = self.kind, (n, k), raw
        if has_bias:
            self.vector(name, n, ".bias")

    def norm(self, name: str) -> None:
        self.vector(name, self.width)
        if self.arch in ("phi2", "falcon", "starcoder2"):
            self.vector(name, self.width, ".bias")

    def vector(self, name: str, n: int, ending: str = ".weight") -> None:
        made = self.rng.uniform(0.5, 1.5, n).astype(F32)
        self.weights[name + (ending if ending != ".weight" else "")] = made
        self.tensors[name + ending] = "F32", (n,), made.tobytes()

    def data(self, version: int = 3) -> bytes:
        """The file."""
        values = {"general.architecture": self.arch, **{f"{self.arch}.{k}": v for k, v in self.keys.items()}}
        return file_of(values | self.extra, self.tensors, version)

    # --- what it computes --------------------------------------------------------------------------------------------

    def logits(self, ids: Sequence[int]) -> Array:
        """Of each position of a sequence, [positions, vocabulary]."""
        w, gemma, keys = self.weights, self.arch.startswith("gemma"), self.keys
        scale = np.sqrt(self.width) if gemma else keys.get("embedding_scale", 1)
        x = w["token_embd"][list(ids)].astype(np.float64) * scale
        residual = keys.get("residual_scale", 1)
        for i in range(self.layers):
            at = f"blk.{i}."
            first = self._norm(x, f"{at}attn_norm")
            own = self._norm(x, f"{at}attn_norm_2") if f"{at}attn_norm_2" in w else first
            y, second = self._attention(i, own), f"{at}post_attention_norm"
            x = x + (y if self.arch == "gpt-oss" else self._norm(y, second)) * residual
            second = second if self.arch == "gpt-oss" else f"{at}ffn_norm"
            h = first if self.arch in PARALLEL else self._norm(x, second)
            y = self._chosen(h, f"{at}ffn_") if "expert_count" in keys else self._forward(h, f"{at}ffn_", "")
            x = x + self._norm(y, f"{at}post_ffw_norm") * residual
        y = self._linear(self._norm(x, "output_norm"), "output" if "output" in w else "token_embd")
        scale = keys.get("logit_scale", 1)
        y = y / scale if self.arch.startswith("granite") else y * scale
        return np.asarray(30 * np.tanh(y / 30) if self.arch == "gemma2" else y)

    def _linear(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self.weights[name].T + self.weights.get(f"{name}.bias", 0))

    def _act(self, g: Array) -> Array:
        if self.arch in GELU:
            return np.asarray(0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))))
        return np.asarray(g / (1 + np.exp(-g)))

    def _forward(self, h: Array, at: str, ending: str) -> Array:
        up = self._linear(h, f"{at}up{ending}")
        if self.arch == "phi3":
            made = self._act(up[:, : self.inner]) * up[:, self.inner :]
        elif f"{at}gate{ending}" in self.weights:
            made = self._act(self._linear(h, f"{at}gate{ending}")) * up
        else:
            made = self._act(up)
        return self._linear(made, f"{at}down{ending}")

    def _chosen(self, h: Array, at: str) -> Array:
        """Row by row, expert by expert."""
        w, made = self.weights, np.zeros_like(h)
        scores = np.exp(self._linear(h, f"{at}gate_inp"))
        scores /= scores.sum(-1, keepdims=True)
        for i, row in enumerate(scores):
            best = np.argsort(-row, kind="stable")[: self.keys["expert_used_count"]]
            whole = 1 if self.arch == "qwen2moe" else row[best].sum()
            for e in best:
                gate, up = (self._expert(h[i], f"{at}{part}_exps", e) for part in ("gate", "up"))
                if self.arch == "gpt-oss":
                    gate = np.minimum(gate, 7)
                    inner = gate / (1 + np.exp(-1.702 * gate)) * (np.clip(up, -7, 7) + 1)
                else:
                    inner = self._act(gate) * up
                made[i] += row[e] / whole * self._expert(inner, f"{at}down_exps", e)
        if f"{at}up_shexp" in w:
            part = 1 / (1 + np.exp(-h @ w[f"{at}gate_inp_shexp"][:, None])) if self.arch == "qwen2moe" else 1
            made = made + part * self._forward(h, at, "_shexp")
        return made

    def _expert(self, x: Array, name: str, which: int) -> Array:
        matrix = self.weights[name][which]
        bias = self.weights.get(f"{name}.bias", np.zeros(len(self.weights[name]) * len(matrix)))
        return np.asarray(matrix @ x + bias.reshape(-1, len(matrix))[which])

    def _norm(self, x: Array, name: str) -> Array:
        """As it is where the family has no such norm."""
        if name not in self.weights:
            return x
        x = x - x.mean(-1, keepdims=True) if self.arch in CENTRED else x
        made = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.weights[name]
        return np.asarray(made + self.weights.get(f"{name}.bias", 0))

    def _attention(self, layer: int, x: Array) -> Array:
        w, at, n, d = self.weights, f"blk.{layer}.", len(x), self.head
        q_rows, kv_rows = self.heads * d, self.kv_heads * d
        if f"{at}attn_qkv" in w:
            q, k, v = np.split(self._linear(x, f"{at}attn_qkv"), [q_rows, q_rows + kv_rows], axis=1)
        else:
            q, k, v = (self._linear(x, f"{at}attn_{part}") for part in "qkv")
        if self.arch == "olmo2":
            q, k = self._norm(q, f"{at}attn_q_norm"), self._norm(k, f"{at}attn_k_norm")
        q, k, v = (y.reshape(n, -1, d) for y in (q, k, v))
        q, k = (self._turned(y, layer, f"{at}attn_{part}_norm") for y, part in ((q, "q"), (k, "k")))
        k, v = (np.repeat(y, self.heads // self.kv_heads, axis=1) for y in (k, v))
        is_large = self.arch == "gemma2" and self.layers >= 46
        scale = self.keys.get("attention.scale", 1 / np.sqrt(self.width / self.heads if is_large else d))
        scores = np.einsum("ihd,jhd->hij", q, k) * scale
        scores = 50 * np.tanh(scores / 50) if self.arch == "gemma2" else scores
        ago = np.arange(n)[:, None] - np.arange(n)
        scores = np.where((ago < 0) | (ago >= self._window(layer)), -np.inf, scores)
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - top)
        sinks = np.exp(w[f"{at}attn_sinks"][:, None, None] - top) if f"{at}attn_sinks" in w else 0
        y = np.einsum("hij,jhd->ihd", p / (p.sum(-1, keepdims=True) + sinks), v).reshape(n, -1)
        return self._linear(y, f"{at}attn_output")

    def _is_local(self, layer: int) -> bool:
        four = dict.fromkeys(("olmo2", "cohere2"), layer % 4 < 3)
        two = dict.fromkeys(("gemma2", "gpt-oss"), layer % 2 == 0)
        return {"gemma3": layer % 6 < 5, **two, **four}.get(self.arch, True)

    def _window(self, layer: int) -> int:
        return self.keys.get("attention.sliding_window", 1 << 20) if self._is_local(layer) else 1 << 20

    def _turned(self, x: Array, layer: int, norm: str) -> Array:
        x = x if self.arch == "olmo2" else self._norm(x, norm)
        if self.arch in ("smollm3", "cohere2") and layer % 4 == 3:
            return x
        size = self.keys.get("rope.dimension_count", self.head)
        is_local = self.arch == "gemma3" and self._is_local(layer)
        base = self.keys.get("rope.freq_base_swa", 10000.0) if is_local else 100.0
        turned = x.copy()
        for pair in range(size // 2):
            a, b = (2 * pair, 2 * pair + 1) if self.arch in NEIGHBOURS else (pair, pair + size // 2)
            angle = np.arange(len(x))[:, None] * base ** (-2 * pair / size) / self.slower[pair]
            c, s = np.cos(angle) * self.sines, np.sin(angle) * self.sines
            turned[..., a], turned[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
        return turned


EXPERTS = {"expert_count": 5, "expert_used_count": 2}
GRANITE = {"embedding_scale": 12.0, "residual_scale": 0.25, "attention__scale": 0.125, "logit_scale": 4.0}
FAMILIES = {
    "llama": Tiny("llama"),
    "qwen2": Tiny("qwen2", width=32),
    "qwen3": Tiny("qwen3"),
    "phi3": Tiny("phi3", width=32, rope__dimension_count=6),
    "smollm3": Tiny("smollm3", layers=4),
    "gemma": Tiny("gemma"),
    "gemma2": Tiny("gemma2", attention__sliding_window=3),
    "gemma3": Tiny("gemma3", layers=6, attention__sliding_window=3),
    "mixtral": Tiny("llama", **EXPERTS),
    "qwen2moe": Tiny(
        "qwen2moe", width=32, **EXPERTS, expert_feed_forward_length=16, expert_shared_feed_forward_length=40
    ),
    "qwen3moe": Tiny("qwen3moe", **EXPERTS, expert_feed_forward_length=16),
    "gpt-oss": Tiny("gpt-oss", **EXPERTS, expert_feed_forward_length=16, attention__sliding_window=3),
    "granite": Tiny("granite", **GRANITE),
    "granitemoe": Tiny("granitemoe", **GRANITE, **EXPERTS, expert_shared_feed_forward_length=40),
    "phi2": Tiny("phi2", width=32, rope__dimension_count=4),
    "falcon": Tiny("falcon", width=32),
    "starcoder2": Tiny("starcoder2", width=32),
    "olmo2": Tiny("olmo2", width=32, layers=4, attention__sliding_window=3),
    "command-r": Tiny("command-r", width=32, logit_scale=0.25),
    "cohere2": Tiny("cohere2", width=32, layers=4, logit_scale=0.25, attention__sliding_window=3),
}
"""Some of each, by what calls them."""
SHOWN, LLAMA_CPP = 2, Path(__file__).parent / "golden" / "text" / "families.json"
"""Of the first of these how many last logits llama.cpp has given, and where they are kept."""
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (2, 9))
