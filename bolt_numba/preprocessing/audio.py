"""From samples of sound to the spectrogram that a network takes, by Fourier transforms and mel bands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I16, AnyDType, Array, Dim, Sym, TensorType, dtype_name
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.reduce import ReduceMax
from bolt_numba.ops.arrays.shape import Pad, Split, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.arrays.signal import STFT
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Div, Log, Max, Mul, Sqrt, Sub
from bolt_numba.preprocessing.numbers import are_finite, dtype_of, is_whole

LOGS = {"natural": 1.0, "log10": 1 / np.log(10), "db": 10 / np.log(10)}
"""What the natural logarithm is multiplied by; decibels of amplitudes have twice as many."""
WINDOWS = {"hann": (0.5, 0.5), "hamming": (0.54, 0.46), "ones": (1.0, 0.0)}
"""What a raised cosine is made of."""
MOST_SAMPLES = 1 << 14


def to_mel(hertz: Array, scale: str) -> Array:
    """Frequencies on the mel scale.  Source: O'Shaughnessy 1987 (htk); Slaney's Auditory Toolbox, 1998."""
    if scale == "htk":
        return np.asarray(2595 * np.log10(1 + hertz / 700))
    above = 15 + 27 * np.log(np.maximum(hertz, 1000) / 1000) / np.log(6.4)
    return np.asarray(np.where(hertz < 1000, 3 * hertz / 200, above))


def to_hertz(mel: Array, scale: str) -> Array:
    """The inverse of `to_mel`."""
    if scale == "htk":
        return np.asarray(700 * (10 ** (mel / 2595) - 1))
    return np.asarray(np.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((np.maximum(mel, 15) - 15) / 27)))


@record(frozen=True)
class Audio:
    """What a network wants of sound: a spectrogram, of mel bands or of all frequencies.

    rate: samples in a second.  frame, hop: samples of a frame, and from one frame to the next.  fft: length of the
    transform, in whose middle the frame is; None: as the frame.  window: "hann", "hamming" or "ones", periodic.
    center: frames lie around multiples of hop, and the sound is continued by ``pad`` ("reflect" or "constant").
    power: 2 of squares, 1 of amplitudes.  bands: mel bands between low and high (in Hz; None: half the rate), spaced by
    ``scale`` ("slaney" or "htk"), divided by their width where ``norm`` is "slaney"; None: all frequencies.
    log: "natural", "log10", "db" or None, of what is at least ``floor``; span: and at most so far below the greatest.
    mean, std: then (value - mean) / std.  drop_last: without the last frame.
    layout: "bands" gives [1, bands, frames], "frames" gives [1, frames, bands].  dtype: None: the model's, else f32.
    batch: sounds come as [n, samples], and not one as [samples].  source: "f32", or "i16", which are divided by 32,768.
    """

    rate: int = 16000
    frame: int = 400
    hop: int = 160
    fft: int | None = None
    window: str = "hann"
    center: bool = True
    pad: str = "reflect"
    power: int = 2
    bands: int | None = 80
    low: float = 0.0
    high: float | None = None
    scale: str = "slaney"
    norm: str | None = "slaney"
    log: str | None = "natural"
    floor: float = 1e-10
    span: float | None = None
    mean: float = 0.0
    std: float = 1.0
    drop_last: bool = False
    layout: str = "bands"
    dtype: AnyDType | None = None
    batch: bool = False
    source: str = "f32"

    def graph(self, name: str = "sound", output: str = "tensor") -> Graph:
        """These steps alone; the input is ``name``, samples of any number."""
        graph = Graph("sound steps")
        graph.add_output(self.build(Builder(graph), graph.add_input(name, self.takes(name)[name])), output)
        return graph

    def takes(self, name: str) -> dict[str, TensorType]:
        """The type of what is given, with symbols that carry the input's name."""
        if self.source not in ("f32", "i16"):
            raise self._fail("source", self.source, "f32 or i16")
        dims: tuple[Dim, ...] = (Sym(f"{name}_samples"),)
        dims = (Sym(f"{name}_count"), *dims) if self.batch else dims
        return {name: TensorType(F32 if self.source == "f32" else I16, dims)}

    def fitted(self, wanted: TensorType) -> Audio:
        """The same with the dtype of a model's input, where this one leaves it open."""
        return replace(self, dtype=wanted.dtype) if self.dtype is None else self

    def build(self, b: Builder, x: Value) -> Value:
        """Add the steps to a graph; x: a value of the type that `takes` gives."""
        self._check()
        if self.source == "i16":
            x = b(Mul(), b(Cast(F32), x), 1 / 32768)
        x = x if self.batch else b(Unsqueeze(), x, np.array([0]))
        if self.center:
            half = self._fft // 2
            x = b(Pad(self.pad), x, np.array([0, half, 0, half]))
        y = b(STFT(), b(Unsqueeze(), x, np.array([2])), np.array(self.hop), self.weights())
        if self.drop_last:
            y = b(Slice(), y, np.array([0]), np.array([-1]), np.array([1]))
        real, imaginary = b(Split(3, 2), b(Mul(), y, y))
        y = b(Squeeze(), b(Add(), real, imaginary), np.array([3]))
        y = b(Sqrt(), y) if self.power == 1 else y
        y = y if self.bands is None else b(MatMul(), y, self.filters())
        y = self._scaled(b, y)
        y = b(Transpose((0, 2, 1)), y) if self.layout == "bands" else y
        return y if y.type.dtype == self._dtype else b(Cast(self._dtype), y)

    @property
    def _fft(self) -> int:
        return self.frame if self.fft is None else self.fft

    def weights(self) -> Array:
        """The window in the middle of the transform, [fft] f32."""
        n, (high, low) = self._fft, WINDOWS[self.window]
        made, first = np.zeros(n, F32), (n - self.frame) // 2
        made[first : first + self.frame] = high - low * np.cos(2 * np.pi * np.arange(self.frame) / self.frame)
        return made

    def filters(self) -> Array:
        """How much of each frequency is in each band: triangles on the mel scale, [bins, bands] f32."""
        bins = np.arange(self._fft // 2 + 1) * (self.rate / self._fft)
        low, high = to_mel(np.array([self.low, self._high]), self.scale)
        edges = to_hertz(np.linspace(low, high, (self.bands or 0) + 2), self.scale)
        rising = (bins[:, None] - edges[:-2]) / np.diff(edges)[:-1]
        falling = (edges[2:] - bins[:, None]) / np.diff(edges)[1:]
        made = np.maximum(np.minimum(rising, falling), 0)
        made = made * (2 / (edges[2:] - edges[:-2])) if self.norm == "slaney" else made
        return np.asarray(made.astype(F32))

    @property
    def _dtype(self) -> Any:
        """Of the result; None where it is none."""
        return np.dtype(F32) if self.dtype is None else dtype_of(self.dtype)

    @property
    def _high(self) -> float:
        return self.rate / 2 if self.high is None else self.high

    def _scaled(self, b: Builder, y: Value) -> Value:
        if self.log is not None:
            times = float(LOGS[self.log]) * (2 if self.log == "db" and self.power == 1 else 1)
            y = b(Mul(), b(Log(), b(Max(), y, self.floor)), times)
        if self.span is not None:
            greatest = b(ReduceMax(), y, np.array([1, 2]))
            y = b(Max(), y, b(Sub(), greatest, self.span))
        if self.mean or self.std != 1:
            y = b(Div(), b(Sub(), y, self.mean), self.std)
        return y

    def _check(self) -> None:
        for what, got, wanted in (
            ("window", self.window, tuple(WINDOWS)), ("pad", self.pad, ("reflect", "constant")),
            ("power", self.power, (1, 2)), ("scale", self.scale, ("slaney", "htk")),
            ("norm", self.norm, ("slaney", None)), ("log", self.log, (*LOGS, None)),
            ("layout", self.layout, ("bands", "frames")), ("center", self.center, (True, False)),
            ("drop_last", self.drop_last, (True, False)), ("batch", self.batch, (True, False)),
        ):  # fmt: skip
            if got not in wanted:
                raise self._fail(what, got, ", ".join(map(str, wanted)))
        for what, length in (("frame", self.frame), ("hop", self.hop), ("bands", self.bands)):
            if not is_whole(length, 1, MOST_SAMPLES) and (what, length) != ("bands", None):
                raise self._fail(what, length, f"a whole number from 1 to {MOST_SAMPLES}")
        for what in ("rate", "low", "high", "floor", "span", "mean", "std"):
            number = getattr(self, what)
            if not are_finite(number) and (what not in ("high", "span") or number is not None):
                raise self._fail(what, number, "a finite number")
        if not is_whole(self._fft, self.frame, MOST_SAMPLES):
            raise self._fail("fft", self._fft, f"{self.frame} to {MOST_SAMPLES}")
        if not 0 <= self.low < self._high <= self.rate / 2:
            raise self._fail("low and high", (self.low, self._high), f"frequencies in order, up to {self.rate / 2}")
        if not np.float32(self.std) or not np.float32(self.floor) > 0 or (self.span or 0) < 0:
            raise self._fail("std, floor and span", (self.std, self.floor, self.span), "no zero, and nothing below")
        if (dtype := self._dtype) is None or dtype.kind in "iu":
            raise self._fail("dtype", self.dtype if dtype is None else dtype_name(dtype), "a float")

    def _fail(self, what: str, got: object, wanted: object) -> BoltError:
        return BoltError(f"sound steps: {what}: got {got}, wanted {wanted}")
