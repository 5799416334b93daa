"""Models that write texts: which files they are, and what these say of tokens, templates and ends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bolt_numba.base.errors import InvalidModelError, OptionError
from bolt_numba.base.files.regular import read_text
from bolt_numba.base.records import record
from bolt_numba.text.layout import MODELS, MOST_BYTES, TOKENIZER, model_in, path_of, settings_of, value_of
from bolt_numba.text.sampling import Sampling
from bolt_numba.text.tokens import MOST_BYTES as MOST_OF_TOKENIZER

GENAI, CONFIG, GENERATION, TOKENS, TEMPLATE = (
    "genai_config.json", "config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"
)  # fmt: skip
FORMAT, END, MOST_NAMES = "gguf", "eos_token_id", 8
SAID = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens",
}  # fmt: skip
"""What files say of how texts are made, and the field of `Sampling`."""
MOST_IDS = 1 << 32
"""Tokens that there can be."""
DRAWN = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
"""What holds in both layouts where tokens are drawn, and nothing else is said."""
KEPT = ("bos", "eos", "context_length", "add_bos", "sampling")
"""What metadata have in JSON."""


@record(frozen=True)
class WriterLayout:
    """What is known of a model that writes texts before it is compiled.

    tokenizer: as JSON.  context: positions that it is made for; None: not said.  ends: tokens behind which it has done.
    begin: the token that texts may begin with; begins: whether they do, where the tokenizer does not see to it.
    marks: the texts of tokens that templates name.  usual: fields of `Sampling` that the model asks for.  lengths: the
    least and the most tokens of a text and its prompt, where a caller says nothing.  caches: patterns of their names,
    as `decoder_of` takes them.
    """

    tokenizer: str
    context: int | None
    ends: tuple[int, ...]
    begin: int | None
    begins: bool
    template: str | None
    marks: Mapping[str, str]
    usual: Mapping[str, Any]
    lengths: tuple[int, int | None] = (0, None)
    caches: tuple[tuple[str, str], ...] = ()


def file_of(path: str | os.PathLike[str]) -> Path:
    """The file of the network.  Raises InvalidModelError for a folder without one, DTypeError, OSError."""
    given = path_of("model", path)
    genai = given / GENAI
    said = value_of(genai, _part(genai, settings_of(genai), "model", "decoder"), "filename", str)
    if said is None:
        if (files := sorted(given.glob("*.gguf"))) and not any((given / name).is_file() for name in MODELS):
            names = ", ".join(file.name for file in files[:MOST_NAMES])
            raise InvalidModelError(f"{given}: got a folder of {names}, wanted one of these")
        return model_in(given, "docs/generate.md#your-own-model")
    if Path(said).name != said:
        raise InvalidModelError(f"{genai}: filename: got {said!r:.80}, wanted a name of a file beside it")
    found = next((given / name for name in ("model.bolt", said) if (given / name).is_file()), None)
    if found is None:
        raise InvalidModelError(f"{given}: got no {said}, wanted the model that {GENAI} names")
    return found


def layout_beside(model: Path) -> WriterLayout:
    """What the files beside a network say.  Raises InvalidModelError for files that say what they cannot."""
    folder = model.parent if (model.parent / TOKENIZER).is_file() else model.parent.parent
    if not (folder / TOKENIZER).is_file():
        raise InvalidModelError(f"{model.parent / TOKENIZER}: got no tokenizer, wanted it beside the model")
    genai, config, said, tokens = (settings_of(folder / name) for name in (GENAI, CONFIG, GENERATION, TOKENS))
    own = _part(folder / GENAI, genai, "model")
    tokenizer = read_text(folder / TOKENIZER, MOST_OF_TOKENIZER, "a tokenizer")
    context = value_of(folder / GENAI, own, "context_length", int)
    context = context or value_of(folder / CONFIG, config, "max_position_embeddings", int)
    told = ((GENAI, own), (GENERATION, said), (CONFIG, config))
    ends = next((tokens_of(file, holder, END) for file, holder in told if END in holder), ())
    marks = {name: _mark(tokens.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    named = {name: text for name, text in marks.items() if text is not None}
    caches = _caches(folder / GENAI, _part(folder / GENAI, own, "decoder")) if own else ()
    asks, where = (_part(folder / GENAI, genai, "search"), folder / GENAI) if genai else (said, folder / GENERATION)
    least, most = (value_of(where, {key: asks.get(key) or None}, key, int) for key in ("min_length", "max_length"))
    template, lengths = _template(folder, tokens), (least or 0, most)
    return WriterLayout(tokenizer, context, ends, None, False, template, named, _usual(where, asks), lengths, caches)


def layout_within(metadata: Mapping[str, str], name: str) -> WriterLayout:
    """What a file of GGUF says itself.  Raises InvalidModelError where it has no tokenizer."""
    if "tokenizer" not in metadata:
        raise InvalidModelError(f"{name}: tokenizer: got none, wanted one in the file")
    try:
        own = {key: json.loads(metadata.get(key, "null")) for key in KEPT}
    except ValueError as error:
        raise InvalidModelError(f"{name}: metadata: got what is no JSON: {error}") from None
    usual = {} if own["sampling"] is None else _part(name, own, "sampling")
    if odd := usual.keys() - {*SAID.values()}:
        raise InvalidModelError(f"{name}: sampling: got {sorted(odd)!r:.80}, wanted {', '.join(SAID.values())}")
    context, begins = value_of(name, own, "context_length", int), value_of(name, own, "add_bos", bool)
    begin, ends = next(iter(tokens_of(name, own, "bos")), None), tokens_of(name, own, "eos")
    template, usual = metadata.get("chat_template"), _wanted(name, usual)
    return WriterLayout(metadata["tokenizer"], context, ends, begin, bool(begins), template, {}, usual)


def _usual(path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Sampling` that a file asks for.  As in transformers, tokens are drawn where ``do_sample`` is true."""
    draws, made = said.get("do_sample"), {own: said[key] for key, own in SAID.items() if said.get(key) is not None}
    if draws is not True:
        made.pop("temperature", None)
    return _wanted(path, {**DRAWN, **made} if draws is True else made | ({} if draws is None else {"temperature": 0}))


