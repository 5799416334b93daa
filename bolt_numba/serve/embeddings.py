"""OpenAI's interface for embeddings: what requests ask, what is answered, and how errors are told.

As https://platform.openai.com/docs/api-reference/embeddings has it, with ``timeout`` and ``priority`` beside it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import Array
from bolt_numba.serve.errors import STATUS, RequestError

if TYPE_CHECKING:
    from bolt_numba.serve.models import ServedModel
    from bolt_numba.serve.repository import Repository
    from bolt_numba.text.encoder import Encoder
    from bolt_numba.text.tokens import TokenRow

PATH = "/v1/"
FIELDS = ("model", "input", "encoding_format", "dimensions")
FORMATS = ("float", "base64")
MOST_INPUTS = 2048
"""Of a request, as OpenAI has it."""
QUICK_LETTERS = 1 << 12
"""Texts that are made tokens where the request came: to hand them to another thread would take as long."""
CODES = {"denied": "invalid_api_key", "missing": "model_not_found", "busy": "rate_limit_exceeded"}
"""What OpenAI calls kinds of failures."""


class EmbeddingRequest:
    """What a request for embeddings asks.  The constructor raises RequestError for what does not fit."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.model: Any = asked.get("model")
        self.form = asked.get("encoding_format", FORMATS[0])
        self.dimensions, given = asked.get("dimensions"), asked.get("input")
        self.terms = {key: asked[key] for key in ("timeout", "priority") if key in asked}
        if not isinstance(self.model, str):
            raise RequestError(f"model: got {self.model!r:.80}, wanted the name of a model")
        if self.form not in FORMATS:
            raise RequestError(f"encoding_format: got {self.form!r:.40}, wanted one of {', '.join(FORMATS)}")
        if self.dimensions is not None and (type(self.dimensions) is not int or self.dimensions < 1):
            raise RequestError(f"dimensions: got {self.dimensions!r:.40}, wanted a number from 1")
        is_one = isinstance(given, str) or (isinstance(given, list) and given and type(given[0]) is int)
        self.inputs: Any = [given] if is_one else given
        wanted = f"wanted texts or lists of tokens, up to {MOST_INPUTS}"
        if not isinstance(self.inputs, list) or not 0 < len(self.inputs) <= MOST_INPUTS:
            got = f"{len(given)} of them" if isinstance(given, list) else f"{given!r:.80}"
            raise RequestError(f"input: got {got}, {wanted}")
        self.kind = type(self.inputs[0])
        if odd := [one for one in self.inputs if type(one) is not self.kind or self.kind not in (str, list)]:
            raise RequestError(f"input: got {odd[0]!r:.80} among others, {wanted}")

    async def rows(self, model: ServedModel) -> list[TokenRow]:
        """The inputs as tokens.  Raises RequestError where the model makes no embeddings, or takes no such inputs."""
        tokenizer = encoder_of(model).tokenizer
        try:
            if self.kind is list:
                rows = [tokenizer.row_of(one) for one in self.inputs]
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


def encoder_of(model: ServedModel) -> Encoder:
    """What makes a model's embeddings.  Raises RequestError where it makes none."""
    if model.encoder is None:
        raise RequestError(f"model: got {model.name!r:.80}, which makes no embeddings", "missing")
    return model.encoder


def listed(repository: Repository) -> dict[str, Any]:
    """The models that make embeddings, as OpenAI lists them."""
    models = [repository.find(name) for name in repository.models]
    return {"object": "list", "data": [described(m) for m in models if m.encoder is not None]}


def described(model: ServedModel) -> dict[str, Any]:
    """A model as OpenAI describes it.  Raises RequestError where it makes no embeddings."""
    encoder_of(model)
    return {"id": model.name, "object": "model", "created": model.since, "owned_by": "bolt-numba"}


def told(kind: str, said: str) -> dict[str, Any]:
    """An error as OpenAI tells it.  kind: a row of `STATUS`."""
    field = said.partition(":")[0]
    what = "server_error" if STATUS[kind][0] >= STATUS["internal"][0] else "invalid_request_error"
    return {
        "error": {"message": said, "type": what, "param": field if field in FIELDS else None, "code": CODES.get(kind)}
    }
