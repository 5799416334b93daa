"""Docstrings say what signatures cannot: which errors public functions raise."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from bolt_numba import errors
from bolt_numba.session import Session

ROOT = Path(__file__).parent.parent
MODULES = (
    "", ".benchmark", ".devices", ".flow", ".guesses", ".hardware", ".onnxruntime", ".packing", ".preprocessing",
    ".quantize", ".surgery",
)  # fmt: skip
"""Modules below ``bolt_numba`` that are public; pages import single names of others."""
PAGES = (ROOT / "README.md", ROOT / "DESCRIPTION.md", *sorted((ROOT / "docs").rglob("*.md")))
IMPORTED = re.compile(r"^ *from (bolt_numba[\w.]*) import ([\w, ]+)", re.MULTILINE)


def public() -> Iterator[Any]:
    """What has a public name."""
    for module in MODULES:
        home = importlib.import_module(f"bolt_numba{module}")
        own = [name for name, thing in vars(home).items() if getattr(thing, "__module__", "") == home.__name__]
        yield from (getattr(home, name) for name in getattr(home, "__all__", own) if not name.startswith("_"))
    for page in PAGES:
        for module, names in IMPORTED.findall(page.read_text()):
            home = importlib.import_module(module)
            yield from filter(None, (getattr(home, name, None) for name in re.findall(r"(\w+)(?: as \w+)?", names)))


@cache
def functions() -> dict[FunctionType, type | None]:
    """Public functions and methods of ours, each with its class."""
    found: dict[FunctionType, type | None] = {}
    for thing in public():
        kind = thing if isinstance(thing, type) else None
        for name, member in {"": thing}.items() if kind is None else vars(kind).items():
            plain = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
            is_own = kind is None or getattr(plain, "__qualname__", "") == f"{kind.__qualname__}.{name}"
            if not isinstance(plain, FunctionType) or not is_own or not str(plain.__module__).startswith("bolt_numba"):
                continue
            is_public = not name.startswith("_") or name in ("__init__", "__call__")
            if is_public and plain.__code__.co_filename.endswith(".py"):  # a record makes others, without a text
                found[plain] = kind
    return found


@cache
def body_of(function: FunctionType) -> ast.FunctionDef:
    made = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    return cast("ast.FunctionDef", made)


def raised(function: FunctionType, kind: type | None, seen: set[FunctionType]) -> set[type[errors.BoltError]]:
    """Our errors that a function raises itself, or what it calls of its own module and class."""
    seen.add(function)
    found: set[type[errors.BoltError]] = set()
    for node in ast.walk(body_of(function)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = function.__globals__.get(getattr(node.exc.func, "id", ""))
            found |= {error} if isinstance(error, type) and issubclass(error, errors.BoltError) else set()
        elif isinstance(node, ast.Call):
            of_self = kind is not None and ast.unparse(node.func).startswith("self.")
            there = vars(kind) if of_self else function.__globals__
            called = there.get(ast.unparse(node.func).removeprefix("self."))
            inner = inspect.unwrap(called) if callable(called) else None
            if isinstance(inner, FunctionType) and inner.__module__ == function.__module__ and inner not in seen:
                found |= raised(inner, kind, seen)
    return found


def lets_out(function: FunctionType) -> bool:
    """Whether what it calls raises errors that leave it for the caller, by `border` or `leave`."""
    names = {ast.unparse(node.func) for node in ast.walk(body_of(function)) if isinstance(node, ast.Call)}
    return not names.isdisjoint(("border", "leave"))


def said(function: FunctionType, kind: type | None) -> set[str]:
    """Errors that the docstring of a function, or of its class, says it raises."""
    texts = [text for text in (function.__doc__, kind and kind.__doc__) if text]
    return {name for text in texts for name in re.findall(r"\w+Error\b", text.partition("aise")[2])}


def test_public_functions_say_which_errors_they_raise() -> None:
    wrong = []
    for function, kind in functions().items():
        wanted, names = raised(function, kind, set()), said(function, kind)
        named = f"{function.__module__}.{function.__qualname__}"
        bases = {e: {base.__name__ for base in e.__mro__ if issubclass(base, errors.BoltError)} for e in wanted}
        missing = [error.__name__ for error, any_of in bases.items() if names.isdisjoint(any_of)]
        wrong += [f"{named}: raises {error}, and says {sorted(names) or 'nothing'}" for error in missing]
        if not wanted and lets_out(function) and not names:
            wrong.append(f"{named}: lets out what it calls raises, and says nothing")
    assert not wrong, "\n".join(wrong)


def test_what_is_public_is_found() -> None:
    names = {f"{function.__module__}.{function.__qualname__}" for function in functions()}
    assert names > {"bolt_numba.compiling.compile", "bolt_numba.session.Session.run", "bolt_numba.devices.register"}
    assert raised(Session.run_into, Session, set()) >= {errors.ShapeError}
