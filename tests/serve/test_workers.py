"""Several processes that serve the same: they take a version together, and what becomes of it when one of them dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import Request, urlopen

import pytest

from bolt_numba.serve import ModelSettings, Repository, RequestError
from bolt_numba.serve.processes import Herd, Link, ServingProcess
from tests.serve.test_command import WAIT_S, started, status
from tests.small import add
from tests.test_interrupts import child


def adding(folder: Path, number: int, refusal: str = "raise RuntimeError('no room here')") -> None:
    """A version whose module does otherwise in processes that a file ``refused`` names."""
    (folder / "m" / str(number)).mkdir(parents=True)
    refused = f"str(os.getpid()) in Path({str(folder / 'refused')!r}).read_text().split()"
    (folder / "m" / str(number) / f"adding_{number}.py").write_text(
        f"import os, time\nfrom pathlib import Path\n\nif {refused}:\n    {refusal}\n\n\n"
        f"def f(x):\n    return x + {number}\n"
    )
    (folder / "m" / str(number) / "flow.toml").write_text(
        "inputs = { x = 'f32[n]' }\noutputs = 'y'\n"
        f"[nodes.f]\nfunction = 'adding_{number}:f'\ninputs = 'x'\noutputs = 'y'\n"
    )


def answers(address: str) -> set[tuple[float, str]]:
    """What the model answers, and what the index says of it; connections go to any process."""
    given = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [0]}]}).encode()
    seen = set[tuple[float, str]]()
    for _ in range(20):
        with urlopen(f"http://{address}/v2/models/m/infer", given, timeout=WAIT_S) as answer:
            (number,) = json.load(answer)["outputs"][0]["data"]
        with urlopen(Request(f"http://{address}/v2/repository/index", b"{}"), timeout=WAIT_S) as answer:
            rows = json.load(answer)
        seen.add((number, " ".join(f"{row['version']} {row['state']} {row['reason']}" for row in rows)))
    return seen


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def want_told(process: subprocess.Popen[str], said: str) -> None:
    """Read its log up to a line."""
    assert process.stderr is not None
    line = ""
    while said not in line:
        line = process.stderr.readline()
        assert line


@contextmanager
def two_serving(folder: Path, *args: Any) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Two processes that both serve a model of one version, with their numbers."""
    (folder / "refused").write_text("")
    adding(folder, 1)
    with started(folder, "--workers", "2", *args) as (process, address, _):
        guard = threading.Timer(WAIT_S, process.kill)
        guard.start()
        want_told(process, '"serving')  # the other one, too
        yield process, address, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        guard.cancel()


@pytest.mark.parametrize("way", ["load", "signal", "look"])
def test_a_version_that_one_process_cannot_load_is_taken_by_none(tmp_path: Path, way: str) -> None:
    def load(wanted: int) -> None:
        if way == "load":
            assert status(address, "/v2/repository/models/m/load", b"{}") == wanted
        elif way == "signal":
            process.send_signal(signal.SIGHUP)

    with two_serving(tmp_path, *(("--poll", "0.2") if way == "look" else ())) as (process, address, children):
        (tmp_path / "refused").write_text(children[1])
        adding(tmp_path, 2)
        load(400)
        wait_until(lambda: all("no room here" in said for _, said in answers(address)))
        seen = answers(address)
        assert {number for number, _ in seen} == {1}
        assert any("another process did not load it" in said for _, said in seen)
        (tmp_path / "refused").write_text("")
        (tmp_path / "m" / "2" / "flow.toml").touch()  # a look by itself tries only what has changed
        load(200)
        wait_until(lambda: answers(address) == {(2, "2 READY ")})
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_a_process_that_takes_the_place_of_another_has_what_the_others_have(tmp_path: Path) -> None:
    with two_serving(tmp_path) as (process, address, children):
        (tmp_path / "refused").write_text(children[1])
        adding(tmp_path, 2)
        assert status(address, "/v2/repository/models/m/load", b"{}") == 400
        os.kill(int(children[0]), signal.SIGKILL)  # another one could load it
        want_told(process, "serving m")
        seen = answers(address)
        assert {number for number, _ in seen} == {1}
        assert all("1 READY  2 UNAVAILABLE " in said and "no room here" in said for _, said in seen)
        os.kill(int(children[1]), signal.SIGKILL)
        want_told(process, "serving m")
        assert status(address, "/v2/repository/models/m/load", b"{}") == 200
        assert answers(address) == {(2, "2 READY ")}


