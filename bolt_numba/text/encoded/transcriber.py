"""Speech to text, by models of Whisper's type: an encoder hears half a minute, and a decoder writes what was said."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import DataError, DTypeError, InvalidModelError, OptionError
from bolt_numba.base.options import want_one_of
from bolt_numba.base.types import F32, Array
from bolt_numba.compiling import compile
from bolt_numba.preprocessing import Audio, open_sound
from bolt_numba.text.beams import is_token
from bolt_numba.text.encoded.translator import HIDDEN, CrossDecoder, Translator, want_neutral
from bolt_numba.text.layout import settings_of, value_of
from bolt_numba.text.opened import GENERATION

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords

PREPROCESSOR = "preprocessor_config.json"
USUAL = {"feature_size": 80, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}
"""What files say of the spectrogram, and what holds where they do not."""
NEUTRAL = {"feature_extractor_type": "WhisperFeatureExtractor", "dither": 0, "do_normalize": False, "padding_value": 0}
HIGHEST_HERTZ = 8000.0
"""Of the bands, whatever the rate."""
MOST_SAMPLES = 1 << 24
"""That are heard at once: a quarter of an hour."""
SPAN, SHIFT = np.float32(8), np.float32(4)
"""How far levels lie below the greatest at most, and what brings them near to 1, in powers of ten."""
USUAL_TASK = "transcribe"


class SpokenPart(NamedTuple):
    """A part of what was said: where it begins and ends, in seconds, its text and its tokens, times included."""

    start: float
    end: float
    text: str
    tokens: list[int]


class Transcript(NamedTuple):
    """What was said; language: that was asked for or heard, None where the model has one."""

    text: str
    language: str | None
    parts: list[SpokenPart]


class Transcriber(Translator):
    """A model that writes what is said.

    Parameters
    ----------
    model: a folder of Optimum, as `Translator` takes it, with ``preprocessor_config.json`` beside the others.
    options: of `bolt_numba.compile`.
    The constructor raises what that of `Translator` does.
    """

    @border("transcriber", OSError)
    def __init__(self, model: str | os.PathLike[str], **options: Unpack[OptionKeywords]) -> None:
        super().__init__(model, **options)
        where = self.folder / PREPROCESSOR
        if not (said := settings_of(where)):
            raise InvalidModelError(
                f"{where}: got none, wanted what says how the model hears: others are for translate"
            )
        want_neutral(where, said, NEUTRAL)
        bands, self.rate, self.hop, frame, seconds = (value_of(where, said, key, int) or n for key, n in USUAL.items())
        self.chunk, self.frame = seconds * self.rate, frame
        if self.chunk > MOST_SAMPLES:
            raise InvalidModelError(f"{where}: sampling_rate, chunk_length: got {self.rate}, {seconds}, wanted less")
        steps = Audio(self.rate, frame, self.hop, center=False, bands=bands, high=HIGHEST_HERTZ, log="log10")
        self.listen = compile(steps.graph(), threads=options.get("threads"))
        self.languages, self.tasks = self._tokens("lang_to_id"), self._tokens("task_to_id")
        self.no_times = value_of(self.folder / GENERATION, self._said, "no_timestamps_token_id", int)

    def _tokens(self, key: str) -> dict[str, int]:
        """Tokens that the files name; none where they do not."""
        found = self._said.get(key) or {}
        if not isinstance(found, dict) or not all(map(is_token, found.values())):
            raise InvalidModelError(f"{self.folder / GENERATION}: {key}: got {found!r:.80}, wanted tokens by name")
        return {name.strip("<|>"): token for name, token in found.items()}

    @border("transcribe", OSError)
    def transcribe(
        self, sound: str | os.PathLike[str] | Array, *, language: str | None = None, task: str | None = None,
        timestamps: bool | None = None, **settings: Any,
    ) -> Transcript:  # fmt: skip
        """What is said in a sound.

        sound: a WAV file, or samples from -1 to 1, f32[n], at `rate` a second.  language: such as "en"; None: as the
        files say, else what the model hears.  task: "transcribe", or "translate" for English; None: as the files say.
        timestamps: whether parts have times, by which a long sound is cut; None: where it is longer than the model
        hears at once.  settings: as for `Translator.translate`.  Raises OptionError for those, DTypeError and DataError
        for a sound, and what a run raises.
        """
        samples = open_sound(sound, self.rate) if isinstance(sound, (str, os.PathLike)) else _samples(sound)
        timed = timestamps or (timestamps is None and len(samples) > self.chunk and self.no_times is not None)
        first = sys.maxsize if self.no_times is None else self.no_times + 1
        if timed and self.no_times is None:
            raise OptionError(f"timestamps: got True, wanted False: {GENERATION} names no tokens for them")
        if timed:
            settings = {"latest": self._said.get("max_initial_timestamp_index"), **settings, "times": first}
        heard = self.heard(samples)
        most, ends = max(self.chunk // self.hop, 1), max(len(samples) // self.hop, 1)
        begin, parts, place, spec = list[int](), list[SpokenPart](), 0, self.encoder.inputs[0]
        while place < ends:
            window = heard[:, :, place : place + most]
            window = np.pad(window, ((0, 0), (0, 0), (0, most - window.shape[2])))
            reader = self._reader({spec.name: window.astype(spec.dtype)})
            begin = begin or self._begin(reader, language, task, timed)
            made = [t for t in self._found(reader, self._beams(begin, settings)).tokens if t not in self.ends]
            step = max(most // max(reader.encoded[HIDDEN].shape[1], 1), 1)
            found, moved = _cut(made, first if timed else sys.maxsize, min(most, ends - place) // step)
            for own, *times in found:
                text = self.tokenizer.own.decode([token for token in own if token < first])
                start, end = ((place + time * step) * self.hop / self.rate for time in times)
                parts.append(SpokenPart(start, end, text, own))
            place += most if moved is None else max(moved, 1) * step
        spoken = next((name for name, token in self.languages.items() if token in begin), None)
        return Transcript("".join(part.text for part in parts).strip(), spoken, parts)

    def heard(self, samples: Array) -> Array:
        """The spectrogram of a sound and of silence up to what is heard at once, f32[1, bands, frames]."""
        whole = np.pad(samples, (0, max(self.chunk - len(samples), 0)))
        ends = [*range(0, len(whole) // self.hop, max(self.chunk // self.hop, 1)), len(whole) // self.hop]
        whole = np.pad(whole, self.frame // 2, "reflect")  # piece by piece, as transforms take ten times the memory
        last = self.frame - self.hop
        made = [self.listen(whole[i * self.hop : j * self.hop + last])[0] for i, j in pairwise(ends)]
        levels = np.concatenate(made, 2)
        return np.asarray((np.maximum(levels, levels.max() - SPAN) + SHIFT) / SHIFT)

    def _begin(self, reader: CrossDecoder, language: str | None, task: str | None, timed: bool) -> list[int]:
        """Tokens before the first word."""
        forced = self._said.get("forced_decoder_ids")
        forced = [row[-1] for row in forced if isinstance(row, list) and row] if isinstance(forced, list) else []
        language, said = language or self._said.get("language"), task or self._said.get("task")
        made = [*self.begin]
        if language is None and said is None and forced and all(map(is_token, forced)):
            made += [token for token in forced if token != self.no_times]  # as files of early models have it
        elif self.languages:
            if language is None:
                (scores,), reader.past = reader.run([made], [0]), {}
                if max(self.languages.values()) >= len(scores):
                    raise InvalidModelError(f"{self.folder / GENERATION}: lang_to_id: wanted tokens of the model")
                language = max(self.languages, key=lambda name: float(scores[self.languages[name]]))
            made.append(self.languages[want_one_of("language", str(language).strip("<|>"), [*self.languages])])
            made += [self.tasks[want_one_of("task", said or USUAL_TASK, [*self.tasks])]] if self.tasks or task else []
        elif (language, task) != (None, None):
            raise OptionError(f"language, task: got {language!r}, {task!r}, wanted none: the model has one of each")
        return made if timed or self.no_times is None else [*made, self.no_times]


def _samples(given: Any) -> Array:
    """Sound as it was given, f32[n].  Raises DTypeError and DataError."""
    sound = np.asarray(given)
    if sound.dtype.kind != "f" or sound.ndim != 1:
        raise DTypeError(f"sound: got {sound.dtype}{[*sound.shape]}, wanted floats [samples], or a WAV file")
    if not sound.size or not np.isfinite(sound).all():
        raise DataError(f"sound: got {sound.size} samples, or some that are no numbers, wanted numbers from -1 to 1")
    return sound.astype(F32, copy=False)


def _cut(tokens: list[int], first: int, length: int) -> tuple[list[tuple[list[int], int, int]], int | None]:
    """Parts with their begins and ends in steps of times, and how far they go; None: all was heard.

    first: of the tokens that are times.  What follows the last pair of them was cut off, unless a text ends with one.
    """
    are = [token >= first for token in tokens]
    cuts = [i for i in range(1, len(tokens)) if are[i - 1] and are[i]]
    is_whole = not cuts or are[-2:] == [False, True]
    rows = [tokens[start:end] for start, end in pairwise([0, *cuts, *([len(tokens)] if is_whole else [])])]
    times = [[token - first for token in row if token >= first] for row in rows]
    found = [(row, (own or [0])[0], own[-1] if own[1:] else length) for row, own in zip(rows, times, strict=True)]
    return found, None if is_whole else found[-1][2]
