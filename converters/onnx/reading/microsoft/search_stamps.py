"""The rule of Whisper's searches: stamps of time come in pairs and do not decrease."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import I32, I64
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.search_choice import FORBIDDEN, Rule, count
from bolt_numba.ir.build import Operand
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import GatherElements
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceLogSumExp, ReduceMax
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.pointwise import Add, And, Cast, Equal, Greater, GreaterOrEqual, Less, Not, Or, Where

FIRST = 50
"""The first stamp may be at most so many after the one of time 0."""


@record(frozen=True)
class Stamps:
    """Words by number: the end, the first stamp (all behind it are stamps), and those that do not come.

    later_never: those that do not come behind the first stamp.
    """

    end: int
    first: int
    never: tuple[int, ...]
    later_never: tuple[int, ...]

    @staticmethod
    def of(end: int) -> Stamps:
        """Those of the models of many languages, where the end tells most of them."""
        return Stamps(end, end + 107, (end + 106, end + 105), (end + 1, 50358, 50359))

    def rule(self, b: NodeBuilder, wanted: Value) -> Rule:
        """What changes scores by words so far, where the run says that it is wanted: a scalar of 1."""
        on = b(Equal(), wanted, 1)
        return lambda b, scores, words: b(Where(), b.here(on), self._ruled(b, scores, words), scores)

    def _ruled(self, b: NodeBuilder, scores: Any, words: Value) -> Value:
        """scores: [rows, all words] f32 · words: [rows, length] i32."""
        every = np.arange(b.static_dim(scores, 1))
        stamps = every >= self.first
        is_stamp = b(GreaterOrEqual(), words, self.first)
        seen = b(Cast(I32), is_stamp)
        some = b(Greater(), b(ReduceMax(), seen, np.array([1])), 0)
        begin = b(Where(), some, b(Add(), b(ArgMax(1), seen), 1), count(b, words, 1))
        longer = b(Less(), begin, count(b, words, 1))
        last = b.sliced(is_stamp, 1, -1)
        padded = b(Concat(1), b.expanded(np.array(False), b.sizes_of(words, [0]), [1]), is_stamp)
        paired = b(Or(), b(Not(), longer), b.sliced(padded, 1, -2, -1))
        single = b(And(), last, b(Not(), paired))
        latest = b(GatherElements(1), words, b(ArgMax(1, select_last_index=True), seen))
        bound = b(Cast(I64), b(Where(), single, latest, b(Add(), latest, 1)))
        late = b(And(), b(Not(), longer), every > self.first + FIRST)
        hidden: list[Operand] = [
            np.isin(every, self.never),
            b(And(), longer, np.isin(every, self.later_never)),
            b(And(), b(And(), last, paired), stamps),
            b(And(), single, every < self.end),
            b(And(), b(And(), some, stamps), b(Greater(), bound, every)),
            late,
        ]
        for mask in hidden:
            scores = b(Where(), mask, FORBIDDEN, scores)
        return self._rather_stamps(b, scores, stamps)

    def _rather_stamps(self, b: NodeBuilder, scores: Any, stamps: Any) -> Value:
        """No text where all stamps together are more probable than the most probable text."""
        text = b(ReduceMax(), b(Where(), stamps, FORBIDDEN, scores), np.array([1]))
        stamp = b(ReduceLogSumExp(), b(Where(), stamps, scores, FORBIDDEN), np.array([1]))
        return b(Where(), b(And(), b(Greater(), stamp, text), ~stamps), FORBIDDEN, scores)
