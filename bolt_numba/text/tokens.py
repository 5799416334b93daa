"""Texts as tokens, by the package ``tokenizers``: files and texts are bounded, and what is cut off is told."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from reprlib import repr as shortly
from typing import Any, NamedTuple

import numpy as np

from bolt_numba.base.errors import DataError, InvalidModelError, OptionError
from bolt_numba.base.files.regular import read_text
from bolt_numba.base.types import Array

MOST_BYTES = 1 << 26
"""Of a tokenizer: twice the largest of those that are widely used."""
USUAL_TOKENS = 512
LETTERS, WIDER, MOST_LETTERS = 16, 8, 1 << 20
"""Letters of a text that are looked at for each token, how many times more where they give too few, and at most."""
ENOUGH = 2
"""Times the most tokens: where a text was cut, its last tokens are not those of the whole."""
LISTED = "added_tokens"
PARTS = ("truncation", "padding", LISTED, "normalizer", "pre_tokenizer", "post_processor", "decoder")
"""Keys of a tokenizer's file that it may do without."""
GROWING, MOST_GROWTH = ("normalizer", "pre_tokenizer", "post_processor", "decoder"), 128
"""Keys of what may make much of a text, and letters that each makes of one at most: NFKC makes 18 of one."""
CUT = "\ufdd0"
"""Stands within what spells a special token and shall be none; no text has it."""


class TruncationWarning(UserWarning):
    """Texts had more tokens than the model takes, and the rest was left out.

    What to do: docs/troubleshooting.md#truncationwarning
    """


class PromptLengthError(DataError):
    """A prompt leaves no place in the context of its model.

    What to do: docs/troubleshooting.md#promptlengtherror
    """


class TokenRow(NamedTuple):
    """Tokens of a text, or of a pair, as a model gets them.

    ids, types: of tokens, and of the text of a pair that they are from.  is_cut: whether some were left out.
    """

    ids: Array
    types: Array
    is_cut: bool


class TextTokenizer:
    """A ``tokenizer.json``.

    max_tokens: of a row; None: what the file says, or 512.  lower: make texts lower case.
    The constructor raises InvalidModelError, with the key of the file that is at fault, and OptionError.
    """

    def __init__(self, path: Path, max_tokens: int | None = None, lower: bool = False) -> None:
        self.path, self.lower = path, lower
        self.own = tokenizer_of(read_text(path, MOST_BYTES, "a tokenizer"), path)
        said = self.own.truncation or {}
        self.max_tokens = min(max_tokens or said.get("max_length") or USUAL_TOKENS, MOST_LETTERS)
        if self.max_tokens <= (special := self.own.num_special_tokens_to_add(False)):
            raise OptionError(f"max_tokens: got {self.max_tokens}, wanted more than the {special} that frame a text")
        self.own.no_padding()
        self.own.enable_truncation(self.max_tokens)

    def rows(self, texts: Sequence[tuple[str, ...]], first: int = 0) -> list[TokenRow]:
        """Tokens of texts (one each) and pairs (two).  What is no Unicode becomes U+FFFD.

        A long text is not looked at to its end.  Raises DataError for a text without tokens, with its number from
        ``first``.
        """
        given = [tuple(map(self._cleaned, parts)) for parts in texts]
        made: dict[int, TokenRow] = {}
        left, letters = list(range(len(given))), min(LETTERS * self.max_tokens, MOST_LETTERS)
        while left:
            heads = [tuple(_head(text, letters) for text in given[i]) for i in left]
            plain = [head[0] if len(head) == 1 else head for head in heads]
            found = guarded(f"{self.path}: a text", self.own.encode_batch_fast, plain)
            again = []
            for i, head, each in zip(left, heads, found, strict=True):
                is_part, count = head != given[i], len(each) + sum(map(len, each.overflowing))
                made[i] = TokenRow(np.array(each.ids), np.array(each.type_ids), is_part or bool(each.overflowing))
                if is_part and count < ENOUGH * self.max_tokens and letters < MOST_LETTERS:
                    again.append(i)
            left, letters = again, min(letters * WIDER, MOST_LETTERS)
        if empty := [i for i, row in made.items() if not len(row.ids)]:
            raise DataError(f"text {first + empty[0]}: got {texts[empty[0]][0]!r:.80}, wanted one with tokens")
        return [made[i] for i in range(len(given))]

    @cached_property
    def last_id(self) -> int:
        """The largest token."""
        return max(self.own.get_vocab().values(), default=0)

    def row_of(self, ids: Sequence[Any], number: int = 0) -> TokenRow:
        """Tokens that somebody else made.  Raises DataError for what is none, with the number of the text."""
        kept = ids[: self.max_tokens]
        if odd := [one for one in kept or [kept] if type(one) is not int or not 0 <= one <= self.last_id]:
            wanted = f"wanted whole numbers from 0 to {self.last_id}"
            raise DataError(f"number {number}: tokens: got {shortly(odd[0])}, {wanted}")
        return TokenRow(np.array(kept), np.zeros(len(kept), int), len(ids) > len(kept))

    def _cleaned(self, text: str) -> str:
        return cleaned(text.lower() if self.lower else text)


