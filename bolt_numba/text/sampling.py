"""How the next token is chosen from logits, and how likely tokens were."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from reprlib import repr as shortly
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bolt_numba.base.errors import DataError, OptionError
from bolt_numba.base.options import count_of, want_number
from bolt_numba.base.records import record
from bolt_numba.base.types import Array

if TYPE_CHECKING:
    from bolt_numba.text.grammars import Grammar

FEW_LIKELY = 1024
"""Likely tokens among which top-p mostly finds enough."""
MOST_STOPS, MOST_LOGPROBS, LONGEST_STOP, MOST_BIAS = 16, 100, 1 << 10, 100


class Likely(NamedTuple):
    """A token, its text, and the logarithm of its probability by the model itself; others: the likeliest."""

    token: int
    text: str
    logprob: float
    others: tuple[tuple[int, str, float], ...] = ()


@record(frozen=True)
class Sampling:
    """How a text is made; raises OptionError for a value that cannot be.

    max_tokens: None: as many as the context takes.  min_tokens: before which no end token comes.
    temperature: 0: the likeliest token each time, which is greedy.  top_k: of so many of the likeliest; 0: of all.
    top_p: of the likeliest that together have this probability.  min_p: of those that have at least this share of the
    likeliest's.
    repetition_penalty: what logits of tokens that were there are divided by.  frequency_penalty, presence_penalty:
    what is taken from logits of the answer's tokens, for each time that they came, and once.
    logit_bias: by token, what is added to its logit.  seed: the same gives the same text, whatever ran or runs; None:
    another each time.
    stop: texts that end it, and are not part of it.  logprobs: how likely each token was, beside so many of the
    likeliest; None: not.
    special_tokens: whether the text shows them.
    json_schema: what the text shall be, as an object or text; {}: any JSON.  grammar: in Lark's form, what else it
    shall be.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = MappingProxyType({})
    seed: int | None = None
    stop: str | Sequence[str] = ()
    logprobs: int | None = None
    special_tokens: bool = False
    json_schema: Mapping[str, Any] | str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            want_number(name, getattr(self, name), least, most)
        for name, least in (("max_tokens", 1), ("seed", 0), ("logprobs", 0), ("top_k", 0), ("min_tokens", 0)):
            if getattr(self, name) is not None or name in ("top_k", "min_tokens"):
                count_of(name, getattr(self, name), least)
        bias: Any = self.logit_bias
        if not isinstance(bias, Mapping) or not all(
            type(one) is int and one >= 0 and isinstance(by, (int, float)) and -MOST_BIAS <= by <= MOST_BIAS
            for one, by in bias.items()
        ):
            wanted = f"wanted numbers from -{MOST_BIAS} to {MOST_BIAS} by tokens"
            raise OptionError(f"logit_bias: got {shortly(bias)}, {wanted}")
        if self.logprobs is not None and self.logprobs > MOST_LOGPROBS:
            raise OptionError(f"logprobs: got {self.logprobs}, wanted at most {MOST_LOGPROBS}")
        stops: Sequence[Any] = self.stops if isinstance(self.stop, (str, list, tuple)) else (None,)
        if not all(isinstance(one, str) and 0 < len(one) <= LONGEST_STOP for one in stops) or len(stops) > MOST_STOPS:
            wanted = f"wanted at most {MOST_STOPS} texts of up to {LONGEST_STOP} letters"
            raise OptionError(f"stop: got {shortly(self.stop)}, {wanted}")
        if self.json_schema is not None and self.grammar is not None:
            raise OptionError("grammar: got one and a json_schema, wanted one of the two")

    @property
    def stops(self) -> Sequence[str]:
        """The texts that end it, as several."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop


_RANGES = (
    ("temperature", 0.0, 100.0), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0), ("repetition_penalty", 0.01, 100.0),
    ("frequency_penalty", -2.0, 2.0), ("presence_penalty", -2.0, 2.0),
)  # fmt: skip
"""Settings that are numbers, with the least and the greatest."""


class Sampler:
    """Chooses the tokens of one text.  grammar: what they have to follow.  ends: tokens that end it."""

    def __init__(
        self, settings: Sampling, prompt: Sequence[int], grammar: Grammar | None = None, ends: Sequence[int] = ()
    ) -> None:
        self.settings, self.grammar, self.ends = settings, grammar, [*ends]
        self.early = 0 if grammar is not None else settings.min_tokens
        """Tokens before which none ends the text; a grammar says by itself where it may end."""
        self.biased, self.bias = [*settings.logit_bias], np.array([*settings.logit_bias.values()], np.float32)
        self.random = np.random.default_rng(settings.seed) if settings.temperature > 0 else None
        self.seen = {*prompt} if settings.repetition_penalty != 1 else set()
        self.made = Counter[int]()
        self.last = max([*self.biased, *self.seen, *(self.ends if self.early else ())], default=0)

    def __call__(self, logits: Array) -> int:
        """The next token, of f32[vocabulary].  Raises DataError for logits that are no numbers."""
        settings = self.settings
        if self.seen or self.made or self.biased or self.early or self.grammar is not None:
            if self.last >= len(logits):
                raise DataError(f"logits: got {len(logits)} of them, wanted one for each token up to {self.last}")
            logits = logits.copy()
            logits[self.biased] += self.bias
            if self.made:
                places, counts = (np.array([*of]) for of in (self.made.keys(), self.made.values()))
                logits[places] -= settings.frequency_penalty * counts + settings.presence_penalty
            if self.seen:
                places = np.fromiter(self.seen, np.int64)
                found, penalty = logits[places], np.float32(settings.repetition_penalty)
                logits[places] = np.where(found > 0, found / penalty, found * penalty)
            if self.early:
                self.early -= 1
                logits[self.ends] = -math.inf
            if self.grammar is not None:
                self.grammar.mask(logits)
        token = int(logits.argmax())
        if not math.isfinite(logits[token]):
            raise DataError(f"logits: got {logits[token]}, wanted numbers")
        if self.random is not None:
            token = self._drawn(logits, float(logits[token]))
        if settings.repetition_penalty != 1:
            self.seen.add(token)
        if settings.frequency_penalty or settings.presence_penalty:
            self.made[token] += 1
        return token

    def _drawn(self, logits: Array, most: float) -> int:
        """A token by its probability, of those that the settings leave."""
        settings, size = self.settings, len(logits)
        assert self.random is not None
        with np.errstate(over="ignore"):  # at temperatures near 0
            weights = np.exp((logits.astype(np.float64) - most) / settings.temperature)
        kept = min(settings.top_k or size, size)
        whole, places = weights.sum(), np.arange(size)
        if kept < size:
            places = np.sort(np.argpartition(weights, size - kept)[size - kept :])
            whole = weights[places].sum()
        if settings.top_p < 1:
            places = _likeliest(weights, places, settings.top_p * whole)
        if settings.min_p > 0:
            places = places[weights[places] >= settings.min_p]
        sums = np.cumsum(weights[places])
        return int(places[min(np.searchsorted(sums, self.random.random() * sums[-1], "right"), len(places) - 1)])


def _likeliest(weights: Array, places: Array, wanted: float) -> Array:
    """The fewest places whose weights together are as much as wanted, the likeliest first; at least one."""
    own = weights[places]
    for count in (min(FEW_LIKELY, len(own)), len(own)):
        part = greatest(own, count)
        sums = np.cumsum(own[part])
        if sums[-1] >= wanted or count == len(own):
            break
    return np.asarray(places[part[: np.searchsorted(sums, wanted) + 1]])


def greatest(numbers: Array, count: int) -> Array:
    """Places of so many of the greatest numbers, which begin with the greatest; of equal ones the first."""
    found = np.argpartition(numbers, len(numbers) - count)[len(numbers) - count :]
    return np.asarray(found[np.lexsort((found, -numbers[found]))])


def logprobs(logits: Array) -> Array:
    """Logarithms of probabilities, f64[..., vocabulary]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide
