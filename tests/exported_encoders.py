"""Small encoders of transformers as torch exports them, without their weights, for tests of rows of unequal lengths.

    python -m tests.exported_encoders     # writes tests/golden/encoders/transformers.npz.xz; wants torch, transformers

The file holds models by name; `model` puts weights into one.
"""

from __future__ import annotations

import io
import lzma
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.formats import GOLDEN, packed

FILE = "encoders/transformers.npz.xz"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WORDS, MOST = 200, 64
KEPT_BYTES = 256
"""Smaller weights stay in the file: frequencies and their like are among them."""

SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 70}
APART = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "num_labels": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
TURNED = {"pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "rotary"}
SMALL = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 70}
T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
BUCKETS = {"position_buckets": 16, "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("Bert", "ForSequenceClassification", SIZES | {"num_labels": 1}, "sdpa"),
    "bert program": ("Bert", "ForSequenceClassification", SIZES | {"num_labels": 1}, "program"),
    "bert tokens": ("Bert", "ForTokenClassification", SIZES | {"num_labels": 5}, "eager"),
    "distilbert": ("DistilBert", "ForSequenceClassification", SMALL | {"num_labels": 3}, "sdpa"),
    "roberta": ("Roberta", "ForSequenceClassification", SIZES | {"num_labels": 1}, "sdpa"),
    "xlm-roberta": ("XLMRoberta", "Model", SIZES, "eager"),
    "albert": ("Albert", "ForSequenceClassification", SIZES | {"embedding_size": 16}, "sdpa"),
    "electra": ("Electra", "ForSequenceClassification", SIZES | {"embedding_size": 16}, "sdpa"),
    "esm": ("Esm", "Model", SIZES | TURNED, "sdpa"),
    "nomic": ("NomicBert", "Model", SIZES, "sdpa"),
    "modernbert": ("ModernBert", "ForSequenceClassification", SIZES | TOKENS | {"num_labels": 1}, "sdpa"),
    "modernbert program": ("ModernBert", "ForSequenceClassification", SIZES | TOKENS | {"num_labels": 1}, "program"),
    "qwen3": ("Qwen3", "Model", SIZES | {"num_key_value_heads": 1, "head_dim": 16, "use_cache": False}, "sdpa"),
    "mpnet": ("MPNet", "Model", SIZES, "eager"),
    "t5": ("T5", "EncoderModel", T5, "sdpa"),
    "deberta": ("Deberta", "ForSequenceClassification", SIZES | APART, "eager"),
    "deberta-v2": ("DebertaV2", "ForSequenceClassification", SIZES | APART | BUCKETS, "eager"),
}
"""Class, what stands on top, sizes, and how it is exported."""


def model(name: str) -> bytes:
    """A model with weights that depend on its name alone."""
    proto = onnx.load_from_string(packed(FILE)[name].tobytes())
    rng = np.random.default_rng(len(name))
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and not tensor.raw_data:
            tensor.raw_data = rng.normal(0, 0.3, [*tensor.dims]).astype(np.float32).tobytes()
    return proto.SerializeToString()  # type: ignore[no-any-return]


def _exported(name: str, path: Path) -> onnx.ModelProto:
    import torch
    import transformers

    kind, top, sizes, way = ARCHITECTURES[name]
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(**sizes)
    settings._attn_implementation = "eager" if way == "eager" else "sdpa"
    net = getattr(transformers, f"{kind}{top}")(settings).eval()
    names = INPUTS[: 3 if "token_type_ids" in net.forward.__code__.co_varnames and kind != "NomicBert" else 2]

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, *given: Any) -> Any:
            made = self.net(**dict(zip(names, given, strict=True)))
            return made.logits if top.startswith("For") else made.last_hidden_state

    given = (torch.randint(5, WORDS, (2, 11)), *(torch.ones(2, 11, dtype=int) for _ in names[1:]))
    options: dict[str, Any] = {"input_names": list(names), "output_names": ["y"]}
    if way == "program":
        open_axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", max=MOST)}
        options |= {"dynamo": True, "dynamic_shapes": (tuple(open_axes for _ in names),), "external_data": False}
    else:
        options |= {"dynamo": False, "dynamic_axes": {n: {0: "rows", 1: "tokens"} for n in (*names, "y")}}
    torch.onnx.export(Plain().eval(), given, path, opset_version=18, **options)
    return onnx.load(path)


def main() -> None:
    """Write the file."""
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ARCHITECTURES:
            proto = _exported(name, Path(folder) / "model.onnx")
            del proto.graph.value_info[:], proto.metadata_props[:]
            for node in proto.graph.node:
                node.ClearField("doc_string")
                del node.metadata_props[:]
            for tensor in proto.graph.initializer:
                if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.raw_data) > KEPT_BYTES:
                    tensor.ClearField("raw_data")
            made[name] = np.frombuffer(proto.SerializeToString(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **made)
    (GOLDEN / FILE).parent.mkdir(exist_ok=True)
    (GOLDEN / FILE).write_bytes(lzma.compress(buffer.getvalue(), preset=9))


if __name__ == "__main__":
    main()
