"""Sequences under way, stepped together by one thread: they come and leave between steps, and share beginnings."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container, Sequence
from typing import Protocol

import numpy as np

from bolt_numba.base.border import as_bolt_error
from bolt_numba.base.errors import BoltError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import Array
from bolt_numba.text.answers import CANCELLED, LENGTH, STOP, Answer, TextPiece
from bolt_numba.text.decoders import Decoder, Stretch
from bolt_numba.text.sampling import Likely, Sampler, logprobs
from bolt_numba.text.spelling import Speller

PIECE = 256
"""Tokens of a prompt that are computed at once, between which others step."""
MOST_ROWS = 16
"""Tokens of a step of all sequences with guesses: so many cost hardly more than one."""


class Guesses(Protocol):
    """Guesses the next tokens of a sequence; each that the model makes itself saves a step."""

    def guess(self, slot: int, tokens: Sequence[int], count: int) -> Sequence[int]:
        """At most so many tokens behind those of a slot."""
        ...


class Writing:
    """One sequence: its tokens so far, and what is done with another."""

    def __init__(self, answer: Answer, prompt: Sequence[int], most: int, chooser: Sampler, speller: Speller) -> None:
        self.answer, self.tokens, self.most = answer, [*prompt], most
        self.chooser, self.speller = chooser, speller
        self.likely = chooser.settings.logprobs
        self.slot, self.done, self.guessed = -1, 0, list[int]()
        self.is_scored = False
        self.is_anew = chooser.settings.seed is not None
        """Whether nothing is taken from a cache: prompts and steps round otherwise, and a seed shall decide alone."""

    def scores(self, logits: Array, start: int) -> None:
        """See the logits behind tokens of the prompt; only where ``is_scored``."""

    def take(self, logits: Array, ends: Container[int]) -> bool:
        """Choose a token; whether the text goes on."""
        token = self.chooser(logits)
        self.tokens.append(token)
        self.most -= 1
        found = () if self.likely is None else (self._likely(logits, token),)
        grammar, text, reason = self.chooser.grammar, "", None
        if token in ends:
            reason = STOP
        else:
            text = self.speller.add(token)
            if grammar is not None:
                grammar.take(token)
            if self.speller.is_stopped or (grammar is not None and grammar.is_done):
                reason = STOP
            elif self.most <= 0:
                reason = LENGTH
        if reason is not None:
            text += self.speller.end()
        self.answer.add(TextPiece(text, (token,), found, reason))
        return reason is None

    def _likely(self, logits: Array, token: int) -> Likely:
        rows, count = logprobs(logits), self.likely or 0
        best = np.argsort(-rows, kind="stable")[:count] if count else ()
        others = tuple((int(one), self.speller.spelled(int(one)), float(rows[one])) for one in best)
        return Likely(token, self.speller.spelled(token), float(rows[token]), others)


class Batch:
    """The sequences of one decoder.  ends: tokens behind which a text has ended.  ahead: tokens to guess in a step."""

    def __init__(self, decoder: Decoder, ends: Sequence[int], guesses: Guesses | None = None, ahead: int = 0) -> None:
        self.decoder, self.ends, self.guesses, self.ahead = decoder, frozenset(ends), guesses, ahead
        self.kept: list[list[int]] = [[] for _ in range(decoder.slots)]
        """Tokens whose keys and values are in each slot; those of a sequence under way are its own, up to ``done``."""
        self.waiting: deque[Writing] = deque()
        self.active: list[Writing] = []
        self.used = [0] * decoder.slots
        self.clock = 0
        self.lock = threading.Lock()
        renew_after_fork(self, "lock", threading.Lock)
        self.thread: threading.Thread | None = None

    def add(self, writing: Writing) -> None:
        """Have a sequence made, from the next step on in which there is a slot."""
        with self.lock:
            if self.thread is not None and not self.thread.is_alive():  # a child of fork: the thread is not here
                self.thread, self.active = None, []
                self.waiting.clear()
            self.waiting.append(writing)
            if self.thread is None:  # it lives for as long as there is something to do
                self.thread = threading.Thread(target=self._work, name="bolt-numba text", daemon=True)
                self.thread.start()

    def _work(self) -> None:
        try:
            while True:
                with self.lock:
                    self._admit()
                    if not self.active:
                        self.thread = None
                        return
                self._turn()
        except BaseException as error:  # nobody waits for ever
            told = as_bolt_error(error, "generate") if isinstance(error, Exception) else error
            with self.lock:
                left, self.active, self.thread = [*self.active, *self.waiting], [], None
                self.waiting.clear()
            for each in left:
                each.answer.fail(told)
            raise

    def _admit(self) -> None:
        for writing in [each for each in self.waiting if each.answer.is_cancelled]:  # their prompts take memory
            self.waiting.remove(writing)
            writing.answer.add(TextPiece("", finish_reason=CANCELLED))
        free = [*{*range(self.decoder.slots)} - {each.slot for each in self.active}]
        while free and self.waiting:
            writing = self.waiting.popleft()
            begin = [] if writing.is_anew else writing.tokens[:-1]
            slot = max(free, key=lambda s: (_common(self.kept[s], begin), -self.used[s]))
            free.remove(slot)
            self._begin(writing, slot, begin)
            self.active.append(writing)

    def _begin(self, writing: Writing, slot: int, begin: Sequence[int]) -> None:
        """Give a sequence a slot; what another slot has of its first tokens is copied rather than computed."""
        writing.slot, writing.done = slot, _common(self.kept[slot], begin)
        held = {each.slot: each.tokens[: each.done] for each in self.active}
        others = {s: _common(held.get(s, self.kept[s]), begin) for s in range(self.decoder.slots) if s != slot}
        source = max(others, key=lambda s: others[s], default=slot)
        if source != slot and others[source] > writing.done:
            self.decoder.copy(source, slot, writing.done, others[source])
            writing.done = others[source]
        writing.answer.reused_tokens = writing.done
        self.kept[slot] = []

    def _turn(self) -> None:
        """A piece of one prompt, then a step of all others."""
        for writing in [each for each in self.active if each.answer.is_cancelled]:
            writing.answer.add(TextPiece(writing.speller.end(), finish_reason=CANCELLED))
            self._leave(writing)
        prompts = [each for each in self.active if len(each.tokens) - each.done > 1]
        steps = [each for each in self.active if len(each.tokens) - each.done == 1]
        try:
            if prompts:
                self._prefill(prompts[0])
                self.active.append(self.active.pop(self.active.index(prompts[0])))  # the next one's turn
        except Exception as error:
            self._fail(prompts[:1], error)
        try:
            if steps:
                self._step(steps)
        except Exception as error:
            self._fail(steps, error)

    def _prefill(self, writing: Writing) -> None:
        start = writing.done
        count = PIECE if writing.is_anew else self.decoder.piece(len(writing.tokens) - start, PIECE)
        tokens = writing.tokens[start : start + count]
        is_last = start + len(tokens) == len(writing.tokens)
        wanted = len(tokens) if writing.is_scored else int(is_last)
        (logits,) = self.decoder.run([Stretch(writing.slot, start, tokens, wanted)])
        writing.done += len(tokens)
        if writing.is_scored:
            writing.scores(logits, start)
        if is_last and not writing.take(logits[-1], self.ends):
            self._leave(writing)

    def _step(self, steps: Sequence[Writing]) -> None:
        """The next token of each sequence, and those that were guessed right behind it."""
        ahead = min([self.ahead, MOST_ROWS // len(steps) - 1, *(self._room(each) for each in self.active)])
        for each in steps:
            count = min(ahead, each.most - 1)
            each.guessed = [*self.guesses.guess(each.slot, each.tokens, count)] if self.guesses and count > 0 else []
        parts = [Stretch(w.slot, w.done, [w.tokens[-1], *w.guessed], 1 + len(w.guessed)) for w in steps]
        made = self.decoder.run(parts)
        busy, most = {each.slot for each in self.active}, self.decoder.context - max(len(part.tokens) for part in parts)
        for slot in [s for s, kept in enumerate(self.kept) if s not in busy and len(kept) > most]:
            del self.kept[slot][most:]  # what a run writes to a slot between others
        for writing, logits in zip(steps, made, strict=True):
            try:
                self._take(writing, logits)
            except Exception as error:
                self._fail([writing], error)

    def _take(self, writing: Writing, logits: Array) -> None:
        """Choose tokens for as long as those that were guessed are chosen."""
        for row, guess in zip(logits, [*writing.guessed, None], strict=True):
            writing.done += 1
            if not writing.take(row, self.ends):
                self._leave(writing)
                return
            if writing.tokens[-1] != guess:
                return

    def _room(self, writing: Writing) -> int:
        """Positions of a slot behind its next one."""
        return self.decoder.context - writing.done - 1

    def _leave(self, writing: Writing) -> None:
        self.clock += 1
        self.used[writing.slot] = self.clock
        with self.lock:
            self.kept[writing.slot] = writing.tokens[: writing.done]
            self.active.remove(writing)

    def _fail(self, writings: Sequence[Writing], error: Exception) -> None:
        told: BoltError = as_bolt_error(error, "generate")
        for each in writings:
            if each in self.active:
                each.done = 0  # nobody knows what is in the cache
                self._leave(each)
                each.answer.fail(told)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    if one[: len(other)] == other[: len(one)]:
        return min(len(one), len(other))
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
