"""Cases of images: results are rounded levels, so they are exact wherever scales and offsets are."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.data.camera import WarpImage, YuvToRgba
from bolt_numba.ops.data.fit_image import FitImage
from bolt_numba.types import F32, I8, U8
from tests.cases import Case, cases
from tests.cases.draw import Draw, around_tiles, flags, pick, real, small, whole


@cases(FitImage)
def fit_image(draw: Draw, op: type[FitImage]) -> Case:
    channels = pick(draw, (0, 1, 2), (2, 1, 0), (0,), (1, 0), (0, 1, 2, 3))
    c = pick(draw, *range(max(channels) + 1, 5))
    h, w = draw(around_tiles), draw(around_tiles)
    x = whole(draw, (h, w, c) if draw(flags) else (pick(draw, 1, 2), h, w, c), 0, 255, dtype=U8)
    antialias, mode = draw(flags), pick(draw, "stretch", "letterbox", "crop")
    resize = pick(draw, "nearest", "bilinear", "bicubic", "area", *(["box", "lanczos"] if antialias else []))
    size = (draw(around_tiles), draw(around_tiles))
    shorter = pick(draw, 0, max(size), 7) if mode == "crop" else 0
    dtype = pick(draw, F32, F32, U8, I8)
    made = op(size, mode, shorter, resize, antialias, pick(draw, 0, 114), channels, draw(flags), dtype)
    scale = np.array([pick(draw, 1, 0.5, 0.25) for _ in channels], F32)
    return Case(made, (x, scale, whole(draw, (len(channels),), -128, 9)))


@cases(YuvToRgba)
def yuv_to_rgba(draw: Draw, op: type[YuvToRgba]) -> Case:
    dims = (3 * pick(draw, 1, 2, 5), 2 * pick(draw, 1, 3, 8, 9, 16, 21))
    x = whole(draw, dims if draw(flags) else (pick(draw, 1, 2), *dims), 0, 255, dtype=U8)
    return Case(op(pick(draw, "NV12", "NV21")), (x,))


@cases(WarpImage)
def warp_image(draw: Draw, op: type[WarpImage]) -> Case:
    h, w, c = draw(small), draw(around_tiles), pick(draw, 1, 2, 3, 4)
    near = np.eye(3) + real(draw, (pick(draw, 1, 2), 3, 3), -0.5, 0.5)
    near[:, :2, 2] *= pick(draw, 1, 8, 1e9)
    near[:, 2] = (0, 0, pick(draw, 0, 1, 1)) if draw(flags) else near[:, 2] * (0.02, 0.02, 1)
    made = op((draw(small), draw(around_tiles)), pick(draw, "fill", "repeat"), pick(draw, 0, 255, 114))
    return Case(made, (whole(draw, (h, w, c), 0, 255, dtype=U8), near.astype(np.float64)))
