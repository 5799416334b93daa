"""Pooling over windows; global pooling is a reduction over the spatial axes (see `reduce`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.records import record
from bolt_numba.base.types import I64, Array, Shape, TensorType
from bolt_numba.ops.content import PLANNED, bounded
from bolt_numba.ops.dtypes import FLOATS, INDICES, INTS, NUMBERS, lowest, widened
from bolt_numba.ops.registry import Op, fresh_dim, op, want_among, want_dtype
from bolt_numba.ops.shapes import (
    known_dims,
    known_ints,
    known_length,
    product,
    shape_of,
    unknown_shape,
    want_dim,
    want_dims,
)
from bolt_numba.ops.windows import Windows, as_layout, channels_first, join_shape, split_shape


@record(frozen=True)
class Pool(Op):
    """Attributes and shapes common to all pools; empty tuples mean 1 (strides, dilations) and 0 (pads)."""

    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"
    ceil_mode: bool = False
    layout: str = "NCHW"

    @property
    def windows(self) -> Windows:
        return Windows.of(
            self, self.kernel_shape, self.strides, self.dilations, self.pads, self.auto_pad, self.ceil_mode
        )

    def output_shape(self, x: TensorType) -> Shape | None:
        """Shape of the result, None when the rank is unknown; raises ShapeError."""
        windows, parts = self.windows, split_shape(self, x, self.layout, len(self.kernel_shape) + 2)
        if parts is None:
            return None
        n, c, sizes = parts
        return join_shape(n, c, windows.output_dims(self, sizes), self.layout)

    def resolved(self, x: Array) -> tuple[Windows, list[int]]:
        """Windows with explicit pads and the number of positions, for ``x`` [n, c, spatial...]."""
        windows = self.windows
        return windows.resolved(x.shape[2:]), windows.static_dims(self, x.shape[2:])


@op("MaxPool")
class MaxPool(Pool):
    """y = the greatest element of each window; with indices=True also where it was.

    x: [n, c, h, w] or [n, h, w, c], float or integer -> y: [n, c, oh, ow] in x's layout and dtype; indices: i64 like y,
    into the flattened [n, c, h, w] (also when the layout is NHWC; the first of equals; storage_order=1: h runs fastest
    within a channel).  NaN counts as the greatest.  Source: ONNX MaxPool-22.
    """

    storage_order: int = 0
    indices: bool = False

    def infer(self, x: TensorType) -> TensorType | tuple[TensorType, ...]:
        want_dtype(self, "x", x.dtype, *FLOATS, *INTS)
        want_among(self, (0, 1), storage_order=self.storage_order)
        shape = self.output_shape(x)
        y = TensorType(x.dtype, shape)
        return (y, TensorType(I64, shape)) if self.indices else y

    def reference(self, x: Array) -> Array | tuple[Array, Array]:
        data = channels_first(widened(x), self.layout)
        windows, outs = self.resolved(data)
        low = lowest(data.dtype)
        best = np.full((*data.shape[:2], *outs), low, dtype=data.dtype)
        if not self.indices:
            for seen in windows.taps(windows.padded(data, low, outs), outs):
                best = np.where((seen > best) | (seen != seen), seen, best)
            return as_layout(best, self.layout).astype(x.dtype, copy=False)
        order = "C" if self.storage_order == 0 else "F"
        within = np.arange(int(np.prod(data.shape[2:]))).reshape(data.shape[2:], order=order)  # type: ignore[call-overload]
        channels = np.arange(data.shape[0] * data.shape[1]).reshape(*data.shape[:2], *(1,) * len(outs))
        places = windows.padded(within[None, None], -1, outs)
        where = np.full((*data.shape[:2], *outs), -1, dtype=I64)
        pairs = zip(windows.taps(windows.padded(data, low, outs), outs), windows.taps(places, outs), strict=True)
        for seen, place in pairs:
            better = (place >= 0) & ((seen > best) | (where < 0) | ((seen != seen) & (best == best)))
            best = np.where(better, seen, best)
            where = np.where(better, place, where)
        where = np.where(where < 0, 0, where) + channels * within.size
        return as_layout(best, self.layout).astype(x.dtype, copy=False), as_layout(where, self.layout)


@op("AveragePool")
class AveragePool(Pool):
    """y = mean of each window, over the elements inside the input (and its pads with count_include_pad).

    x: [n, c, h, w] or [n, h, w, c], float -> y: [n, c, oh, ow] in x's layout and dtype.  What ceil mode adds beyond the
    pads never counts.  Source: ONNX AveragePool-22.
    """

    count_include_pad: bool = False

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        return TensorType(x.dtype, self.output_shape(x))

    def reference(self, x: Array) -> Array:
        data = channels_first(widened(x), self.layout)
        windows, outs = self.resolved(data)
        total = np.zeros((*data.shape[:2], *outs), dtype=data.dtype)
        for seen in windows.taps(windows.padded(data, 0, outs), outs):
            total += seen
        return as_layout(total / self.counts(windows, data, outs), self.layout).astype(x.dtype, copy=False)

    def counts(self, windows: Windows, data: Any, outs: Sequence[int]) -> Array:
        """How many elements of ``data`` [n, c, spatial...] count in each window, at least 1."""
        inside = np.ones((1, 1, *data.shape[2:]), data.dtype)
        if self.count_include_pad:
            rank = len(outs)
            pads = [(windows.pads[i], windows.pads[rank + i]) for i in range(rank)]
            inside = np.pad(inside, [(0, 0), (0, 0), *pads], constant_values=1)
            windows = replace(windows, pads=(0,) * (2 * rank))
        count: Any = sum(windows.taps(windows.padded(inside, 0, outs), outs))
        return np.asarray(np.maximum(count, 1))


@op("LpPool")
class LpPool(Pool):
    """y = (sum of |x| ** p over each window) ** (1 / p); pads count as zero.

    x: [n, c, h, w] or [n, h, w, c], float -> y: [n, c, oh, ow] in x's layout and dtype.  Source: ONNX LpPool-22.
    """

    p: int = 2

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        self.fail_if(self.p < 1, "p", self.p, "at least 1")
        return TensorType(x.dtype, self.output_shape(x))

    def reference(self, x: Array) -> Array:
        data = channels_first(widened(x), self.layout)
        windows, outs = self.resolved(data)
        total = np.zeros((*data.shape[:2], *outs), dtype=data.dtype)
        for seen in windows.taps(windows.padded(np.abs(data) ** self.p, 0, outs), outs):
            total += seen
        return as_layout(total ** (1 / self.p), self.layout).astype(x.dtype, copy=False)


@op("Col2Im")
class Col2Im(Op):
    """y = blocks added up to images: the transpose of taking windows.

    x: [n, c * prod(block), positions] number · image_shape, block_shape: [axes] i64 -> y: [n, c, image...].
    Source: ONNX Col2Im-18.
    """

    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    value_inputs = (1, 2)
    data_bounds = bounded(image_shape=PLANNED, block_shape=PLANNED)

    def infer(self, x: TensorType, image_shape: TensorType, block_shape: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *NUMBERS)
        for what, t in (("image_shape", image_shape), ("block_shape", block_shape)):
            want_dtype(self, what, t.dtype, *INDICES)
            want_dims(self, what, t, None)
        shape = shape_of(self, "x", x, 3)
        dims, block = known_dims(image_shape), known_ints(block_shape)
        image = unknown_shape(known_length(image_shape)) if dims is None else tuple(dims)
        if shape is None or image is None:
            return TensorType(x.dtype, None)
        if block is None:
            return TensorType(x.dtype, (shape[0], fresh_dim("channels"), *image))
        windows = self._windows(block)
        positions, taps = product(windows.output_dims(self, image)), math.prod(block)
        want_dim(self, "last dimension of x", shape[2], positions)
        if isinstance(shape[1], int) and shape[1] % taps:
            raise self.fail("channels of x", shape[1], f"a multiple of {taps}")
        return TensorType(x.dtype, (shape[0], shape[1] // taps, *image))

    def _windows(self, block: list[int]) -> Windows:
        return Windows.of(self, block, self.strides, self.dilations, self.pads, "NOTSET")

    def reference(self, x: Array, image_shape: Array, block_shape: Array) -> Array:
        image, block = [int(d) for d in image_shape], [int(d) for d in block_shape]
        rank = len(block)
        windows = self._windows(block)
        pads = windows.pads
        outs = windows.static_dims(self, image)
        room = [image[i] + pads[i] + pads[rank + i] for i in range(rank)]
        taps = math.prod(block)
        data = widened(x).reshape(x.shape[0], x.shape[1] // taps, taps, *outs)
        ask(math.prod((*data.shape[:2], *room)) * data.itemsize, f"{self.name}: image with its pads")
        y = np.zeros((*data.shape[:2], *room), data.dtype)
        for i, target in enumerate(windows.taps(y, outs)):
            target += data[:, :, i]
        inner = [slice(pads[i], pads[i] + image[i]) for i in range(rank)]
        return np.ascontiguousarray(y[(slice(None), slice(None), *inner)]).astype(x.dtype, copy=False)
