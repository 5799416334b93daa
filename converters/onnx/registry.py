"""The table of readers: (domain, operator, opset) -> function that adds the nodes of one ONNX operator.

A reader's positional parameters are the operator's inputs (an omitted optional one is None), its keyword-only
parameters are the ONNX attributes with their defaults; nothing else needs to be declared.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.forks import renew_after_fork, renew_cached_properties
from bolt_numba.remembered import remember, remembered

Function: TypeAlias = Callable[..., Any]


_A = onnx.AttributeProto
_KINDS: dict[object, int] = {
    "int": _A.INT, "bool": _A.INT, "float": _A.FLOAT, "str": _A.STRING,
    "tuple[int, ...]": _A.INTS, "tuple[float, ...]": _A.FLOATS, "tuple[str, ...]": _A.STRINGS,
    "Ints": _A.INTS, "Floats": _A.FLOATS, "Texts": _A.STRINGS,
    "Array": _A.TENSOR, "onnx.GraphProto": _A.GRAPH, "onnx.TypeProto": _A.TYPE_PROTO,
}  # fmt: skip
"""Attribute type of a parameter's annotation, without what says that it may be missing."""


class Reader:
    """A reader function and, when it is first used, what its signature says.

    required: places of the inputs that may not be omitted (no default, no None in the annotation).  passed: how many
    inputs have no default.  allowed: how many inputs it takes (None: any number).  table: the module that registers it.
    A reader that returns NotImplemented leaves the node to the operator's function body.
    """

    def __init__(self, function: Function, since: int) -> None:
        self.function, self.since, self.table = function, since, _table()

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())[1:]

    @functools.cached_property
    def _positional(self) -> list[inspect.Parameter]:
        return [p for p in self._parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(p.name for p in self._positional)

    @functools.cached_property
    def required(self) -> tuple[int, ...]:
        places = enumerate(self._positional)
        return tuple(i for i, p in places if p.default is p.empty and "None" not in p.annotation)

    @functools.cached_property
    def passed(self) -> int:
        return sum(p.default is p.empty for p in self._positional)

    @functools.cached_property
    def allowed(self) -> int | None:
        return None if any(p.kind == p.VAR_POSITIONAL for p in self._parameters) else len(self._positional)

    @functools.cached_property
    def attributes(self) -> frozenset[str]:
        return frozenset(p.name for p in self._parameters if p.kind == p.KEYWORD_ONLY)

    @functools.cached_property
    def kinds(self) -> dict[str, int]:
        """Attribute types of those parameters whose annotation tells it: asking onnx for a schema makes them all."""
        parameters = (p for p in self._parameters if p.kind == p.KEYWORD_ONLY)
        kinds = {p.name: str(p.annotation).removesuffix(" | None") for p in parameters}
        return {name: int(_KINDS[kind]) for name, kind in kinds.items() if kind in _KINDS}

    @functools.cached_property
    def flags(self) -> frozenset[str]:
        """Attributes that are 0 or 1."""
        return frozenset(p.name for p in self._parameters if p.annotation == "bool")

    @functools.cached_property
    def mandatory(self) -> frozenset[str]:
        return frozenset(p.name for p in self._parameters if p.kind == p.KEYWORD_ONLY and p.default is p.empty)


renew_cached_properties(Reader)


_PACKAGE = __name__.rpartition(".")[0]
_PREFIX = f"{_PACKAGE}.table_"


def _table() -> str:
    """The module of tables whose code is being run; "" when it is other code that registers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not frame.f_globals["__name__"].startswith(_PREFIX):
        frame = frame.f_back
    name: str = frame.f_globals["__name__"]
    return name if name.startswith(_PREFIX) else ""


READERS: dict[tuple[str, str], list[Reader]] = {}
"""Readers of an operator by (domain, name), newest first; the default domain is ''."""


def reader(*names: str, since: int = 1, domain: str = "") -> Callable[[Function], Function]:
    """Register a reader for operators of these names from opset ``since`` on."""

    def register(function: Function) -> Function:
        for name in names:
            add_reader(name, function, since, domain)
        return function

    return register


def add_reader(name: str, function: Function, since: int = 1, domain: str = "") -> None:
    """Register ``function`` for one operator; raises ValueError when that opset has a reader already."""
    entries = READERS.setdefault((domain, name), [])
    if any(e.since == since for e in entries):
        raise ValueError(f"operator {domain or 'ai.onnx'}::{name} of opset {since} has two readers")
    entries.append(Reader(function, since))
    entries.sort(key=lambda e: -e.since)


def find_reader(domain: str, name: str, opset: int) -> Reader | None:
    """The newest reader that an operator of this opset may use."""
    if (domain, name) not in _asked:
        with _lock:
            _load_for(domain, name)
    for entry in READERS.get((domain, name), ()):
        if entry.since <= opset:
            return entry
    return None


_KIND = "readers"
_asked: set[tuple[str, str]] = set()
_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock, awaited=True)
_are_loaded = False


def _load_for(domain: str, name: str) -> None:
    """Import the modules that have readers of one operator; all where it is not known which they are."""
    known = _index() or {}
    modules = known.get(f"{domain} {name}")
    if modules is None:
        load_tables()
    else:
        for module in modules:
            importlib.import_module(module)
    _asked.add((domain, name))


@functools.cache
def _index() -> dict[str, list[str]] | None:
    """Modules by operator, as they were when all were imported; None where that is not known of the sources."""
    found = remembered(_KIND, Path(__file__).parent)
    try:
        made = {str(key): [str(m) for m in modules] for key, modules in found.items()}
    except (AttributeError, TypeError):
        return None
    return made if all(m.startswith(_PREFIX) for modules in made.values() for m in modules) else None


def load_tables() -> None:
    """Import every ``table_*`` module beside this one; importing it registers its readers."""
    import pkgutil

    global _are_loaded
    with _lock:
        if _are_loaded:
            return
        for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
            if info.name.startswith("table_"):
                importlib.import_module(f"{_PACKAGE}.{info.name}")
        _are_loaded = True
        modules = {f"{d} {n}": sorted({e.table for e in entries} - {""}) for (d, n), entries in READERS.items()}
        if modules != _index():
            remember(_KIND, Path(__file__).parent, modules)
