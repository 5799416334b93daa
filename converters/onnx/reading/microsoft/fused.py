"""Readers of the fused float operators that onnxruntime's optimizer writes (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Floats, ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import microsoft
from bolt_numba.converters.onnx.reading.tables.conv import Convolved
from bolt_numba.converters.onnx.reading.tables.norm import inverse_rms
from bolt_numba.converters.onnx.reading.tables.reduce import gemm
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Shape, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.norm import LayerNormalization, RMSNormalization
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul

microsoft("Gelu")(AsIs(p.Gelu()))
microsoft("QuickGelu")(AsIs(p.Swish, alpha=1.702))


def activated(b: NodeBuilder, y: Value, activation: str, params: Floats) -> Value:
    """The activation of a fused operator, by its ONNX name and positional parameters."""
    alpha = params[0] if params else None
    match activation:
        case "":
            return y
        case "Relu":
            return b(p.Relu(), y)
        case "Sigmoid":
            return b(p.Sigmoid(), y)
        case "Tanh":
            return b(p.Tanh(), y)
        case "LeakyRelu":
            return b(p.LeakyRelu(0.01 if alpha is None else alpha), y)
        case "Clip" if len(params) == 2:
            return b(p.Clip(params[0], params[1]), y)
        case "HardSigmoid" if len(params) == 2:
            return b(p.HardSigmoid(params[0], params[1]), y)
        case _:
            raise b.unsupported(f"activation {activation} {list(params)}")


def _fused_conv(
    b: NodeBuilder, made: Conv, *operands: Value | None, activation: str = "", activation_params: Floats = ()
) -> Value:
    *of_conv, residual = operands
    y = b(made, *of_conv)
    y = y if residual is None else b(p.Add(), y, residual)
    return activated(b, y, activation, activation_params)


microsoft("FusedConv")(Convolved(Conv, "x w bias? residual?", then=_fused_conv))


def _fused_matmul(
    b: NodeBuilder, made: MatMul, x: Value, y: Value, *, transBatchA: int = 0, transBatchB: int = 0
) -> Value:
    x, y = (_batch_last(b, v) if flag else v for v, flag in ((x, transBatchA), (y, transBatchB)))
    return b(made, x, y)


_FLAGS: dict[str, Any] = {"transA": False, "transB": False, "alpha": 1.0}
microsoft("TransposeMatMul")(AsIs(MatMul, "x y", **_FLAGS))
microsoft("FusedMatMul")(AsIs(MatMul, "x y", then=_fused_matmul, **_FLAGS))


def _batch_last(b: NodeBuilder, x: Value) -> Value:
    """[m, batch axes, k] -> [batch axes, m, k]."""
    rank = b.rank_of(x)
    return b(Transpose((*range(1, rank - 1), 0, rank - 1)), x)


@microsoft("FusedGemm")
def fused_gemm(
    b: NodeBuilder,
    x: Value,
    y: Value,
    c: Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> Value:
    params = tuple(v for v in (activation_alpha, activation_beta, activation_gamma) if v is not None)
    made = gemm(b, x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(b, made, activation, params)


microsoft("BiasGelu")(lambda b, x, bias: b(p.Gelu(), b(p.Add(), x, bias)))


@microsoft("FastGelu")
def fast_gelu(b: NodeBuilder, x: Value, bias: Value | None = None) -> Value:
    return b(p.Gelu("tanh"), x if bias is None else b(p.Add(), x, bias))


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(
    b: NodeBuilder,
    x: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> Any:
    total = _skip(b, x, skip, bias)
    stats = b.wants(1) or b.wants(2)
    made = b(LayerNormalization(-1, epsilon, stats), total, gamma, beta)
    normal, mean, deviation = made if stats else (made, None, None)
    return normal, mean, deviation, total


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    b: NodeBuilder, x: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = 1e-12
) -> tuple[Value, Value | None, Value | None, Value]:
    """The mean that may be asked for is 0: nothing is subtracted."""
    total = _skip(b, x, skip, bias)
    inverse = inverse_rms(b, total, -1, epsilon) if b.wants(1) or b.wants(2) else None
    mean = b(p.Mul(), inverse, 0.0) if b.wants(1) else None
    return b(RMSNormalization(-1, epsilon), total, gamma), mean, inverse, total


def _skip(b: NodeBuilder, x: Value, skip: Value, bias: Value | None) -> Value:
    total = b(p.Add(), x, skip)
    return total if bias is None else b(p.Add(), total, bias)


@microsoft("EmbedLayerNormalization")
def embed_layer_normalization(
    b: NodeBuilder,
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    position_ids: Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Any:
    """Sum of word, position and segment embeddings, normalised.  Positions count from 0 unless they are given."""
    total = b(Gather(0), word_embedding, input_ids)
    if position_ids is None:
        rows = b(Slice(), position_embedding, ints([0]), b(Shape(1, 2), input_ids), ints([0]))
        total = b(p.Add(), total, rows)
    else:
        total = b(p.Add(), total, b(Gather(0), position_embedding, position_ids))
    if segment_embedding is not None and segment_ids is not None:
        total = b(p.Add(), total, b(Gather(0), segment_embedding, segment_ids))
    return (
        b(LayerNormalization(-1, epsilon), total, gamma, beta),
        _counts(b, input_ids, mask),
        total if b.wants(2) else None,
    )


def _counts(b: NodeBuilder, ids: Value, mask: Value | None) -> Value | None:
    """How many positions of each sequence the mask shows; 0 without a mask."""
    if not b.wants(1):
        return None
    counted = b(ReduceSum(keepdims=False), ids if mask is None else mask, ints([1]))
    return b(p.Mul(), counted, 0) if mask is None else counted
