"""Read the text in an image with PP-OCRv4: one network finds lines of text, another reads them.

    python examples/ocr.py [IMAGE] [--threads N]       # without an image one is drawn; needs pillow

The networks come from the package rapidocr-onnxruntime 1.4.4 (Apache 2.0), which pip downloads once into the user's
cache folder; nothing of it is installed or run.  Lines of text are taken to be upright.
Source: Liao et al., Real-time Scene Text Detection with Differentiable Binarization, 2020, for the boxes; Graves et
al., Connectionist Temporal Classification, 2006, for best-path decoding; thresholds as the package's configuration.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from model_files import file_of
from PIL import Image, ImageDraw, ImageFont

import bolt_numba as bn
from bolt_numba.ir.graph import Graph

PACKAGE = "rapidocr-onnxruntime==1.4.4"
MODELS = {
    "det": ("ch_PP-OCRv4_det_infer.onnx", "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"),
    "rec": ("ch_PP-OCRv4_rec_infer.onnx", "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"),
}
SHORT_SIDE, STRIDE = 736, 32
PIXEL_THRESHOLD, BOX_THRESHOLD, UNCLIP, MIN_SIDE = 0.3, 0.5, 1.6, 3
HEIGHT = 48

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Box:
    """Pixels of the image: left, top, right, bottom (the last two excluded), and the mean probability inside."""

    left: int
    top: int
    right: int
    bottom: int
    score: float


def fetch(name: str) -> Path:
    """Path of a model, downloaded when it is not in the cache yet; its digest is checked."""
    file, digest = MODELS[name]
    return file_of(PACKAGE, f"rapidocr_onnxruntime/models/{file}", digest)


LEVELS = np.arange(256, dtype=np.float32) / 127.5 - 1


def tensor(image: Image.Image) -> Floats:
    """[1, 3, h, w], channels in the order blue, green, red, values from -1 to 1."""
    pixels = np.asarray(image.convert("RGB"))
    return np.stack([np.take(LEVELS, pixels[:, :, channel]) for channel in (2, 1, 0)])[None]


def find_lines(detect: bn.Session, image: Image.Image) -> list[Box]:
    """Boxes around lines of text, from top to bottom and left to right."""
    return lines_in(np.asarray(detect(page_tensor(image))), image)


def page_tensor(image: Image.Image) -> Floats:
    """What the first network takes: the page with sides that are multiples of 32."""
    ratio = max(1.0, SHORT_SIDE / min(image.size))
    w, h = (max(STRIDE, round(s * ratio / STRIDE) * STRIDE) for s in image.size)
    return tensor(image.resize((w, h), Image.Resampling.BILINEAR))


def lines_in(probabilities: Floats, image: Image.Image) -> list[Box]:
    """Boxes in pixels of the image, of what the first network gives."""
    h, w = probabilities.shape[2:]
    boxes = boxes_of(probabilities[0, 0], image.width / w, image.height / h)
    clipped = [clip(b, image.width, image.height) for b in boxes]
    return reading_order([b for b in clipped if b.right - b.left >= MIN_SIDE and b.bottom - b.top >= MIN_SIDE])


def boxes_of(probabilities: Floats, sx: float, sy: float) -> list[Box]:
    """Connected regions over the threshold, each grown by what training shrank text regions by."""
    likely = probabilities > PIXEL_THRESHOLD
    mask = likely.copy()
    mask[1:] |= mask[:-1]
    mask[:, 1:] |= mask[:, :-1]
    found = []
    for top, bottom, left, right in regions(mask):
        score = float(probabilities[top:bottom, left:right][likely[top:bottom, left:right]].mean())
        h, w = bottom - top, right - left
        if score < BOX_THRESHOLD or min(h, w) < MIN_SIDE:
            continue
        grow = h * w * UNCLIP / (2 * (h + w))
        edges = ((left - grow) * sx, (top - grow) * sy, (right + grow) * sx, (bottom + grow) * sy)
        found.append(Box(*(round(e) for e in edges), score))
    return found


def regions(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """(top, bottom, left, right) of every 8-connected region: runs of each row joined with those they touch above."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    parent: list[int] = []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    above: list[tuple[int, int, int]] = []
    here: list[tuple[int, int, int]] = []
    row = -1
    for i, ((y, left), (_, right)) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if y != row:
            above, here, row = (here if y == row + 1 else []), [], y
        parent.append(i)
        for a, b, j in above:
            if a <= right and b >= left:
                parent[root(i)] = root(j)
        here.append((left, right, i))
    boxes: dict[int, tuple[int, int, int, int]] = {}
    for i, ((y, left), (_, right)) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        old = boxes.get(root(i), (y, y + 1, left, right))
        boxes[root(i)] = (min(old[0], y), max(old[1], y + 1), min(old[2], left), max(old[3], right))
    return list(boxes.values())


