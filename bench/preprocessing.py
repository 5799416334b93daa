"""Image and sound steps against OpenCV, Pillow and NumPy, in turns.

    python -m bench.preprocessing [--threads 1 2] [--repeat 40]

A line for each job and contestant: the least and the middle time in ms.  All make a new f32 [1, 3, h, w] of u8 pixels,
or a new [1, bands, frames] of f32 samples.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba.preprocessing import Audio, Image, Warp
from bolt_numba.types import Array

Work = Callable[[], Any]


def ours(steps: Image | Audio | Warp, given: tuple[Array, ...], threads: int) -> dict[str, Work]:
    session = bn.compile(steps.graph(), threads=threads)
    return {"steps": lambda: session(*given)}


def by_opencv(steps: Image, x: Array, threads: int) -> dict[str, Work]:
    """Resize, border, then `blobFromImage`: channels are swapped, as the steps do."""
    import cv2

    cv2.setNumThreads(threads)
    size = (steps.size, steps.size) if isinstance(steps.size, int) else steps.size
    assert size is not None
    way = {"bilinear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA}[steps.resize]
    (high, wide), (h, w) = size, x.shape[:2]

    def letterbox() -> Any:
        ratio = min(high / h, wide / w)
        rows, columns = round(h * ratio), round(w * ratio)
        top, left = (high - rows) // 2, (wide - columns) // 2
        y = cv2.resize(x, (columns, rows), interpolation=way)
        ends = (top, high - rows - top, left, wide - columns - left)
        y = cv2.copyMakeBorder(y, *ends, cv2.BORDER_CONSTANT, value=(steps.fill,) * 3)
        return cv2.dnn.blobFromImage(y, 1 / 255, swapRB=True)

    def stretch() -> Any:
        return cv2.dnn.blobFromImage(cv2.resize(x, (wide, high), interpolation=way), 1 / 255, swapRB=True)

    return {"opencv": letterbox if steps.mode == "letterbox" else stretch}


def by_pillow(steps: Image, x: Array, threads: int) -> dict[str, Work]:
    """Pillow resizes on one thread, NumPy does the rest."""
    from PIL import Image as Pillow

    size = (steps.size, steps.size) if isinstance(steps.size, int) else steps.size
    assert size is not None
    way, picture = Pillow.Resampling[steps.resize.upper()], Pillow.fromarray(x)

    def stretch() -> Any:
        levels = np.asarray(picture.resize(size[::-1], way))
        return np.ascontiguousarray(levels[:, :, ::-1].transpose(2, 0, 1)[None] * np.float32(1 / 255))

    return {"pillow": stretch}


def by_warping(x: Array, matrix: Array, threads: int) -> dict[str, Work]:
    """A view of 224 by OpenCV, then `blobFromImage`."""
    import cv2

    cv2.setNumThreads(threads)
    flags, fill = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, (114,) * 3
    is_affine = not matrix[2, :2].any()

    def view() -> Any:
        if is_affine:
            y = cv2.warpAffine(x, matrix[:2], (224, 224), flags=flags, borderValue=fill)
        else:
            y = cv2.warpPerspective(x, matrix, (224, 224), flags=flags, borderValue=fill)
        return cv2.dnn.blobFromImage(y, 1 / 255, swapRB=True)

    return {"opencv": view}


def by_numpy(steps: Audio, x: Array, threads: int) -> dict[str, Work]:
    """Frames, NumPy's transform of real numbers, and a product, all f32; NumPy's threads are the environment's."""
    window, filters, half = steps.weights(), steps.filters().T.copy(), steps.frame // 2

    def mel() -> Any:
        y = np.pad(x, half, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(y, steps.frame)[:: steps.hop]
        z = np.fft.rfft(frames * window, axis=1)
        return np.log(np.maximum(filters @ (z.real**2 + z.imag**2).T, steps.floor))[None]

    return {"numpy": mel}


SOUNDS = (
    ("30 s at 16 kHz, frames of 400", Audio()),
    ("30 s at 22 kHz, frames of 1024", Audio(rate=22050, frame=1024, hop=256)),
    ("30 s at 22 kHz, frames of 2048", Audio(rate=22050, frame=2048, hop=512, bands=128)),
)
VIEWS = (
    ("640x480 -> a view of 224, affine", np.array([[1.5, -0.5, 190], [0.5, 1.5, 25], [0, 0, 1]])),
    ("640x480 -> a view of 224, perspective", np.array([[1.5, -0.5, 190], [0.5, 1.5, 25], [3e-4, 1e-4, 1]])),
)
JOBS: tuple[tuple[str, tuple[int, int], Image, Callable[..., dict[str, Work]]], ...] = (
    ("1920x1080 -> 640 letterbox, bilinear", (1080, 1920),
     Image(640, mode="letterbox", antialias=False, color="BGR"), by_opencv),
    ("1920x1080 -> 640 letterbox, area", (1080, 1920),
     Image(640, mode="letterbox", resize="area", color="BGR"), by_opencv),
    ("640x480 -> 224, bilinear", (480, 640), Image(224, antialias=False, color="BGR"), by_opencv),
    ("640x480 -> 1280x720, bilinear", (480, 640), Image((720, 1280), antialias=False, color="BGR"), by_opencv),
    ("640x480 as it is", (480, 640), Image((480, 640), antialias=False, color="BGR"), by_opencv),
    ("640x480 -> 224, bilinear with antialias", (480, 640), Image(224, color="BGR"), by_pillow),
    ("640x480 -> 224, lanczos", (480, 640), Image(224, resize="lanczos", color="BGR"), by_pillow),
    ("1920x1080 -> 640x360, bicubic with antialias", (1080, 1920),
     Image((360, 640), resize="bicubic", color="BGR"), by_pillow),
)  # fmt: skip


def measured(works: dict[str, Work], repeat: int) -> dict[str, list[float]]:
    """Sorted times in ms; contestants take turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeat + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: sorted(each) for name, each in times.items()}


def show(threads: int, what: str, found: dict[str, list[float]]) -> None:
    for name, times in found.items():
        row = f"{times[0]:8.3f} {times[len(times) // 2]:8.3f}"
        sys.stdout.write(f"{threads} threads  {what:46} {name:7} {row}\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=40)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    for threads in options.threads:
        for what, size, steps, peer in JOBS:
            x = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
            show(threads, what, measured(ours(steps, (x,), threads) | peer(steps, x, threads), options.repeat))
        x = rng.integers(0, 256, (480, 640, 3), dtype=np.uint8)
        for what, matrix in VIEWS:
            works = ours(Warp(Image(224, color="BGR")), (x, matrix[None]), threads)
            show(threads, what, measured(works | by_warping(x, matrix, threads), options.repeat))
        for what, sound in SOUNDS:
            samples = rng.standard_normal(30 * sound.rate).astype(np.float32)
            works = ours(sound, (samples,), threads) | by_numpy(sound, samples, threads)
            show(threads, what, measured(works, options.repeat))


if __name__ == "__main__":
    main()