def test_a_process_that_dies_of_a_version_once_does_not_keep_it_from_others(tmp_path: Path) -> None:
    with two_serving(tmp_path) as (process, address, children):
        (tmp_path / "refused").write_text(children[1])
        adding(tmp_path, 2, "time.sleep(1), os._exit(9)")
        process.send_signal(signal.SIGHUP)
        want_told(process, "ended with 9")
        want_told(process, "serving m")
        assert answers(address) == {(2, "2 READY ")}


def test_a_version_that_processes_die_of_is_refused(tmp_path: Path) -> None:
    with two_serving(tmp_path, "--poll", "0.2") as (process, address, _):
        adding(tmp_path, 2)
        module = tmp_path / "m" / "2" / "adding_2.py"
        works = module.read_text()
        module.write_text("import os\n\nos._exit(9)\n")
        for _ in range(2):
            want_told(process, "serving m")
        seen = answers(address)
        assert {number for number, _ in seen} == {1}
        assert all("version 2: processes died as they loaded it" in said for _, said in seen)
        module.write_text(works)
        wait_until(lambda: answers(address) == {(2, "2 READY ")})


def test_two_who_ask_for_a_load_at_once(tmp_path: Path) -> None:
    """And a signal, and one who asks for the opposite: each is answered, and all processes agree."""
    with two_serving(tmp_path) as (process, address, _), ThreadPoolExecutor(3) as pool:
        adding(tmp_path, 2, "time.sleep(1)")
        paths = [f"/v2/repository/models/m/{change}" for change in ("load", "load", "unload")]
        asked = [pool.submit(status, address, path, b"{}") for path in paths]
        process.send_signal(signal.SIGHUP)
        assert [each.result() for each in asked] == [200, 200, 200]
        assert status(address, "/v2/repository/models/m/load", b"{}") == 200
        wait_until(lambda: answers(address) == {(2, "2 READY ")})


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_processes_that_wait_for_a_load_that_never_ends_end(tmp_path: Path, end: signal.Signals) -> None:
    with two_serving(tmp_path) as (process, address, children), ThreadPoolExecutor(1) as pool:
        (tmp_path / "refused").write_text(children[1])
        adding(tmp_path, 2, "Path(__file__).with_suffix('.tried').touch(), time.sleep(1000)")
        asked = pool.submit(status, address, "/v2/repository/models/m/load", b"{}")
        wait_until((tmp_path / "m" / "2" / "adding_2.tried").exists)
        assert {number for number, _ in answers(address)} == {1}
        began = time.monotonic()
        process.send_signal(end)
        process.communicate(timeout=WAIT_S)  # all that hold its standard error are gone
        assert time.monotonic() - began < WAIT_S / 4
        if end == signal.SIGTERM:
            assert process.returncode == 0
            assert asked.result() == 503


def herd_beside_another_child() -> None:
    other = subprocess.Popen([sys.executable, "-c", "import sys, time; time.sleep(0.5); sys.exit(3)"])
    herd = Herd(1, lambda link: signal.pause(), Repository(None, {}, ModelSettings()))
    ends = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM))
    ends.start()
    herd.run()
    assert other.wait(WAIT_S) == 3


def test_children_that_are_no_workers_are_left_to_others(tmp_path: Path) -> None:
    child(herd_beside_another_child, __name__, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))


