"""Attention in one operator: what the recogniser makes of two products and the softmax between them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from bolt_numba.base.types import Array, TensorType
from bolt_numba.ops.arrays.reduce import masked_softmax
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.layers.products.matmul import matmul_shape, multiplied
from bolt_numba.ops.registry import Op, fresh_dim, op, want_among, want_dtype
from bolt_numba.ops.shapes import want_within

LAYOUTS = ("HSD", "SHD")
"""Heads, positions, elements of a head: their order in memory, behind the batch axes."""


T = TypeVar("T")


def swapped(shape: tuple[T, ...]) -> tuple[T, ...]:
    """A shape, or a permutation, with the axes of heads and positions exchanged."""
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


@op("FusedAttention")
class FusedAttention(Op):
    """y = softmax(scale * q @ k^T + mask) @ v over the last axis of the product.

    q: [..., M, D] · k: [..., N, D] · v: [..., N, Dv] · mask: added, broadcast to [..., M, N]; all of one float dtype
    -> y: [..., M, Dv].  An operand of layout SHD lies as [..., positions, heads, elements] instead, the result too.
    causal: query i sees keys 0…i only.  A query that sees nothing gives 0.  packed: q is of layout SHD and holds the
    heads of queries, then those of keys, then those of values; k and v are omitted.
    Source: ONNX Attention-23, without its heads, caches and caps.
    """

    scale: float = 1.0
    causal: bool = False
    q_layout: str = "HSD"
    k_layout: str = "HSD"
    v_layout: str = "HSD"
    y_layout: str = "HSD"
    packed: bool = False

    @property
    def layouts(self) -> tuple[str, str, str]:
        """Of q, k and v."""
        return self.q_layout, self.k_layout, self.v_layout

    def infer(
        self,
        q: TensorType,
        k: TensorType | None = None,
        v: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> TensorType:
        if self.packed:
            q, k, v = self._parts(q, k, v)
        if k is None or v is None:
            raise self.fail("k and v", "none", "both")
        dtype = same_dtype(self, q, k, v, mask)
        want_dtype(self, "q", dtype, *FLOATS)
        for layout in (*self.layouts, self.y_layout):
            want_among(self, LAYOUTS, layout=layout)
        if q.shape is None or k.shape is None or v.shape is None:
            return TensorType(dtype, None)
        ranks = tuple(len(t) for t in (q.shape, k.shape, v.shape))
        least = 3 if "SHD" in (*self.layouts, self.y_layout) else 2
        if min(ranks) < least:
            raise self.fail("ranks of q, k and v", ranks, f"at least {least}")
        given = zip((q.shape, k.shape, v.shape), self.layouts, strict=True)
        queries, keys, values = (swapped(s) if layout == "SHD" else s for s, layout in given)
        weights = matmul_shape(self, queries, (*keys[:-2], keys[-1], keys[-2]))
        want_within(self, "mask", mask, weights)
        shape = matmul_shape(self, weights, values)
        return TensorType(dtype, swapped(shape) if self.y_layout == "SHD" and shape is not None else shape)

    def _parts(self, q: TensorType, *rest: TensorType | None) -> tuple[TensorType, TensorType, TensorType]:
        """Types of the queries, keys and values in one operand."""
        if any(t is not None for t in rest) or self.layouts != ("SHD",) * 3:
            raise self.fail("operands and layouts of what is packed", (rest, self.layouts), "one operand, SHD")
        if q.shape is not None:
            heads = q.shape[-2] if len(q.shape) > 2 else None
            if heads is None or (isinstance(heads, int) and heads % 3):
                raise self.fail("heads of what is packed", heads, "a multiple of 3")
            third = heads // 3 if isinstance(heads, int) else fresh_dim("heads")
            q = TensorType(q.dtype, (*q.shape[:-2], third, q.shape[-1]))
        return q, q, q

    def reference(self, q: Array, k: Array | None = None, v: Array | None = None, mask: Array | None = None) -> Array:
        if self.packed:
            q, k, v = np.split(q, 3, axis=-2)
        assert k is not None, "infer() has tested this"
        assert v is not None, "infer() has tested this"
        given = zip((q, k, v), self.layouts, strict=True)
        queries, keys, values = (widened(x.swapaxes(-3, -2) if layout == "SHD" else x) for x, layout in given)
        weights = multiplied(self, queries, keys.swapaxes(-1, -2))
        weights = weights * weights.dtype.type(self.scale)
        if mask is not None:
            weights = weights + widened(mask)
        if self.causal:
            rows, columns = np.arange(weights.shape[-2])[:, None], np.arange(weights.shape[-1])[None, :]
            weights = np.where(columns <= rows, weights, weights.dtype.type(-np.inf))
        y = multiplied(self, masked_softmax(weights, -1), values)
        return np.ascontiguousarray(y.swapaxes(-3, -2) if self.y_layout == "SHD" else y).astype(q.dtype, copy=False)
