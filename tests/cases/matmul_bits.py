"""Cases of products with weights of few bits."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, maybe, pick, real, whole


@cases(MatMulNBits)
def matmul_n_bits(draw: Draw, op: type[MatMulNBits]) -> Case:
    bits, block = pick(draw, 4, 8), pick(draw, 16, 32, 64, 24)
    m, n = pick(draw, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 30), pick(draw, 1, 7, 16, 33, 70)
    k = pick(draw, 5, 32, 40, 64, 150)
    blocks = -(-k // block)
    codes = whole(draw, (n, blocks, block * bits // 8), 0, 255, np.uint8)
    zeros = maybe(draw, whole(draw, (n, blocks), 0, (1 << bits) - 1))
    x = real(draw, pick(draw, (m, k), (1, m, k)))
    scales, bias = real(draw, (n, blocks)), maybe(draw, real(draw, (n,)))
    rounded = draw(flags)
    if rounded and draw(flags):
        bits, codes = 2, np.ascontiguousarray(codes[..., : block // 4])
    # Devices may do without rounding; `tests/test_forms.py` holds the CPU to it.
    return Case(op(bits, block, rounded), (x, codes, scales, zeros, bias), exact=False, rtol=3e-2 if rounded else 1e-4)
