"""OpenAI's interfaces apart from what they make: what requests may have, how models are listed and errors told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bolt_numba.base.options import not_among
from bolt_numba.serve.errors import MOST_SAID, STATUS, RequestError, shown

if TYPE_CHECKING:
    from bolt_numba.serve.models import ServedModel
    from bolt_numba.serve.repository import Repository

TERMS = ("timeout", "priority")
NONE = "none here does, and the log of the server may say why"
CODES = {
    "denied": "invalid_api_key", "missing": "model_not_found", "busy": "rate_limit_exceeded",
    "long": "context_length_exceeded",
}  # fmt: skip
"""What OpenAI calls kinds of failures."""
MAKES = {"encoder": "embeddings", "generator": "texts"}
"""What makes something for these interfaces, as a served model has it."""
TEXTS = (
    "model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop",
    "seed", "response_format", "logprobs", "top_logprobs", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "logit_bias", "user", "metadata", "safety_identifier", "prompt_cache_key", "timeout",
)  # fmt: skip
CHAT = ("messages", *TEXTS, "tools", "tool_choice", "parallel_tool_calls")
COMPLETION = ("prompt", *TEXTS)
EMBEDDING = ("model", "input", "encoding_format", "dimensions", "user", *TERMS)
PARAMS = {name: name for name in (*CHAT, *COMPLETION, *EMBEDDING)}
PARAMS |= {"json_schema": "response_format", "grammar": "tools"}
"""Fields of requests by what errors begin with."""


def given_in(body: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """What a request says.  Raises RequestError for fields that nothing here knows."""
    asked = {key: value for key, value in body.items() if value is not None}  # some clients send all keys
    if unknown := sorted(asked.keys() - {*known}):
        raise RequestError(not_among("request", unknown, known), field=unknown[0][:MOST_SAID])
    if not isinstance(asked.get("model"), str):
        raise RequestError(f"model: got {shown(asked.get('model'))}, wanted the name of a model")
    return asked


def listed(repository: Repository, wanted: Sequence[str] = tuple(MAKES)) -> dict[str, Any]:
    """The models that make something, as OpenAI lists them."""
    models = [repository.find(name) for name in repository.models]
    found = [described(m) for m in models if any(getattr(m, what) is not None for what in wanted)]
    return {"object": "list", "data": found}


def found_in(repository: Repository, name: str, *wanted: str) -> ServedModel:
    """A model that makes what is wanted.  Raises RequestError for any other, and for one that does not serve."""
    try:
        if any(getattr(model := repository.find(name), what) is not None for what in wanted):
            return model
    except RequestError as error:
        if error.kind != "missing":
            raise
    found, made = [row["id"] for row in listed(repository, wanted)["data"]], " or ".join(MAKES[w] for w in wanted)
    raise RequestError(f"model: got {shown(name)}, wanted one that makes {made}: {found or NONE}", "missing")


def described(model: ServedModel) -> dict[str, Any]:
    """A model as OpenAI describes it."""
    return {"id": model.name, "object": "model", "created": model.since, "owned_by": "bolt-numba"}


def told(kind: str, said: str, field: str | None = None) -> dict[str, Any]:
    """An error as OpenAI tells it.  kind: a row of `STATUS`.  field: of the request; None: the one it begins with."""
    begin = said.removeprefix("parameters: ").partition(":")[0]
    what = "server_error" if STATUS[kind][0] >= STATUS["internal"][0] else "invalid_request_error"
    return {"error": {"message": said, "type": what, "param": field or PARAMS.get(begin), "code": CODES.get(kind)}}