def clip(box: Box, width: int, height: int) -> Box:
    return Box(max(box.left, 0), max(box.top, 0), min(box.right, width), min(box.bottom, height), box.score)


def reading_order(boxes: list[Box]) -> list[Box]:
    """Lines by their middle; boxes that overlap most of a line's height belong to it."""
    lines: list[list[Box]] = []
    for box in sorted(boxes, key=lambda b: b.top + b.bottom):
        last = lines[-1][-1] if lines else None
        if last is not None and (box.top + box.bottom) / 2 < last.bottom - 0.3 * (last.bottom - last.top):
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda b: b.left)]


def read_line(recognise: bn.Session, alphabet: list[str], image: Image.Image, box: Box) -> tuple[str, float]:
    """Text of one line and the mean probability of its characters."""
    return text_of(np.asarray(recognise(line_tensor(image, box))), alphabet)


def line_tensor(image: Image.Image, box: Box) -> Floats:
    """What the second network takes: a line with a height of 48, and a width that is a multiple of 8."""
    crop = image.crop((box.left, box.top, box.right, box.bottom))
    width = max(STRIDE, round(crop.width * HEIGHT / crop.height / 8) * 8)
    return tensor(crop.resize((width, HEIGHT), Image.Resampling.BICUBIC))


def text_of(probabilities: Floats, alphabet: list[str]) -> tuple[str, float]:
    """What the second network gives of a line, as text and the mean probability of its characters."""
    best, sure = probabilities[0].argmax(1), probabilities[0].max(1)
    kept = (best != 0) & (best != np.concatenate([[-1], best[:-1]]))
    text = "".join(alphabet[i] for i in best[kept])
    return text, float(sure[kept].mean()) if kept.any() else 0.0


def alphabet_of(graph: Graph) -> list[str]:
    """Blank, the characters that the network's metadata lists, space."""
    return ["", *graph.metadata["character"].split("\n"), " "]


def sample() -> Image.Image:
    """A page with some lines of text."""
    image = Image.new("RGB", (720, 400), "white")
    draw = ImageDraw.Draw(image)
    rows = [
        ("bolt-numba reads text", 44, "black"),
        ("Neural networks in Python", 32, "navy"),
        ("at machine speed.", 32, "navy"),
        ("Invoice 2026-11-21: 1,234.50 EUR", 28, "darkred"),
    ]
    y = 40
    for text, size, colour in rows:
        draw.text((40, y), text, colour, ImageFont.load_default(size))
        y += size * 2
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", type=Path, help="an image file; without it one is drawn")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    image = Image.open(options.image).convert("RGB") if options.image else sample()
    start = time.perf_counter()
    detect, recognise = (bn.compile(fetch(name), threads=options.threads) for name in MODELS)
    loaded = time.perf_counter()
    report(image, detect, recognise)
    print(f"\nloading {loaded - start:.2f} s, reading {time.perf_counter() - loaded:.2f} s (with planning)")


def report(image: Image.Image, detect: Any, recognise: Any) -> None:
    """Print every line of text with its place and how sure the network is."""
    alphabet = alphabet_of(recognise.graph)
    for box in find_lines(detect, image):
        text, sure = read_line(recognise, alphabet, image, box)
        print(f"{box.left:5d} {box.top:5d} {box.right - box.left:5d} x {box.bottom - box.top:<4d} {sure:6.1%}  {text}")


if __name__ == "__main__":
    main()
