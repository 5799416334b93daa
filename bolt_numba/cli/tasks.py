"""Tasks of flows from folders and lines, and their results to files."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import typer

from bolt_numba.base.errors import BoltError
from bolt_numba.base.files.regular import read_regular
from bolt_numba.base.types import dtype_name
from bolt_numba.cli import console
from bolt_numba.cli.options import load_array, load_arrays, save_arrays
from bolt_numba.flow.errors import FlowError

SHOWN_ELEMENTS = 32
"""Elements of an array that are shown; of a larger one dtype, shape and range."""
Task = tuple[str, Mapping[str, Any] | Exception]
"""A label, and values by name, or why they cannot be read."""
_UNPRINTED = re.compile(r"[\x7f-\x9f\ud800-\udfff]")
"""What JSON allows in texts, but no terminal or UTF-8."""


def common_values(texts: Sequence[str], inputs: Sequence[str], alone: bool) -> dict[str, Any]:
    """Values of ``--input``, by name.  alone: whether they are all that the flow gets."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in inputs:
            wanted = "NAME=VALUE" if not equals else f"one of {', '.join(inputs)}"
            raise typer.BadParameter(f"got {text!r:.80}, wanted {wanted}", param_hint="--input")
        found[name] = _value(value)
    if alone and found.keys() != set(inputs):
        raise typer.BadParameter(f"got {sorted(found)}, wanted {sorted(inputs)}, or --tasks", param_hint="--input")
    return found


def _value(text: str) -> Any:
    if text.startswith("@"):
        return _content(Path(text[1:]))
    if text.endswith(".npy"):
        return load_array(Path(text))
    try:
        return json.loads(text)
    except ValueError:
        if os.path.isfile(text):  # a long text is no error of it
            console.note(f"--input: took {text} for a text; @{text} is what the file holds")
        return text


def _content(path: Path) -> Any:
    """The array of an .npy file, the bytes of any other."""
    return load_array(path) if path.suffix == ".npy" else read_regular(path)


def tasks_of(source: Path | None, common: Mapping[str, Any], inputs: Sequence[str]) -> Iterator[Task]:
    """A label and values for each task, read as they are asked for."""
    if source is None:
        yield "0", common
    elif source.is_dir():
        yield from _of_folder(source, common, [name for name in inputs if name not in common])
    elif str(source) == "-":
        yield from _of_lines(sys.stdin, "-", Path(), common)
    else:
        with source.open(encoding="utf-8") as file:
            yield from _of_lines(file, str(source), source.parent, common)


def _read(make: Callable[..., Mapping[str, Any]], *given: Any) -> Mapping[str, Any] | Exception:
    try:
        return make(*given)
    except OSError as error:  # of this task alone
        return FlowError(f"{error.filename}: {error.strerror}")
    except BoltError as error:
        return error
    except (ValueError, MemoryError) as error:  # a name that no file can have, a file that is too large
        return FlowError(f"{type(error).__name__}: {error}")


def _of_folder(folder: Path, common: Mapping[str, Any], left: Sequence[str]) -> Iterator[Task]:
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        label = path.name.removesuffix(".npz").removesuffix(".npy")
        if path.suffix == ".npz":
            yield label, _read(lambda file: {**common, **load_arrays(file)}, path)
        elif len(left) == 1:
            yield label, _read(lambda file: {**common, left[0]: _content(file)}, path)
        else:
            raise FlowError(f"{path}: got one value for inputs {list(left)}, wanted an .npz file, or others by --input")


def _of_lines(lines: IO[str], file: str, folder: Path, common: Mapping[str, Any]) -> Iterator[Task]:
    try:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield str(number - 1), _read(_of_line, f"{file}: line {number}", line, folder, common)
    except UnicodeDecodeError as error:
        raise FlowError(f"{file}: got bytes that are no UTF-8, wanted lines of JSON") from error