def cleaned(text: str) -> str:
    """The text, with U+FFFD for what is no Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _head(text: str, letters: int) -> str:
    """The first letters of a text, up to the end of a word where there is one."""
    if len(text) <= letters:
        return text
    end = max(text.rfind(blank, letters // 2, letters) for blank in " \n")
    return text[: end if end > 0 else letters]


def guarded(what: str, call: Callable[[Any], Any], given: Any) -> Any:
    """What a call of the package gives.  Raises InvalidModelError for what it meets, panics included."""
    try:
        return call(given)
    except BaseException as error:
        if not isinstance(error, Exception) and "Panic" not in type(error).__name__:
            raise
        raise InvalidModelError(f"{what}: got what the package tokenizers refuses: {error!s:.200}") from None


def tokenizer_of(text: str, name: object) -> Any:
    """The tokenizer of a ``tokenizer.json``.  Raises InvalidModelError with the name, and the key that is at fault."""
    from tokenizers import Tokenizer  # it is of an extra

    read = Tokenizer.from_str
    try:
        own = guarded("content", read, text)
    except InvalidModelError as error:
        raise InvalidModelError(f"{name}: {_key_at_fault(text, read)}: {error}") from None
    for key in GROWING:
        part = getattr(own, key)
        growth = 1.0 if part is None else _growth(json.loads(part.__getstate__()))
        if growth > MOST_GROWTH:
            wanted = f"wanted at most {MOST_GROWTH}"
            raise InvalidModelError(f"{name}: {key}: got one that makes {growth:.3g} letters of one, {wanted}")
    return own


def _growth(part: Any) -> float:
    """How many letters or tokens a part of a tokenizer, as the package writes it, makes of one at most."""
    match part["type"]:
        case "Sequence":
            inner = (part.get(key, ()) for key in ("normalizers", "pretokenizers", "processors", "decoders"))
            return math.prod(_growth(one) for each in inner for one in each)
        case "ByteLevel":
            return 2.0
        case "Prepend":
            return 1.0 + len(part["prepend"])
        case "Replace":
            replaced = part["pattern"].get("String")
            return max(1.0, len(part["content"]) / len(replaced)) if replaced else 1.0 + len(part["content"])
        case "TemplateProcessing":
            ids = sum(len(one["ids"]) for one in part["special_tokens"].values())
            return float(max(len(part["single"]), len(part["pair"])) + ids)
        case "Precompiled":
            whole = base64.b64decode(part["precompiled_charsmap"])
            texts = whole[4 + int.from_bytes(whole[:4], "little") :].split(b"\0")
            return float(max(len(one.decode(errors="ignore")) for one in texts))
    return 1.0


def _key_at_fault(text: str, read: Callable[[str], Any]) -> str:
    """The part without which a file could be read; its model, if there is none."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return "JSON"
    for key in PARTS if isinstance(whole, dict) else ():
        with suppress(InvalidModelError):
            guarded(key, read, json.dumps({**whole, key: [] if key == LISTED else None}))
            return key
    return "model"
