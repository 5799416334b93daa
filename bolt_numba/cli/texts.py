"""The commands that make vectors of texts, and texts of speech."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bolt_numba.base.files.regular import open_regular, replaced
from bolt_numba.cli import console
from bolt_numba.cli.options import takes_options

TEXTS_AT_ONCE = 1024


@takes_options()
def embed(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or a folder of Hugging Face's layout.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts.")] = [],
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A text a line, behind TEXT; -: standard input.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="f32[n, d], as .npy.")] = None,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json.")] = None,
    pooling: Annotated[str | None, typer.Option("--pooling", help="cls, mean, max or last.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Of a text.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Make vectors of length 1.")
    ] = None,
    dimensions: Annotated[int | None, typer.Option("--dimensions", min=1, help="Only the first so many.")] = None,
    options: Mapping[str, Any] = {},
) -> None:
    """Make vectors of texts: a line of JSON for each, or a file."""
    from bolt_numba.text import Encoder, TruncationWarning

    if not texts and file is None:
        raise typer.BadParameter("got no text, wanted TEXT or --file", param_hint="TEXT")
    if output is not None and output.suffix.lower() != ".npy":
        raise typer.BadParameter(f"got the suffix {output.suffix!r}, wanted .npy", param_hint="-o")
    warnings.simplefilter("always", TruncationWarning)
    given = chain(texts, _lines(file) if file is not None else ())
    with nullcontext() if output is None else replaced(output) as written:  # told first where it cannot be written
        with console.progress(f"compiling {model.name}"):
            encoder = Encoder(
                model, tokenizer, pooling=pooling, normalize=normalize, max_tokens=max_tokens, **options
            )  # fmt: skip
        made = [encoder.embed([], dimensions=dimensions)]
        while part := [*islice(given, TEXTS_AT_ONCE)]:
            found = encoder.embed(part, dimensions=dimensions)
            if written is None:
                for text, vector in zip(part, found, strict=True):
                    console.write(json.dumps({"text": text, "embedding": vector.tolist()}))
            else:
                made.append(found)
        if written is not None:
            np.save(written, np.concatenate(made[1:] or made))


@takes_options()
def transcribe(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder of Optimum with a model of Whisper's type.")],
    sounds: Annotated[list[Path], typer.Argument(metavar="WAV...", help="Files of sound.")],
    language: Annotated[str | None, typer.Option("--language", help="Such as en; else what the model hears.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="transcribe, or translate for English.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="A line for each part, with its seconds.")] = False,
    options: Mapping[str, Any] = {},
) -> None:
    """Write what is said in files of sound, a line for each."""
    from bolt_numba.text import Transcriber

    with console.progress(f"compiling {model.name}"):
        transcriber = Transcriber(model, **options)
    for sound in sounds:
        made = transcriber.transcribe(sound, language=language, task=task, timestamps=timestamps or None)
        rows = [f"{part.start:8.2f} {part.end:8.2f}  {part.text.strip()}" for part in made.parts]
        console.write("\n".join(rows) if timestamps else made.text)


def _lines(path: Path) -> Iterator[str]:
    """Texts of a file, or of standard input, a line each; what is no UTF-8 is read as U+FFFD."""
    with open_regular(path) if str(path) != "-" else nullcontext(sys.stdin.buffer) as lines:
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r\n")
