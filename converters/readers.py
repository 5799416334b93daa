"""Declaring readers: functions that add the nodes of one foreign operator, found by domain, name and version.

A reader's positional parameters are the operator's inputs (an omitted optional one is None), its keyword-only
parameters are the foreign attributes with that format's defaults; nothing else needs to be declared.  Each format has
one `Readers`, and modules that fill it when they are imported; a warm process imports those that the model names.
A keyword whose annotation is a record stands for its fields: attributes that several readers have alike.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.files.folder_index import remember, remembered
from bolt_numba.base.forks import renew_after_fork, renew_cached_properties
from bolt_numba.base.records import field_rows
from bolt_numba.converters.as_is import AsIs
from bolt_numba.ir.graph import Value
from bolt_numba.ops import load_announced
from bolt_numba.ops.registry import Op

Function: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Function)


def _spelled(parameter: inspect.Parameter) -> str:
    """A parameter's annotation as its source has it, also where that was evaluated."""
    found: Any = parameter.annotation
    return found.__name__ if isinstance(found, type) else str(found)


class Reader:
    """A reader function and, when it is first used, what its signature says.

    required: places of the inputs that may not be omitted (no default, no None in the annotation).  passed: how many
    inputs have no default.  allowed: how many inputs it takes (None: any number).  module: the one that registers it.
    """

    def __init__(self, function: Function, since: int, kinds: Mapping[str, int], module: str) -> None:
        self.function, self.since, self.module, self._kinds = function, since, module, kinds

    @functools.cached_property
    def groups(self) -> dict[str, Any]:
        """Records by the keyword that has their fields as attributes, as several readers have them."""
        names = getattr(self.function, "__globals__", {})
        kinds = {n: names.get(_spelled(p)) for n, p in inspect.signature(self.function).parameters.items()}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and field_rows(kind)}

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        made = []
        for parameter in list(inspect.signature(self.function).parameters.values())[1:]:
            group = self.groups.get(parameter.name)
            for name, (kind, default) in field_rows(group).items():
                given = parameter.empty if default is MISSING else default
                made.append(inspect.Parameter(name, parameter.KEYWORD_ONLY, default=given, annotation=kind))
            made += [parameter] if group is None else []
        return made

    @functools.cached_property
    def _positional(self) -> list[inspect.Parameter]:
        return [p for p in self._parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(p.name for p in self._positional)

    @functools.cached_property
    def required(self) -> tuple[int, ...]:
        places = enumerate(self._positional)
        return tuple(i for i, p in places if p.default is p.empty and "None" not in _spelled(p))

    @functools.cached_property
    def described(self) -> str:
        """The inputs as a text: those that may be omitted in brackets, a starred one any number of times."""
        made = [p.name if i in self.required else f"[{p.name}]" for i, p in enumerate(self._positional)]
        made += [f"*{p.name}" for p in self._parameters if p.kind == p.VAR_POSITIONAL]
        return ", ".join(made)

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
        """The format's types of those attributes whose annotation tells it."""
        parameters = (p for p in self._parameters if p.kind == p.KEYWORD_ONLY)
        kinds = {p.name: _spelled(p).removesuffix(" | None") for p in parameters}
        return {name: self._kinds[kind] for name, kind in kinds.items() if kind in self._kinds}

    @functools.cached_property
    def spelled(self) -> dict[str, str]:
        """Annotations of all parameters, as the source has them."""
        return {p.name: _spelled(p) for p in self._parameters}

    @functools.cached_property
    def flags(self) -> frozenset[str]:
        """Attributes that are 0 or 1."""
        return frozenset(p.name for p in self._parameters if _spelled(p) == "bool")

    @functools.cached_property
    def arrays(self) -> frozenset[str]:
        """Attributes that are lists of numbers and wanted as arrays."""
        return frozenset(p.name for p in self._parameters if _spelled(p) in ("ManyInts", "ManyFloats"))

    @functools.cached_property
    def dtypes(self) -> frozenset[str]:
        """Attributes that are dtypes."""
        return frozenset(p.name for p in self._parameters if _spelled(p).removesuffix(" | None") == "AnyDType")

    @functools.cached_property
    def mandatory(self) -> frozenset[str]:
        return frozenset(p.name for p in self._parameters if p.kind == p.KEYWORD_ONLY and p.default is p.empty)

    def read(self, builder: Any, inputs: Sequence[Value | None], attributes: Mapping[str, Any], what: str) -> Any:
        """What the function gives for a node, whose inputs and attributes are held against the signature."""
        if self.allowed is not None and len(inputs) > self.allowed:
            raise InvalidModelError(f"{what}: number of inputs: got {len(inputs)}, wanted at most {self.allowed}")
        for i in self.required:
            if i >= len(inputs) or inputs[i] is None:
                raise InvalidModelError(f"{what}: input {i} '{self.inputs[i]}': got none, wanted a tensor")
        values = self._checked(attributes, what)
        for name, group in self.groups.items():
            values[name] = group(**{field: values.pop(field) for field in field_rows(group) if field in values})
        return self.function(builder, *inputs, *[None] * (self.passed - len(inputs)), **values)

    def _checked(self, attributes: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Attributes that the function takes, those that it must have among them; flags as bools.

        Engines differ in what a flag that is neither 0 nor 1 would mean.
        """
        if not attributes.keys() <= self.attributes:
            unknown = min(attributes.keys() - self.attributes)
            known = sorted(self.attributes)
            raise InvalidModelError(f"{what}: attribute '{unknown}': got an unknown name, wanted one of {known}")
        if not self.mandatory <= attributes.keys():
            missing = min(self.mandatory - attributes.keys())
            raise InvalidModelError(f"{what}: attribute '{missing}': got none, wanted a value")
        values = dict(attributes)
        for name in self.flags & attributes.keys():
            if values[name] not in (0, 1):
                raise InvalidModelError(f"{what}: attribute '{name}': got {values[name]}, wanted 0 or 1")
            values[name] = bool(values[name])
        return values


renew_cached_properties(Reader)

_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock, awaited=True)


class Readers:
    """The readers of one format: ``table[domain, name]`` has those of an operator, newest first.

    packages: names of the packages whose modules register readers.  folder: the sources that these depend on.
    kinds: the format's type of an attribute by annotation, where files state types.
    """

    def __init__(
        self,
        format: str,
        packages: Sequence[str] = (),
        folder: Path | None = None,
        kinds: Mapping[str, int] | None = None,
    ) -> None:
        self.format, self.packages, self.folder, self.kinds = format, packages, folder, kinds or {}
        self.table: dict[tuple[str, str], list[Reader]] = {}
        self._prefixes = tuple(f"{p}." for p in packages)
        self._scopes: dict[str, dict[str, Any]] = {}
        self._asked: set[tuple[str, str]] = set()
        self._known: dict[str, list[str]] | None = None
        self._has_looked = False
        self._is_loaded = not packages

    def reader(self, *names: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
        """Register a function for operators of these names from version ``since`` on."""

        def register(function: F) -> F:
            for name in names:
                self.add(name, function, since, domain)
            return function

        return register

    def add(self, name: str, function: Function, since: int = 1, domain: str = "") -> None:
        """Register ``function`` for one operator; ValueError: its version has one, or an operand a value."""
        for given in getattr(function, "__defaults__", None) or ():
            if isinstance(given, int | float | str):
                raise ValueError(f"{self.format}: reader of {name}: got operand {given!r}, wanted attributes after *")
        module = self._module()
        entries = self.table.setdefault((domain, name), [])
        if any(e.since == since for e in entries):
            label = f"{domain}::{name}" if domain else name
            raise ValueError(f"{self.format}: operator {label} of version {since}: got two readers, wanted one")
        entries.append(Reader(function, since, self.kinds, module))
        entries.sort(key=lambda e: -e.since)

    def add_as_is(self, *operators: type[Op], since: int = 1, domain: str = "") -> None:
        """Register operators that the format calls as the graph does, with its operands, attributes and defaults."""
        for operator in operators:
            self.add(operator.name, AsIs(operator), since, domain)

    def _module(self) -> str:
        """The module of `packages` whose code is being run; "" when it is other code that registers."""
        frame = sys._getframe(1)
        while frame.f_back is not None and not frame.f_globals["__name__"].startswith(self._prefixes):
            frame = frame.f_back
        name: str = frame.f_globals["__name__"]
        if not name.startswith(self._prefixes):
            return ""
        if self._scopes.setdefault(name, frame.f_globals) is not frame.f_globals:
            # An interrupt broke its import off, which begins anew.
            self._scopes[name] = frame.f_globals
            for entries in self.table.values():
                entries[:] = [e for e in entries if e.module != name]
        return name

    def find(self, domain: str, name: str, version: int = 1) -> Reader | None:
        """The newest reader that an operator of this version may use."""
        if (domain, name) not in self._asked:
            with _lock:
                self._load_for(domain, name)
        for entry in self.table.get((domain, name), ()):
            if entry.since <= version:
                return entry
        load_announced()
        return next((e for e in self.table.get((domain, name), ()) if e.since <= version), None)

    def _load_for(self, domain: str, name: str) -> None:
        """Import the modules that have readers of one operator; all where it is not known which they are."""
        modules = (self._index() or {}).get(f"{domain} {name}")
        if modules is None:
            self.load_all()
        else:
            for module in modules:
                importlib.import_module(module)
        self._asked.add((domain, name))

    def _index(self) -> dict[str, list[str]] | None:
        """Modules by operator, as they were when all were imported; None where that is not known of the sources."""
        if not self._has_looked and self.folder is not None:
            found = remembered("readers", self.folder)
            try:
                made = {str(key): [str(m) for m in modules] for key, modules in found.items()}
                good = all(m.startswith(self._prefixes) for modules in made.values() for m in modules)
                self._known = made if good else None
            except (AttributeError, TypeError):
                self._known = None
        self._has_looked = True
        return self._known

    def load_all(self) -> None:
        """Import every module of the packages; importing it registers its readers."""
        import pkgutil

        with _lock:
            if self._is_loaded:
                return
            for package in self.packages:
                for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
                    importlib.import_module(f"{package}.{info.name}")
            self._is_loaded = True
            made = {f"{d} {n}": sorted({e.module for e in entries} - {""}) for (d, n), entries in self.table.items()}
            if self.folder is not None and made != self._index():
                remember("readers", self.folder, made)
