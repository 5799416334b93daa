"""OpenAI's interface for embeddings: what requests ask, and what is answered.

As https://platform.openai.com/docs/api-reference/embeddings has it, with ``timeout`` and ``priority`` beside it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import Array
from bolt_numba.serve.errors import RequestError, shown, want_few
from bolt_numba.serve.openai import EMBEDDING, TERMS, given_in

if TYPE_CHECKING:
    from bolt_numba.serve.models import ServedModel
    from bolt_numba.text.tokens import TokenRow

FORMATS = ("float", "base64")
MOST_INPUTS = 2048
"""Of a request, as OpenAI has it."""
QUICK_LETTERS = 1 << 12
"""Texts that are made tokens where the request came: to hand them to another thread would take as long."""


class EmbeddingRequest:
    """What a request for embeddings asks.  The constructor raises RequestError for what does not fit."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        asked = given_in(body, EMBEDDING)
        self.model: str = asked["model"]
        self.form = asked.get("encoding_format", FORMATS[0])
        self.dimensions, given = asked.get("dimensions"), asked.get("input")
        self.terms = {key: asked[key] for key in TERMS if key in asked}
        if self.form not in FORMATS:
            raise RequestError(f"encoding_format: got {shown(self.form)}, wanted one of {', '.join(FORMATS)}")
        if self.dimensions is not None and (type(self.dimensions) is not int or self.dimensions < 1):
            raise RequestError(f"dimensions: got {shown(self.dimensions)}, wanted a number from 1")
        is_one = isinstance(given, str) or (isinstance(given, list) and given and type(given[0]) is int)
        self.inputs: Any = [given] if is_one else given
        wanted = f"wanted texts or lists of tokens, up to {MOST_INPUTS}"
        if not isinstance(self.inputs, list) or not 0 < len(self.inputs) <= MOST_INPUTS:
            got = f"{len(given)} of them" if isinstance(given, list) else shown(given)
            raise RequestError(f"input: got {got}, {wanted}")
        self.kind = type(self.inputs[0])
        if odd := [one for one in self.inputs if type(one) is not self.kind or self.kind not in (str, list)]:
            raise RequestError(f"input: got {shown(odd[0])} among others, {wanted}")

    async def rows(self, model: ServedModel) -> list[TokenRow]:
        """The inputs as tokens, of a model with an encoder.  Raises RequestError where it takes no such inputs."""
        tokenizer = model.encoder.tokenizer  # type: ignore[union-attr]
        if model.under_way > model.settings.queue:  # others become tokens, too, which is before the queue
            raise RequestError(f"model {model.name!r}: got more requests than its queue has room for", "busy")
        if model.settings.max_rows is not None:
            want_few("input", len(self.inputs), model.settings.max_rows)
        try:
            if self.kind is list:
                rows = [tokenizer.row_of(one, number) for number, one in enumerate(self.inputs)]
            else:
                texts, is_quick = [(one,) for one in self.inputs], sum(map(len, self.inputs)) <= QUICK_LETTERS
                rows = tokenizer.rows(texts) if is_quick else await asyncio.to_thread(tokenizer.rows, texts)
        except BoltError as error:
            raise RequestError(f"input: {error}") from error
        if not model.truncates and (cut := [number for number, row in enumerate(rows) if row.is_cut]):
            most = f"wanted at most {tokenizer.max_tokens}: [embeddings] truncate = true cuts the rest off"
            raise RequestError(f"input: number {cut[0]}: got more tokens, {most}")
        return rows

    def answer(self, made: Sequence[Array], rows: Sequence[TokenRow]) -> dict[str, Any]:
        """The vectors as a document of JSON, whose arrays the encoder writes."""
        tokens, is_float = sum(len(row.ids) for row in rows), self.form == FORMATS[0]
        data = [
            {"object": "embedding", "index": n, "embedding": v if is_float else base64.b64encode(v.tobytes()).decode()}
            for n, v in enumerate(made)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.model, "usage": usage}
