"""Tokens to text as they come: no letter is split, and what may begin a text that stops is held back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bolt_numba.text.tokens import guarded

CONTEXT = 4
"""Tokens before a text that its first letters may depend on, such as a blank."""
MOST_OPEN = 16
"""Tokens that may make one letter."""
BROKEN = "\N{REPLACEMENT CHARACTER}"


class Speller:
    """The text of one sequence of tokens.  is_stopped: whether one of ``stops`` came; nothing is added then.

    special: whether special tokens are shown.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str] = (), special: bool = False
    ) -> None:  # fmt: skip
        self.tokenizer, self.stops, self.is_stopped = tokenizer, stops, False
        self.decode = partial(tokenizer.decode, skip_special_tokens=not special)
        self.tokens = [*prompt[-CONTEXT:]]
        self.first, self.read, self.known = 0, len(self.tokens), ""
        self.known = self._decoded()
        self.held = ""

    def _decoded(self) -> str:
        return str(guarded("tokens", self.decode, self.tokens[self.first :]))

    def spelled(self, token: int) -> str:
        """A token by itself."""
        return str(guarded("token", lambda one: self.tokenizer.decode(one, skip_special_tokens=False), [token]))

    def add(self, token: int) -> str:
        """What is certain of the text with another token."""
        self.tokens.append(token)
        text = self._decoded()
        if text.endswith(BROKEN) and len(self.tokens) - self.read < MOST_OPEN:
            return ""
        new = text[len(self.known) :]
        self.first, self.read = self.read, len(self.tokens)
        self.known = self._decoded()
        return self._certain(new)

    def _certain(self, new: str) -> str:
        if not self.stops or self.is_stopped:
            return "" if self.is_stopped else new
        self.held += new
        places = [place for place in map(self.held.find, self.stops) if place >= 0]
        if places:
            self.is_stopped, certain, self.held = True, self.held[: min(places)], ""
            return certain
        longest = max(map(len, self.stops)) - 1
        tails = range(max(len(self.held) - longest, 0), len(self.held))
        end = next((i for i in tails if any(stop.startswith(self.held[i:]) for stop in self.stops)), len(self.held))
        certain, self.held = self.held[:end], self.held[end:]
        return certain

    def end(self) -> str:
        """What was held back, when no more tokens come."""
        text = "" if self.is_stopped else self.held + self._decoded()[len(self.known) :]
        self.held = ""
        return text
