"""Decoding of image files; needs Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from bolt_numba.base.errors import UnsupportedOpError
from bolt_numba.base.types import U8, Array, TensorType
from bolt_numba.ops.content import bounded
from bolt_numba.ops.registry import Op, fresh_dim, op, want_among, want_dtype
from bolt_numba.ops.shapes import shape_of

PIXEL_FORMATS = ("RGB", "BGR", "Grayscale")


def pillow() -> Any:
    """The module that decodes; raises UnsupportedOpError when it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedOpError("ImageDecoder", ["decoding without Pillow: pip install pillow"]) from error
    return Image


@op("ImageDecoder")
class ImageDecoder(Op):
    """y = pixels of an encoded image; no rows and columns when it cannot be decoded.

    x: [bytes] u8, a whole BMP, JPEG, JPEG 2000, TIFF, PNG, WebP or PNM file -> y: [h, w, c] u8, c = 3 or (Grayscale) 1.
    Source: ONNX ImageDecoder-20.
    """

    pixel_format: str = "RGB"
    data_bounds = bounded(x="bytes of a file, read by a decoder outside of the kernels")

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, U8)
        shape_of(self, "x", x, 1)
        want_among(self, PIXEL_FORMATS, pixel_format=self.pixel_format)
        return TensorType(U8, (fresh_dim("height"), fresh_dim("width"), 1 if self.pixel_format == "Grayscale" else 3))

    def reference(self, x: Array) -> Array:
        grey = self.pixel_format == "Grayscale"
        try:
            with pillow().open(io.BytesIO(x.tobytes())) as image:
                pixels = np.array(image.convert("L" if grey else "RGB"), U8)
        except UnsupportedOpError:
            raise
        except Exception:  # the standard wants an empty image, whatever is wrong with the file
            return np.zeros((0, 0, 1 if grey else 3), U8)
        if grey:
            return pixels[:, :, None]
        return np.ascontiguousarray(pixels[:, :, ::-1]) if self.pixel_format == "BGR" else pixels
