"""The client of all servers: connections that stay open, requests one after the other, without pause, or at random."""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from statistics import median, quantiles
from typing import Any, NamedTuple, TypeVar

CONNECTIONS, CLIENTS = 64, 8
MOST_BEHIND_S = 0.5
"""Requests of so many seconds may wait for a connection: a server that is further behind does not keep up."""
DRIFT, SHARES = 2.0, 3
"""A server keeps up where the median of the last third is less than so many times that of the first."""
MOST_RATIO = 5.0
"""Wanted of the 99th percentile over the median, and of the median over that of single requests."""
HEAD_END, LENGTH = b"\r\n\r\n", b"\r\ncontent-length:"

_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`, with timers that are exact to microseconds: `select` has those, `epoll` has milliseconds."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(work)


class Connection(asyncio.Protocol):
    """One request at a time.  `ask` raises RuntimeError where it is refused."""

    def __init__(self) -> None:
        self.received, self.wanted = bytearray(), 0
        self.answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionError(f"got a connection that was closed: {exc}"))

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """The body of the answer."""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.wanted:
            end = self.received.find(HEAD_END)
            if end < 0:
                return
            head = bytes(self.received[:end]).lower() + b"\r\n"
            self.body = end + len(HEAD_END)
            self.wanted = self.body + int(head.split(LENGTH)[1].split(b"\r\n")[0])
        if len(self.received) < self.wanted or self.answer is None:
            return
        head, body = bytes(self.received[: self.body]), bytes(self.received[self.body :])
        self.received, self.wanted = bytearray(), 0
        if b" 200 " in head[:16]:
            self.answer.set_result(body)
        else:
            self.answer.set_exception(RuntimeError(f"{head!r} {body!r:.300}"))


@asynccontextmanager
async def connected(port: int, count: int = 1) -> AsyncIterator[list[Connection]]:
    """Connections to a server of this machine."""
    loop, made = asyncio.get_running_loop(), list[Connection]()
    try:
        for _ in range(count):
            made.append((await loop.create_connection(Connection, "127.0.0.1", port))[1])
        yield made
    finally:
        for connection in made:
            connection.transport.abort()


async def answers(port: int, requests: Sequence[bytes]) -> list[bytes]:
    """The bodies of answers, one after the other."""
    async with connected(port) as (connection,):
        return [await connection.ask(request) for request in requests]


async def alone(port: int, requests: Sequence[bytes]) -> list[float]:
    """Seconds of requests, one after the other; the first tenth warms up."""
    spent = []
    async with connected(port) as (connection,):
        for request in requests:
            begin = time.perf_counter()
            await connection.ask(request)
            spent.append(time.perf_counter() - begin)
    return spent[len(requests) // 10 :]


async def busy(port: int, requests: Sequence[bytes], seconds: float) -> float:
    """Requests a second of clients that never wait."""
    async with connected(port, CLIENTS) as connections:
        begin, count = time.perf_counter(), 0

        async def work(connection: Connection) -> None:
            nonlocal count
            while time.perf_counter() < begin + seconds:
                await connection.ask(requests[count % len(requests)])
                count += 1

        await asyncio.gather(*map(work, connections))
        return count / (time.perf_counter() - begin)


class Latencies(NamedTuple):
    """Of requests at random: seconds from when each should have been sent to its answer.  keeps_up: as `DRIFT` says."""

    p50: float
    p99: float
    keeps_up: bool

    def is_steady(self, single: float) -> bool:
        """Whether the server bears such a load.  single: the median of requests one after the other."""
        return self.keeps_up and self.p99 < MOST_RATIO * self.p50 and self.p50 < MOST_RATIO * single


def judged(spent: Sequence[float], gave_up: bool = False) -> Latencies:
    """What requests took, in the order in which they were due."""
    share = len(spent) // SHARES
    drift = median(spent[-share:]) / median(spent[:share])
    percentiles = quantiles(spent, n=100)
    return Latencies(percentiles[49], percentiles[98], not gave_up and drift < DRIFT)


class _Sender:
    """Sends what is due by a connection that is idle; what finds none waits."""

    def __init__(self, idle: Sequence[Connection], requests: Sequence[bytes]) -> None:
        self.idle, self.requests, self.begin = list(idle), requests, time.perf_counter()
        self.waiting, self.spent = deque[tuple[int, float]](), dict[int, float]()
        self.asked = set[asyncio.Future[bytes]]()

    def due(self, number: int, when: float) -> None:
        """A request should be sent now."""
        if self.idle:
            self._send(self.idle.pop(), number, when)
        else:
            self.waiting.append((number, when))

    def _send(self, connection: Connection, number: int, when: float) -> None:
        answer = connection.ask(self.requests[number % len(self.requests)])
        self.asked.add(answer)

        def came(answer: asyncio.Future[bytes]) -> None:
            self.spent[number] = time.perf_counter() - self.begin - when
            if answer.exception() is not None:
                return  # it stays for `end`
            self.asked.discard(answer)
            if self.waiting:
                self._send(connection, *self.waiting.popleft())
            else:
                self.idle.append(connection)

        answer.add_done_callback(came)

    async def end(self) -> None:
        """Wait for all answers.  Raises what one of them raises."""
        while self.asked:
            for answer in (await asyncio.wait(self.asked))[0]:
                answer.result()
            await asyncio.sleep(0)  # what is done may be told only now


async def at_random(port: int, requests: Sequence[bytes], rate: float, seconds: float, seed: int = 0) -> Latencies:
    """Open loop: requests come at times of a Poisson process, whether or not earlier ones were answered."""
    rng, when, number, most = random.Random(seed), 0.0, 0, max(1.0, MOST_BEHIND_S * rate)
    async with connected(port, CONNECTIONS) as connections:
        sender = _Sender(connections, requests)
        while when < seconds and len(sender.waiting) <= most:
            await asyncio.sleep(max(0.0, sender.begin + when - time.perf_counter()))
            sender.due(number, when)
            when, number = when + rng.expovariate(rate), number + 1
        gave_up = len(sender.waiting) > most
        if gave_up:
            sender.waiting.clear()
        await sender.end()
    return judged([sender.spent[i] for i in sorted(sender.spent)], gave_up)
