"""``bolt-numba serve`` as it is started and ended: processes, signals, wrong options."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from bolt_numba.cli.app import run
from tests.small import add

BODY = json.dumps({
    "inputs": [{"name": name, "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]} for name in "ab"]
}).encode()  # fmt: skip
WAIT_S = 60


@contextmanager
def started(
    *args: Any, before: Sequence[Any] = (sys.executable, "-m"), stdout: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str, list[dict[str, Any]]]]:
    """The command with its address, and what it logged until it served."""
    name = "bolt_numba" if before[-1] == "-m" else str(Path(sys.executable).parent / "bolt-numba")
    command = [*map(str, (*before, name, "serve", *args)), "--http-port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    try:
        lines: list[dict[str, Any]] = []
        while not lines or not str(lines[-1]["message"]).startswith("serving"):
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line, lines
            lines += [json.loads(line)] if line.startswith("{") else []
        found = re.search(r"http://([\d.:]+)/v2", lines[-1]["message"])
        assert found is not None
        yield process, found[1], lines
    finally:
        process.kill()
        process.communicate()


def status(address: str, path: str, body: bytes | None = None) -> int:
    try:
        with urlopen(Request(f"http://{address}{path}", body), timeout=WAIT_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_a_server_begins_serves_and_ends(tmp_path: Path) -> None:
    with started(add(tmp_path / "sum.onnx")) as (process, address, _):
        assert status(address, "/v2/health/ready") == 200
        assert status(address, "/v2/models/sum/infer", BODY) == 200
        kept = HTTPConnection(address)
        kept.request("GET", "/v2/health/live")  # a connection that stays open does not keep the server
        assert kept.getresponse().read() == b""
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        with pytest.raises(URLError):
            status(address, "/v2/health/live")
        kept.close()


def test_processes_share_a_port_and_one_that_dies_is_begun_again(tmp_path: Path) -> None:
    with started(add(tmp_path / "sum.onnx"), "--workers", "2") as (process, address, _):
        for _ in range(20):
            assert status(address, "/v2/models/sum/infer", BODY) == 200
        with urlopen(f"http://{address}/v2/models/sum/stats", timeout=WAIT_S) as answer:
            (row,) = json.load(answer)["model_stats"]
        assert row["inference_count"] == 20
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        before = set(children.read_text().split())
        assert len(before) == 2
        os.kill(int(min(before)), signal.SIGKILL)
        until = time.monotonic() + WAIT_S
        while len(now := set(children.read_text().split())) < 2 or now == before:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert len(now & before) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_processes_end_with_the_one_that_began_them(tmp_path: Path) -> None:
    with started(add(tmp_path / "sum.onnx"), "--workers", "2") as (process, address, _):
        process.kill()
        process.communicate(timeout=WAIT_S)  # all that hold its standard error are gone
        with pytest.raises(URLError):
            status(address, "/v2/health/live")


def all_say(address: str, path: str, wanted: int, times: int = 20) -> None:
    """That all processes answer so: connections go to any of them."""
    until, seen = time.monotonic() + WAIT_S, 0
    while seen < times:
        try:
            seen = seen + 1 if status(address, path) == wanted else 0
        except (URLError, ConnectionError):  # it was with one that died
            seen = 0
        assert time.monotonic() < until
        time.sleep(0.01)


def test_several_processes_change_together(tmp_path: Path) -> None:
    add(tmp_path / "m" / "1" / "model.onnx")
    with started(tmp_path, "--workers", "2") as (process, address, _):
        add(tmp_path / "n" / "1" / "model.onnx")
        (tmp_path / "bad" / "1").mkdir(parents=True)
        (tmp_path / "bad" / "1" / "model.onnx").write_bytes(b"bad")
        for name, change, answer, then in (
            ("n", "load", 200, 200), ("bad", "load", 400, 503), ("none", "load", 404, 404), ("m", "unload", 200, 404),
        ):  # fmt: skip
            assert status(address, f"/v2/repository/models/{name}/{change}", b"{}") == answer
            for _ in range(10):  # at once, in all of them
                assert status(address, f"/v2/models/{name}") == then
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        all_say(address, "/v2/models/n", 200)  # one that begins later has what is loaded
        while len(children.read_text().split()) < 2:
            time.sleep(0.05)
        all_say(address, "/v2/models/m", 404)
        process.send_signal(signal.SIGHUP)
        all_say(address, "/v2/models/m", 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_changes_that_meet(tmp_path: Path) -> None:
    """Of many at once, of all processes, each is answered, and all processes agree at the end."""
    add(tmp_path / "m" / "1" / "model.onnx")
    with started(tmp_path, "--workers", "3") as (_, address, _), ThreadPoolExecutor(8) as pool:
        paths = [f"/v2/repository/models/m/{change}" for change in ("load", "unload")] * 12
        answers = list(pool.map(lambda path: status(address, path, b"{}"), paths))
        assert set(answers) <= {200, 404}  # to unload what is gone is 404
        assert status(address, "/v2/repository/models/m/load", b"{}") == 200
        for _ in range(20):
            assert status(address, "/v2/models/m/ready") == 200
        with urlopen(f"http://{address}/metrics", timeout=WAIT_S) as answer:
            lines = answer.read().decode().splitlines()
        assert sum(line.startswith("bolt_process{") and "resident_bytes" in line for line in lines) == 3


def slow_flow(tmp_path: Path, seconds: int) -> tuple[Path, Path]:
    """A flow that takes so many seconds to load where a file is there: its folder, and the file."""
    folder, slow = tmp_path / "models" / "m" / "1", tmp_path / "slow"
    folder.mkdir(parents=True)
    (folder / "slow_steps.py").write_text(
        f"import time\nfrom pathlib import Path\n\nif Path({str(slow)!r}).exists():\n    time.sleep({seconds})\n\n\n"
        "def f(x):\n    return x\n"
    )
    (folder / "flow.toml").write_text(
        "inputs = { x = 'f32[n]' }\noutputs = 'y'\n[nodes.f]\nfunction = 'slow_steps:f'\ninputs = 'x'\noutputs = 'y'\n"
    )
    return folder, slow


def test_a_process_that_begins_during_a_change_has_it(tmp_path: Path) -> None:
    folder, slow = slow_flow(tmp_path, 5)
    slow.touch()
    with started(tmp_path / "models", "--workers", "2") as (process, address, _), ThreadPoolExecutor(1) as pool:
        assert status(address, "/v2/repository/models/m/unload", b"{}") == 200
        (folder / "slow_steps.py").write_text((folder / "slow_steps.py").read_text() + "\n")
        change = pool.submit(status, address, "/v2/repository/models/m/load", b"{}")
        time.sleep(1.5)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        with suppress(URLError, ConnectionError):  # it may have been the one that was asked
            assert change.result() == 200
        all_say(address, "/v2/models/m", 200, 60)


@pytest.mark.parametrize("more", [[], ["--workers", "2"]])
def test_a_model_that_takes_long_to_load_does_not_keep_the_server(more: list[str], tmp_path: Path) -> None:
    folder, slow = slow_flow(tmp_path, 60)
    with started(tmp_path / "models", "--grace", "1", *more) as (process, address, _), ThreadPoolExecutor(1) as pool:
        slow.touch()
        (folder / "slow_steps.py").write_text((folder / "slow_steps.py").read_text() + "\n")
        change = pool.submit(status, address, "/v2/repository/models/m/load", b"{}")
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        with suppress(URLError, ConnectionError, HTTPException):
            assert change.result() != 200


def test_runs_that_never_end_do_not_keep_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "endless_steps.py").write_text("import time\n\n\ndef f(x):\n    while True:\n        time.sleep(0.1)\n")
    (folder / "flow.toml").write_text(
        "inputs = { x = 'f32[n]' }\noutputs = 'y'\n"
        "[nodes.f]\nfunction = 'endless_steps:f'\ninputs = 'x'\noutputs = 'y'\n"
    )
    body = (
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}], "parameters": {"timeout": 1000}}'
    )
    with started(tmp_path / "models", "--grace", "1") as (process, address, _):
        assert status(address, "/v2/models/m/infer", body) == 504
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["nothing.onnx"], 1, "error: nothing.onnx: No such file or directory\n"),
        (
            ["hollow"],
            1,
            "hollow: got a folder of nothing, wanted model.onnx alone or beside a tokenizer.json, or models in",
        ),
        (["plain"], 1, "plain: got a folder of net, notes.txt, wanted model.onnx alone or beside a tokenizer.json"),
        (["plain/net"], 1, "plain/net/model.toml: got it beside the model itself, wanted options of the command"),
        (["m.onnx", "--port", "8000"], 2, "--grpc-port, --http-port"),
        (["m.onnx", "other/m.onnx"], 1, "got a second model 'm'"),
        (["m.onnx", "--http-port", "-1", "--grpc-port", "-1"], 1, "wanted --http-port or --grpc-port"),
        (["m.onnx", "--tls-key", "key.pem"], 1, "wanted both"),
        (
            ["m.onnx", "--tls-key", "empty", "--tls-certificate", "empty", "--http-port", "-1", "--workers", "2"],
            1,
            "wanted two files in PEM",
        ),
        (["m.onnx", "--workers", "2", "--host", "203.0.113.7"], 1, "203.0.113.7"),
        (["m.onnx", "--token-file", "empty"], 1, "wanted a token"),
        (["m.onnx", "--max-wait-us", "5"], 1, "larger max_batch"),
        (["m.onnx", "--log-level", "loud"], 2, "loud"),
        (["m.onnx", "--host", "203.0.113.7", "--grpc-port", "-1"], 1, "203.0.113.7"),
    ],
)
def test_wrong_options(
    args: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")  # which is taken back
    for name in ("m.onnx", "other/m.onnx"):
        add(tmp_path / name)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "hollow").mkdir()
    add(tmp_path / "plain" / "net" / "model.onnx")
    (tmp_path / "plain" / "net" / "model.toml").write_text("threads = 1")
    (tmp_path / "plain" / "notes.txt").write_text("no model")
    assert run(["serve", *args]) == code
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("other", ["--grpc-port", "--http-port"])
@pytest.mark.parametrize("more", [[], ["--workers", "2"]])
def test_a_port_in_use_is_told(
    other: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")  # which is taken back
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        option = "--http-port" if other == "--grpc-port" else "--grpc-port"
        assert run(["serve", str(add(tmp_path / "m.onnx")), option, str(port), other, "-1", *more]) == 1
    said = f"error: {option}: got 127.0.0.1:{port}: [Errno 98] Address already in use, wanted an address that is free"
    assert capfd.readouterr().err.replace("\n", " ").strip() == said
