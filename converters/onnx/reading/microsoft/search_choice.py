"""How a search chooses the next words: what changes their scores, the best one, one by chance, or the best beams.

Rows are sequences; of a search over beams, those of a batch's item lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, F32, I32, I64
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.layers import without_repetition
from bolt_numba.converters.operands import (
    counted_up,
    expanded,
    known_scalar,
    reshaped,
    sizes_of,
    sliced,
    squeezed,
    static_dim,
    unsqueezed,
)
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather, GatherElements, ScatterElements
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.reduce import ArgMax, CumSum, LogSoftmax, ReduceMax, ReduceMin, ReduceSum, Softmax, TopK
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.pointwise import (
    Add,
    And,
    Cast,
    Div,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Pow,
    Sub,
    Where,
)

State: TypeAlias = dict[str, Any]
Rule: TypeAlias = Callable[[NodeBuilder, Any, Value], Any]
"""New scores for scores [rows, words] and the words so far [rows, length]."""
FORBIDDEN = np.array(np.finfo(F32).min)
"""The score of a word that may not come; finite, as the score of a beam is added to it."""
NONE = np.array(-np.inf, F32)
"""The score of a sequence that is not there."""
LATER = np.array(-1e9, F32)
"""The score of all beams but the first before the first word: they all say the same."""


def count(b: NodeBuilder, x: Value, axis: int) -> Value:
    """Length of an axis as a scalar."""
    return squeezed(b, b(Shape(axis, axis + 1), x), 0)


def cut(b: NodeBuilder, x: Value, axis: int, end: Any) -> Value:
    """The first elements along an axis, as many as a scalar says."""
    return b(Slice(), x, np.array([0]), unsqueezed(b, end, 0), np.array([axis]))


def all_of(b: NodeBuilder, x: Value) -> Value:
    """Whether all of [n] are true, as a scalar."""
    return b(Cast(BOOL), b(ReduceMin(keepdims=False), b(Cast(I32), x)))


@record()
class Rules:
    """What changes scores [rows, words] before a word is chosen, in this order; None for what does not.

    end: the word that ends a sequence.  repetition: scalar by which scores of words that were there are made worse.
    size: that many words may not appear twice in a row of a sequence.  words: [words] i32, 0 for those that may never
    come, and firsts: [n, words] i32 likewise for the first word.  shortest: scalar i32, the length before which no
    sequence ends.  temperature: divides scores.  presence: what is taken from the scores of [n, words] i32.
    more: what else a kind of model asks for.
    """

    end: int
    repetition: Value | None = None
    size: int = 0
    words: Value | None = None
    firsts: Value | None = None
    shortest: Value | None = None
    temperature: Any = None
    presence: tuple[Value, float] | None = None
    more: Rule | None = None

    def apply(self, b: NodeBuilder, scores: Any, sequences: Value, first: Value | bool) -> Any:
        """sequences: [rows, length] i32 so far.  first: whether their first word is chosen."""
        if self.repetition is not None and known_scalar(self.repetition) != 1:
            scores = self._repeated(b, scores, sequences, b.here(self.repetition))
        if self.size > 0:
            scores = without_repetition(b, b(Cast(I64), sequences), scores, self.size, float(FORBIDDEN))
        if self.words is not None:
            scores = b(Where(), b(Equal(), b.here(self.words), 0), FORBIDDEN, scores)
        if self.firsts is not None and first is not False:
            hidden = b(Equal(), b.here(self.firsts), 0)
            hidden = hidden if first is True else b(And(), hidden, first)
            scores = of_items(b, scores, lambda s: b(Where(), unsqueezed(b, hidden, 1), FORBIDDEN, s), hidden)
        if self.shortest is not None and self.end >= 0:
            early = b(Less(), b(Cast(I32), count(b, sequences, 1)), b.here(self.shortest))
            ends = np.arange(static_dim(b, scores, 1)) == self.end
            scores = b(Where(), b(And(), early, ends), FORBIDDEN, scores)
        if self.temperature is not None:
            heat = self.temperature
            scores = b(Div(), scores, b.here(heat) if isinstance(heat, Value) else heat)
        if self.presence is not None:
            given, penalty = self.presence
            scores = b(Sub(), scores, b(Mul(), b(Cast(F32), b.here(given)), penalty))
        return scores if self.more is None else self.more(b, scores, sequences)

    @staticmethod
    def _repeated(b: NodeBuilder, scores: Any, sequences: Value, penalty: Value) -> Value:
        words = counted_up(b, sequences, static_dim(b, scores, 1))
        old = b(GatherElements(1), scores, words)
        worse = b(Where(), b(Less(), old, 0), b(Mul(), old, penalty), b(Div(), old, penalty))
        return b(ScatterElements(1), scores, words, worse)


def of_items(b: NodeBuilder, rows: Value, change: Any, like: Value) -> Value:
    """Rows, changed as [n, rows of each item, ...]; n: as many as ``like`` has."""
    words = sizes_of(b, rows, [1])
    return reshaped(b, change(reshaped(b, rows, sizes_of(b, like, [0]), [-1], words)), [-1], words)


class Greedy:
    """The best word of each row.  Rows that have ended go on with padding.

    Its state is `ended`: [n] bool.
    """

    forms: ClassVar = {"ended": "rows"}
    beams: Value | None = None

    def __init__(self, end: int, pad: int) -> None:
        self.end, self.pad = end, pad

    def begin(self, b: NodeBuilder, sequences: Value) -> State:
        return {"ended": expanded(b, np.zeros(1, BOOL), sizes_of(b, sequences, [0]))}

    def scores(self, b: NodeBuilder, logits: Value) -> Value:
        return logits

    def choose(self, b: NodeBuilder, scores: Value, state: State, number: Any) -> tuple[Any, Any, State, list[Any]]:
        """The next words [rows] i32; the rows that they follow, None for the same ones; the state; results of steps."""
        words = b(Cast(I32), self.best(b, scores, number))
        ended = b(Or(), state["ended"], b(Equal(), words, self.end))
        return b(Where(), ended, np.array(self.pad, I32), words), None, {"ended": ended}, []

    def best(self, b: NodeBuilder, scores: Value, number: Any) -> Value:
        return b(ArgMax(1, False), scores)

    def goes_on(self, b: NodeBuilder, state: State) -> Value:
        return b(Not(), all_of(b, state["ended"]))


class Sampling(Greedy):
    """A word by chance among the most probable ones.

    share: only as many of them as together have this probability.  keep: at least so many.  filtered: the score that
    the others get.  from_best: the sum of probabilities begins with the best words, and the one that reaches the share
    is left out; else it begins with the worst ones.  draws: [steps, n] f32, numbers in [0, 1).
    """

    def __init__(
        self, end: int, pad: int, *, share: float, keep: int, filtered: float, from_best: bool, draws: Value
    ) -> None:
        super().__init__(end, pad)
        self.share, self.keep, self.filtered, self.from_best, self.draws = share, keep, filtered, from_best, draws

    def best(self, b: NodeBuilder, scores: Value, number: Any) -> Value:
        words = static_dim(b, scores, 1)
        ranked, places = b(TopK(1, self.from_best), scores, np.array([words]))
        kept = b(Where(), self._left_out(b, ranked, words), np.array(self.filtered, F32), ranked)
        sums = b(CumSum(), b(Softmax(1), kept), np.array(1))
        draw = b(
            Min(), b(Gather(0), b.here(self.draws), number), np.array(1 - 2**-23, F32)
        )  # below 1 times the sum, too
        spot = b(Mul(), unsqueezed(b, draw, 1), sliced(b, sums, 1, words - 1))
        place = b(ReduceSum(), b(Cast(I64), b(LessOrEqual(), sums, spot)), np.array([1]))
        return squeezed(b, b(GatherElements(1), places, place), 1)

    def _left_out(self, b: NodeBuilder, ranked: Value, words: int) -> Value:
        sums = b(CumSum(self.from_best), b(Softmax(1), ranked), np.array(1))
        place = np.arange(words)
        if self.from_best:
            return b(And(), b(Greater(), sums, np.array(self.share, F32)), place > 0)
        few = b(LessOrEqual(), sums, np.array(1 - self.share, F32))
        return b(And(), few, place < words - max(self.keep, 1))


class Beams:
    """The best beams of each item [n, beams], and the best sequences that have ended.

    State: `beam_scores` [n, beams] f32; `best_scores` [n, beams] f32 of sequences that have ended, divided by a power
    of their length, and the `best` sequences [n, beams, length] themselves, `found` [n] i64 of them; `ended` [n] bool,
    whether no beam of an item can become better than those.
    early: an item has ended when it has as many sequences as beams.  penalty: scalar, exponent of the length.
    """

    forms: ClassVar = {
        "beam_scores": "n beams", "best_scores": "n beams", "best": "n beams total", "found": "n", "ended": "n",
    }  # fmt: skip

    def __init__(self, end: int, pad: int, *, beams: Value, penalty: Value, early: bool, scores: bool) -> None:
        self.end, self.pad, self.beams, self.penalty, self.early = end, pad, beams, penalty, early
        self.with_scores = scores

    def begin(self, b: NodeBuilder, sequences: Value) -> State:
        n = self._items(b, sequences)
        beams = unsqueezed(b, self.beams, 0)
        shape = b(Concat(0), n, beams)
        first = b(Equal(), b(Range(), np.array(0), self.beams, np.array(1)), 0)
        scores = b(Where(), first, np.array(0, F32), LATER)
        return {
            "beam_scores": expanded(b, scores, shape),
            "best_scores": expanded(b, NONE, shape),
            "best": expanded(b, np.array(self.pad, I32), n, beams, b(Shape(1, 2), sequences)),
            "found": expanded(b, np.array(0), n),
            "ended": expanded(b, np.array(False), n),
        }

    def _items(self, b: NodeBuilder, sequences: Value) -> Value:
        return b(Div(), b(Shape(0, 1), sequences), unsqueezed(b, self.beams, 0))

    def scores(self, b: NodeBuilder, logits: Value) -> Value:
        return b(LogSoftmax(1), logits)

    def choose(self, b: NodeBuilder, scores: Value, state: State, number: Any) -> tuple[Any, Any, State, list[Any]]:
        n, beams = (count(b, state["beam_scores"], i) for i in (0, 1))
        size = static_dim(b, scores, 1)
        added = b(Add(), reshaped(b, scores, b(Shape(), state["beam_scores"]), [size]),
                  unsqueezed(b, state["beam_scores"], 2))  # fmt: skip
        twice = b(Mul(), beams, 2)
        flat = reshaped(b, added, unsqueezed(b, n, 0), unsqueezed(b, b(Mul(), beams, size), 0))
        ranked, places = b(TopK(1), flat, unsqueezed(b, twice, 0))
        beam = b(Div(), places, size)
        word = b(Sub(), places, b(Mul(), beam, size))
        firsts = unsqueezed(b, b(Mul(), b(Range(), np.array(0), n, np.array(1)), beams), 1)
        row = b(Add(), beam, firsts)
        ends = b(Equal(), word, self.end)
        made = self._ended(b, state, beams, ranked, row, ends)
        order = b(Add(), b(Range(), np.array(0), twice, np.array(1)), b(Mul(), b(Cast(I64), ends), twice))
        _, next_ = b(TopK(1, False), order, unsqueezed(b, beams, 0))
        old = unsqueezed(b, state["ended"], 1)
        score, chosen, follows = (
            b(Where(), old, nothing, b(GatherElements(1), x, next_))
            for x, nothing in ((ranked, np.array(0, F32)), (word, np.array(self.pad)), (row, np.array(0)))
        )
        made["beam_scores"] = score
        words, rows = (reshaped(b, x, [-1]) for x in (b(Cast(I32), chosen), follows))
        return words, rows, made, [added] if self.with_scores else []

    def _ended(self, b: NodeBuilder, state: State, beams: Any, ranked: Value, row: Value, ends: Value) -> State:
        """The best sequences with those of the best candidates that end now, before the end."""
        ending = b(And(), cut(b, ends, 1, beams), b(Not(), unsqueezed(b, state["ended"], 1)))
        sequences = state["sequences"]
        power = b(Pow(), b(Cast(F32), count(b, sequences, 1)), b.here(self.penalty))
        score = b(Where(), ending, self._by_length(b, cut(b, ranked, 1, beams), power), NONE)
        best = b(Gather(0), sequences, cut(b, row, 1, beams))
        made = self._better(b, state, score, best)
        many = b(ReduceSum(keepdims=False), b(Cast(I64), ending), np.array([1]))
        made["found"] = b(Min(), b(Add(), state["found"], many), beams)
        full = b(GreaterOrEqual(), made["found"], beams)
        if not self.early:
            least = b(ReduceMin(keepdims=False), made["best_scores"], np.array([1]))
            full = b(And(), full, b(GreaterOrEqual(), least, b(Div(), self._most(b, ranked, beams), power)))
        made["ended"] = b(Or(), state["ended"], full)
        blank = expanded(b, np.array(self.pad, I32), b(Shape(), score), [1])
        made["best"] = b(Concat(2), made["best"], blank)
        return made

    @staticmethod
    def _by_length(b: NodeBuilder, scores: Value, power: Value) -> Value:
        """Scores of sequences, which are more than that of none."""
        return b(Max(), b(Div(), scores, power), FORBIDDEN)

    @staticmethod
    def _most(b: NodeBuilder, ranked: Value, beams: Any) -> Value:
        """The scores [n] that onnxruntime holds against those of sequences that have ended.

        It takes those of item i from element i * beams on, not from 2 * i * beams: the greatest may be another item's.
        """
        halves = b(ReduceMax(keepdims=False), reshaped(b, ranked, [-1], unsqueezed(b, beams, 0)), np.array([1]))
        n = count(b, ranked, 0)
        return b(Max(), cut(b, halves, 0, n), cut(b, sliced(b, halves, 0, 1), 0, n))

    def _better(self, b: NodeBuilder, state: State, score: Value, sequences: Value) -> State:
        """The best of what there was and of other sequences [n, beams, length]; of equals the older."""
        beams = count(b, score, 1)
        both = b(Concat(1), state["best"], sequences)
        kept, place = b(TopK(1), b(Concat(1), state["best_scores"], score), unsqueezed(b, beams, 0))
        items = b(Range(), np.array(0), count(b, score, 0), np.array(1))
        row = b(Add(), place, unsqueezed(b, b(Mul(), items, b(Mul(), beams, 2)), 1))
        flat = reshaped(b, both, [-1], b(Shape(2, 3), both))
        return {"best_scores": kept, "best": b(Gather(0), flat, row)}

    def goes_on(self, b: NodeBuilder, state: State) -> Value:
        return b(Not(), all_of(b, state["ended"]))

    def finish(self, b: NodeBuilder, state: State, many: Value) -> tuple[Any, Any]:
        """The best sequences [n, many, length] of all, ended or not, and their scores."""
        sequences, shape = state["sequences"], b(Shape(), state["beam_scores"])
        power = b(Pow(), b(Cast(F32), count(b, sequences, 1)), self.penalty)
        score = self._by_length(b, state["beam_scores"], power)
        score = b(Where(), unsqueezed(b, state["ended"], 1), NONE, score)
        made = self._better(b, state, score, reshaped(b, sequences, shape, sizes_of(b, sequences, [1])))
        return cut(b, made["best"], 1, many), cut(b, made["best_scores"], 1, many)
