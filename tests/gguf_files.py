"""Small GGUF files with seeded weights, and what decoders of their families compute: plain NumPy, one sequence."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
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
    """Kind and content of a key's value: a text, bool, int (u32), float (f32), an array, or a list of texts."""
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
        blocks[..., at : at + 2] = values.astype(np.float16)[..., None].view(np.uint8)


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


class Tiny:
    """A decoder of a family as its file has it.

    keys: beside the usual ones.  kind: of matrices.  weights: what tensors mean, by name.  extra: further keys of the
    file, those of a tokenizer.  sines, slower: what these are multiplied by, and by what each pair turns slower.
    """

    def __init__(self, arch: str, kind: str = "F32", layers: int = 2, width: int = 24, **keys: Any) -> None:
        self.arch, self.rng, self.kind = arch, np.random.default_rng(len(arch)), kind
        self.layers, self.width, self.inner, self.heads, self.kv_heads = layers, width, width, 4, 2
        self.head = 8 if width < 64 else width // 4
        self.keys = {
            "block_count": layers, "embedding_length": width, "feed_forward_length": self.inner,
            "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": self.head,
            "attention.value_length": self.head, "context_length": CONTEXT, "rope.freq_base": 100.0,
            "attention.layer_norm_rms_epsilon": 1e-5,
        } | {key.replace("__", "."): value for key, value in keys.items()}  # fmt: skip
        self.weights: dict[str, Array] = {}
        self.tensors: dict[str, tuple[str, Sequence[int], bytes]] = {}
        self.extra: dict[str, Any] = {}
        self.sines, self.slower = 1.0, np.ones(self.head // 2)
        q, kv = self.heads * self.head, self.kv_heads * self.head
        self.matrix("token_embd", VOCABULARY, width)
        self.vector("output_norm", width)
        for i in range(layers):
            self._layer(f"blk.{i}.", q, kv)

    def _layer(self, at: str, q: int, kv: int) -> None:
        after = ("post_attention_norm", "post_ffw_norm") if self.arch in ("gemma2", "gemma3") else ()
        for name in ("attn_norm", "ffn_norm", *after):
            self.vector(at + name, self.width)
        if self.arch == "phi3":
            self.matrix(f"{at}attn_qkv", q + 2 * kv, self.width)
            self.matrix(f"{at}ffn_up", 2 * self.inner, self.width)
        else:
            for part, n in {
                "attn_q": q,
                "attn_k": kv,
                "attn_v": kv,
                "ffn_gate": self.inner,
                "ffn_up": self.inner,
            }.items():
                self.matrix(at + part, n, self.width)
                if self.arch == "qwen2" and part in ("attn_q", "attn_k", "attn_v"):
                    self.vector(at + part, n, ".bias")
        self.matrix(f"{at}attn_output", self.width, q)
        self.matrix(f"{at}ffn_down", self.width, self.inner)
        if self.arch in ("qwen3", "gemma3"):
            self.vector(f"{at}attn_q_norm", self.head)
            self.vector(f"{at}attn_k_norm", self.head)

    def matrix(self, name: str, n: int, k: int) -> None:
        raw, self.weights[name] = stored(self.kind, n, k, self.rng)
        self.tensors[f"{name}.weight"] = self.kind, (n, k), raw

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
        w, gemma = self.weights, self.arch.startswith("gemma")
        x = w["token_embd"][list(ids)].astype(np.float64) * (np.sqrt(self.width) if gemma else 1)
        for i in range(self.layers):
            at = f"blk.{i}."
            y = self._attention(i, self._norm(x, f"{at}attn_norm"))
            x = x + (self._norm(y, f"{at}post_attention_norm") if f"{at}post_attention_norm" in w else y)
            h = self._norm(x, f"{at}ffn_norm")
            up = w[f"{at}ffn_up"]
            gate, up = (w[f"{at}ffn_gate"], up) if self.arch != "phi3" else (up[: self.inner], up[self.inner :])
            g = h @ gate.T
            act = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) if gemma else g / (1 + np.exp(-g))
            y = (act * (h @ up.T)) @ w[f"{at}ffn_down"].T
            x = x + (self._norm(y, f"{at}post_ffw_norm") if f"{at}post_ffw_norm" in w else y)
        y = self._norm(x, "output_norm") @ w.get("output", w["token_embd"]).T
        return 30 * np.tanh(y / 30) if self.arch == "gemma2" else y

    def _norm(self, x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.weights[name])

    def _attention(self, layer: int, x: Array) -> Array:
        w, at, n, d = self.weights, f"blk.{layer}.", len(x), self.head
        q_rows, kv_rows = self.heads * d, self.kv_heads * d
        if self.arch == "phi3":
            parts = np.split(w[f"{at}attn_qkv"], [q_rows, q_rows + kv_rows])
        else:
            parts = [w[f"{at}attn_{part}"] for part in "qkv"]
        q, k, v = (
            (x @ m.T + w.get(f"{at}attn_{part}.bias", 0)).reshape(n, -1, d)
            for part, m in zip("qkv", parts, strict=True)
        )
        q, k = (self._turned(y, layer, f"{at}attn_{part}_norm") for y, part in ((q, "q"), (k, "k")))
        k, v = (np.repeat(y, self.heads // self.kv_heads, axis=1) for y in (k, v))
        is_large = self.arch == "gemma2" and self.layers >= 46
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(self.width / self.heads if is_large else d)
        scores = 50 * np.tanh(scores / 50) if self.arch == "gemma2" else scores
        ago = np.arange(n)[:, None] - np.arange(n)
        scores = np.where((ago < 0) | (ago >= self._window(layer)), -np.inf, scores)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
        return np.asarray(y @ w[f"{at}attn_output"].T)

    def _is_local(self, layer: int) -> bool:
        return {"gemma2": layer % 2 == 0, "gemma3": layer % 6 < 5}.get(self.arch, True)

    def _window(self, layer: int) -> int:
        return self.keys.get("attention.sliding_window", 1 << 20) if self._is_local(layer) else 1 << 20

    def _turned(self, x: Array, layer: int, norm: str) -> Array:
        x = self._norm(x, norm) if norm in self.weights else x
        if self.arch == "smollm3" and layer % 4 == 3:
            return x
        size = self.keys.get("rope.dimension_count", self.head)
        is_local = self.arch == "gemma3" and self._is_local(layer)
        base = self.keys.get("rope.freq_base_swa", 10000.0) if is_local else 100.0
        turned = x.copy()
        for pair in range(size // 2):
            a, b = (2 * pair, 2 * pair + 1) if self.arch in ("llama", "smollm3") else (pair, pair + size // 2)
            angle = np.arange(len(x))[:, None] * base ** (-2 * pair / size) / self.slower[pair]
            c, s = np.cos(angle) * self.sines, np.sin(angle) * self.sines
            turned[..., a], turned[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
        return turned
