"""Guesses of the next tokens: from what was there already, or by a smaller model."""

from __future__ import annotations

from collections.abc import Sequence

from bolt_numba.text.batching import common
from bolt_numba.text.decoders import Decoder, Stretch

LONGEST_RUN = 3
"""Tokens that are looked for among earlier ones."""


class LookUp:
    """What came behind the last tokens where they were before, the longest run of them first."""

    def __init__(self, slots: int) -> None:
        self.seen: list[list[int]] = [[] for _ in range(slots)]
        self.places: list[dict[tuple[int, ...], int]] = [{} for _ in range(slots)]

    def __call__(self, slot: int, tokens: Sequence[int], count: int) -> Sequence[int]:
        """At most so many tokens behind those of a slot."""
        seen, places = self.seen[slot], self.places[slot]
        if seen != tokens[: len(seen)]:
            seen.clear()
            places.clear()
        for end in range(max(len(seen), LONGEST_RUN), len(tokens)):  # the last ones are what is looked for
            for length in range(2, LONGEST_RUN + 1):
                places[tuple(tokens[end - length : end])] = end
        seen.extend(tokens[len(seen) :])
        for length in range(LONGEST_RUN, 1, -1):
            place = places.get(tuple(tokens[-length:]))
            if place is not None:
                return tokens[place : place + count]
        return ()


class Draft:
    """What a smaller model with the same tokens writes, greedily."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.kept: list[list[int]] = [[] for _ in range(decoder.slots)]

    def __call__(self, slot: int, tokens: Sequence[int], count: int) -> Sequence[int]:
        """At most so many tokens behind those of a slot."""
        made = [*tokens]
        done = common(self.kept[slot], made[:-1])
        for _ in range(min(count, self.decoder.context - len(tokens))):
            (logits,) = self.decoder.run([Stretch(slot, done, made[done:], 1)])
            done = len(made)
            made.append(int(logits[0].argmax()))
        self.kept[slot] = made[:done]
        return made[len(tokens) :]
