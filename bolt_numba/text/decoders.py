"""Decoders: graphs from tokens to logits that keep keys and values of earlier positions, by one interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bolt_numba.base.budget import Budget, ask, within
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.huge_pages import give_back, zeros_in_parts
from bolt_numba.base.types import BF16, F16, F32, F64, I64, Array
from bolt_numba.sessions.bound import BoundRun
from bolt_numba.sessions.known import KnownSession

if TYPE_CHECKING:
    from bolt_numba.sessions.session import Session

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
LENGTHS, ROWS, LOGITS = "past_lengths", "rows", "logits"
BRANCH, KEPT_ROWS = "use_cache_branch", "num_logits_to_keep"
PAST, PRESENT = "past_key_values.", "present."
EARLY = 64
"""Tokens of prompts that may run one by one at first."""
FEW_TOKENS = 32
"""Of each sequence, up to which what a run needs is kept for the next of its kind."""
MOST_KEPT = 64
MUCH = 1 << 24
"""Bytes of a slot that are worth giving back."""
HEAD, WIDTH, AXES = 1, 3, 4
"""Of a cache: where its axes of heads and their elements stand, and how many it has."""
FLOATS = (F32, F16, BF16, F64)
"""What logits may be."""
Patterns = Sequence[tuple[str, str]]


class Stretch(NamedTuple):
    """Tokens of one sequence that a run computes.

    slot: its row of the cache.  start: the position of the first token.  wanted: the last tokens whose logits are.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    wanted: int


class Decoder(ABC):
    """A session and the caches of several sequences, each of which has a slot.  context: positions of a sequence."""

    def __init__(self, session: Session, slots: int, context: int, patterns: Patterns = ()) -> None:
        self.session, self.slots, self.context = session, slots, context
        self.inputs = {spec.name: spec for spec in session.inputs}
        outputs = [spec.name for spec in session.outputs]
        self.presents = {name: name.replace(PAST, PRESENT, 1) for name in self.inputs if name.startswith(PAST)}
        if patterns:
            rows = ([one.replace("%d", str(i)) for one in pair] for pair in patterns for i in range(len(self.inputs)))
            self.presents = {past: present for past, present in rows if past in self.inputs}
        wanted = {LOGITS, *self.presents.values()}
        if IDS not in self.inputs or not self.presents or not wanted <= {*outputs}:
            got = f"inputs {[*self.inputs][:8]} and outputs {outputs[:4]}"
            names = f"{IDS}, {PAST}*, and {LOGITS}, {PRESENT}*"
            raise InvalidModelError(f"{session}: got {got}, wanted {names}: a decoder that was exported with its past")
        made = next(spec.dtype for spec in session.outputs if spec.name == LOGITS)
        if made not in FLOATS:
            raise InvalidModelError(f"{session}: {LOGITS}: got {made}, wanted {' or '.join(map(str, FLOATS))}")

    def want_inputs(self, *known: str) -> None:
        """Raises InvalidModelError for an input that the layout does not have."""
        others = [name for name in self.inputs if name not in self.presents and name not in known]
        if others:
            raise InvalidModelError(f"{self.session}: inputs: got {others}, wanted of others only {[*known]}")

    def past(self, name: str) -> tuple[int, int]:
        """Heads and width of a cache.  Raises InvalidModelError where the model does not say them."""
        shape: Any = self.inputs[name].shape or ()
        if len(shape) != AXES or not (isinstance(shape[HEAD], int) and isinstance(shape[WIDTH], int)):
            raise InvalidModelError(f"{self.session}: {name}: got {shape}, wanted [batch, heads, length, width]")
        return shape[HEAD], shape[WIDTH]

    @property
    def vocabulary(self) -> int:
        """Numbers of a row of logits.  Raises InvalidModelError where the model does not say it."""
        size = next((s.shape or (None,))[-1] for s in self.session.outputs if s.name == LOGITS)
        if not isinstance(size, int):
            raise InvalidModelError(f"{self.session}: {LOGITS}: got a last axis of {size}, wanted the size to be said")
        return size

    def piece(self, left: int, most: int) -> int:
        """Tokens that a run takes of so many that are left of a prompt."""
        return min(left, most)

    @abstractmethod
    def run(self, parts: Sequence[Stretch]) -> list[Array]:
        """Compute tokens behind those of their slots, and give logits f32[wanted, vocabulary] of each part.

        They may be written over by the next run.  Raises what a run of the session does.
        """

    @abstractmethod
    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Have these positions of a slot hold what another slot's do."""

    def trim(self, slot: int, end: int) -> None:  # noqa: B027  # a past that grows is as long as it is
        """From this position on nobody reads what a slot holds: much memory may be given back."""


class SharedDecoder(Decoder):
    """A graph that appends to caches where they lie: [slots, heads, room, width], of which a run takes rows.

    Sequences that run together have slots beside each other; a slot between them that does not take part is computed,
    too, behind its tokens.  This is the layout of graphs of GGUF, which takes lengths, and picks rows of the logits.
    """

    def __init__(self, session: Session, slots: int, context: int, patterns: Patterns = ()) -> None:
        super().__init__(session, slots, context, patterns)
        self.want_inputs(IDS, *self.others)
        shapes = {name: (slots, heads, context, width) for name in self.presents for heads, width in [self.past(name)]}
        size = sum(math.prod(shape) * self.inputs[name].dtype.itemsize for name, shape in shapes.items())
        with within(Budget(memory=session.options.memory_limit)):
            ask(size, f"caches: sequences={slots} of context={context}")
        self.caches = {name: zeros_in_parts(shape, self.inputs[name].dtype) for name, shape in shapes.items()}
        self.filled, self.early, self.touched = [0] * slots, EARLY, [0] * slots
        self._kept: dict[tuple[int, int, int, int], _Frame] = {}
        step = self._frame(0, 1, 1, 1).feeds
        session.warmup(**{name: array.shape for name, array in step.items()})  # what is kept for the next process

    others: tuple[str, ...] = (LENGTHS, ROWS)

    def piece(self, left: int, most: int) -> int:
        """The first few run one by one where a process before has left what steps need: the model is read later."""
        if type(self.session) is not KnownSession or left > self.early:
            return super().piece(left, most)
        self.early -= 1
        return 1

    def run(self, parts: Sequence[Stretch]) -> list[Array]:
        slots = [part.slot for part in parts]
        first, length = min(slots), max([len(part.tokens) for part in parts])
        count, rows = max(slots) + 1 - first, list[int]()
        for part in parts:
            end = (part.slot - first) * length + len(part.tokens)
            rows += range(end - part.wanted, end)
        frame = self._frame(first, count, length, len(rows) or 1)
        for slot in range(first, first + count):
            self.filled[slot] = min(self.filled[slot], self.context - length)
        for part in parts:
            frame.ids[part.slot - first, : len(part.tokens)] = part.tokens
            self.filled[part.slot] = part.start
        frame.lengths[:] = self.filled[first : first + count]
        for slot in range(first, first + count):
            self.touched[slot] = max(self.touched[slot], self.filled[slot] + length)
        made = self.logits(frame, rows or [0])
        found, end = [], 0
        for part in parts:
            self.filled[part.slot] = part.start + len(part.tokens)
            found.append(made[end : end + part.wanted])
            end += part.wanted
        return found

    def logits(self, frame: _Frame, rows: Sequence[int]) -> Array:
        """Run, and give these rows of the logits, counted over all sequences."""
        frame.feeds[ROWS][:] = rows
        frame.call()
        return frame.out

    def feeds(self, frame: _Frame, rows: int) -> dict[str, Array]:
        """Inputs beside tokens and caches."""
        return {LENGTHS: frame.lengths, ROWS: np.zeros(rows, I64)}

    def shape(self, count: int, length: int, rows: int) -> tuple[int, ...]:
        """Of the logits."""
        return (rows,)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for cache in self.caches.values():
            cache[target, :, start:end] = cache[source, :, start:end]
        self.filled[target], self.touched[target] = end, max(self.touched[target], end)

    def trim(self, slot: int, end: int) -> None:
        a_position = sum(cache[slot, :, 0].nbytes for cache in self.caches.values())
        if (self.touched[slot] - end) * a_position < MUCH:
            return
        for cache in self.caches.values():
            for head in cache[slot]:
                give_back(head[end : self.touched[slot]])
        self.touched[slot] = end

    def _frame(self, first: int, count: int, length: int, rows: int) -> _Frame:
        key = (first, count, length, rows)
        found = self._kept.get(key)
        if found is None:
            found = _Frame(self, *key)
            if length <= FEW_TOKENS:
                self._kept[key] = found
                for old in [*self._kept][:-MOST_KEPT]:
                    del self._kept[old]
        return found


