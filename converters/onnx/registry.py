"""The table of readers: (domain, operator, opset) -> function that adds the nodes of one ONNX operator.

A reader's positional parameters are the operator's inputs (an omitted optional one is None), its keyword-only
parameters are the ONNX attributes with their defaults; nothing else needs to be declared.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader function and what its signature says.

    required: places of the inputs that may not be omitted (no default, no None in the annotation).  passed: how many
    inputs have no default.  allowed: how many inputs it takes (None: any number).  A reader that returns
    NotImplemented leaves the node to the operator's function body.
    """

    function: Function
    since: int
    inputs: tuple[str, ...]
    required: tuple[int, ...]
    passed: int
    allowed: int | None
    attributes: frozenset[str]
    mandatory: frozenset[str]


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
    entries.append(_described(function, since))
    entries.sort(key=lambda e: -e.since)


def _described(function: Function, since: int) -> Reader:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
    variadic = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    return Reader(
        function,
        since,
        tuple(p.name for p in positional),
        tuple(i for i, p in enumerate(positional) if p.default is p.empty and "None" not in str(p.annotation)),
        sum(p.default is p.empty for p in positional),
        None if variadic else len(positional),
        frozenset(p.name for p in keywords),
        frozenset(p.name for p in keywords if p.default is p.empty),
    )


def find_reader(domain: str, name: str, opset: int) -> Reader | None:
    """The newest reader that an operator of this opset may use."""
    for entry in READERS.get((domain, name), ()):
        if entry.since <= opset:
            return entry
    return None


def load_tables() -> None:
    """Import every ``table_*`` module beside this one; importing it registers its readers."""
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if info.name.startswith("table_"):
            importlib.import_module(f"{package}.{info.name}")