def _wanted(name: object, usual: dict[str, Any]) -> dict[str, Any]:
    try:
        Sampling(**usual)
    except OptionError as error:
        raise InvalidModelError(f"{name}: {error}") from None
    return usual


def _caches(path: Path, decoder: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Patterns of the caches' names, keys and values, in and out."""
    ins, outs = (_part(path, decoder, key) for key in ("inputs", "outputs"))
    keys = [(f"past_{part}_names", f"present_{part}_names") for part in ("key", "value")]
    rows = [(value_of(path, ins, past, str), value_of(path, outs, present, str)) for past, present in keys]
    return tuple((past, present) for past, present in rows if past is not None and present is not None)


def _part(path: object, holder: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """An object within objects; nothing where there is none."""
    found: Any = holder
    for key in keys:
        found = found.get(key, {})
        if not isinstance(found, dict):
            raise InvalidModelError(f"{path}: {key}: got {found!r:.80}, wanted an object")
    return dict(found)


def tokens_of(path: object, holder: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A token of a file, or a list of them; none where it is not said.  Raises InvalidModelError for what is none."""
    found = holder.get(key)
    listed = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(one) is int and 0 <= one < MOST_IDS for one in listed):
        raise InvalidModelError(f"{path}: {key}: got {found!r:.80}, wanted a token or several")
    return tuple(listed)


def _mark(found: Any) -> str | None:
    """The text of a special token, which may stand in an object."""
    found = found.get("content") if isinstance(found, dict) else found
    return found if isinstance(found, str) else None


def _template(folder: Path, tokens: Mapping[str, Any]) -> str | None:
    """The template for chats: a file, a text among the settings, or the one that is called default of several."""
    if (folder / TEMPLATE).is_file():
        return read_text(folder / TEMPLATE, MOST_BYTES, "a template")
    found = tokens.get("chat_template")
    if isinstance(found, list):
        rows = [row for row in found if isinstance(row, dict)]
        found = next((row.get("template") for row in rows if row.get("name") == "default"), None)
    return found if isinstance(found, str) else None