def test_names_that_no_file_has_are_not_told_to_others() -> None:
    """A pipe between processes has no room for them."""
    repository, (ours, theirs) = Repository(None, {}, ModelSettings()), Pipe()

    async def begin() -> None:
        Link(theirs, watches=False).begin(repository, lambda work: None)
        with pytest.raises(RequestError, match="model: got 'xxx"):
            await repository.change("x" * 3_000_000, (), loads=True)
        assert not ours.poll()

    asyncio.run(begin())
    ours.close()
    theirs.close()


def test_of_changes_one_is_in_the_pipe() -> None:
    """A pipe that waits for nobody has no room for many."""
    ours, theirs = Pipe()
    repository, found = Repository(None, {}, ModelSettings()), list[Any]()

    async def ask() -> None:
        Link(theirs, watches=False).begin(repository, lambda work: None)
        os.set_blocking(theirs.fileno(), False)
        changes = [asyncio.create_task(repository.change(str(i), (), loads=True)) for i in range(2000)]
        await asyncio.sleep(0)
        changes[0].cancel()  # its answer is not another's
        for i in range(2000):
            assert json.loads(await asyncio.to_thread(ours.recv_bytes)) == {"change": [str(i), True, True]}
            assert not ours.poll()
            ours.send_bytes(json.dumps({"error": ["missing", str(i)]}).encode())
        found.extend(map(str, await asyncio.gather(*changes, return_exceptions=True)))

    asyncio.run(ask())
    assert found == ["", *map(str, range(1, 2000))]
    ours.close()
    theirs.close()


def test_changes_end_with_the_one_that_looks_after_all() -> None:
    ours, theirs = Pipe()
    repository, found = Repository(None, {}, ModelSettings()), list[Any]()

    async def ask() -> None:
        Link(theirs, watches=False).begin(repository, lambda work: None)
        changes = [asyncio.create_task(repository.change(str(i), (), loads=True)) for i in range(3)]
        await asyncio.sleep(0)
        ours.close()
        found.extend(error.kind for error in await asyncio.gather(*changes, return_exceptions=True))
        while "ends" not in found:
            await asyncio.sleep(0.001)

    # A real signal ended the process of the tests at times.
    with patch.object(signal, "raise_signal", lambda number: found.append({signal.SIGTERM: "ends"}[number])):
        asyncio.run(asyncio.wait_for(ask(), WAIT_S))
    assert sorted(found) == ["ends", "unavailable", "unavailable", "unavailable"]


def test_processes_that_found_other_files_take_none(tmp_path: Path) -> None:
    repository = Repository(tmp_path, {}, ModelSettings())
    herd = Herd(2, lambda link: None, Repository(None, {}, ModelSettings()))
    pipes = {number: Pipe() for number in (1, 2)}
    herd.workers = {number: ServingProcess(number, 0.0, ours) for number, (ours, _) in pipes.items()}
    first, other = (theirs for _, theirs in pipes.values())

    def tell(pipe: Any, what: Any) -> None:
        pipe.send_bytes(json.dumps(what).encode())

    async def make() -> None:
        Link(first, watches=True).begin(repository, lambda work: tasks.append(asyncio.create_task(work)))
        tasks: list[Any] = []
        change = asyncio.create_task(repository.change("m", (), loads=True))
        while not change.done():
            for number, (ours, theirs) in pipes.items():
                while ours.poll():
                    herd._hear(number, ours)
                while theirs is other and other.poll():
                    told = json.loads(other.recv_bytes())
                    if "change" in told:
                        tell(other, {"failed": {}, "after": {"1": 5}})
                    else:
                        found.append(told)
                        tell(other, {"error": None, "serve": []})
            await asyncio.sleep(0.01)
        await change

    add(tmp_path / "m" / "1" / "model.onnx")
    found: list[Any] = []
    with pytest.raises(RequestError, match="its files changed") as error:
        asyncio.run(make())
    assert error.value.kind == "unavailable"
    assert found == [{"refused": {"1": None}}]
    assert not repository.models
    assert not repository.refused
    for pair in pipes.values():
        for pipe in pair:
            pipe.close()
