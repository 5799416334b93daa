"""Texts that follow a schema of JSON or a grammar, by the package ``llguidance``: it says which tokens may come."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from reprlib import repr as shortly
from typing import Any

import numpy as np

from bolt_numba.base.errors import DataError, OptionError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import Array
from bolt_numba.text.sampling import Sampling
from bolt_numba.text.tokens import guarded

MOST_LETTERS, STACK = 1 << 17, 1 << 28
"""Of a schema or grammar; and bytes of a stack that compiling one of so many cannot use up, as it recurses."""
PARSER_LIMITS: Any = {
    "initial_lexer_fuel": 200_000, "step_lexer_fuel": 50_000, "max_lexer_states": 50_000, "verbose_errors": False
}  # fmt: skip
"""Of a parser: a step takes milliseconds, in which other texts wait, and states 100 MB at most."""
SPACED: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write JSON: where blanks are free, a model may write them without end."""
MOST_PATTERNS, JOINS = 12, {"allOf", "anyOf", "oneOf", "not", "if", "$ref"}
"""Patterns of a schema, and what may join them: to find out whether any text fits takes twice as long for each more."""
LEAST_INTEGER, LOW = -(1 << 60), re.compile(r"-\s*\d{19}")
"""Far lower ones of 64 bits end the process in llguidance 1.9; what they look like within a grammar."""
MOST_KNOWN = 16
"""Grammars that are kept for the next text."""
_lock = threading.Lock()
renew_after_fork(sys.modules[__name__], "_lock", threading.Lock)


class Grammar:
    """What one text has to follow."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def mask(self, logits: Array) -> None:
        """Have tokens that may not come be impossible.  Raises DataError where the grammar has become too complex."""
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, bitorder="little")[: len(logits)]
        logits[: len(allowed)][allowed == 0] = -math.inf
        logits[len(allowed) :] = -math.inf

    def take(self, token: int) -> None:
        """Go on behind a token."""
        self.matcher.consume_token(token)
        self._check()

    @property
    def is_done(self) -> bool:
        """Whether nothing more may come."""
        return bool(self.matcher.is_stopped())

    def _check(self) -> None:
        if self.matcher.is_error():
            raise DataError(f"grammar: got {self.matcher.get_error()!r:.200}, wanted one that can be followed")


class Grammars:
    """Makes grammars over the tokens of one tokenizer."""

    def __init__(self, tokenizer: str, vocabulary: int, ends: Sequence[int]) -> None:
        import llguidance  # it is of an extra

        self.own, self.limits = llguidance, llguidance.LLParserLimits(**PARSER_LIMITS)
        known = [one for one in ends if one < vocabulary]
        make = partial(llguidance.LLTokenizer, n_vocab=vocabulary, eos_token=known or None)
        self.tokens = guarded("tokenizer", make, tokenizer)
        self.known: dict[tuple[str, str], Any] = {}

    def grammar(self, settings: Sampling) -> Grammar:
        """What a text of these settings has to follow.  Raises OptionError for what cannot be followed."""
        name = "grammar" if settings.json_schema is None else "json_schema"
        given = getattr(settings, name)
        text = given if isinstance(given, str) else _written(given)
        if not isinstance(text, str) or len(text) > MOST_LETTERS:
            raise OptionError(f"{name}: got {shortly(given)}, wanted a text of at most {MOST_LETTERS} letters")
        if (known := self.known.get((name, text))) is not None:
            return Grammar(known.deep_copy())
        if name == "grammar" and LOW.search(text):
            raise OptionError(f"grammar: got {LOW.findall(text)[0]}, wanted integers from {LEAST_INTEGER}")
        matcher = self.own.LLMatcher
        try:
            source = matcher.grammar_from_lark(text) if name == "grammar" else (
                matcher.grammar_from_json_schema(text, overrides=SPACED)
            )  # fmt: skip
        except ValueError as error:
            raise OptionError(f"{name}: got {text!r:.80}, wanted one that can be read: {error!s:.200}") from None
        if name == "json_schema":
            want_few_patterns(json.loads(text), name)
        made = _on_a_deep_stack(lambda: matcher(self.tokens, source, log_level=0, limits=self.limits))
        if made.is_error():
            raise OptionError(f"{name}: got what cannot be followed: {made.get_error()!s:.300}")
        self.known[name, text] = made
        for old in [*self.known][:-MOST_KNOWN]:
            self.known.pop(old, None)
        return Grammar(made.deep_copy())


def want_few_patterns(schema: Any, name: str) -> None:
    """Raises OptionError, with the name of what has it, for a schema that may join many patterns."""
    left, found, joins = [schema], 0, set[str]()
    while left:
        node = left.pop()
        if isinstance(node, int) and node < LEAST_INTEGER:
            raise OptionError(f"{name}: got {node:.4g}, wanted integers from {LEAST_INTEGER}")
        if isinstance(node, dict):
            found, joins = found + isinstance(node.get("pattern"), str), joins | (JOINS & node.keys())
            left += node.values()
        elif isinstance(node, list):
            left += node
    if found > MOST_PATTERNS and joins:
        raise OptionError(f"{name}: got {found} patterns and {sorted(joins)}, wanted at most {MOST_PATTERNS}")


def _on_a_deep_stack(call: Callable[[], Any]) -> Any:
    """What a call gives: on a usual stack a long chain of rules would end the process."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # of any kind: it is raised by whoever waits
            found.set_exception(error)

    with _lock:  # the size is that of all threads
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=run, daemon=True).start()
        finally:
            threading.stack_size(before)
    return guarded("grammar", lambda made: made.result(), found)


def _written(given: Any) -> Any:
    try:
        return json.dumps(given)
    except (TypeError, ValueError, RecursionError):
        return None
