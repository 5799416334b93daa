"""Forms of onnxruntime's layers and mixtures of experts, as `microsoft_forms` has those of its fused operators."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from bolt_numba.types import Array
from tests.converters.microsoft_forms import F32, HELD, U8, Form, codes, forms
from tests.converters.test_onnx_microsoft_decoder import real

HELD |= {
    "MatMulBnb4": "wa", "CropAndResize": "c",
    "QMoE": ["w1", "s1", "w2", "s2", "z1", "z2"],
}  # fmt: skip


def scores(rows: int, experts: int) -> Array:
    """No two are equal in any dtype."""
    return np.random.default_rng(3).permutation(rows * experts).reshape(rows, experts).astype(F32) / 8


@forms("MatMulBnb4")
def matmul_bnb4() -> Iterator[Form]:
    for kind, block in product((0, 1), (16, 32)):
        inputs = {"x": real(2, 20), "w": codes(U8, 60), "a": np.abs(real(-(-120 // block)))}
        yield inputs, 1, {"K": 20, "N": 6, "block_size": block, "quant_type": kind}


@forms("MoE")
def moe() -> Iterator[Form]:
    experts, width, inner = 4, 8, 6
    for activation, k, normal, first, second, deep in product(
        ("relu", "gelu", "silu", "identity", "swiglu"), (1, 2), (0, 1), (0, 1), (0, 1), (0, 1)
    ):
        twice = 2 if activation == "swiglu" else 1
        yield {
            "x": real(2, 3, width) if deep else real(6, width), "r": scores(6, experts),
            "w1": real(experts, twice * inner, width), "b1": real(experts, twice * inner) if first else None,
            "w2": real(experts, width, inner), "b2": real(experts, width) if second else None,
        }, 1, {
            "activation_type": activation, "k": k, "normalize_routing_weights": normal, "swiglu_fusion": twice - 1,
            **({"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 2.0} if twice == 2 and k == 2 else {}),
        }  # fmt: skip


@forms("QMoE")
def qmoe() -> Iterator[Form]:
    experts, width, inner = 3, 32, 16
    for bits, block, zeros, biased, swiglu, normal in product((2, 4, 8), (0, 16), (0, 1), (0, 1), (0, 1), (0, 1)):
        if bits == 8 and block:
            continue  # onnxruntime rounds activations to bytes
        rows = inner * (2 if swiglu else 1)
        shapes = (experts, rows, width), (experts, width, inner)
        (w1, s1, z1), (w2, s2, z2) = (
            (
                codes(U8, e, n, depth * bits // 8),
                np.abs(real(e, n, depth // block) if block else real(e, n)) * F32.type(0.02) + F32.type(0.01),
                codes(U8, e, n, -(-depth // block * bits // 8)) if block else codes(U8, e, -(-n * bits // 8)),
            )
            for e, n, depth in shapes
        )
        yield {
            "x": real(5, width), "r": scores(5, experts),
            "w1": w1, "s1": s1, "b1": real(experts, rows) if biased else None,
            "w2": w2, "s2": s2, "b2": real(experts, width) if biased else None,
            "w3": None, "s3": None, "b3": None, "z1": z1 if zeros else None, "z2": z2 if zeros else None,
        }, 1, {
            "k": 2, "expert_weight_bits": bits, "normalize_routing_weights": normal, "weights_prepacked": 0,
            **({"activation_type": "swiglu", "swiglu_fusion": 1} if swiglu else {"activation_type": "silu"}),
            **({"block_size": block} if block else {}),
        }  # fmt: skip
    yield from qmoe_of_groups()


def qmoe_of_groups() -> Iterator[Form]:
    """Whole groups of 32 weights, whose scales are f16: rows meet the experts that they choose alone."""
    experts, width, inner = 5, 64, 32
    for bits, block, biased in ((4, 0, 1), (4, 32, 0), (8, 0, 1)):
        (w1, s1, b1), (w2, s2, b2) = (
            (
                codes(U8, e, n, depth * bits // 8),
                (real(e, n, *([depth // block] if block else [])) * F32.type(0.02)).astype(np.float16).astype(F32),
                real(e, n) if biased else None,
            )
            for e, n, depth in ((experts, 2 * inner, width), (experts, width, inner))
        )
        yield {
            "x": real(7, width), "r": scores(7, experts), "w1": w1, "s1": s1, "b1": b1, "w2": w2, "s2": s2, "b2": b2,
        }, 1, {
            "k": 2, "expert_weight_bits": bits, "activation_type": "swiglu", "swiglu_fusion": 1, "weights_prepacked": 0,
            **({"block_size": block} if block else {}),
        }  # fmt: skip


@forms("Inverse")
def inverse() -> Iterator[Form]:
    for shape in ((3, 3), (2, 4, 4)):
        yield {"x": real(*shape) + 4 * np.eye(shape[-1], dtype=F32)}, 1, {}


@forms("UnfoldTensor")
def unfold() -> Iterator[Form]:
    for dim, size, step in product((-1, 0, 1, 2), (1, 3), (1, 2)):
        yield {"x": real(4, 7, 5)}, 1, {"dim": dim, "size": size, "step": step}


@forms("NGramRepeatBlock")
def forbid_repetition() -> Iterator[Form]:
    ids = np.array([[1, 2, 3, 1, 2, 1, 2], [4, 4, 4, 4, 4, 4, 4], [5, 3, 1, 0, 2, 4, 5]])
    for size, length in product((1, 2, 3, 5), (1, 2, 3, 7)):
        yield {"ids": ids[:, :length], "s": real(3, 6)}, 1, {"ngram_size": size}


@forms("CropAndResize")
def crop_and_resize() -> Iterator[Form]:
    boxes = np.array([[0, 0, 1, 1], [0.21, 0.13, 0.71, 0.94], [-0.2, 0.05, 1.2, 1.01], [0.9, 0.8, 0.1, 0.2]], F32)
    for mode, height, width in product(("bilinear", "nearest"), (1, 4), (1, 3)):
        yield {
            "x": real(2, 3, 5, 6), "r": boxes, "b": np.array([0, 1, 1, 0], np.int32),
            "c": np.array([height, width], np.int32),
        }, 1, {"mode": mode, "extrapolation_value": 7.0}  # fmt: skip


@forms("CausalConvWithState")
def causal_conv() -> Iterator[Form]:
    n, c, s = 2, 4, 5
    for activation, biased, past, last, dilation, size in product(
        ("none", "silu"), (0, 1), (0, 1), (0, 1), (1, 2), (1, 3)
    ):
        held = (size - 1) * dilation
        yield {
            "x": real(n, s, c) if last else real(n, c, s), "w": real(c, 1, size), "b": real(c) if biased else None,
            "p": (real(n, held, c) if last else real(n, c, held)) if past else None,
        }, 2, {"activation": activation, "channels_last": last, "dilation": dilation}  # fmt: skip


@forms("LinearAttention")
def linear_attention() -> Iterator[Form]:
    n, s, d, e = 2, 3, 4, 5
    rules = ("linear", "gated", "delta", "gated_delta")
    shares = ((2, 2, 2), (4, 2, 2), (2, 4, 2), (2, 4, 4))
    for rule, past, by_elements, one, (queries, heads, keys) in product(rules, (0, 1), (0, 1), (0, 1), shares):
        yield {
            "q": real(n, s, queries * d), "k": real(n, s, keys * d), "v": real(n, s, heads * e),
            "p": real(n, heads, d, e) if past else None,
            "d": -np.abs(real(n, s, heads * (d if by_elements else 1))) if "gated" in rule else None,
            "b": np.abs(real(n, s, 1 if one else heads)) if "delta" in rule else None,
        }, 2, {
            "q_num_heads": queries, "kv_num_heads": heads, "update_rule": rule, "scale": 0.3 if one else 0.0,
        }  # fmt: skip


@forms("MRotaryEmbedding")
def multimodal_rotary_embedding() -> Iterator[Form]:
    n, heads, s, half = 2, 3, 4, 8
    for turns, layout, more, flat in product((0, 1), (0, 1), (0, 4), (0, 1)):
        size = 2 * half + more
        angles = np.arange(20)[:, None] * 0.5 ** np.arange(half)
        yield {
            "x": real(n, s, heads * size) if flat else real(n, heads, s, size),
            "p": np.random.default_rng(4).integers(0, 20, (3, n, s)),
            "c": np.cos(angles).astype(F32), "s": np.sin(angles).astype(F32),
        }, 1, {
            "interleaved": turns, "mrope_layout": layout, "mrope_section": [4, 2, 2],
            **({"num_heads": heads, "rotary_embedding_dim": 2 * half} if more or flat else {}),
        }  # fmt: skip


@forms("BranchwiseRMSNorm")
def branchwise_norm() -> Iterator[Form]:
    for flat, scale in product((0, 1), ((), (6,), (4, 6), (24,))):
        inputs = {"x": real(2, 3, 24) if flat else real(2, 3, 4, 6), "s": real(*scale) if scale else None}
        yield inputs, 1, {"num_branches": 4} if flat else {}


@forms("LinearAttentionGate")
def linear_attention_gate() -> Iterator[Form]:
    for second in (0, 1):
        inputs = {"a": real(2, 3, 4), "t": real(4), "s": -np.abs(real(4)), "b": real(2, 3, 4) if second else None}
        yield inputs, 1 + second, {}


@forms("GatedDeltaNet")
def gated_delta_net() -> Iterator[Form]:
    n, s, d, e, keys, heads = 2, 3, 4, 5, 2, 4
    for deep, gate, by_elements, fused in product((0, 1, 2), ("none", "softplus", "sigmoid"), (0, 1), (0, 1)):
        rows = (n, s) if deep == 1 else (n * s,)
        decay = real(*rows, heads, d) if by_elements else real(*rows, heads)
        yield {
            "q": real(*rows, 2 * keys * d + heads * e) if deep == 2 else real(*rows, keys, d),
            "k": None if deep == 2 else real(*rows, keys, d), "v": None if deep == 2 else real(*rows, heads, e),
            "cu": None, "d": -np.abs(decay), "b": np.abs(real(*rows, heads)), "p": real(n, heads, e, d),
            **({} if gate == "none" else {"a": real(heads), "t": real(heads, d) if by_elements else real(heads)}),
        }, 2, {
            "gate_activation": gate, "beta_activation": "sigmoid" if fused else "none", "qk_l2_norm": fused,
        }  # fmt: skip


@forms("WordConvEmbedding")
def word_conv_embedding() -> Iterator[Form]:
    words = np.array([[1, 2, 3, 0, 0], [4, 2, 0, 1, 1], [3, 0, 0, 0, 0], [1, 2, 3, 4, 1]], np.int32)
    for window in (1, 2, 3, 5):
        yield {"s": words, "w": real(6, 1, window, 3), "b": real(6), "c": real(5, 3)}, 1, {}
