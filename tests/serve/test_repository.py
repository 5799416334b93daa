"""Folders of models: versions, settings, changes while requests come, files that are broken, flows as models."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shutil
import sys
import time
import weakref
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from bolt_numba.cli.serving import repository_of
from bolt_numba.serve import ModelSettings, Repository, RequestError, SettingsError, models
from bolt_numba.serve import repository as repositories
from bolt_numba.serve.logs import JsonLines
from bolt_numba.serve.models import RequestTerms
from bolt_numba.serve.repository import is_repository
from bolt_numba.serve.settings import settings_of
from bolt_numba.text import Generator
from bolt_numba.text.answers import Answer
from tests.gguf_files import Tiny
from tests.serve.serving import Running, running
from tests.serve.test_rest import ask
from tests.small import add, save_model, softmax
from tests.text.decoders import whole

A = np.array([[1, 2, 3]], "f4")


def infer(server: Running, name: str = "m", version: str = "", **arrays: Any) -> Any:
    model = server.server.repository.find(name, version)
    return server.do(model.infer(arrays or {"a": A, "b": A}, [], RequestTerms({})))["y"]


def subtract(path: Path) -> Path:
    return save_model(path, "Sub", dict.fromkeys("ab", (TensorProto.FLOAT, ["n", 3])), TensorProto.FLOAT)


def versions(server: Running) -> dict[str, str]:
    return {row["version"]: row["state"] for row in server.server.repository.index()}


def test_the_latest_version_serves(tmp_path: Path) -> None:
    add(tmp_path / "m" / "2" / "model.onnx")
    subtract(tmp_path / "m" / "10" / "model.onnx")
    with running(tmp_path) as server:
        assert versions(server) == {"10": "READY"}
        assert np.array_equal(infer(server), A - A)
        (tmp_path / "m" / "model.toml").write_text("versions = [2, 10]")
        server.do(server.server.repository.load("m"))
        assert versions(server) == {"2": "READY", "10": "READY"}
        assert np.array_equal(infer(server, version="2"), A + A)


def test_a_new_version_takes_over_without_a_gap(tmp_path: Path) -> None:
    add(tmp_path / "m" / "1" / "model.onnx")
    stop, wrong, seen = Event(), list[Any](), set[float]()
    with running(tmp_path, poll_seconds=0.1) as server:

        def client() -> None:
            while not stop.is_set():
                found = infer(server)
                seen.add(float(found[0, 0]))
                if not (np.array_equal(found, A + A) or np.array_equal(found, A - A)):
                    wrong.append(found)

        threads = [Thread(target=client) for _ in range(2)]
        for thread in threads:
            thread.start()
        subtract(tmp_path / "next" / "model.onnx").parent.rename(tmp_path / "m" / "2")
        until = time.monotonic() + 30
        while versions(server) != {"2": "READY"} and time.monotonic() < until:
            time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        assert np.array_equal(infer(server), A - A)
        assert versions(server) == {"2": "READY"}
    assert not wrong
    assert seen <= {0.0, 2.0}


def test_a_broken_file_leaves_the_old_one(tmp_path: Path) -> None:
    path = add(tmp_path / "m" / "1" / "model.onnx")
    with running(tmp_path) as server:
        repository = server.server.repository
        path.write_bytes(b"\x08\x07broken")
        with pytest.raises(RequestError, match=r"model 'm': version 1: .*model.onnx"):
            server.do(repository.load("m"))
        (row,) = repository.index()
        assert row["state"] == "READY"
        assert "a newer file was not loaded" in row["reason"]
        assert np.array_equal(infer(server), A + A)
        subtract(path)
        server.do(repository.load("m"))
        assert np.array_equal(infer(server), A - A)
        assert repository.index()[0]["reason"] == ""


def test_what_cannot_be_loaded_is_told_and_the_rest_serves(tmp_path: Path) -> None:
    add(tmp_path / "good" / "1" / "model.onnx")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.onnx").write_bytes(b"nothing")
    add(tmp_path / "empty" / "1" / "net.onnx")
    (tmp_path / "empty" / "1" / "notes.txt").write_text("no model")
    add(tmp_path / "flat" / "model.onnx")
    add(tmp_path / "odd" / "1" / "model.onnx")
    (tmp_path / "odd" / "model.toml").write_text("max_batsh = 2\nthreads = 'two'\n")
    add(tmp_path / "deep" / "1" / "model.onnx")
    (tmp_path / "deep" / "1" / "model.toml").write_text("max_batch = 2\n")
    with running(tmp_path) as server:
        repository = server.server.repository
        assert not repository.is_ready
        status, said, _ = ask(server, "/v2/health/ready")
        assert (status, said["ready"], len(said["models"])) == (503, False, 5)
        assert said["models"] == [row for row in repository.index() if row["state"] != "READY"]
        told = {row["name"]: (row["state"], row["reason"]) for row in repository.index()}
        assert told["good"] == ("READY", "")
        assert {told[name][0] for name in ("bad", "deep", "empty", "flat", "odd")} == {"UNAVAILABLE"}
        assert "did you mean 'max_batch'?" in told["odd"][1]
        wanted = tmp_path / "deep" / "model.toml"
        assert f"deep/1/model.toml: got it beside a version's files, wanted {wanted}" in told["deep"][1]
        assert "empty/1: got net.onnx, notes.txt, wanted one of flow.toml, " in told["empty"][1]
        assert "flat: versions: got model.onnx, wanted folders named by numbers" in told["flat"][1]
        with pytest.raises(RequestError, match=r"model 'odd'.*max_batsh"):
            repository.find("odd")
        assert np.array_equal(infer(server, "good"), A + A)
        server.do(repository.unload("bad"))
        assert [row["reason"] for row in repository.index() if row["name"] == "bad"] == ["unloaded"]


def test_unloading_waits_for_requests_under_way(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    steps = "import time\n\n\ndef f(x):\n    time.sleep(0.7)\n    return x\n"
    (tmp_path / "m" / "1" / "waiting_steps.py").write_text(steps)
    (tmp_path / "m" / "1" / "flow.toml").write_text(
        "inputs = { x = 'f32[n]' }\noutputs = 'y'\n"
        "[nodes.f]\nfunction = 'waiting_steps:f'\ninputs = 'x'\noutputs = 'y'\n"
    )
    found: list[Any] = []
    with running(tmp_path) as server:
        thread = Thread(target=lambda: found.append(infer(server, x=np.ones(2, "f4"))))
        thread.start()
        time.sleep(0.2)
        server.do(server.server.repository.unload("m"))
        with pytest.raises(RequestError, match="'m'"):
            server.server.repository.find("m")
        thread.join()
    assert np.array_equal(found[0], np.ones(2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_batch = 0", "max_batch"), ("max_batch", "no TOML"), ("queue = 'x'", "queue"),
        ("versions = 'some'", "versions"),
        ("versions = [0]", "versions"), ("max_wait_us = 5", "larger max_batch"), ("pad = { x = 0 }", "larger max_"),
        ("pad = { x = 'no' }\nmax_batch = 2", "pad"), ("warmup = [{ x = 'no' }]", "warmup"), ("warmup = 3", "warmup"),
        ("deadline_ms = -1", "deadline_ms"), ("instances = 1.5", "instances"), ("precision = 1\nbatch = 3", "batch"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text(text)
    with pytest.raises(SettingsError, match=f"model.toml: .*{said}"):
        settings_of(tmp_path, ModelSettings())


def test_settings_of_sessions_and_shapes(tmp_path: Path) -> None:
    softmax(tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "model.toml").write_text("threads = 1\nprecision = 'f16'\nwarmup = [{ x = [2, 5] }]\n")
    with running(tmp_path) as server:
        session = server.server.repository.find("m").session
        assert session is not None
        assert (session.threads, session.precision) == (1, "f16")
        assert infer(server, x=np.ones((2, 5), "f4")).shape == (2, 5)


@pytest.mark.parametrize(
    ("asked", "alone", "together", "threads"),
    [(None, 1.1e-4, 1e-4, 1), (None, 2e-4, 1e-4, 2), (None, 1.0, 1.0, 2), (2, 1e-4, 1e-4, 2)],
    ids=["quick", "twice", "slow", "asked"],
)
def test_quick_models_have_one_thread_unless_it_takes_longer(
    asked: int | None, alone: float, together: float, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what runs take, as it is measured here; ``asked``: threads that the user wants."""
    monkeypatch.setattr(models, "_seconds", lambda session, feeds: alone if session.threads == 1 else together)
    monkeypatch.setattr(models, "default_threads", lambda: 2)
    add(tmp_path / "m" / "1" / "model.onnx")
    usual = ModelSettings(max_batch=4, instances=1, compile={"threads": asked, "device": ["cpu"]})
    with running(tmp_path, usual=usual) as server:
        session = server.server.repository.find("m").session
        assert session is not None
        assert session.threads == threads
        assert np.array_equal(infer(server), A + A)


