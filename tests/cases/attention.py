"""Cases of fused attention."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.attention import FusedAttention, swapped
from tests.cases import Case, cases
from tests.cases.draw import Draw, around_tiles, flags, pick, real, whole


@cases(FusedAttention)
def fused_attention(draw: Draw, op: type[FusedAttention]) -> Case:
    m, n, d, dv = draw(around_tiles), draw(around_tiles), pick(draw, 1, 8, 16, 17, 32), pick(draw, 3, 8, 16, 32)
    batch = pick(draw, (1, 1), (1, 2), (2, 3))
    causal = draw(flags)
    layouts = tuple(pick(draw, "HSD", "SHD") for _ in range(4))
    made = op(pick(draw, 0.125, float(d) ** -0.5), causal, *layouts)
    shapes = [(*batch, m, d), (*batch, n, d), (*batch, n, dv)]
    given = zip(shapes, layouts[:3], strict=True)
    operands = [real(draw, swapped(s) if layout == "SHD" else s) for s, layout in given]
    if not causal and draw(flags):
        dims = pick(draw, (m, n), (1, 1, m, n), (batch[0], 1, 1, n), (*batch, m, n))
        mask = np.where(whole(draw, dims, 0, 3) == 0, np.float32(-1e4), np.float32(0))
        operands.append(mask if draw(flags) else real(draw, dims))
    return Case(made, tuple(operands), exact=False, rtol=1e-4)
