"""Image files as arrays, by Pillow, and files of sound."""

from __future__ import annotations

import io
import os
import warnings
import wave

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import BoltError, BudgetError, DataError
from bolt_numba.base.files.regular import read_regular
from bolt_numba.base.types import F32, U8, Array
from bolt_numba.ops.data.image_decoder import pillow

MODES = {"RGB": "RGB", "RGBA": "RGBA", "gray": "L"}


def open_image(source: str | os.PathLike[str] | bytes, color: str = "RGB") -> Array:
    """An image file, a path or its bytes, as u8 [height, width, channels], turned as its EXIF orientation says.

    color: "RGB", "BGR", "RGBA" or "gray".  Needs Pillow: `pip install 'bolt-numba[image]'`.  Raises DataError where it
    is no image or damaged, BudgetError where it is too large, BoltError for a file that is not there.
    """
    module = pillow()
    from PIL import ImageOps

    if color not in (*MODES, "BGR"):
        raise BoltError(f"image: color: got {color!r}, wanted RGB, BGR, RGBA or gray")
    name, held = _held(source, "image")
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


def _held(source: str | os.PathLike[str] | bytes, what: str) -> tuple[str, bytes]:
    """The name of a file and its bytes."""
    if isinstance(source, bytes):
        return what, source
    try:
        return os.fspath(source), read_regular(source)
    except OSError as error:
        raise BoltError(f"{os.fspath(source)}: cannot read it: {error.strerror or error}") from error


def open_sound(source: str | os.PathLike[str] | bytes, rate: int = 16000) -> Array:
    """A WAV file, a path or its bytes, as f32 [samples] from -1 to 1: the mean of its channels, at ``rate`` a second.

    Takes plain samples of 16, 24 or 32 bits.  Raises DataError where it is something else, damaged or empty,
    BudgetError where it is too large, BoltError for a file that is not there.
    """
    name, held = _held(source, "sound")
    try:
        with wave.open(io.BytesIO(held)) as file:
            channels, width, own, count = file.getparams()[:4]
            ask(int(np.dtype(complex).itemsize * count * max(rate / own, 1)), f"{name}: {count} samples")
            data = np.frombuffer(file.readframes(count), U8)
        if width < 2 or not data.size:
            raise ValueError(f"{data.size} bytes, of {8 * width} bits each sample")
        levels = data.reshape(-1, channels, width)[:, :, -2:].copy().view("<i2")[..., 0]
        samples = levels.mean(1, dtype=F32) / np.float32(-np.iinfo(np.int16).min)
        made = max(round(len(samples) * rate / own), 1)
        resampled = samples if own == rate else np.fft.irfft(np.fft.rfft(samples), made) * (made / len(samples))
        return np.asarray(resampled, F32)
    except (wave.Error, EOFError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"{name}: got what is no WAV file of plain samples ({error})") from error
