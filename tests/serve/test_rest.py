"""REST as a stranger meets it: JSON by hand, limits, hostile requests, tokens, metrics, the end."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from tests.serve.serving import Running, running
from tests.small import add, same, softmax

INFER = "/v2/models/add/infer"
GOOD: dict[str, Any] = {
    "inputs": [
        {"name": "a", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
        {"name": "b", "datatype": "FP32", "shape": [1, 3], "data": [[10, 20, 30.5]]},
    ]
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("files")
    files = {
        "add": add(folder / "add.onnx"), "texts": same(folder / "texts.onnx", TensorProto.STRING),
        "soft": softmax(folder / "soft.onnx"), "int8": same(folder / "int8.onnx", TensorProto.INT8),
    }  # fmt: skip
    with running(files=files, max_body=1, body_seconds=1) as found:
        yield found


def ask(
    server: Running, path: str, body: bytes | Any = None, headers: dict[str, str] | None = None, method: str = ""
) -> tuple[int, Any, dict[str, str]]:
    """Status, what the JSON of the answer says (else its bytes), and headers."""
    connection = HTTPConnection(server.http, timeout=30)
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method or ("GET" if sent is None else "POST"), path, sent, headers or {})
    response = connection.getresponse()
    data, told = response.read(), {k.lower(): v for k, v in response.getheaders()}
    connection.close()
    if told.get("content-encoding") == "gzip":
        data = gzip.decompress(data)
    return response.status, json.loads(data) if data[:1] in (b"{", b"[") else data, told


def test_json(server: Running) -> None:
    status, found, _ = ask(server, INFER, {"id": "x", **GOOD})
    assert status == 200
    assert found == {
        "model_name": "add", "model_version": "1", "id": "x",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [11.0, 22.0, 33.5]}],
    }  # fmt: skip


def test_numbers_are_those_of_f32(server: Running) -> None:
    x = np.random.default_rng(0).normal(size=6).astype("f4")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": x.tolist()}]}
    _, found, _ = ask(server, "/v2/models/soft/infer", body)
    e = np.exp(x.reshape(2, 3).astype("f8"))
    assert np.allclose(np.reshape(found["outputs"][0]["data"], (2, 3)), e / e.sum(1, keepdims=True), rtol=1e-6)


def test_texts(server: Running) -> None:
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": ["größe", "b"]}]}
    _, found, _ = ask(server, "/v2/models/texts/infer", body)
    assert found["outputs"][0]["data"] == ["größe", "b"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": [1, -3]}, "wanted a list of sizes"),
        ({"shape": [1 << 62, 1 << 62]}, "wanted a list of sizes"),
        ({"shape": [0, 1 << 63, 3]}, "wanted a list of sizes"),
        ({"data": [1e308, 2, 3]}, "a number that FP32 does not hold"),
        ({"shape": [1, 3.0]}, "wanted a list of sizes"),
        ({"shape": [1] * 40}, "wanted a list of sizes"),
        ({"shape": None}, "wanted a list of sizes"),
        ({"shape": [2, 3]}, "got 3 elements, wanted 6"),
        ({"shape": [1 << 30, 3]}, "wanted 3221225472"),
        ({"data": [1, 2]}, "got 2 elements, wanted 3"),
        ({"data": [1, 2, "3"]}, "got '3', wanted numbers"),
        ({"data": [1, 2, True]}, "got True, wanted numbers"),
        ({"data": [[1, 2], [3]]}, "lists that are not of [1, 3]"),
        ({"data": None}, "got None, wanted 3"),
        ({"data": {"a": 1}}, "wanted 3"),
        ({"datatype": "FLOAT"}, "wanted one of BOOL"),
        ({"datatype": 7}, "wanted one of BOOL"),
        ({"datatype": "FP64"}, "got f64, wanted f32"),
        ({"name": "c"}, r"got ['c', 'b'], wanted ['a', 'b']"),
        ({"name": "b"}, "wanted each name once"),
        ({"name": None}, "wanted a list of objects with a name"),
        ({"parameters": {"binary_data_size": 12}}, "binary_data_size: got 12"),
        ({"parameters": {"binary_data_size": -1}}, "binary_data_size: got -1"),
        ({"parameters": [1]}, "wanted an object"),
        ({"parameters": {"shared_memory_region": "x"}}, "shared_memory_region"),
    ],
)
def test_wrong_inputs(change: dict[str, Any], said: str, server: Running) -> None:
    first, second = GOOD["inputs"]
    status, found, _ = ask(server, INFER, {"inputs": [{**first, **change}, second]})
    assert status == 400
    assert said in found["error"]


@pytest.mark.parametrize("data", [[300, 1], [-129, 0], [1.5, 2], [1 << 70, 0]])
def test_numbers_that_a_datatype_does_not_hold(data: list[Any], server: Running) -> None:
    body = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 2], "data": data}]}
    status, found, _ = ask(server, "/v2/models/int8/infer", body)
    assert status == 400
    assert "'x'" in found["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b"", {}, 400, "no JSON"),
        (b"[1]", {}, 400, "wanted an object"),
        (b'{"inputs": NaN}', {}, 400, "no JSON"),
        (b"[" * 100000, {}, 400, "no JSON"),
        (b"{}", {"Inference-Header-Content-Length": "9999"}, 400, "up to the 2 bytes"),
        (b"{}", {"Inference-Header-Content-Length": "-1"}, 400, "wanted a number"),
        (b"{}", {"Inference-Header-Content-Length": "NaN"}, 400, "wanted a number"),
        (b"{}xy", {"Inference-Header-Content-Length": "2"}, 400, "2 bytes behind the inputs"),
        (b"{}", {"Content-Encoding": "gzip"}, 400, "no gzip"),
        (b"{}", {"Content-Encoding": "br"}, 400, "wanted gzip or deflate"),
        (gzip.compress(b" " * (1 << 24)), {"Content-Encoding": "gzip"}, 413, "more than 1048576 bytes"),
        (gzip.compress(b" " * 1000)[:-9], {"Content-Encoding": "gzip"}, 400, "cut off"),
        (b" " * ((1 << 20) + 1), {}, 413, "wanted at most 1048576"),
        (b'{"parameters": {"timeout": -1}}', {}, 400, "timeout"),
        (b'{"parameters": {"priority": "high"}}', {}, 400, "priority"),
    ],
)
def test_wrong_bodies(body: bytes, headers: dict[str, str], status: int, said: str, server: Running) -> None:
    found = ask(server, INFER, body, headers)
    assert found[0] == status
    assert said in found[1]["error"]
    assert ask(server, INFER, GOOD)[0] == 200


def test_binary_texts_that_lie(server: Running) -> None:
    for blob in (b"\xff\xff\xff\xffabc", b"\1\0\0\0ab", b"\1\0\0\0\xff\0\0\0\0", b"\0\0", b"\0\0\0\0"):
        row = {"name": "x", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": len(blob)}}
        head = json.dumps({"inputs": [row]}).encode()
        found = ask(server, "/v2/models/texts/infer", head + blob, {"Inference-Header-Content-Length": str(len(head))})
        assert found[0] == 400
        assert "input 'x'" in found[1]["error"]


def test_slow_bodies_end(server: Running) -> None:
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sent:
        sent.sendall(f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
        begin = time.monotonic()
        assert b"408" in sent.recv(4096)
        assert time.monotonic() - begin < 10
    assert ask(server, INFER, GOOD)[0] == 200


def test_slow_headers_end(server: Running) -> None:
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sent:
        sent.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n")
        begin = time.monotonic()
        assert sent.recv(4096) == b""
        assert time.monotonic() - begin < 10


def test_a_connection_is_kept_as_long_as_requests_come(server: Running) -> None:
    """Each look at it may find it between two requests."""
    kept = HTTPConnection(server.http, timeout=30)
    begin, sockets = time.monotonic(), set[Any]()
    while time.monotonic() - begin < 1.8:  # a request may take 1 s to begin
        kept.request("GET", "/v2/health/live")
        kept.getresponse().read()
        sockets.add(kept.sock)
        time.sleep(0.02)
    assert len(sockets) == 1
    kept.close()


def test_headers_without_end_are_cut_off(server: Running) -> None:
    with socket.create_connection(server.http.split(":")) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(b"x: y\r\n" * (1 << 21))
    kept = HTTPConnection(server.http, timeout=30)
    for _ in range(3):  # others have as much again for each request
        kept.request("POST", INFER, json.dumps(GOOD) + " " * 500_000, {"x": "y" * 30_000})
        assert kept.getresponse().read().startswith(b'{"model_name')
    kept.close()


def test_what_follows_a_body_in_chunks_is_cut_off(server: Running) -> None:
    with socket.create_connection(server.http.split(":")) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n".encode())
        piece, sent = b"x: y\r\n" * (1 << 16), 0
        with suppress(ConnectionError):
            while sent < 1 << 30:
                connection.sendall(piece)
                sent += len(piece)
        assert sent < 16 << 20  # much less than comes until the body is too slow


def test_bodies_that_are_too_large_are_told_so(server: Running) -> None:
    """Also where more comes than what may stand around a body."""
    assert ask(server, INFER, b" " * (5 << 20))[0] == 413


def test_answers_of_requests_that_come_at_once(server: Running) -> None:
    """What is no HTTP behind them is not answered in their place."""
    body = json.dumps(GOOD).encode()
    one = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    for data, wanted in (
        (one * 2 + one.replace(b"\r\n", b"\r\nconnection: close\r\n", 1), [b"200"] * 3),
        (b"no HTTP\r\n\r\n", [b"400"]),
        (one + b"no HTTP\r\n\r\n", []),
    ):
        with socket.create_connection(server.http.split(":"), timeout=30) as connection:
            connection.sendall(data)
            told = b""
            while (data := connection.recv(1 << 16)) and told.count(b"HTTP/1.1") < 3:
                told += data
        assert re.findall(rb"HTTP/1.1 (\d+)", told) == wanted


def test_other_paths_and_methods(server: Running) -> None:
    for path in ("/", "/v3", "/embeddings", "/v2/none"):
        status, found, _ = ask(server, path)
        said = found["error"] if path.startswith("/v2") else found["error"]["message"]
        assert (status, said.partition(",")[0]) == (404, f"GET {path}: Not Found")
        assert all(place in said for place in ("/v2 (Open Inference", "/v1 (OpenAI", "/metrics"))
    assert ask(server, INFER)[0] == 405
    status, found, _ = ask(server, "/v2/models/none/infer", GOOD)
    assert status == 404
    assert "wanted one of ['add', 'int8', 'soft', 'texts']" in found["error"]


def test_metrics_tell_of_requests(server: Running) -> None:
    def counted() -> float:
        _, text, _ = ask(server, "/metrics")
        rows = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
        assert float(rows['bolt_model_bytes{model="add",use="arena",version="1"}']) >= 0
        assert float(rows['bolt_run_seconds_count{batch="1",model="add",version="1"}']) > 0
        return float(rows['bolt_request_seconds_count{model="add",outcome="ok",version="1"}'])

    ask(server, INFER, GOOD)
    before = counted()
    ask(server, INFER, GOOD)
    assert counted() == before + 1


def test_metrics_tell_of_all_failures_and_of_the_process(server: Running) -> None:
    def counted() -> dict[str, float]:
        lines = ask(server, "/metrics")[1].decode().splitlines()
        return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    before = counted()
    assert [ask(server, path, GOOD)[0] for path in ("/v2/models/none/infer", "/v3")] == [404, 404]
    assert ask(server, INFER, b" " * ((1 << 20) + 1))[0] == 413
    now = counted()
    for outcome, more in (("missing", 2), ("large", 1)):
        key = f'bolt_failures_total{{outcome="{outcome}"}}'
        assert now[key] - before.get(key, 0) == more
    assert now['bolt_process{what="resident_bytes"}'] > 10 << 20
    assert now['bolt_process{what="compiled_kernels"}'] >= 0
    assert now['bolt_process{what="compile_seconds"}'] >= 0


def test_it_is_live_where_there_are_too_many_connections(tmp_path: Path) -> None:
    with running(files={"add": add(tmp_path / "add.onnx")}, max_connections=3) as server:
        host, port = server.http.split(":")
        kept = [socket.create_connection((host, int(port))) for _ in range(4)]
        until = time.monotonic() + 10
        while ask(server, "/v2/health/ready")[0] != 503:
            assert time.monotonic() < until
        assert ask(server, "/v2/health/live")[0] == 200
        for connection in kept:
            connection.close()


def test_ids_of_requests_come_back(server: Running) -> None:
    assert ask(server, INFER, GOOD, {"X-Request-Id": "abc"})[2]["x-request-id"] == "abc"


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "binary_data_size", "id"]), inner,
        max_size=5), max_leaves=20,
))  # fmt: skip
def test_any_json_is_answered(server: Running, body: Any) -> None:
    status, found, _ = ask(server, INFER, json.dumps(body).encode())
    assert status == 400
    assert found["error"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (INFER, {**GOOD, "id": 5}, "id: got 5, wanted a text"),
        (INFER, b'{"inputs": [{"name": "a", "shape": ' + b"[" * 1000 + b"]" * 1000 + b"}]}", "got [[[...]]], wanted a"),
        ("/v2/repository/models/add/load", {"parameters": 5}, "load: parameters: got a int"),
        ("/v2/repository/models/add/load", {"parameters": {"config": "{}"}}, "got ['config'], wanted none"),
    ],
)
def test_json_that_is_odd(path: str, body: Any, said: str, server: Running) -> None:
    status, found, _ = ask(server, path, body)
    assert (status, said in found["error"]) == (400, True), found


def test_errors_are_short(server: Running) -> None:
    rows = [{"name": f"{i}" * 20, "datatype": "FP32", "shape": [1], "data": [1]} for i in range(900)]
    status, found, _ = ask(server, INFER, {"inputs": rows})
    assert (status, len(found["error"]) <= 2000) == (400, True)


def test_metrics_forget_models_that_are_gone(server: Running) -> None:
    for change in ("unload", "load"):
        assert ask(server, f"/v2/repository/models/soft/{change}", {})[0] == 200
        time.sleep(0.2)
        lines = ask(server, "/metrics")[1].decode().splitlines()
        plans = [line.split()[-1] for line in lines if line.startswith('bolt_model_plans{model="soft"')]
        assert (plans == ["0.0"]) == (change == "unload")


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    with running(files={"add": add(tmp_path / "add.onnx")}, token="secret") as server:
        assert ask(server, "/v2/health/ready")[0] == 200
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer "}):
            assert ask(server, INFER, GOOD, headers)[0] == 401
            assert ask(server, "/metrics", None, headers)[0] == 401
        assert ask(server, INFER, GOOD, {"Authorization": "Bearer secret"})[0] == 200


def test_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run(
        [*made, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True,
        capture_output=True,
    )  # fmt: skip
    files = {"add": add(tmp_path / "add.onnx")}
    with running(files=files, certificate=certificate, key=key, token="t") as server:
        context = ssl.create_default_context(cafile=str(certificate))
        connection = HTTPSConnection(server.http, context=context, timeout=30)
        connection.request("POST", INFER, json.dumps(GOOD), {"Authorization": "Bearer t"})
        assert json.loads(connection.getresponse().read())["outputs"][0]["data"] == [11, 22, 33.5]
        connection.close()
        grpc = pytest.importorskip("grpc")
        channel = grpc.secure_channel(server.grpc, grpc.ssl_channel_credentials(certificate.read_bytes()))
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        assert call(b"", metadata=[("authorization", "Bearer t")], timeout=30) == b"\x08\x01"
        for what, wanted in ((b"", "UNAUTHENTICATED"), (b"no message", "UNAUTHENTICATED")):
            with pytest.raises(grpc.RpcError) as refused:
                call(what, timeout=30)
            assert refused.value.code().name == wanted
        with pytest.raises(grpc.RpcError, match="got what is no message") as refused:
            call(b"no message", metadata=[("authorization", "Bearer t")], timeout=30)
        assert refused.value.code().name == "INVALID_ARGUMENT"
        channel.close()


def test_requests_under_way_are_answered_at_the_end(tmp_path: Path) -> None:
    files = {"flow": tmp_path / "slow" / "flow.toml"}
    files["flow"].parent.mkdir()
    (tmp_path / "slow" / "slow_steps.py").write_text("import time\n\n\ndef slow(x):\n    time.sleep(1)\n    return x\n")
    files["flow"].write_text(
        "inputs = { x = 'f32[n]' }\noutputs = 'y'\n"
        "[nodes.slow]\nfunction = 'slow_steps:slow'\ninputs = 'x'\noutputs = 'y'\ntypes = { y = 'f32[n]' }\n"
    )
    answers: list[Any] = []
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    with running(files=files) as server:
        thread = Thread(target=lambda: answers.append(ask(server, "/v2/models/flow/infer", body)))
        thread.start()
        time.sleep(0.3)
    thread.join()
    assert answers[0][0] == 200
    assert answers[0][1]["outputs"][0]["data"] == [1, 2]
