"""Cases of pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.layers.pool import AveragePool, Col2Im, LpPool, MaxPool, Pool
from bolt_numba.types import I8, U8, Array
from tests.cases import Case, cases
from tests.cases.conv import geometry, sizes_for
from tests.cases.draw import Draw, around_tiles, as_layout, flags, layouts, pick, small, whole


def _drawn(draw: Draw) -> tuple[dict[str, Any], Array]:
    rank, layout = pick(draw, 2, 2, 2, 1, 3), draw(layouts)
    g = geometry(draw, rank)
    g["kernel_shape"] = g["kernel"]
    sizes = sizes_for(draw, g, 400)
    kernel = g.pop("kernel")
    dilations = g["dilations"] or (1,) * rank
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if g["pads"]:  # a window must meet at least one element
        g["pads"] = tuple(min(p, kernel[i % rank] - 1) for i, p in enumerate(g["pads"]))
    elif pick(draw, False, False, True) and max(dilations) == 1:
        g["auto_pad"] = pick(draw, "SAME_UPPER", "SAME_LOWER", "VALID")
    if draw(flags) and "auto_pad" not in g and max(spans) > 1:
        g["ceil_mode"] = True
    x = whole(draw, (pick(draw, 1, 2), draw(around_tiles), *sizes), -50, 50)
    return {**g, "layout": layout}, as_layout(x, layout)


@cases(MaxPool)
def max_pool(draw: Draw, op: type[MaxPool]) -> Case:
    g, x = _drawn(draw)
    indices = pick(draw, False, False, True)
    if pick(draw, False, False, True):
        x = (np.abs(x) if draw(flags) else x).astype(pick(draw, U8, I8))
    return Case(op(**g, indices=indices, storage_order=int(indices and draw(flags))), (x,))


def _inexact(op: Pool, x: Array) -> Case:
    return Case(op, (x / np.float32(16),), exact=False, rtol=1e-5)


@cases(AveragePool)
def average_pool(draw: Draw, op: type[AveragePool]) -> Case:
    g, x = _drawn(draw)
    return _inexact(op(**g, count_include_pad=draw(flags)), x)


@cases(LpPool)
def lp_pool(draw: Draw, op: type[LpPool]) -> Case:
    g, x = _drawn(draw)
    return _inexact(op(**g, p=pick(draw, 1, 2, 3)), x)


@cases(Col2Im)
def col2im(draw: Draw, op: type[Col2Im]) -> Case:
    block = (pick(draw, 1, 2, 3), pick(draw, 1, 2, 3))
    strides, dilations = (pick(draw, 1, 2), pick(draw, 1, 2)), (pick(draw, 1, 2), 1)
    pads = tuple(pick(draw, 0, 1) for _ in range(4))
    outs = (draw(small) + 2, draw(small) + 2)
    image = tuple(
        (outs[i] - 1) * strides[i] + (block[i] - 1) * dilations[i] + 1 - pads[i] - pads[2 + i] for i in range(2)
    )
    x = whole(draw, (2, 3 * block[0] * block[1], outs[0] * outs[1]))
    return Case(op(dilations, pads, strides), (x, np.array(image), np.array(block)))
