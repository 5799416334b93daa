"""REST: the Open Inference Protocol over HTTP, metrics, and what every request is held to."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bolt_numba.base.types import Array
from bolt_numba.serve import openai, protocol
from bolt_numba.serve.embeddings import EmbeddingRequest
from bolt_numba.serve.errors import STATUS, RequestError, failure, shown, want_few, want_token
from bolt_numba.serve.metrics import FAILURES, exposition
from bolt_numba.serve.models import RequestTerms, unless_gone
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.settings import MIB, Doors
from bolt_numba.serve.tensors import (
    SMALL_BODY,
    datatype_of,
    inputs_of,
    to_bytes,
    to_json,
    want_served,
    whole_body,
)
from bolt_numba.serve.texts import ChatRequest, CompletionRequest, TextAnswers, TextRequest

log = logging.getLogger("bolt_numba.serve")

JSON_LENGTH = "inference-header-content-length"
JSON, BINARY, TEXT = "application/json", "application/octet-stream", "text/plain; version=0.0.4; charset=utf-8"
PLACES = "a path of /v2 (Open Inference Protocol), of /v1 (OpenAI: base_url ends with it), or /metrics"
RETRY_S = "1"
PACKED = {"gzip": 31, "deflate": 15}
"""Encodings of a body, and what zlib calls them."""
WORTH_PACKING = 1 << 10
LEVEL = 1
OPEN = ("/v2/health/live", "/v2/health/ready")
"""Paths that need no token."""
GROWS = 8
"""Times the size of the largest body that JSON may take in memory."""
TAKES = {b",": 32, b"[": 64, b"{": 64, b'"': 28}
"""Bytes that what a letter of JSON stands for takes as an object of Python."""

ARRAYS = orjson.OPT_SERIALIZE_NUMPY

Handler = Callable[[Request], Awaitable[Response]]


class Rest:
    """The application."""

    def __init__(self, repository: Repository, doors: Doors) -> None:
        self.repository, self.doors, self.most = repository, doors, int(doors.max_body * MIB)
        paths = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        routes: dict[str, Callable[[Request], Any]] = {f"POST {path}/infer": self.infer for path in paths}
        routes |= {  # behind what is asked most: they are tried one after another
            "GET /v2/health/live": lambda r: None,
            "GET /v2/health/ready": self.ready,
            "GET /v2": lambda r: protocol.server_metadata(),
            "GET /v2/models/stats": lambda r: protocol.model_statistics(repository, "", ""),
            "GET /metrics": lambda r: Response(exposition(repository.versions()), media_type=TEXT),
            "POST /v1/embeddings": self.embeddings,
            "POST /v1/chat/completions": partial(self.texts, kind=ChatRequest),
            "POST /v1/completions": partial(self.texts, kind=CompletionRequest),
            "GET /v1/models": lambda r: openai.listed(repository),
            "GET /v1/models/{model}": lambda r: openai.described(
                openai.found_in(repository, _named(r)[0], *openai.MAKES)
            ),
            "POST /v2/repository/index": self.index,
            "POST /v2/repository/models/{model}/load": partial(self.change, loads=True),
            "POST /v2/repository/models/{model}/unload": partial(self.change, loads=False),
        }
        for path in paths:
            routes |= {
                f"GET {path}": lambda r: protocol.model_metadata(repository, *_named(r)),
                f"GET {path}/ready": self.model_ready,
                f"GET {path}/config": lambda r: protocol.model_config(repository, *_named(r)),
                f"GET {path}/stats": lambda r: protocol.model_statistics(repository, *_named(r)),
            }
        self.app = Starlette(
            routes=[
                Route(path, self.guarded(handler), methods=[method])
                for (method, path), handler in ((name.split(), handler) for name, handler in routes.items())
            ],
            exception_handlers={HTTPException: _http_error},
        )

    def guarded(self, handler: Callable[[Request], Any]) -> Handler:
        """A handler whose requests are held to the token, and whose errors become answers.

        handler: gives a response, what its JSON says, None for an empty one, or a coroutine that gives it.
        """

        async def answer(request: Request) -> Response:
            begin, path = time.perf_counter(), request.scope["path"]
            try:
                if path not in OPEN:
                    want_token(self.doors.token, request.headers.get("authorization", ""))
                response = handler(request)
                if asyncio.iscoroutine(response):
                    response = await response
                if not isinstance(response, Response):
                    content = b"" if response is None else orjson.dumps(response, option=ARRAYS)
                    response = Response(content, media_type=JSON)
            except Exception as error:
                response = _failure(error, path)
            status, asked = response.status_code, request.headers.get("x-request-id")
            if asked:
                response.headers["x-request-id"] = asked
            is_wrong = status >= STATUS["internal"][0] and not path.endswith("/ready")  # clients ask it until it is so
            level = logging.INFO if is_wrong else logging.DEBUG
            if log.isEnabledFor(level):
                told = {"method": request.method, "path": path, "status": status, "request_id": asked}
                log.log(level, "request", extra=told | {"ms": round(1e3 * (time.perf_counter() - begin), 3)})
            return response

        return answer

    def ready(self, request: Request) -> Response | None:
        """Nothing if the server is ready; else, for who has the token, the models that do not serve, and why."""
        if self.repository.is_ready:
            return None
        told: dict[str, Any] = {"ready": False}
        with suppress(RequestError):
            want_token(self.doors.token, request.headers.get("authorization", ""))
            told["models"] = [row for row in self.repository.rows() if row["name"] not in self.repository.models]
        return Response(orjson.dumps(told), STATUS["unavailable"][0], media_type=JSON)

    def model_ready(self, request: Request) -> None:
        self.repository.find(*_named(request))

    async def index(self, request: Request) -> Any:
        return self.repository.index((await self._asked(request)).get("ready") is True)

    async def change(self, request: Request, loads: bool) -> None:
        asked = _table("load", await self._asked(request)) if loads else {}
        await self.repository.change(request.path_params["model"], asked, loads=loads)

    async def infer(self, request: Request) -> Response:
        body, said = await self.body(request), request.headers.get(JSON_LENGTH)
        model = self.repository.find(*_named(request))
        if said == "0" and body:
            if len(model.inputs) != 1:
                raise RequestError(f"body: got no JSON, wanted it: model {model.name!r} has {len(model.inputs)} inputs")
            head: dict[str, Any] = {"parameters": {"binary_data_output": True}}
            arrays = {model.inputs[0].name: whole_body(model.inputs[0], body)}
        else:
            end = len(body) if said is None else _end(said, len(body))
            head = self.read(body, end)
            arrays = inputs_of(_inputs(self._rows(head, "inputs"), memoryview(body)[end:]))
        parameters = _table("request", head)
        wanted, binary = _outputs(self._rows(head, "outputs"), parameters)
        if not isinstance(head.get("id", ""), str):
            raise RequestError(f"id: got {shown(head['id'])}, wanted a text")
        made = await model.infer(arrays, wanted, RequestTerms(parameters, gone=request.receive))
        answer: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "outputs": []}
        if "id" in head:
            answer["id"] = head["id"]
        return _answer(request, answer, made, binary)

    async def embeddings(self, request: Request) -> Any:
        asked, gone = EmbeddingRequest(await self._asked(request)), request.receive
        model, terms = openai.found_in(self.repository, asked.model, "encoder"), RequestTerms(asked.terms, gone=gone)
        with model.counted():  # from here on: a newer version may come while long texts become tokens
            rows = await asked.rows(model)
            made = await model.embed(rows, asked.dimensions, terms)
        return asked.answer(made, rows)

    async def texts(self, request: Request, kind: type[TextRequest]) -> Any:
        asked = kind(await self._asked(request))
        model = openai.found_in(self.repository, asked.model, "generator")
        made = TextAnswers(model, asked, RequestTerms(asked.terms))
        if asked.streams:
            return await made.stream()
        return await unless_gone(made.work, request.receive)

    def _rows(self, head: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        """Inputs or outputs that a request names."""
        rows = head.get(key) or []
        if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("name"), str) for r in rows):
            raise RequestError(f"{key}: got {shown(rows)}, wanted a list of objects with a name")
        want_few(key, len(rows), self.doors.max_tensors)
        return rows

    # --- bodies ------------------------------------------------------------------------------------------------------

    async def _asked(self, request: Request) -> dict[str, Any]:
        body = await self.body(request) or b"{}"
        return self.read(body, len(body))

    def read(self, text: bytes, end: int) -> dict[str, Any]:
        """The object of JSON before some byte.  Raises RequestError for what is none, or would take too much memory."""
        takes = sum(text.count(letter, 0, end) * size for letter, size in TAKES.items()) if end > SMALL_BODY else 0
        if takes > GROWS * self.most:
            raise RequestError(f"body: got too many values in {end} bytes of JSON, wanted them as bytes", "large")
        try:
            found = orjson.loads(text if end == len(text) else memoryview(text)[:end])
        except orjson.JSONDecodeError as error:
            raise RequestError(f"body: got what is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise RequestError(f"body: got a {type(found).__name__}, wanted an object of JSON")
        return found

    async def body(self, request: Request) -> bytes:
        """The body, unpacked.  Raises RequestError for one that is too large or too slow."""
        said = request.headers.get("content-length", "0")
        if said.isdecimal() and int(said[:20]) > self.most:
            raise RequestError(f"body: got {said} bytes, wanted at most {self.most}", "large")
        parts, size, seconds = [], 0, self.doors.body_seconds
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > self.most:
                        raise RequestError(f"body: got more than {self.most} bytes, wanted at most so many", "large")
        except TimeoutError:
            raise RequestError(f"body: got {size} bytes in {seconds} s, wanted all of it", "slow") from None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        packing = request.headers.get("content-encoding", "identity")
        return body if packing == "identity" else self._unpacked(body, packing)

    def _unpacked(self, body: bytes, packing: str) -> bytes:
        if packing not in PACKED:
            raise RequestError(f"content-encoding: got {packing!r:.40}, wanted {' or '.join(PACKED)}")
        unpacker = zlib.decompressobj(PACKED[packing])
        try:
            found = unpacker.decompress(body, self.most)
        except zlib.error as error:
            raise RequestError(f"body: got what is no {packing}: {error}") from None
        if unpacker.unconsumed_tail:
            raise RequestError(f"body: got more than {self.most} bytes in {packing}, wanted at most so many", "large")
        if not unpacker.eof:
            raise RequestError(f"body: got {packing} that is cut off")
        return found


def _failure(error: Exception, path: str) -> Response:
    if isinstance(error, ClientDisconnect):
        error = RequestError("request: got no client any more", "cancelled")
    (kind, said), field = failure(error), getattr(error, "field", None)
    headers = {"retry-after": RETRY_S} if kind in ("busy", "unavailable") else None
    return Response(_told(path, kind, said, field), STATUS[kind][0], headers, JSON)


def _told(path: str, kind: str, said: str, field: str | None = None) -> bytes:
    """An error as the protocol of a path tells it: OpenAI's, where it is not the other one's."""
    return orjson.dumps({"error": said} if path.startswith("/v2") else openai.told(kind, said, field))


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else STATUS["internal"][0]
    kind = "missing" if status == STATUS["missing"][0] else "invalid"
    FAILURES.labels(kind).inc()
    said = f"{request.method} {request.url.path[:200]}: {getattr(error, 'detail', error)}"
    said += f", wanted {PLACES}" if kind == "missing" else ""
    return Response(_told(request.url.path, "invalid", said), status, getattr(error, "headers", None), JSON)


def _named(request: Request) -> tuple[str, str]:
    """Model and version that a path names."""
    return request.path_params["model"], request.path_params.get("version", "")


def _end(said: str, size: int) -> int:
    """Where the JSON of a body ends."""
    if not said.isdecimal() or len(said) > 20 or int(said) > size:
        raise RequestError(f"{JSON_LENGTH}: got {said!r:.40}, wanted a number up to the {size} bytes of the body")
    return int(said)


def _table(what: str, holder: Mapping[str, Any]) -> dict[str, Any]:
    found = holder.get("parameters") or {}
    if not isinstance(found, dict):
        raise RequestError(f"{what}: parameters: got a {type(found).__name__}, wanted an object")
    return found


def _inputs(rows: list[dict[str, Any]], rest: memoryview) -> Iterator[tuple[str, Any, Any, dict[str, Any], Any]]:
    """Rows as `inputs_of` takes them; data are of JSON, or of the bytes behind it."""
    at = 0
    for row in rows:
        name, data = row["name"], row.get("data")
        parameters = _table(f"input {name!r}", row)
        size = parameters.get("binary_data_size")
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(rest) - at:
                raise RequestError(
                    f"input {name!r}: binary_data_size: got {shown(size)}, wanted a number up to the {len(rest) - at} "
                    "bytes that are left"
                )
            data = rest[at : at + size]
            at += size
        yield name, row.get("datatype"), row.get("shape"), parameters, data
    if at != len(rest):
        raise RequestError(f"body: got {len(rest) - at} bytes behind the inputs, wanted none")


def _outputs(rows: list[dict[str, Any]], parameters: Mapping[str, Any]) -> tuple[list[str], Callable[[str], bool]]:
    """Outputs that are wanted, and which of them as bytes."""
    usual = parameters.get("binary_data_output") is True
    told = {row["name"]: _table(f"output {row['name']!r}", row) for row in rows}
    for name, own in told.items():
        want_served(f"output {name!r}", own)
    binary = {name: own.get("binary_data", usual) is True for name, own in told.items()}
    return list(told), lambda name: binary.get(name, usual)


def _answer(
    request: Request, answer: dict[str, Any], made: Mapping[str, Array], binary: Callable[[str], bool]
) -> Response:
    blobs: list[bytes | memoryview] = []
    for name, array in made.items():
        row: dict[str, Any] = {"name": name, "datatype": datatype_of(name, array.dtype), "shape": list(array.shape)}
        if binary(name):
            blobs.append(to_bytes(array))
            row["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            row["data"] = to_json(array)
        answer["outputs"].append(row)
    text = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if blobs:
        return Response(b"".join([text, *blobs]), headers={JSON_LENGTH: str(len(text))}, media_type=BINARY)
    if len(text) >= WORTH_PACKING and "gzip" in request.headers.get("accept-encoding", ""):
        packer = zlib.compressobj(LEVEL, wbits=PACKED["gzip"])
        return Response(packer.compress(text) + packer.flush(), headers={"content-encoding": "gzip"}, media_type=JSON)
    return Response(text, media_type=JSON)
