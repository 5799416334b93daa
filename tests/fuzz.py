"""Damage real model files and see what happens: a BoltError or a correct run, and nothing else.

    python -m tests.fuzz [--count 2000] [--seed 0] [FILE ...]

Mutations are run one after the other in a child process, which is replaced when it dies, hangs for more than
`SECONDS` or has used more than `MEMORY`.  Without files: the digits network as ONNX and as .bolt, exports of PyTorch
that the onnx package ships, and those of the real models of `tests.models` that have been fetched already.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import select
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

import bolt_numba as bn
from bolt_numba.benchmark import peak_rss
from bolt_numba.errors import BoltError
from bolt_numba.feeds import random_feeds
from bolt_numba.ir import store
from bolt_numba.types import TensorSpec
from tests import models

SECONDS = 10.0
MEMORY = 2 << 30
STARTING = 60.0
"""Seconds that a fresh child may take to load and run the undamaged file."""
MAX_INPUT = 1 << 22
"""Elements of all inputs up to which a model that loads is also run."""
GOOD = ("ran", "refused", "loaded")
DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
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
    mutate = MUTATIONS[seed % len(MUTATIONS)]
    return mutate.__name__, mutate(data, rng)


def outcome(data: bytes) -> tuple[str, str]:
    """What loading and running does: one of `GOOD`, or ``"unclean"``, and what was raised."""
    try:
        session = bn.compile(io.BytesIO(data), threads=1)
        if not all(_is_small(spec) for spec in session.inputs):
            return "loaded", "too large to run"
        session(random_feeds(session.inputs))
    except BoltError as error:
        return "refused", type(error).__name__
    except Exception as error:
        return "unclean", f"{type(error).__name__}: {error}"
    return "ran", ""


def _is_small(spec: TensorSpec) -> bool:
    size = 1
    for d in spec.shape or ():
        size *= 1 if isinstance(d, str) else d
    return spec.dtype != object and spec.shape is not None and size <= MAX_INPUT


def work(path: Path) -> None:
    """The child: reads seeds, one a line, and answers each with a line of JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (3 * MEMORY, 3 * MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = path.read_bytes()
    answer("start", *outcome(data))
    for line in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # peak memory starts anew; see proc(5)
        kind, damaged = mutation(data, int(line))
        state, detail = outcome(damaged)
        if (peak_rss() or 0) > MEMORY:
            state, detail = "memory", f"{(peak_rss() or 0) >> 20} MiB"
        answer(kind, state, detail)


def answer(*parts: str) -> None:
    sys.stdout.write(json.dumps(parts) + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Result:
    """One mutation: the file and seed that make it again, and what came of it."""

    file: Path
    seed: int
    kind: str
    state: str
    detail: str

    @property
    def is_good(self) -> bool:
        return self.state in GOOD


class Child:
    """A child process for one file."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.fuzz", "--work", str(path)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        kind, state, detail = self.read(STARTING)
        if state not in GOOD:
            self.stop()
            raise SystemExit(f"{path}: the undamaged file: {kind} {state} {detail}")

    def read(self, seconds: float) -> tuple[str, str, str]:
        """The next answer, or what happened instead of one."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            return "?", "hang", f"over {seconds:g} s"
        line = self.process.stdout.readline()
        if not line:
            return "?", "dead", f"exit code {self.process.wait()}"
        kind, state, detail = json.loads(line)
        return kind, state, detail

    def ask(self, seed: int) -> tuple[str, str, str]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        return self.read(SECONDS)

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def fuzz(files: Sequence[Path], count: int, seed: int = 0) -> Iterator[Result]:
    """Run ``count`` mutations, spread evenly over the files."""
    for index, path in enumerate(files):
        seeds = range(seed + index, seed + count, len(files))
        child: Child | None = None
        try:
            for number in seeds:
                child = child or Child(path)
                kind, state, detail = child.ask(number)
                yield Result(path, number, kind if kind != "?" else mutation(b"\0" * 64, number)[0], state, detail)
                if state in ("hang", "dead"):
                    child.stop()
                    child = None
        finally:
            if child is not None:
                child.stop()


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


def main() -> int:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    start, bad = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        for result in fuzz(options.files or default_files(Path(folder)), options.count, options.seed):
            counts[result.kind, result.state] += 1
            if not result.is_good:
                bad += 1
                sys.stdout.write(f"{result.state}: {result.file} seed {result.seed} ({result.kind}): {result.detail}\n")
                sys.stdout.flush()
    for (kind, state), number in sorted(counts.items()):
        sys.stdout.write(f"{kind:10} {state:8} {number:6}\n")
    total = sum(counts.values())
    sys.stdout.write(f"{total} mutations, {total - bad} good, {bad} bad, {time.perf_counter() - start:.0f} s\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
