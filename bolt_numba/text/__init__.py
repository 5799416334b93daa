"""Models of language: texts in, numbers or texts out (docs/text.md, docs/generate.md).

It needs the packages of the extra ``text``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bolt_numba.text.answers import Answer, Generation, TextPiece
    from bolt_numba.text.beams import TranslatedText
    from bolt_numba.text.encoded.transcriber import SpokenPart, Transcriber, Transcript
    from bolt_numba.text.encoded.translator import Translator
    from bolt_numba.text.encoder import Encoder
    from bolt_numba.text.generator import Generator
    from bolt_numba.text.sampling import Likely, Sampling
    from bolt_numba.text.tokens import PromptLengthError, TokenRow, TruncationWarning

_HOME = {
    "Answer": "answers", "Encoder": "encoder", "Generation": "answers", "Generator": "generator", "Likely": "sampling",
    "PromptLengthError": "tokens",
    "TextPiece": "answers", "Sampling": "sampling", "SpokenPart": "encoded.transcriber", "TokenRow": "tokens",
    "Transcriber": "encoded.transcriber", "Transcript": "encoded.transcriber", "TranslatedText": "beams",
    "Translator": "encoded.translator", "TruncationWarning": "tokens",
}  # fmt: skip
"""Where each name lives; a program that only embeds does without what generates."""
__all__ = [
    "Answer", "Encoder", "Generation", "Generator", "Likely", "PromptLengthError", "Sampling", "SpokenPart",
    "TextPiece", "TokenRow", "Transcriber", "Transcript", "TranslatedText", "Translator", "TruncationWarning",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bolt_numba.text' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"bolt_numba.text.{_HOME[name]}"), name)
    return value
