"""Readers of resampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I64
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Floats, Ints, ints
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat, Expand
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.resize import GridSample, Resize
from bolt_numba.ops.pointwise import Add, Cast, Div, Max, Mul, Sub

_METHODS = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


SINGLE = {"bicubic": "edge_half_pixel", "bilinear": "pytorch_half_pixel"}
"""Where pixels' centres put a single element: a scale of 0 leaves half a pixel before the first, which is the first
one where weights are linear.  The other methods have the scale of the sizes."""
SINGLE_OF_OLD = {**SINGLE, "linear": "pytorch_half_pixel", "trilinear": "pytorch_half_pixel"}


@record(frozen=True)
class Resampling:
    """How images get another size.  align_mode 0 is that of pixels' centres, 1 scales indices."""

    data_format: str = "NCHW"
    out_d: int = 0
    out_h: int = 0
    out_w: int = 0
    interp_method: str = "bilinear"
    align_corners: bool = True
    align_mode: int = 1

    def operator(self, b: PaddleBuilder, spatial: int, single: dict[str, str]) -> Resize:
        """The resampling of the graph.  single: coordinates of a single element."""
        if self.interp_method not in _METHODS:
            raise b.invalid("interp_method", repr(self.interp_method), f"one of {sorted(_METHODS)}")
        mode = _METHODS[self.interp_method]
        if self.align_corners:
            where = "align_corners"
        elif mode == "nearest" or (mode == "linear" and self.align_mode == 1):
            where = "asymmetric"
        else:
            where = single.get(self.interp_method, "half_pixel")
        rounding, axes = "round_prefer_ceil" if self.align_corners else "floor", tuple(range(2, 2 + spatial))
        return Resize(mode, where, rounding, axes=axes, layout=b.layout_of(self.data_format))

    def given(self, spatial: int, is_scaled: bool) -> Ints:
        """Sizes of the result, 0 where a scale counts or none is given."""
        return (0,) if is_scaled else (self.out_d, self.out_h, self.out_w)[3 - spatial :]


def _sizes(b: PaddleBuilder, out_size: Value | None, size_tensor: Value | None, given: Ints) -> Value | None:
    """Sizes of the result as operands or attributes tell them; operands win."""
    if size_tensor is not None:
        return b.to(b.flat(size_tensor), I64)
    if out_size is not None:
        return b.to(b.flat(out_size), I64)
    if all(size > 0 for size in given):
        return b.const(ints(given))
    return None


_SLOTS = {"SizeTensor": "size_tensor*", "OutSize": "out_size", "Scale": "scale_tensor", "scale": "scale"}
_NAMES = ("bilinear_interp", "nearest_interp", "bicubic_interp", "linear_interp", "trilinear_interp")


@PADDLE.reader(legacy=tuple(f"{n}_v2" for n in _NAMES), pir=_NAMES, slots=_SLOTS)
def interpolate(
    b: PaddleBuilder,
    x: Value,
    out_size: Value | None = None,
    size_tensor: Value | None = None,
    scale_tensor: Value | None = None,
    *,
    how: Resampling,
    scale: Floats = (),
) -> Value:
    """X in other sizes, or its sizes times scales, along the spatial axes."""
    spatial = b.rank_of(x) - 2
    operator = how.operator(b, spatial, SINGLE)
    factors = scale * spatial if len(scale) == 1 else scale
    is_scaled = bool(factors) and min(factors) > 0
    given = how.given(spatial, is_scaled)
    sizes = _sizes(b, out_size, size_tensor, given)
    if sizes is not None:
        return b(operator, x, None, None, sizes)
    if scale_tensor is not None:
        wanted = b(Expand(), b.to(b.flat(scale_tensor), F32), ints([spatial]))
    elif is_scaled:
        wanted = b.const(np.array(factors, np.float32))
    else:
        raise b.invalid("sizes of the result", given, "sizes or scales")
    if how.align_corners:
        return b(operator, x, None, None, _scaled(b, x, wanted, how.data_format))
    return b(operator, x, None, wanted)


def _scaled(b: PaddleBuilder, x: Value, factor: Value, data_format: str) -> Value:
    """Sizes of x times a factor, cut."""
    own = b.lengths(x, b.spatial_of(x, data_format))
    return b(Cast(I64), b(Mul(), b.to(own, F32), factor))


@PADDLE.reader(legacy=_NAMES, slots=_SLOTS)
def interpolate_v1(
    b: PaddleBuilder,
    x: Value,
    out_size: Value | None = None,
    size_tensor: Value | None = None,
    scale_tensor: Value | None = None,
    *,
    how: Resampling,
    scale: float = 0.0,
) -> Value:
    """As `interpolate`; a scale only tells the sizes, whose ratio is what coordinates are scaled by."""
    spatial = b.rank_of(x) - 2
    sizes = _sizes(b, out_size, size_tensor, how.given(spatial, scale > 0))
    if sizes is None:
        factor = b.to(b.flat(scale_tensor), F32) if scale_tensor is not None else b.const(np.float32(scale))
        sizes = _scaled(b, x, factor, how.data_format)
    return b(how.operator(b, spatial, SINGLE_OF_OLD), x, None, None, sizes)


def _sampled(b: PaddleBuilder, made: GridSample, x: Value, grid: Value) -> Value:
    kinds = {"bilinear": "linear", "nearest": "nearest"}
    b.invalid_if(made.mode not in kinds, "mode", repr(made.mode), f"one of {sorted(kinds)}")
    return b(replace(made, mode=kinds[made.mode]), x, grid)


_SAMPLE = AsIs(GridSample, "x grid", then=_sampled, mode="bilinear", padding_mode="zeros", align_corners=True)
PADDLE.reader("grid_sampler", pir=("grid_sample",))(_SAMPLE)


@PADDLE.reader("affine_grid", slots={"Theta": "input", "OutputShape": "output_shape"})
def affine_grid(b: PaddleBuilder, input: Value, output_shape: Value, *, align_corners: bool = True) -> Value:
    """Coordinates between -1 and 1 of each pixel of the result, transformed by theta [n, axes, axes + 1]."""
    shape = b.to(b.flat(output_shape), I64)
    axes = b.static_dim(shape, 0) - 2
    sizes = [b.column(shape, 0, 2 + i) for i in range(axes)]
    grid = [_centres(b, size, align_corners) for size in sizes]
    whole_shape = b.joined(*(b.shaped(s, [1]) for s in sizes), [1])
    columns = [b(Expand(), b.shaped(grid[i], [-1] + [1] * (axes - i)), whole_shape) for i in reversed(range(axes))]
    ones = b(Add(), b(Mul(), columns[0], 0.0), 1.0)
    points = b.shaped(b(Concat(axes), *columns, ones), [1, -1, axes + 1])
    made = b(MatMul(trans_b=True), points, input)
    return b.shaped(made, b.length(input, 0), *(b.shaped(s, [1]) for s in sizes), [axes])


def _centres(b: PaddleBuilder, size: Value, align_corners: bool) -> Value:
    """Coordinates of pixels: from -1 to 1, the ends included or half a pixel inside."""
    count, places = b.to(size, F32), b.counted(size, F32)
    if align_corners:
        step = b(Div(), b.const(np.float32(2)), b(Max(), b(Sub(), count, 1.0), 1.0))
        spread = b(Mul(), places, step)
    else:
        spread = b(Div(), b(Add(), b(Mul(), places, 2.0), 1.0), count)
    return b(Sub(), spread, 1.0)
