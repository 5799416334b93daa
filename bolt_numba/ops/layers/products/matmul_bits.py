"""Products with weights of 2, 4 or 8 bits in blocks, which stay as they are stored."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from bolt_numba.base.types import F32, U8, Array, TensorType
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.layers.products.matmul import multiplied
from bolt_numba.ops.layers.products.matmul_forms import rounded_rows
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype
from bolt_numba.ops.shapes import want_dims

OptionalArray: TypeAlias = "Array | None"


def unpacked(packed: Array, bits: int) -> Array:
    """Codes of 1, 2, 4 or 8 bits that lie in bytes, the low ones first: u8 [..., n] -> u8 [..., n * 8 / bits]."""
    parts = [packed >> np.uint8(shift) & np.uint8((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1) if bits < 8 else packed


def packed_codes(codes: Array, bits: int) -> Array:
    """What `unpacked` gives ``codes`` of: u8 [..., n * 8 / bits] -> u8 [..., n]."""
    made = codes[..., :: 8 // bits].copy()
    for i in range(1, 8 // bits):
        made |= codes[..., i :: 8 // bits] << np.uint8(bits * i)
    return made


@op("MatMulNBits")
class MatMulNBits(Op):
    """y = x @ w^T + bias, where w [n, k] is (codes - zeros) * scales in blocks along k.

    x: [..., k] · codes: [n, ceil(k / block), block * bits / 8] u8, two codes of 4 bits in a byte, the low ones first ·
    scales, zeros: [n, ceil(k / block)] f32, the middle of the range without zeros · bias: [n] -> y: [..., n].
    rounded: x is rounded to 8 bits first, see `rounded_rows`; devices that multiply floats do without.
    Source: the operator of this name of onnxruntime (com.microsoft), its zero points unpacked.
    """

    bits: int = 4
    block: int = 32
    rounded: bool = False
    data_bounds = bounded(codes=VALUES)

    @property
    def middle(self) -> float:
        """The code of 0 where there are no zeros."""
        return float(1 << (self.bits - 1))

    def infer(
        self,
        x: TensorType,
        codes: TensorType,
        scales: TensorType,
        zeros: TensorType | None = None,
        bias: TensorType | None = None,
    ) -> TensorType:
        want_dtype(self, "x", same_dtype(self, x, bias), *FLOATS)
        want_dtype(self, "codes", codes.dtype, U8)
        want_dtype(self, "scales", same_dtype(self, scales, zeros), F32)
        if self.bits not in (2, 4, 8) or self.block < 2 or self.block * self.bits % 8:
            raise self.fail("bits and block", (self.bits, self.block), "2, 4 or 8, and whole bytes")
        shape = codes.shape
        want_dims(self, "codes", codes, None, None, self.block * self.bits // 8)
        if shape is not None:
            want_dims(self, "scales", scales, *shape[:2])
            want_dims(self, "zeros", zeros, *shape[:2])
            want_dims(self, "bias", bias, shape[0])
        if x.shape is None:
            return TensorType(x.dtype, None)
        k, blocks = x.shape[-1] if x.shape else None, None if shape is None else shape[1]
        if k is None or (isinstance(k, int) and isinstance(blocks, int) and -(-k // self.block) != blocks):
            raise self.fail("last dimension of x", k, f"one of {blocks} blocks of {self.block}")
        return TensorType(x.dtype, (*x.shape[:-1], fresh_dim("n") if shape is None else shape[0]))

    def weights(self, codes: Array, scales: Array, zeros: OptionalArray, k: int) -> Array:
        """What the codes mean: [n, k] f32."""
        offsets = np.float32(self.middle) if zeros is None else zeros[..., None]
        meant = (unpacked(codes, self.bits).astype(np.float32) - offsets) * scales[..., None]
        return np.ascontiguousarray(meant.reshape(len(meant), meant.shape[1] * self.block)[:, :k])

    def reference(
        self, x: Array, codes: Array, scales: Array, zeros: OptionalArray = None, bias: OptionalArray = None
    ) -> Array:
        given = rounded_rows(widened(x)) if self.rounded else widened(x)
        y = multiplied(self, given, self.weights(codes, scales, zeros, x.shape[-1]).T)
        y = y if bias is None else y + widened(bias)
        return np.asarray(y).astype(x.dtype, copy=False)
