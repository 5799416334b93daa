"""How a search chooses the next words: what changes their scores, the best one, one by chance, or the best beams.

Rows are sequences; of a search over beams, those of a batch's item lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, F32, I32, I64
from bolt_numba.converters.builder import known_scalar
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.layers import without_repetition
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Gather, GatherElements, ScatterElements
from bolt_numba.ops.arrays.reduce import ArgMax, CumSum, LogSoftmax, ReduceMax, ReduceMin, ReduceSum, Softmax, TopK
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.arrays.slicing import Slice

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
    return b.squeezed(b(Shape(axis, axis + 1), x), 0)


def cut(b: NodeBuilder, x: Value, axis: int, end: Any) -> Value:
    """The first elements along an axis, as many as a scalar says."""
    return b(Slice(), x, np.array([0]), b.unsqueezed(end, 0), np.array([axis]))


def all_of(b: NodeBuilder, x: Value) -> Value:
    """Whether all of [n] are true, as a scalar."""
    return b(p.Cast(BOOL), b(ReduceMin(keepdims=False), b(p.Cast(I32), x)))


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
            scores = without_repetition(b, b(p.Cast(I64), sequences), scores, self.size, float(FORBIDDEN))
        if self.words is not None:
            scores = b(p.Where(), b(p.Equal(), b.here(self.words), 0), FORBIDDEN, scores)
        if self.firsts is not None and first is not False:
            hidden = b(p.Equal(), b.here(self.firsts), 0)
            hidden = hidden if first is True else b(p.And(), hidden, first)
            scores = of_items(b, scores, lambda s: b(p.Where(), b.unsqueezed(hidden, 1), FORBIDDEN, s), hidden)
        if self.shortest is not None and self.end >= 0:
            early = b(p.Less(), b(p.Cast(I32), count(b, sequences, 1)), b.here(self.shortest))
            ends = np.arange(b.static_dim(scores, 1)) == self.end
            scores = b(p.Where(), b(p.And(), early, ends), FORBIDDEN, scores)
        if self.temperature is not None:
            heat = self.temperature
            scores = b(p.Div(), scores, b.here(heat) if isinstance(heat, Value) else heat)
        if self.presence is not None:
            given, penalty = self.presence
            scores = b(p.Sub(), scores, b(p.Mul(), b(p.Cast(F32), b.here(given)), penalty))
        return scores if self.more is None else self.more(b, scores, sequences)

    @staticmethod
    def _repeated(b: NodeBuilder, scores: Any, sequences: Value, penalty: Value) -> Value:
        words = b.counted_up(sequences, b.static_dim(scores, 1))
        old = b(GatherElements(1), scores, words)
        worse = b(p.Where(), b(p.Less(), old, 0), b(p.Mul(), old, penalty), b(p.Div(), old, penalty))
        return b(ScatterElements(1), scores, words, worse)


def of_items(b: NodeBuilder, rows: Value, change: Any, like: Value) -> Value:
    """Rows, changed as [n, rows of each item, ...]; n: as many as ``like`` has."""
    words = b.sizes_of(rows, [1])
    return b.reshaped(change(b.reshaped(rows, b.sizes_of(like, [0]), [-1], words)), [-1], words)


class Greedy:
    """The best word of each row.  Rows that have ended go on with padding.

    Its state is `ended`: [n] bool.
    """

    forms: ClassVar = {"ended": "rows"}
    beams: Value | None = None

    def __init__(self, end: int, pad: int) -> None:
        self.end, self.pad = end, pad

    def begin(self, b: NodeBuilder, sequences: Value) -> State:
        return {"ended": b.expanded(np.zeros(1, BOOL), b.sizes_of(sequences, [0]))}

    def scores(self, b: NodeBuilder, logits: Value) -> Value:
        return logits

    def choose(self, b: NodeBuilder, scores: Value, state: State, number: Any) -> tuple[Any, Any, State, list[Any]]:
        """The next words [rows] i32; the rows that they follow, None for the same ones; the state; results of steps."""
        words = b(p.Cast(I32), self.best(b, scores, number))
        ended = b(p.Or(), state["ended"], b(p.Equal(), words, self.end))
        return b(p.Where(), ended, np.array(self.pad, I32), words), None, {"ended": ended}, []

    def best(self, b: NodeBuilder, scores: Value, number: Any) -> Value:
        return b(ArgMax(1, False), scores)

    def goes_on(self, b: NodeBuilder, state: State) -> Value:
        return b(p.Not(), all_of(b, state["ended"]))


class NucleusChoice(Greedy):
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
        words = b.static_dim(scores, 1)
        ranked, places = b(TopK(1, self.from_best), scores, np.array([words]))
        kept = b(p.Where(), self._left_out(b, ranked, words), np.array(self.filtered, F32), ranked)
        sums = b(CumSum(), b(Softmax(1), kept), np.array(1))
        draw = b(
            p.Min(), b(Gather(0), b.here(self.draws), number), np.array(1 - 2**-23, F32)
        )  # below 1 times the sum, too
        spot = b(p.Mul(), b.unsqueezed(draw, 1), b.sliced(sums, 1, words - 1))
        place = b(ReduceSum(), b(p.Cast(I64), b(p.LessOrEqual(), sums, spot)), np.array([1]))
        return b.squeezed(b(GatherElements(1), places, place), 1)

    def _left_out(self, b: NodeBuilder, ranked: Value, words: int) -> Value:
        sums = b(CumSum(self.from_best), b(Softmax(1), ranked), np.array(1))
        place = np.arange(words)
        if self.from_best:
            return b(p.And(), b(p.Greater(), sums, np.array(self.share, F32)), place > 0)
        few = b(p.LessOrEqual(), sums, np.array(1 - self.share, F32))
        return b(p.And(), few, place < words - max(self.keep, 1))


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
        beams = b.unsqueezed(self.beams, 0)
        shape = b(Concat(0), n, beams)
        first = b(p.Equal(), b.counted(self.beams), 0)
        scores = b(p.Where(), first, np.array(0, F32), LATER)
        return {
            "beam_scores": b.expanded(scores, shape),
            "best_scores": b.expanded(NONE, shape),
            "best": b.expanded(np.array(self.pad, I32), n, beams, b(Shape(1, 2), sequences)),
            "found": b.expanded(np.array(0), n),
            "ended": b.expanded(np.array(False), n),
        }

    def _items(self, b: NodeBuilder, sequences: Value) -> Value:
        return b(p.Div(), b(Shape(0, 1), sequences), b.unsqueezed(self.beams, 0))

    def scores(self, b: NodeBuilder, logits: Value) -> Value:
        return b(LogSoftmax(1), logits)

    def choose(self, b: NodeBuilder, scores: Value, state: State, number: Any) -> tuple[Any, Any, State, list[Any]]:
        n, beams = (count(b, state["beam_scores"], i) for i in (0, 1))
        size = b.static_dim(scores, 1)
        added = b(p.Add(), b.reshaped(scores, b(Shape(), state["beam_scores"]), [size]),
                  b.unsqueezed(state["beam_scores"], 2))  # fmt: skip
        twice = b(p.Mul(), beams, 2)
        flat = b.reshaped(added, b.unsqueezed(n, 0), b.unsqueezed(b(p.Mul(), beams, size), 0))
        ranked, places = b(TopK(1), flat, b.unsqueezed(twice, 0))
        beam = b(p.Div(), places, size)
        word = b(p.Sub(), places, b(p.Mul(), beam, size))
        firsts = b.unsqueezed(b(p.Mul(), b.counted(n), beams), 1)
        row = b(p.Add(), beam, firsts)
        ends = b(p.Equal(), word, self.end)
        made = self._ended(b, state, beams, ranked, row, ends)
        order = b(p.Add(), b.counted(twice), b(p.Mul(), b(p.Cast(I64), ends), twice))
        _, next_ = b(TopK(1, False), order, b.unsqueezed(beams, 0))
        old = b.unsqueezed(state["ended"], 1)
        score, chosen, follows = (
            b(p.Where(), old, nothing, b(GatherElements(1), x, next_))
            for x, nothing in ((ranked, np.array(0, F32)), (word, np.array(self.pad)), (row, np.array(0)))
        )
        made["beam_scores"] = score
        words, rows = (b.reshaped(x, [-1]) for x in (b(p.Cast(I32), chosen), follows))
        return words, rows, made, [added] if self.with_scores else []

    def _ended(self, b: NodeBuilder, state: State, beams: Any, ranked: Value, row: Value, ends: Value) -> State:
        """The best sequences with those of the best candidates that end now, before the end."""
        ending = b(p.And(), cut(b, ends, 1, beams), b(p.Not(), b.unsqueezed(state["ended"], 1)))
        sequences = state["sequences"]
        power = b(p.Pow(), b(p.Cast(F32), count(b, sequences, 1)), b.here(self.penalty))
        score = b(p.Where(), ending, self._by_length(b, cut(b, ranked, 1, beams), power), NONE)
        best = b(Gather(0), sequences, cut(b, row, 1, beams))
        made = self._better(b, state, score, best)
        many = b(ReduceSum(keepdims=False), b(p.Cast(I64), ending), np.array([1]))
        made["found"] = b(p.Min(), b(p.Add(), state["found"], many), beams)
        full = b(p.GreaterOrEqual(), made["found"], beams)
        if not self.early:
            least = b(ReduceMin(keepdims=False), made["best_scores"], np.array([1]))
            full = b(p.And(), full, b(p.GreaterOrEqual(), least, b(p.Div(), self._most(b, ranked, beams), power)))
        made["ended"] = b(p.Or(), state["ended"], full)
        blank = b.expanded(np.array(self.pad, I32), b(Shape(), score), [1])
        made["best"] = b(Concat(2), made["best"], blank)
        return made

    @staticmethod
    def _by_length(b: NodeBuilder, scores: Value, power: Value) -> Value:
        """Scores of sequences, which are more than that of none."""
        return b(p.Max(), b(p.Div(), scores, power), FORBIDDEN)

    @staticmethod
    def _most(b: NodeBuilder, ranked: Value, beams: Any) -> Value:
        """The scores [n] that onnxruntime holds against those of sequences that have ended.

        It takes those of item i from element i * beams on, not from 2 * i * beams: the greatest may be another item's.
        """
        halves = b(ReduceMax(keepdims=False), b.reshaped(ranked, [-1], b.unsqueezed(beams, 0)), np.array([1]))
        n = count(b, ranked, 0)
        return b(p.Max(), cut(b, halves, 0, n), cut(b, b.sliced(halves, 0, 1), 0, n))

    def _better(self, b: NodeBuilder, state: State, score: Value, sequences: Value) -> State:
        """The best of what there was and of other sequences [n, beams, length]; of equals the older."""
        beams = count(b, score, 1)
        both = b(Concat(1), state["best"], sequences)
        kept, place = b(TopK(1), b(Concat(1), state["best_scores"], score), b.unsqueezed(beams, 0))
        items = b.counted(count(b, score, 0))
        row = b(p.Add(), place, b.unsqueezed(b(p.Mul(), items, b(p.Mul(), beams, 2)), 1))
        flat = b.reshaped(both, [-1], b(Shape(2, 3), both))
        return {"best_scores": kept, "best": b(Gather(0), flat, row)}

    def goes_on(self, b: NodeBuilder, state: State) -> Value:
        return b(p.Not(), all_of(b, state["ended"]))

    def finish(self, b: NodeBuilder, state: State, many: Value) -> tuple[Any, Any]:
        """The best sequences [n, many, length] of all, ended or not, and their scores."""
        sequences, shape = state["sequences"], b(Shape(), state["beam_scores"])
        power = b(p.Pow(), b(p.Cast(F32), count(b, sequences, 1)), self.penalty)
        score = self._by_length(b, state["beam_scores"], power)
        score = b(p.Where(), b.unsqueezed(state["ended"], 1), NONE, score)
        made = self._better(b, state, score, b.reshaped(sequences, shape, b.sizes_of(sequences, [1])))
        return cut(b, made["best"], 1, many), cut(b, made["best_scores"], 1, many)
