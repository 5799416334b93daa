"""Read the text of many pages as a stream: while one page is searched for lines, lines of another are read.

    python examples/ocr_flow.py [IMAGE ...] [--workers N]     # without images six pages are drawn; needs pillow

It is `examples/ocr.py` as a Flow (docs/flow.md), with the same networks and steps.  Lines of all pages wait in one
queue, and two of one width are read at a time.  So that there are such, lines are padded at the right.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ocr import MODELS, Box, Floats, alphabet_of, fetch, line_tensor, lines_in, page_tensor, sample, text_of
from PIL import Image

import bolt_numba as bn
from bolt_numba.flow import Flow

WIDTHS = 32
"""Lines are padded to multiples of this."""
BATCH, PLANS = 2, 64
"""Lines that are read as one, and widths and batches that the session keeps a plan for."""


def cut(image: Image.Image, probabilities: Floats) -> tuple[list[Box], list[Floats]]:
    """The boxes of a page's lines, and each line as the second network takes it."""
    boxes = lines_in(probabilities, image)
    return boxes, [padded(line_tensor(image, box)) for box in boxes]


def padded(line: Floats) -> Floats:
    """With zeros at the right, as the network was trained."""
    return np.pad(line, ((0, 0), (0, 0), (0, 0), (0, -line.shape[3] % WIDTHS)))


def reader(workers: int | None = None, **options: Any) -> Flow:
    """A flow from images to the boxes of their lines, and to texts, each with how sure the network is.

    workers: None: one for each processor.  options: of `bn.compile`.
    """
    detect, recognise = (bn.load(fetch(name)) for name in MODELS)
    alphabet = alphabet_of(recognise)
    flow = Flow("ocr", inputs="image", outputs=["boxes", "lines"], workers=workers)
    flow.function(page_tensor, "image", "page")
    flow.model(detect, "page", "probabilities", name="detect", **options)
    flow.function(cut, ["image", "probabilities"], ["boxes", "crops"])
    several = {"each": "crops", "max_batch": BATCH, "max_plans": PLANS}
    flow.model(recognise, "crops", "letters", name="recognise", **several, **options)
    flow.function(lambda letters: [text_of(p, alphabet) for p in letters], "letters", "lines", name="decode")
    return flow


def tasks(paths: list[Path], names: list[str]) -> Iterator[dict[str, Image.Image]]:
    """Images, each opened when there is room for it; ``names`` gets theirs."""
    for path in paths:
        names.append(path.name)
        yield {"image": Image.open(path).convert("RGB")}
    for turn in range(0 if paths else 6):
        names.append(f"drawn page {turn + 1}")
        yield {"image": sample().crop((0, 5 * turn, 720 - 5 * turn, 400))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", type=Path, help="image files; without them pages are drawn")
    parser.add_argument("--workers", type=int, help="threads; without it one for each processor")
    options = parser.parse_args()
    with reader(options.workers) as flow:
        start = time.perf_counter()
        names: list[str] = []
        for number, found in enumerate(flow.map(tasks(options.images, names))):
            print(names[number])
            for box, (text, sure) in zip(found["boxes"], found["lines"], strict=True):
                print(f"{box.left:5d} {box.top:5d} {sure:6.1%}  {text}")
        spent = time.perf_counter() - start
        print(f"\n{len(names)} pages in {spent:.2f} s (with planning)\n{flow.statistics().table()}")


if __name__ == "__main__":
    main()
