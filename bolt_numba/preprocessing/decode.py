"""Image files as arrays, by Pillow."""

from __future__ import annotations

import io
import os
import warnings

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import BoltError, BudgetError, DataError
from bolt_numba.base.files.regular import read_regular
from bolt_numba.base.types import U8, Array
from bolt_numba.ops.data.image_decoder import pillow

MODES = {"RGB": "RGB", "RGBA": "RGBA", "gray": "L"}


def open_image(source: str | os.PathLike[str] | bytes, color: str = "RGB") -> Array:
    """An image file, a path or its bytes, as u8 [height, width, channels], turned as its EXIF orientation says.

    color: "RGB", "BGR", "RGBA" or "gray".  Needs Pillow: `pip install 'bolt-numba[image]'`.  Raises DataError where it
    is no image or damaged, BudgetError where it is too large, BoltError for a file that is not there.
    """
    module = pillow()
    from PIL import ImageOps

    name = "image" if isinstance(source, bytes) else os.fspath(source)
    if color not in (*MODES, "BGR"):
        raise BoltError(f"{name}: color: got {color!r}, wanted RGB, BGR, RGBA or gray")
    try:
        held = source if isinstance(source, bytes) else read_regular(source)
    except OSError as error:
        raise BoltError(f"{name}: cannot read it: {error.strerror or error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", module.DecompressionBombWarning)  # the budget decides
            with module.open(io.BytesIO(held)) as image:
                ask(8 * image.width * image.height, f"{name}: {image.width} x {image.height} pixels")
                pixels = np.array(ImageOps.exif_transpose(image).convert(MODES.get(color, "RGB")), U8)
    except BoltError:
        raise
    except module.DecompressionBombError as error:
        raise BudgetError(f"{name}: {error}") from error
    except Exception as error:  # a decoder may raise anything for a damaged file
        raise DataError(f"{name}: got what Pillow cannot decode ({error}), wanted an image") from error
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if color == "BGR" else pixels
