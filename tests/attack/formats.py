"""Damaged files of TFLite, Caffe and Paddle, made of the golden cases: a BoltError or a right run, and nothing else.

A number chooses the case, which of its files is damaged, and how.  What still loads is run on the case's inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import bolt_numba as bn
from tests import formats
from tests.attack import files
from tests.attack.child import Result, drive, refusal

EXTREME = (0, 1, 4, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF)
"""Words that an offset, a length or a size may become."""
NUMBERS = (b"0", b"-1", b"1", b"7", b"65536", b"2147483648", b"9223372036854775807", b"1e308", b"nan", b'""', b"{")
"""What a number of a text may become."""


def worded(data: bytes, rng: np.random.Generator) -> bytes:
    """One or two aligned words behind the head, offsets among them, made extreme or a little different."""
    made = bytearray(data)
    for _ in range(rng.integers(1, 3)):
        at = int(rng.integers(min(8, len(data) - 1), len(data))) & ~3
        word = int.from_bytes(made[at : at + 4], "little")
        step = int(rng.integers(-8, 9))
        word = EXTREME[rng.integers(len(EXTREME))] if rng.random() < 0.3 else (word + step) & 0xFFFFFFFF
        made[at : at + 4] = word.to_bytes(4, "little")[: len(made) - at]
    return bytes(made)


def touched(data: bytes, rng: np.random.Generator) -> bytes:
    """One byte behind the head made another."""
    made = bytearray(data)
    made[rng.integers(min(8, len(data) - 1), len(data))] = int(rng.integers(256))
    return bytes(made)


def numbered(data: bytes, rng: np.random.Generator) -> bytes:
    """A number of a text made another."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found:
        return files.flipped(data, rng)
    at = found[rng.integers(len(found))]
    return data[: at.start()] + NUMBERS[rng.integers(len(NUMBERS))] + data[at.end() :]


def exchanged(data: bytes, rng: np.random.Generator) -> bytes:
    """Two lines, or parts between quotes, in each other's place; or one of them twice, or not at all."""
    parts = re.split(rb'(\n|")', data)
    if len(parts) < 4:
        return files.spliced(data, rng)
    a, b = rng.integers(len(parts), size=2)
    parts[a], parts[b] = ((parts[b], parts[a]), (parts[b], parts[b]), (b"", parts[b]))[rng.integers(3)]
    return b"".join(parts)


BINARY = (files.truncated, files.flipped, files.spliced, touched, touched, worded, worded, worded)
TEXT = (files.truncated, files.flipped, files.spliced, touched, numbered, numbered, exchanged)


def damaged(case: formats.Case, rng: np.random.Generator) -> tuple[str, formats.Case]:
    """The case with one file damaged, more often the one that says what is computed."""
    roles = [role for role, data in case.files.items() if data]
    role = roles[0] if rng.random() < 0.6 else roles[rng.integers(len(roles))]
    is_text = case.files[role][:1].isascii() and b"\0" not in case.files[role][:256]
    kinds = TEXT if is_text else BINARY
    change = kinds[rng.integers(len(kinds))]
    made = change(case.files[role], rng)
    return f"{role} {change.__name__}", dataclasses.replace(case, files={**case.files, role: made})


def attack(cases: Sequence[formats.Case], number: int) -> tuple[str, str, str]:
    """Kind, state and detail of one damaged case."""
    rng = np.random.default_rng(number)
    kind, case = damaged(cases[rng.integers(len(cases))], rng)
    state, detail = outcome(case)
    return kind, state, detail if state in ("ran", "refused") else f"{case}: {detail}"


def outcome(case: formats.Case) -> tuple[str, str]:
    """What loading and running does: a state, and what was raised."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            session = bn.compile(formats.load(case, Path(folder)), threads=1)
            names, given = [spec.name for spec in session.inputs], case.runs[0].inputs
            by_place = case.format == "tflite"
            feeds = dict(zip(names, given.values(), strict=False)) if by_place else given
            if set(feeds) != set(names):
                return "loaded", ""
            session.run(None, feeds)
    except Exception as error:
        return refusal(error)
    return "ran", ""


def prepare(format: str) -> tuple[Callable[[int], tuple[str, str, str]], tuple[str, str]]:
    """What serves numbers for one format."""
    cases = list(formats.cases(format))
    return functools.partial(attack, cases), outcome(cases[0])


def attack_formats(count: int, seed: int = 0, only: Sequence[str] = ()) -> Iterator[Result]:
    """Run ``count`` mutations of each format."""
    for format in only or formats.FORMATS:
        yield from drive(format, ["-m", "tests.attack", "formats", "--work", format], range(seed, seed + count))