def test_options_that_do_not_fit_are_told(tmp_path: Path) -> None:
    add(tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "model.toml").write_text("device = 'quantum'\n")
    with running(tmp_path) as server:
        assert "quantum" in server.server.repository.index()[0]["reason"]


def test_models_that_are_gone_leave_nothing(tmp_path: Path) -> None:
    path = softmax(tmp_path / "m" / "1" / "model.onnx")
    with running(tmp_path) as server:
        gone = weakref.ref(server.server.repository.find("m"))
        os.utime(path, ns=(0, 0))
        server.do(server.server.repository.load("m"))
        until = time.monotonic() + 30
        while gone() is not None and time.monotonic() < until:
            gc.collect()
            time.sleep(0.02)
        assert gone() is None


def test_sessions_that_were_made_before_serve(tmp_path: Path) -> None:
    add(tmp_path / "m" / "1" / "model.onnx")
    repository = Repository(tmp_path, {}, ModelSettings())
    repository.preload()
    session = repository.preloaded["m", "1"][1]

    async def main() -> bool:
        await repository.look()
        found = repository.find("m").session is session
        await repository.end(5)
        return found

    assert asyncio.run(main())


def test_a_server_stays_ready_while_newer_files_are_broken(tmp_path: Path) -> None:
    add(tmp_path / "m" / "1" / "model.onnx")
    with running(tmp_path) as server:
        repository, settings = server.server.repository, tmp_path / "m" / "model.toml"
        settings.write_text("max_batsh = 2")
        with pytest.raises(RequestError, match="max_batsh"):
            server.do(repository.load("m"))
        assert repository.is_ready
        settings.unlink()
        (tmp_path / "m" / "2").mkdir()
        (tmp_path / "m" / "2" / "model.onnx").write_bytes(b"bad")
        with pytest.raises(RequestError, match="version 2"):
            server.do(repository.load("m"))
        assert repository.is_ready
        assert versions(server) == {"1": "READY", "2": "UNAVAILABLE"}
        assert np.array_equal(infer(server), A + A)
        shutil.rmtree(tmp_path / "m" / "2")
        server.do(repository.load("m"))
        assert versions(server) == {"1": "READY"}


