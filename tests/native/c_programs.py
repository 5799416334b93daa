"""The C library and programs in C, built once for all tests of a session, and the library by ctypes."""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.cli.app import run
from bolt_numba.converters.onnx.types import DTYPES
from bolt_numba.export.c_library import SOURCES
from bolt_numba.export.program import native_program
from bolt_numba.ir.graph import Graph
from bolt_numba.types import Array

HERE = Path(__file__).parent
STRESS = HERE / "stress.c"
OK, ARGUMENT, FILE, DAMAGED, VERSION, TARGET, NO_PLAN, NO_MEMORY, DATA, TIME = range(10)

on_this_machine = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="code in .bolt files is for Linux on x86-64"
)
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@functools.cache
def scratch() -> Path:
    """A folder that goes with the process."""
    made = tempfile.TemporaryDirectory()
    scratch.kept = made  # type: ignore[attr-defined]
    return Path(made.name)


@functools.cache
def built() -> Path:
    """A folder with the library and its headers."""
    assert run(["c-library", "-o", str(scratch() / "library")]) == 0
    return scratch() / "library"


@functools.cache
def stress(*flags: str) -> Path:
    """The program `stress.c` with the sources of the library in it; skips the test where flags are not to be had."""
    made = scratch() / f"stress{len(list(scratch().iterdir()))}"
    sources = [*sorted(SOURCES.glob("*.c")), STRESS]
    command = ["cc", "-std=c11", "-O1", "-g", "-pthread", *flags, f"-I{SOURCES}", *sources, "-o", made, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "sanitize" in " ".join(flags) and "cannot find" in done.stderr:
        pytest.skip("the C compiler has no sanitizers")
    assert not done.returncode, done.stderr
    if "-fsanitize=thread" in flags:  # it wants certain parts of the address space, which some kernels give to others
        tried = subprocess.run([made], capture_output=True, text=True)
        if "unexpected memory mapping" in tried.stderr:
            pytest.skip(f"the sanitizer of threads does not start here: {tried.stderr.splitlines()[0]}")
    return made


def program_bytes(graph: Graph, **options: Any) -> bytes:
    return native_program(graph, **options).block.tobytes()


class Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
        ("dims", ctypes.POINTER(ctypes.c_int64)), ("nbytes", ctypes.c_size_t),
    )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dims[: self.rank])


class Options(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int),)


@functools.cache
def library() -> Any:
    """The shared library."""
    made = ctypes.CDLL(str(built() / "libbolt_numba.so"))
    for name in ("bn_version", "bn_status_text", "bn_error_message", "bn_model_target"):
        getattr(made, name).restype = ctypes.c_char_p
    for name in ("bn_session_input", "bn_session_output", "bn_session_find"):
        getattr(made, name).restype = ctypes.c_void_p
    made.bn_dtype_size.restype = made.bn_session_output_capacity.restype = ctypes.c_size_t
    return made


class CError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check(status: int, session: Any = None) -> None:
    if status:
        raise CError(status, library().bn_error_message(session).decode())


def opened(data: bytes) -> ctypes.c_void_p:
    """A model of bytes, which the caller closes."""
    model = ctypes.c_void_p()
    check(library().bn_model_from_memory(data, ctypes.c_size_t(len(data)), ctypes.byref(model)))
    return model


class CSession:
    """A session of the C library, as Python sessions are called."""

    def __init__(self, data: bytes, threads: int = 0) -> None:
        self.at = ctypes.c_void_p()
        model = opened(data)
        try:
            check(library().bn_session_create(model, ctypes.byref(Options(threads)), ctypes.byref(self.at)))
        finally:
            library().bn_model_close(model)

    def __enter__(self) -> CSession:
        return self

    def __exit__(self, *error: object) -> None:
        library().bn_session_destroy(self.at)

    def info(self, kind: str, number: int) -> Info:
        made = Info()
        check(getattr(library(), f"bn_session_{kind}_info")(self.at, number, ctypes.byref(made)), self.at)
        return made

    def names(self, kind: str) -> list[str]:
        return [self.info(kind, i).name.decode() for i in range(getattr(library(), f"bn_session_{kind}s")(self.at))]

    def array(self, kind: str, number: int) -> Array:
        """The buffer of an input or output."""
        info = self.info(kind, number)
        address = getattr(library(), f"bn_session_{kind}")(self.at, number)
        raw = (ctypes.c_char * info.nbytes).from_address(address)
        return np.frombuffer(raw, DTYPES[info.dtype]).reshape(info.shape)

    def find(self, name: str) -> Array:
        info = Info()
        address = library().bn_session_find(self.at, name.encode(), ctypes.byref(info))
        if not address:
            raise CError(ARGUMENT, library().bn_error_message(self.at).decode())
        raw = (ctypes.c_char * info.nbytes).from_address(address)
        return np.frombuffer(raw, DTYPES[info.dtype]).reshape(info.shape).copy()

    def resize(self, shapes: Sequence[Sequence[int]]) -> None:
        rows = [(ctypes.c_int64 * max(len(shape), 1))(*shape) for shape in shapes]
        pointer = ctypes.POINTER(ctypes.c_int64)
        places = (pointer * len(rows))(*(ctypes.cast(row, pointer) for row in rows))
        check(library().bn_session_resize(self.at, places), self.at)

    def call(self, name: str, *args: Any) -> None:
        check(getattr(library(), f"bn_session_{name}")(self.at, *args), self.at)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        for number, name in enumerate(self.names("input")):
            self.array("input", number)[...] = feeds[name]
        self.call("run")
        return {name: self.array("output", i).copy() for i, name in enumerate(self.names("output"))}
