"""Servers that run beside tests."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bolt_numba.serve import Doors, ModelSettings, Repository, Server
from bolt_numba.serve.server import run_loop

WAIT_S = 60


def resident(process: int | str = "self") -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


class Running:
    """A server in a thread of its own, with its event loop."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.loop = server, loop
        self.http, self.grpc = f"127.0.0.1:{server.http_port}", f"127.0.0.1:{server.grpc_port}"

    def do(self, coroutine: Any) -> Any:
        """What a coroutine gives that runs in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)


@contextmanager
def running(
    folder: Path | None = None, files: dict[str, Path] | None = None, usual: ModelSettings | None = None, **doors: Any
) -> Iterator[Running]:
    """A server that has loaded its models, on ports that are free."""
    made: list[Running] = []
    begun, failed = threading.Event(), list[BaseException]()

    async def main() -> None:
        try:
            given = {"http_port": 0, "grpc_port": 0, "grace_seconds": 5, **doors}
            server = Server(Repository(folder, files or {}, usual or ModelSettings()), Doors(**given))
            await server.begin()
            made.append(Running(server, asyncio.get_running_loop()))
            begun.set()
            await server.ended.wait()
            await server.end()
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            begun.set()

    thread = threading.Thread(target=_quiet(lambda: run_loop(main())), daemon=True)
    thread.start()
    assert begun.wait(WAIT_S)
    if failed:
        raise failed[0]
    try:
        yield made[0]
    finally:
        made[0].loop.call_soon_threadsafe(made[0].server.stop)
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert not failed, failed


def _quiet(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with suppress(BaseException):  # is in `failed`
            work()

    return run
