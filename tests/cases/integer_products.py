"""Cases of products of bytes.  Scales are powers of two, so that no product of theirs is rounded."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.ops.layers.products.integer_products import ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul
from bolt_numba.types import F32, I8, I32, U8, Array, type_of
from tests.cases import Case, cases
from tests.cases.conv import channels, geometry, sizes_for
from tests.cases.draw import EXACT_ACTIVATIONS, Draw, around_tiles, as_layout, flags, layouts, maybe, pick, whole
from tests.cases.quantize import some_bytes, some_scale


def _maybe_fused(draw: Draw, op: Any, operands: list[Array | None], filters: int) -> Case:
    """An operator of ONNX's eight operands, often with more of what may follow the sums."""
    made = op()
    if draw(flags):
        operands.append(maybe(draw, whole(draw, (filters,), -1000, 1000, I32)) if made.name == "QLinearConv" else None)
    else:
        shape = made.infer(*(type_of(a) for a in operands if a is not None)).dims
        step, kind = F32.type(2.0**-3), pick(draw, "none", "f32", "bytes")
        if draw(flags):
            operands[6:] = None, None
            if made.name == "QLinearMatMul":
                _by_rows(draw, operands)
        if made.name == "QLinearConv":
            _by_images(draw, operands)
        bias = pick(draw, None, whole(draw, (filters,), -1000, 1000, I32), whole(draw, (filters,), -40, 40) * step)
        made = op(activation=pick(draw, *EXACT_ACTIVATIONS), residual=kind != "none")
        residual = whole(draw, shape, -90, 90) * step if kind == "f32" else some_bytes(draw, shape, pick(draw, U8, I8))
        operands += [bias, None if kind == "none" else residual]
        if kind == "bytes":
            operands += [some_scale(draw), some_bytes(draw, (), residual.dtype)]
    while operands[-1] is None:
        operands.pop()
    return Case(made, tuple(operands))


def _by_rows(draw: Draw, operands: list[Any]) -> None:
    """Scales, and zero points, of the first factor for each of its rows."""
    a = operands[0]
    per = pick(draw, (), (a.shape[-2],), (*a.shape[:-1], 1))
    operands[1], operands[2] = some_scale(draw, per), some_bytes(draw, pick(draw, (), per), a.dtype)


def _by_images(draw: Draw, operands: list[Any]) -> None:
    """Scales and zero points of the images."""
    x = operands[0]
    per = pick(draw, (), (x.shape[0], *(1,) * (x.ndim - 1)))
    operands[1], operands[2] = some_scale(draw, per), some_bytes(draw, per, x.dtype)


def _product(draw: Draw) -> tuple[Array, Array, Any, Any]:
    m, n, k = draw(around_tiles), draw(around_tiles), draw(around_tiles)
    batch = pick(draw, (), (), (2,))
    left, right = pick(draw, (U8, I8), (U8, U8), (I8, I8))
    shared = pick(draw, (), (), batch)
    return some_bytes(draw, (*batch, m, k), left), some_bytes(draw, (*shared, k, n), right), left, right


@cases(MatMulInteger)
def matmul_integer(draw: Draw, op: type[MatMulInteger]) -> Case:
    a, b, left, right = _product(draw)
    columns = b.shape[-1]
    zero_a = maybe(draw, some_bytes(draw, pick(draw, (), (), (*a.shape[:-1], 1)), left))
    zero_b = maybe(draw, some_bytes(draw, pick(draw, (), (columns,), (*b.shape[:-2], 1, columns)), right))
    operands: list[Array | None] = [a, b, zero_a, zero_b]
    while operands[-1] is None:
        operands.pop()
    return Case(op(), tuple(operands))


@cases(QLinearMatMul)
def qlinear_matmul(draw: Draw, op: type[QLinearMatMul]) -> Case:
    a, b, left, right = _product(draw)
    target = np.asarray(some_scale(draw) * 2.0 ** np.ceil(np.log2(a.shape[-1] * 16)), dtype=F32)
    scales = (some_scale(draw), some_scale(draw))
    zeros = [some_bytes(draw, (), t) for t in (left, right, left)]
    operands = [a, scales[0], zeros[0], b, scales[1], zeros[1], target, zeros[2]]
    return _maybe_fused(draw, op, operands, b.shape[-1])


def _convolution(draw: Draw) -> tuple[dict[str, Any], Array, Array, Any, Any]:
    g, layout = geometry(draw, pick(draw, 2, 2, 2, 1, 3)), draw(layouts)
    group, c, k = channels(draw)
    if pick(draw, False, False, True):  # enough channels for taps that are read in place
        group, c, k = pick(draw, (1, 20, 33), (2, 34, 6), (40, 40, 40), (1, 67, 5))
    sizes = sizes_for(draw, g, 200)
    kernel = g.pop("kernel")
    left, right = pick(draw, (U8, I8), (U8, U8), (I8, I8))
    x = as_layout(some_bytes(draw, (pick(draw, 1, 2), c, *sizes), left), layout)
    return {**g, "group": group, "layout": layout}, x, some_bytes(draw, (k, c // group, *kernel), right), left, right


@cases(ConvInteger)
def conv_integer(draw: Draw, op: type[ConvInteger]) -> Case:
    g, x, w, left, right = _convolution(draw)
    zero_x, zero_w = some_bytes(draw, (), left), some_bytes(draw, pick(draw, (), (w.shape[0],)), right)
    return Case(op(**g), (x, w, zero_x, zero_w)[: pick(draw, 2, 3, 4)])


@cases(QLinearConv)
def qlinear_conv(draw: Draw, op: type[QLinearConv]) -> Case:
    g, x, w, left, right = _convolution(draw)
    per = pick(draw, (), (w.shape[0],))
    zero_w = np.zeros(per, dtype=right) if right == I8 else some_bytes(draw, (), right)
    target = np.asarray(some_scale(draw) * 2.0 ** pick(draw, 5, 6, 7, 8), dtype=F32)
    zeros = [some_bytes(draw, (), left) for _ in range(2)]
    operands = [x, some_scale(draw), zeros[0], w, some_scale(draw, per), zero_w, target, zeros[1]]
    return _maybe_fused(draw, functools.partial(op, **g), operands, w.shape[0])