def _of_line(where: str, line: str, folder: Path, common: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FlowError(f"{where}: got what is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise FlowError(f"{where}: got a {type(given).__name__}, wanted inputs by name")
    return {**common, **{name: _of_json(value, folder) for name, value in given.items()}}


def _of_json(value: Any, folder: Path) -> Any:
    if isinstance(value, dict) and value.keys() == {"file"} and isinstance(value["file"], str):
        return _content(folder / value["file"])
    return value


def writer_of(output: Path | None, tasks: Path | None) -> ArrayFiles | LineFile:
    """What writes results; raises BadParameter where it would write over the tasks."""
    if output is not None and tasks is not None and output.exists() and tasks.exists() and output.samefile(tasks):
        raise typer.BadParameter("got the place of the tasks, wanted another", param_hint="--output")
    return ArrayFiles(output) if output is not None and output.suffix == "" else LineFile(output)


class LineFile:
    """Results as lines of JSON: all of them in a file, or what a reader wants to see on standard output."""

    def __init__(self, path: Path | None) -> None:
        if path is not None and path.suffix not in (".jsonl", ".json"):
            raise typer.BadParameter(f"got {path.name!r}, wanted a folder or a .jsonl file", param_hint="--output")
        self.path = path
        self.file: IO[str] | None = None

    def __enter__(self) -> Self:
        if self.path is not None:
            self.file = self.path.open("w", buffering=1, encoding="utf-8")  # who ends us has all that was done
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.file is not None:
            self.file.close()

    def write(self, label: str, outcome: Mapping[str, Any] | BaseException) -> bool:
        """Write what became of a task; whether it went well."""
        is_good = not isinstance(outcome, BaseException)
        try:
            said = {"outputs": _plain(outcome, self.file is None)} if is_good else {"error": str(outcome)}
            line = json.dumps(console.finite({"task": label, **said}), default=str, ensure_ascii=False)
        except Exception as error:  # objects of the caller's are asked for a text; lists may hold themselves
            is_good, said = False, {"error": f"outputs: got what is no JSON: {type(error).__name__}: {error}"}
            line = json.dumps({"task": label, **said}, ensure_ascii=False)
        line = _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
        if self.file is None:
            console.write(line)
            sys.stdout.flush()  # who reads it may wait for it
        else:
            self.file.write(line + "\n")
        return is_good


class ArrayFiles:
    """Results as files of arrays in a folder, one for each task; errors are lines on standard output."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, LineFile(None)
        self.written: set[str] = set()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def write(self, label: str, outcome: Mapping[str, Any] | BaseException) -> bool:
        """Write what became of a task; whether it went well."""
        if isinstance(outcome, BaseException):
            return self.lines.write(label, outcome)
        name = label.zfill(6) if label.isdecimal() else label
        try:
            if name in self.written:
                raise FlowError(f"{name}.npz: got a second task of this name, wanted others")
            arrays = {output: _array(output, value) for output, value in outcome.items()}
        except BoltError as error:
            return self.lines.write(label, error)
        self.written.add(name)
        save_arrays(self.folder / f"{name}.npz", arrays)
        return True


def _array(name: str, value: Any) -> Any:
    try:
        found = np.asarray(value)
    except Exception:  # objects of the caller's may say what array they are
        found = np.empty((), object)
    if found.dtype == object:
        kind = type(value).__name__
        raise FlowError(f"output {name!r}: got a {kind}, wanted arrays for .npz files, or -o NAME.jsonl")
    return found


def _plain(value: Any, is_short: bool) -> Any:
    """What JSON can say of a value."""
    if isinstance(value, np.ndarray):
        if not is_short or value.size <= SHOWN_ELEMENTS:
            return value.tolist()
        span = f", {value.min():.6g} to {value.max():.6g}" if value.dtype.kind in "iuf" else ""
        return f"{dtype_name(value.dtype)}{console.shape_text(value.shape)}{span}"
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, is_short) for key, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), is_short) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, is_short) for inner in value]
    return value
