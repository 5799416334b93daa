"""Speech: an export of Optimum hears what transformers hears in PyTorch, and sounds come in as they should."""

from __future__ import annotations

import io
import json
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.cli.app import run
from bolt_numba.errors import BoltError, BudgetError, DataError, DTypeError, InvalidModelError, OptionError
from bolt_numba.preprocessing import open_sound
from bolt_numba.types import Array
from tests.test_audio_steps import mel_slaney, spectrum
from tests.text.golden_speech import CASES, FILE, LANGUAGES, RATE, SECONDS, sound

pytest.importorskip("tokenizers")
HEARD = json.loads(zipfile.ZipFile(FILE).read("heard.json"))
END, FIRST = 256, 267


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("whisper")
    zipfile.ZipFile(FILE).extractall(made)
    return made


@pytest.fixture(scope="module")
def transcriber(folder: Path) -> Any:
    return bn.text.Transcriber(folder, threads=1)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_it_hears_what_transformers_hears(transcriber: Any, case: int) -> None:
    own = dict(CASES[case])
    seconds = own.pop("seconds")
    made = transcriber.transcribe(sound(case), **own)
    text = "".join(transcriber.tokenizer.own.decode([token for token in p.tokens if token < END]) for p in made.parts)
    assert made.text == text.strip()
    assert made.language in (own["language"] or LANGUAGES)
    if not own["timestamps"]:
        ((start, end, tokens),) = HEARD[case]
        begin = [257, 258 + LANGUAGES.index(made.language), 262, FIRST - 1]
        assert begin + made.parts[0].tokens == [token for token in tokens if token != END]
        assert (made.parts[0].start, made.parts[0].end) == (start, pytest.approx(end, abs=0.02))
        return
    wanted = [row for row in HEARD[case] if row[0] < seconds]  # transformers goes on in the silence that fills a window
    assert len(made.parts) >= len(wanted) > 1
    for part, (start, end, tokens) in zip(made.parts, wanted, strict=False):
        is_last = min(tokens[-2:]) >= FIRST  # it has the time of the part behind it, too
        assert part.tokens == (tokens[:-1] if is_last else tokens)
        assert (part.start, part.end) == (pytest.approx(start), pytest.approx(end))


def test_spectrograms_are_those_of_the_formula(transcriber: Any) -> None:
    """Pieces of a long sound are as near to it as those of a short one."""
    for case in (0, 8):
        x = np.pad(sound(case), (0, max(SECONDS * RATE - len(sound(case)), 0)))
        bands = mel_slaney(RATE, 400, 80) @ spectrum(x, 400, 400, 160, True, "reflect", 2)[:, :-1]
        levels = np.log10(np.maximum(bands, 1e-10))
        wanted = (np.maximum(levels, levels.max() - 8) + 4) / 4
        np.testing.assert_allclose(transcriber.heard(sound(case))[0], wanted, atol=1e-4)


def written(samples: Array, rate: int = RATE, width: int = 2) -> bytes:
    """A WAV file.  samples: i16[n, channels]."""
    held, (count, channels) = io.BytesIO(), samples.shape
    with wave.open(held, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        whole = np.zeros((count, channels, width), np.uint8)
        whole[:, :, width - 2 :] = samples.astype("<i2")[..., None].view(np.uint8)
        file.writeframes(whole.tobytes())
    return held.getvalue()


@pytest.mark.parametrize("width", [2, 3, 4])
def test_files_of_sound(width: int, tmp_path: Path) -> None:
    levels = np.random.default_rng(width).integers(-(2**15), 2**15, (1000, 2))
    made = open_sound(written(levels, width=width))
    np.testing.assert_allclose(made, levels.mean(1) / 2**15, atol=1e-6)
    (tmp_path / "a.wav").write_bytes(written(levels, width=width))
    assert (open_sound(tmp_path / "a.wav") == made).all()


@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_another_rate_keeps_the_tone(rate: int) -> None:
    tone = lambda rate: np.sin(2 * np.pi * 440 * np.arange(rate) / rate)  # noqa: E731
    made = open_sound(written((tone(rate)[:, None] * 32767).astype(int), rate))
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, tone(RATE), atol=1e-3)


