"""Fourier transforms and mel filters; complex numbers are pairs along a last axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32, F64, AnyDType, Array, Dim, Shape, TensorType
from bolt_numba.ops.content import PLANNED, bounded
from bolt_numba.ops.dtypes import FLOATS, INDICES
from bolt_numba.ops.registry import Op, fresh_dim, normalise_axis, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import known_dims, shape_of, unknown_shape, want_dims, want_elements, want_one


def as_complex(x: Array) -> Array:
    """[..., 1 or 2] -> real or complex [...], f64: in f32 small frequencies would be lost beside a large one."""
    data = np.ascontiguousarray(x, F64)
    return data[..., 0] if x.shape[-1] == 1 else data.view(np.complex128)[..., 0]


def as_pairs(z: Array, dtype: AnyDType) -> Array:
    """Complex [...] -> [..., 2] of a float dtype."""
    return np.stack([z.real, z.imag], axis=-1).astype(dtype)


def transformed(z: Array, n: int, axis: int, function: Callable[..., Array]) -> Array:
    """A transform of ``n`` numbers along an axis; a line of which one is not finite has no result but NaN.

    NumPy's shortcuts leave zeros in such lines, which are other ones for each length.
    """
    is_bad = ~np.isfinite(z).all(axis=axis, keepdims=True)
    y = function(np.where(is_bad, 0, z), n, axis=axis)
    return np.where(is_bad, y.dtype.type(complex(np.nan, np.nan) if y.dtype.kind == "c" else np.nan), y)


def _want_pairs(owner: Op, what: str, t: TensorType) -> None:
    """Raise ShapeError unless the last axis holds real parts, or real and imaginary ones, and there is another."""
    if t.shape is not None and (len(t.shape) < 2 or (isinstance(t.shape[-1], int) and t.shape[-1] not in (1, 2))):
        raise owner.fail(f"shape of {what}", t, "[..., 1] or [..., 2], of rank at least 2")


def _scalar(t: TensorType | None) -> Dim | None:
    dims = None if t is None else known_dims(t)
    return dims[0] if dims else None


@op("DFT")
class DFT(Op):
    """y = discrete Fourier transform along one axis.

    x: [..., 1] real or [..., 2] complex, float · dft_length: scalar i32 or i64, the axis' length if omitted · axis:
    scalar i64, -2 if omitted -> y: [..., 2] of x's dtype; inverse and onesided: [..., 1].
    onesided: only the frequencies 0…n/2 are given (inverse: taken).  All is computed in f64.  A line of which a number
    is not finite has no result but NaN.  Source: ONNX DFT-20.
    """

    inverse: bool = False
    onesided: bool = False
    value_inputs = (1, 2)
    data_bounds = bounded(dft_length=PLANNED, axis=PLANNED)

    def infer(self, x: TensorType, dft_length: TensorType | None = None, axis: TensorType | None = None) -> TensorType:
        want_dtype(self, "x", x.dtype, *FLOATS)
        want_dtypes(self, INDICES, dft_length=dft_length, axis=axis)
        want_one(self, dft_length=dft_length, axis=axis)
        if x.shape is None:
            return TensorType(x.dtype, None)
        _want_pairs(self, "x", x)
        last = 1 if self.inverse and self.onesided else 2
        place = -2 if axis is None else _scalar(axis)
        if not isinstance(place, int):
            return TensorType(x.dtype, (*(unknown_shape(len(x.shape) - 1) or ()), last))
        shape = list(x.shape)
        along, given = self._along(place, len(shape)), None if dft_length is None else _scalar(dft_length)
        length = fresh_dim("dft") if dft_length is not None and given is None else self._length(shape[along], given)
        self._want_length(shape[along], length)
        shape[along] = length // 2 + 1 if self.onesided and not self.inverse else length
        return TensorType(x.dtype, (*shape[:-1], last))

    def _along(self, axis: int, rank: int) -> int:
        along = normalise_axis(self, axis, rank)
        self.fail_if(along == rank - 1, "axis", axis, "another than the last, which holds real and imaginary parts")
        return along

    def _length(self, size: Dim, given: Dim | None) -> Dim:
        if given is not None:
            return given
        return 2 * (size - 1) if self.inverse and self.onesided else size

    def _want_length(self, size: Dim, length: Dim) -> None:
        if isinstance(length, int) and length < 1:
            raise self.fail("length of the transform", length, "at least 1")
        want_elements(self, "x", size)

    def reference(self, x: Array, dft_length: Array | None = None, axis: Array | None = None) -> Array:
        along = self._along(-2 if axis is None else int(axis.reshape(-1)[0]), x.ndim)
        given = None if dft_length is None else int(dft_length.reshape(-1)[0])
        n = self._length(x.shape[along], given)
        assert isinstance(n, int), "no symbol among numbers"
        self._want_length(x.shape[along], n)
        used = n // 2 + 1 if self.inverse and self.onesided else n
        z = as_complex(x).take(np.arange(min(used, x.shape[along])), axis=along)
        if self.inverse and self.onesided:
            return transformed(z, n, along, np.fft.irfft)[..., None].astype(x.dtype)
        if self.inverse:
            return as_pairs(transformed(z, n, along, np.fft.ifft), x.dtype)
        y = transformed(z, n, along, np.fft.fft)
        if self.onesided:
            y = y.take(np.arange(y.shape[along] // 2 + 1), axis=along)
        return as_pairs(y, x.dtype)


@op("STFT")
class STFT(Op):
    """y = Fourier transforms of windows that slide along a signal.

    signal: [n, length, 1 or 2] float · frame_step, frame_length: scalar i32 or i64 · window: [frame_length] ->
    y: [n, frames, bins, 2], bins = frame_length, or frame_length / 2 + 1 when onesided.  Computed as DFT.
    Source: ONNX STFT-17.
    """

    onesided: bool = True
    value_inputs = (1, 3)
    data_bounds = bounded(frame_step=PLANNED, frame_length=PLANNED)

    def infer(
        self,
        signal: TensorType,
        frame_step: TensorType,
        window: TensorType | None = None,
        frame_length: TensorType | None = None,
    ) -> TensorType:
        want_dtypes(self, FLOATS, signal=signal, window=window)
        want_dtypes(self, INDICES, frame_step=frame_step, frame_length=frame_length)
        want_one(self, frame_step=frame_step, frame_length=frame_length)
        want_dims(self, "window", window, None)
        shape = shape_of(self, "signal", signal, 3)
        if shape is None:
            return TensorType(signal.dtype, None)
        _want_pairs(self, "signal", signal)
        length: Dim | None = shape[1]
        if frame_length is not None:
            length = _scalar(frame_length)
        elif window is not None:
            length = window.shape[0] if window.shape else None
        step = _scalar(frame_step)
        self._want_frames(shape[1], step, length)
        want_dims(self, "window", window, length)
        if length is None:
            return TensorType(signal.dtype, (shape[0], fresh_dim("frames"), fresh_dim("bins"), 2))
        frames = fresh_dim("frames") if step is None else (shape[1] - length) // step + 1
        bins = length // 2 + 1 if self.onesided else length
        return TensorType(signal.dtype, (shape[0], frames, bins, 2))

    def _want_frames(self, size: Dim, step: Dim | None, length: Dim | None) -> None:
        if isinstance(step, int) and step < 1:
            raise self.fail("frame_step", step, "at least 1")
        if isinstance(length, int) and (length < 1 or (isinstance(size, int) and length > size)):
            raise self.fail("length of a frame", length, f"1 to {size}")

    def reference(
        self, signal: Array, frame_step: Array, window: Array | None = None, frame_length: Array | None = None
    ) -> Array:
        step = int(frame_step.reshape(-1)[0])
        if frame_length is not None:
            length = int(frame_length.reshape(-1)[0])
        else:
            length = signal.shape[1] if window is None else len(window)
        self._want_frames(signal.shape[1], step, length)
        z = as_complex(signal)
        weight = 1.0 if window is None else window.astype(F64)
        count = (z.shape[1] - length) // step + 1
        ask(16 * z.shape[0] * count * length, f"{self.name}: {count} frames of {length}")
        frames = np.stack([z[:, i * step : i * step + length] * weight for i in range(count)], axis=1)
        y = transformed(frames, length, -1, np.fft.fft)
        return as_pairs(y[..., : length // 2 + 1] if self.onesided else y, signal.dtype)


AT_ONCE = 1 << 16
"""Elements that are computed together."""


@op("MelWeightMatrix")
class MelWeightMatrix(Op):
    """y = triangular filters of mel-spaced bands over the bins of a onesided spectrum.

    num_mel_bins, dft_length, sample_rate: scalar i32 or i64 · lower_edge_hertz, upper_edge_hertz: scalar float ->
    y: [dft_length / 2 + 1, num_mel_bins] of ``dtype``.  Source: ONNX MelWeightMatrix-17; bands are spaced by
    (upper - lower) / (num_mel_bins + 2) on the mel scale and rounded down to bins.
    """

    dtype: AnyDType = F32
    value_inputs = (0, 1, 2)
    data_bounds = bounded(num_mel_bins=PLANNED, dft_length=PLANNED, sample_rate=PLANNED)

    def infer(
        self,
        num_mel_bins: TensorType,
        dft_length: TensorType,
        sample_rate: TensorType,
        lower_edge_hertz: TensorType,
        upper_edge_hertz: TensorType,
    ) -> TensorType:
        numbers = {"num_mel_bins": num_mel_bins, "dft_length": dft_length, "sample_rate": sample_rate}
        edges = {"lower_edge_hertz": lower_edge_hertz, "upper_edge_hertz": upper_edge_hertz}
        want_dtypes(self, INDICES, **numbers)
        want_dtypes(self, FLOATS, **edges)
        want_one(self, **numbers, **edges)
        known = [t.known for t in (*numbers.values(), *edges.values())]
        if all(v is not None for v in known):
            self._numbers(*known)  # type: ignore[arg-type]  # none is None
        bands, length = _scalar(num_mel_bins), _scalar(dft_length)
        shape: Shape = (
            fresh_dim("bins") if length is None else length // 2 + 1,
            fresh_dim("bands") if bands is None else bands,
        )
        return TensorType(self.dtype, shape)

    def _numbers(
        self, num_mel_bins: Array, dft_length: Array, sample_rate: Array, low: Array, high: Array
    ) -> tuple[int, int, Callable[[Any], Any]]:
        """Number of bands, length of the transform, and the bin of a point on the mel scale, of which bands + 2 count.

        Raises ShapeError for what leaves the spectrum.
        """
        bands, length, rate = (int(v.reshape(-1)[0]) for v in (num_mel_bins, dft_length, sample_rate))
        if bands < 0 or length < 0 or rate < 1:
            raise self.fail("num_mel_bins, dft_length and sample_rate", (bands, length, rate), "at least 0, 0 and 1")
        ends = [float(v.reshape(-1)[0]) for v in (low, high)]
        self.fail_if(not all(0 <= e < math.inf for e in ends), "edges", ends, "finite frequencies of at least 0")
        edges = [2595 * np.log10(1 + e / 700) for e in ends]

        def place(i: Any) -> Any:
            hertz = 700 * (10 ** ((edges[0] + i * (edges[1] - edges[0]) / (bands + 2)) / 2595) - 1)
            return (length + 1) * hertz // rate

        if bands and max(place(0), place(bands), place(bands + 1) - 1) > length // 2:
            raise self.fail("edges", ends, f"frequencies of the {length // 2 + 1} bins at a rate of {rate}")
        return bands, length, place

    def reference(self, num_mel_bins: Array, dft_length: Array, sample_rate: Array, low: Array, high: Array) -> Array:
        bands, length, place = self._numbers(num_mel_bins, dft_length, sample_rate, low, high)
        places = place(np.arange(bands + 2)).astype(int)
        left, centre, right = places[:-2], places[1:-1], places[2:]
        y = np.zeros((length // 2 + 1, bands), self.dtype)
        rows = max(1, AT_ONCE // max(1, bands))
        with np.errstate(divide="ignore", invalid="ignore"):
            for first in range(0, len(y), rows):
                bins = np.arange(first, min(first + rows, len(y)))[:, None]
                rising = np.where(centre > left, (bins - left) / (centre - left), 1.0)
                part = np.where((left <= bins) & (bins <= centre), rising, 0.0)
                falling = (centre <= bins) & (bins < right)
                y[first : first + rows] = np.where(falling, (right - bins) / (right - centre), part)
        return y
