"""Cases of fused attention and of what goes with it."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.layers.attention.attention import FusedAttention, swapped
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention, coded
from bolt_numba.ops.layers.attention.linear import RULES, CausalConvWithState, LinearAttention
from bolt_numba.ops.layers.attention.ragged import RaggedAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.types import Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, around_tiles, flags, maybe, pick, real, whole


@cases(FusedAttention)
def fused_attention(draw: Draw, op: type[FusedAttention]) -> Case:
    m, n, d, dv = draw(around_tiles), draw(around_tiles), pick(draw, 1, 8, 16, 17, 32), pick(draw, 3, 8, 16, 32)
    batch = pick(draw, (1, 1), (1, 2), (2, 3))
    causal = draw(flags)
    layouts = tuple(pick(draw, "HSD", "SHD") for _ in range(4))
    packed = pick(draw, False, False, True)
    if packed:
        layouts = ("SHD", "SHD", "SHD", layouts[3])
    made = op(pick(draw, 0.125, float(d) ** -0.5), causal, *layouts, packed)
    shapes = [(*batch, m, d), (*batch, n, d), (*batch, n, dv)]
    given = zip(shapes, layouts[:3], strict=True)
    operands: list[Array | None] = [real(draw, swapped(s) if layout == "SHD" else s) for s, layout in given]
    if made.packed:
        n, operands = m, [real(draw, (batch[0], m, 3 * batch[1], d)), None, None]
    if not causal and draw(flags):
        dims = pick(draw, (m, n), (1, 1, m, n), (batch[0], 1, 1, n), (*batch, m, n))
        mask = np.where(whole(draw, dims, 0, 3) == 0, np.float32(-1e4), np.float32(0))
        operands.append(mask if draw(flags) else real(draw, dims))
    return Case(made, tuple(operands), exact=False, rtol=1e-4)


@cases(RaggedAttention)
def ragged_attention(draw: Draw, op: type[RaggedAttention]) -> Case:
    lengths = np.array([pick(draw, 0, 1, 3, 8, 13, 33) for _ in range(pick(draw, 1, 2, 5))], np.int64)
    heads, d, dv, m = pick(draw, 1, 2, 3), pick(draw, 1, 8, 17, 32), pick(draw, 3, 16, 32), int(lengths.sum())
    layouts = tuple(pick(draw, "HSD", "SHD") for _ in range(4))
    packed = pick(draw, False, False, True)
    if packed:
        layouts = ("SHD", "SHD", "SHD", layouts[3])
    made = FusedAttention(float(d) ** -0.5, draw(flags), *layouts, packed)
    batch = (1,) * pick(draw, 0, 1)
    shapes = [(*batch, heads, m, d), (*batch, heads, m, d), (*batch, heads, m, dv)]
    given = zip(shapes, layouts[:3], strict=True)
    operands = [real(draw, swapped(s) if layout == "SHD" else s) for s, layout in given]
    if packed:
        operands = [real(draw, (*batch, m, 3 * heads, d))]
    return Case(op(made), (lengths, *operands), exact=False, rtol=1e-4)


@cases(RotaryEmbedding)
def rotary_embedding(draw: Draw, op: type[RotaryEmbedding]) -> Case:
    n, heads, s, half = pick(draw, 1, 2), pick(draw, 1, 3), pick(draw, 1, 2, 5), pick(draw, 1, 4, 15, 16, 40)
    layout = pick(draw, "HSD", "SHD")
    dims = (n, heads, s, 2 * half + pick(draw, 0, 0, 3, 20))
    x = real(draw, swapped(dims) if layout == "SHD" else dims)
    images = pick(draw, 1, n)
    if draw(flags):
        tables = [real(draw, (7, half)) for _ in range(2)]
        return Case(op(draw(flags), layout), (x, *tables, whole(draw, (images, s), 0, 6).astype(np.int64)), exact=False)
    return Case(op(draw(flags), layout), (x, *(real(draw, (images, s, half)) for _ in range(2))), exact=False)


@cases(GroupQueryAttention)
def group_query_attention(draw: Draw, op: type[GroupQueryAttention]) -> Case:
    n, kv_heads, d = pick(draw, 1, 2), pick(draw, 1, 2), pick(draw, 4, 16, 20, 33)
    heads, s = kv_heads * pick(draw, 1, 2, 3), pick(draw, 1, 1, 2, 5, 13, 40)
    before = np.zeros(n, np.int64) if draw(flags) else whole(draw, (n,), 0, pick(draw, 50, 50, 600), np.int64)
    total = s + int(before.max())
    held = int(before.max()) + pick(draw, 0, 0, 1, 30, 300)
    past = [real(draw, (n, kv_heads, held, d)) for _ in range(2)] if held or draw(flags) else [None, None]
    if held and draw(flags):
        is_half, extra = draw(flags), pick(draw, 0, 4, 4)
        past = [x.astype(np.float16) if is_half else coded(x, d + extra) for x in past]
    operands = [real(draw, (n, s, width * d)) for width in (heads, kv_heads, kv_heads)]
    bias = maybe(draw, real(draw, (pick(draw, 1, n), pick(draw, 1, heads), s, total)))
    sink = maybe(draw, real(draw, (heads,)))
    made = op(heads, kv_heads, pick(draw, 0.0, 0.3), pick(draw, 0.0, 2.0), pick(draw, -1, 3, 20), draw(flags))
    numbers = (before + s - 1).astype(np.int32), np.array([total], np.int32)
    return Case(made, (*operands, *past, *numbers, bias, sink), exact=False, rtol=1e-4)


@cases(LinearAttention)
def linear_attention(draw: Draw, op: type[LinearAttention]) -> Case:
    n, t, d, e = pick(draw, 1, 2), pick(draw, 1, 1, 2, 7), pick(draw, 1, 4, 16, 19, 40), pick(draw, 3, 16, 33, 80)
    states, rule = pick(draw, 1, 2, 4), pick(draw, *RULES)
    heads = pick(draw, states, states, 2 * states, *(i for i in (1, 2) if states % i == 0))
    keys = pick(draw, states, *(i for i in (1, 2) if states % i == 0))
    operands = [real(draw, (n, t, width), -0.5, 0.5) for width in (heads * d, keys * d, states * e)]
    past = maybe(draw, real(draw, (n, states, d, e)))
    decay = real(draw, (n, t, states * pick(draw, 1, d)), -2, 0) if "gated" in rule else None
    beta = real(draw, (n, t, pick(draw, 1, states)), 0, 1) if "delta" in rule else None
    made = op(heads, states, pick(draw, 0.0, 0.3), rule)
    return Case(made, (*operands, past, decay, beta), exact=False, rtol=1e-4)


@cases(CausalConvWithState)
def causal_convolution(draw: Draw, op: type[CausalConvWithState]) -> Case:
    n, c, t, k = pick(draw, 1, 2), pick(draw, 1, 5, 16, 37), pick(draw, 1, 1, 2, 3, 17, 40), pick(draw, 1, 2, 4)
    made = op(draw(flags), pick(draw, 1, 1, 3))
    past = maybe(draw, real(draw, (n, c, (k - 1) * made.dilation)))
    operands = real(draw, (n, c, t)), real(draw, (c, 1, k)), maybe(draw, real(draw, (c,))), past
    return Case(made, operands, exact=False)
