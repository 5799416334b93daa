"""Sequences under way, stepped together by one thread: they come and leave between steps, and share beginnings."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Sequence

from bolt_numba.base.border import as_bolt_error
from bolt_numba.base.errors import BoltError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import Array
from bolt_numba.text.answers import CANCELLED, LENGTH, STOP, Answer, TextPiece
from bolt_numba.text.decoders import Decoder, Stretch
from bolt_numba.text.sampling import Likely, Sampler, greatest, logprobs
from bolt_numba.text.spelling import Speller

PIECE = 256
"""Tokens of a prompt that are computed at once, between which others step."""
MOST_ROWS = 16
"""Tokens of a step of all sequences with guesses: so many cost hardly more than one."""
Guess = Callable[[int, Sequence[int], int], Sequence[int]]
"""Guesses tokens behind those of a slot, at most so many; each that the model makes itself saves a step."""


class Writing:
    """One sequence: its tokens so far, and what is done with another.

    mates: sequences of one answer, itself among them, each with a slot, which come and leave together.
    """

    def __init__(self, answer: Answer, prompt: Sequence[int], most: int, chooser: Sampler, speller: Speller) -> None:
        self.answer, self.tokens, self.most = answer, [*prompt], most
        self.chooser, self.speller = chooser, speller
        self.likely = chooser.settings.logprobs
        self.slot, self.done, self.guessed, self.mates = -1, 0, list[int](), [self]
        self.is_anew = chooser.settings.seed is not None
        """Whether nothing is taken from a cache: prompts and steps round otherwise, and a seed shall decide alone."""

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
        best = greatest(rows, min(count, len(rows))).tolist() if count else ()
        others = tuple((one, self.speller.spelled(one), float(rows[one])) for one in best)
        return Likely(token, self.speller.spelled(token), float(rows[token]), others)


class Batch:
    """The sequences of one decoder.  ends: tokens behind which a text has ended.  ahead: tokens to guess in a step."""

    def __init__(self, decoder: Decoder, ends: Sequence[int], guess: Guess | None = None, ahead: int = 0) -> None:
        self.decoder, self.ends, self.guess, self.ahead = decoder, frozenset(ends), guess, ahead
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
            if self.thread is not None and not self.thread.is_alive():  # a child of fork, which leaves it to its parent
                self.thread, self.active = None, []
                self.waiting.clear()
            if self.thread is None:  # it lives for as long as there is something to do
                thread = threading.Thread(target=self._work, name="bolt-numba text", daemon=True)
                thread.start()
                self.thread = thread
            self.waiting.append(writing)

    def close(self) -> None:
        """Have what is under way end, and wait for it."""
        with self.lock:
            for writing in [*self.waiting, *self.active]:
                writing.answer.cancel()
            thread = self.thread
        if thread is not None:
            thread.join()

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
        free = sorted({*range(self.decoder.slots)} - {each.slot for each in self.active})
        while self.waiting and len(free) >= len(self.waiting[0].mates):
            writing = self.waiting.popleft()
            begin = [] if writing.is_anew else writing.tokens[:-1]
            slot = max(free, key=lambda s: (common(self.kept[s], begin), -self.used[s]))
            free.remove(slot)
            for mate in writing.mates[1:]:
                mate.slot = free.pop(0)
                self.kept[mate.slot] = []
            self.active += writing.mates
            self._begin(writing, slot, begin)

    def _begin(self, writing: Writing, slot: int, begin: Sequence[int]) -> None:
        """Give a sequence a slot; what another slot has of its first tokens is copied rather than computed."""
        writing.slot, writing.done = slot, common(self.kept[slot], begin)
        held = {each.slot: each.tokens[: each.done] for each in self.active}
        others = {s: common(held.get(s, self.kept[s]), begin) for s in range(self.decoder.slots) if s != slot}
        source = max(others, key=lambda s: others[s], default=slot)
        if source != slot and others[source] > writing.done:
            self.decoder.copy(source, slot, writing.done, others[source])
            writing.done = others[source]
        writing.answer.reused_tokens = writing.done
        self.kept[slot] = []

    def _turn(self) -> None:
        """A piece of one prompt, then a step of all others."""
        for writing in [each for each in self.active if each.answer.is_cancelled and each is each.mates[0]]:
            writing.answer.add(TextPiece(writing.speller.end(), finish_reason=CANCELLED))
            self._leave(writing)
        prompts = [each for each in self.active if len(each.tokens) - each.done > 1][:1]
        steps = [each for each in self.active if len(each.tokens) - each.done == 1]
        self.active = [*(each for each in self.active if each not in prompts), *prompts]  # the next one's turn
        for run, writings in ((self._prefill, prompts), (self._step, steps)):
            try:
                if writings:
                    run(writings)
            except Exception as error:
                self._fail(writings, error)

    def _prefill(self, prompts: Sequence[Writing]) -> None:
        writing, start = prompts[0], prompts[0].done
        count = PIECE if writing.is_anew else self.decoder.piece(len(writing.tokens) - start, PIECE)
        tokens = writing.tokens[start : start + count]
        is_last = start + len(tokens) == len(writing.tokens)
        (logits,) = self.decoder.run([Stretch(writing.slot, start, tokens, int(is_last))])
        writing.done += len(tokens)
        if is_last and not writing.take(logits[-1], self.ends):
            self._leave(writing)

    def _step(self, steps: Sequence[Writing]) -> None:
        """The next token of each sequence, and those that were guessed right behind it."""
        ahead = min([self.ahead, MOST_ROWS // len(steps) - 1, *(self._room(each) for each in self.active)])
        for each in steps:
            count = min(ahead, each.most - 1)
            each.guessed = [*self.guess(each.slot, each.tokens, count)] if self.guess and count > 0 else []
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
        for each in writing.mates:
            self.used[each.slot] = self.clock
            self.kept[each.slot] = each.tokens[: each.done]
            self.decoder.trim(each.slot, each.done)
            self.active.remove(each)

    def _fail(self, writings: Sequence[Writing], error: Exception) -> None:
        told: BoltError = as_bolt_error(error, "generate")
        for each in writings:
            if each in self.active:
                for mate in each.mates:
                    mate.done = 0  # nobody knows what is in the cache
                self._leave(each)
                each.answer.fail(told)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    if one[: len(other)] == other[: len(one)]:
        return min(len(one), len(other))
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
