"""From an image as it was decoded or filmed to what a network takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, F64, I8, U8, AnyDType, Array, Dim, Sym, TensorType, dtype_name
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.data.camera import YUV, YuvToRgba
from bolt_numba.ops.data.fit_image import FitImage
from bolt_numba.ops.pointwise import Add, Cast, Clip, Mul, Round
from bolt_numba.preprocessing.numbers import are_finite, dtype_of, is_whole

ORDERS = {"RGB": (0, 1, 2), "BGR": (2, 1, 0), "RGBA": (0, 1, 2), "BGRA": (2, 1, 0), "gray": (0, 0, 0)}
ORDERS |= dict.fromkeys(YUV, (0, 1, 2))
"""Where red, green and blue stand in a pixel of each kind."""
DEPTH = {"RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4, "gray": 1}
COLOURS = ("RGB", "BGR", "gray")
LUMA = (0.299, 0.587, 0.114)
"""Red, green and blue in a gray level.  Source: ITU-R BT.601."""
MOST_PIXELS = 1 << 31
"""Of a side."""
STORED = (np.dtype(F32), np.dtype(U8), np.dtype(I8))


@record(frozen=True)
class Image:
    """What a network wants of an image: ``(level * scale - mean) / std`` of each channel of the resized image.

    size: (height, width), or one number for both; None: that of the model's input.
    mode: "stretch", "letterbox" (the whole image, centred, ``fill`` around it) or "crop" (its centre, of the image
    resized so that the shorter side is ``shorter``; None: as small as covers the result).
    resize: "nearest", "bilinear", "bicubic", "area", and with antialias also "box" and "lanczos".
    antialias: True gives the levels of Pillow 13, False those of OpenCV but for one level.
    source: channels of what is given: "RGB", "BGR", "RGBA", "BGRA" or "gray"; or "NV12" or "NV21", of video, which are
    [3 h / 2, w].  color: channels that the network takes: "RGB", "BGR" or "gray".
    scale: None: 1 / 255 for floats, 1 for bytes.  mean, std: a number, or one for each channel.
    layout, dtype: of the result; dtype None: that of the model's input, else f32.  Bytes are rounded and limited.
    batch: images come as [n, h, w, c], all of one size, and not one as [h, w, c].
    """

    size: int | tuple[int, int] | None = None
    mode: str = "stretch"
    shorter: int | None = None
    resize: str = "bilinear"
    antialias: bool = True
    source: str = "RGB"
    color: str = "RGB"
    scale: float | None = None
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    fill: int = 114
    layout: str = "NCHW"
    dtype: AnyDType | None = None
    batch: bool = False

    def graph(self, name: str = "image", output: str = "tensor") -> Graph:
        """These steps alone; its input is ``name``, u8 [height, width, channels] of any size."""
        graph = Graph("image steps")
        graph.add_output(self.build(Builder(graph), graph.add_input(name, self.takes(name)[name])), output)
        return graph

    def takes(self, name: str) -> dict[str, TensorType]:
        """The type of what is given: u8 [h, w, c] or [n, h, w, c], with symbols that carry the input's name."""
        if self.source not in tuple(ORDERS):
            raise self._fail("source", self.source, ", ".join(ORDERS))
        dims: tuple[Dim, ...] = (Sym(f"{name}_height"), Sym(f"{name}_width"))
        dims = (Sym(f"{name}_rows"), dims[1]) if self.source in YUV else (*dims, DEPTH[self.source])
        return {name: TensorType(U8, (Sym(f"{name}_count"), *dims) if self.batch else dims)}

    def fitted(self, wanted: TensorType) -> Image:
        """The same for an input of a model: its size and its dtype where this one leaves them open."""
        made = replace(self, dtype=wanted.dtype) if self.dtype is None else self
        if made.size is not None or wanted.shape is None or len(wanted.shape) != 4:
            return made
        high, wide = wanted.shape[2:] if self.layout == "NCHW" else wanted.shape[1:3]
        if isinstance(high, int) and isinstance(wide, int):
            return replace(made, size=(high, wide))
        return made

    @property
    def wanted_size(self) -> tuple[int, int]:
        """(height, width) of the result; raises BoltError where it is open."""
        if self.size is None:
            raise self._fail("size", None, "(height, width), as the model's input leaves it open")
        given: Any = self.size
        if is_whole(given, 0, MOST_PIXELS):
            return given, given
        whole = isinstance(given, (tuple, list)) and all(is_whole(n, 0, MOST_PIXELS) for n in given)
        if not whole or len(given) != 2:
            raise self._fail("size", given, "(height, width) in whole numbers")
        high, wide = given
        return high, wide

    def build(self, b: Builder, x: Value) -> Value:
        """Add the steps to a graph; x: a value of the type that `takes` gives."""
        if self.color not in COLOURS:
            raise self._fail("color", self.color, ", ".join(COLOURS))
        if self.layout not in ("NCHW", "NHWC"):
            raise self._fail("layout", self.layout, "NCHW or NHWC")
        dtype = np.dtype(F32) if self.dtype is None else dtype_of(self.dtype)
        if dtype is None or (dtype.kind in "iu" and dtype not in STORED):
            raise self._fail("dtype", self.dtype if dtype is None else dtype_name(dtype), "u8, i8 or a float")
        for what, flag in (("antialias", self.antialias), ("batch", self.batch)):
            if flag not in (True, False):
                raise self._fail(what, flag, "True or False")
        if self.shorter is not None and not is_whole(self.shorter, 0, MOST_PIXELS):
            raise self._fail("shorter", self.shorter, "a whole number of pixels, or None")
        count = 1 if self.color == "gray" else 3
        times, plus = self._factors(count, 1 / 255 if dtype.kind not in "iu" else 1.0)
        order = ORDERS[self.source][::-1] if self.color == "BGR" else ORDERS[self.source]
        mixes = self.color == "gray" and self.source != "gray"
        x = b(YuvToRgba(self.source), x) if self.source in YUV else x
        fit = FitImage(
            self.wanted_size, self.mode, self.shorter or 0, self.resize, self.antialias, self.fill,
            order[:count] if self.color == "gray" and not mixes else order, self.layout == "NHWC",
            dtype if dtype in STORED and not mixes else F32,
        )  # fmt: skip
        if mixes:
            y = self._mixed(b, b(fit, x, np.ones(3, F32), np.zeros(3, F32)), times, plus, dtype)
        else:
            y = b(fit, x, times, plus)
        return y if y.type.dtype == dtype else b(Cast(dtype), y)

    def _mixed(self, b: Builder, x: Value, times: Array, plus: Array, dtype: AnyDType) -> Value:
        """Gray levels of red, green and blue ones, then scaled."""
        axis = 1 if self.layout == "NCHW" else 3
        weights = np.array(LUMA, F32).reshape([3 if i == axis else 1 for i in range(4)])
        level = b(Round(), b(ReduceSum(), b(Mul(), x, weights), np.array([axis])))
        y = b(Add(), b(Mul(), level, times), plus)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            y = b(Clip(float(info.min), float(info.max)), b(Round(), y))
        return y

    def _factors(self, count: int, scale: float) -> tuple[Array, Array]:
        """What levels of each of ``count`` channels are multiplied by, and what is added; scale: if none is given."""
        scale = scale if self.scale is None else self.scale
        mean, std = self._by_channel("mean", self.mean, count), self._by_channel("std", self.std, count)
        if not are_finite(scale):
            raise self._fail("scale", scale, "a finite number")
        if not std.all():
            raise self._fail("std", std.tolist(), "no zero")
        with np.errstate(over="ignore"):
            times, plus = (scale / std).astype(F32), (-mean / std).astype(F32)
        if not (np.isfinite(times).all() and np.isfinite(plus).all()):
            raise self._fail("scale / std and mean / std", (times.tolist(), (-plus).tolist()), "finite numbers")
        return times, plus

    def _by_channel(self, what: str, given: float | Sequence[float], count: int) -> Array:
        listed = list(np.atleast_1d(given)) if not isinstance(given, (tuple, list)) else given
        if len(listed) not in (1, count) or not are_finite(*listed):
            raise self._fail(what, given, f"a finite number or {count} of them")
        values = np.asarray(listed, F64)
        return np.broadcast_to(values, (count,))

    def _fail(self, what: str, got: object, wanted: object) -> BoltError:
        return BoltError(f"image steps: {what}: got {got}, wanted {wanted}")
