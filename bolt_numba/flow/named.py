"""What files of flows name: functions and models, of the caller or of places that the file says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from bolt_numba.base.border import as_bolt_error
from bolt_numba.flow.errors import FlowError

MOST_LISTED = 8
"""Rows of a list in an error."""
MOST_LETTERS = 2000
"""Characters of an error."""


class FileNames:
    """Functions and models by the texts that one file has for them.

    file: its name, for errors.  folder: where it lies.
    """

    def __init__(self, path: Path, functions: Mapping[str, Any], models: Mapping[str, Any]) -> None:
        self.file, self.folder = str(path), path.absolute().parent
        self.functions, self.models = dict(functions), dict(models)
        self._asked: set[tuple[str, str]] = set()

    def given(self, kind: str, text: str) -> Any:
        """What the caller gave by this name, or None.  A model goes by the name of its file, too."""
        table = self.models if kind == "models" else self.functions
        names = (text, PurePath(text).name) if kind == "models" else (text,)
        for name in names:
            if name in table:
                self._asked.add((kind, name))
                return table[name]
        return None

    def want_all_asked(self) -> None:
        """Raises FlowError for what the caller gave and the file does not name."""
        left = {"functions": self.functions.keys(), "models": self.models.keys()}
        for kind, names in left.items():
            if unknown := [n for n in names if (kind, n) not in self._asked]:
                raise FlowError(f"{self.file}: {kind}: got {unknown}, wanted only what the file names")

    def function(self, where: str, text: Any) -> Callable[..., Any]:
        """The caller's function of this name, or that of a text ``module:name``.

        A module may lie beside the file; that folder is then one where Python looks for modules.
        """
        found, said = None, f"{self.file}: {where}: got {text!r:.80}"
        if isinstance(text, str):
            found = self.given("functions", text)
        if found is None or isinstance(found, str):
            text = text if found is None else found
            module, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
            if not colon or not module or not name:
                raise FlowError(f"{said}, wanted 'module:function', or functions= by name")
            found = self._imported(said, module, name)
        if not callable(found):
            raise FlowError(f"{said}, a {type(found).__name__}, wanted a function")
        return found  # type: ignore[no-any-return]

    def _imported(self, said: str, module: str, name: str) -> Any:
        top = module.partition(".")[0]
        near = PathFinder.find_spec(top, [str(self.folder)])
        if near is not None and str(self.folder) not in sys.path:
            sys.path.append(str(self.folder))
        try:
            is_file = near is not None and near.submodule_search_locations is None and module == top
            found: Any = _beside(near) if near is not None and is_file else import_module(module)
            other = found.__file__ if is_file else getattr(sys.modules[top], "__file__", None)
            for part in name.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:  # of any kind: modules run when they are imported
            raise FlowError(f"{said}: {type(error).__name__}: {error}, wanted what can be imported") from error
        if near is not None and near.origin != other:
            raise FlowError(f"{said}: module {top!r} is {other}, wanted the one beside the file or another name")
        return found

    def path(self, text: str) -> Path:
        """A path of the file, relative to its folder."""
        return self.folder / text

    def is_there(self, text: str) -> bool:
        """Whether the file has a file or folder of this name; what no file can be called is not there."""
        return os.path.exists(self.path(text))

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        """What is raised says a place of the file, a node."""
        try:
            yield
        except Exception as error:
            said = self.said(error, where)
            raise FlowError(said if where in said else f"{where}: {said}") from error

    def said(self, error: Exception, what: str) -> str:
        """What an error says, without the name of the file.  what: was done."""
        told = error if isinstance(error, OSError) else as_bolt_error(error, what)
        return one_line(str(told).removeprefix(f"{self.file}: "))

    def model(self, where: str, text: Any) -> Any:
        """The caller's model of this name, or the path of a file or folder that is there."""
        found = self.given("models", text) if isinstance(text, str) else None
        if found is not None:
            return found
        if not isinstance(text, str) or not text or not self.is_there(text):
            raise FlowError(f"{self.file}: {where}: got {text!r:.120}, wanted a file that is there, or models= by name")
        return self.path(text)


_modules: dict[str, tuple[tuple[int, int], ModuleType]] = {}
"""Modules that lie beside files, by their paths, with size and time of what was run."""


def _beside(spec: ModuleSpec) -> ModuleType:
    """A module that lies beside a file: under a name of its own where it has changed, or another has its name."""
    path = str(spec.origin)
    stat = os.stat(path)
    stamp, known = (stat.st_size, stat.st_mtime_ns), _modules.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    there = sys.modules.get(spec.name)
    if known is None and getattr(there, "__file__", path) == path:
        made = import_module(spec.name)
    else:
        made = ModuleType(f"{spec.name}@{stamp[1]}")
        made.__file__ = path
        exec(compile(Path(path).read_bytes(), path, "exec"), made.__dict__)
    _modules[path] = (stamp, made)
    return made


def unknown_keys(file: str, found: Iterable[tuple[str, str, Iterable[str]]]) -> None:
    """Raises FlowError with all that mean nothing: where, key, and what is known there."""
    said, rows = [], list(found)
    for where, key, known in rows[:MOST_LISTED]:
        known = sorted(known)
        near = get_close_matches(key, known, n=1)
        said.append(f"{where:.80}{key:.80} (wanted {near[0] if near else ', '.join(known)})")
    if said:
        raise FlowError(f"{file}: keys: got {'; '.join(said)}{more(rows)}")


def more(rows: Sequence[Any]) -> str:
    """What stands behind the first of a list in an error."""
    return f"; and {len(rows) - MOST_LISTED} more" if len(rows) > MOST_LISTED else ""


def one_line(text: str) -> str:
    """A text as an error shows it: without line ends, and not longer than one can read."""
    text = " ".join(text.splitlines())
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS // 2]} ... {text[-MOST_LETTERS // 2 :]}"
