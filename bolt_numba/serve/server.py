"""A server: its sockets for REST and gRPC, its signals, and how it begins and ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bolt_numba.serve.errors import RequestError
from bolt_numba.serve.metrics import measure
from bolt_numba.serve.processes import Link
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.rest import Rest
from bolt_numba.serve.rpc import Rpc
from bolt_numba.serve.settings import MIB, Doors

log = logging.getLogger("bolt_numba.serve")

BACKLOG = 2048
MOST_HEADERS = 1 << 20
"""Bytes of the headers of a request, or of what stands around a body in chunks, and of what came with their end."""
MEASURED_S = 5.0
"""Between looks at what a process holds, where another one may be asked for it."""
LIVE = b"/v2/health/live"
SWITCH_S = 1e-3
"""Seconds that one thread keeps Python's lock from another: runs end late where many requests are refused meanwhile."""
LAST_S = 2.0
"""Seconds to close what no request needs any more."""


def listening(option: str, host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket that listens.  option: what named the port.  shared: other processes may have one of their own there.

    Raises RequestError for an address that cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that no small packet waits
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise RequestError(f"{option}: got {host}:{port}: {error}, wanted an address that is free") from None
    return made


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run an event loop to the end of a coroutine: uvloop's where it is installed."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvicorn.Config(Starlette(), log_config=None).get_loop_factory()) as runner:
        runner.run(main)


class _Connection(HttpToolsProtocol):
    """A connection whose headers have an end, and which is told that the server is live even if there are too many.

    size: bytes since headers were complete, or some of a body came.  cycles: requests that have no answer yet.
    """

    size = 0
    cycles: Sequence[Any] = ()

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > MOST_HEADERS:
            self._cut()
        else:
            super().data_received(data)

    def on_body(self, body: bytes) -> None:
        self.size = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self.size = 0
        self.limit_concurrency = None if self.url == LIVE else self.config.limit_concurrency
        super().on_headers_complete()
        self.cycles = [*(c for c in self.cycles if not c.response_complete), self.cycle]

    def send_400_response(self, msg: str) -> None:
        if any(not (cycle.response_complete or cycle.more_body) for cycle in self.cycles):
            self._cut()  # a request that came before would take it for its answer
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _cut(self) -> None:
        self._leave()
        self.transport.close()

    def _leave(self) -> None:
        """No request gets an answer any more, also of several that came at once."""
        for cycle in self.cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()


class _Http(uvicorn.Server):
    """uvicorn's server, without its own handlers of signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def close_slow(self, seconds: float) -> None:
        """Close connections whose next request has not begun for so long: those that send headers slowly, above all."""
        since: dict[Any, tuple[Any, float]] = {}
        while True:
            await asyncio.sleep(seconds / 4)
            now, there = time.monotonic(), list(self.server_state.connections)
            waiting = {c: c.cycle for c in there if c.cycle is None or c.cycle.response_complete}  # type: ignore[union-attr]
            known = {c: row for c, row in since.items() if waiting.get(c, row) is row[0]}  # no request since
            since = {c: known.get(c, (cycle, now)) for c, cycle in waiting.items()}
            for connection, (_, begin) in since.items():
                if now - begin > seconds:
                    connection.transport.close()


class Server:
    """Serves the models of a repository.  `run` is for the main thread of a process, `begin` and `end` for event loops.

    link: to other processes that serve the same.
    ``http_port`` and ``grpc_port`` are those that were had, once it has begun.
    """

    def __init__(self, repository: Repository, doors: Doors, link: Link | None = None) -> None:
        self.repository, self.doors, self.link, self.shared = repository, doors, link, link is not None
        self.http_port = self.grpc_port = 0
        self.http: _Http | None = None
        self.rpc: Any = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.ended = asyncio.Event()

    async def begin(self) -> None:
        """Open the ports, then load the models: the server is live before it is ready.  Raises RequestError.

        One of several processes loads first: until then the others answer.
        """
        doors = self.doors
        if self.link is not None:
            self.link.begin(self.repository, self._begin_task)
            await self.repository.look(anew=False)
            self._begin_task(self._measure())
        if doors.grpc_port is not None:
            await self._begin_rpc(doors.grpc_port)
        if doors.http_port is not None:
            self._begin_http(doors.http_port)
        if not self.shared:
            await self.repository.look()
        if doors.poll_seconds and (self.link is None or self.link.watches):
            self._begin_task(self.repository.watch(doors.poll_seconds))

    async def _measure(self) -> None:
        while True:
            measure(self.repository.versions())
            await asyncio.sleep(MEASURED_S)

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that is given up when the server ends."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _begin_http(self, port: int) -> None:
        doors = self.doors
        config = uvicorn.Config(
            Rest(self.repository, doors).app,
            http=_Connection, log_config=None, access_log=False, lifespan="off", ws="none",
            limit_concurrency=doors.max_connections, backlog=BACKLOG, server_header=False,
            ssl_certfile=doors.certificate and str(doors.certificate), ssl_keyfile=doors.key and str(doors.key),
            timeout_graceful_shutdown=int(doors.grace_seconds),
        )  # fmt: skip
        self.http, found = _Http(config), listening("--http-port", doors.host, port, self.shared)
        self.http_port = found.getsockname()[1]
        self.serving = asyncio.create_task(self.http.serve([found]))
        self._begin_task(self.http.close_slow(doors.body_seconds))

    async def _begin_rpc(self, port: int) -> None:
        doors = self.doors
        self.rpc = grpc.aio.server(
            maximum_concurrent_rpcs=doors.max_connections,
            options=[
                ("grpc.max_receive_message_length", int(doors.max_body * MIB)), ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", int(self.shared)),
            ]
        )  # fmt: skip
        self.rpc.add_generic_rpc_handlers((Rpc(self.repository, doors).handlers(),))
        listening("--grpc-port", doors.host, port, self.shared).close()  # the library writes lines of its own
        where = f"[{doors.host}]:{port}" if ":" in doors.host else f"{doors.host}:{port}"
        try:
            if doors.certificate is not None and doors.key is not None:
                pair = (doors.key.read_bytes(), doors.certificate.read_bytes())
                self.grpc_port = self.rpc.add_secure_port(where, grpc.ssl_server_credentials([pair]))
            else:
                self.grpc_port = self.rpc.add_insecure_port(where)
        except RuntimeError as error:
            raise RequestError(f"--grpc-port: got {where}: {error}, wanted an address that is free") from None
        await self.rpc.start()

    def stop(self) -> None:
        """Begin to end: nothing is ready any more, and what is under way is answered."""
        self.repository.is_ending = True
        self.ended.set()

    async def end(self) -> None:
        """Answer what is under way, within the grace, and close everything."""
        self.stop()
        for task in self.tasks:
            task.cancel()
        left: list[Any] = [] if self.rpc is None else [self.rpc.stop(self.doors.grace_seconds)]
        if self.http is not None:
            self.http.should_exit = True
            left.append(self.serving)
        await asyncio.gather(*left, return_exceptions=True)
        await self.repository.end(LAST_S)

    async def run(self, told: Callable[[Server], None]) -> None:
        """Serve until SIGTERM or SIGINT.  told: called once everything is loaded.  SIGHUP looks at the models again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._begin_task(self.repository.look()))
        beginning = asyncio.create_task(self.begin())
        ending = asyncio.create_task(self.ended.wait())
        await asyncio.wait((beginning, ending), return_when=asyncio.FIRST_COMPLETED)
        if beginning.done():
            beginning.result()
            told(self)
            await ending
        is_left = bool(self.repository.locks)  # a model is being loaded
        beginning.cancel()
        await self.end()
        if is_left or self.repository.retiring:
            log.warning("ended while models were loaded, or runs went on: they are given up")
            os._exit(0)  # Python would wait for their threads
