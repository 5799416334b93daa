"""Damaged bytes of real model files: a BoltError or a correct run, and nothing else.

Without files: the digits network as ONNX and as .bolt, exports of PyTorch that the onnx package ships, and those of the
real models of `tests.models` that have been fetched already.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

import bolt_numba as bn
from bolt_numba.ir import store
from bolt_numba.sessions.guesses import random_feeds
from bolt_numba.types import TensorSpec
from tests import models
from tests.attack.child import Result, drive, refusal

MAX_INPUT = 1 << 22
"""Elements of all inputs up to which a model that loads is also run."""
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
_HEADER = struct.Struct("<8sIIQQQQ16s")


def truncated(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: rng.integers(0, len(data))]


def position(data: bytes, rng: np.random.Generator) -> int:
    """A byte of the file, more often near its beginning, where the graph is."""
    return int(len(data) * rng.random() ** rng.integers(1, 4))


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    made = bytearray(data)
    for _ in range(rng.integers(1, 9)):
        made[position(data, rng)] ^= 1 << int(rng.integers(8))
    return bytes(made)


def spliced(data: bytes, rng: np.random.Generator) -> bytes:
    """A piece of the file put elsewhere: inserted, written over what is there, or just cut out."""
    start, at = position(data, rng), position(data, rng)
    piece = data[start : start + int(2 ** rng.uniform(0, 10))]
    over = len(piece) if rng.random() < 0.5 else 0
    return data[:at] + (b"" if rng.random() < 0.2 else piece) + data[at + over :]


def resealed(data: bytes, rng: np.random.Generator) -> bytes:
    """A .bolt file with damaged JSON whose checksums are right again."""
    if not store.is_bolt(data):
        return spliced(flipped(data, rng), rng)
    size = _HEADER.unpack(data[:64])[4]
    text = bytearray(data[64 : 64 + size])
    digits = [i for i, c in enumerate(text) if chr(c).isdigit()]
    for _ in range(rng.integers(1, 4)):
        text[digits[rng.integers(len(digits))]] = ord("0") + int(rng.integers(10))
    rest = (*_HEADER.unpack(data[:64])[3:7], blake2b(text, digest_size=16).digest())
    crc = zlib.crc32(_HEADER.pack(store.MAGIC, store.VERSION, 0, *rest))
    return _HEADER.pack(store.MAGIC, store.VERSION, crc, *rest) + bytes(text) + data[64 + size :]


MUTATIONS = (truncated, flipped, flipped, spliced, spliced, resealed)


def mutation(data: bytes, seed: int) -> tuple[str, bytes]:
    """The mutation of this number: the same every time."""
    rng = np.random.default_rng(seed)
    mutate = MUTATIONS[rng.integers(len(MUTATIONS))]
    return mutate.__name__, mutate(data, rng)


def outcome(data: bytes) -> tuple[str, str]:
    """What loading and running does: a state, and what was raised."""
    try:
        session = bn.compile(io.BytesIO(data), threads=1)
        if not all(_is_small(spec) for spec in session.inputs):
            return "loaded", "too large to run"
        session(random_feeds(session.inputs))
    except Exception as error:
        return refusal(error)
    return "ran", ""


def _is_small(spec: TensorSpec) -> bool:
    size = 1
    for d in spec.shape or ():
        size *= 1 if isinstance(d, str) else d
    return spec.dtype != object and spec.shape is not None and size <= MAX_INPUT


def attack(data: bytes, seed: int) -> tuple[str, str, str]:
    """Kind, state and detail of one damaged copy."""
    kind, damaged = mutation(data, seed)
    return (kind, *outcome(damaged))


def prepare(path: str) -> tuple[Callable[[int], tuple[str, str, str]], tuple[str, str]]:
    """What serves numbers for one file, and how the undamaged file ends."""
    data = Path(path).read_bytes()
    return functools.partial(attack, data), outcome(data)


def attack_files(files: Sequence[Path], count: int, seed: int = 0) -> Iterator[Result]:
    """Run ``count`` mutations, spread evenly over the files."""
    for index, path in enumerate(files):
        yield from drive(str(path), command(path), range(seed + index, seed + count, len(files)))


def command(path: Path) -> list[str]:
    """How a child for a file is started."""
    return ["-m", "tests.attack", "files", "--work", str(path)]


def default_files(folder: Path) -> list[Path]:
    """The files to damage; the .bolt one is written to ``folder``."""
    import onnx

    bolt = folder / "digits.bolt"
    bn.save(bn.load(DIGITS), bolt)
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    names = ("Conv2d_padding", "BatchNorm2d_eval", "MaxPool2d", "Linear", "Softmax", "PixelShuffle", "ConvTranspose2d")
    exports = [data / "pytorch-converted" / f"test_{name}" / "model.onnx" for name in names]
    return [DIGITS, bolt, *(f for f in exports if f.exists()), *_fetched()]


def _fetched() -> list[Path]:
    return [f for f in sorted(models.folder().glob("*.onnx")) if f.stat().st_size < 16 << 20]
