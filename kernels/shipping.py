"""Kernels as bytes, for a process of ours that compiles them, and what that process does.

A kernel is shipped by name where its module has it, else by value: generated text, or byte code with the globals and
closures that it names.  Digests on both sides say whether it arrived as it was.
"""

from __future__ import annotations

import importlib
import io
import marshal
import os
import pickle
import struct
import sys
import time
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from bolt_numba.kernels import jit
from bolt_numba.kernels.code_files import MachineCode
from bolt_numba.kernels.declare import Inline, Source, Word, free_names

_KNOWN = frozenset(("bolt_numba", "numpy", *sys.stdlib_module_names)) - {"__main__"}
TWINS = "bolt_numba.kernels.cpu_"
"""How the names of modules begin that `kernels.targets` makes."""
HEAD = struct.Struct("<Q")
"""How a message begins: how long it is."""
_READY = b"bolt_numba: answers follow\n"
"""A line of its own, after whatever was printed before."""
SECONDS = struct.Struct("<d")
"""How an answer begins: what the compile took."""
NICE = 5
"""How much a compiler that nobody waits for steps back behind what runs models."""


def shipped(kernel: Any) -> bytes | None:
    """A kernel as `received` takes it; None where it names what cannot be shipped."""
    made = io.BytesIO()
    if type(kernel).__module__.startswith(TWINS):  # of another instruction set: its package is made in this process
        return None
    try:
        _KernelPickler(made, pickle.HIGHEST_PROTOCOL).dump((kernel.digest, kernel))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
        return None
    return made.getvalue()


def received(data: bytes) -> MachineCode:
    """The kernel; raises ValueError where this process would make other code of it."""
    digest, kernel = pickle.loads(data)
    if not isinstance(kernel, MachineCode) or kernel.digest != digest:
        raise ValueError(f"{getattr(kernel, 'name', kernel)}: shipped kernel: got another digest")
    return kernel


class _KernelPickler(pickle.Pickler):
    """Writes what kernel code names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (jit.Native, Inline)):
            return _reduced(value)
        if type(value) is Word:
            return Word, (value.name,)
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.FunctionType) and not _is_named(value.__module__, value.__qualname__, value):
            return _parts(value)
        return NotImplemented


def _is_named(module: str, name: str, value: Any) -> bool:
    """Whether a module has this value by this name, which does nothing but define when it is imported."""
    return module.partition(".")[0] in _KNOWN and getattr(sys.modules.get(module), name, None) is value


def _reduced(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How a kernel or a helper is made again."""
    given = value.given
    if not isinstance(given, Source) and _is_named(given.__module__, given.__name__, value):
        return _named, (given.__module__, given.__name__)
    if isinstance(value, Inline):
        return Inline, (given,)
    return jit.Native, (given, value.name, value.fields, value.fastmath)


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _parts(function: types.FunctionType) -> tuple[Any, ...]:
    """How a function is made again: byte code first, then what it names, which may be itself."""
    names, scope = free_names(function.__code__), function.__globals__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    used = {name: scope[name] for name in names if name in scope}
    state = used, cells, function.__defaults__, function.__kwdefaults__
    return _function, (marshal.dumps(function.__code__),), state, None, None, _fill


def _function(code: bytes) -> types.FunctionType:
    made = marshal.loads(code)
    names = {"__name__": "bolt_numba.shipped", "__builtins__": __builtins__}
    return types.FunctionType(made, names, made.co_name, None, tuple(types.CellType() for _ in made.co_freevars))


def _fill(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    scope, cells, function.__defaults__, function.__kwdefaults__ = state
    function.__globals__.update(scope)
    for cell, content in zip(function.__closure__ or (), cells, strict=True):
        cell.cell_contents = content


# ---------------------------------------------------------------------------------------------------------------- pipe


def framed(data: bytes) -> bytes:
    """A message as it goes through the pipe."""
    return HEAD.pack(len(data)) + data


def send(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(framed(data))
    pipe.flush()


def receive(pipe: BinaryIO) -> bytes | None:
    """The next message; None where there will be no more."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    data = pipe.read(HEAD.unpack(head)[0])
    return data if len(data) == HEAD.unpack(head)[0] else None


def is_ready(pipe: BinaryIO) -> bool:
    """Read what others print while an interpreter starts, until `serve` begins; False where it does not."""
    return any(line == _READY for line in iter(pipe.readline, b""))


def serve(is_nice: bool = False) -> None:
    """Compile what comes in by standard input until it ends; each answer is `SECONDS` and the code, "" if it failed.

    Standard output belongs to answers alone: what others print goes to standard error.
    """
    if is_nice and hasattr(os, "nice"):
        os.nice(NICE)
    warnings.simplefilter("ignore")  # who asked tells its user
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(OSError):
        pipe.write(b"\n" + _READY)
        pipe.flush()
    while (data := receive(sys.stdin.buffer)) is not None:
        start = time.perf_counter()
        try:
            code = received(data).code()
        except Exception:  # who asked compiles it, and is told
            code = b""
        with suppress(OSError):  # nobody listens any more: what was asked for is kept all the same
            send(pipe, SECONDS.pack(time.perf_counter() - start) + code)
