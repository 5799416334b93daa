"""Operators of decoders with caches, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, ValueInfoProto, helper

import bolt_numba as bn
from bolt_numba.errors import BoltError, UnsupportedOpError
from bolt_numba.types import Array
from tests.near import assert_near

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(5)
COS, SIN = (f(np.arange(32)[:, None] * 0.3 ** np.arange(4)[None]).astype("f4") for f in (np.cos, np.sin))


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def lengths(*values: int) -> Array:
    return np.array(values, np.int32)


def node_model(op: str, inputs: Mapping[str, Array | None], outputs: int, attributes: dict[str, Any]) -> ModelProto:
    """One node whose operands are all inputs."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
        if a is not None
    ]
    results = [f"y{i}" for i in range(outputs)]
    names = ["" if a is None else n for n, a in inputs.items()]
    node = helper.make_node(op, names, results, domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", infos, [ValueInfoProto(name=n) for n in results])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def agrees(op: str, inputs: Mapping[str, Array | None], outputs: int, attributes: dict[str, Any]) -> None:
    data = node_model(op, inputs, outputs, attributes).SerializeToString()
    feeds = {n: a for n, a in inputs.items() if a is not None}
    wanted = onnxruntime.InferenceSession(data).run(None, feeds)
    for got, want in zip(bn.compile(data, threads=1).run(None, feeds), wanted, strict=True):
        assert_near(got, want, 1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "positions", "more"),
    [
        ((2, 5, 24), np.arange(10).reshape(2, 5) % 7, {}),
        ((2, 5, 24), np.array([4]), {}),
        ((2, 3, 5, 8), np.array([4]), {}),
        ((2, 5, 36), np.array([1]), {"num_heads": 3, "rotary_embedding_dim": 8}),
    ],
)
def test_rotary_embedding(shape: tuple[int, ...], positions: Array, more: dict[str, int], interleaved: int) -> None:
    inputs = {"x": real(*shape), "at": positions.astype(np.int64), "cos": COS, "sin": SIN}
    agrees("RotaryEmbedding", inputs, 1, {"interleaved": interleaved, **more})


