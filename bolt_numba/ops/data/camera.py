"""Pictures as cameras and decoders of video give them: YuvToRgba; and pictures seen from elsewhere: WarpImage."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.budget import ask, spend
from bolt_numba.base.types import F64, I64, U8, Array, TensorType
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.registry import Op, op, want_among, want_dtype
from bolt_numba.ops.shapes import shape_of, want_dims, want_elements

YUV = {"NV12": (0, 1), "NV21": (1, 0)}
"""Where U and V stand in a pair of each format."""
YUV_BITS = 20
LUMA, RED_V, GREEN_U, GREEN_V, BLUE_U = (round(f * (1 << YUV_BITS)) for f in (1.164, 1.596, -0.391, -0.813, 2.018))
"""Parts of Y - 16, of V - 128 and of U - 128 in red, green and blue, in fixed point.  Source: ITU-R BT.601."""


@op("YuvToRgba")
class YuvToRgba(Op):
    """y = red, green, blue and 255 of a picture with half as many colours in each direction as levels of light.

    x: [3 h / 2, w] or [n, 3 h / 2, w] u8: h lines of Y in 16…235, then h / 2 of pairs of U and V (NV12) or of V and U
    (NV21), even h and w -> y: [h, w, 4] or [n, h, w, 4] u8.  Sums are of whole numbers, halves up, as OpenCV's.
    """

    format: str = "NV12"
    data_bounds = bounded(x=VALUES)

    def infer(self, x: TensorType) -> TensorType:
        want_among(self, YUV, format=self.format)
        want_dtype(self, "x", x.dtype, U8)
        shape = shape_of(self, "x", x, 2, 3)
        if shape is None:
            return TensorType(U8, None)
        rows, wide = shape[-2:]
        if isinstance(rows, int) and rows % 3:
            raise self.fail("rows of x", rows, "a multiple of 3: lines of Y, then half as many of colours")
        if isinstance(wide, int) and wide % 2:
            raise self.fail("columns of x", wide, "an even number")
        return TensorType(U8, (*shape[:-2], 2 * rows // 3, wide, 4))

    def reference(self, x: Array) -> Array:
        high = 2 * x.shape[-2] // 3
        ask(60 * x.size, self.name)
        light = np.maximum(x[..., :high, :].astype(I64) - 16, 0) * LUMA + (1 << (YUV_BITS - 1))
        pairs = x[..., high:, :].reshape(*x.shape[:-2], high // 2, x.shape[-1] // 2, 2).astype(I64) - 128
        spread = pairs.repeat(2, axis=-3).repeat(2, axis=-2)
        u, v = (spread[..., i] for i in YUV[self.format])
        parts = (light + RED_V * v, light + GREEN_V * v + GREEN_U * u, light + BLUE_U * u)
        levels = [np.clip(p >> YUV_BITS, 0, 255) for p in parts]
        return np.stack([*levels, np.full_like(light, 255)], axis=-1).astype(U8)


PARTS = 32
"""Parts of a pixel that coordinates are rounded to."""
HALF = 0.5 + 2**-20
"""What is added before parts are rounded down: places between two are safely above, however they were computed."""
FAR = float(PARTS << 20)
"""Greatest coordinate, in parts; what is beyond is at its negative, and so is what is no number."""
EDGES = ("fill", "repeat")


@op("WarpImage")
class WarpImage(Op):
    """y = views of one picture: the pixel at (row i, column j) of view k is what lies at matrix[k] @ (j, i, 1).

    x: [h, w, c] u8, c up to 4 · matrix: [k, 3, 3] f64, to column and row of x times a third number -> y: [k, *size, c]
    u8.  Four neighbours are blended, at coordinates rounded to 32nds of a pixel; outside of x lies ``fill``, or the
    nearest pixel of x ("repeat").  Where the third number is 0, the coordinates are.
    """

    size: tuple[int, ...] = (224, 224)
    edge: str = "fill"
    fill: int = 114
    data_bounds = bounded(x=VALUES)

    def infer(self, x: TensorType, matrix: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, U8)
        want_dtype(self, "matrix", matrix.dtype, F64)
        want_dims(self, "matrix", matrix, None, 3, 3)
        if len(self.size) != 2 or not all(1 <= n <= 1 << 15 for n in self.size):
            raise self.fail("size", self.size, "two numbers from 1 to 32768")
        want_among(self, EDGES, edge=self.edge)
        self.fail_if(not 0 <= self.fill <= 255, "fill", self.fill, "0 to 255")
        shape, views = shape_of(self, "x", x, 3), shape_of(self, "matrix", matrix, 3)
        if shape is None or views is None:
            return TensorType(U8, None)
        want_elements(self, "x", *shape)
        for what, n, most in (("rows", shape[0], 1 << 15), ("columns", shape[1], 1 << 15), ("channels", shape[2], 4)):
            if isinstance(n, int) and n > most:
                raise self.fail(f"{what} of x", n, f"at most {most}")
        return TensorType(U8, (views[0], *self.size, shape[2]))

    def reference(self, x: Array, matrix: Array) -> Array:
        high, wide = self.size
        ask(200 * matrix.shape[0] * high * wide * x.shape[2], self.name)
        spend(40 * matrix.shape[0] * high * wide * x.shape[2], self.name)
        i, j = np.arange(high, dtype=F64)[:, None], np.arange(wide, dtype=F64)
        m = matrix[:, :, :, None, None]
        column, row, third = (m[:, r, 0] * j + (m[:, r, 1] * i + m[:, r, 2]) for r in range(3))
        with np.errstate(all="ignore"):
            times = np.where(third != 0, PARTS / third, 0.0)
            at = [row * times, column * times]
        near = [np.where((v > -FAR) & (v < FAR), v, -FAR) for v in at]
        (y, fy), (x0, fx) = (divmod(np.floor(v + HALF).astype(I64), PARTS) for v in near)
        total = np.full((*y.shape, x.shape[2]), PARTS * PARTS // 2, I64)
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            rows, columns = y + down, x0 + right
            weight = (fy if down else PARTS - fy) * (fx if right else PARTS - fx)
            inside = (rows >= 0) & (rows < x.shape[0]) & (columns >= 0) & (columns < x.shape[1])
            seen = x[np.clip(rows, 0, x.shape[0] - 1), np.clip(columns, 0, x.shape[1] - 1)].astype(I64)
            if self.edge == "fill":
                seen = np.where(inside[..., None], seen, self.fill)
            total += seen * weight[..., None]
        return (total // (PARTS * PARTS)).astype(U8)
