"""What becomes of a text that is written: its pieces as they come, and the whole."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bolt_numba.base.errors import BoltError, TimeLimitError
from bolt_numba.text.sampling import Likely

STOP, LENGTH, CANCELLED, FAILED = "stop", "length", "cancelled", "error"
"""How a text ends."""


class TextPiece(NamedTuple):
    """A piece of a text.  tokens: that came with it; its letters may be those of earlier ones, which were held back.

    logprobs: of these tokens, where they were asked for.  finish_reason: of the last piece, as `Generation` has it.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Likely, ...] = ()
    finish_reason: str | None = None


class Generation(NamedTuple):
    """A text that was made.

    tokens: those of the text, an end token among them.  logprobs: of each, None where they were not asked for.
    finish_reason: "stop" (an end token, a text of ``stop``, the end of a grammar), "length" (max_tokens, or the
    context), or "cancelled".  prompt_tokens: of the prompt; reused_tokens: that were in a cache already.
    """

    text: str
    tokens: list[int]
    logprobs: list[Likely] | None
    finish_reason: str
    prompt_tokens: int
    reused_tokens: int = 0


class Answer:
    """A text that is being made: an iterable of its pieces, for one reader.

    prompt_tokens: of the prompt.
    """

    def __init__(
        self, prompt_tokens: int, has_logprobs: bool, watch: Callable[[TextPiece], None] | None = None
    ) -> None:  # fmt: skip
        self.prompt_tokens, self.reused_tokens, self.is_cancelled = prompt_tokens, 0, False
        self._has_logprobs, self._watch = has_logprobs, watch
        self._made: list[TextPiece] = []
        self._error: BaseException | None = None
        self._come: queue.SimpleQueue[TextPiece | None] = queue.SimpleQueue()
        self._ended, self._process = threading.Event(), os.getpid()

    def __iter__(self) -> Iterator[TextPiece]:
        """Pieces as they come.  Raises what making them met."""
        self._want_maker()
        while (piece := self._come.get()) is not None:
            yield piece
        self._come.put(None)  # whoever reads on
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Have no more tokens made; the text ends soon with what there is."""
        self.is_cancelled = True

    def result(self, timeout: float | None = None) -> Generation:
        """The whole text, when it is done.  Raises what making it met, TimeLimitError after so many seconds."""
        self._want_maker()
        if not self._ended.wait(timeout):
            raise TimeLimitError(f"answer: got no end within {timeout} s, wanted one")
        if self._error is not None:
            raise self._error
        text, tokens = "".join(p.text for p in self._made), [t for p in self._made for t in p.tokens]
        likely = [one for p in self._made for one in p.logprobs] if self._has_logprobs else None
        reason = self._made[-1].finish_reason or STOP
        return Generation(text, tokens, likely, reason, self.prompt_tokens, self.reused_tokens)

    def _want_maker(self) -> None:
        """Raises BoltError where nobody makes the text any more."""
        if os.getpid() != self._process and not self._ended.is_set():
            raise BoltError("answer: got a child of fork, wanted the process that makes it: ask there")

    # --- for whoever makes it ------------------------------------------------------------------------------------

    def add(self, piece: TextPiece) -> None:
        """Add a piece, the last one if it has a reason to finish."""
        self._made.append(piece)
        self._come.put(piece)
        self._tell(piece)

    def fail(self, error: BaseException) -> None:
        """Have the reader meet an error."""
        self._error = error
        self._tell(TextPiece("", finish_reason=FAILED))

    def _tell(self, piece: TextPiece) -> None:
        if piece.finish_reason is not None:
            self._come.put(None)
            self._ended.set()
        try:
            if self._watch is not None:
                self._watch(piece)
        except Exception as error:  # it is that of who asked, and ends no other's text
            self._error, self._watch = error, None
            self.cancel()
