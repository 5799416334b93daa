"""`bolt-numba serve` beside the usual recipe, FastAPI with onnxruntime, under one load generator.

    pip install '.[serve]' fastapi onnxruntime
    python -m bench.serving overhead
    python -m bench.serving load kws_dscnn mobilenet_v2 minilm_32 [--seconds 5] [--rounds 3]

Overhead: the median of requests of one client that keeps its connection, less the median of a run in this process.
Load: requests a second of eight clients, each asking as soon as it was answered; then requests that come at random
(Poisson) at a share of what the recipe can do, whoever is measured: percentiles of the time from when a request should
have come.  Servers take turns; of each the median over the rounds is taken.  The client takes processors, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import grpc
import numpy as np

import bolt_numba as bn
from bench.zoo import ZOO
from bolt_numba.serve import ModelSettings, Repository
from bolt_numba.serve.rpc import SERVICE, Rpc
from bolt_numba.serve.tensors import NAMES
from bolt_numba.types import Array

CLIENTS, SHARE, WAIT_S = 8, 0.7, 120.0
BINARY, JSON, GRPC = "bolt-numba, binary", "bolt-numba, JSON", "bolt-numba, gRPC"
RECIPE = "FastAPI + onnxruntime, JSON"
US, MS = 1e6, 1e3
PORTS = iter(range(18500, 19500, 2))


class Contestant(NamedTuple):
    """A server as clients see it: its port, and the bytes of a request."""

    port: int
    request: bytes


def _request(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
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
    return _request(f"/v2/models/{name}/infer", text + blobs, {"inference-header-content-length": str(len(text))})


@contextmanager
def servers(path: Path, feeds: Mapping[str, Array], names: Sequence[str]) -> Iterator[dict[str, Contestant]]:
    """The contestants, each a process of its own."""
    ours, theirs = next(PORTS), next(PORTS)
    commands = {
        ours: [sys.executable, "-m", "bolt_numba", "serve", str(path), "--http-port", str(ours),
               "--grpc-port", str(ours + 1), "--log-level", "error"],
        theirs: [sys.executable, "-m", "uvicorn", "bench.serving_app:app", "--port", str(theirs),
                 "--log-level", "error"],
    }  # fmt: skip
    started = [subprocess.Popen(c, env={**os.environ, "MODEL": str(path)}) for p, c in commands.items()
               if p == ours or RECIPE in names]  # fmt: skip
    lists = _request("/infer", json.dumps({k: a.tolist() for k, a in feeds.items()}).encode(),
                     {"content-type": "application/json"})  # fmt: skip
    made = {
        BINARY: Contestant(ours, protocol_request(path.stem, feeds, True)),
        JSON: Contestant(ours, protocol_request(path.stem, feeds, False)), RECIPE: Contestant(theirs, lists),
    }  # fmt: skip
    try:
        for name in names:
            _wait_for(made[name].port)
        yield {name: made[name] for name in names}
    finally:
        for process in started:
            process.terminate()
            process.wait(WAIT_S)


def _wait_for(port: int) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/v2/health/ready"):
                return
        except (URLError, ConnectionError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


class Client:
    """One connection that stays open."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant

    async def open(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.contestant.port)
        return self

    async def ask(self) -> None:
        """A request and its answer; raises RuntimeError where it is refused."""
        self.writer.write(self.contestant.request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        if b" 200 " not in head[:16]:
            raise RuntimeError(f"{head!r} {body!r:.200}")


async def alone(contestant: Contestant, count: int) -> list[float]:
    """Seconds of requests, one after the other."""
    client, spent = await Client(contestant).open(), []
    for _ in range(count):
        begin = time.perf_counter()
        await client.ask()
        spent.append(time.perf_counter() - begin)
    client.writer.close()
    return spent[count // 10 :]


async def busy(contestant: Contestant, seconds: float) -> float:
    """Requests a second of clients that never wait."""
    clients = [await Client(contestant).open() for _ in range(CLIENTS)]
    until, count = time.perf_counter() + seconds, 0

    async def work(client: Client) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await client.ask()
            count += 1

    begin = time.perf_counter()
    await asyncio.gather(*map(work, clients))
    rate = count / (time.perf_counter() - begin)
    for client in clients:
        client.writer.close()
    return rate


async def at_random(contestant: Contestant, rate: float, seconds: float) -> list[float]:
    """Seconds from when requests should have come to their answers."""
    idle: asyncio.Queue[Client] = asyncio.Queue()
    for _ in range(CLIENTS * 4):
        idle.put_nowait(await Client(contestant).open())
    rng, when, spent = random.Random(0), 0.0, list[float]()
    begin = time.perf_counter()

    async def one(due: float) -> None:
        client = await idle.get()
        await client.ask()
        spent.append(time.perf_counter() - begin - due)
        idle.put_nowait(client)

    async with asyncio.TaskGroup() as tasks:
        while when < seconds:
            await asyncio.sleep(max(0.0, when - (time.perf_counter() - begin)))
            tasks.create_task(one(when))
            when += rng.expovariate(rate)
    while not idle.empty():
        idle.get_nowait().writer.close()
    return spent


def over_grpc(port: int, request: Any, count: int) -> list[float]:
    """Seconds of requests of gRPC, one after the other, on one channel.  request: a message."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(f"/{SERVICE}/ModelInfer", _registered_method=True)
        data, spent = request.SerializeToString(), []
        for _ in range(count):
            begin = time.perf_counter()
            ask(data)
            spent.append(time.perf_counter() - begin)
    return spent[count // 10 :]


def grpc_request(name: str, feeds: Mapping[str, Array]) -> Any:
    """A request of the protocol as a message, with raw contents."""
    made = Rpc(Repository(None, {}, ModelSettings()), None).types["ModelInfer"][0](model_name=name)
    for key, array in feeds.items():
        made.inputs.add(name=key, datatype=NAMES[array.dtype], shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    return made


def overhead(name: str, count: int) -> Iterator[str]:
    """Lines of a table."""
    path, feeds = _model(name)
    session = bn.compile(path, stand_ins=False)
    request = grpc_request(path.stem, feeds)
    with servers(path, feeds, (BINARY, JSON)) as there:
        spent: dict[str, list[float]] = {key: [] for key in (*there, GRPC, "run")}
        for _ in range(5):
            for key, contestant in there.items():
                spent[key] += asyncio.run(alone(contestant, count // 5))
            spent[GRPC] += over_grpc(there[BINARY].port + 1, request, count // 5)
            for _ in range(count // 5):
                begin = time.perf_counter()
                session.run(None, feeds)
                spent["run"].append(time.perf_counter() - begin)
    run = median(spent["run"]) * US
    for key in (*there, GRPC):
        found = median(spent[key]) * US
        yield f"| {name} | {key} | {run:.0f} | {found:.0f} | {found - run:.0f} |"


def load(name: str, seconds: float, rounds: int) -> Iterator[str]:
    """Lines of a table."""
    path, feeds = _model(name)
    with servers(path, feeds, (BINARY, JSON, RECIPE)) as there:
        rates: dict[str, list[float]] = {key: [] for key in there}
        for _ in range(rounds):
            for key, contestant in there.items():
                rates[key].append(asyncio.run(busy(contestant, seconds)))
        given = SHARE * median(rates[RECIPE])
        late: dict[str, list[tuple[float, float]]] = {key: [] for key in there}
        for _ in range(rounds):
            for key, contestant in there.items():
                found = quantiles(asyncio.run(at_random(contestant, given, seconds)), n=100)
                late[key].append((found[49], found[98]))
    for key in there:
        p50, p99 = (median(row[i] for row in late[key]) * MS for i in (0, 1))
        yield f"| {name} | {key} | {median(rates[key]):.0f} | {given:.0f} | {p50:.2f} | {p99:.2f} |"


def _model(name: str) -> tuple[Path, dict[str, Array]]:
    model = ZOO[name]
    path = model.path()
    return path, {key: np.ascontiguousarray(a) for key, a in model.feeds().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("overhead", "load"))
    parser.add_argument("models", nargs="*", default=["kws_dscnn"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=5000)
    given = parser.parse_args()
    if given.what == "overhead":
        lines = ["| model | request | run, us | request, us | over the run, us |", "|---|---|---:|---:|---:|"]
    else:
        lines = ["| model | server | requests a second | at random: a second | p50, ms | p99, ms |",
                 "|---|---|---:|---:|---:|---:|"]  # fmt: skip
    sys.stdout.write("\n".join(lines) + "\n")
    for name in given.models:
        rows = overhead(name, given.requests) if given.what == "overhead" else load(name, given.seconds, given.rounds)
        for row in rows:
            sys.stdout.write(row + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
