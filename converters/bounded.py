"""Reading what nobody vouches for: nothing is allocated or opened before its size and place were checked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

import ml_dtypes
import numpy as np

from bolt_numba.base.border import as_bolt_error
from bolt_numba.base.errors import BoltError, InvalidModelError
from bolt_numba.base.files.mapped import map_opened
from bolt_numba.base.files.regular import open_regular
from bolt_numba.base.types import STRING, AnyDType, Array

HEAD = 64
"""Bytes from which a format, or what stands in the place of a model, is told."""
MAX_EXPANDED = 200_000
"""Nodes that calls of functions and repeated subgraphs may add to a model."""
MAX_MADE = 20_000
"""Nodes that a reader may make of one of the file, whose attributes and shapes say how often it repeats something."""
MAX_DEPTH = 60
"""Functions that may call each other, and subgraphs that may hold each other, in a chain."""
MAPPED = 1 << 20
"""Bytes from which an array in a file is mapped instead of read."""

NO_MODELS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS, wanted the file itself: git lfs pull fetches it"),
    (b"<!doctype html", "a web page, wanted a model: fetch the file itself, not the page about it"),
    (b"<html", "a web page, wanted a model: fetch the file itself, not the page about it"),
)
"""How what is no model begins, in small letters, and what is said of it."""
BITS: dict[AnyDType, int] = {
    np.dtype(getattr(ml_dtypes, name)): bits
    for name, bits in {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}.items()
    if hasattr(ml_dtypes, name)  # older releases lack some of them
}
"""Widths of what is stored in parts of a byte."""


@contextmanager
def reading(name: str, *passing: type[Exception]) -> Iterator[None]:
    """Have what Python raises over the file ``name`` become a BoltError; the kinds in ``passing`` stay as they are."""
    try:
        with np.errstate(all="ignore"):
            yield
    except Exception as error:  # whatever else a file brings about, it is the file that is wrong
        if isinstance(error, (BoltError, *passing)):
            raise
        if isinstance(error, (MemoryError, RecursionError)):
            raise as_bolt_error(error, name) from error
        raise InvalidModelError(f"{name}: cannot be read: {type(error).__name__}: {error}") from error


def refuse_no_model(head: bytes, name: str) -> None:
    """Raise InvalidModelError for what is no model but was left or fetched in the place of one."""
    for begin, text in NO_MODELS:
        if head.lower().lstrip().startswith(begin):
            raise InvalidModelError(f"{name}: got {text}")


class Measure:
    """Keeps what a file makes of few bytes, nested and repeated subgraphs and functions, within measure."""

    def __init__(self, file: str) -> None:
        self.file, self.nodes = file, 0

    def add(self, nodes: int, depth: int, name: str) -> None:
        """Count the nodes of the graph ``name``; raises InvalidModelError when they become too many or too deep."""
        self.nodes += nodes
        if self.nodes > MAX_EXPANDED or depth > MAX_DEPTH:
            raise InvalidModelError(f"{self.file}: '{name}': got too many nested or repeated graphs, wanted fewer")


def count_of(dims: Sequence[int], what: str) -> int:
    """Elements of a tensor; raises InvalidModelError for a negative dimension."""
    if any(d < 0 for d in dims):
        raise InvalidModelError(f"{what}: dims: got {tuple(dims)}, wanted none negative")
    return math.prod(dims)


def nbytes_of(dtype: AnyDType, dims: Sequence[int]) -> int:
    """Bytes that a file has for a dense tensor."""
    return (math.prod(dims) * BITS.get(dtype, 8 * dtype.itemsize) + 7) // 8


def text_of(raw: bytes, what: str) -> str:
    """UTF-8 as a text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"{what}: got bytes that are no UTF-8, wanted text") from error


def texts_of(raw: Sequence[bytes], what: str) -> tuple[str, ...]:
    """Many texts, as `text_of`."""
    try:
        return tuple(map(bytes.decode, raw))
    except UnicodeDecodeError:
        return tuple(text_of(r, what) for r in raw)


def decimal(text: str, what: str) -> int:
    """A number that is written in digits."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidModelError(f"{what}: got {text[:40]!r}, wanted a number")
    return int(text)


def array_of_bytes(raw: bytes | memoryview | Array, dtype: AnyDType, dims: Sequence[int], what: str) -> Array:
    """A dense little-endian tensor of any dtype but strings; elements of less than a byte begin in the lowest bits."""
    if dtype == STRING:
        raise InvalidModelError(f"{what}: got strings as bytes, wanted texts")
    wanted = nbytes_of(dtype, dims)
    if len(raw) != wanted:
        raise InvalidModelError(f"{what}: data: got {len(raw)} bytes, wanted {wanted} for {dtype.name}{list(dims)}")
    if dtype in BITS:
        return _unpacked(np.frombuffer(raw, np.uint8), dtype, math.prod(dims)).reshape(dims)
    if dtype == np.dtype("?"):
        flags: Array = np.frombuffer(raw, np.uint8) != 0
        return flags.reshape(dims)
    return np.frombuffer(raw, dtype).reshape(dims)


def _unpacked(packed: Array, dtype: AnyDType, count: int) -> Array:
    bits = BITS[dtype]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((packed[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.name.startswith("int"):
        half = 1 << (bits - 1)
        return ((codes.astype(np.int8) ^ half) - half).astype(dtype)
    return codes.astype(dtype) if dtype.name.startswith("uint") else codes.view(dtype)


def array_in_file(
    path: Path, offset: int, length: int | None, dtype: AnyDType, dims: Sequence[int], what: str
) -> Array:
    """A dense tensor in another file, as `array_of_bytes`; a large one is mapped.

    offset, length: in bytes, as the model states them; None: as many as the tensor has.
    """
    wanted = nbytes_of(dtype, dims)
    length = wanted if length is None else length
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if length != wanted or offset + length > size:
            refuse_no_model(file.read(HEAD), path.name)
            raise InvalidModelError(
                f"{what} {path.name}: got {length} bytes from {offset} of {size}, "
                f"wanted {wanted} for {dtype.name}{list(dims)}"
            )
        if wanted >= MAPPED and dtype not in BITS and dtype.kind != "b":
            return np.frombuffer(map_opened(file, path), dtype, math.prod(dims), offset).reshape(dims)
        file.seek(offset)
        return array_of_bytes(file.read(length), dtype, dims, what)


Folders: TypeAlias = "tuple[Path, ...]"
"""Where files may lie that a model names, in the order in which they are looked at; none for a model without a file."""


def file_below(folders: Folders, location: str, what: str) -> Path:
    """A file that a model names by a path inside one of its folders.

    Links are followed: the file has the names, and whoever owns the folder has made the links.
    """
    if not folders:
        raise InvalidModelError(f"{what}: got {location!r}, wanted a model that is read from a file")
    if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
        raise InvalidModelError(f"{what}: got {location!r}, wanted a path inside the model's folder")
    path = next(filter(Path.is_file, (Path(os.path.abspath(folder / location)) for folder in folders)), None)
    if path is None:
        raise InvalidModelError(f"{what}: got {location!r}, wanted an existing file")
    named = _named.get()
    if named is not None:
        named.setdefault(path, os.stat(path))
    return path


_named: ContextVar[dict[Path, os.stat_result] | None] = ContextVar("named", default=None)


@contextmanager
def files_named() -> Iterator[dict[Path, os.stat_result]]:
    """Within: has the files that models name which are read meanwhile."""
    made: dict[Path, os.stat_result] = {}
    token = _named.set(made)
    try:
        yield made
    finally:
        _named.reset(token)