@pytest.mark.parametrize("dim", [5, -2])
def test_a_part_of_a_head_to_turn_is_even(dim: int) -> None:
    """The standard's operator: half of 5 was taken for 2."""
    shapes = {"x": (2, 3, 4, 8), "cos": (2, 4, 2), "sin": (2, 4, 2)}
    infos = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    node = helper.make_node("RotaryEmbedding", list(shapes), ["y"], rotary_embedding_dim=dim)
    graph = helper.make_graph([node], "g", infos, [ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    with pytest.raises(BoltError, match=f"rotary_embedding_dim: got {dim}, wanted an even number"):
        bn.load(model.SerializeToString())


def attention(s: int, past: int, seqlens: Array, total: int, packed: bool = False, rotary: bool = False) -> Any:
    """Operands of GroupQueryAttention: 4 heads of 16, 2 of them for keys and values."""
    n = len(seqlens)
    q = {"q": real(n, s, 128), "k": None, "v": None} if packed else {
        "q": real(n, s, 64), "k": real(n, s, 32), "v": real(n, s, 32)
    }  # fmt: skip
    made: dict[str, Array | None] = {
        **q, "pk": real(n, 2, past, 16), "pv": real(n, 2, past, 16),
        "len": seqlens, "total": np.array([total], np.int32)
    }  # fmt: skip
    return made | ({"cos": np.tile(COS, 2), "sin": np.tile(SIN, 2)} if rotary else {})


HEADS = {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("s", "past", "seqlens", "total"),
    [(5, 0, lengths(4, 4), 5), (1, 6, lengths(6, 6), 7), (1, 6, lengths(6, 3), 7), (1, 16, lengths(6, 3), 7)],
    ids=["prompt", "decode", "ragged", "preallocated"],
)
def test_group_query_attention(s: int, past: int, seqlens: Array, total: int, packed: bool, rotary: bool) -> None:
    inputs = attention(s, past, seqlens, total, packed, rotary)
    attributes = HEADS | ({"do_rotary": 1} if rotary else {})
    data = node_model("GroupQueryAttention", inputs, 3, attributes).SerializeToString()
    feeds = {n: a for n, a in inputs.items() if a is not None}
    wanted = onnxruntime.InferenceSession(data).run(None, feeds)
    got = bn.compile(data, threads=1).run(None, feeds)
    assert_near(got[0], wanted[0], 1e-5)
    for mine, theirs in zip(got[1:], wanted[1:], strict=True):
        assert mine.shape == theirs.shape
        for b, last in enumerate(seqlens):  # what lies behind the valid keys means nothing
            assert_near(mine[b, :, : last + 1], theirs[b, :, : last + 1], 1e-5)


@pytest.mark.parametrize(
    "more",
    [{"local_window_size": w} for w in (3, 1, 0, -2)] + [{"softcap": c} for c in (2.0, -1.0)] + [{"scale": 0.2}],
    ids=str,
)
@pytest.mark.parametrize(("s", "past", "total"), [(5, 0, 5), (1, 6, 7)])
def test_group_query_attention_variants(s: int, past: int, total: int, more: dict[str, Any]) -> None:
    agrees("GroupQueryAttention", attention(s, past, lengths(total - 1, total - 1), total), 3, HEADS | more)


@pytest.mark.parametrize("drain", ["head_sink", "smooth_softmax"])
@pytest.mark.parametrize(("s", "past", "total"), [(5, 0, 5), (1, 6, 7)])
def test_group_query_attention_with_a_key_that_has_no_value(s: int, past: int, total: int, drain: str) -> None:
    inputs = attention(s, past, lengths(total - 1, total - 1), total)
    inputs |= {"cos": None, "sin": None, "at": None, "bias": None, "sink": real(4) if drain == "head_sink" else None}
    more = {"smooth_softmax": 1} if drain == "smooth_softmax" else {}
    agrees("GroupQueryAttention", inputs, 3, HEADS | more)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("images", [1, 2])
def test_group_query_attention_with_bias(heads: int, images: int) -> None:
    inputs = attention(1, 6, lengths(6, 6), 7) | {"cos": None, "sin": None, "at": None}
    agrees("GroupQueryAttention", inputs | {"bias": real(images, heads, 1, 7)}, 3, HEADS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pk": real(2, 2, 6, 8)}, "shape of past_k"),
        ({"pk": real(1, 2, 6, 16)}, "shape of past_k"),
        ({"pv": real(2, 2, 9, 16)}, "shape of past_v"),
        ({"pv": None}, "past_k and past_v: got one"),
        ({"v": real(2, 1, 16)}, "shape of v"),
        ({"len": lengths(6)}, "shape of seqlens_k"),
        ({"cos": None, "sin": None, "at": None, "bias": real(3, 5, 1, 7)}, "shape of bias"),
        ({"cos": None, "sin": None, "at": None, "bias": None, "sink": real(3)}, "shape of sink"),
    ],
)
def test_caches_that_do_not_fit_are_refused(changed: dict[str, Array | None], message: str) -> None:
    model = node_model("GroupQueryAttention", attention(1, 6, lengths(6, 6), 7) | changed, 3, HEADS)
    with pytest.raises(BoltError, match=message):
        bn.load(model.SerializeToString())


@pytest.mark.parametrize("seqlens", [(600, 6), (-9, 6), (2**31 - 1, -(2**31))])
def test_lengths_beyond_the_cache_are_refused(seqlens: tuple[int, int]) -> None:
    """The session runs on with the lengths that fit."""
    inputs = attention(1, 16, lengths(6, 6), 7)
    sess = bn.compile(node_model("GroupQueryAttention", inputs, 3, HEADS).SerializeToString(), threads=1)
    feeds = {n: a for n, a in inputs.items() if a is not None}
    wanted = sess.run(None, feeds)[0]
    with pytest.raises(bn.DataError, match="GroupQueryAttention"):
        sess.run(None, feeds | {"len": lengths(*seqlens)})
    np.testing.assert_array_equal(sess.run(None, feeds)[0], wanted)


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize(("s", "past", "total"), [(5, 0, 5), (9, 0, 9), (1, 6, 7), (1, 16, 7)])
def test_caches_of_bytes(s: int, past: int, total: int, kind: str) -> None:
    """As onnxruntime has them; the rows behind what is valid are none of its own."""
    inputs = attention(s, past, lengths(total - 1, total - 1), total)
    inputs |= {name: RNG.integers(-127, 128, inputs[name].shape).astype(np.int8) for name in ("pk", "pv")}
    inputs |= dict.fromkeys(("cos", "sin", "at", "bias", "sink"))
    shape = (1,) if kind == "PER_TENSOR" else (2, 1, 16)
    inputs |= {f"{name}_scale": RNG.uniform(0.01, 0.03, shape).astype(np.float32) for name in "kv"}
    more = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8}
    agrees("GroupQueryAttention", inputs, 3, HEADS | more)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"kv_cache_bit_width": 4}, UnsupportedOpError, "4 bits"),
        ({"k_quant_type": "PER_ROW"}, UnsupportedOpError, "PER_ROW"),
        ({"k_quant_type": "PER_TENSOR"}, BoltError, "both, with scales and a past"),
        ({"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}, BoltError, "both, with scales and a past"),
    ],
    ids=str,
)  # fmt: skip
def test_caches_of_other_bits_and_without_scales_are_refused(
    more: dict[str, Any], error: type[BoltError], message: str
) -> None:
    model = node_model("GroupQueryAttention", attention(1, 6, lengths(6, 6), 7), 3, HEADS | more)
    with pytest.raises(error, match=message):
        bn.load(model.SerializeToString())


