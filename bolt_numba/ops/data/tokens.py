"""Cutting strings into tokens by regular expressions."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from bolt_numba.base.budget import ask
from bolt_numba.base.types import STRING, Array, TensorType
from bolt_numba.ops.data.text import compiled, texts
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype
from bolt_numba.ops.shapes import shape_of

Find: TypeAlias = Callable[[bytes, int], Any]
_ONE = r"(\[([A-Za-z0-9]-[A-Za-z0-9]|[\w ,;])+\]|[\w ,;]|\\[.|*+?()])"
_PLAIN = re.compile(rf"{_ONE}+\+?", re.ASCII)
"""Letters and classes, of which only the last repeats: patterns that mean to Python what they mean to RE2.

They take linear time there, too.
"""
START, END = "\x02", "\x03"


def _next(data: bytes, at: int) -> int:
    """Where the character behind the one at a place of UTF-8 begins."""
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _found(find: Find, data: bytes) -> Iterator[tuple[int, int, int]]:
    """Begin and end of each match, and where to go on: behind an empty one a character is skipped."""
    at = 0
    while at <= len(data) and (match := find(data, at)) is not None:
        start, end = match.span()
        at = end if end > start else _next(data, end)
        yield start, end, at


def _between(find: Find, data: bytes) -> Iterator[bytes]:
    """What stands between the matches of a separator."""
    at = 0
    for start, _, behind in _found(find, data):
        yield data[at:start]
        at = behind
    yield data[at:]


@op("Tokenizer")
class Tokenizer(Op):
    """The tokens of each string along a new last axis, padded by ``pad_value`` to the most that a string has.

    x: [C] or [n, C] string -> [..., most tokens] string.  Tokens are characters where the only separator is empty, else
    what stands between separators (of the first, then of the second...), else what matches ``tokenexp``.  Patterns are
    RE2's and match as much as they can.  Shorter tokens than ``mincharnum`` characters are dropped.  mark: each string
    begins with a token U+0002 and ends with U+0003, unless none has a token.
    Source: com.microsoft Tokenizer-1 and what onnxruntime gives.
    """

    mark: bool
    mincharnum: int
    pad_value: str
    separators: tuple[str, ...] = ()
    tokenexp: str = ""

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, STRING)
        shape = shape_of(self, "x", x, 1, 2)
        self.fail_if(self.mincharnum < 1, "mincharnum", self.mincharnum, "at least 1")
        self.fail_if(not self.separators and not self.tokenexp, "separators and tokenexp", "neither", "one of them")
        self._patterns()
        return TensorType(STRING, None if shape is None else (*shape, fresh_dim("tokens")))

    def _patterns(self) -> list[Find]:
        if self.separators == ("",):
            return []
        return [_finder(self.name, p, not self.separators) for p in self.separators or (self.tokenexp,)]

    def reference(self, x: Array) -> Array:
        patterns = self._patterns()
        rows = [[t for t in self._cut(str(v), patterns) if len(t) >= self.mincharnum] for v in x.flat]
        most = max(map(len, rows), default=0)
        if self.mark and most:
            rows, most = [[START, *row, END] for row in rows], most + 2
        ask(16 * len(rows) * most, f"{self.name}: {most} tokens of each string")
        return texts([t for row in rows for t in (*row, *[self.pad_value] * (most - len(row)))], (*x.shape, most))

    def _cut(self, text: str, patterns: list[Find]) -> list[str]:
        if not patterns:
            return list(text)
        data = text.encode()
        if not self.separators:
            return [data[start:end].decode() for start, end, _ in _found(patterns[0], data)]
        parts = [data]
        for find in patterns:
            parts = [p for part in parts for p in _between(find, part)]
        return [p.decode() for p in parts]


@functools.lru_cache
def _finder(owner: str, pattern: str, whole: bool) -> Find:
    """Search of UTF-8 from a place on.  whole: a dot is any character, line ends included."""
    if _PLAIN.fullmatch(pattern):
        with contextlib.suppress(re.error):  # RE2 tells what is wrong
            return re.compile(pattern.encode()).search
    search: Find = compiled(owner, pattern, longest_match=True, dot_nl=whole).search
    return search