def test_what_was_refused_is_tried_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"bad")
    tried: list[int] = []
    made = repositories.ServedModel
    monkeypatch.setattr(repositories, "ServedModel", lambda *args: tried.append(1) or made(*args))
    with running(tmp_path) as server:
        repository = server.server.repository
        server.do(repository.look(anew=False))
        assert len(tried) == 1
        server.do(repository.look())
        assert len(tried) == 2
        add(path)
        server.do(repository.look(anew=False))
        assert np.array_equal(infer(server), A + A)


def test_what_python_writes_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow's module is compiled when it is loaded, and the flow keeps what it has."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "s" / "1"
    folder.mkdir(parents=True)
    (folder / f"twice_{tmp_path.name}.py").write_text("def f(x):\n    return x + x\n")
    (folder / "flow.toml").write_text(
        "inputs = { x = 'f32[n]' }\noutputs = 'y'\n"
        f"[nodes.f]\nfunction = 'twice_{tmp_path.name}:f'\ninputs = 'x'\noutputs = 'y'\n"
    )
    with running(tmp_path) as server:
        repository = server.server.repository
        before = repository.find("s")
        assert list(folder.glob("__pycache__/*"))
        server.do(repository.look())
        assert repository.find("s") is before


def test_a_broken_version_leaves_the_others(tmp_path: Path) -> None:
    first = add(tmp_path / "m" / "1" / "model.onnx")
    subtract(tmp_path / "m" / "3" / "model.onnx")
    (tmp_path / "m" / "2").mkdir()
    (tmp_path / "m" / "2" / "model.onnx").write_bytes(b"bad")
    (tmp_path / "m" / "model.toml").write_text("versions = 'all'")
    with running(tmp_path) as server:
        repository = server.server.repository
        assert versions(server) == {"1": "READY", "2": "UNAVAILABLE", "3": "READY"}
        assert np.array_equal(infer(server), A - A)
        subtract(first)
        server.do(repository.look(anew=False))
        assert np.array_equal(infer(server, version="1"), A - A)
        serves = repository.find("m", "1")
        server.do(repository.look(anew=False))
        assert repository.find("m", "1") is serves


