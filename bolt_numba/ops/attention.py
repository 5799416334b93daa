"""Attention in one operator: what the recogniser makes of two products and the softmax between them."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.matmul import matmul_shape
from bolt_numba.ops.reduce import softmax
from bolt_numba.ops.registry import Op, op, want_dtype
from bolt_numba.ops.shapes import broadcast_shapes
from bolt_numba.types import Array, TensorType


@op("FusedAttention")
class FusedAttention(Op):
    """y = softmax(scale * q @ k^T + mask) @ v over the last axis of the product.

    q: [..., M, D] · k: [..., N, D] · v: [..., N, Dv] · mask: added, broadcast to [..., M, N]; all of one float dtype
    -> y: [..., M, Dv].  causal: query i sees keys 0…i only.  A query that sees nothing gives 0.
    Source: ONNX Attention-23, without its heads, caches and caps.
    """

    scale: float = 1.0
    causal: bool = False

    def infer(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None) -> TensorType:
        dtype = same_dtype(self, q, k, v, mask)
        want_dtype(self, "q", dtype, *FLOATS)
        if q.shape is None or k.shape is None or v.shape is None:
            return TensorType(dtype, None)
        if min(len(t) for t in (q.shape, k.shape, v.shape)) < 2:
            raise self.fail("ranks of q, k and v", (len(q.shape), len(k.shape), len(v.shape)), "at least 2")
        weights = matmul_shape(self, q.shape, (*k.shape[:-2], k.shape[-1], k.shape[-2]))
        if mask is not None and weights is not None:
            joint = broadcast_shapes(self, weights, mask.shape)
            if joint is not None and len(joint) > len(weights):
                raise self.fail("rank of mask", mask, f"at most {len(weights)}")
        return TensorType(dtype, matmul_shape(self, weights, v.shape))

    def reference(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        weights = np.matmul(widened(q), widened(k).swapaxes(-1, -2))
        weights = weights * weights.dtype.type(self.scale)
        if mask is not None:
            weights = weights + widened(mask)
        if self.causal:
            rows, columns = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])[None, :]
            weights = np.where(columns <= rows, weights, weights.dtype.type(-np.inf))
        return np.asarray(np.matmul(softmax(weights, -1), widened(v)), dtype=q.dtype)
