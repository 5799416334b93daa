"""What searches for sequences of words need beside arithmetic: bounds of what the run tells, guesses that came true."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bolt_numba.base.types import I64, Array, TensorType
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.dtypes import NUMBERS
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import shape_of, want_elements, want_one


@op("Between")
class Between(Op):
    """y = x, which must be ``low`` to ``high``: what a model asks for may not be more than there is.

    x: scalar number · low, high: scalars of x's dtype -> y: like x.  what: how messages call x.
    """

    what: str
    data_bounds = bounded(x="held against the others, else refused", low="compared", high="compared")

    def infer(self, x: TensorType, low: TensorType, high: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, *NUMBERS)
        for name, t in (("x", x), ("low", low), ("high", high)):
            want_dtype(self, name, t.dtype, x.dtype)
            shape_of(self, name, t, 0)
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, low: Array, high: Array) -> Array:
        want_between(self, self.what, x, low, high)
        return x.copy()


@op("BifurcationDetector")
class BifurcationDetector(Op):
    """The words so far and those of a guess that came true; and where in the source the words behind them stand.

    source: [s] i64 · words: [w] i64 · start: one i64, from which word of the source on it was taken for what follows ·
    guess: [s + 1 - start] i64 what followed instead, or None -> tokens: words, then the guess up to its first word that
    is not the source's; match: like start, the place in the source behind its only run of as many words as tokens end
    with, -1 where none is the only one.  Runs of ``least`` to ``most`` words are tried, while there are any; a run that
    is the source's end counts at once.
    Source: com.microsoft BifurcationDetector-1 and what onnxruntime gives.
    """

    least: int = 1
    most: int = 3
    data_bounds = bounded(
        start="how much of the source is compared; tested against its length, else refused",
        source="compared", words="compared", guess="compared",
    )  # fmt: skip

    def infer(
        self, source: TensorType, words: TensorType, start: TensorType, guess: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        if not 0 < self.least <= self.most:
            raise self.fail("least and most", (self.least, self.most), "numbers from 1, in order")
        operands = {"source": source, "words": words, "start": start, "guess": guess}
        want_dtypes(self, (I64,), **operands)
        for name, t in operands.items():
            shape_of(self, name, t, 1)
        want_one(self, start=start)
        if guess is None:
            return TensorType(I64, words.shape), TensorType(I64, start.shape)
        if guess.shape is not None:
            want_elements(self, "guess", guess.shape[0])
        return TensorType(I64, (fresh_dim("words"),)), TensorType(I64, start.shape)

    def reference(self, source: Array, words: Array, start: Array, guess: Array | None = None) -> tuple[Array, Array]:
        tokens = words if guess is None else np.concatenate([words, self._true(source, int(start[0]), guess)])
        return tokens.copy(), np.array([self._match(source, tokens)], I64)

    def _true(self, source: Array, start: int, guess: Array) -> Array:
        want_between(self, "start", np.array([start]), 0, len(source))
        rest = source[start:]
        self.fail_if(len(guess) != len(rest) + 1, "words of guess", len(guess), len(rest) + 1)
        wrong = np.flatnonzero(guess[:-1] != rest)
        return guess[: wrong[0] + 1] if len(wrong) else guess

    def _match(self, source: Array, tokens: Array) -> int:
        found = -1
        for size in range(self.least, min(self.most, len(tokens), len(source)) + 1):
            runs = np.flatnonzero((sliding_window_view(source, size) == tokens[-size:]).all(1))
            if not len(runs):
                break
            found = int(runs[0]) + size
            if found >= len(source):
                break
            if len(runs) > 1:
                found = -1
        return found
