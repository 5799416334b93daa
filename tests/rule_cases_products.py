"""Cases for the rules about products, weights, layout and fusion; see rule_cases."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.types import BOOL, F32, U8, TensorType
from tests.rule_cases import f32, fires, i64, o, whole

# ---- products

fires("transpose_into_matmul", "MatMul", a=(3, 2, 4), c=(3, 5, 4))(
    lambda b, a, c: b(o("MatMul"), a, b(o("Transpose", (0, 2, 1)), c))
)
fires("scale_into_matmul", "MatMul", a=(2, 4), c=(4, 5))(lambda b, a, c: b(o("Div"), b(o("MatMul"), a, c), f32(4)))
fires("query_scale_into_matmul", "MatMul", a=(2, 4), c=(4, 5))(
    lambda b, a, c: b(o("MatMul"), b(o("Mul"), a, f32(2)), c)
)
fires("key_scale_into_matmul", "Transpose MatMul", a=(2, 4), c=(5, 4))(
    lambda b, a, c: b(o("MatMul"), a, b(o("Mul"), b(o("Transpose", (1, 0)), c), f32(2)))
)
fires("scale_after_transpose", "Transpose Mul", x=(2, 3))(
    lambda b, x: b(o("Transpose", (1, 0)), b(o("Mul"), x, f32(2)))
)


def _weights(b: Builder, scores: Any) -> Any:
    return b(o("Softmax"), scores)


@fires("attention", "FusedAttention", 1e-5, q=("n", 2, 4, 8), k=("n", 2, 5, 8), v=("n", 2, 5, 3))
def attention(b: Builder, q: Value, k: Value, v: Value) -> Any:
    return b(o("MatMul"), _weights(b, b(o("MatMul", trans_b=True, alpha=0.5), q, k)), v)


@fires("attention", "Transpose Transpose FusedAttention", 1e-5, q=(2, 4, 8), k=(2, 5, 8), v=(2, 5, 3))
def attention_transposed_key(b: Builder, q: Value, k: Value, v: Value) -> Any:
    return b(o("MatMul"), _weights(b, b(o("MatMul"), q, b(o("Transpose", (0, 2, 1)), k))), v)


@fires("attention_masked", "FusedAttention", 1e-5, q=(2, 4, 8), k=(2, 5, 8), v=(2, 5, 3), mask=(1, 4, 5))
def attention_masked(b: Builder, q: Value, k: Value, v: Value, mask: Value) -> Any:
    return b(o("MatMul"), _weights(b, b(o("Add"), mask, b(o("MatMul", trans_b=True), q, k))), v)


@fires("attention_guarded", "Where FusedAttention", 1e-5, q=(2, 4, 8), k=(2, 5, 8), v=(2, 5, 3), keep=(BOOL, 4, 5))
def attention_guarded(b: Builder, q: Value, k: Value, v: Value, keep: Value) -> Any:
    mask = b(o("Where"), keep, f32(0), f32(-np.inf))
    weights = _weights(b, b(o("Add"), b(o("MatMul", trans_b=True), q, k), mask))
    return b(o("MatMul"), b(o("Where"), b(o("IsNaN"), weights), f32(0), weights), v)


@fires("transpose_into_attention", "FusedAttention", 1e-5, q=(2, 4, 3, 8), k=(2, 5, 3, 8), v=(2, 3, 5, 3))
def heads_inside(b: Builder, q: Value, k: Value, v: Value) -> Any:
    heads_first = o("Transpose", (0, 2, 1, 3))
    return b(o("FusedAttention", scale=0.5), b(heads_first, q), b(heads_first, k), v)


@fires("transpose_from_attention", "FusedAttention", 1e-5, q=(2, 4, 8), k=(2, 5, 8), v=(2, 5, 3))
def heads_out_inside(b: Builder, q: Value, k: Value, v: Value) -> Any:
    return b(o("Transpose", (1, 0, 2)), b(o("FusedAttention", scale=0.5), q, k, v))


@fires("split_into_attention", "Reshape FusedAttention", 1e-5, x=("n", 4, 48))
def parts_of_one_product(b: Builder, x: Value) -> Any:
    parts = b.node(o("Split", axis=2, num_outputs=3), x, i64(16, 16, 16)).outputs
    q, k, v = (b(o("Reshape"), part, i64(0, 0, 2, 8)) for part in parts)
    return b(o("FusedAttention", scale=0.5, q_layout="SHD", k_layout="SHD", v_layout="SHD"), q, k, v)


@fires("stack_into_attention", "Reshape FusedAttention", 1e-5, x=(2, 4, 3, 2, 8), mask=(4, 4))
def rows_of_a_stack(b: Builder, x: Value, mask: Value) -> Any:
    stack = b(o("Transpose", (2, 0, 3, 1, 4)), x)
    q, k, v = (b(o("Gather"), stack, np.array(i)) for i in range(3))
    return b(o("FusedAttention", scale=0.5), q, k, v, mask)


@fires("stack_into_attention", "Reshape FusedAttention", 1e-5, x=(2, 4, 3, 2, 8))
def parts_of_a_stack(b: Builder, x: Value) -> Any:
    parts = b.node(o("Split", axis=0, num_outputs=3), b(o("Transpose", (2, 0, 3, 1, 4)), x)).outputs
    q, k, v = (b(o("Reshape"), part, i64(2, 2, 4, 8)) for part in parts)
    return b(o("FusedAttention", scale=0.5), q, k, v)


fires("scale_into_attention_q", "FusedAttention", 1e-5, q=(2, 4, 8), k=(2, 5, 8), v=(2, 5, 3))(
    lambda b, q, k, v: b(o("FusedAttention", scale=0.5), b(o("Div"), q, f32(4)), k, v)
)
fires("scale_into_attention_k", "FusedAttention", 1e-5, q=(2, 4, 8), k=(2, 5, 8), v=(2, 5, 3))(
    lambda b, q, k, v: b(o("FusedAttention", scale=0.5), q, b(o("Mul"), k, f32(0.25)), v)
)


@fires("mask_from_where", "MatMul Where Add Softmax", 1e-6, q=(2, 4, 8), k=(2, 8, 5), keep=(BOOL, 4, 5))
def where_mask(b: Builder, q: Value, k: Value, keep: Value) -> Any:
    low = np.array(-np.inf, F32)
    return b(o("Softmax"), b(o("Where"), keep, b(o("MatMul"), q, k), low))


for _equation, _after, _shapes in (
    ("bqhd,bkhd->bhqk", "Transpose Transpose MatMul", ((2, 3, 4, 5), (2, 6, 4, 5))),
    ("btd,dhk->bthk", "Reshape MatMul Reshape", (("b", "t", 8), (8, 2, 4))),
    ("...ij,...jk->...ik", "Transpose Reshape MatMul Reshape Transpose", ((2, 3, 4, 5), (3, 5, 6))),
    ("iij,j->i", "Transpose Reshape Slice Transpose Reshape MatMul Reshape", ((4, 4, 3), (3,))),
    ("i,j->ij", "Reshape Reshape Mul", ((3,), (4,))),
    ("abc,cd->b", "ReduceSum ReduceSum Reshape MatMul Reshape", ((2, 3, 4), (4, 5))),
):
    fires("einsum", _after, **dict(zip("xz", _shapes, strict=True)))(
        lambda b, x, z, e=_equation: b(o("Einsum", e), x, z)
    )

# ---- weights


def _conv(b: Builder, x: Value, k: int = 3, *, kernel: int = 1, bias: bool = True, **attributes: Any) -> Any:
    w = whole(k, x.type.dims[1] // attributes.get("group", 1), kernel, kernel, seed=1)
    return b(o("Conv", **attributes), x, w, whole(k, seed=2) if bias else None)


def _channels(*numbers: float) -> Any:
    return f32(*numbers).reshape(-1, 1, 1)


@fires("split_batch_norm", "Mul Add", 1e-5, x=(2, 3, 4, 4))
def batch_norm(b: Builder, x: Value) -> Any:
    return b(o("BatchNormalization"), x, f32(1, 2, 3), f32(4, 5, 6), f32(1, -1, 2), f32(4, 1, 9))


@fires("split_batch_norm", "Add Mul Add", 1e-5, x=(2, 3, 4, 4))
def batch_norm_far_from_zero(b: Builder, x: Value) -> Any:
    return b(o("BatchNormalization"), x, f32(1, 2, 3), f32(4, 5, 6), f32(1, -1000, 2), f32(4, 1, 9))


def _batch_norm(b: Builder, x: Any) -> Any:
    return b(o("BatchNormalization"), x, f32(1, 2, 4), f32(4, 5, 6), f32(1, -1, 2), f32(3, 1, 8))


fires("batch_norm_into_weights", "Conv", 1e-5, x=(1, 2, 4, 4))(lambda b, x: _batch_norm(b, _conv(b, x)))
fires("batch_norm_into_weights", "Conv", 1e-5, x=(1, 3, 4, 4))(
    lambda b, x: _batch_norm(b, _conv(b, x, group=3, bias=False))
)
fires("batch_norm_into_weights", "ConvTranspose", 1e-5, x=(1, 4, 3, 3))(
    lambda b, x: _batch_norm(b, b(o("ConvTranspose"), x, whole(4, 3, 2, 2)))
)
fires("batch_norm_into_weights", "MatMul", 1e-5, x=(2, 4))(lambda b, x: _batch_norm(b, b(o("MatMul"), x, whole(4, 3))))
fires("affine_into_weights", "Conv", x=(1, 2, 4, 4))(
    lambda b, x: b(o("Add"), b(o("Mul"), _conv(b, x), _channels(1, 2, 3)), _channels(3, 2, 1))
)
fires("affine_into_weights", "Conv", x=(1, 4, 4, 4))(lambda b, x: b(o("Mul"), _conv(b, x, 6, group=2), f32(2)))
fires("affine_into_weights", "ConvTranspose", x=(1, 4, 3, 3))(
    lambda b, x: b(o("Mul"), b(o("ConvTranspose", group=2), x, whole(4, 3, 2, 2)), whole(1, 6, 1, 1))
)
fires("affine_into_weights", "MatMul", x=(2, 4))(
    lambda b, x: b(o("Add"), b(o("MatMul", trans_b=True), x, whole(5, 4)), whole(5))
)
fires("affine_into_weights", "Conv", x=(1, 2, 4, 4))(lambda b, x: b(o("Neg"), _conv(b, x)))
fires("affine_before_weights", "Conv", x=(1, 4, 4, 4))(
    lambda b, x: _conv(b, b(o("Mul"), x, _channels(1, 2, 3, 4)), 6, group=2)
)
fires("affine_before_weights", "Add Conv", x=(1, 4, 4, 4))(
    lambda b, x: _conv(b, b(o("Mul"), b(o("Add"), x, f32(2)), _channels(1, 2, 3, 4)), 6)
)
fires("shift_before_weights", "Conv", x=(1, 4, 4, 4))(
    lambda b, x: _conv(b, b(o("Add"), b(o("Mul"), x, _channels(1, 2, 3, 4)), f32(2)), 6, group=2)
)
fires("shift_before_weights", "MatMul", x=(2, 4))(
    lambda b, x: b(o("MatMul"), b(o("Add"), b(o("Mul"), x, f32(1, 2, 3, 4)), f32(1)), whole(4, 5), whole(5))
)
fires("affine_before_weights", "Conv", x=(1, 2, 4, 4))(
    lambda b, x: _conv(b, b(o("Mul"), x, _channels(1, 2)), kernel=3, pads=(1, 1, 1, 1), bias=False)
)
fires("affine_before_weights", "ConvTranspose", x=(1, 4, 3, 3))(
    lambda b, x: b(o("ConvTranspose", group=2), b(o("Mul"), x, _channels(1, 2, 3, 4)), whole(4, 3, 2, 2))
)
fires("affine_before_weights", "MatMul", x=(2, 4))(
    lambda b, x: b(o("MatMul"), b(o("Mul"), x, f32(1, 2, 3, 4)), whole(4, 5), whole(5))
)
fires("pad_into_window", "Conv", x=(1, 2, 4, 4))(
    lambda b, x: _conv(b, b(o("Pad"), x, i64(0, 0, 1, 0, 0, 0, 2, 1)), kernel=3, pads=(1, 1, 1, 1))
)
fires("pad_into_window", "AveragePool", 1e-6, x=(1, 2, 4, 4))(
    lambda b, x: b(o("AveragePool", (2, 2)), b(o("Pad"), x, i64(1, 1, 1, 1), None, i64(2, 3)))
)
fires("pad_into_max_pool", "MaxPool", x=(1, 2, 4, 4))(
    lambda b, x: b(o("MaxPool", (3, 3), strides=(2, 2)), b(o("Pad", "edge"), x, i64(0, 0, 0, 1, 0, 0, 1, 1)))
)
fires("pad_into_max_pool", "Relu MaxPool", x=(1, 2, 4, 4))(
    lambda b, x: b(o("MaxPool", (3, 3)), b(o("Pad"), b(o("Relu"), x), i64(0, 0, 1, 1, 0, 0, 1, 1)))
)

# ---- layout

fires("channels_last", "Transpose Conv Transpose", x=(1, 2, 5, 4))(
    lambda b, x: _conv(b, x, kernel=3, strides=(2, 1), pads=(1, 0, 1, 0))
)
fires("channels_last", "Transpose Conv Transpose", x=(1, 2, 9))(
    lambda b, x: b(o("Conv", dilations=(2,)), x, whole(3, 2, 3))
)
fires("channels_last", "Transpose MaxPool Transpose", x=("n", 2, "h", 4))(lambda b, x: b(o("MaxPool", (2, 3)), x))
fires("channels_last", "Transpose BatchNormalization Transpose", x=("n", 2))(
    lambda b, x: b(o("BatchNormalization"), x, *[whole(2)] * 3, np.ones(2, F32))
)
fires("channels_last", "Transpose MaxPool Transpose Transpose", x=(1, 2, 3, 4))(
    lambda b, x: b(o("MaxPool", (2, 2), indices=True), x)
)
fires("transpose_to_reshape", "Reshape", x=("n", 5, 1, 1))(lambda b, x: b(o("Transpose", (0, 2, 3, 1)), x))
fires("transpose_to_reshape", "Squeeze Unsqueeze", x=("n", "h", "w", 1))(
    lambda b, x: b(o("Transpose", (0, 3, 1, 2)), x)
)
fires("fit_channels_last", "FitImage", x=(U8, 5, 6, 3))(
    lambda b, x: b(o("Transpose", (0, 2, 3, 1)), b(o("FitImage", (4, 4)), x, np.ones(3, F32), np.zeros(3, F32)))
)

# ---- fusion

fires("fuse_residual", "Conv", x=(1, 3, 4, 4))(lambda b, x: b(o("Add"), x, _conv(b, x)))
fires("fuse_residual", "MatMul", x=(2, 4), y=(2, 4))(lambda b, x, y: b(o("Add"), b(o("MatMul"), x, whole(4, 4)), y))
fires("fuse_activation", "Conv", x=(1, 3, 4, 4))(lambda b, x: b(o("Clip", 0.0, 6.0), _conv(b, x)))
fires("activation_before_move", "MatMul Relu Reshape", x=(2, 4))(
    lambda b, x: b(o("Relu"), b(o("Reshape"), b(o("MatMul"), x, whole(4, 6)), i64(2, 2, 3)))
)
fires("fuse_chain", "Chain", x=(2, 3), y=(1, 3))(
    lambda b, x, y: b(o("Relu"), b(o("Mul"), b(o("Add"), x, y), b(o("Sub"), x, y)))
)
fires("fuse_chain", "Chain", x=(2, 3))(lambda b, x: b(o("Where"), b(o("Greater"), x, f32(0)), x, b(o("Neg"), x)))


def _distances(b: Builder, x: Value, points: Value, absolute: bool) -> Any:
    """A loop over the points, as skl2onnx writes it."""
    body = Graph("body")
    kept, point = body.add_input("x", x.type), body.add_input("point", TensorType(F32, (4,)))
    inner = Builder(body)
    apart = inner(o("Sub"), kept, point)
    total = o("ReduceSum" if absolute else "ReduceSumSquare", keepdims=False)
    found = inner(total, inner(o("Abs"), apart) if absolute else apart, i64(1))
    body.add_output(kept, "kept")
    body.add_output(found, "found")
    return b(o("Scan", body, 1, 1), x, points)[1]


fires("scan_of_distances", "Transpose Distances Transpose", x=("n", 4), points=(7, 4))(
    lambda b, x, points: _distances(b, x, points, False)
)
fires("scan_of_distances", "Transpose Distances Transpose", x=(3, 4), points=("m", 4))(
    lambda b, x, points: _distances(b, x, points, True)
)
