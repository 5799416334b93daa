"""Which layers Winograd's algorithm computes, and each as images of two axes.  No kernels here.

A filter of three axes looks at several slices of its input, each an image.  Their channels become channels of one
transformed tile: a 3x3x3 layer is a 3x3 layer with three times the channels.  Strides, pads and dilations along the
first axis only decide which slices these are.  Of a dilated layer, every d-th row and column is an image of its own: a
tile has the distances between its pixels that the filter has between its taps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.convolution.conv import accepts_conv
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.registry import Types, once
from bolt_numba.ops.layers.products.conv import Conv

TAPS = ((3, 3), (1, 3), (3, 1))


def is_column(taps: Sequence[int]) -> bool:
    """Whether filters look along the first of three axes only; the others are then one, a line of pixels."""
    return len(taps) == 3 and taps[1] == taps[2] == 1


def plane_taps(taps: Sequence[int]) -> tuple[int, int]:
    """Taps along the two axes of the images."""
    high, wide = taps[:2] if is_column(taps) else (1, *taps)[-2:]
    return high, wide


def depth_of(taps: Sequence[int]) -> int:
    """Slices that a filter looks at."""
    return taps[0] if len(taps) == 3 and not is_column(taps) else 1


def flat_dims(dims: Sequence[int]) -> tuple[int, ...]:
    """Of filters [k, c, taps...] as `flat_filters` gives them."""
    k, c, *taps = dims
    return (k, c * depth_of(taps), *plane_taps(taps)) if len(taps) == 3 else tuple(dims)


def flat_filters(w: Array) -> Array:
    """Filters [k, c, deep, high, wide] as [k, deep * c, high, wide]; others as they are."""
    if w.ndim < 5:
        return w
    deep = depth_of(w.shape[2:])
    return w.reshape(*w.shape[:2], deep, -1).swapaxes(1, 2).reshape(flat_dims(w.shape))


@pure
@lru_cache(maxsize=256)
def slice_table(images: int, size: int, out: int, begin: int, taps: tuple[int, int, int]) -> Array:
    """i32 [images * out][taps]: the slice under each tap, of all images together; -1 outside.

    begin: pad before the first slice.  taps: how many, their stride and their dilation.
    """
    count, stride, dilation = taps
    at = np.arange(out)[:, None] * stride - begin + np.arange(count) * dilation
    whole = np.arange(images)[:, None, None] * size + at
    return np.where((at >= 0) & (at < size), whole, -1).reshape(-1, count).astype(np.int32)


@record(frozen=True)
class SlicedLayer:
    """slices: see `slice_table`, [images, deep].  h, wd, oh, ow: of the images.  top, left: begin pads.

    taps: along their axes.  dy, dx: dilations along the axes that have taps.
    """

    slices: Array
    images: int
    deep: int
    h: int
    wd: int
    oh: int
    ow: int
    top: int
    left: int
    taps: tuple[int, int]
    dy: int
    dx: int

    def tiles(self, sizes: tuple[int, int]) -> tuple[int, int]:
        """Tiles of ``sizes`` outputs along both axes of an image."""
        down, across = self.dy * -(-self.oh // (self.dy * sizes[0])), self.dx * -(-self.ow // (self.dx * sizes[1]))
        return down, across


def layer_of(op: Conv, x: TensorType, w: TensorType, out: TensorType) -> SlicedLayer:
    """A layer as images."""
    images, *sizes, _ = x.dims
    taps, outs = w.dims[2:], out.dims[1:-1]
    windows = op.windows(taps).resolved(tuple(sizes))
    pads, steps = windows.pads[: len(taps)], windows.dilations
    if is_column(taps):
        sizes, outs, pads = [sizes[0], math.prod(sizes[1:])], (outs[0], math.prod(outs[1:])), pads[:2]
        steps = steps[:2]
    if len(sizes) == 3:
        across = taps[0], windows.strides[0], steps[0]
        slices, images = slice_table(images, sizes[0], outs[0], pads[0], across), images * outs[0]
    else:
        across = 1, 1, 1
        slices = slice_table(images, 1, 1, 0, across)
    (h, wd), (oh, ow), (top, left) = (1, *sizes)[-2:], (1, *outs)[-2:], (0, *pads)[-2:]
    high, wide = plane_taps(taps)
    dy, dx = (d if count > 1 else 1 for d, count in zip((1, *steps)[-2:], (high, wide), strict=True))
    return SlicedLayer(slices, images, across[0], h, wd, oh, ow, top, left, (high, wide), dy, dx)


@once
def is_winograd(op: Conv, ins: Types) -> bool:
    """3x3, 1x3 or 3x1 along two axes, or 3 along one, of stride 1 there, one group, wide enough."""
    if not accepts_conv(op, ins):
        return False
    x, w = ins[0], ins[1]
    k, c, *taps = w.dims
    if plane_taps(taps) not in TAPS or len(taps) > 3 or op.group != 1 or c < LANES or k < LANES:
        return False
    free = 1 if len(taps) == 3 and not is_column(taps) else 0
    if max(op.strides[free:], default=1) > 1:
        return False
    if not is_column(taps):
        return True
    pads = op.windows(tuple(taps)).resolved(tuple(x.dims[1:-1])).pads
    return not any((*pads[1:3], *pads[4:]))
