"""Read handwritten digits with bolt-numba: pictures, accuracy, latency, profile.

    python examples/demo.py [--threads N]

The network and the images are in ``examples/digits`` (made by ``examples/train_digits.py``); nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import bolt_numba as bn
from bolt_numba.benchmark import bench
from bolt_numba.kernels import jit

FOLDER = Path(__file__).parent / "digits"
MODEL = FOLDER / "digits.onnx"
console = Console(highlight=False)


def picture(pixels: npt.NDArray[np.uint8]) -> Text:
    """An 8 x 8 image of values 0 to 16, two rows of pixels to a line of half blocks."""
    if not console.is_terminal:
        return Text("\n".join("".join(" .:*#@"[int(p) // 3] * 2 for p in row) for row in pixels))
    text = Text()
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for a, b in zip(upper, lower, strict=True):
            u, v = int(a) * 15, int(b) * 15
            text.append("▀" * 2, style=f"rgb({u},{u},{u}) on rgb({v},{v},{v})")
        text.append("\n")
    return text


def show(pixels: npt.NDArray[Any], labels: npt.NDArray[Any], p: npt.NDArray[np.float32], indices: list[int]) -> None:
    panels = []
    for i in indices:
        guess = int(p[i].argmax())
        right = guess == labels[i]
        title = f"{guess} ({p[i, guess]:.1%})" + ("" if right else f" is {labels[i]}")
        panels.append(Panel(picture(pixels[i, 0]), title=title, border_style="green" if right else "red", width=22))
    console.print(Columns(panels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    data = np.load(FOLDER / "digits.npz")
    pixels, labels = data["image"], data["label"]
    images = (pixels / 16).astype(np.float32)

    compiled: list[str] = []
    jit.on_compile(lambda name, done: announce(compiled, name, done))
    start = time.perf_counter()
    session = bn.compile(MODEL, threads=threads)
    p = np.asarray(session(image=images))
    spent = time.perf_counter() - start
    console.print(f"from file to the first result: {spent:.2f} s, {len(compiled)} kernels compiled\n")

    wrong = [int(i) for i in np.flatnonzero(p.argmax(1) != labels)]
    examples = [int(np.flatnonzero(labels == digit)[0]) for digit in range(10)]
    console.print("one of each digit, then all that it reads wrong:")
    show(pixels, labels, p, examples + wrong)
    right = 1 - len(wrong) / len(labels)
    console.print(f"\n[bold]accuracy[/]: {right:.2%} of {len(labels)} images never seen in training")

    one = images[:1]
    peers = ["onnxruntime"] if importlib.util.find_spec("onnxruntime") else []
    for name, batch in (("one image", one), (f"{len(images)} images", images)):
        report = bench(MODEL, vs=peers, threads=threads, feeds={"image": batch}, seconds=1.0, processes=False)
        ours = report.engines[0]
        line = f"[bold]latency[/], {name}: median {ours.median * 1e6:.1f} us"
        for peer, ratio in report.ratios().items():
            line += f"; {peer} takes {ratio['median']:.2f} times as long"
        console.print(line)
    console.print("\n[bold]profile[/] of one image:")
    console.print(session.profile(image=one, runs=200).table(), soft_wrap=True, markup=False)


def announce(compiled: list[str], name: str, done: bool) -> None:
    if not done:
        compiled.append(name)
        console.print(f"[dim]compiling kernel {len(compiled)} (once, then cached): {name}[/]")


if __name__ == "__main__":
    main()
