"""Constant weights of 4 or 8 bits under a product of floats stay as they are.

weights_stay(MatMul(x, DequantizeLinear(w))) -> MatMulNBits(x, w)     one scale, one for each column, or blocks along K
bits_bias(MatMulNBits(x, w) + c)             -> MatMulNBits(x, w, c)  a number for each column

They run when nothing else wanted the bytes, before integers become floats.  Weights that are small become floats, and
so do those under as many rows as floats are fastest for, where that is known: `SLOWER`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.ir.build import Builder
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.pointwise import Add
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule

LEAST_WEIGHTS = 1 << 14
"""Weights from which reading fewer bytes pays."""
SLOWER = range(13, 48)
"""Rows of x for which the codes would be made floats too often: a product of floats is up to a quarter faster."""
BITS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4}


def codes_of(w: Array, bits: int, block: int) -> Array:
    """Integers [n, k] as `MatMulNBits` holds them, u8 [n, blocks, block * bits / 8]; what is padded is 0."""
    middle = 0 if "uint" in w.dtype.name else 1 << (bits - 1)
    n, k = w.shape
    blocks = -(-k // block)
    codes = np.full((n, blocks * block), middle, np.uint8)
    codes[:, :k] = w.astype(np.int16) + middle
    codes = codes.reshape(n, blocks, block)
    return codes if bits == 8 else codes[..., ::2] | codes[..., 1::2] << 4


def _by_rows(op: DequantizeLinear, v: Array, along: int) -> Array | None:
    """Scales or zero points as [n, blocks] or [1, 1]; ``along``: K's axis in the weights.  None: they vary within K."""
    if v.size == 1:
        return v.reshape(1, 1)
    if v.ndim == 1:
        return None if op.axis % 2 == along else v.reshape(-1, 1)
    if not op.block_size or op.axis % 2 != along or v.ndim != 2:
        return None
    return v.T if along == 0 else v


def _rows(x: TensorType) -> int | None:
    """Rows of a left operand, where they are known."""
    dims = x.shape[:-1] if x.shape is not None else (None,)
    sizes = [d for d in dims if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else None


_W = Pat(DequantizeLinear, (const("w"), const("scale")), name="wide")


@rule(Pat(MatMul, (Pat(name="x"), _W)))
def weights_stay(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    wide, w, given = m.op("wide"), m["w"].const, m["scale"].const
    bias = (*m.root.inputs, None)[2]
    zero_point = (*m.node("wide").inputs, None)[2]
    if op.activation is not None or op.residual or op.trans_a or m["wide"].type.dtype != F32:
        return m.refuse("fused already, or no f32")
    if w is None or w.ndim != 2 or w.size < LEAST_WEIGHTS or w.dtype.name not in BITS or m["x"].type.dtype != F32:
        return m.refuse("few weights, or not of 4 or 8 bits")
    if zero_point is not None and zero_point.const is None:
        return m.refuse("a zero point that is computed")
    if _rows(m["x"].type) in SLOWER:
        return m.refuse("a product of floats is faster for so many rows")
    along = 1 if op.trans_b else 0
    n, k = w.shape[1 - along], w.shape[along]
    bits, block = BITS[w.dtype.name], wide.block_size or k + k % 2
    scale = None if given is None else _by_rows(wide, given, along)
    point = None if zero_point is None else zero_point.const
    zero = None if point is None else _by_rows(wide, point.astype(F32), along)
    if scale is None or (zero_point is not None and zero is None) or (block % 8 and block < k):
        return m.refuse("scales that vary within a block along K, or blocks of no whole eights")
    if bias is not None and bias.type.shape != (n,):
        return m.refuse("a bias of another shape")
    stored = w if along == 1 else w.T
    shape = (n, -(-k // block))
    scales = np.ascontiguousarray(np.broadcast_to(scale * op.alpha, shape), F32)
    middle = 1 << (bits - 1)
    points = np.zeros((1, 1), F32) if zero is None else zero
    points = points if "uint" in w.dtype.name else points + middle
    zeros = None if np.all(points == middle) else np.ascontiguousarray(np.broadcast_to(points, shape), F32)
    codes = np.ascontiguousarray(codes_of(np.ascontiguousarray(stored), bits, block))
    return b(MatMulNBits(bits, block), m["x"], codes, scales, zeros, bias)


@rule(Pat(Add, (Pat(MatMulNBits, name="y", sole_use=True), const("c")), commutative=True))
def bits_bias(m: Match, b: Builder) -> Result:
    operands, shape = [*m.node("y").inputs, *(None,) * 5][:5], m["y"].type.shape
    c = m["c"].const
    if operands[4] is not None or c is None or not shape or m.root.output.type != m["y"].type:
        return m.refuse("there is a bias already, or the sum has another shape")
    if c.size != shape[-1] or not c.ndim or c.shape[-1] != c.size:
        return m.refuse("no number for each column")
    return b(m.op("y"), *operands[:4], c.reshape(-1))


RULES: tuple[Rule, ...] = (weights_stay, bits_bias)
