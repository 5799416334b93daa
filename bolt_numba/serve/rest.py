"""REST: the Open Inference Protocol over HTTP, metrics, and what every request is held to."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bolt_numba.base.types import Array
from bolt_numba.serve import protocol
from bolt_numba.serve.errors import STATUS, RequestError, failure, want_token
from bolt_numba.serve.metrics import exposition
from bolt_numba.serve.models import RequestTerms, ServedModel
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.tensors import from_bytes, from_json, name_of, to_bytes, to_json, want_shape

log = logging.getLogger("bolt_numba.serve")

JSON_LENGTH = "inference-header-content-length"
JSON, BINARY = "application/json", "application/octet-stream"
RETRY_S = "1"
PACKED = {"gzip": 31, "deflate": 15}
"""Encodings of a body, and what zlib calls them."""
WORTH_PACKING = 1 << 10
LEVEL = 1
OPEN = ("/v2/health/live", "/v2/health/ready")
"""Paths that need no token."""

Handler = Callable[[Request], Awaitable[Response]]


class Rest:
    """The application.  most: bytes of a body; seconds: that it may take to arrive; token: that requests must bring."""

    def __init__(self, repository: Repository, most: int, seconds: float, token: str | None) -> None:
        self.repository, self.most, self.seconds, self.token = repository, most, seconds, token
        routes = [
            ("POST", "/v2/models/{model}/infer", self.infer),
            ("POST", "/v2/models/{model}/versions/{version}/infer", self.infer),
            ("GET", "/v2/health/live", self.live), ("GET", "/v2/health/ready", self.ready),
            ("GET", "/v2", self.server), ("GET", "/v2/models/stats", self.stats), ("GET", "/metrics", self.metrics),
            ("POST", "/v2/repository/index", self.index),
            ("POST", "/v2/repository/models/{model}/load", self.load),
            ("POST", "/v2/repository/models/{model}/unload", self.unload),
        ]  # fmt: skip
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            of_model = (
                ("", self.model),
                ("/ready", self.model_ready),
                ("/config", self.config),
                ("/stats", self.stats),
            )
            routes += [("GET", path + end, handler) for end, handler in of_model]
        self.app = Starlette(
            routes=[Route(path, self._guarded(handler), methods=[method]) for method, path, handler in routes],
            exception_handlers={HTTPException: _http_error},
        )

    def _guarded(self, handler: Handler) -> Handler:
        """A handler whose requests are held to the token, and whose errors become answers."""

        async def answer(request: Request) -> Response:
            begin, path = time.perf_counter(), request.scope["path"]
            try:
                if path not in OPEN:
                    want_token(self.token, request.headers.get("authorization", ""))
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=STATUS["cancelled"][0])
            except Exception as error:
                response = _failure(error)
            status, asked = response.status_code, request.headers.get("x-request-id")
            if asked:
                response.headers["x-request-id"] = asked
            level = logging.INFO if status >= STATUS["internal"][0] and path not in OPEN else logging.DEBUG
            if log.isEnabledFor(level):
                told = {"method": request.method, "path": path, "status": status, "request_id": asked}
                log.log(level, "request", extra=told | {"ms": round(1e3 * (time.perf_counter() - begin), 3)})
            return response

        return answer

    # --- what there is -----------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        return Response()

    async def ready(self, request: Request) -> Response:
        return Response(status_code=200 if self.repository.is_ready else STATUS["unavailable"][0])

    async def server(self, request: Request) -> Response:
        return _json(protocol.server_metadata())

    def _model(self, request: Request) -> ServedModel:
        return self.repository.find(request.path_params["model"], request.path_params.get("version", ""))

    async def model(self, request: Request) -> Response:
        return _json(protocol.model_metadata(self.repository, self._model(request)))

    async def model_ready(self, request: Request) -> Response:
        self._model(request)
        return Response()

    async def config(self, request: Request) -> Response:
        return _json(protocol.model_config(self._model(request)))

    async def stats(self, request: Request) -> Response:
        return _json(protocol.model_statistics(self.repository, **_named(request.path_params)))

    async def metrics(self, request: Request) -> Response:
        for model in self.repository.versions():
            model.measure()
        return Response(exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def index(self, request: Request) -> Response:
        asked = _object(await self._body(request) or b"{}")
        return _json(self.repository.index(asked.get("ready") is True))

    async def load(self, request: Request) -> Response:
        asked = _table("load", _object(await self._body(request) or b"{}"))
        await self.repository.change(request.path_params["model"], asked, loads=True)
        return Response()

    async def unload(self, request: Request) -> Response:
        await self.repository.change(request.path_params["model"], (), loads=False)
        return Response()

    # --- inference ---------------------------------------------------------------------------------------------------

    async def infer(self, request: Request) -> Response:
        body = await self._body(request)
        head, rest = _parts(request, body)
        model = self._model(request)
        parameters = _table("request", head)
        arrays = _arrays(head, rest)
        wanted, binary = _outputs(head, parameters)
        if not isinstance(head.get("id", ""), str):
            raise RequestError(f"id: got {head['id']!r:.40}, wanted a text")
        run = model.infer(arrays, wanted, RequestTerms(parameters))
        made = await (run if model.is_quick(arrays) else _unless_gone(request, run))
        answer: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "outputs": []}
        if "id" in head:
            answer["id"] = head["id"]
        return _answer(request, answer, made, binary)

    async def _body(self, request: Request) -> bytes:
        """The body, unpacked.  Raises RequestError for one that is too large or too slow."""
        said = request.headers.get("content-length", "0")
        if said.isdecimal() and int(said[:20]) > self.most:
            raise RequestError(f"body: got {said} bytes, wanted at most {self.most}", "large")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.seconds):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > self.most:
                        raise RequestError(f"body: got more than {self.most} bytes, wanted at most so many", "large")
        except TimeoutError:
            raise RequestError(f"body: got {size} bytes in {self.seconds} s, wanted all of it", "late") from None
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


async def _unless_gone(request: Request, running: Coroutine[Any, Any, dict[str, Array]]) -> dict[str, Array]:
    """What a run gives; it is cancelled where the client goes away."""
    run = asyncio.ensure_future(running)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((run, gone), return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            raise ClientDisconnect
        return run.result()
    finally:
        gone.cancel()
        run.cancel()


def _failure(error: Exception) -> Response:
    kind, said = failure(error)
    headers = {"retry-after": RETRY_S} if kind in ("busy", "unavailable") else None
    return Response(orjson.dumps({"error": said}), STATUS[kind][0], headers, JSON)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else STATUS["internal"][0]
    said = f"{request.method} {request.url.path[:200]}: {getattr(error, 'detail', error)}"
    return Response(orjson.dumps({"error": said}), status, getattr(error, "headers", None), JSON)


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type=JSON)


def _named(params: Mapping[str, str]) -> dict[str, str]:
    return {"name": params.get("model", ""), "version": params.get("version", "")}


def _object(text: bytes | memoryview) -> dict[str, Any]:
    """An object of JSON.  Raises RequestError for what is none."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"body: got what is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(f"body: got a {type(found).__name__}, wanted an object of JSON")
    return found


