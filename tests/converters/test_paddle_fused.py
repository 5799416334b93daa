"""Operators that passes of Paddle make of several, against what those compute one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import F32, Array
from tests.paddle_program import feed, fetch, op, program, var

RNG = np.random.default_rng(9)


def real(*dims: int) -> Array:
    return RNG.standard_normal(dims).astype(F32)


def results(
    type: str, operands: Mapping[str, Array | Sequence[Array]], outputs: Sequence[str], **attributes: Any
) -> list[Array]:
    """What a program of one operator gives, by the session; the interpreter must give the same."""
    slots, feeds = {}, {}
    for slot, given in operands.items():
        arrays = [given] if isinstance(given, np.ndarray) else list(given)
        slots[slot] = [f"{slot}{i}".lower() for i in range(len(arrays))]
        feeds |= dict(zip(slots[slot], arrays, strict=True))
    parts = [feed(name, i) for i, name in enumerate(feeds)]
    parts.append(op(type, slots, {slot: [f"out_{slot}"] for slot in outputs}, **attributes))
    parts += [fetch(f"out_{slot}", i) for i, slot in enumerate(outputs)]
    parts += [var(name, array.dtype, [-1, *array.shape[1:]]) for name, array in feeds.items()]
    model = bn.load(program(parts))
    found = list(bn.compile(model).run(None, feeds))
    for got, again in zip(found, interpret(model, feeds).values(), strict=True):
        np.testing.assert_allclose(got, again, rtol=1e-4, atol=1e-5)
    return found


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def normal(x: Array, scale: Array, bias: Array, epsilon: float = 1e-5) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * scale + bias)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def near(got: Array, wanted: Array) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "function"), [("add", np.add), ("mul", np.multiply), ("max", np.maximum)])
def test_activations_stand_behind_elementwise_operators(name: str, function: Any) -> None:
    x, y = real(2, 3, 4), real(3)
    (got,) = results(f"fusion_elementwise_{name}_activation", {"X": x, "Y": y}, ["Out"], axis=1, act_type="relu")
    near(got, relu(function(x, y[:, None])))


def test_the_order_of_functions_says_which_is_outside() -> None:
    x, y = real(2, 3), real(2, 3)
    pairs = [(["relu", "elementwise_add"], relu(x + y)), (["elementwise_mul", "tanh"], x * np.tanh(y))]
    for functors, wanted in pairs:
        (got,) = results("fused_elemwise_activation", {"X": x, "Y": y}, ["Out"], functor_list=functors, axis=-1)
        near(got, wanted)
    (got,) = results(
        "fused_elemwise_activation", {"X": x, "Y": y}, ["Out"], functor_list=["scale", "elementwise_sub"], scale=0.5
    )
    near(got, (x - y) / 2)


def test_layer_norms_of_sums() -> None:
    x, y, scale, bias = real(2, 3, 4), real(2, 3, 4), real(4), real(4)
    operands = {"X": x, "Y": y, "Scale": scale, "Bias": bias}
    (got,) = results("skip_layernorm", operands, ["Out"], epsilon=1e-3, begin_norm_axis=2)
    near(got, normal(x + y, scale, bias, 1e-3))
    added = {"X": x, "Residual": y, "Bias": bias, "LnScale": scale, "LnBias": bias}
    (got,) = results("fused_bias_dropout_residual_layer_norm", added, ["Y"], is_test=True, dropout_rate=0.25)
    near(got, normal((x + bias) * F32.type(0.75) + y, scale, bias))


def test_layers_with_their_norms() -> None:
    x, w, y, first, scale, second = real(3, 5), real(5, 4), real(3, 4), real(4), real(4), real(4)
    operands = {"X": x, "W": w, "Y": y, "Bias0": first, "Scale": scale, "Bias1": second}
    (got,) = results("fused_fc_elementwise_layernorm", operands, ["Out"], activation_type="relu", x_num_col_dims=1)
    near(got, normal(relu(x @ w + first) + y, scale, second))


def test_sums_of_rows_of_several_tables() -> None:
    ids = [RNG.integers(0, 5, (2, 3, 1)) for _ in range(3)]
    tables = [real(5, 4) for _ in range(3)]
    scale, bias = real(4), real(4)
    (got,) = results(
        "fused_embedding_eltwise_layernorm", {"Ids": ids, "Embs": tables, "Bias": bias, "Scale": scale}, ["Out"]
    )
    near(got, normal(sum(t[i[..., 0]] for i, t in zip(ids, tables, strict=True)), scale, bias))


@pytest.mark.parametrize("with_bias", [False, True])
def test_attention_of_heads(with_bias: bool) -> None:
    x, w, bias, more = real(2, 5, 6), real(6, 3, 8), real(3, 8), real(2, 2, 5, 5)
    operands = {"Input": x, "W": w, "Bias": bias} | ({"BiasQK": more} if with_bias else {})
    (got,) = results("multihead_matmul", operands, ["Out"], head_number=2, alpha=0.5)
    q, k, v = (np.einsum("ntf,fw->ntw", x, w[:, i]) + bias[i] for i in range(3))
    q, k, v = (a.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3) for a in (q, k, v))
    seen = softmax(0.5 * q @ k.transpose(0, 1, 3, 2) + (more if with_bias else 0)) @ v
    near(got, seen.transpose(0, 2, 1, 3).reshape(2, 5, 8))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_queries_to_more_keys(causal: bool) -> None:
    q, k, v = real(1, 3, 2, 4), real(1, 5, 2, 4), real(1, 5, 2, 4)
    (got,) = results("flash_attn", {"q": q, "k": k, "v": v}, ["out"], causal=causal)
    scores = np.einsum("nthd,nshd->nhts", q, k) / 2
    if causal:
        scores = np.where(np.arange(5) > np.arange(3)[:, None] + 2, -np.inf, scores)
    near(got, np.einsum("nhts,nshd->nthd", softmax(scores), v))


def test_softmax_with_masks() -> None:
    x, mask = real(1, 2, 4, 4), real(1, 1, 4, 4)
    near(results("fused_softmax_mask", {"X": x, "Mask": mask}, ["Out"])[0], softmax(x + mask))
    wanted = softmax(np.where(np.arange(4) > np.arange(4)[:, None], -np.inf, x))
    near(results("fused_softmax_mask_upper_triangle", {"X": x}, ["Out"])[0], wanted)


def test_products_with_what_follows() -> None:
    x, y, bias = real(3, 4), real(5, 4), real(5)
    operands = {"X": x, "Y": y, "Bias": bias}
    (got,) = results("fused_gemm_epilogue", operands, ["Out"], trans_y=True, activation="relu")
    near(got, relu(x @ y.T + bias))
    w, biases = [real(4, 5), real(5, 2)], [real(5), real(2)]
    (got,) = results("fusion_repeated_fc_relu", {"X": x, "W": w, "Bias": biases}, ["Out"])
    near(got, relu(relu(x @ w[0] + biases[0]) @ w[1] + biases[1]))


def test_a_factor_for_each_channel() -> None:
    scale, x, bias = real(2, 3), real(2, 3, 4, 5), real(2, 3, 4, 5)
    (got,) = results("axpy", {"Scale": scale, "X": x, "Bias": bias}, ["Out"])
    near(got, scale[:, :, None, None] * x + bias)


@pytest.mark.parametrize("merged", [False, True])
def test_blanks_and_repetitions_go(merged: bool) -> None:
    labels = np.array([[0, 1, 1, 0, 1, 2, 2], [3, 3, 0, 0, 3, 4, 0], [0, 0, 0, 0, 0, 0, 5]], np.int32)
    lengths = np.array([[7], [5], [6]], np.int64)
    got, counts = results(
        "ctc_align", {"Input": labels, "InputLength": lengths}, ["Output", "OutputLength"], blank=0,
        merge_repeated=merged, padding_value=9,
    )  # fmt: skip
    for row, length, found, count in zip(labels, lengths[:, 0], got, counts[:, 0], strict=True):
        seen = [v for i, v in enumerate(row[:length]) if v and not (merged and i and v == row[i - 1])]
        assert found.tolist() == seen + [9] * (7 - len(seen))
        assert count == len(seen)