def test_a_folder_that_is_away_for_a_while(tmp_path: Path) -> None:
    there, away = tmp_path / "models", tmp_path / "away"
    add(there / "m" / "1" / "model.onnx")
    with running(there) as server:
        repository = server.server.repository
        there.rename(away)
        server.do(repository.look(anew=False))
        assert [row["state"] for row in repository.index()] == ["READY"]
        away.rename(there)
        add(there / "n" / "1" / "model.onnx")
        shutil.rmtree(there / "m")
        server.do(repository.look(anew=False))
        assert list(repository.models) == ["n"]


def test_who_asks_until_a_model_is_ready_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with running(tmp_path) as server, caplog.at_level(logging.INFO, "bolt_numba"):
        caplog.clear()
        for path in ("/v2/health/ready", "/v2/models/m/ready", "/v2/models/m"):
            assert ask(server, path)[0] == 503
        assert [getattr(record, "path", "") for record in caplog.records] == ["/v2/models/m"]


def test_what_is_not_ready_is_told_to_who_has_the_token(tmp_path: Path) -> None:
    (tmp_path / "secret" / "1").mkdir(parents=True)
    with running(tmp_path, token="x") as server:
        assert ask(server, "/v2/health/ready")[:2] == (503, {"ready": False})
        told = ask(server, "/v2/health/ready", headers={"authorization": "Bearer x"})[1]
        assert [row["name"] for row in told["models"]] == ["secret"]
        server.do(server.server.repository.unload("secret"))
        assert ask(server, "/v2/health/ready")[:2] == (200, b"")


def test_a_folder_may_be_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose only model is ``model.onnx`` is that, by the folder's name; with others, it is a folder of models."""
    add(tmp_path / "flat" / "model.onnx")
    (tmp_path / "flat" / "notes").mkdir()
    assert repository_of([tmp_path / "flat"], ModelSettings()).files == {"flat": tmp_path / "flat" / "model.onnx"}
    (tmp_path / "current").symlink_to("flat")
    assert list(repository_of([tmp_path / "flat" / ".." / "current"], ModelSettings()).files) == ["current"]
    monkeypatch.chdir(tmp_path / "flat")
    assert list(repository_of([Path()], ModelSettings()).files) == ["flat"]
    add(tmp_path / "flat" / "other.onnx")
    found = repository_of([tmp_path / "flat"], ModelSettings())
    assert (found.files, found.names()) == ({}, ["model", "notes", "other"])
    add(tmp_path / "deep" / "model" / "1" / "model.onnx")
    assert repository_of([tmp_path / "deep"], ModelSettings()).folder == tmp_path / "deep"


