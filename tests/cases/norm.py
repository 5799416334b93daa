"""Cases of normalisations."""

from __future__ import annotations

from bolt_numba.ops.layers.norm import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from bolt_numba.types import Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, as_layout, axis_of, flags, layouts, maybe, pick, real, shape, shapes


def _image(draw: Draw, low: int = 3) -> tuple[Array, str]:
    layout = draw(layouts)
    dims = shape(draw, pick(draw, low, 4, 4, 5), 3000)
    return as_layout(real(draw, dims), layout), layout


def _channels(x: Array, layout: str) -> int:
    return int(x.shape[1] if layout == "NCHW" else x.shape[-1])


@cases(BatchNormalization)
def batch_normalization(draw: Draw, op: type[BatchNormalization]) -> Case:
    x, layout = _image(draw, 2)
    c = (_channels(x, layout),)
    var = real(draw, c, 0.1, 2.0)
    return Case(op(pick(draw, 1e-5, 1e-2), layout), (x, *(real(draw, c) for _ in range(3)), var), exact=False)


@cases(InstanceNormalization)
def instance_normalization(draw: Draw, op: type[InstanceNormalization]) -> Case:
    x, layout = _image(draw)
    c = (_channels(x, layout),)
    return Case(op(pick(draw, 1e-3, 1e-2), layout), (x, real(draw, c), real(draw, c)), exact=False, rtol=1e-4)


@cases(GroupNormalization)
def group_normalization(draw: Draw, op: type[GroupNormalization]) -> Case:
    groups, layout = pick(draw, 1, 2, 3, 8), draw(layouts)
    c = groups * pick(draw, 1, 2, 3, 5)
    x = as_layout(real(draw, (pick(draw, 1, 2), c, *shape(draw, pick(draw, 1, 2), 100))), layout)
    operands = (x, real(draw, (c,)), real(draw, (c,)))
    return Case(op(groups, pick(draw, 1e-3, 1e-2), layout), operands, exact=False, rtol=1e-4)


@cases(LayerNormalization)
def layer_normalization(draw: Draw, op: type[LayerNormalization]) -> Case:
    dims = shapes(draw, 1, 4)
    axis = pick(draw, -1, -1, axis_of(draw, len(dims)))
    normal = dims[axis:]
    scale, bias = real(draw, normal), maybe(draw, real(draw, normal))
    made = op(axis, pick(draw, 1e-3, 1e-2), draw(flags))
    operands = (real(draw, dims), scale) if bias is None else (real(draw, dims), scale, bias)
    return Case(made, operands, exact=False, rtol=1e-4)


@cases(RMSNormalization)
def rms_normalization(draw: Draw, op: type[RMSNormalization]) -> Case:
    dims = shapes(draw, 1, 4)
    axis = pick(draw, -1, -1, axis_of(draw, len(dims)))
    return Case(op(axis, pick(draw, 1e-5, 1e-2)), (real(draw, dims), real(draw, dims[axis:])), exact=False)


@cases(LRN)
def lrn(draw: Draw, op: type[LRN]) -> Case:
    x, layout = _image(draw)
    made = op(pick(draw, 1, 3, 5), pick(draw, 1e-4, 0.5), pick(draw, 0.75, 0.5), pick(draw, 1.0, 2.0), layout)
    return Case(made, (x,), exact=False)


@cases(LpNormalization)
def lp_normalization(draw: Draw, op: type[LpNormalization]) -> Case:
    dims = shapes(draw, 1, 4)
    return Case(op(axis_of(draw, len(dims)), pick(draw, 1, 2)), (real(draw, dims),), exact=False)
