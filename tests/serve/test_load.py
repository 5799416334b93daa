"""The bench of servers: requests are what servers read, latencies count from when they were due, rates are found."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from bench.serving import client, forms, servers, sweep
from bench.serving.client import Latencies, alone, answers, at_random, busy, judged, run
from bench.serving.models import Served

FEEDS = {"x": np.arange(6, dtype="f4").reshape(1, 2, 3)}
LIKE = [np.arange(4, dtype="f4").reshape(1, 4), np.array([[7]])]
TEXTS = [base64.b64encode(a.tobytes()).decode() for a in LIKE]
RAW = b"".join(a.tobytes() for a in LIKE)
ANSWERS: dict[str, tuple[forms.Form, bytes]] = {
    "binary": (forms.BINARY, b'{"outputs": []}' + RAW),
    "json": (forms.PROTOCOL_JSON, json.dumps(
        {"outputs": [{"data": a.ravel().tolist(), "shape": a.shape} for a in LIKE]}).encode()),
    "lists": (forms.LISTS, json.dumps({"a": LIKE[0].tolist(), "b": LIKE[1].tolist()}).encode()),
    "raw": (forms.RAW, RAW),
    "base64": (forms.BASE64, json.dumps(dict(zip("ab", TEXTS, strict=True))).encode()),
    "elements": (forms.ELEMENTS, json.dumps({"outputs": [{"data": [text]} for text in TEXTS]}).encode()),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_requests_carry_the_inputs_and_answers_the_results(name: str) -> None:
    form, answer = ANSWERS[name]
    head, body = form.request("m", FEEDS).split(b"\r\n\r\n", 1)
    assert f"content-length: {len(body)}".encode() in head
    data = FEEDS["x"].tobytes()
    there = {
        "binary": lambda: body.endswith(data), "raw": lambda: body == data and b"shape=1%2C2%2C3" in head,
        "json": lambda: json.loads(body)["inputs"][0]["data"] == FEEDS["x"].ravel().tolist(),
        "lists": lambda: json.loads(body) == {"x": FEEDS["x"].tolist()},
        "base64": lambda: base64.b64decode(json.loads(body)["x"]["data"]) == data,
        "elements": lambda: base64.b64decode(json.loads(body)["inputs"][0]["data"][0]) == data,
    }  # fmt: skip
    assert there[name]()
    for found, wanted in zip(form.results(answer, LIKE), LIKE, strict=True):
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("lists", "single", "refused"),
    [
        (True, True, set()),
        (False, True, {"bolt-numba, JSON", "FastAPI, JSON"}),
        (True, False, {"FastAPI, bytes"}),
    ],
)
def test_a_server_is_asked_in_forms_that_fit(lists: bool, single: bool, refused: set[str]) -> None:
    model = Served(lambda: None, lambda rng: FEEDS, lists, single)  # type: ignore[arg-type, return-value]
    assert {name for name, c in servers.CONTESTANTS.items() if not c.takes(model)} == refused


async def echo(seconds: float, status: bytes = b"200 OK") -> asyncio.Server:
    """A server that answers with the body that it got, after some time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                await asyncio.sleep(seconds)
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
                await asyncio.sleep(0)  # head and body come apart
                writer.write(body)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def with_echo(work: Any, seconds: float = 0.0, status: bytes = b"200 OK") -> Any:
    async def main() -> Any:
        before = asyncio.all_tasks()
        async with await echo(seconds, status) as server:
            try:
                return await work(server.sockets[0].getsockname()[1])
            finally:
                await asyncio.sleep(2 * seconds)
                await asyncio.gather(*(asyncio.all_tasks() - before))

    return run(main())


REQUESTS = [forms.http("/", body, {}) for body in (b"one", b"another", b"")]


def test_connections_stay_open_and_answers_are_those_of_their_requests() -> None:
    assert with_echo(lambda port: answers(port, REQUESTS * 2)) == [b"one", b"another", b""] * 2
    assert len(with_echo(lambda port: alone(port, REQUESTS * 10))) == 27
    assert with_echo(lambda port: busy(port, REQUESTS, 0.1)) > 10
    with pytest.raises(RuntimeError, match="503"):
        with_echo(lambda port: answers(port, REQUESTS), status=b"503 no")


def test_requests_that_wait_for_a_connection_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two connections of 10 ms each bear 200 a second, and not 800."""
    assert with_echo(lambda port: at_random(port, REQUESTS, 100, 0.3), 0.01).p50 >= 0.01
    monkeypatch.setattr(client, "CONNECTIONS", 2)
    found = with_echo(lambda port: at_random(port, REQUESTS, 800, 0.3), 0.01)
    assert not found.is_steady(0.01)
    monkeypatch.setattr(client, "MOST_BEHIND_S", 0.02)
    assert not with_echo(lambda port: at_random(port, REQUESTS, 800, 5), 0.01).keeps_up
    with pytest.raises(RuntimeError, match="503"):
        with_echo(lambda port: at_random(port, REQUESTS, 100, 0.1), status=b"503 no")


def test_what_is_steady() -> None:
    assert judged([0.01] * 90).is_steady(0.01)
    assert not judged([0.01] * 90).is_steady(0.001)
    assert not judged([0.01] * 90, gave_up=True).is_steady(0.01)
    assert not judged([0.01 + i / 1000 for i in range(90)]).keeps_up
    assert not judged([0.01] * 80 + [0.1] * 3 + [0.01] * 7).is_steady(0.01)


def test_the_highest_rate_is_found_from_above() -> None:
    bears, tries = {"a": 100.0, "b": 30.0, "none": 0.0}, dict[tuple[str, float], int]()

    def probe(name: str, rate: float, seconds: float, seed: int) -> Latencies:
        tries[name, rate] = tries.get((name, rate), 0) + 1
        is_borne = rate <= bears[name] and (name != "a" or tries[name, rate] == 2)  # at the second try only
        return Latencies(0.01, 0.02 if is_borne else 0.2, True)

    found = sweep.highest(probe, dict.fromkeys(bears, 120.0), dict.fromkeys(bears, 0.01))
    assert 100 * sweep.FACTOR <= found["a"][0] <= 100
    assert 30 * sweep.FACTOR <= found["b"][0] <= 30
    assert found["none"] == (0.0, None)
    assert sweep.at_equal(probe, ["b"], 20.0) == {"b": (0.01, 0.02)}


def test_rivals_fill_up_what_is_shorter() -> None:
    pytest.importorskip("onnxruntime")
    from bench.serving.rivals.recipe import filled

    made = filled([np.ones((1, 2, 3), "f4"), np.ones((1, 3, 1), "f4")])
    assert made.shape == (2, 3, 3)
    assert made.sum(axis=(1, 2)).tolist() == [6.0, 3.0]
    assert filled([np.ones((1, 2)), np.zeros((1, 2))]).tolist() == [[1, 1], [0, 0]]