class _Frame:
    """What a run over so many slots and tokens reads and writes, which the next run of its kind has again."""

    def __init__(self, decoder: SharedDecoder, first: int, count: int, length: int, rows: int) -> None:
        self.ids = np.zeros((count, length), decoder.inputs[IDS].dtype)
        self.lengths = np.zeros(count, np.int32)
        caches = {name: cache[first : first + count] for name, cache in decoder.caches.items()}
        self.feeds = {IDS: self.ids, **decoder.feeds(self, rows), **caches}
        spec = next(spec for spec in decoder.session.outputs if spec.name == LOGITS)
        self.out = np.empty((*decoder.shape(count, length, rows), decoder.vocabulary), spec.dtype)
        outputs = {LOGITS: self.out} | {decoder.presents[name]: cache for name, cache in caches.items()}
        self.call = BoundRun(decoder.session, self.feeds, outputs)


class MaskedDecoder(SharedDecoder):
    """A graph of onnxruntime-genai: its mask says which positions of the caches are valid, and all logits are given.

    The mask is as wide as the caches, so that runs of one token have one shape.
    """

    others = (MASK, POSITIONS)

    def logits(self, frame: _Frame, rows: Sequence[int]) -> Array:
        count, length = frame.ids.shape
        ends = frame.lengths[:, None] + length
        np.less(np.arange(self.context), ends, out=frame.feeds[MASK], casting="unsafe")
        if POSITIONS in frame.feeds:
            frame.feeds[POSITIONS][...] = ends - np.arange(length, 0, -1)
        frame.call()
        return frame.out.reshape(count * length, -1)[rows].astype(F32, copy=False)

    def feeds(self, frame: _Frame, rows: int) -> dict[str, Array]:
        made = {MASK: np.zeros((len(frame.ids), self.context), self.inputs[MASK].dtype)}
        if POSITIONS in self.inputs:
            made[POSITIONS] = np.zeros(frame.ids.shape, self.inputs[POSITIONS].dtype)
        return made

    def shape(self, count: int, length: int, rows: int) -> tuple[int, ...]:
        return count, length


class GrowingDecoder(Decoder):
    """A graph of Optimum: a run gives a new, longer past; sequences run one by one.

    The first run of a merged graph takes the branch without a past.
    """

    def __init__(self, session: Session, slots: int, context: int, patterns: Patterns = ()) -> None:
        super().__init__(session, slots, context, patterns)
        self.want_inputs(IDS, MASK, POSITIONS, BRANCH, KEPT_ROWS)
        self.pasts = [{name: self._empty(name) for name in self.presents}] * slots

    def _empty(self, name: str) -> Array:
        heads, width = self.past(name)
        return np.zeros((1, heads, 0, width), self.inputs[name].dtype)

    def run(self, parts: Sequence[Stretch]) -> list[Array]:
        return [self._one(part) for part in parts]

    def _one(self, part: Stretch) -> Array:
        end = part.start + len(part.tokens)
        given: dict[str, Any] = {
            IDS: [part.tokens], MASK: np.ones((1, end)), POSITIONS: [np.arange(part.start, end)],
            BRANCH: [part.start > 0], KEPT_ROWS: max(part.wanted, 1),
        }  # fmt: skip
        feeds = {name: np.array(value, self.inputs[name].dtype) for name, value in given.items() if name in self.inputs}
        past = self.pasts[part.slot]
        feeds |= {name: array[:, :, : part.start] for name, array in past.items()}
        made = self.session(feeds)
        self.pasts[part.slot] = {name: made[present] for name, present in self.presents.items()}
        rows = made[LOGITS][0]
        return np.asarray(rows[len(rows) - part.wanted :], F32)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self.pasts[target] = {name: array[:, :, :end] for name, array in self.pasts[source].items()}


def decoder_of(session: Session, slots: int, context: int, patterns: Patterns = ()) -> Decoder:
    """A decoder of the layout that a model's inputs tell.

    patterns: names of caches that go in and out, in which %d is the number of a layer; (): they begin as usual.
    Raises InvalidModelError for a model of no layout, BudgetError for caches that are too large.
    """
    names = {spec.name for spec in session.inputs}
    if LENGTHS in names:
        return SharedDecoder(session, slots, context)
    is_shared = BRANCH not in names and any(node.op.name == "GroupQueryAttention" for node in session.graph.nodes)
    return (MaskedDecoder if is_shared else GrowingDecoder)(session, slots, context, patterns)
