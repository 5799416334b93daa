"""The tokenizer of a GGUF file as the JSON that the package ``tokenizers`` reads, and what generators ask of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import Array
from bolt_numba.converters.bounded import texts_of
from bolt_numba.converters.gguf.container import Gguf

NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
"""Kinds of tokens that matter here."""
MOST_LETTERS = 64
"""Of a token behind which it is not cut in two."""
_SPACE = "\u2581"
"""Stands for a space in vocabularies with scores."""

_ENDING = r"'s|'t|'re|'ve|'m|'ll|'d"
_ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS, _LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = _ENDING + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_CASES = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{word}%s" for word in (f"{_CAPITALS}*{_LETTERS}+", f"{_CAPITALS}+{_LETTERS}*")
)
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_RULES: dict[tuple[str, ...], tuple[str, ...]] = {
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): ("default",),
    (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"): ("falcon",),
    (_GPT2,): ("gpt-2", "phi-2", "mpt", "olmo", "jais"),
    (r"\p{N}", _GPT2): ("smollm", "starcoder", "refact", "command-r", "codeshell"),
    (_WORDS % "{1,3}",): ("llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe"),
    (_WORDS % "",): ("qwen2", "deepseek-r1-qwen", "stablelm2"),
    (_CASES % ("", "") + r"|\p{N}" + _MARKS,): ("tekken",),
    (_CASES % (f"{_ENDINGS}?", f"{_ENDINGS}?") + r"|\p{N}{1,3}" + _MARKS,): ("gpt-4o",),
}
RULES = {name: rules for rules, names in _RULES.items() for name in names}
"""How texts are cut into words, by the name that files have for it: each rule cuts the pieces of the one before."""
WHOLE = ("llama3", "llama-v3", "llama-bpe", "falcon3", "tekken")
"""Where a word that is a token stays one, whatever its merges are."""
BEGINS = ("llama3", "llama-v3", "llama-bpe", "tekken")
"""Where texts begin with a token of their own, unless a file says otherwise."""
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "<|eom_id|>",
    "<|return|>", "<|call|>",
)  # fmt: skip
"""Texts of control tokens that end an answer."""
PARTLY = {"<|end|>": {"<|return|>", "<|call|>"}}
"""Those that only end a part of it where a vocabulary has these, too."""
SAMPLING = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"
}  # fmt: skip
"""Keys of how tokens are to be drawn, and the setting of generators; one below 0 asks for what 0 does."""


def read_tokenizer(found: Gguf) -> tuple[dict[str, str], list[str]]:
    """Entries of the graph's metadata, and what has no meaning here.  Raises InvalidModelError.

    ``tokenizer``: JSON · ``bos``: an id, absent if there is none · ``eos``: a list of all ids that end an answer ·
    ``add_bos``: whether texts begin with bos · ``chat_template``: as the file has it · ``sampling``: settings.
    """
    kind = found.text("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab"):
        return {}, []
    rules = found.text("tokenizer.ggml.pre", "default")
    if kind not in ("gpt2", "llama"):
        return {}, [f"tokenizer '{kind}', wanted gpt2 or llama"]
    if kind == "gpt2" and rules not in RULES:
        return {}, [f"tokenizer.ggml.pre '{rules}', wanted one of {', '.join(RULES)}"]
    made = _Vocabulary(found)
    whole = made.by_words(rules) if kind == "gpt2" else made.by_scores()
    facts = {"tokenizer": json.dumps(whole, ensure_ascii=False, separators=(",", ":")), **made.ends()}
    adds = found.values.get("tokenizer.ggml.add_bos_token", kind == "llama" or rules in BEGINS)
    facts["add_bos"] = json.dumps(bool(adds) and "bos" in facts)
    template = found.text("tokenizer.chat_template", "")
    facts |= {"chat_template": template} if template else {}
    named: dict[str, Any] = {own: found.values.get(f"general.sampling.{key}") for key, own in SAMPLING.items()}
    asked = {own: value for own, value in named.items() if value is not None}
    if odd := [own for own, value in asked.items() if type(value) not in (int, float)]:
        raise InvalidModelError(f"{found.file}: keys 'general.sampling.*': got no number of {odd[0]}, wanted one")
    asked = {own: float(f"{value:.7g}") if type(value) is float else value for own, value in asked.items()}  # of f32
    return facts | ({"sampling": json.dumps({o: max(v, 0) for o, v in asked.items()})} if asked else {}), []


class _Vocabulary:
    """tokens: texts by their ids."""

    def __init__(self, found: Gguf) -> None:
        self.file, self.values = found.file, found.values
        self.tokens = self.texts("tokens")
        self.kinds: Array = self.numbers("token_type", "iu", np.full(len(self.tokens), NORMAL))
        self.vocab = {text: i for i, text in enumerate(self.tokens)}

    def texts(self, key: str) -> Sequence[str]:
        found = self.values.get(f"tokenizer.ggml.{key}")
        if not isinstance(found, list):
            raise self.invalid(key, "none" if found is None else type(found).__name__, "a list of texts")
        return texts_of(found, f"{self.file}: key 'tokenizer.ggml.{key}'")

    def numbers(self, key: str, kinds: str, default: Array | None = None) -> Array:
        """A number for each token."""
        found = self.values.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds or len(found) != len(self.tokens):
            got = "none" if found is None else f"{getattr(found, 'size', found)!s:.40}"
            raise self.invalid(key, got, f"{len(self.tokens)} numbers")
        return found

    def invalid(self, key: str, got: object, wanted: str) -> InvalidModelError:
        return InvalidModelError(f"{self.file}: key 'tokenizer.ggml.{key}': got {got}, wanted {wanted}")

    def by_words(self, rules: str) -> dict[str, Any]:
        """Bytes that are merged within words, by ranks."""
        vocab, pairs = self.vocab, ((text, *text.partition(" ")) for text in self.texts("merges"))
        merges = [text for text, a, _, b in pairs if b and a in vocab and b in vocab and a + b in vocab]
        cuts = [
            {"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False} for r in RULES[rules]
        ]
        bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        before = {"type": "Sequence", "pretokenizers": [*cuts, bytewise]}
        return self._json(merges, ignore_merges=rules in WHOLE) | {"pre_tokenizer": before, "decoder": bytewise}

    def by_scores(self) -> dict[str, Any]:
        """Letters that are merged to the token of the highest score, and bytes in the place of other letters."""
        scores, vocab = self.numbers("scores", "f"), self.vocab
        order = np.argsort(-scores, kind="stable").tolist()
        plain = dict.fromkeys(self.tokens[i] for i in order if self.kinds[i] == NORMAL)
        merges = [
            (text[:i], text[i:])
            for text in plain for i in range(1, min(len(text), MOST_LETTERS)) if text[:i] in vocab and text[i:] in vocab
        ]  # fmt: skip
        prefix = self.values.get("tokenizer.ggml.add_space_prefix", True) is True
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        first = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
        last = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *last]
        unknown = self.id_of("unknown_token_id")
        return self._json(merges, byte_fallback=True, unk_token=None if unknown is None else self.tokens[unknown]) | {
            "normalizer": {"type": "Sequence", "normalizers": [*first, spaces]},
            "decoder": {"type": "Sequence", "decoders": decoders},
        }

    def _json(self, merges: Sequence[object], **settings: Any) -> dict[str, Any]:
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        added = [
            {"id": i, "content": self.tokens[i], **plain, "special": int(self.kinds[i]) != USER}
            for i in np.flatnonzero(np.isin(self.kinds, (UNKNOWN, CONTROL, USER))).tolist()
            if self.tokens[i]
        ]
        model = {"type": "BPE", "fuse_unk": True, **settings, "vocab": self.vocab, "merges": merges}
        return {"version": "1.0", "added_tokens": added, "model": model}

    def id_of(self, key: str) -> int | None:
        """A token that a key names, if it does."""
        found = self.values.get(f"tokenizer.ggml.{key}")
        if found is not None and (type(found) is not int or not 0 <= found < len(self.tokens)):
            raise self.invalid(key, f"{found!s:.40}", f"0 to {len(self.tokens) - 1}")
        return found

    def ends(self) -> dict[str, str]:
        """Bos, and all tokens that end an answer."""
        bos = self.id_of("bos_token_id")
        named = [self.id_of(f"{key}_token_id") for key in ("eos", "eot", "eom")]
        have = [text for text in ENDS if text in self.vocab and self.kinds[self.vocab[text]] == CONTROL]
        told = [self.vocab[text] for text in have if not PARTLY.get(text, {""}) <= set(have)]
        eos = list(dict.fromkeys(i for i in [*named, *told] if i is not None))
        return {"eos": json.dumps(eos)} | ({} if bos is None else {"bos": str(bos)})
