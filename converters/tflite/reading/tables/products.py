"""Readers of matrix products."""

from __future__ import annotations

from bolt_numba.converters.tflite.reading.graph import TfliteBuilder
from bolt_numba.converters.tflite.reading.quantised import ranged
from bolt_numba.converters.tflite.reading.registry import TFLITE, activated
from bolt_numba.ir.graph import Value
from bolt_numba.ops.layers.products.matmul import MatMul


@TFLITE.reader("FULLY_CONNECTED")
def fully_connected(
    b: TfliteBuilder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    fused_activation_function: str = "NONE",
    weights_format: str = "DEFAULT",
    keep_num_dims: bool = False,
) -> Value:
    """w: [n, k].  x: [..., k], or any shape that is read as rows of k numbers."""
    b.unsupported_if(weights_format != "DEFAULT", f"weights_format {weights_format}")
    depth = b.static_dim(w, 1)
    shape = x.type.shape
    if not keep_num_dims and (b.rank_of(x) != 2 or shape is None or shape[1] != depth):
        x = b.reshaped(x, [-1, depth])
    return activated(b, b(MatMul(trans_b=True), ranged(b, x, 1, axis=-1), w, bias), fused_activation_function)


@TFLITE.reader("BATCH_MATMUL")
def batch_matmul(b: TfliteBuilder, x: Value, y: Value, *, adj_x: bool = False, adj_y: bool = False) -> Value:
    return b(MatMul(trans_a=adj_x, trans_b=adj_y), x if adj_x else ranged(b, x, 1, axis=-1), y)
