"""`bench.texts`: its table, with a server and an encoder that take as long as the test says."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench import texts as bench


def test_a_row_tells_what_a_request_takes_beyond_the_encoder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`embed` takes 2 ms, a request in base64 2.25, one in lists 3; the first rounds are not counted."""
    asked: list[tuple[str, int]] = []
    clock = [0.0]

    def take(how: str, count: int, seconds: float) -> None:
        asked.append((how, count))
        clock[0] += seconds if len(asked) > 3 * bench.WARM else 1.0

    class Encoder:
        def __init__(self, folder: Path, **options: Any) -> None:
            assert (folder, options) == (Path("minilm"), {"stand_ins": False})

        def embed(self, texts: list[str]) -> None:
            take("embed", len(texts), 2e-3)

    seconds = {"base64": 2.25e-3, "float": 3e-3}
    monkeypatch.setattr(bench, "Encoder", Encoder)
    monkeypatch.setattr(bench, "ready", lambda port: port)
    monkeypatch.setattr(bench, "ask", lambda server, texts, form: take(form, len(texts), seconds[form]))
    monkeypatch.setattr(bench, "ASKED", {"two": ["a", "b"]})
    monkeypatch.setattr(bench.time, "perf_counter", lambda: clock[0])
    bench.measure(Path("minilm"), 5)
    assert capsys.readouterr().out.splitlines()[2:] == ["| two | 2.00 | 2.25 | 3.00 | 250 |"]
    assert asked == [("embed", 2), ("base64", 2), ("float", 2)] * (bench.WARM + 5)


@pytest.fixture
def server() -> Any:
    """It is ready when it is asked for the second time, and refuses texts beyond two."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append(self.path)
            self.answer(200 if len(seen) > 1 else 503, b"")

        def do_POST(self) -> None:
            content = bench.json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, content["input"], content["encoding_format"]))
            self.answer(200 if len(content["input"]) < 3 else 400, b"too many")

        def answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made.server_port, seen
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_server_is_waited_for_and_asked(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port, seen = server
    connection = bench.ready(port)
    bench.ask(connection, ["a", "b"], "base64")
    assert seen == ["/v2/health/ready"] * 2 + [("/v1/embeddings", ["a", "b"], "base64")]
    with pytest.raises(RuntimeError, match="too many"):
        bench.ask(connection, ["a"] * 3, "float")
    connection.close()
    seen.clear()
    monkeypatch.setattr(bench, "WAIT_S", -1.0)  # it would never be ready in time
    with pytest.raises(TimeoutError):
        bench.ready(port)
