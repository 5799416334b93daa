"""Cases of convolutions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.types import type_of
from tests.cases import Case, cases
from tests.cases.draw import (
    ACTIVATIONS,
    EXACT_ACTIVATIONS,
    Draw,
    around_tiles,
    as_layout,
    flags,
    layouts,
    maybe,
    pick,
    small,
    whole,
)


def geometry(draw: Draw, rank: int) -> dict[str, Any]:
    """Kernel, strides, dilations, pads; pads stay under the kernel's extent."""
    kernel = pick(draw, (1,) * rank, (3,) * rank, (3,) * rank, tuple(pick(draw, 1, 2, 3, 4, 5) for _ in range(rank)))
    strides = pick(draw, (), (1,) * rank, (2,) * rank, tuple(pick(draw, 1, 2, 3) for _ in range(rank)))
    dilations = pick(draw, (), (), (1,) * rank, (2,) * rank, tuple(pick(draw, 1, 2, 3) for _ in range(rank)))
    reach = [(k - 1) * d for k, d in zip(kernel, dilations or (1,) * rank, strict=True)]
    pads = pick(draw, (), (), tuple([r // 2 for r in reach] * 2), tuple(pick(draw, *range(r + 1)) for r in reach * 2))
    return {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads}


def sizes_for(draw: Draw, g: dict[str, Any], limit: int) -> tuple[int, ...]:
    """Spatial sizes on which the kernel fits without its pads."""
    rank = len(g["kernel"])
    spans = [(k - 1) * d + 1 for k, d in zip(g["kernel"], g["dilations"] or (1,) * rank, strict=True)]
    most = max(int(limit ** (1 / rank)), 2)
    return tuple(
        span + pick(draw, *[s for s in (0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 17, 30) if s < most]) for span in spans
    )


def channels(draw: Draw) -> tuple[int, int, int]:
    """Groups, input channels and filters: dense, grouped or depthwise."""
    kind = pick(draw, "dense", "dense", "dense", "grouped", "depthwise", "multiplier")
    if kind == "dense":
        return 1, draw(around_tiles), draw(around_tiles)
    if kind == "grouped":
        g = pick(draw, 2, 3, 4)
        return g, g * draw(small), g * draw(small)
    c = draw(around_tiles)
    return c, c, c * (1 if kind == "depthwise" else pick(draw, 2, 3))


def _rank(draw: Draw) -> int:
    return int(pick(draw, 2, 2, 2, 2, 1, 3))


@cases(Conv)
def conv(draw: Draw, op: type[Conv]) -> Case:
    rank, layout = _rank(draw), draw(layouts)
    g = geometry(draw, rank)
    group, c, k = channels(draw)
    kernel = g.pop("kernel")
    sizes = sizes_for(draw, {"kernel": kernel, **g}, 400)
    n = pick(draw, 1, 1, 2)
    if pick(draw, False, False, False, True):
        g["pads"], g["auto_pad"] = (), pick(draw, "SAME_UPPER", "SAME_LOWER", "VALID")
    activation = pick(draw, *(EXACT_ACTIVATIONS if draw(flags) else ACTIVATIONS))
    residual = pick(draw, False, False, True)
    made = op(**g, group=group, layout=layout, activation=activation, residual=residual)
    exact = activation in EXACT_ACTIVATIONS
    x = as_layout(whole(draw, (n, c, *sizes)), layout)
    w = whole(draw, (k, c // group, *kernel))
    if not exact:
        w = w / np.float32(max(math.prod(w.shape[1:]), 1))
    bias = maybe(draw, whole(draw, (k,)))
    if not residual:
        return Case(made, (x, w) if bias is None else (x, w, bias), exact)
    shape = made.output_shape(type_of(x), type_of(w)) or ()
    return Case(made, (x, w, bias, whole(draw, [d for d in shape if isinstance(d, int)])), exact)


@cases(ConvTranspose)
def conv_transpose(draw: Draw, op: type[ConvTranspose]) -> Case:
    rank, layout = _rank(draw), draw(layouts)
    g = geometry(draw, rank)
    group, c, k = channels(draw)
    kernel = g.pop("kernel")
    strides, dilations = g["strides"] or (1,) * rank, g["dilations"] or (1,) * rank
    sizes = tuple(pick(draw, 2, 3, 5, 8) for _ in range(rank))
    most = [s - 1 for s in strides]
    if draw(flags):
        g["output_padding"] = tuple(pick(draw, *range(m + 1)) for m in most)
    extra = g.get("output_padding", (0,) * rank)
    full = [
        (size - 1) * s + (r - 1) * d + 1 + e
        for size, s, r, d, e in zip(sizes, strides, kernel, dilations, extra, strict=True)
    ]
    if g["pads"]:
        g["pads"] = tuple(min(p, (full[i % rank] - 1) // 2) for i, p in enumerate(g["pads"]))
    elif pick(draw, False, True):
        g["output_shape"] = tuple(max(f - pick(draw, 0, 1, 2), 1) for f in full)
        g["auto_pad"] = pick(draw, "NOTSET", "SAME_UPPER", "SAME_LOWER")
    activation = pick(draw, *EXACT_ACTIVATIONS)
    made = op(**g, group=group, layout=layout, activation=activation)
    x = as_layout(whole(draw, (pick(draw, 1, 2), c, *sizes)), layout)
    w = whole(draw, (c, k // group, *kernel))
    bias = maybe(draw, whole(draw, (k,)))
    return Case(made, (x, w) if bias is None else (x, w, bias))
