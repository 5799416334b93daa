"""The table of writers: operator of the graph -> function that adds the ONNX nodes of one node.

Operators whose name, operands and attributes are ONNX's need no row: `writing.graph` writes them from the schema.
Those that ONNX lacks are taken apart by `bolt_numba.ops.decomposed.decompose`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from bolt_numba.base.types import Array, TensorType
from bolt_numba.ops.registry import Op

Function: TypeAlias = Callable[..., Any]
DOMAINS = ("", "ai.onnx.ml")
"""Domains whose operators the graph may hold, in the order in which a name is looked for."""
MICROSOFT = "com.microsoft"
"""The domain of onnxruntime, of which the onnx package has no schemas."""


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of the file: what it is called, and its type.  The name of an omitted operand is empty."""

    name: str
    type: TensorType

    @property
    def known(self) -> Array | None:
        """The content, where it is known."""
        return self.type.known


class NoSpellingError(Exception):
    """An operator, or a use of it, that ONNX has no words for; the message says why."""


WRITERS: dict[type[Op], Function] = {}
"""Writers by operator: ``(writer, op, *terms) -> Named | tuple[Named, ...]``."""


def writer(*kinds: type[Op]) -> Callable[[Function], Function]:
    """Register a writer for these operators."""

    def register(function: Function) -> Function:
        for kind in kinds:
            if kind in WRITERS:
                raise ValueError(f"operator {kind.name} has two writers")
            WRITERS[kind] = function
        return function

    return register


def load_writers() -> None:
    """Import every module of ``tables``; importing it registers its writers."""
    package = f"{__name__.rpartition('.')[0]}.tables"
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{info.name}")


@functools.cache
def _histories() -> dict[str, list[Any]]:
    """All schemas of each operator, newest first; those of `DOMAINS` only, of the first that has the name."""
    import onnx  # packages with writers of their own need not wait for it

    found: dict[str, list[Any]] = {}
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain in DOMAINS]
    for schema in sorted(schemas, key=lambda s: (DOMAINS.index(s.domain), -s.since_version)):
        same = found.setdefault(schema.name, [])
        if not same or same[0].domain == schema.domain:
            same.append(schema)
    return found


@functools.cache
def schemas_by_name(name: str) -> tuple[Any, ...]:
    """Schemas of an operator, newest first, from the last one on that may be used."""
    return tuple(itertools.dropwhile(lambda s: s.deprecated, _histories().get(name, ())))


def schema_by_name(name: str) -> Any:
    """The newest schema of an operator that may be used; None when there is none."""
    return next(iter(schemas_by_name(name)), None)
