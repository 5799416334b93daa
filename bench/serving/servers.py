"""The servers that are compared, each a process of its own in an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from bench.serving.forms import BASE64, BINARY, ELEMENTS, LISTS, PROTOCOL_JSON, RAW, Form
from bench.serving.models import Served

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".peers" / "serving"
"""Where `make bench-serving` puts the environments of rivals."""
WAIT_S = 120.0
BATCH, BATCH_WAIT_S = 8, 0.002
"""Requests that rivals run as one, and how long the first waits for others."""
PORTS = count(18500, 4)


class Server(NamedTuple):
    """A server: its package, and the command for a Python, a model, a folder to write to and a port."""

    package: str
    command: Callable[[str, Path, Path, int], list[str]]


class Contestant(NamedTuple):
    """A server asked in one form."""

    server: str
    form: Form

    def takes(self, model: Served) -> bool:
        """Whether requests to a model are written so."""
        return (model.lists or self.form not in (LISTS, PROTOCOL_JSON)) and (model.single or self.form is not RAW)


def _ours(python: str, model: Path, work: Path, port: int) -> list[str]:
    told = ["--http-port", str(port), "--grpc-port", str(port + 1), "--log-level", "error"]
    return [python, "-m", "bolt_numba", "serve", str(model), *told]


def _fastapi(python: str, model: Path, work: Path, port: int) -> list[str]:
    return [
        python,
        "-m",
        "uvicorn",
        "bench.serving.rivals.with_fastapi:app",
        "--port",
        str(port),
        "--log-level",
        "error",
    ]


def _litserve(python: str, model: Path, work: Path, port: int) -> list[str]:
    return [python, "-m", "bench.serving.rivals.with_litserve", str(port)]


def _mlserver(python: str, model: Path, work: Path, port: int) -> list[str]:
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    server = {"host": "127.0.0.1", "debug": False, "parallel_workers": PARALLEL_WORKERS, **ports}
    model_settings = {
        "name": model.stem, "implementation": "bench.serving.rivals.with_mlserver.MLRecipe",
        "parameters": {"uri": str(model)}, "max_batch_size": BATCH, "max_batch_time": BATCH_WAIT_S,
    }  # fmt: skip
    (work / "settings.json").write_text(json.dumps(server))
    (work / "model-settings.json").write_text(json.dumps(model_settings))
    return [str(Path(python).with_name("mlserver")), "start", str(work)]


PARALLEL_WORKERS = 0
"""Processes of MLServer beside the one that answers."""
SERVERS = {
    "bolt-numba": Server("bolt_numba", _ours),
    "FastAPI": Server("fastapi", _fastapi),
    "LitServe": Server("litserve", _litserve),
    "MLServer": Server("mlserver", _mlserver),
}
OURS = ("bolt-numba, binary", "bolt-numba, JSON")
CONTESTANTS = {
    OURS[0]: Contestant("bolt-numba", BINARY),
    OURS[1]: Contestant("bolt-numba", PROTOCOL_JSON),
    "FastAPI, JSON": Contestant("FastAPI", LISTS),
    "FastAPI, bytes": Contestant("FastAPI", RAW),
    "LitServe": Contestant("LitServe", BASE64),
    "MLServer": Contestant("MLServer", ELEMENTS),
}


def python_of(server: str) -> str:
    """The Python of a server: this one for ours."""
    own = HOME / SERVERS[server].package / "bin" / "python"
    return sys.executable if server == "bolt-numba" else str(own)


@contextmanager
def running(names: Sequence[str], model: Path) -> Iterator[dict[str, int]]:
    """Servers with one model; the port of each, once it is ready."""
    environment = {**os.environ, "MODEL": str(model), "MAX_BATCH": str(BATCH), "MAX_WAIT_S": str(BATCH_WAIT_S)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    started, ports = list[subprocess.Popen[bytes]](), dict[str, int]()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for name in names:
                work, ports[name] = Path(scratch, name), next(PORTS)
                work.mkdir()
                command = SERVERS[name].command(python_of(name), model, work, ports[name])
                with Path(scratch, f"{name}.log").open("wb") as log:
                    started.append(
                        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log,
                                         process_group=0)
                    )  # fmt: skip
            for name, port in ports.items():
                _wait_for(port, started[list(ports).index(name)], Path(scratch, f"{name}.log"))
            yield ports
        finally:
            for process in started:
                _end(process)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/v2/health/ready"):
                return
        except (URLError, ConnectionError):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{process.args}: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it started, which are of its session."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(WAIT_S / 10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
