"""Runs a page of the documentation as a reader does: every block, in order, in one folder.

    python -m tests.pages docs/start.md FOLDER      # in this environment; packages of models are fetched once
    python tests/pages.py --fresh docs/start.md FOLDER      # make newcomer: an environment of its own, with pip itself

Python blocks of a page share one namespace, and one with a title is a file of that name.  Blocks of ``sh`` are
commands; a server runs until the page ends.  A block of ``text`` is what the block before it printed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
SKIPPED = 77
"""Exit code when a package is not there."""
LANGUAGES = ("python", "sh", "text")
SERVER = re.compile(r"^(?:uvicorn .*--port|bolt-numba serve .*--http-port) (\d+)", re.MULTILINE)
PIECES = re.compile(r"(\.\.\.|\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?|\s+)")
MEASURED = re.compile(r"\s*(?:s|ms|us|MiB|times)\b")
"""Units of what depends on the machine."""
GIVEN = "given.py"
"""What runs before a page that leaves its model to the reader."""
SYSTEM_CACHE = "--system "
"""What tests leave out: they fill the cache that they all share."""
PORTS = ("8765", "8766", "8767")
"""Of the servers of the pages; tests take free ones."""
FENCED = re.compile(r"^( *)```(\S*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
TOLERANCE, FEW = 0.02, 2.0
"""Two printed numbers agree when they differ by a share or, if whole, by as many."""


class Block(NamedTuple):
    """A fenced block.  line: its first, counted from 1.  title: of the file that it is, or nothing."""

    language: str
    title: str
    text: str
    line: int


class MissingPackageError(RuntimeError):
    """A page needs a package that is not installed, or that pip cannot get."""


def blocks(page: str) -> Iterator[Block]:
    """Fenced blocks of a page; those of tabs and lists are indented."""
    for match in FENCED.finditer(page):
        indent, language, title, text = match.groups()
        text = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        yield Block(language, title or "", text, page[: match.start(4)].count("\n") + 1)


# --- what was printed ------------------------------------------------------------------------------------------------


def agrees(wanted: str, got: str) -> bool:
    """Whether a text is as shown, up to white space, rounding, measured figures and what ``...`` stands for."""
    pieces = PIECES.split(wanted.strip())
    parts = []
    for i, piece in enumerate(pieces):
        if piece == "...":
            parts.append(".*?")
        elif piece.isspace():
            parts.append(r"\s+")
        elif i % 2:
            parts.append(r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)")
        else:
            parts.append(re.escape(piece))
    found = re.fullmatch("".join(parts), got.strip(), re.DOTALL)
    if found is None:
        return False
    places = [i for i, piece in enumerate(pieces) if i % 2 and piece != "..." and not piece.isspace()]
    for i, text in zip(places, found.groups(), strict=True):
        if MEASURED.match("".join(pieces[i + 1 :])):
            continue
        a, b = (float(t.replace(",", "")) for t in (pieces[i], text))
        slack = FEW if a.is_integer() and a > 20 else 0.005  # figures are printed with two or three digits
        if abs(a - b) > max(TOLERANCE * abs(a), slack):
            return False
    return True


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# --- running ---------------------------------------------------------------------------------------------------------


class Reader:
    """One reader of one page: a folder, a namespace, an environment, servers."""

    def __init__(self, page: Path, folder: Path, fresh: bool) -> None:
        self.page, self.folder, self.fresh = page, folder, fresh
        text = page.read_text()
        if not fresh:
            text = text.replace(SYSTEM_CACHE, "")
            for port in PORTS:
                text = text.replace(port, str(free_port()))
        self.blocks = list(blocks(text))
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.servers: list[subprocess.Popen[str]] = []
        self.printed = ""
        self.environment = dict(os.environ)

    def read(self) -> None:
        """Do all that the page says; raises AssertionError with the line where it is wrong."""
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        (self.folder / "examples").symlink_to(ROOT / "examples")  # pages are read in a checkout
        if (self.folder / GIVEN).exists():
            exec((self.folder / GIVEN).read_text(), self.namespace)
        with tempfile.TemporaryDirectory() as beside:
            self.logs = Path(beside)
            if not self.fresh:
                self._commands(self.logs)
            try:
                for block in self.blocks:
                    self._do(block)
            finally:
                for server in self.servers:
                    server.terminate()
                    server.wait(20)

    def _commands(self, folder: Path) -> None:
        """Commands under the names that a reader types."""
        for name, module in (("bolt-numba", "-m bolt_numba"), ("pip", "-m tests.pages pip"), ("python", "")):
            file = folder / name
            file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            file.chmod(0o755)
        path = [str(folder), str(Path(sys.executable).parent), self.environment.get("PATH", "")]
        self.environment |= {"PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "120"}

    def _do(self, block: Block) -> None:
        if block.language == "text":
            shown = f"{self.page}:{block.line}: the page shows\n{block.text}\nbut this was printed\n{self.printed}"
            assert agrees(block.text, self.printed), shown
        elif block.title:
            (self.folder / block.title).write_text(block.text)
        elif block.language == "python":
            self.printed = self._python(block)
        elif block.language == "sh":
            self.printed = self._shell(block)

    def _python(self, block: Block) -> str:
        """Run a block; one that raises what the page then shows is right."""
        out = io.StringIO()
        source = "\n" * (block.line - 1) + block.text
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(source, str(self.page), "exec"), self.namespace)
            except Exception as error:
                if not self._is_shown(block):
                    raise AssertionError(f"{self.page}:{block.line}: {traceback.format_exc()}") from error
                out.write("".join(traceback.format_exception_only(error)))
        return out.getvalue()

    def _is_shown(self, block: Block) -> bool:
        following = [b for b in self.blocks if b.line > block.line]
        return bool(following) and following[0].language == "text" and "Error: " in following[0].text

    def _shell(self, block: Block) -> str:
        server = SERVER.search(block.text)
        command = ["sh", "-e", "-c", block.text]
        if server is not None:
            self._serve(block, int(server[1]))
            return ""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == SKIPPED:
            raise MissingPackageError(done.stdout.strip())
        shown = self._is_shown(block)
        importlib.invalidate_caches()  # packages may be new
        said = done.stdout + done.stderr
        assert done.returncode == 0 or shown, f"{self.page}:{block.line}: exit code {done.returncode}:\n{said}"
        return said if shown else done.stdout

    def _serve(self, block: Block, port: int) -> None:
        """Start a server and wait until it answers."""
        log = self.logs / f"{port}.log"
        with log.open("w") as file:  # a pipe that nobody reads stops a server after 64 KiB
            started = subprocess.Popen(
                ["sh", "-c", f"exec {block.text}"], cwd=self.folder, env=self.environment, text=True,
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.servers.append(started)
        for _ in range(600):
            assert started.poll() is None, f"{self.page}:{block.line}: {log.read_text()}"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.page}:{block.line}: no answer at port {port}")


# --- pip -------------------------------------------------------------------------------------------------------------


def pip(arguments: Sequence[str]) -> None:
    """What ``pip install`` of a page does: models are put into the folder, other packages have to be there."""
    from tests.models import folder  # a reader of a page without models does without

    assert arguments[0] == "install", f"pip: got {arguments[0]}, wanted install"
    if "--target" not in arguments:
        for package in (a for a in arguments[1:] if not a.startswith("-")):
            name = re.split(r"[\[=<>]", package)[0]
            if name in ("bolt-numba", "."):
                continue
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                raise MissingPackageError(f"{name} is not installed") from None
        return
    target = Path(arguments[arguments.index("--target") + 1])
    for package in (a for a in arguments[1:] if "==" in a):
        cached = folder() / "packages" / package
        if not cached.is_dir():
            cached.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
                command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
                command += ["--target", f"{scratch}/all", package]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise MissingPackageError(f"{package} cannot be had: {done.stderr.strip()[-300:]}")
                with contextlib.suppress(OSError):  # another process was faster
                    Path(scratch, "all").rename(cached)
        target.mkdir(exist_ok=True)
        for entry in cached.iterdir():
            if not (target / entry.name).exists():
                (target / entry.name).symlink_to(entry)


def main(arguments: Sequence[str]) -> int:
    try:
        if arguments[0] == "pip":
            pip(arguments[1:])
        else:
            *options, page, folder = arguments
            Reader(Path(page).resolve(), Path(folder).resolve(), "--fresh" in options).read()
    except MissingPackageError as error:
        sys.stdout.write(f"{error}\n")
        return SKIPPED
    except AssertionError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
