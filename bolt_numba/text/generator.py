"""Generators: texts from a prompt or a chat, through a decoder and its tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import BoltError, DataError, DTypeError, OptionError
from bolt_numba.base.options import count_of, not_among, want_known
from bolt_numba.base.types import Array
from bolt_numba.compiling import compile
from bolt_numba.sessions.known import metadata_of
from bolt_numba.text.answers import Answer, Generation, TextPiece
from bolt_numba.text.batching import PIECE, Batch, Guess, Writing
from bolt_numba.text.beams import Beam, BeamSearch, TranslatedText, beam_settings
from bolt_numba.text.decoders import Decoder, Stretch, decoder_of
from bolt_numba.text.drafts import Draft, LookUp
from bolt_numba.text.grammars import Grammars
from bolt_numba.text.opened import FORMAT, file_of, layout_beside, layout_within
from bolt_numba.text.sampling import Sampler, Sampling
from bolt_numba.text.spelling import Speller
from bolt_numba.text.tokens import CUT, PromptLengthError, cleaned, guarded, tokenizer_of

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords
    from bolt_numba.sessions.session import Session
    from bolt_numba.text.templates import ChatTemplate

USUAL_CONTEXT = 4096
"""Positions for which there is memory, where the model has as many and nothing is said."""
MOST_LETTERS = 64
"""Of a prompt for each position: one with more is refused before it is read."""
AHEAD = 3
"""Tokens that are guessed for a step: with more of them attention would round as that of prompts does."""

Prompt = str | Sequence[Mapping[str, Any]] | list[int]
"""A text to go on with, messages of a chat, or tokens."""


class Generator:
    """A model that goes on with texts and answers in chats.

    Parameters
    ----------
    model: a file of GGUF, or a folder of onnxruntime-genai or Optimum: the network, ``tokenizer.json`` and settings.
    sequences: texts that are made at once; more wait.  context: tokens of a text, its prompt included; None: as many as
        the model is made for, up to 4096.  look_up: guess tokens from what was there already; draft: guess them by
        another generator, a smaller one with the same tokens.  Both change the speed, not the text.
    session: the model as it was compiled.
    options: of `bolt_numba.compile`.
    The constructor raises what `compile` raises, InvalidModelError for files and layouts, OptionError for values.
    """

    @border("generator", OSError)
    def __init__(
        self, model: str | os.PathLike[str], *, sequences: int = 1, context: int | None = None, look_up: bool = False,
        draft: Generator | None = None, session: Session | None = None, **options: Unpack[OptionKeywords],
    ) -> None:  # fmt: skip
        want_known("generator", options, "sequences", "context", "look_up", "draft", "session")
        if session is not None and options:
            raise OptionError(f"session: got it with {[*options]}, wanted one that was compiled with them")
        file = file_of(model)
        self.name, self.session = str(model), compile(file, **options) if session is None else session
        metadata = metadata_of(self.session)
        is_whole = metadata.get("format") == FORMAT
        self.layout = layout_within(metadata, self.name) if is_whole else layout_beside(file)
        most = self.layout.context or USUAL_CONTEXT
        asked = min(most, USUAL_CONTEXT) if context is None else count_of("context", context)
        if not 2 <= asked <= most:
            raise OptionError(f"context: got {asked}, wanted from 2 to the {most} that the model is made for")
        self.decoder: Decoder = self._decoder(count_of("sequences", sequences), asked)
        self.tokenizer = tokenizer_of(self.layout.tokenizer, self.name)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._batch = Batch(self.decoder, self.layout.ends, self._guesses(look_up, draft), AHEAD)

    def _guesses(self, look_up: bool, draft: Generator | None) -> Guess | None:
        if draft is None:
            return LookUp(self.decoder.slots) if look_up else None
        if draft.tokenizer.get_vocab() != self.tokenizer.get_vocab() or look_up:
            raise OptionError(f"draft: got {draft.name}, wanted one with the same tokens, and no look_up beside it")
        return Draft(draft._decoder(self.decoder.slots, min(self.context, draft.context)))

    def _decoder(self, slots: int, context: int) -> Decoder:
        return decoder_of(self.session, slots, context, self.layout.caches)

    @property
    def context(self) -> int:
        """Tokens of a text at most, its prompt included."""
        return self.decoder.context

    @property
    def usual(self) -> Mapping[str, Any]:
        """Settings that the model's files ask for; those of a call go before them."""
        return self.layout.usual

    @property
    def under_way(self) -> tuple[int, int]:
        """Texts that are being made, and that wait for a place among them."""
        return len(self._batch.active), len(self._batch.waiting)

    # --- texts -------------------------------------------------------------------------------------------------------

    @overload
    def generate(self, prompt: str, **settings: Any) -> Generation: ...
    @overload
    def generate(self, prompt: Sequence[str], **settings: Any) -> list[Generation]: ...
    @border("generate")
    def generate(self, prompt: str | Sequence[str], **settings: Any) -> Generation | list[Generation]:
        """Go on with a text, or with each of several, of which so many run at once as the generator has sequences.

        settings: fields of `Sampling`.  Raises OptionError for one, DTypeError for what is no text, DataError for a
        prompt that is too long, and what a run raises.
        """
        given: Any = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
            raise DTypeError(f"prompt: got {given!r:.80}, wanted a text or a list of texts: messages are for `chat`")
        made = _ended(self.submit(one, **settings) for one in given)
        return made[0] if isinstance(prompt, str) else made

    @border("chat")
    def chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> Generation:
        """The model's answer to messages, each with role and content, by its template.

        Raises as `generate`, BoltError for a model without a template.
        """
        given: Any = messages
        if isinstance(given, str):
            wanted = "a list of messages, each with role and content: `generate` goes on with a text"
            raise DTypeError(f"messages: got {given!r:.80}, wanted {wanted}")
        return _ended([self.submit(messages, **settings)])[0]

    def stream(self, prompt: Prompt, **settings: Any) -> Iterator[TextPiece]:
        """Pieces of a text as they come; whoever stops reading cancels the rest.  Raises as `generate`."""
        answer = self.submit(prompt, **settings)
        try:
            yield from answer
        finally:
            answer.cancel()

    @border("submit")
    def submit(self, prompt: Prompt, *, watch: Callable[[TextPiece], None] | None = None, **settings: Any) -> Answer:
        """Have a text made, and go on at once.  May be called from many threads.

        watch: called with each piece by the thread that makes all texts, so it must be quick.  Raises as `generate`.
        """
        if unknown := settings.keys() - vars(_USUAL).keys():
            raise OptionError(not_among("settings", sorted(unknown), [*vars(_USUAL)]))
        tokens = self.tokens(prompt)
        least, longest = self.layout.lengths
        told = {"min_tokens": max(least - len(tokens), 0), "max_tokens": longest and max(longest - len(tokens), 1)}
        how = Sampling(**{**told, **self.usual, **settings})
        if odd := [one for one in how.logit_bias if one > self._last]:
            raise OptionError(f"logit_bias: got {odd[0]}, wanted tokens up to {self._last}")
        is_free = how.json_schema is None and how.grammar is None
        grammar = None if is_free else self._grammars.grammar(how)
        answer = Answer(len(tokens), how.logprobs is not None, watch)
        most = min(how.max_tokens or self.context, self.context - len(tokens))
        speller = Speller(self.tokenizer, tokens, how.stops, how.special_tokens)
        self._batch.add(Writing(answer, tokens, most, Sampler(how, tokens, grammar, self.layout.ends), speller))
        return answer

    @border("search")
    def search(self, prompt: Prompt, *, n: int = 1, num_beams: int = 4, **settings: Any) -> list[TranslatedText]:
        """The likeliest texts behind a prompt that a search finds, the best first: ``n`` of them at most.

        Each of ``num_beams`` texts under way takes the place of a sequence.  settings: the other fields of
        `BeamSettings`.  Raises OptionError for one, else as `generate`.
        """
        how = beam_settings({"num_beams": num_beams, **settings})
        if num_beams > self.decoder.slots or count_of("n", n) > num_beams:
            most = f"{num_beams} beams of {self.decoder.slots} sequences"
            raise OptionError(f"num_beams, n: got {n} of {most}, wanted as many sequences as beams, and n of these")
        tokens = self.tokens(prompt)
        how = beam_settings({**vars(how), "max_tokens": min(how.max_tokens, self.context - len(tokens))})
        answer, search = Answer(len(tokens), False), BeamSearch(how, tokens, self.layout.ends)
        parts = answer, Sampler(_USUAL, tokens), Speller(self.tokenizer, tokens)
        beams = [Beam(search, self.decoder, [] if i else tokens, *parts) for i in range(num_beams)]
        for beam in beams:
            beam.mates = [*beams]
        self._batch.add(beams[0])
        _ended([answer])
        return [TranslatedText(self._spelled(tokens, made), made, score) for score, made in search.results()[:n]]

    def _spelled(self, prompt: Sequence[int], made: Sequence[int]) -> str:
        speller = Speller(self.tokenizer, prompt)
        return "".join([*(speller.add(token) for token in made if token not in self.layout.ends), speller.end()])

    @border("tokens")
    def tokens(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The tokens of a prompt as the model gets them.  tools: functions that a chat may call, for its template.

        Raises DTypeError for what is none, DataError for one that is empty, PromptLengthError for one that leaves no
        place in the context.
        """
        given: Any = prompt
        if isinstance(given, list) and given and all(type(one) is int for one in given):
            found: list[int] = given
            if odd := [one for one in found[: self.context] if not 0 <= one <= self._last]:
                raise DataError(f"prompt: tokens: got {odd[0]}, wanted numbers from 0 to {self._last}")
        else:
            is_text = isinstance(given, str)
            text = given if is_text else self.template(given, tools)
            if (most := MOST_LETTERS * self.context) < len(text):
                raise PromptLengthError(f"prompt: got {len(text)} letters, wanted at most {most}")
            found = self._encoded("prompt", text, is_text)
        if not found or len(found) >= self.context:
            wanted, most = f"wanted from 1 to {self.context - 1}, below the context", self.layout.context or 0
            more = f", which may be up to {most}" if found and most > self.context else ""
            raise (PromptLengthError if found else DataError)(f"prompt: got {len(found)} tokens, {wanted}{more}")
        return found

    def _encoded(self, what: str, text: str, is_begun: bool) -> list[int]:
        """Tokens of a text.  is_begun: with what stands before each text."""
        encode = partial(self.tokenizer.encode, add_special_tokens=is_begun)
        parts = [text] if is_begun else text.split(CUT)
        found = [one for part in parts for one in guarded(what, encode, cleaned(part)).ids]
        first = [self.layout.begin] if is_begun and self.layout.begins and self.layout.begin is not None else []
        return found if found[:1] == first else first + found

    @cached_property
    def _last(self) -> int:
        """The largest token that there is a logit for."""
        return min(max(self.tokenizer.get_vocab().values(), default=0), self.decoder.vocabulary - 1)

    @cached_property
    def template(self) -> ChatTemplate:
        """The template of chats.  Raises BoltError where the model has none, InvalidModelError."""
        if self.layout.template is None:
            raise BoltError(f"{self.name}: chat template: got none, wanted one for messages: give a text")
        from bolt_numba.text.templates import ChatTemplate  # jinja2 is of an extra, and texts do without

        ids = {"bos_token": self.layout.begin, "eos_token": next(iter(self.layout.ends), None)}
        marks = {name: self.tokenizer.id_to_token(one) or "" for name, one in ids.items() if one is not None}
        added = self.tokenizer.get_added_tokens_decoder().values()
        special = [one.content for one in added if one.special]
        return ChatTemplate(self.layout.template, marks | {**self.layout.marks}, special)

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.layout.tokenizer, self.decoder.vocabulary, self.layout.ends)

    @border("perplexity")
    def perplexity(self, text: str) -> float:
        """How badly the model guesses a text: exp of the mean of -log(probability) of its tokens but the first.

        A longer text is gone through in windows of the context, of which each begins in the middle of the last and
        counts what is new.  Raises DTypeError and DataError for a text.
        """
        if not isinstance(text, str):
            raise DTypeError(f"text: got {text!r:.80}, wanted a text")
        tokens, half = self._encoded("text", text, True), self.context // 2
        if len(tokens) < 2:
            raise DataError(f"text: got {len(tokens)} tokens, wanted at least 2")
        decoder, lost = self._decoder(1, self.context), list[Array]()
        for start in range(0, max(len(tokens) - half, 1), half):
            window, new = tokens[start : start + self.context], half if start else 1
            for at in range(0, len(window) - 1, PIECE):
                part, wanted = window[:-1][at : at + PIECE], window[1:][at : at + PIECE]
                (rows,) = decoder.run([Stretch(0, at, part, len(part))])
                most = rows.max(-1, keepdims=True)
                sums = np.log(np.exp(rows - most).sum(-1, dtype=np.float64)) + most[:, 0]
                lost.append((sums - rows[np.arange(len(part)), wanted])[max(new - 1 - at, 0) :])
        return float(np.exp(np.concatenate(lost).mean()))

    def close(self) -> None:
        """Have what is under way end, and drop plans and weights."""
        self._batch.close()
        self.session.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        usual = f", usual={dict(self.usual)}" if self.usual else ""
        return f"Generator({self.name!r}, sequences={self.decoder.slots}, context={self.context}{usual})"


def _ended(coming: Iterable[Answer]) -> list[Generation]:
    """What comes of all; where one fails, or nobody waits for it, the others end."""
    answers = list[Answer]()
    try:
        answers += coming
        return [answer.result() for answer in answers]
    except BaseException:
        for answer in answers:
            answer.cancel()
        raise


_USUAL = Sampling()