@pytest.mark.parametrize("threads", [1, 2])
def test_decoding_appends_to_one_cache_with_one_plan(threads: int) -> None:
    """A prompt, then one element after the other; the same in one pass over everything."""
    length, room = 12, 16
    whole = attention(length, 0, lengths(length - 1), length, rotary=True)
    data = node_model("GroupQueryAttention", whole, 3, HEADS | {"do_rotary": 1}).SerializeToString()
    (wanted, keys, _) = onnxruntime.InferenceSession(data).run(None, whole)
    step = attention(1, room, lengths(0), 1, rotary=True)
    step |= {"pk": np.zeros((1, 2, room, 16), np.float32), "pv": np.zeros((1, 2, room, 16), np.float32)}
    model = node_model("GroupQueryAttention", step, 3, HEADS | {"do_rotary": 1}).SerializeToString()
    with bn.compile(model, threads=threads) as sess:
        y = np.empty((1, 1, 64), np.float32)
        for i in range(length):
            new = {name: np.ascontiguousarray(whole[name][:, i : i + 1]) for name in "qkv"}  # type: ignore[index]
            numbers = {"len": lengths(i), "total": np.array([i + 1], np.int32)}
            sess.run_into({**step, **new, **numbers}, {"y0": y, "y1": step["pk"], "y2": step["pv"]})
            assert_near(y[:, 0], wanted[:, i], 1e-5)
        assert_near(step["pk"][:, :, :length], keys, 1e-5)
        runner = sess._runner
        assert len(runner.prepared) == 1
        assert {row["runner"] for row in sess.report() if row["op"] == "GroupQueryAttention"} == {"attention_cached"}
        (prepared,) = runner.prepared.values()
        assert prepared.can_overwrite(1, 3)
        assert prepared.can_overwrite(2, 4)


def test_a_total_that_outgrows_the_past_has_its_own_plan() -> None:
    inputs = attention(1, 6, lengths(3, 3), 4)
    data = node_model("GroupQueryAttention", inputs, 3, HEADS).SerializeToString()
    sess, judge = bn.compile(data, threads=1), onnxruntime.InferenceSession(data)
    for total in (4, 7, 3):
        inputs |= {"len": lengths(total - 1, total - 1), "total": np.array([total], np.int32)}
        feeds = {n: a for n, a in inputs.items() if a is not None}
        got, wanted = sess.run(None, feeds), judge.run(None, feeds)
        assert_near(got[0], wanted[0], 1e-5)
        assert got[1].shape == wanted[1].shape
    assert len(sess._runner.prepared) == 2


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_past(past: int, causal: int) -> None:
    inputs: dict[str, Array | None] = {"q": real(2, 4, 24), "k": real(2, 4, 24), "v": real(2, 4, 24)}
    inputs |= {"b": real(72), "mask": None, "bias": real(1, 3, 4, 4 + past)}
    inputs |= {"pk": real(2, 3, past, 8), "pv": real(2, 3, past, 8)} if past else {}
    agrees("MultiHeadAttention", inputs, 3, {"num_heads": 3, "unidirectional": causal})


