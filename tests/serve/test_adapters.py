"""The adapters of examples/serve in the servers that they are for: they answer as a session does, and refuse politely.

Each server needs an environment of its own: `make adapters`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest

import bolt_numba as bn
from tests.pages import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "serve"
MODEL = ROOT / "examples" / "digits" / "digits.onnx"
WAIT_S = 120
SERVERS = ("kserve", "litserve", "mlserver", "ray")
MOST_LINES = 80
BEGINNING = (503, 404)
"""What servers say whose model is not there yet."""


def python_with(package: str) -> str:
    """The Python that has a package: this one, or that of `make adapters`."""
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    own = ROOT / ".clients" / package / "bin" / "python"
    if not own.exists():
        pytest.skip(f"{package} is not installed: make adapters")
    return str(own)


def command(package: str, python: str, port: int, work: Path) -> list[str]:
    """What starts a server; MLServer wants a folder with its settings."""
    script = str(FOLDER / f"with_{package}.py")
    if package == "kserve":
        ports = ["--http_port", str(port), "--enable_grpc", "False"]
        return [python, script, str(MODEL), "--model_name", "digits", *ports]
    if package != "mlserver":
        return [python, script, str(MODEL), str(port)]
    shutil.copy(script, work)
    shutil.copy(MODEL, work)
    told = {
        "name": "digits", "implementation": "with_mlserver.BoltModel",
        "parameters": {"uri": "./digits.onnx", "extra": {"threads": 1}},
    }  # fmt: skip
    (work / "model-settings.json").write_text(json.dumps(told))
    ports = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    (work / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0, **ports}))
    return [str(Path(python).with_name("mlserver")), "start", str(work)]


def ask(url: str, given: Any) -> tuple[int, Any]:
    request = Request(url, json.dumps(given).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def begun(args: Sequence[str], work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server, in a session of its own, so that all of its processes can be ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(
            args, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)


@pytest.mark.parametrize("package", SERVERS)
@pytest.mark.timeout(3 * WAIT_S)
def test_an_adapter_answers_as_a_session(package: str, tmp_path: Path) -> None:
    port, python = free_port(), python_with(package)
    images = (np.load(MODEL.with_name("digits.npz"))["image"][:3] / 16).astype(np.float32)
    is_protocol = package in ("kserve", "mlserver")
    url = f"http://127.0.0.1:{port}" + {"litserve": "/predict", "ray": "/"}.get(package, "/v2/models/digits/infer")

    def request(images: Any) -> dict[str, Any]:
        given = {"name": "image", "datatype": "FP32", "shape": images.shape, "data": images.reshape(-1).tolist()}
        return {"inputs": [given]} if is_protocol else {"image": images.tolist()}

    with begun(command(package, python, port, tmp_path), tmp_path) as process:
        until, status = time.monotonic() + WAIT_S, BEGINNING[0]
        while status in BEGINNING:
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < until, (status, (tmp_path / "log").read_text()[-2000:])
            try:
                status, answer = ask(url, request(images))
            except URLError:
                time.sleep(0.2)
        assert status == 200, answer
        found = answer["outputs"][0] if is_protocol else {"data": answer["probabilities"], "shape": (3, 10)}
        wanted = np.asarray(bn.compile(MODEL)(images))
        np.testing.assert_array_equal(np.float32(found["data"]).reshape(found["shape"]), wanted)
        status, said = ask(url, request(images[:, :, :5]))
        assert status in (400, 422), said
        assert "wanted" in str(said)
        assert ask(url, request(images))[0] == 200


@pytest.mark.parametrize("package", SERVERS)
def test_an_adapter_is_short(package: str) -> None:
    assert len((FOLDER / f"with_{package}.py").read_text().splitlines()) < MOST_LINES
