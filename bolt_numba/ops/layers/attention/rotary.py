"""Rotary position embedding: pairs of elements of a head turned by angles that grow with the position."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import I64, Array, TensorType
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.layers.attention.attention import LAYOUTS
from bolt_numba.ops.registry import Op, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import shape_of, want_dims


@op("RotaryEmbedding")
class RotaryEmbedding(Op):
    """y = x with the first 2 r elements of each head turned: (a, b) -> (a cos - b sin, a sin + b cos).

    x: [n, heads, s, d], or [n, s, heads, d] for layout SHD · cos, sin: [positions, r] with positions [n or 1, s] i64,
    or [n or 1, s, r] without them -> y as x.  Pairs are elements i and i + r, or neighbours when interleaved.
    Source: Su et al. 2021 (RoFormer), 3.4.2; ONNX RotaryEmbedding-23.
    """

    interleaved: bool = False
    layout: str = "HSD"
    data_bounds = bounded(positions="which rows of the tables are read; each is tested before it is used, else refused")

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType, positions: TensorType | None = None) -> TensorType:
        want_dtype(self, "x", same_dtype(self, x, cos, sin), *FLOATS)
        want_among(self, LAYOUTS, layout=self.layout)
        shape = shape_of(self, "x", x, 4)
        tables = [shape_of(self, name, t, 3 if positions is None else 2) for name, t in (("cos", cos), ("sin", sin))]
        want_dtypes(self, (I64,), positions=positions)
        shape_of(self, "positions", positions, 2)
        if shape is not None and tables[0] is not None:
            n, s, half = shape[0], shape[1 if self.layout == "SHD" else 2], tables[0][-1]
            if positions is None:
                want_dims(self, "cos", cos, (1, n), s, None)
            else:
                want_dims(self, "positions", positions, (1, n), s)
            want_dims(self, "sin", sin, *tables[0][:-1], half)
        for table in tables:
            if shape is None or table is None or not isinstance(table[-1], int) or not isinstance(shape[-1], int):
                continue
            if 2 * table[-1] > shape[-1] or tables[0] is None or table[-1] != tables[0][-1]:
                raise self.fail("last dimension of cos and sin", table[-1], f"one of at most {shape[-1] // 2}")
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
        half = cos.shape[-1]
        if positions is not None:
            want_between(self, "positions", positions, 0, len(cos) - 1)
        c, s = (widened(t if positions is None else t[positions]) for t in (cos, sin))
        c, s = (np.expand_dims(t, 1 if self.layout == "HSD" else 2) for t in (c, s))
        y = np.array(widened(x))
        first, second = (np.s_[..., : 2 * half : 2], np.s_[..., 1 : 2 * half : 2]) if self.interleaved else (
            np.s_[..., :half], np.s_[..., half : 2 * half]
        )  # fmt: skip
        a, b = y[first].copy(), y[second].copy()
        y[first], y[second] = a * c - b * s, a * s + b * c
        return y.astype(x.dtype, copy=False)
