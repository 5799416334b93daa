"""Operators on strings: object arrays of ``str``.  They run in Python only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import ShapeError, UnsupportedOpError
from bolt_numba.base.types import BOOL, F32, I32, I64, STRING, Array, Dim, TensorType
from bolt_numba.ops.content import bounded
from bolt_numba.ops.registry import Op, fresh_dim, op, want_among, want_dtype
from bolt_numba.ops.shapes import broadcast_shapes, shape_of

_CHANGES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def compiled(owner: str, pattern: str, **options: bool) -> Any:
    """A pattern of RE2, whose time is linear in the text.

    Raises UnsupportedOpError when RE2 is not installed, ShapeError for what is no pattern.
    """
    try:
        import re2
    except ImportError as error:
        raise UnsupportedOpError(owner, ["matching without RE2: pip install google-re2"]) from error
    settings = re2.Options()
    settings.log_errors = False
    for name, value in options.items():
        setattr(settings, name, value)
    try:
        return re2.compile(pattern, settings)
    except re2.error as error:
        raise ShapeError(f"{owner}: pattern: got {pattern!r}, wanted a regular expression ({error})") from error


def texts(values: Any, shape: tuple[int, ...]) -> Array:
    """An array of strings of a shape."""
    made = np.empty(len(values), STRING)
    made[:] = values
    return made.reshape(shape)


STRING_BYTES = 64
"""Memory of a string beside its characters."""


def _characters(x: Array, count: int) -> int:
    """Bytes of the characters when the elements are repeated ``count`` times in all; up to four each."""
    return 4 * sum(len(str(v)) for v in x.flat) * (count // max(x.size, 1))


@op("StringConcat")
class StringConcat(Op):
    """y = x followed by z, with broadcasting.  x, z: [...] string.  Source: ONNX StringConcat-20."""

    def infer(self, x: TensorType, z: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, STRING)
        want_dtype(self, "z", z.dtype, STRING)
        return TensorType(STRING, broadcast_shapes(self, x.shape, z.shape))

    def reference(self, x: Array, z: Array) -> Array:
        a, b = np.broadcast_arrays(x, z)
        ask(a.size * STRING_BYTES + _characters(x, a.size) + _characters(z, a.size), f"{self.name}: strings")
        return texts([str(p) + str(q) for p, q in zip(a.flat, b.flat, strict=True)], a.shape)


@op("StringSplit")
class StringSplit(Op):
    """The parts of each string between delimiters, padded by empty strings, and their numbers.

    x: [...] string -> y: [..., most parts] string, count: [...] i64.  No delimiter: runs of white space, and none at
    the ends.  At most ``maxsplit`` cuts are made from the left.  Source: ONNX StringSplit-20.
    """

    delimiter: str = ""
    maxsplit: int | None = None

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        want_dtype(self, "x", x.dtype, STRING)
        shape = None if x.shape is None else (*x.shape, fresh_dim("parts"))
        return TensorType(STRING, shape), TensorType(I64, x.shape)

    def reference(self, x: Array) -> tuple[Array, Array]:
        cuts = -1 if self.maxsplit is None else self.maxsplit
        words = [str(v) if self.delimiter else str(v).strip() for v in x.flat]
        parts = [w.split(self.delimiter or None, cuts) for w in words]
        most = max(map(len, parts), default=0)
        ask(16 * len(parts) * most, f"{self.name}: {most} parts of each string")
        padded = [p for row in parts for p in (*row, *[""] * (most - len(row)))]
        return texts(padded, (*x.shape, most)), np.array([len(p) for p in parts], I64).reshape(x.shape)


@op("StringNormalizer")
class StringNormalizer(Op):
    """Strings without stop words, in lower or upper case; one empty string when nothing is left.

    x: [C] or [1, C] string -> [...] of x's rank.  Case follows Unicode, whatever the locale.
    Source: ONNX StringNormalizer-10.
    """

    case_change_action: str = "NONE"
    is_case_sensitive: bool = False
    stopwords: tuple[str, ...] = ()

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, STRING)
        shape = shape_of(self, "x", x, 1, 2)
        want_among(self, _CHANGES, case_change_action=self.case_change_action)
        if shape is None:
            return TensorType(STRING, None)
        if len(shape) == 2 and isinstance(shape[0], int) and shape[0] != 1:
            raise self.fail("shape of x", x, "[C] or [1, C]")
        count: Dim = fresh_dim("kept")
        return TensorType(STRING, (count,) if len(shape) == 1 else (1, count))

    def reference(self, x: Array) -> Array:
        change = _CHANGES[self.case_change_action]
        fold = _CHANGES["NONE" if self.is_case_sensitive else "LOWER"]
        stop = {fold(w) for w in self.stopwords}
        kept = [change(str(v)) for v in x.flat if fold(str(v)) not in stop] or [""]
        return texts(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@op("RegexFullMatch")
class RegexFullMatch(Op):
    """Whether the whole string matches a pattern.

    x: [...] string -> [...] bool.  The pattern is RE2's, which runs it.  Source: ONNX RegexFullMatch-20.
    """

    pattern: str

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, STRING)
        compiled(self.name, self.pattern)
        return TensorType(BOOL, x.shape)

    def reference(self, x: Array) -> Array:
        match = compiled(self.name, self.pattern).fullmatch
        return np.array([match(str(v)) is not None for v in x.flat], BOOL).reshape(x.shape)


@op("TfIdfVectorizer")
class TfIdfVectorizer(Op):
    """How often each n-gram of a pool occurs.

    x: [C] or [n, C] string, i32 or i64 -> [outs] or [n, outs] f32, outs = 1 + the greatest of ``ngram_indexes``.
    pool: items of all 1-grams, 2-grams…; ``ngram_counts``: where each length begins.  Items of an n-gram stand
    1…max_skip_count+1 places apart.  mode: TF counts, IDF the weights of what occurs, TFIDF counts times weights.
    Source: ONNX TfIdfVectorizer-9.
    """

    mode: str
    min_gram_length: int
    max_gram_length: int
    max_skip_count: int
    ngram_counts: tuple[int, ...]
    ngram_indexes: tuple[int, ...]
    pool: tuple[str | int, ...]
    weights: tuple[float, ...] = ()
    data_bounds = bounded(x="looked up among n-grams; what is none counts nowhere")

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, STRING, I32, I64)
        shape = shape_of(self, "x", x, 1, 2)
        want_among(self, ("TF", "IDF", "TFIDF"), mode=self.mode)
        if not 1 <= self.min_gram_length <= self.max_gram_length:
            raise self.fail("gram lengths", (self.min_gram_length, self.max_gram_length), "1 to the greater")
        self.grams()
        return TensorType(F32, None if shape is None else (*shape[:-1], self._outs()))

    def _outs(self) -> int:
        return max(self.ngram_indexes, default=-1) + 1

    def grams(self) -> dict[tuple[str | int, ...], int]:
        """n-gram -> its number; one that comes twice has the last."""
        found: dict[tuple[str | int, ...], int] = {}
        number = itertools.count()
        ends = (*self.ngram_counts[1:], len(self.pool))
        for n, (start, end) in enumerate(zip(self.ngram_counts, ends, strict=True), 1):
            if not 0 <= start <= end <= len(self.pool) or (end - start) % n:
                raise self.fail("ngram_counts", self.ngram_counts, f"starts of whole n-grams in {len(self.pool)}")
            for at in range(start, end, n):
                found[self.pool[at : at + n]] = next(number)
        total = next(number)
        if total > len(self.ngram_indexes) or min(self.ngram_indexes, default=0) < 0:
            raise self.fail("ngram_indexes", len(self.ngram_indexes), f"a place for each of {total}")
        return found

    def reference(self, x: Array) -> Array:
        pool = self.grams()
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y: Array = np.zeros((len(rows), self._outs()), F32)
        for row, counts in zip(rows.tolist(), y, strict=True):
            for n in range(self.min_gram_length, min(self.max_gram_length, len(row)) + 1):
                for skip in range(min(self.max_skip_count, len(row)) + 1 if n > 1 else 1):
                    self._count(row, n, skip + 1, pool, counts)
        if self.mode != "TF":
            scale = self.scale()
            y = (y > 0) * scale if self.mode == "IDF" else y * scale
        return y.astype(F32).reshape(*x.shape[:-1], self._outs())

    def scale(self) -> Array:
        """The weight of each column of the result."""
        scale = np.ones(self._outs(), F32)
        for place, weight in zip(self.ngram_indexes, self.weights, strict=False):
            scale[place] = weight
        return scale

    def _count(self, row: list[Any], n: int, step: int, pool: dict[tuple[str | int, ...], int], counts: Array) -> None:
        for start in range(len(row) - (n - 1) * step):
            number = pool.get(tuple(row[start : start + (n - 1) * step + 1 : step]))
            if number is not None:
                counts[self.ngram_indexes[number]] += 1
