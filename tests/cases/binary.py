"""Cases of binary layers: bits, weights of one magnitude a filter (a power of two, so that no product is rounded)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.ops.layers.products.binary import PACKS, BinaryConv, BinaryMatMul, BinaryPack, words_of
from bolt_numba.types import F32, I32, U32, Array, type_of
from tests.cases import Case, cases
from tests.cases.conv import geometry, sizes_for
from tests.cases.draw import EXACT_ACTIVATIONS, Draw, as_layout, axis_of, layouts, maybe, pick, shapes, whole

CHANNELS = (1, 2, 5, 16, 31, 32, 33, 40, 64, 65, 96, 100, 128, 150, 200)


@cases(BinaryPack)
def binary_pack(draw: Draw, op: type[BinaryPack]) -> Case:
    dims = shapes(draw, 1, 4)
    axis = axis_of(draw, len(dims))
    x, bound = whole(draw, dims), whole(draw, pick(draw, (1,), (dims[axis],)))
    if pick(draw, False, False, False, True):
        x[whole(draw, dims, 0, 5) == 0] = pick(draw, np.nan, np.inf, -np.inf, -0.0)
    return Case(op(axis, pick(draw, *PACKS, "sign", "sign")), (x, bound))


def _words(draw: Draw, dims: tuple[int, ...], channels: int, packs: int) -> Array:
    """Packs of random bits along the last axis; the second has mostly the bits of the first."""
    one = whole(draw, (*dims, channels), -3, 3)
    least = whole(draw, (1,))
    if pick(draw, False, True):
        one = np.where(one == least, one + 1, one).astype(F32)
    made = BinaryPack(-1, "sign" if packs == 2 else "gt").reference(one, least)
    return np.asarray(made, U32)


def _weights(draw: Draw, dims: tuple[int, ...], axis: int) -> Array:
    sizes = [1] * len(dims)
    sizes[axis] = dims[axis]
    signs = np.where(whole(draw, dims, 0, 1) > 0, 1, -1)
    return np.asarray(signs * 2.0 ** whole(draw, sizes, -3, 3), F32)


def _tail(draw: Draw, most: int, count: int, dims: tuple[int, ...]) -> tuple[dict[str, Any], list[Array | None]]:
    """Attributes and operands of what follows the sums."""
    if pick(draw, False, False, True):
        return {}, [None, None, whole(draw, (count,), -most, most, I32)]
    residual = pick(draw, False, True)
    bias, added = maybe(draw, whole(draw, (count,))), whole(draw, dims) if residual else None
    return {"activation": pick(draw, *EXACT_ACTIVATIONS), "residual": residual}, [bias, added]


@cases(BinaryConv)
def binary_conv(draw: Draw, op: type[BinaryConv]) -> Case:
    rank, layout = pick(draw, 2, 2, 2, 1, 3), draw(layouts)
    g = geometry(draw, rank)
    kernel = g.pop("kernel")
    sizes = sizes_for(draw, {"kernel": kernel, **g}, 100)
    group, c, k = pick(draw, (1, 0, 0), (1, 0, 0), (1, 0, 0), (2, 64, 10), (3, 96, 96), (2, 128, 64))
    c, k = c or pick(draw, *CHANNELS), k or pick(draw, *CHANNELS)
    zero_one = pick(draw, False, False, True)
    packs = 1 if zero_one else pick(draw, 1, 1, 2)
    n = pick(draw, 1, 1, 2)
    if pick(draw, False, False, False, True):
        g["pads"], g["auto_pad"] = (), pick(draw, "SAME_UPPER", "SAME_LOWER", "VALID")
    common: dict[str, Any] = {**g, "group": group, "layout": layout, "zero_one": zero_one}
    common["outside"] = pick(draw, 0, 0, -1, 1)
    x = np.moveaxis(_words(draw, (n, *sizes), c, packs), -1, 1)
    x, w = as_layout(x, layout), _weights(draw, (k, c // group, *kernel), 0)
    dims = tuple(int(d) for d in op(**common).infer(type_of(x), type_of(w)).dims)
    attributes, operands = _tail(draw, c // group * math.prod(kernel), k, dims)
    assert x.shape[1 if layout == "NCHW" else -1] == packs * words_of(c)
    return Case(op(**common, **attributes), (x, w, *operands))


@cases(BinaryMatMul)
def binary_matmul(draw: Draw, op: type[BinaryMatMul]) -> Case:
    k, n = pick(draw, *CHANNELS), pick(draw, *CHANNELS)
    zero_one = pick(draw, False, False, True)
    lead = pick(draw, (), (1,), (7,), (2, 13), (30,))
    x = _words(draw, lead, k, 1 if zero_one else pick(draw, 1, 1, 2))
    attributes, operands = _tail(draw, k, n, (*lead, n))
    return Case(op(zero_one=zero_one, **attributes), (x, _weights(draw, (k, n), 1), *operands))
