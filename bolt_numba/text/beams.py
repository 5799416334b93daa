"""Beam search: of the texts that begin alike the few likeliest are kept, token by token, as transformers does it."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bolt_numba.base.errors import DataError, OptionError
from bolt_numba.base.options import count_of, not_among, want_number
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.text.answers import STOP, Answer, TextPiece
from bolt_numba.text.batching import Writing, common
from bolt_numba.text.decoders import Decoder
from bolt_numba.text.sampling import Sampler, greatest, logprobs
from bolt_numba.text.spelling import Speller

NEVER = "never"
MOST_BEAMS, MOST_PENALTY = 64, 10.0


def is_token(given: Any) -> bool:
    """Whether it is a number that may stand for one."""
    return type(given) is int and 0 <= given <= np.iinfo(np.int32).max


@record(frozen=True)
class BeamSettings:
    """How a text is searched for; raises OptionError for a value that cannot be.

    max_tokens: of a text.  num_beams: texts that are kept; 1: the likeliest token each time.  length_penalty: the power
    of the length by which the logarithm of a text's probability is divided.  early_stopping: True: end when so many
    texts have ended; False: when those under way are no likelier at their length; "never": when none can become so.
    no_repeat_ngram_size: so many tokens do not follow each other twice; 0: they may.  min_tokens: none ends before.
    never, at_first: tokens that are not chosen, at all or as the first.  begin_with, end_with: the first token, and the
    last where nothing else ends a text; None: any.  times: tokens from this one on are times, one at the begin and two
    between parts, which do not go back; None: there are none.  latest: of them, that the first may be at most.
    """

    max_tokens: int = 256
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    no_repeat_ngram_size: int = 0
    min_tokens: int = 0
    never: Sequence[int] = ()
    at_first: Sequence[int] = ()
    begin_with: int | None = None
    end_with: int | None = None
    times: int | None = None
    latest: int | None = None

    def __post_init__(self) -> None:
        count_of("max_tokens", self.max_tokens)
        if count_of("num_beams", self.num_beams) > MOST_BEAMS:
            raise OptionError(f"num_beams: got {self.num_beams}, wanted at most {MOST_BEAMS}")
        want_number("length_penalty", self.length_penalty, -MOST_PENALTY, MOST_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != NEVER:
            raise OptionError(f"early_stopping: got {self.early_stopping!r:.80}, wanted True, False or {NEVER!r}")
        for name in ("no_repeat_ngram_size", "min_tokens"):
            count_of(name, getattr(self, name), 0)
        lone = [one for one in (self.begin_with, self.end_with, self.times, self.latest) if one is not None]
        lists: Any = (self.never, self.at_first)
        if not (odd := [one for one in lists if not isinstance(one, Sequence)]):
            odd = [one for one in (*self.never, *self.at_first, *lone) if not is_token(one)]
        if odd:
            raise OptionError(f"never, at_first, begin_with, end_with, times: got {odd[0]!r:.80}, wanted tokens")

    def bound(self, scores: Array, tokens: Sequence[int], first: int, ends: frozenset[int]) -> None:
        """Put what may not follow these tokens out of reach.  first: how many of them the text was begun with."""
        made = len(tokens) - first
        lone = (self.begin_with or 0, self.end_with or 0, self.times or 0)
        if max(*self.never, *self.at_first, *ends, *lone) >= len(scores):
            raise OptionError(f"never, at_first, begin_with, end_with: got more, wanted tokens below {len(scores)}")
        forced = self.begin_with if made == 0 else self.end_with if made == self.max_tokens - 1 else None
        size = self.no_repeat_ngram_size
        if size and len(tokens) >= size:
            last = [*tokens[len(tokens) + 1 - size :]]
            starts = range(len(tokens) + 1 - size)
            scores[[tokens[i + size - 1] for i in starts if [*tokens[i : i + size - 1]] == last]] = -math.inf
        if made < self.min_tokens:
            scores[[*ends]] = -math.inf
        if forced is not None:
            scores[:] = -math.inf
            scores[forced] = 0.0
        begins = made == (self.begin_with is not None)
        scores[[*self.never, *(self.at_first if begins else ())]] = -math.inf
        if self.times is not None:
            self._bound_times(scores, tokens[first:], self.times, min(ends, default=0))

    def _bound_times(self, scores: Array, made: Sequence[int], first: int, end: int) -> None:
        """As Whisper was trained: times begin and end parts, and come where they are likelier than any word."""
        scores[first - 1] = -math.inf  # a text with times was not asked for
        times = [token for token in made if token >= first]
        is_time, was_time = (len(made) < n or made[-n] >= first for n in (1, 2))
        if not made:
            scores[:first] = -math.inf
            scores[len(scores) if self.latest is None else first + self.latest + 1 :] = -math.inf
        elif is_time:
            scores[slice(first, None) if was_time else slice(0, end)] = -math.inf
        if times:
            scores[first : times[-1] + (was_time or not is_time)] = -math.inf
        if np.logaddexp.reduce(scores[first:]) > scores[:first].max(initial=-math.inf):
            scores[:first] = -math.inf


def beam_settings(given: Mapping[str, Any]) -> BeamSettings:
    """Settings by their names.  Raises OptionError for a name that there is not, and as `BeamSettings`."""
    if unknown := given.keys() - vars(_USUAL).keys():
        raise OptionError(not_among("settings", sorted(unknown), [*vars(_USUAL)]))
    return BeamSettings(**given)


_USUAL = BeamSettings()


class TranslatedText(NamedTuple):
    """A text, its tokens, and the score by which the search preferred it."""

    text: str
    tokens: list[int]
    score: float


class BeamSearch:
    """The search for one text.

    begin: tokens before the first that is searched for.  ends: tokens that end a text.
    tokens: of the texts under way, f64 scores of them; only the first counts at first.  found: texts that have ended,
    the likeliest first, with their scores.
    """

    def __init__(self, settings: BeamSettings, begin: Sequence[int], ends: Sequence[int]) -> None:
        self.settings, self.first, self.ends = settings, len(begin), frozenset(ends)
        self.tokens: list[list[int]] = [[*begin]]
        self.scores = np.zeros(1)
        self.found: list[tuple[float, list[int]]] = []
        self.is_done = False

    def step(self, logits: Array) -> list[int]:
        """Take logits f32[texts under way, vocabulary], and give which of them each text goes on from now.

        Raises DataError for what is no number.
        """
        settings, count, made = self.settings, self.settings.num_beams, len(self.tokens[0]) - self.first + 1
        rows = logprobs(logits)
        for row, tokens in zip(rows, self.tokens, strict=True):
            settings.bound(row, tokens, self.first, self.ends)
        flat = (rows + self.scores[:, None]).reshape(-1)
        if np.isnan(flat.max()):
            raise DataError("logits: got what is no number, wanted numbers")
        kept = min(count * max(2, 1 + len(self.ends)), flat.size) if count > 1 else 1
        under_way, ended = list[tuple[float, int, int]](), list[tuple[float, list[int]]]()
        for place, at in enumerate(greatest(flat, kept).tolist()):
            score, (source, token) = float(flat[at]), divmod(at, rows.shape[1])
            if score == -math.inf:
                break
            if token not in self.ends and made < settings.max_tokens:
                under_way.append((score, source, token))
            elif place < count:
                ended.append((score / made**settings.length_penalty, [*self.tokens[source], token]))
        if not (settings.early_stopping is True and len(self.found) == count):
            self.found = sorted([*self.found, *ended], key=lambda row: -row[0])[:count]
        under_way = under_way[:count]
        self.is_done = not under_way or (len(self.found) == count and not self._may_improve(under_way[0][0], made))
        if self.is_done:
            return []
        self.tokens = [[*self.tokens[source], token] for _, source, token in under_way]
        self.scores = np.array([score for score, _, _ in under_way])
        return [source for _, source, _ in under_way]

    def _may_improve(self, best: float, made: int) -> bool:
        """Whether a text under way may become likelier than the least of those that have ended."""
        settings = self.settings
        if settings.early_stopping is True or settings.num_beams == 1:
            return False
        is_longest = settings.early_stopping == NEVER and settings.length_penalty > 0
        length: int = settings.max_tokens if is_longest else made
        return bool(best / length**settings.length_penalty > self.found[-1][0])

    def results(self) -> list[tuple[float, list[int]]]:
        """Texts without what they began with, and their scores, the likeliest first."""
        found = self.found or [(float(self.scores[0]), self.tokens[0])]
        return [(score, tokens[self.first :]) for score, tokens in sorted(found, key=lambda row: -row[0])]


class Beam(Writing):
    """One of the texts among which a search looks for the likeliest.

    Their slots are filled by the first one's prompt, and change hands as texts go on from others.
    """

    def __init__(
        self, search: BeamSearch, decoder: Decoder, tokens: Sequence[int], answer: Answer, chooser: Sampler,
        speller: Speller,
    ) -> None:  # fmt: skip
        super().__init__(answer, tokens, 1, chooser, speller)
        self.search, self.decoder, self.logits = search, decoder, np.zeros(0)

    def take(self, logits: Array, ends: Container[int]) -> bool:
        """Have the search go on once all texts have theirs."""
        self.logits = logits
        texts = [each for each in self.mates if isinstance(each, Beam) and each.tokens]
        if not all(len(each.logits) for each in texts):
            return True
        sources = self.search.step(np.stack([each.logits for each in texts]))
        for each in texts:
            each.logits = np.zeros(0)
        if self.search.is_done:
            self.answer.add(TextPiece("", finish_reason=STOP))
        else:
            self._share([texts[source] for source in sources])
        return not self.search.is_done

    def _share(self, sources: Sequence[Writing]) -> None:
        """Have the texts go on from these: a slot stays with one, and what others lack is copied."""
        done, held = self.done, {each.slot: each.tokens[: self.done] for each in self.mates}
        free, slots = [slot for slot in held if slot not in {each.slot for each in sources}], list[int]()
        for slot in [each.slot for each in sources]:
            slots.append(slot if slot not in slots else free.pop())
            if slots[-1] != slot:
                self.decoder.copy(slot, slots[-1], common(held[slots[-1]], held[slot]), done)
        for i, each in enumerate(self.mates):
            is_in = i < len(slots)
            each.slot, each.tokens = [*slots, *free][i], self.search.tokens[i] if is_in else []
            each.done = done if is_in else 0
