"""A folder for onnxruntime-genai with the weights of a GGUF file: products of 4 bits with activations of 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T

from bench.decoders import MICROSOFT, Writer, value
from bolt_numba.converters.gguf.container import read_container
from bolt_numba.ops.layers.products.forms import FORMS

BLOCK, BYTES = 32, 4
"""Weights that share a scale, and `accuracy_level` of products that round activations to bytes."""


class Decoder(Writer):
    """The graph of a llama."""

    def __init__(self, model: Path, context: int) -> None:
        super().__init__()
        file = read_container(model.read_bytes(), model.name)
        self.tensors = file.tensors
        said = {name.removeprefix("llama."): value for name, value in file.values.items()}
        self.layers, self.hidden = said["block_count"], said["embedding_length"]
        self.heads, self.groups = said["attention.head_count"], said["attention.head_count_kv"]
        self.epsilon, self.size = said["attention.layer_norm_rms_epsilon"], self.hidden // self.heads
        self.words = int(self.tensors["token_embd.weight"].shape[0])
        turns = said["rope.freq_base"] ** (-np.arange(self.size // 2) / (self.size // 2))
        angles = np.outer(np.arange(context), turns)
        for name, f in (("cos", np.cos), ("sin", np.sin)):
            self.const(name, f(angles).astype(np.float32))

    def parts(self, *names: str) -> tuple[Any, Any, Any, int]:
        """Codes, scales and zeros of weights one below the other, and the bits of a code."""
        forms = [FORMS[self.tensors[name].kind] for name in names]
        made = [form.parts(self.tensors[n].data) for form, n in zip(forms, names, strict=True)]
        codes, scales, offsets = (np.concatenate(part) for part in zip(*made, strict=True))
        zeros = np.rint(-offsets / np.where(scales == 0, 1, scales)).clip(0, 2 ** forms[0].bits - 1)
        return codes, scales, zeros.astype(np.uint8), forms[0].bits

    def product(self, x: str, *names: str, out: str = "") -> str:
        """A product with W^T as MatMulNBits; zeros that are not the middle are rounded to whole codes."""
        codes, scales, zeros, bits = self.parts(*names)
        n, k = codes.shape
        packed = codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4
        weights = self.const(names[0], packed.reshape(n, k // BLOCK, -1))
        operands = [x, weights, self.const(f"{names[0]}.scales", scales)]
        if (zeros != 1 << bits - 1).any():
            even = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
            operands.append(self.const(f"{names[0]}.zeros", even[:, 0::2] | even[:, 1::2] << 4))
        made: str = self(
            "MatMulNBits", *operands, outs=[out or f"{names[0]}.out"], domain=MICROSOFT, K=k, N=n, bits=bits,
            block_size=BLOCK, accuracy_level=BYTES,
        )  # fmt: skip
        return made

    def normal(self, x: str, more: str, name: str) -> tuple[str, str]:
        """The sum, and the sum normalised."""
        scale = self.const(name, self.tensors[name].data)
        outs = [f"{name}.out", "", "", f"{name}.sum"]
        self("SkipSimplifiedLayerNormalization", x, more, scale, outs=outs, domain=MICROSOFT, epsilon=self.epsilon)
        return outs[3], outs[0]

    def layer(self, i: int, x: str, more: str, lengths: tuple[str, str]) -> tuple[str, str]:
        """x, and what its feed-forward part adds."""
        at = f"blk.{i}."
        x, normal = self.normal(x, more, f"{at}attn_norm.weight")
        packed = self.product(normal, *(f"{at}attn_{part}.weight" for part in "qkv"))
        names = [f"{kind}.{i}.{part}" for kind in ("past_key_values", "present") for part in ("key", "value")]
        attended = self(
            "GroupQueryAttention", packed, "", "", *names[:2], *lengths, "cos", "sin", outs=[f"{at}a", *names[2:]],
            domain=MICROSOFT, num_heads=self.heads, kv_num_heads=self.groups, do_rotary=1, rotary_interleaved=1,
        )[0]  # fmt: skip
        x, normal = self.normal(x, self.product(attended, f"{at}attn_output.weight"), f"{at}ffn_norm.weight")
        gate, up = (self.product(normal, f"{at}ffn_{part}.weight") for part in ("gate", "up"))
        gated = self("Mul", self("Mul", gate, self("Sigmoid", gate)), up)
        return x, self.product(gated, f"{at}ffn_down.weight")

    def model(self) -> onnx.ModelProto:
        one, axis = self.const("one", np.array([1])), self.const("axis", np.array(1))
        lengths = self("Cast", self("Sub", self("ReduceSum", "attention_mask", one, keepdims=0), one), to=T.INT32)
        total = self("Cast", self("Gather", self("Shape", "attention_mask"), axis), to=T.INT32)
        embedded = FORMS[self.tensors["token_embd.weight"].kind]
        table = self.const("table", embedded.weights(self.tensors["token_embd.weight"].data))
        x = self("Gather", table, "input_ids")
        more = self("Mul", x, self.const("none", np.float32(0)))
        for i in range(self.layers):
            x, more = self.layer(i, x, more, (lengths, total))
        _, normal = self.normal(x, more, "output_norm.weight")
        head = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        self.product(normal, head, out="logits")
        cache = ("b", self.groups, "p", self.size)
        pasts, presents = (
            [value(f"{kind}.{i}.{part}", cache) for i in range(self.layers) for part in ("key", "value")]
            for kind in ("past_key_values", "present")
        )
        ids, mask = value("input_ids", ["b", "s"], T.INT64), value("attention_mask", ["b", "t"], T.INT64)
        graph = self.graph([ids, mask, *pasts], [value("logits", ["b", "s", self.words]), *presents])
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(MICROSOFT, 1)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write(model: Path, folder: Path, context: int = 1024) -> Path:
    """The folder, made once."""
    if (folder / "genai_config.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    made = Decoder(model, context)
    onnx.save_model(made.model(), folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    names = {
        "inputs": {
            "input_ids": "input_ids", "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value",
        },
    }  # fmt: skip
    decoder = {
        "session_options": {"provider_options": []}, "filename": "model.onnx", "head_size": made.size,
        "hidden_size": made.hidden, "num_attention_heads": made.heads, "num_hidden_layers": made.layers,
        "num_key_value_heads": made.groups, **names,
    }  # fmt: skip
    told = {
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "context_length": context, "type": "llama",
        "vocab_size": made.words, "decoder": decoder,
    }  # fmt: skip
    search = {"do_sample": False, "max_length": context, "past_present_share_buffer": True}
    (folder / "genai_config.json").write_text(json.dumps({"model": told, "search": search}), encoding="utf-8")
    return folder
