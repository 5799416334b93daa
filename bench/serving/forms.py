"""How requests and answers are written: the bytes of a request are made before anything is measured."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from bolt_numba.serve.tensors import NAMES
from bolt_numba.types import Array

JSON = {"content-type": "application/json"}


class Form(NamedTuple):
    """request: the bytes of one, of a model's name and inputs.  results: of an answer's body, and arrays like them."""

    request: Callable[[str, Mapping[str, Array]], bytes]
    results: Callable[[bytes, Sequence[Array]], list[Array]]


def http(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A request as it goes over the wire."""
    told = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{told}content-length: {len(body)}\r\n\r\n".encode() + body


def protocol_request(name: str, feeds: Mapping[str, Array], binary: bool) -> bytes:
    """A request of the Open Inference Protocol."""
    rows: list[dict[str, Any]] = []
    for key, array in feeds.items():
        row: dict[str, Any] = {"name": key, "datatype": NAMES[array.dtype], "shape": list(array.shape)}
        row |= {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel().tolist()}
        rows.append(row)
    text = json.dumps({"inputs": rows, "parameters": {"binary_data_output": binary}}).encode()
    blobs = b"".join(array.tobytes() for array in feeds.values()) if binary else b""
    return http(f"/v2/models/{name}/infer", text + blobs, {"inference-header-content-length": str(len(text))})


def _protocol_lists(body: bytes, like: Sequence[Array]) -> list[Array]:
    return [
        np.array(given["data"], array.dtype).reshape(given["shape"])
        for given, array in zip(json.loads(body)["outputs"], like, strict=True)
    ]


def lists_request(name: str, feeds: Mapping[str, Array]) -> bytes:
    """Lists by name, as an application of FastAPI has them."""
    return http("/infer", json.dumps({k: a.tolist() for k, a in feeds.items()}).encode(), JSON)


def _lists(body: bytes, like: Sequence[Array]) -> list[Array]:
    return [np.array(given, array.dtype) for given, array in zip(json.loads(body).values(), like, strict=True)]


def raw_request(name: str, feeds: Mapping[str, Array]) -> bytes:
    """A body that is the one input's bytes."""
    ((key, array),) = feeds.items()
    asked = urlencode({"name": key, "shape": ",".join(map(str, array.shape))})
    return http(f"/infer_bytes?{asked}", array.tobytes(), {"content-type": "application/octet-stream"})


def _raw(body: bytes, like: Sequence[Array]) -> list[Array]:
    """Arrays of the last bytes: what may stand before them is a head in JSON."""
    at, found = len(body) - sum(array.nbytes for array in like), list[Array]()
    for array in like:
        found.append(np.frombuffer(body[at : (at := at + array.nbytes)], array.dtype).reshape(array.shape))
    return found


def base64_request(name: str, feeds: Mapping[str, Array]) -> bytes:
    """Bytes in Base64 within JSON, as documentations have it for pictures."""
    told = {k: {"shape": a.shape, "data": base64.b64encode(a.tobytes()).decode()} for k, a in feeds.items()}
    return http("/predict", json.dumps(told).encode(), JSON)


def elements_request(name: str, feeds: Mapping[str, Array]) -> bytes:
    """The Open Inference Protocol with bytes in Base64 as one element of each input."""
    rows = [
        {"name": k, "datatype": "BYTES", "shape": [1, 1], "data": [base64.b64encode(a.tobytes()).decode()]}
        for k, a in feeds.items()
    ]
    return http(f"/v2/models/{name}/infer", json.dumps({"inputs": rows}).encode(), JSON)


def _texts(texts: Sequence[str], like: Sequence[Array]) -> list[Array]:
    return [
        np.frombuffer(base64.b64decode(text), array.dtype).reshape(array.shape)
        for text, array in zip(texts, like, strict=True)
    ]


BINARY = Form(lambda name, feeds: protocol_request(name, feeds, True), _raw)
PROTOCOL_JSON = Form(lambda name, feeds: protocol_request(name, feeds, False), _protocol_lists)
LISTS = Form(lists_request, _lists)
RAW = Form(raw_request, _raw)
BASE64 = Form(base64_request, lambda body, like: _texts([*json.loads(body).values()], like))
ELEMENTS = Form(
    elements_request, lambda body, like: _texts([o["data"][0] for o in json.loads(body)["outputs"]], like)
)  # fmt: skip
