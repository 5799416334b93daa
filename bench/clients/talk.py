"""Starts one client in a process of its own with one of the engines, and talks to it."""

from __future__ import annotations

import json
import os
import pickle
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from bench.clients.scenario import Client
from bolt_numba.base.config import CACHE_DIR
from bolt_numba.base.files.kept import cache_root

ROOT = Path(__file__).parents[2]
PATIENCE = 400.0
"""Seconds that a first call may take: with an empty cache it compiles."""


class ClientError(RuntimeError):
    """A client did not start, or ended; the message is the end of what it wrote."""


class Talk:
    """A client that waits for commands.  ``home`` is the folder that `make clients` fills.

    ``python``: instead of the one of the client's environment.  ``cache``: for kernels, instead of the user's.
    """

    def __init__(
        self, client: Client, engine: str, home: Path, one_thread: bool = False, cache: Path | None = None,
        python: Path | None = None,
    ) -> None:  # fmt: skip
        home = home.absolute()
        work = home / "work" / engine / client.name.split()[0]
        work.mkdir(parents=True, exist_ok=True)
        self._errors = work / "errors.txt"
        self._result = work / "result.pickle"
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join((str(home / engine), str(ROOT))), "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false",
            "HOME": str(work), "XDG_CACHE_HOME": str(work),
            CACHE_DIR.name: str(cache or cache_root()),
        }  # fmt: skip
        command = [
            str(python or home / client.environment / "bin" / "python"), "-m", "bench.clients.child", client.name,
            "--folder", str(home / "made"), "--result", str(self._result), *(["--one-thread"] if one_thread else []),
        ]  # fmt: skip
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
                cwd=work,
            )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.ready: dict[str, Any] = self._answer()
        self.result: Any = pickle.loads(self._result.read_bytes())

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self) -> Any:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            line = ""
        if not line:
            self.end()
            raise ClientError(self._errors.read_text().strip()[-600:] or "no answer")
        return json.loads(line)

    def ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def best(self, seconds: float) -> tuple[float, float]:
        """Seconds of the best call of so many seconds: of the clock, and of the process on processors."""
        clock, worked = zip(*self.ask(str(seconds)), strict=True)
        return min(clock), min(worked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