def _parts(request: Request, body: bytes) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a body, and the bytes of tensors behind it."""
    said = request.headers.get(JSON_LENGTH)
    if said is None:
        return _object(body), memoryview(b"")
    if not said.isdecimal() or len(said) > 20 or int(said) > len(body):
        raise RequestError(f"{JSON_LENGTH}: got {said!r:.40}, wanted a number up to the {len(body)} bytes of the body")
    whole, end = memoryview(body), int(said)
    return _object(whole[:end]), whole[end:]


def _table(what: str, holder: Mapping[str, Any]) -> dict[str, Any]:
    found = holder.get("parameters") or {}
    if not isinstance(found, dict):
        raise RequestError(f"{what}: parameters: got a {type(found).__name__}, wanted an object")
    return found


def _rows(head: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = head.get(key) or []
    if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("name"), str) for r in rows):
        raise RequestError(f"{key}: got {rows!r:.80}, wanted a list of objects with a name")
    if len({r["name"] for r in rows}) != len(rows):
        raise RequestError(f"{key}: got {[r['name'] for r in rows]}, wanted each name once")
    return rows


def _arrays(head: Mapping[str, Any], rest: memoryview) -> dict[str, Array]:
    """Inputs by name: of JSON, or of the bytes behind it."""
    found, at = dict[str, Array](), 0
    for row in _rows(head, "inputs"):
        name = row["name"]
        parameters, shape = _table(f"input {name!r}", row), want_shape(name, row.get("shape"))
        protocol.want_served(f"input {name!r}", parameters)
        size = parameters.get("binary_data_size")
        if size is None:
            found[name] = from_json(name, row.get("datatype"), shape, row.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise RequestError(
                f"input {name!r}: binary_data_size: got {size!r:.40}, wanted a number up to the {len(rest) - at} bytes "
                "that are left"
            )
        found[name] = from_bytes(name, row.get("datatype"), shape, rest[at : at + size])
        at += size
    if at != len(rest):
        raise RequestError(f"body: got {len(rest) - at} bytes behind the inputs, wanted none")
    return found


def _outputs(head: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[list[str], Callable[[str], bool]]:
    """Outputs that are wanted, and which of them as bytes."""
    rows, usual = _rows(head, "outputs"), parameters.get("binary_data_output") is True
    told = {row["name"]: _table(f"output {row['name']!r}", row) for row in rows}
    for name, own in told.items():
        protocol.want_served(f"output {name!r}", own)
    binary = {name: own.get("binary_data", usual) is True for name, own in told.items()}
    return list(told), lambda name: binary.get(name, usual)


def _answer(
    request: Request, answer: dict[str, Any], made: Mapping[str, Array], binary: Callable[[str], bool]
) -> Response:
    blobs: list[bytes | memoryview] = []
    for name, array in made.items():
        row: dict[str, Any] = {"name": name, "datatype": name_of(name, array), "shape": list(array.shape)}
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
