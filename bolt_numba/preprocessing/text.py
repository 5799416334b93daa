"""Descriptions of steps as texts: what one would write in Python, of these classes and plain values alone."""

from __future__ import annotations

import ast
from typing import Any

from bolt_numba.base.errors import BoltError
from bolt_numba.preprocessing.audio import Audio
from bolt_numba.preprocessing.image import Image
from bolt_numba.preprocessing.warp import Warp

KINDS: dict[str, Any] = {"Image": Image, "Audio": Audio, "Warp": Warp}
MOST_LETTERS = 10_000
"""Characters of a description."""


def steps_of(text: str) -> Any:
    """The steps of a text such as ``Image((48, 320), color="BGR")``; nothing of it is run.

    Raises BoltError where it is anything but a call of `Image`, `Audio` or `Warp` with plain values.
    """
    try:
        if len(text) > MOST_LETTERS:
            raise ValueError(f"longer than {MOST_LETTERS} characters")
        made = _read(ast.parse(text.strip(), mode="eval").body)
    except BoltError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BoltError(f"steps: got {text[:80]!r} ({error}), wanted Image(...), Audio(...) or Warp(...)") from error
    if not isinstance(made, tuple(KINDS.values())):
        raise BoltError(f"steps: got {text[:80]!r}, wanted Image(...), Audio(...) or Warp(...)")
    return made


def _read(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise ValueError(f"{ast.unparse(node)} is no plain value") from None
    if not isinstance(node.func, ast.Name) or node.func.id not in KINDS or any(k.arg is None for k in node.keywords):
        raise ValueError(f"{ast.unparse(node)} is none of {', '.join(KINDS)}")
    named = {str(k.arg): _read(k.value) for k in node.keywords}
    return KINDS[node.func.id](*map(_read, node.args), **named)
