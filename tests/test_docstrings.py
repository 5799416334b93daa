"""Docstrings say what signatures cannot: which errors public functions raise, what the pointers of kernels point to."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from bolt_numba import errors
from bolt_numba.sessions.session import Session
from tests.test_structure import PACKAGE, tree

ROOT = Path(__file__).parent.parent
MODULES = (
    "", ".benchmark", ".devices", ".flow", ".plugins", ".onnxruntime", ".preprocessing", ".quantize",
    ".sessions.guesses", ".surgery",
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


KERNELS = ("native", "cuda_kernel", "elements")
"""Decorators of the bodies of kernels; their keywords are the fields."""
SHAPE = re.compile(r"\[[^\]]+\]")


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
    wanted = ("compiling.compile", "devices.register", "sessions.session.Session.run")
    assert names > {f"bolt_numba.{name}" for name in wanted}
    assert errors.ShapeError in raised(next(f for f in functions() if f.__name__ == "run_into"), Session, set())


# --- kernels ---------------------------------------------------------------------------------------------------------


def text_of(file: Path, name: str) -> str:
    """What stands below a table of fields, and below those that it is made of."""
    body = tree(file).body
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign | ast.Assign) and re.match(rf"{name}(:| =)", ast.unparse(node)):
            below = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            return f"{below!s} {texts_of(file, node.value)}"
        names = {alias.asname or alias.name: alias.name for alias in getattr(node, "names", ())}
        if isinstance(node, ast.ImportFrom) and node.module is not None and name in names:
            return text_of(ROOT / f"{node.module.removeprefix('bolt_numba.').replace('.', '/')}.py", names[name])
    return ""


def texts_of(file: Path, value: ast.AST | None) -> str:
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} if value is not None else set()
    return " ".join(text_of(file, name) for name in sorted(names) if name.strip("_").isupper())


def kernels() -> Iterator[tuple[str, str]]:
    """Bodies of kernels that have pointers, each with what is written of it: by itself, its maker, its fields."""
    for file in PACKAGE:
        if file.relative_to(ROOT).parts[0] != "kernels":
            continue
        todo = [(node, "") for node in tree(file).body]
        while todo:
            node, above = todo.pop()
            if not isinstance(node, ast.FunctionDef):
                continue
            text = f"{above} {ast.get_docstring(node) or ''}"
            todo += [(inner, text) for inner in node.body]
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) in KERNELS:
                    fields = [key for key in mark.keywords if key.arg is None or "PTR" in ast.unparse(key.value)]
                    if fields or "elements" in ast.unparse(mark.func):
                        shared = "".join(texts_of(file, key.value) for key in fields if key.arg is None)
                        yield f"{file.relative_to(ROOT)}: {node.name}", f"{text} {shared}"


def test_kernels_give_the_shapes_behind_their_pointers() -> None:
    found = dict(kernels())
    assert len(found) > 100
    wrong = [name for name, text in found.items() if not SHAPE.search(text)]
    assert not wrong, "kernels whose docstring, or that of their fields, has no shape: " + ", ".join(wrong)
