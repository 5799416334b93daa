"""Operators of the standard that few networks use; their references are all there is."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.budget import ask
from bolt_numba.errors import DTypeError
from bolt_numba.ops.content import PLANNED, bounded, want_between
from bolt_numba.ops.dtypes import FLOATS, INDICES, NUMBERS, plain_bools, same_dtype, widened
from bolt_numba.ops.registry import Op, fresh_dim, normalise_axis, op, want_dtype
from bolt_numba.ops.shapes import (
    known_dims,
    known_ints,
    known_length,
    product,
    shape_of,
    unknown_shape,
    want_dim,
    want_dims,
    want_one,
)
from bolt_numba.ops.spatial import Windows
from bolt_numba.types import STRING, AnyDType, Array, TensorType, dtype_name


@op("BitCast")
class BitCast(Op):
    """y = x's bits read as another dtype of the same width.  x: [...] any -> y: ``to``.  Source: ONNX BitCast-26.

    Bits that are no bool, 2 to 255, are true.
    """

    to: AnyDType
    data_bounds = bounded(x="values; as bools, all but 0 are true")

    def infer(self, x: TensorType) -> TensorType:
        if STRING in (x.dtype, self.to) or x.dtype.itemsize != self.to.itemsize:
            raise DTypeError(
                f"BitCast: dtype of x: got {dtype_name(x.dtype)}, wanted the width of {dtype_name(self.to)}"
            )
        return TensorType(self.to, x.shape)

    def reference(self, x: Array) -> Array:
        return np.asarray(plain_bools(np.ascontiguousarray(x).reshape(x.shape).view(self.to)))


@op("CumProd")
class CumProd(Op):
    """y = running product of x along an axis.

    x: [...] number · axis: scalar i32 or i64 -> y: like x.  exclusive: without the element itself.
    reverse: from the end.  Source: ONNX CumProd-26.
    """

    exclusive: bool = False
    reverse: bool = False
    value_inputs = (1,)
    data_bounds = bounded(axis=PLANNED)

    def infer(self, x: TensorType, axis: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *NUMBERS)
        want_dtype(self, "axis", axis.dtype, *INDICES)
        want_one(self, axis=axis)
        if axis.known is not None and x.shape is not None:
            normalise_axis(self, int(axis.known.reshape(-1)[0]), len(x.shape))
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, axis: Array) -> Array:
        along = normalise_axis(self, int(axis.reshape(-1)[0]), x.ndim)
        data = np.flip(widened(x), along) if self.reverse else widened(x)
        y = np.cumprod(data, axis=along, dtype=data.dtype)
        if self.exclusive:
            y = np.roll(y, 1, axis=along)
            y[(slice(None),) * along + (slice(0, 1),)] = 1
        return np.ascontiguousarray(np.flip(y, along) if self.reverse else y).astype(x.dtype, copy=False)


@op("Det")
class Det(Op):
    """y = determinants of square matrices.  x: [..., M, M] float -> y: [...].  Source: ONNX Det-22."""

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        if x.shape is None:
            return TensorType(x.dtype, None)
        if len(x.shape) < 2 or (
            isinstance(x.shape[-1], int) and isinstance(x.shape[-2], int) and x.shape[-1] != x.shape[-2]
        ):
            raise self.fail("shape of x", x, "square matrices")
        return TensorType(x.dtype, x.shape[:-2])

    def reference(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(widened(x))).astype(x.dtype, copy=False)


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


@op("ReverseSequence")
class ReverseSequence(Op):
    """y = x with the first ``sequence_lens[b]`` elements of each batch entry in reverse order along the time axis.

    x: [...] any, rank at least 2 · sequence_lens: [batch] i64.  Source: ONNX ReverseSequence-10.
    """

    batch_axis: int = 1
    time_axis: int = 0
    data_bounds = bounded(
        sequence_lens=(
            "which steps are read; tested against the time axis on a copy that the kernel reads, else refused"
        ),
    )

    def infer(self, x: TensorType, sequence_lens: TensorType) -> TensorType:
        want_dtype(self, "sequence_lens", sequence_lens.dtype, *INDICES)
        if {self.batch_axis, self.time_axis} != {0, 1}:
            raise self.fail("batch_axis and time_axis", (self.batch_axis, self.time_axis), "0 and 1")
        if x.shape is not None and len(x.shape) < 2:
            raise self.fail("rank of x", len(x.shape), "at least 2")
        want_dims(self, "sequence_lens", sequence_lens, None if x.shape is None else x.shape[self.batch_axis])
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, sequence_lens: Array) -> Array:
        want_between(self, "sequence_lens", sequence_lens, 0, x.shape[self.time_axis])
        y = x.copy()
        into, data = (np.moveaxis(a, self.batch_axis, 0) for a in (y, x))
        for target, source, length in zip(into, data, sequence_lens, strict=True):
            target[:length] = source[:length][::-1]
        return y


@op("TensorScatter")
class TensorScatter(Op):
    """y = a cache with new entries written along its sequence axis.

    past: [n, ..., max length, ...] any · update: the same but for the axis · write_indices: [n] i64, zeros if omitted.
    mode: ``linear``, or ``circular`` where places wrap around.  Source: ONNX TensorScatter-24.
    """

    axis: int = -2
    mode: str = "linear"
    data_bounds = bounded(
        write_indices=(
            "which rows are written; tested against the axis on a copy that the kernel reads, else refused; "
            "circular: taken modulo the axis"
        ),
    )

    def infer(self, past: TensorType, update: TensorType, write_indices: TensorType | None = None) -> TensorType:
        same_dtype(self, past, update)
        if self.mode not in ("linear", "circular"):
            raise self.fail("mode", self.mode, "linear or circular")
        if write_indices is not None:
            want_dtype(self, "write_indices", write_indices.dtype, *INDICES)
        if past.shape is not None:
            axis = normalise_axis(self, self.axis, len(past.shape))
            if axis == 0:
                raise self.fail("axis", self.axis, "another than that of the batch")
            want_dims(self, "update", update, *past.shape[:axis], None, *past.shape[axis + 1 :])
            want_dims(self, "write_indices", write_indices, past.shape[0])
            room, length = past.shape[axis], None if update.shape is None else update.shape[axis]
            if isinstance(room, int) and isinstance(length, int) and length > room:
                raise self.fail(f"dimension {axis} of update", length, f"at most {room}")
        return TensorType(past.dtype, past.shape)

    def reference(self, past: Array, update: Array, write_indices: Array | None = None) -> Array:
        y = past.copy()
        axis = normalise_axis(self, self.axis, past.ndim)
        starts = np.zeros(len(past), int) if write_indices is None else write_indices
        if self.mode == "linear" and update.size:
            want_between(self, "write_indices", starts, 0, past.shape[axis] - update.shape[axis])
        for target, new, start in zip(y, update, starts, strict=True):
            places = start + np.arange(new.shape[axis - 1])
            if self.mode == "circular":
                places = places % past.shape[axis]
            np.moveaxis(target, axis - 1, 0)[places] = np.moveaxis(new, axis - 1, 0)
        return y