def test_what_is_no_sound_is_told(transcriber: Any, tmp_path: Path) -> None:
    good = written(np.ones((400, 1), int))
    for data in (b"", b"RIFF", good[:30], good[:44], b"x" * 100, good[:22] + bytes(2) + good[24:]):
        with pytest.raises(DataError, match="WAV"):
            open_sound(data)
    with pytest.raises(DataError, match="WAV"):
        open_sound(good[:34] + b"\x08" + good[35:])  # bits of a sample
    with pytest.raises(BoltError, match="nothing"):
        open_sound(tmp_path / "nothing.wav")
    with pytest.raises(BudgetError):
        open_sound(written(np.ones((1 << 20, 1), int), rate=1), 1 << 20)
    for given in (np.zeros((2, 3), np.float32), np.zeros(3, np.int16), 3.0, ["a"]):
        with pytest.raises(DTypeError, match="sound"):
            transcriber.transcribe(given)
    for given in (np.zeros(0), np.array([0.0, np.nan])):
        with pytest.raises(DataError, match="sound"):
            transcriber.transcribe(given)
    for given in ({"language": "xx"}, {"task": "sing"}, {"beams": 3}, {"num_beams": 0}):
        with pytest.raises(OptionError):
            transcriber.transcribe(sound(0), **given)


@pytest.mark.parametrize(
    ("file", "said", "told"),
    [
        ("preprocessor_config.json", {"do_normalize": True}, "do_normalize"),
        ("preprocessor_config.json", {"hop_length": "x"}, "hop_length"),
        ("preprocessor_config.json", {"sampling_rate": 10**9}, "sampling_rate"),
        ("preprocessor_config.json", {"feature_extractor_type": "OtherFeatures"}, "feature_extractor_type"),
        ("generation_config.json", {"lang_to_id": {"<|en|>": "x"}}, "lang_to_id"),
        ("generation_config.json", {"lang_to_id": {"<|en|>": 2**40}}, "lang_to_id"),
        ("generation_config.json", {"no_timestamps_token_id": -1}, "no_timestamps_token_id"),
    ],
)
def test_files_are_held_to_what_they_can_say(
    folder: Path, tmp_path: Path, file: str, said: dict[str, Any], told: str
) -> None:
    for each in folder.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    own = json.loads((folder / file).read_text())
    (tmp_path / file).write_text(json.dumps({**own, **said}))
    with pytest.raises(InvalidModelError, match=told):
        bn.text.Transcriber(tmp_path)


def test_other_models_are_told(folder: Path, tmp_path: Path) -> None:
    for each in folder.iterdir():
        if each.name != "preprocessor_config.json":
            (tmp_path / each.name).write_bytes(each.read_bytes())
    with pytest.raises(InvalidModelError, match="how the model hears"):
        bn.text.Transcriber(tmp_path)


def test_models_of_one_language(folder: Path, transcriber: Any, tmp_path: Path) -> None:
    """Early files name the tokens that a text begins with, and models of one language have no others."""
    for each in folder.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    own = json.loads((folder / "generation_config.json").read_text())
    plain = {name: value for name, value in own.items() if name not in ("lang_to_id", "task_to_id")}
    forced = {"forced_decoder_ids": [[1, 260], [2, 262], [3, FIRST - 1]]}
    (tmp_path / "generation_config.json").write_text(json.dumps(plain | forced))
    early = bn.text.Transcriber(tmp_path, threads=1)
    found = early.transcribe(sound(0))
    assert found.parts == transcriber.transcribe(sound(0), language="fr").parts
    assert found.language is None
    with pytest.raises(OptionError, match="language"):
        early.transcribe(sound(0), language="fr")


def test_the_command(folder: Path, transcriber: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = (sound(8)[:, None] * 32767).astype(int)
    (tmp_path / "a.wav").write_bytes(written(levels))
    made = transcriber.transcribe(tmp_path / "a.wav")
    assert len(levels) > SECONDS * RATE  # it is cut by times
    assert len(made.parts) > 1
    assert run(["transcribe", str(folder), str(tmp_path / "a.wav"), "--threads", "1"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == made.text
    assert run(["transcribe", str(folder), str(tmp_path / "a.wav"), "--timestamps", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[0].split()[1]) == pytest.approx(made.parts[0].end, abs=0.01)
    assert run(["transcribe", str(folder), str(tmp_path / "b.wav")]) == 1