def test_names_that_are_no_unicode_are_spelled(tmp_path: Path) -> None:
    """Files may be called anything; JSON and metrics take no such names."""
    odd = os.fsdecode(b"o\xff")
    add(tmp_path / odd / "1" / "model.onnx")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / odd).touch()
    with running(tmp_path) as server:
        status, told, _ = ask(server, "/v2/repository/index", {})
        assert (status, [row["name"] for row in told]) == (200, ["bad", r"o\udcff"])
        assert r"bad/1: got o\udcff, wanted" in told[0]["reason"]
        assert ask(server, "/v2/models/o%5Cudcff")[0] == ask(server, "/metrics")[0] == 200
        assert ask(server, "/v2/repository/models/bad/load", {})[0] == 400
        assert ask(server, "/v2/health/ready")[0] == 503
        server.do(server.server.repository.unload(r"o\udcff"))
    line = logging.LogRecord("x", logging.INFO, "", 0, odd, None, None)
    assert json.loads(JsonLines().format(line))["message"] == r"o\udcff"


def test_files_in_a_folder_are_models(tmp_path: Path) -> None:
    add(tmp_path / "sum.onnx")
    add(tmp_path / "twice.onnx")
    subtract(tmp_path / "twice" / "3" / "model.onnx")
    (tmp_path / "notes.txt").write_text("no model")
    assert is_repository(tmp_path)
    with running(tmp_path) as server:
        repository = server.server.repository
        assert [(row["name"], row["version"]) for row in repository.index()] == [("sum", "1"), ("twice", "3")]
        assert np.array_equal(infer(server, "sum"), A + A)
        assert np.array_equal(infer(server, "twice"), A - A)
        subtract(tmp_path / "sum.onnx")
        add(tmp_path / "new.onnx")
        server.do(repository.look(anew=False))
        assert np.array_equal(infer(server, "sum"), A - A)
        (tmp_path / "new.onnx").unlink()
        server.do(repository.look(anew=False))
        assert sorted(repository.models) == ["sum", "twice"]


def test_later_files_of_a_model_are_none_themselves(tmp_path: Path) -> None:
    parts = [f"large-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    for name in (*parts, "small.gguf"):
        (tmp_path / name).write_bytes(Tiny("llama").data())
    with running(tmp_path) as server:
        assert sorted(server.server.repository.models) == [parts[0].removesuffix(".gguf"), "small"]


def test_nothing_is_kept_of_versions_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with running(tmp_path) as server:
        repository = server.server.repository
        for version in ("1", "2"):
            (tmp_path / "m" / version).mkdir(exist_ok=True)
            (tmp_path / "m" / version / "model.onnx").write_bytes(b"bad")
            with pytest.raises(RequestError):
                server.do(repository.load("m"))
        assert [*repository.refused] == [*repository.states] == [("m", "2")]
        server.do(repository.unload("m"))
        assert not repository.refused
        assert not repository.states


def test_what_was_unloaded_stays_so(tmp_path: Path) -> None:
    add(tmp_path / "m" / "1" / "model.onnx")
    with running(tmp_path) as server:
        repository = server.server.repository
        server.do(repository.unload("m"))
        server.do(repository.look(anew=False))
        assert not repository.models
        server.do(repository.load("m"))
        assert list(repository.models) == ["m"]
        for name in ("x", "y"):
            with pytest.raises(RequestError, match=f"'{name}'"):
                server.do(repository.load(name))
        gc.collect()
        assert not repository.locks


def test_what_a_decoder_makes_before_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt, and texts that end one after another; a long text would take a large model minutes."""
    pytest.importorskip("tokenizers")
    made, submit = list[tuple[int, int]](), Generator.submit

    def noted(self: Generator, prompt: list[int], **how: Any) -> Answer:
        made.append((len(prompt), how["max_tokens"]))
        return submit(self, prompt, **how)

    monkeypatch.setattr(Generator, "submit", noted)
    usual = ModelSettings(sequences=3, compile={"threads": 1})
    with running(files={"m": whole(tmp_path / "m.bolt")}, usual=usual):
        assert made == [(1, 2), (2, 3), (3, 4), (64, 2)]
