"""The image of `examples/serve/Dockerfile`, built and run step by step without Docker.

Folders stand for the file systems of its stages.  A command of the file runs as its user, with its environment, on
these folders.  Only installing is another: the sources that the file copies go where pip would put them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.config import SYSTEM_CACHE
from tests.pages import free_port

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "serve" / "Dockerfile"
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a system without users")
_IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
"""Whether the service can run as its user; else it runs as this one."""

_SERVER = """
import contextlib, importlib, json, os, sys, warnings
user, preload, args, url, bodies = json.loads(sys.stdin.read())
for name in preload:  # what this machine's Python is made of may be root's alone
    with contextlib.suppress(ImportError):  # modules that C code makes have names only
        importlib.import_module(name)
if user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
warnings.simplefilter("error")
import signal, threading, time, urllib.request
from bolt_numba.cli.app import run
from bolt_numba.kernels import jit
seen, answers = [], []
jit.on_compile(lambda name, done: seen.append(name) if done else None)

def ask(path, body=None):
    with urllib.request.urlopen(urllib.request.Request(url + path, body and body.encode()), timeout=100) as answer:
        return answer.read()

def use():
    try:
        while True:
            try:
                ask("/v2/health/ready")
                break
            except OSError:
                time.sleep(0.05)
        answers.extend(json.loads(ask("/v2/models/digits/infer", body)) for body in bodies)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=use).start()
code = run(args)
late = [m for m in ("numba", "llvmlite", "onnx") if m in sys.modules]
tables = [m for m in sys.modules if m.startswith("bolt_numba.converters.onnx.reading.tables.")]
late += tables[5:]  # whoever knows what they hold imports few
modules = [m for m in sys.modules if m.partition(".")[0] not in ("bolt_numba", "__main__", "__mp_main__")]
print(json.dumps([answers, seen, late, modules, os.geteuid(), code]))
"""


class Stage:
    """The file system and the settings of one stage of a Dockerfile."""

    def __init__(self, root: Path) -> None:
        self.root, self.user = root, 0
        self.env: dict[str, str] = {}
        self.command: list[str] = []
        self.check: list[str] = []
        root.mkdir(mode=0o755)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def environment(self) -> dict[str, str]:
        """That of the machine without its own settings; paths lead into the stage."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("BOLT_NUMBA") and k not in ("HOME", "PATH")}
        paths = {k: str(self.at(v)) for k, v in self.env.items() if k != "PATH"}
        library = {
            "PYTHONPATH": str(self.at("/opt/service/lib")),
            SYSTEM_CACHE.name: str(self.at(SYSTEM_CACHE.default)),
        }
        return own | library | paths | {"TMPDIR": str(self.at("/tmp"))}

    def copy(self, source: Path, to: str) -> None:
        """As COPY does: what is in a folder goes into a folder."""
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, self.at(to), symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            target = self.at(to) / source.name if to.endswith("/") else self.at(to)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def run(self, command: str) -> None:
        for part in command.split(" && "):
            words = shlex.split(part)
            if words[0].endswith("/pip"):
                assert words[1] == "install"
                place, _, extra = words[-1].removesuffix("]").partition("[")
                about = tomllib.loads((self.at(place) / "pyproject.toml").read_text())["project"]
                assert extra in about["optional-dependencies"]
                for name in (about["readme"], *about["license-files"]):
                    assert (self.at(place) / name).is_file(), name
                shutil.copytree(self.at(place) / "bolt_numba", self.at("/opt/service/lib/bolt_numba"))
            elif words[0] == "pip":
                assert words[1:] == ["uninstall", "--yes", "$REMOVE"]  # what must not be needed is `late` below
            elif words[0] == "bolt-numba":
                words = [str(self.at(w)) if w.startswith("/") else w for w in words[1:]]
                command = [sys.executable, "-m", "bolt_numba", *words]
                subprocess.run(command, env=self.environment(), cwd=self.root, check=True, capture_output=True)
            else:
                assert words[:3] == ["python", "-m", "venv"]


def instructions() -> Iterator[tuple[str, str]]:
    for line in FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def build(folder: Path) -> Stage:
    """Follow the instructions; the last stage."""
    stages: dict[str, Stage] = {}
    for name, rest in instructions():
        words = shlex.split(rest)
        match name:
            case "FROM":
                stage = stages[words[-1]] = Stage(folder / f"stage{len(stages)}")
            case "COPY" if words[0].startswith("--from="):
                owner = stages[words[0].removeprefix("--from=")]
                stage.copy(owner.at(words[1]), words[2])
            case "COPY":
                for word in words[:-1]:
                    stage.copy(ROOT / word, words[-1])
            case "ENV":
                stage.env.update(word.split("=", 1) for word in words)
            case "RUN":
                stage.run(rest)
            case "USER":
                stage.user = int(rest.split(":")[0])
            case "CMD":
                stage.command = json.loads(rest)
            case "HEALTHCHECK":
                stage.check = json.loads(rest.removeprefix("CMD "))
            case _:
                assert name in ("ARG", "EXPOSE")
    return stage


def files(folder: Path) -> dict[str, float]:
    return {str(p): p.stat().st_mtime for p in folder.rglob("*")}


@pytest.fixture(scope="module")
def image() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        before = os.umask(0o022)
        try:
            yield build(Path(made))
        finally:
            os.umask(before)


def served(stage: Stage, user: int, preload: list[str], bodies: list[str], home: str) -> list[Any]:
    """Run the command of an image on a free port, ask it, and end it."""
    port = str(free_port())
    assert "127.0.0.1:8000/v2/health/ready" in stage.check[-1]
    words = [str(stage.at(w)) if w.startswith("/") else w for w in stage.command[1:]]
    args = [*words, "--http-port", port, "--grpc-port", "-1"]
    told = json.dumps([user, preload, args, f"http://127.0.0.1:{port}", bodies])
    env = stage.environment() | ({"HOME": home} if home else {})
    command = [sys.executable, "-B", "-c", _SERVER]
    done = subprocess.run(command, input=told, env=env, cwd=stage.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def body(images: np.ndarray[Any, Any]) -> str:
    given = {"name": "image", "datatype": "FP32", "shape": images.shape, "data": images.reshape(-1).tolist()}
    return json.dumps({"inputs": [given]})


def test_the_server_compiles_nothing_and_writes_nothing(image: Stage, tmp_path: Path) -> None:
    data = np.load(ROOT / "examples" / "digits" / "digits.npz")
    pictures = (data["image"][:9] / 16).astype(np.float32)
    requests = [pictures[:1], pictures[1:]]
    bodies = [body(a) for a in requests]
    assert image.user > 0
    assert image.command[0] == "bolt-numba"
    *_, modules, _, _ = served(image, 0, [], bodies, str(tmp_path))
    before = files(image.root)
    answers, compiled, late, _, user, code = served(image, image.user if _IS_ROOT else 0, modules, bodies, "")
    assert (compiled, late, user, code) == ([], [], image.user if _IS_ROOT else os.geteuid(), 0)
    assert files(image.root) == before
    session = bn.compile(ROOT / "examples" / "digits" / "digits.onnx")
    for answer, request in zip(answers, requests, strict=True):
        found = np.float32(answer["outputs"][0]["data"]).reshape(answer["outputs"][0]["shape"])
        np.testing.assert_array_equal(found, np.asarray(session(request)))


def test_nobody_but_its_maker_may_write_to_the_image(image: Stage) -> None:
    for path in (image.root, *image.root.rglob("*")):
        found = path.lstat()
        assert found.st_uid == os.geteuid()
        assert stat.S_ISLNK(found.st_mode) or not found.st_mode & 0o022
