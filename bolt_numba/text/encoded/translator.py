"""Translators: models that read one thing and write another, which has no place of its own in what is read.

An encoder reads a text, or sound or a picture as arrays.  A decoder writes, and looks at what the encoder made of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import DataError, DTypeError, InvalidModelError, OptionError
from bolt_numba.base.types import Array
from bolt_numba.compiling import compile
from bolt_numba.text.beams import BeamSearch, BeamSettings, TranslatedText, beam_settings, is_token
from bolt_numba.text.decoders import BRANCH, IDS, LOGITS, PAST, PRESENT
from bolt_numba.text.layout import TOKENIZER, path_of, settings_of
from bolt_numba.text.opened import CONFIG, GENERATION
from bolt_numba.text.tokens import TextTokenizer

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords
    from bolt_numba.sessions.session import Session

ENCODER, MERGED, FIRST, LATER = "encoder_model", "decoder_model_merged", "decoder_model", "decoder_with_past_model"
HIDDEN = "encoder_hidden_states"
OF_ENCODER = ".encoder."
"""In names of keys and values that the first run makes and no other changes."""
SAID = {
    "num_beams": "num_beams", "length_penalty": "length_penalty", "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat_ngram_size", "suppress_tokens": "never", "begin_suppress_tokens": "at_first",
    "forced_bos_token_id": "begin_with", "forced_eos_token_id": "end_with",
}  # fmt: skip
"""What files say of the search, and the field of `BeamSettings`."""
NEUTRAL = {"repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0, "num_beam_groups": 1, "diversity_penalty": 0}
"""What is not done here, and the value that asks for nothing."""
USUAL_LENGTH, MOST_SOURCE = 20, 1 << 14


class CrossDecoder:
    """The decoder of a folder of Optimum: texts under way, which all look at one thing that was encoded.

    first, later: graphs for a run without a past, and with one; the same where they are merged.  later: None: there is
    no past, and each run computes all tokens.  hidden: [1, length, width] · mask: i64[1, length], of what was encoded.
    """

    def __init__(self, first: Session, later: Session | None, hidden: Array, mask: Array) -> None:
        self.first, self.later = first, later
        self.encoded = {HIDDEN: hidden, "encoder_attention_mask": mask}
        self.past: dict[str, Array] = {}
        names = {spec.name for spec in first.inputs} | {spec.name for spec in first.outputs}
        if not {IDS, LOGITS} <= names:
            raise InvalidModelError(f"{first}: got {sorted(names)[:8]}, wanted {IDS} and {LOGITS}")

    def run(self, tokens: Sequence[Sequence[int]], sources: Sequence[int]) -> Array:
        """Logits f32[texts, vocabulary] behind the last token of each.

        sources: which of the texts of the run before each goes on from.  Raises what a run of the session does.
        """
        session = self.later if self.past and self.later is not None else self.first
        is_same = [*sources] == [*range(len(tokens))]
        self.past = {
            name: array if len(array) == len(tokens) and (is_same or OF_ENCODER in name) else array[[*sources]]
            for name, array in self.past.items()
        }
        if len(self.encoded[HIDDEN]) != len(tokens):
            self.encoded = {name: np.repeat(array[:1], len(tokens), 0) for name, array in self.encoded.items()}
        ids = np.array([row[-1:] if self.past else row for row in tokens])
        place = len(tokens[0]) - ids.shape[1]
        given: dict[str, Any] = {
            **self.encoded, IDS: ids, BRANCH: [bool(self.past)], "cache_position": np.arange(place, len(tokens[0])),
            "decoder_attention_mask": np.ones((len(ids), len(tokens[0]))), **self.past,
        }  # fmt: skip
        specs = {spec.name: spec for spec in session.inputs}
        for name in specs.keys() - given.keys():
            shape: Any = specs[name].shape
            if not name.startswith(PAST) or shape is None or not all(isinstance(shape[i], int) for i in (1, 3)):
                raise InvalidModelError(f"{session}: {name}: got {shape}, wanted an input that is known here")
            length = self.encoded[HIDDEN].shape[1] if OF_ENCODER in name else 0  # as later, though nobody looks
            given[name] = np.zeros((len(ids), shape[1], length, shape[3]), specs[name].dtype)
        made = session({name: np.asarray(given[name], spec.dtype) for name, spec in specs.items()})
        if self.later is not None:
            rows = {name: array for name, array in made.items() if name.startswith(PRESENT)}
            kept = {name: array for name, array in self.past.items() if OF_ENCODER in name}
            self.past = {PAST + name.removeprefix(PRESENT): array for name, array in rows.items()} | kept
        return np.asarray(made[LOGITS][:, -1], np.float32)


class Translator:
    """A model with an encoder and a decoder, which writes the likeliest text that it finds.

    Parameters
    ----------
    model: a folder of Optimum: ``encoder_model.onnx``, and ``decoder_model_merged.onnx``, or ``decoder_model.onnx`` and
        mostly ``decoder_with_past_model.onnx``; ``config.json``, ``generation_config.json``, ``tokenizer.json``.  Each
        network may be a ``.bolt``, and they may lie in a folder ``onnx``.
    options: of `bolt_numba.compile`.
    The constructor raises what `compile` raises, InvalidModelError for files, and DTypeError.
    """

    @border("translator", OSError)
    def __init__(self, model: str | os.PathLike[str], **options: Unpack[OptionKeywords]) -> None:
        self.folder = path_of("model", model)
        self.folder.stat()  # raises OSError where there is nothing
        files = {name: _network(self.folder, name) for name in (ENCODER, MERGED, FIRST, LATER)}
        encoder, first, later = files[ENCODER], files[MERGED] or files[FIRST], files[LATER]
        if encoder is None or first is None:
            raise InvalidModelError(
                f"{self.folder}: got no model, wanted {ENCODER}.onnx and {MERGED}.onnx or {FIRST}.onnx"
            )
        self._said = settings_of(self.folder / CONFIG) | settings_of(self.folder / GENERATION)
        self.settings, self.begin, self.ends = self._settings()
        most = self._said.get("max_position_embeddings")
        most = most if type(most) is int and 0 < most < MOST_SOURCE else MOST_SOURCE
        self.tokenizer = TextTokenizer(self.folder / TOKENIZER, most)
        self.encoder, self.first = compile(encoder, **options), compile(first, **options)
        self.later = self.first if files[MERGED] else None if later is None else compile(later, **options)

    def _settings(self) -> tuple[dict[str, Any], list[int], list[int]]:
        """Fields of `BeamSettings`, tokens that texts begin with, and those that end them."""
        said, where = self._said, self.folder / GENERATION
        want_neutral(where, said, NEUTRAL)
        made = {own: said[name] for name, own in SAID.items() if said.get(name) is not None}
        starts, ends = (
            [one] if type(one) is int else one for one in map(said.get, ("decoder_start_token_id", "eos_token_id"))
        )
        words = said.get("bad_words_ids") or []
        tokens = {"decoder_start_token_id": starts, "eos_token_id": ends, "bad_words_ids": words}
        for name, found in tokens.items():
            rows = [[one] for one in found] if isinstance(found, list) and name != "bad_words_ids" else found
            if not isinstance(rows, list) or not all(
                isinstance(r, list) and len(r) == 1 and is_token(r[0]) for r in rows
            ):
                raise InvalidModelError(f"{where}: {name}: got {found!r:.80}, wanted tokens")
        assert starts is not None, "they have been looked at"
        assert ends is not None, "likewise"
        longest, least = said.get("max_length") or USUAL_LENGTH + len(starts), said.get("min_length") or 0
        if type(longest) is not int or type(least) is not int:
            raise InvalidModelError(f"{where}: max_length, min_length: got {longest!r}, {least!r}, wanted numbers")
        made["max_tokens"] = said.get("max_new_tokens") or max(longest - len(starts), 1)
        made["min_tokens"] = max(least - len(starts), 0)
        BeamSettings(**made)
        return made | {"never": [*made.get("never", ()), *(one for (one,) in words)]}, starts, ends

    @overload
    def translate(
        self, source: str | Mapping[str, Any], begin: Sequence[int] | None = None, **settings: Any
    ) -> TranslatedText: ...
    @overload
    def translate(
        self, source: Sequence[str], begin: Sequence[int] | None = None, **settings: Any
    ) -> list[TranslatedText]: ...
    @border("translate")
    def translate(
        self, source: str | Mapping[str, Any] | Sequence[str], begin: Sequence[int] | None = None, **settings: Any
    ) -> TranslatedText | list[TranslatedText]:
        """What the model writes for a text, for each of several, or for other inputs of the encoder by their names.

        begin: tokens before its first, such as those of a language; None: as the files say.  settings: fields of
        `BeamSettings`, which else are those of the files.  Raises OptionError for one, DTypeError for what is no text,
        DataError for one that is too long, and what a run raises.
        """
        if not isinstance(source, (str, Mapping)):
            given: Any = source
            if not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
                raise DTypeError(f"source: got {given!r:.80}, wanted a text, texts, or arrays by name")
            return [self.translate(one, begin, **settings) for one in given]
        begin = self.begin if begin is None else begin
        if not begin or not all(map(is_token, begin)):
            raise OptionError(f"begin: got {begin!r:.80}, wanted tokens")
        beams = self._beams(begin, settings)
        return self._found(self._reader(self._inputs(source)), beams)

    def _beams(self, begin: Sequence[int], settings: Mapping[str, Any]) -> BeamSearch:
        """A search; tokens before the first count where the files bound the whole."""
        more = 0 if self._said.get("max_new_tokens") else len(begin) - len(self.begin)
        made = {**self.settings, "max_tokens": max(self.settings["max_tokens"] - more, 1), **settings}
        return BeamSearch(beam_settings(made), begin, self.ends)

    def _reader(self, feeds: Mapping[str, Array]) -> CrossDecoder:
        """A decoder that looks at what the encoder makes of this."""
        hidden = self.encoder(feeds)[0]
        mask = feeds.get("attention_mask", np.ones(hidden.shape[:2], np.int64))
        return CrossDecoder(self.first, self.later, hidden, mask)

    def _found(self, decoder: CrossDecoder, beams: BeamSearch) -> TranslatedText:
        sources = [0]
        while not beams.is_done:
            sources = beams.step(decoder.run(beams.tokens, sources))
        score, tokens = beams.results()[0]
        return TranslatedText(str(self.tokenizer.own.decode(tokens)), tokens, score)

    def _inputs(self, source: str | Mapping[str, Any]) -> dict[str, Array]:
        """What the encoder is given."""
        if isinstance(source, Mapping):
            return dict(source)
        (row,) = self.tokenizer.rows([(source,)])
        if row.is_cut:
            raise DataError(f"source: got more tokens than {self.tokenizer.max_tokens}, wanted at most as many")
        known = {"input_ids": row.ids[None], "attention_mask": np.ones((1, len(row.ids)), np.int64)}
        specs = {spec.name: spec.dtype for spec in self.encoder.inputs if spec.name in known}
        return {name: known[name].astype(dtype) for name, dtype in specs.items()}


def want_neutral(where: Path, said: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    """Raises InvalidModelError where a file asks for what is not done here."""
    for name, value in neutral.items():
        if said.get(name, value) not in (value, None):
            raise InvalidModelError(f"{where}: {name}: got {said[name]!r:.80}, wanted {value}")


def _network(folder: Path, name: str) -> Path | None:
    found = (folder / f"{below}{name}.{kind}" for below in ("", "onnx/") for kind in ("bolt", "onnx"))
    return next((path for path in found if path.is_file()), None)
