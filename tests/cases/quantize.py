"""Cases of quantised operators.  Scales are powers of two, so that no product of theirs is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.layers import quantize as q
from bolt_numba.types import F32, I8, I32, U8, Array
from tests.cases import Case, cases
from tests.cases.conv import channels, geometry, sizes_for
from tests.cases.draw import Draw, around_tiles, as_layout, axis_of, flags, layouts, maybe, pick, real, shapes, whole


def _bytes(draw: Draw, dims: tuple[int, ...], dtype: Any) -> Array:
    info = np.iinfo(dtype)
    return whole(draw, dims, int(info.min), int(info.max), dtype)


def _scale(draw: Draw, dims: tuple[int, ...] = ()) -> Array:
    return np.asarray(2.0 ** whole(draw, dims, -5, 1), dtype=F32)


@cases(q.QuantizeLinear)
def quantize_linear(draw: Draw, op: type[q.QuantizeLinear]) -> Case:
    dims, dtype = shapes(draw, 1, 4), pick(draw, U8, I8)
    axis = axis_of(draw, len(dims))
    per = pick(draw, (), (dims[axis],))
    operands = (real(draw, dims, -20, 20), _scale(draw, per), _bytes(draw, per, dtype))
    return Case(op(axis), operands[: pick(draw, 2, 3, 3)])


@cases(q.DequantizeLinear)
def dequantize_linear(draw: Draw, op: type[q.DequantizeLinear]) -> Case:
    dims, dtype = shapes(draw, 1, 4), pick(draw, U8, I8)
    axis = axis_of(draw, len(dims))
    per = pick(draw, (), (dims[axis],))
    operands = (_bytes(draw, dims, dtype), _scale(draw, per), _bytes(draw, per, dtype))
    return Case(op(axis), operands[: pick(draw, 2, 3, 3)])


@cases(q.DynamicQuantizeLinear)
def dynamic_quantize_linear(draw: Draw, op: type[q.DynamicQuantizeLinear]) -> Case:
    low, high = pick(draw, (-3.0, 4.0), (0.5, 2.0), (-5.0, -1.0))
    return Case(op(), (real(draw, shapes(draw, 1, 3), low, high),))


def _product(draw: Draw) -> tuple[Array, Array, Any, Any]:
    m, n, k = draw(around_tiles), draw(around_tiles), draw(around_tiles)
    batch = pick(draw, (), (), (2,))
    left, right = pick(draw, (U8, I8), (U8, U8), (I8, I8))
    shared = pick(draw, (), (), batch)
    return _bytes(draw, (*batch, m, k), left), _bytes(draw, (*shared, k, n), right), left, right


@cases(q.MatMulInteger)
def matmul_integer(draw: Draw, op: type[q.MatMulInteger]) -> Case:
    a, b, left, right = _product(draw)
    columns = b.shape[-1]
    zero_a = maybe(draw, _bytes(draw, pick(draw, (), (), (*a.shape[:-1], 1)), left))
    zero_b = maybe(draw, _bytes(draw, pick(draw, (), (columns,), (*b.shape[:-2], 1, columns)), right))
    operands: list[Array | None] = [a, b, zero_a, zero_b]
    while operands[-1] is None:
        operands.pop()
    return Case(op(), tuple(operands))


@cases(q.QLinearMatMul)
def qlinear_matmul(draw: Draw, op: type[q.QLinearMatMul]) -> Case:
    a, b, left, right = _product(draw)
    target = np.asarray(_scale(draw) * 2.0 ** np.ceil(np.log2(a.shape[-1] * 16)), dtype=F32)
    scales = (_scale(draw), _scale(draw))
    zeros = [_bytes(draw, (), t) for t in (left, right, left)]
    return Case(op(), (a, scales[0], zeros[0], b, scales[1], zeros[1], target, zeros[2]))


def _convolution(draw: Draw) -> tuple[dict[str, Any], Array, Array, Any, Any]:
    g, layout = geometry(draw, pick(draw, 2, 2, 2, 1, 3)), draw(layouts)
    group, c, k = channels(draw)
    if pick(draw, False, False, True):  # enough channels for taps that are read in place
        group, c, k = pick(draw, (1, 20, 33), (2, 34, 6), (40, 40, 40), (1, 67, 5))
    sizes = sizes_for(draw, g, 200)
    kernel = g.pop("kernel")
    left, right = pick(draw, (U8, I8), (U8, U8), (I8, I8))
    x = as_layout(_bytes(draw, (pick(draw, 1, 2), c, *sizes), left), layout)
    return {**g, "group": group, "layout": layout}, x, _bytes(draw, (k, c // group, *kernel), right), left, right


@cases(q.ConvInteger)
def conv_integer(draw: Draw, op: type[q.ConvInteger]) -> Case:
    g, x, w, left, right = _convolution(draw)
    zero_x, zero_w = _bytes(draw, (), left), _bytes(draw, pick(draw, (), (w.shape[0],)), right)
    return Case(op(**g), (x, w, zero_x, zero_w)[: pick(draw, 2, 3, 4)])


@cases(q.QLinearConv)
def qlinear_conv(draw: Draw, op: type[q.QLinearConv]) -> Case:
    g, x, w, left, right = _convolution(draw)
    per = pick(draw, (), (w.shape[0],))
    zero_w = np.zeros(per, dtype=right) if right == I8 else _bytes(draw, (), right)
    target = np.asarray(_scale(draw) * 2.0 ** pick(draw, 5, 6, 7, 8), dtype=F32)
    operands = [x, _scale(draw), _bytes(draw, (), left), w, _scale(draw, per), zero_w, target, _bytes(draw, (), left)]
    if draw(flags):
        operands.append(whole(draw, (w.shape[0],), -1000, 1000, I32))
    return Case(op(**g), tuple(operands))
