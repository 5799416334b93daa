"""All combinations of the optional operands of onnxruntime's fused operators (domain com.microsoft)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from bolt_numba.types import Array
from tests.converters.test_onnx_microsoft_decoder import COS, HEADS, SIN, lengths, real

F32, F16, BF16 = (np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16))
I8, U8 = np.dtype(np.int8), np.dtype(np.uint8)
Form = tuple[dict[str, Array | None], int, dict[str, Any]]
"""Operands by name in their order, the number of results, attributes."""
FORMS: dict[str, Callable[[], Iterator[Form]]] = {}


def forms(op: str) -> Callable[[Callable[[], Iterator[Form]]], Callable[[], Iterator[Form]]]:
    def register(function: Callable[[], Iterator[Form]]) -> Callable[[], Iterator[Form]]:
        FORMS[op] = function
        return function

    return register


def seen(*shape: int) -> Array:
    """A mask, under which each row sees something."""
    mask = (np.random.default_rng(1).random(shape) < 0.7).astype(np.int32)
    mask[..., 0] = 1
    return mask


def codes(dtype: Any, *shape: int) -> Array:
    """Bytes that are all different, but for their range."""
    return (np.arange(np.prod(shape, dtype=int)) * 37 % 251).astype(U8).view(dtype).reshape(shape)


@forms("MultiHeadAttention")
def multi_head_attention() -> Iterator[Form]:
    n, s, heads, size = 2, 3, 2, 4
    width = heads * size
    for split, biased, mask, added, past, causal in product(
        ("flat", "wide", "split"), (0, 1), ("", "ends", "keys", "pairs"), (0, 1), (0, 3), (0, 1)
    ):
        keys = 5 if split == "split" else 3
        total = keys + past
        v_width = 12 if split == "wide" else width
        k, v = real(n, keys, width), real(n, keys, v_width)
        if split == "split":
            k, v = real(n, heads, keys, size), real(n, heads, keys, size)
        masks = {"": None, "ends": lengths(2, 1), "keys": seen(n, total), "pairs": seen(n, s, total)}
        yield {
            "q": real(n, s, width), "k": k, "v": v,
            "b": real(2 * width + v_width) if biased else None,
            "mask": masks[mask],
            "add": real(*((n, heads), (1, 1))[causal], s, total) if added else None,
            **({"pk": real(n, heads, past, size), "pv": real(n, heads, past, v_width // heads)} if past else {}),
        }, 3 if past else 1, {"num_heads": heads, "unidirectional": causal}  # fmt: skip


@forms("Attention")
def attention() -> Iterator[Form]:
    n, s, heads, size = 2, 3, 2, 4
    width = heads * size
    for biased, mask, past, added, causal, wide in product(
        (0, 1), ("", "ends", "both", "keys", "pairs", "square"), (0, 2), (0, 1), (0, 1), (0, 1)
    ):
        total = s + past
        masks = {
            "": None, "ends": lengths(2, 3), "both": lengths(3, 2, 1, 0), "keys": seen(n, total),
            "pairs": seen(n, s, total), "square": seen(n, 1, 8, 8),
        }  # fmt: skip
        v_width = 12 if wide else width
        yield {
            "x": real(n, s, 6), "w": real(6, 2 * width + v_width), "b": real(2 * width + v_width) if biased else None,
            "mask": masks[mask],
            "past": real(2, n, heads, past, size) if past else None,
            "add": real(*((n, heads), (1, 1))[causal], s, total) if added else None,
        }, 2 if past else 1, {
            "num_heads": heads, "unidirectional": causal,
            **({"qkv_hidden_sizes": [width, width, v_width]} if wide else {}),
        }  # fmt: skip


@forms("DecoderMaskedMultiHeadAttention")
def decoder_masked() -> Iterator[Form]:
    n, heads, size, past, room = 2, 2, 4, 3, 4
    width = heads * size
    for form, mask, added, biased, scores in product(
        ("new", "past", "buffer", "beams", "cross"), (0, 1), (0, 1, 2), (0, 1), (0, 1)
    ):
        if form == "beams" and added == 1:
            continue  # onnxruntime takes the bias of the first sequence for all
        total = {"new": 1, "cross": 5}.get(form, past + 1)
        cross, buffer = form == "cross", form in ("buffer", "beams")
        k, v = (real(n, heads, 5, size) if cross else real(n, 1, width) for _ in range(2))
        held = (n, heads, room if buffer else past, size)
        beams = form == "beams"
        yield {
            "q": real(n, 1, width), "k": k, "v": v, "mask": seen(n, total) if mask else None,
            "add": real(*((n, heads), (1, 1))[added - 1], 1, total) if added else None,
            **{name: None if form in ("new", "cross") else real(*held) for name in ("pk", "pv")},
            "past": lengths(past) if buffer else None,
            "beam": lengths(2) if beams else None,
            "from": np.array([[[0, 1, 0, 9], [1, 0, 1, 9]]], np.int32) if beams else None,
            "b": real(3 * width) if biased else None,
        }, 4 if scores else 1 if form in ("new", "cross") else 3, {
            "num_heads": heads, "past_present_share_buffer": int(buffer), "output_qk": scores,
        }  # fmt: skip


@forms("GroupQueryAttention")
def group_query() -> Iterator[Form]:
    n, heads, groups, size = 2, 4, 2, 16
    for packed, step, turned, added, sink, cap in product((0, 1), (0, 1), (0, 1, 2), (0, 1), (0, 1), (0, 1)):
        s, past = (1, 4) if step else (3, 0)
        total = s + past
        q = {"q": real(n, s, (heads + 2 * groups) * size), "k": None, "v": None} if packed else {
            "q": real(n, s, heads * size), "k": real(n, s, groups * size), "v": real(n, s, groups * size)
        }
        yield {
            **q, "pk": real(n, groups, past, size), "pv": real(n, groups, past, size),
            "len": lengths(total - 1, total - 1), "total": lengths(total),
            "cos": np.tile(COS, 2) if turned else None, "sin": np.tile(SIN, 2) if turned else None,
            "at": np.arange(past, total)[None].repeat(n, 0) if turned == 2 else None,
            "add": real(n, heads, s, total) if added else None,
            "sink": real(heads) if sink else None,
        }, 3, HEADS | ({"do_rotary": 1} if turned else {}) | ({"softcap": 3.0} if cap else {})  # fmt: skip


@forms("RotaryEmbedding")
def rotary_embedding() -> Iterator[Form]:
    for shape, positions, scale, interleaved in product(((2, 5, 24), (2, 3, 5, 8)), (0, 1), (1.0, 0.5), (0, 1)):
        at = np.arange(10).reshape(2, 5) if positions else np.array([3])
        yield {"x": real(*shape), "at": at, "cos": COS, "sin": SIN}, 1, {"scale": scale, "interleaved": interleaved}


@forms("SkipLayerNormalization")
def skip_layer_normalization() -> Iterator[Form]:
    for skip, beta, bias, results in product(((2, 3, 8), (1, 3, 8), (3, 8)), (0, 1), (0, 1), (1, 4)):
        yield {
            "x": real(2, 3, 8), "s": real(*skip), "g": real(8),
            "b": real(8) if beta else None, "c": real(8) if bias else None,
        }, results, {"epsilon": 1e-5}  # fmt: skip


@forms("SkipSimplifiedLayerNormalization")
def skip_simplified() -> Iterator[Form]:
    for skip, bias, results in product(((2, 3, 8), (1, 3, 8), (3, 8)), (0, 1), (1, 4)):
        yield {
            "x": real(2, 3, 8), "s": real(*skip), "g": real(8), "c": real(8) if bias else None,
        }, results, {"epsilon": 1e-5}  # fmt: skip


@forms("EmbedLayerNormalization")
def embed() -> Iterator[Form]:
    ids = np.arange(6, dtype=np.int32).reshape(2, 3) % 5
    for segments, masked, at, results in product((0, 1), (0, 1), (0, 1, 2), (2, 3)):
        yield {
            "ids": ids, "segments": ids % 2 if segments else None, "w": real(5, 4), "p": real(6, 4),
            "s": real(2, 4) if segments else None, "g": real(4), "b": real(4),
            "m": seen(2, 3) if masked else None,
            "at": np.array([[2, 1, 0], [0, 1, 2]], np.int32)[:at] if at else None,
        }, results, {"mask_index_type": masked}  # fmt: skip


ACTIVATIONS: dict[str, list[float]] = {
    "": [], "Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.3], "Clip": [-0.5, 1.0], "HardSigmoid": [0.2, 0.4],
}  # fmt: skip


@forms("FusedConv")
def fused_conv() -> Iterator[Form]:
    for activation, params in ACTIVATIONS.items():
        for biased, added in product((0, 1), (0, 1)):
            yield {
                "x": real(1, 3, 6, 6), "w": real(4, 3, 3, 3), "b": real(4) if biased else None,
                "z": real(1, 4, 4, 4) if added else None,
            }, 1, {k: v for k, v in (("activation", activation), ("activation_params", params)) if v}  # fmt: skip


@forms("FusedGemm")
def fused_gemm() -> Iterator[Form]:
    for activation, params in ACTIVATIONS.items():
        if activation in ("", "Clip"):
            continue
        named = dict(zip(("activation_alpha", "activation_beta"), params, strict=False))
        for c in (None, (5,), (3, 5), (1,), (3, 1), ()):
            yield {
                "x": real(3, 4), "w": real(4, 5), "c": None if c is None else real(*c),
            }, 1, {"activation": activation, "alpha": 0.5, "beta": 2.0, **named}  # fmt: skip


@forms("FusedMatMul")
def fused_matmul() -> Iterator[Form]:
    for a, b, c, d, alpha in product((0, 1), (0, 1), (0, 1), (0, 1), (1.0, 0.5)):
        x = real(2, 4, 3) if a else real(2, 3, 4)
        y = real(2, 5, 4) if b else real(2, 4, 5)
        x = np.ascontiguousarray(np.moveaxis(x, 0, 1)) if c else x
        y = np.ascontiguousarray(np.moveaxis(y, 0, 1)) if d else y
        yield {"x": x, "y": y}, 1, {"transA": a, "transB": b, "transBatchA": c, "transBatchB": d, "alpha": alpha}


@forms("FastGelu")
def fast_gelu() -> Iterator[Form]:
    for b in (0, 1):
        yield {"x": real(2, 3, 8), "b": real(8) if b else None}, 1, {}


@forms("BiasGelu")
def bias_gelu() -> Iterator[Form]:
    yield {"x": real(2, 3, 8), "b": real(8)}, 1, {}


@forms("Gelu")
def gelu() -> Iterator[Form]:
    yield {"x": real(2, 3, 8)}, 1, {}


@forms("QuickGelu")
def quick_gelu() -> Iterator[Form]:
    yield {"x": real(2, 3, 8)}, 1, {}
    yield {"x": real(2, 3, 8)}, 1, {"alpha": 1.5}


@forms("ScaledSiLU")
def scaled_silu() -> Iterator[Form]:
    for s in (0, 1):
        yield {"x": real(2, 3, 8), "s": np.array(0.25, F32) if s else None}, 1, {"alpha": 0.5}


@forms("GatedAdd")
def gated_add() -> Iterator[Form]:
    yield {"x": real(2, 3, 8), "y": real(2, 3, 8), "g": real(2, 3, 1)}, 1, {}


@forms("GatedRMSNorm")
def gated_rms() -> Iterator[Form]:
    for a, w in product(("silu", "swish", "sigmoid"), (4, 8)):
        yield {"x": real(2, 3, 8), "s": real(w), "g": real(2, 3, 8)}, 1, {"activation": a}


@forms("MatMulIntegerToFloat")
def matmul_integer_to_float() -> Iterator[Form]:
    for columns, x_zero, y_zero, biased, signed in product((0, 1), (0, 1), (0, 1), (0, 1), (0, 1)):
        one = (5,) if columns else ()
        yield {
            "x": codes(U8, 3, 4), "w": codes(I8 if signed else U8, 4, 5), "xs": np.array(0.1, F32),
            "ws": np.full(one, 0.07, F32), "xz": np.array(7, U8) if x_zero else None,
            "wz": codes(I8 if signed else U8, *one) if y_zero else None, "b": real(5) if biased else None,
        }, 1, {}  # fmt: skip


@forms("DynamicQuantizeMatMul")
def dynamic_quantize_matmul() -> Iterator[Form]:
    for columns, zero, biased in product((0, 1), (0, 1), (0, 1)):
        one = (5,) if columns else ()
        yield {
            "x": real(3, 4), "w": codes(I8, 4, 5), "ws": np.full(one, 0.07, F32),
            "wz": codes(I8, *one) if zero else None, "b": real(5) if biased else None,
        }, 1, {}  # fmt: skip


@forms("QAttention")
def qattention() -> Iterator[Form]:
    n, s, heads, size = 2, 3, 2, 4
    for columns, mask, x_zero, w_zero, past, causal in product(
        (0, 1), ("", "ends", "keys"), (0, 1), (0, 1), (0, 2), (0, 1)
    ):
        one = (3 * heads * size,) if columns else ()
        yield {
            "x": codes(U8, n, s, 6), "w": codes(I8, 6, 24), "b": real(24),
            "xs": np.array(0.01, F32), "ws": np.full(one, 0.01, F32),
            "mask": {"": None, "ends": lengths(2, 3), "keys": seen(n, s + past)}[mask],
            "xz": np.array(120, U8) if x_zero else None, "wz": np.full(one, 3, I8) if w_zero else None,
            "past": real(2, n, heads, past, size) if past else None,
        }, 2 if past else 1, {"num_heads": heads, "unidirectional": causal}  # fmt: skip


@forms("QGemm")
def qgemm() -> Iterator[Form]:
    for columns, biased, stored, tx, tw, alpha in product((0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (1.0, 0.5)):
        one = (5,) if columns else ()
        yield {
            "x": codes(U8, *((4, 3) if tx else (3, 4))), "xs": np.array(0.02, F32), "xz": np.array(120, U8),
            "w": codes(U8, *((5, 4) if tw else (4, 5))), "ws": np.full(one, 0.03, F32), "wz": np.full(one, 110, U8),
            "c": np.arange(5, dtype=np.int32) * 40 if biased else None,
            "ys": np.array(0.05, F32) if stored else None, "yz": np.array(128, U8) if stored else None,
        }, 1, {"transA": tx, "transB": tw, "alpha": alpha}  # fmt: skip


def points(*parts: int) -> Iterator[tuple[dict[str, Array | None], ...]]:
    """Scales and zero points of that many operands, each zero point there or not."""
    for given in product((0, 1), repeat=len(parts)):
        yield tuple(
            {f"s{i}": np.array(0.02 + i / 100, F32), f"z{i}": np.array(zero, U8) if there else None}
            for i, (zero, there) in enumerate(zip(parts, given, strict=True))
        )


@forms("QLinearAdd")
@forms("QLinearMul")
def qlinear_binary() -> Iterator[Form]:
    for x, y, z in points(120, 110, 128):
        yield {"x": codes(U8, 2, 3), **x, "y": codes(U8, 3), **y, **z}, 1, {}


@forms("QLinearSigmoid")
@forms("QLinearLeakyRelu")
def qlinear_unary() -> Iterator[Form]:
    for x, y in points(120, 3):
        yield {"x": codes(U8, 2, 3), **x, **y}, 1, {}


@forms("QLinearSoftmax")
def qlinear_softmax() -> Iterator[Form]:
    for x, y in points(120, 0):
        yield {"x": codes(U8, 2, 6), **x, **y}, 1, {"axis": -1, "opset": 13}


@forms("QLinearAveragePool")
def qlinear_average_pool() -> Iterator[Form]:
    for (x, y), last in product(points(120, 110), (0, 1)):
        yield {"x": codes(U8, 1, 4, 4, 2), **x, **y}, 1, {"kernel_shape": [2, 2], "channels_last": last}


@forms("QLinearGlobalAveragePool")
def qlinear_global_average_pool() -> Iterator[Form]:
    for (x, y), last in product(points(120, 110), (0, 1)):
        yield {"x": codes(U8, 1, 4, 4, 2), **x, **y}, 1, {"channels_last": last}


@forms("QLinearWhere")
def qlinear_where() -> Iterator[Form]:
    for x, y, z in points(120, 110, 128):
        yield {"c": np.arange(6).reshape(2, 3) % 2 == 0, "x": codes(U8, 2, 3), **x, "y": codes(U8, 3), **y, **z}, 1, {}


@forms("MatMulNBits")
def matmul_nbits() -> Iterator[Form]:
    for bits, zero, grouped, biased, K in product(
        (2, 4, 8), ("", "codes", "real"), ("", "full", "ragged"), (0, 1), (32, 40)
    ):
        if grouped and (bits == 2 or zero == "codes"):
            continue  # onnxruntime takes other zero points than those that are there
        blocks, N = -(-K // 16), 5
        order = np.random.default_rng(2).permutation(K) // 16
        groups = {"": None, "full": order.astype(np.int32), "ragged": np.arange(K, dtype=np.int32) * 7 // 16 % blocks}
        zeros = {"": None, "codes": codes(U8, N, -(-blocks * bits // 8)), "real": np.abs(real(N, blocks))}
        yield {
            "x": real(2, K), "w": codes(U8, N, blocks, 16 * bits // 8), "s": real(N, blocks), "z": zeros[zero],
            "g": groups[grouped], "b": real(N) if biased else None,
        }, 1, {"K": K, "N": N, "bits": bits, "block_size": 16}  # fmt: skip


@forms("GatherBlockQuantized")
def gather_block_quantized() -> Iterator[Form]:
    rows = np.array([[0, 5, -1], [3, 3, 2]])
    for bits, zero, axis in product((2, 4, 8), (0, 1), (1, -1)):
        yield {
            "w": codes(U8, 6, 32 * bits // 8), "i": rows, "s": real(6, 2),
            "z": codes(U8, 6, -(-2 * bits // 8)) if zero else None,
        }, 1, {"bits": bits, "block_size": 16, "quantize_axis": axis}  # fmt: skip


HELD = {"MatMulNBits": "wszgb", "GatherBlockQuantized": "wsz", "QAttention": ["w", "b", "xs", "ws", "xz", "wz"]}
"""Operands that are constants of the file."""


def rounded(inputs: Mapping[str, Array | None], dtype: Any, stored: Any) -> dict[str, Array]:
    """Operands that are there, floats rounded to one dtype and stored as another."""
    return {
        name: a.astype(dtype).astype(stored) if a.dtype == F32 else a for name, a in inputs.items() if a is not None
    }


def form_model(op: str, form: Form, arrays: Mapping[str, Array], dtype: Any) -> ModelProto:
    inputs, results, attributes = form
    held = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in HELD.get(op, ())]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items()
        if n not in HELD.get(op, ())
    ]
    outputs = [ValueInfoProto(name=f"y{i}") for i in range(results)]
    if "MultiHead" in op and results == 4:
        outputs[3] = helper.make_tensor_value_info("y3", helper.np_dtype_to_tensor_dtype(dtype), None)
    names = ["" if a is None else n for n, a in inputs.items()]
    node = helper.make_node(op, names, [o.name for o in outputs], domain="com.microsoft", **attributes)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", infos, outputs, held)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
