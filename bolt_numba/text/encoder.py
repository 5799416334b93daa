"""Encoders: texts to vectors, and pairs of texts to scores, through a session and a tokenizer."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import border, warn_caller
from bolt_numba.base.errors import BoltError, DTypeError, OptionError, ShapeError
from bolt_numba.base.options import count_of, flag_of, want_known, want_one_of
from bolt_numba.base.types import Array
from bolt_numba.compiling import compile
from bolt_numba.text.layout import POOLINGS, layout_of
from bolt_numba.text.tokens import USUAL_TOKENS, TextTokenizer, TokenRow, TruncationWarning

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords
    from bolt_numba.sessions.session import Session

IDS, MASK, TYPES, POSITIONS = INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
POOLED = ("sentence_embedding", "text_embeds", "embeddings")
"""Outputs that are vectors of texts already, by the names that exporters give them."""
TOKENS = ("last_hidden_state", "token_embeddings")
LOGITS = "logits"
MEAN = "mean"
TEXTS_AT_ONCE = 1024
TOKENS_AT_ONCE = 1 << 14
"""Of a run: what a network makes of them is in memory until it is pooled."""
LEAST_LENGTH = 1e-12
"""The least length that vectors are divided by, as PyTorch has it."""


class Encoder:
    """A model that makes vectors of texts, or scores of pairs of texts.

    Parameters
    ----------
    model: a file, or a folder as Hugging Face and sentence-transformers lay it out: ``model.onnx``, ``tokenizer.json``,
        ``modules.json``, ``1_Pooling/config.json`` and their like, whose settings hold where nothing else is said.
    tokenizer: a ``tokenizer.json``; None: the one of the folder.
    pooling: "cls", "mean", "max" or "last" of a text's tokens; None: as the folder says, else the output that is
        pooled already, else "mean".  normalize: whether vectors get length 1; None: as the folder says, else they do.
    max_tokens: of a text; None: as the folder says, else 512.  session: one that is there already, of this model.
    options: of `bolt_numba.compile`.
    The constructor raises what `compile` raises, InvalidModelError for files beside the model, OptionError for values,
    BoltError for a model whose inputs are not those of encoders.
    """

    @border("encoder", OSError)
    def __init__(
        self, model: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None, *,
        pooling: str | None = None, normalize: bool | None = None, max_tokens: int | None = None,
        session: Session | None = None, **options: Unpack[OptionKeywords],
    ) -> None:  # fmt: skip
        want_known("encoder", options, "tokenizer", "pooling", "normalize", "max_tokens", "session")
        if session is not None and options:
            raise OptionError(f"session: got it with {[*options]}, wanted one that was compiled with them")
        said = layout_of(model, tokenizer)
        self.name, self._is_told, self._others = str(said.model), pooling is not None, said.others
        self.pooling = want_one_of("pooling", pooling or said.pooling or MEAN, POOLINGS)
        self.normalize = next(flag_of("normalize", x) for x in (normalize, said.normalize, True) if x is not None)
        self.session = compile(said.model, **options) if session is None else session
        self.inputs = list(self.session.inputs)
        names = [spec.name for spec in self.inputs]
        if IDS not in names or not {*names} <= {*INPUTS}:
            raise BoltError(f"{self.name}: inputs: got {names}, wanted {IDS}, and of others only {INPUTS[1:]}")
        asked = said.max_tokens if max_tokens is None else count_of("max_tokens", max_tokens)
        lengths = [spec.shape[-1] for spec in self.inputs if spec.shape]  # some models fix them
        limits = [n for n in (asked, *lengths) if isinstance(n, int)]
        self.tokenizer = TextTokenizer(said.tokenizer, min(limits, default=None), said.lower)
        if self.max_tokens > max(said.max_tokens or 0, USUAL_TOKENS):  # else the model need not be read for it
            self._want_positions()
        self._axes = {s.name: len(s.shape or ()) or None for s in self.session.outputs}

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that the model gets at most, those that frame it included."""
        return self.tokenizer.max_tokens

    @border("tokens")
    def tokens(self, texts: Iterable[str]) -> list[TokenRow]:
        """The tokens of each text, as the model gets them.  Raises DTypeError for what is no text."""
        return self.tokenizer.rows([(text,) for text in _texts("texts", texts)])

    @border("embed")
    def embed(self, texts: Iterable[str], *, dimensions: int | None = None) -> Array:
        """Vectors of texts, f32[n, d].

        dimensions: only the first so many, for models that are trained for that.
        What is longer than `max_tokens` is cut off, with a TruncationWarning.
        Raises DTypeError for what is no text, ShapeError for dimensions, BoltError for a model without vectors.
        """
        given = [(text,) for text in _texts("texts", texts)]
        width = self._width(self.embedding) if dimensions is None else count_of("dimensions", dimensions)
        made = self._run(given, self.embedding, lambda found, row: self.vector(found, len(row.ids), dimensions))
        return np.stack(made) if made else np.zeros((0, width), np.float32)

    @border("score")
    def score(self, pairs: Iterable[tuple[str, str]]) -> Array:
        """What a model for pairs makes of each, as it is (logits): f32[n], or f32[n, labels] where it has several.

        What is longer than `max_tokens` is cut off, the longer text of a pair first, with a TruncationWarning.
        Raises DTypeError for what are no pairs, BoltError for a model without scores.
        """
        if not np.iterable(pairs):
            raise DTypeError(f"pairs: got a {type(pairs).__name__}, wanted a list of pairs of texts")
        given = [tuple(_texts(f"pair {number}", pair)) for number, pair in enumerate(pairs)]
        if wrong := [number for number, pair in enumerate(given) if len(pair) != len(("a", "b"))]:
            raise DTypeError(f"pair {wrong[0]}: got {len(given[wrong[0]])} texts, wanted two")
        made = self._run(given, self.logits, lambda found, row: found.astype(np.float32))
        scores = np.stack(made) if made else np.zeros((0, self._width(self.logits)), np.float32)
        return scores[:, 0] if scores.shape[1:] == (1,) else scores

    # --- parts, which a server uses one by one -----------------------------------------------------------------------

    @property
    def embedding(self) -> str:
        """The output that vectors are made of.  Raises BoltError where there is none."""
        tokens = [name for name in (*TOKENS, *self._axes) if self._axes.get(name, 0) in (3, None)]
        named = [] if self._is_told else [name for name in POOLED if name in self._axes]
        pooled = [name for name, axes in self._axes.items() if axes == len(("texts", "d")) and name != LOGITS]
        if not (found := [*named, *tokens, *pooled]):
            raise BoltError(f"{self.name}: outputs: got {[*self._axes]}, wanted vectors of tokens or texts: see score")
        if self._others and not named:
            wanted = f"wanted them in the model: {POOLED[0]}"
            raise BoltError(f"{self.name}: modules.json: got {self._others!r:.80}, {wanted}")
        return found[0]

    @property
    def logits(self) -> str:
        """The output that has scores.  Raises BoltError where there is none."""
        if LOGITS in self._axes or [*self._axes.values()] == [2]:
            return LOGITS if LOGITS in self._axes else next(iter(self._axes))
        raise BoltError(f"{self.name}: outputs: got {[*self._axes]}, wanted {LOGITS}: see embed")

    def feeds(self, row: TokenRow) -> dict[str, Array]:
        """Inputs by name, without the axis of a batch; filled up where the model fixes their length."""
        count = len(row.ids)
        given = {IDS: row.ids, MASK: np.ones(count), TYPES: row.types, POSITIONS: np.arange(count)}
        made = {}
        for spec in self.inputs:
            length = (spec.shape or (None,))[-1]
            made[spec.name] = np.zeros(length if isinstance(length, int) else count, spec.dtype)
            made[spec.name][:count] = given[spec.name]
        return made

    def vector(self, made: Array, count: int, dimensions: int | None = None) -> Array:
        """The vector of a text of so many tokens, of what the model made of it.  Raises ShapeError for dimensions."""
        if made.ndim > 1:
            made = _POOL[self.pooling](made[:count].astype(np.float32, copy=False))
        if dimensions is not None and count_of("dimensions", dimensions) > len(made):
            raise ShapeError(f"dimensions: got {dimensions}, wanted at most {len(made)}")
        made = made[:dimensions].astype(np.float32)
        return made / max(np.linalg.norm(made), LEAST_LENGTH) if self.normalize else made

    @staticmethod
    def parts(rows: Sequence[TokenRow]) -> Iterator[list[int]]:
        """Numbers of texts that run together, by their lengths, the longest first."""
        part, tokens = list[int](), 0
        for number in sorted(range(len(rows)), key=lambda n: len(rows[n].ids), reverse=True):
            if part and tokens + len(rows[number].ids) > TOKENS_AT_ONCE:
                yield part
                part, tokens = [], 0
            part.append(number)
            tokens += len(rows[number].ids)
        if part:
            yield part

    def _run(self, texts: Sequence[Any], output: str, finish: Callable[[Array, TokenRow], Array]) -> list[Array]:
        """What is made of an output for each text or pair; those of similar lengths run together."""
        made, cut = list[Array](), list[int]()
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            rows = self.tokenizer.rows(texts[start : start + TEXTS_AT_ONCE], start)
            cut += [start + number for number, row in enumerate(rows) if row.is_cut]
            results: dict[int, Array] = {}
            for part in self.parts(rows):
                found = self._made(rows, part, output, start)
                results |= {n: finish(each, rows[n]) for n, each in zip(part, found, strict=True)}
            made += [results[number] for number in range(len(rows))]
        if cut:
            said = f"{len(cut)} of {len(texts)} texts, the first is number {cut[0]}"
            warn_caller(f"more than {self.max_tokens} tokens: {said}: the rest of each was left out", TruncationWarning)
        return made

    def _made(self, rows: Sequence[TokenRow], part: Sequence[int], output: str, first: int) -> list[Array]:
        """An output for these rows.  Raises what a run does, with the number of the text from ``first``."""
        try:
            return [each[output] for each in self.session.run_rows([self.feeds(rows[n]) for n in part], [output])]
        except BoltError as error:
            if len(part) > 1:  # the one at fault is named
                return [self._made(rows, [n], output, first)[0] for n in part]
            if isinstance(error, ShapeError):
                self._want_positions()
            raise type(error)(f"text {first + part[0]}: {str(error).removeprefix('row 0: ')}") from error

    def _want_positions(self) -> None:
        """Raises OptionError where the shapes of the network show that it takes fewer tokens than `max_tokens`."""
        if not self._takes(self.max_tokens) and self._takes(1):
            most = bisect_left(range(1, self.max_tokens), True, key=lambda count: not self._takes(count))
            wanted = f"wanted at most {most}: the model has no more positions"
            raise OptionError(f"max_tokens: got {self.max_tokens}, {wanted}")

    def _takes(self, count: int) -> bool:
        from bolt_numba.ir.sizes import with_shapes  # few encoders need it

        shapes = {s.name: [d if isinstance(d, int) else n for d, n in zip(s.shape, (1, count), strict=False)]
                  for s in self.inputs if s.shape is not None}  # fmt: skip
        try:
            with_shapes(self.session.graph, shapes)
        except ShapeError:
            return False
        return True

    def _width(self, output: str) -> int:
        """Numbers of a result, where the model says it."""
        last = next((s.shape or (0,))[-1] for s in self.session.outputs if s.name == output)
        return last if isinstance(last, int) else 0


_POOL: Mapping[str, Callable[[Array], Array]] = {
    "cls": lambda tokens: tokens[0], "mean": lambda tokens: tokens.mean(0), "max": lambda tokens: tokens.max(0),
    "last": lambda tokens: tokens[-1],
}  # fmt: skip


def _texts(what: str, given: Any) -> list[str]:
    """A list of texts.  Raises DTypeError for what is none; a text alone is a mistake."""
    if isinstance(given, Mapping) or hasattr(given, "columns"):
        raise DTypeError(f"{what}: got a {type(given).__name__}, wanted a list of texts, such as one of its columns")
    is_list = np.iterable(given) and not isinstance(given, (str, bytes))
    if not is_list:
        raise DTypeError(f"{what}: got {given!r:.80}, wanted a list of texts")
    texts = list(given)
    if odd := next((f"{n}: got {text!r:.80}" for n, text in enumerate(texts) if not isinstance(text, str)), None):
        raise DTypeError(f"{what}: number {odd}, wanted a text")
    return texts
