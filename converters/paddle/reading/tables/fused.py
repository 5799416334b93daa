"""Readers of operators that Paddle's passes for inference make of several."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import I64
from bolt_numba.converters.builder import ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.paddle.reading.tables.conv import activated
from bolt_numba.converters.paddle.reading.tables.index import embedding
from bolt_numba.converters.paddle.reading.tables.matmul import matrices, product
from bolt_numba.converters.paddle.reading.tables.norm import layer_norm
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import ScatterElements
from bolt_numba.ops.arrays.reduce import CumSum, ReduceSum, Softmax
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, And, Equal, Less, Mul, Not, Sub, Where


def _binary(b: PaddleBuilder, name: str, x: Value, y: Value, axis: int) -> Value:
    """An elementwise operator by its name."""
    found = PADDLE.find(b.owner.program.dialect, name, 0)
    if found is None or not name.startswith("elementwise_"):
        raise b.unsupported(f"function {name}")
    made: Value = found.function(b, x, y, axis=axis)
    return made


_SIX = ("add", "sub", "mul", "div", "max", "min", "pow")


def _with_activation(name: str) -> Any:
    def read(b: PaddleBuilder, x: Value, y: Value, *, axis: int = -1, act_type: str = "") -> Value:
        return activated(b, _binary(b, f"elementwise_{name}", x, y, axis), act_type)

    return read


for _name in _SIX:
    PADDLE.reader(legacy=(f"fusion_elementwise_{_name}_activation",))(_with_activation(_name))


@PADDLE.reader("fused_elemwise_activation", "fused_elemwise_add_activation", results=("Out", "IntermediateOut"))
def fused_elemwise_activation(
    b: PaddleBuilder, x: Value, y: Value, *, functor_list: tuple[str, ...], axis: int = -1, scale: float = 0.0
) -> tuple[Value, Value]:
    """f(g(x, y)) for functions f, g; g(x, f(y)) where they are named in the other order."""
    b.invalid_if(len(functor_list) != 2, "functor_list", functor_list, "two functions")
    first, second = functor_list
    more = {"scale": b.const(np.float32(scale))}
    if first.startswith("elementwise_"):
        inner = activated(b, y, second, **(more if second == "scale" else {}))
        return _binary(b, first, x, inner, axis), inner
    inner = _binary(b, second, x, y, axis)
    return activated(b, inner, first, **(more if first == "scale" else {})), inner


@PADDLE.reader("skip_layernorm")
def skip_layernorm(
    b: PaddleBuilder, x: Value, y: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, begin_norm_axis: int = 2
) -> Any:
    """The layer norm of x + y."""
    return layer_norm(b, b(Add(), x, y), scale, bias, epsilon=epsilon, begin_norm_axis=begin_norm_axis)[0]


@PADDLE.reader("fused_fc_elementwise_layernorm", results=("Out", "Mean", "Variance"))
def fused_fc_elementwise_layernorm(
    b: PaddleBuilder,
    x: Value,
    w: Value,
    y: Value,
    bias0: Value | None = None,
    scale: Value | None = None,
    bias1: Value | None = None,
    *,
    x_num_col_dims: int = 1,
    activation_type: str = "",
    epsilon: float = 1e-5,
    begin_norm_axis: int = 1,
) -> Any:
    """The layer norm of activation(x @ w + bias0) + y."""
    made = matrices(b, x, w, x_num_col_dims, 1)
    made = made if bias0 is None else b(Add(), made, b.shaped(bias0, [-1]))
    total = b(Add(), activated(b, made, activation_type), y)
    return layer_norm(b, total, scale, bias1, epsilon=epsilon, begin_norm_axis=begin_norm_axis)


@PADDLE.reader("fused_embedding_eltwise_layernorm")
def fused_embedding_eltwise_layernorm(
    b: PaddleBuilder, ids: Values, embs: Values, bias: Value, scale: Value, *, epsilon: float = 1e-5
) -> Any:
    """The layer norm of the sum of rows of several tables."""
    b.invalid_if(not ids or len(ids) != len(embs), "number of ids", len(ids), f"{len(embs)}, that of the tables")
    total: Value | None = None
    for places, table in zip(ids, embs, strict=True):
        if b.rank_of(places) == 3:
            places = b.column(places, 2, 0)
        row = embedding(b, places, table)
        total = row if total is None else b(Add(), total, row)
    assert total is not None
    return layer_norm(b, total, scale, bias, epsilon=epsilon, begin_norm_axis=b.rank_of(total) - 1)[0]


@PADDLE.reader("fused_bias_dropout_residual_layer_norm", results=("Y", "BiasDropoutResidualOut"))
def fused_bias_dropout_residual_layer_norm(
    b: PaddleBuilder,
    x: Value,
    residual: Value,
    bias: Value | None = None,
    ln_scale: Value | None = None,
    ln_bias: Value | None = None,
    *,
    ln_epsilon: float = 1e-5,
    dropout_rate: float = 0.5,
    is_test: bool = False,
    dropout_implementation: str = "downgrade_in_infer",
) -> Any:
    """The layer norm of x + bias + residual over the last axis."""
    b.unsupported_if(not is_test, "dropout of training")
    made = x if bias is None else b(Add(), x, bias)
    if dropout_implementation == "downgrade_in_infer" and dropout_rate:
        made = b(Mul(), made, 1 - dropout_rate)
    total = b(Add(), made, residual)
    rank = b.rank_of(total)
    return layer_norm(b, total, ln_scale, ln_bias, epsilon=ln_epsilon, begin_norm_axis=rank - 1)[0], total


@PADDLE.reader("fused_gemm_epilogue", results=("Out", "ReserveSpace"))
def fused_gemm_epilogue(
    b: PaddleBuilder,
    x: Value,
    y: Value,
    bias: Value,
    *,
    transpose_x: bool = False,
    transpose_y: bool = False,
    activation: str = "none",
) -> tuple[Value, None]:
    """activation(x @ y + bias)."""
    made = b(Add(), product(b, x, y, transpose_x, transpose_y), bias)
    return activated(b, made, "" if activation == "none" else activation), None


@PADDLE.reader("fusion_repeated_fc_relu", results=("Out", "ReluOut"))
def fusion_repeated_fc_relu(b: PaddleBuilder, x: Value, w: Values, bias: Values) -> tuple[Value, list[None]]:
    """X through several layers of relu(x @ w + bias)."""
    b.invalid_if(len(w) != len(bias), "number of weights", len(w), len(bias))
    for weights, added in zip(w, bias, strict=True):
        x = activated(b, b(Add(), b(MatMul(), x, weights), b.shaped(added, [-1])), "relu")
    return x, [None] * b.count(1)


@PADDLE.reader("multihead_matmul", slots={"BiasQK": "bias_qk"})
def multihead_matmul(
    b: PaddleBuilder,
    input: Value,
    w: Value,
    bias: Value,
    bias_qk: Value | None = None,
    *,
    alpha: float = 1.0,
    head_number: int = 1,
    transpose_Q: bool = False,
    transpose_K: bool = True,
    transpose_V: bool = False,
) -> Value:
    """Attention of an input [n, t, features] to itself; w [features, 3, heads * size] makes queries, keys, values."""
    if (transpose_Q, transpose_K, transpose_V) != (False, True, False):
        raise b.unsupported("other transposes than that of the keys")
    width = b.static_dim(w, -1)
    b.invalid_if(head_number < 1 or width % head_number, "head_number", head_number, f"a divisor of {width}")
    weights = b.shaped(w, [b.static_dim(input, -1), 3 * width])
    made = b(Add(), b(MatMul(), input, weights), b.shaped(bias, [-1]))
    spread = b.transposed(b.shaped(made, [0, 0, 3, head_number, width // head_number]), 2, 0, 3, 1, 4)
    q, k, v = (b.column(spread, 0, i) for i in range(3))
    scores = b(MatMul(trans_b=True, alpha=alpha), q, k)
    scores = scores if bias_qk is None else b(Add(), scores, bias_qk)
    seen = b(MatMul(), b(Softmax(-1), scores), v)
    return b.shaped(b.transposed(seen, 0, 2, 1, 3), [0, 0, width])


@PADDLE.reader("flash_attn", pir=("memory_efficient_attention",))
def flash_attn(
    b: PaddleBuilder,
    q: Value,
    k: Value,
    v: Value,
    fixed_seed_offset: Value | None = None,
    attn_mask: Value | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
) -> tuple[Value, None, None, None]:
    """softmax(q k^T / sqrt(size) + mask) v of heads [n, t, heads, size]."""
    b.unsupported_if(b.operation.type != "flash_attn", "its masks")
    size = b.static_dim(q, 3)
    heads = [b.transposed(x, 0, 2, 1, 3) for x in (q, k, v)]
    scores = b(MatMul(trans_b=True, alpha=1 / math.sqrt(size)), heads[0], heads[1])
    scores = scores if attn_mask is None else b(Add(), scores, attn_mask)
    scores = _causal(b, scores) if causal else scores
    seen = b(MatMul(), b(Softmax(-1), scores), heads[2])
    return b.transposed(seen, 0, 2, 1, 3), None, None, None


def _causal(b: PaddleBuilder, scores: Value) -> Value:
    """Scores of which those of later keys are -inf: the last query sees all keys."""
    rows, columns = (b.counted(b.as_scalar(b.length(scores, axis))) for axis in (2, 3))
    shift = b(Sub(), b.as_scalar(b.length(scores, 3)), b.as_scalar(b.length(scores, 2)))
    later = b(Less(), b.unsqueezed(b(Add(), rows, shift), 1), b.unsqueezed(columns, 0))
    return b(Where(), later, b.const(np.array(-np.inf, scores.type.dtype)), scores)


PADDLE.reader("fused_softmax_mask")(lambda b, x, mask: b(Softmax(-1), b(Add(), x, mask)))
# Softmax over the keys up to the query.
PADDLE.reader("fused_softmax_mask_upper_triangle")(lambda b, x: b(Softmax(-1), _causal(b, x)))


@PADDLE.reader("axpy")
def axpy(b: PaddleBuilder, scale: Value, x: Value, bias: Value) -> Value:
    """One factor a channel times x, plus bias."""
    rank = b.rank_of(x)
    return b(Add(), b(Mul(), b.shaped(scale, b.lengths(x, (0, 1)), [1] * (rank - 2)), x), bias)


@PADDLE.reader("ctc_align", results=("Output", "OutputLength"))
def ctc_align(
    b: PaddleBuilder,
    input: Value,
    input_length: Value | None = None,
    *,
    blank: int = 0,
    merge_repeated: bool = True,
    padding_value: int = 0,
) -> tuple[Value, Value]:
    """Labels [n, t] without blanks and repetitions, at the left of their rows, and how many there are."""
    if input_length is None or b.rank_of(input) != 2:
        raise b.unsupported("ragged rows")
    length = b.as_scalar(b.length(input, 1))
    inside = b(Less(), b.unsqueezed(b.counted(length), 0), b.shaped(b.to(input_length, I64), [-1, 1]))
    kept = b(And(), inside, b(Not(), b(Equal(), input, blank)))
    if merge_repeated:
        before = b(Concat(1), b(Add(), b(Mul(), b.sliced(input, 1, 0, 1), 0), -1), b.sliced(input, 1, 0, -1))
        kept = b(And(), kept, b(Not(), b(Equal(), input, before)))
    number = b.to(kept, I64)
    place = b(Sub(), b(CumSum(), number, b.const(np.array(1))), 1)
    wide = b(Concat(1), input, b.sliced(input, 1, 0, 1))
    blankness = b.expanded(b.const(np.array(padding_value, input.type.dtype)), b(Shape(), wide))
    made = b(ScatterElements(1), blankness, b(Where(), kept, place, length), input)
    return b.sliced(made, 1, 0, -1), b.to(b(ReduceSum(True), number, ints([1])), I64)