@pytest.mark.parametrize("biased", [False, True])
def test_packed_multi_head_attention(biased: bool) -> None:
    """Queries, keys and values in one operand, and keys and values in one, mean what they mean apart.

    onnxruntime has these forms on other devices only, so the judge gets them apart.
    """
    q, k, v = real(2, 4, 3, 8), real(2, 5, 3, 8), real(2, 5, 3, 8)
    bias = {"b": real(72)} if biased else {}
    for keys, values in ((k, v), (q + 1, q - 1)):
        flat = {name: a.reshape(*a.shape[:2], 24) for name, a in (("q", q), ("k", keys), ("v", values))}
        model = node_model("MultiHeadAttention", flat | bias, 1, {"num_heads": 3})
        (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, flat | bias)
        forms: list[dict[str, Array | None]] = [{"q": flat["q"], "k": np.stack([keys, values], 3), "v": None}]
        if keys.shape == q.shape:
            forms.append({"q": np.stack([q, keys, values], 3), "k": None, "v": None})
        for operands in forms:
            data = node_model("MultiHeadAttention", operands | bias, 1, {"num_heads": 3}).SerializeToString()
            feeds = {n: a for n, a in (operands | bias).items() if a is not None}
            assert_near(bn.compile(data, threads=1).run(None, feeds)[0], wanted, 1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_decoder_masked_attention_over_a_shared_buffer(masked: bool, biased: bool) -> None:
    inputs: dict[str, Array | None] = {name: real(2, 1, 24) for name in "qkv"}
    inputs["mask"] = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]], np.int32) if masked else None
    inputs |= {"add": None, "pk": real(2, 3, 9, 8), "pv": real(2, 3, 9, 8), "past": lengths(4)}
    inputs |= {"beams": None, "indirection": None, "b": real(72) if biased else None}
    attributes = {"num_heads": 3, "past_present_share_buffer": 1}
    data = node_model("DecoderMaskedMultiHeadAttention", inputs, 3, attributes).SerializeToString()
    feeds = {n: a for n, a in inputs.items() if a is not None}
    judge, sess = onnxruntime.InferenceSession(data), bn.compile(data, threads=1)
    for past in (4,) if masked else (4, 8, 0):
        feeds["past"] = lengths(past)
        wanted, got = judge.run(None, feeds), sess.run(None, feeds)
        assert_near(got[0], wanted[0], 1e-5)
        for mine, theirs in zip(got[1:], wanted[1:], strict=True):
            assert_near(mine[:, :, : past + 1], theirs[:, :, : past + 1], 1e-5)
    assert len(sess._runner.prepared) == 1


def test_decoder_masked_attention_to_an_encoder() -> None:
    inputs = {"q": real(2, 1, 24), "k": real(2, 3, 6, 8), "v": real(2, 3, 6, 8)}
    agrees("DecoderMaskedMultiHeadAttention", inputs, 1, {"num_heads": 3})


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "keys", "pairs"])
def test_attention_with_past(past: int, causal: int, mask: str) -> None:
    inputs: dict[str, Array | None] = {"x": real(2, 4, 12), "w": real(12, 72), "b": real(72)}
    shape = {"keys": (2, 4 + past), "pairs": (2, 4, 4 + past)}.get(mask)
    inputs["mask"] = None if shape is None else (RNG.random(shape) < 0.8).astype(np.int32)
    if past:
        inputs["past"] = real(2, 2, 3, past, 8)
    agrees("Attention", inputs, 2 if past else 1, {"num_heads": 3, "unidirectional": causal})


@pytest.mark.parametrize("starts", [False, True])
def test_attention_with_lengths_of_masks(starts: bool) -> None:
    ends = lengths(4, 2, 0, 1) if starts else lengths(4, 2)
    inputs = {"x": real(2, 4, 12), "w": real(12, 72), "b": real(72), "mask": ends}
    agrees("Attention", inputs, 1, {"num_heads": 3})


@pytest.mark.parametrize("masked", [False, True])
def test_embed_layer_normalization(masked: bool) -> None:
    ids = RNG.integers(0, 5, (2, 3)).astype(np.int32)
    inputs: dict[str, Array | None] = {"ids": ids, "segments": ids % 2, "w": real(5, 4), "p": real(6, 4)}
    inputs |= {"s": real(2, 4), "g": real(4), "b": real(4)}
    inputs |= {"m": np.array([[1, 1, 0], [1, 1, 1]], np.int32)} if masked else {}
    agrees("EmbedLayerNormalization", inputs, 2, {})


@pytest.mark.parametrize("ends", [(2, 3), (2, 3, 1, 0)])
def test_lengths_of_masks_of_any_number_of_sequences(ends: tuple[int, ...]) -> None:
    """The number of sequences is a name, as in models of the BERT family."""
    inputs = {"x": real(2, 4, 12), "w": real(12, 72), "b": real(72), "mask": lengths(*ends)}
    model = node_model("Attention", inputs, 1, {"num_heads": 3})
    for place, name in ((0, "n"), (3, "n" if len(ends) == 2 else "lengths")):
        model.graph.input[place].type.tensor_type.shape.dim[0].dim_param = name
    data = model.SerializeToString()
    wanted = onnxruntime.InferenceSession(data).run(None, inputs)
    assert_near(bn.compile(data, threads=1).run(None, inputs)[0], wanted[0], 1e-5)


def test_a_mask_of_other_lengths_is_refused() -> None:
    inputs = {"x": real(2, 4, 12), "w": real(12, 72), "b": real(72), "mask": lengths(1, 2, 3)}
    with pytest.raises(UnsupportedOpError, match="a mask of 3 lengths for 2 sequences"):
        bn.load(node_model("Attention", inputs, 1, {"num_heads": 3}).SerializeToString())
