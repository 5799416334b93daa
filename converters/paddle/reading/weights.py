"""Weights: `.pdiparams`, in which tensors follow one another by name, or a file for each variable.

A record is u32 0, u64 levels of ragged structure, each as u64 bytes and its offsets, u32 0, i32 size, a `TensorDesc`
of that size, and the elements.  Source: Paddle's SerializeToStream.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.files.mapped import map_file
from bolt_numba.base.types import Array
from bolt_numba.converters.bounded import MAPPED, array_of_bytes, count_of, file_below, nbytes_of
from bolt_numba.converters.paddle.reading.legacy import MAX_LOD, ints_of, message_of
from bolt_numba.converters.paddle.types import dtype_of_number
from bolt_numba.converters.wire import IrregularError

MAX_DESCRIPTION = 1 << 16
"""Bytes of a `TensorDesc`, which is a dtype and a few numbers."""


def read_combined(data: bytes | memoryview, names: Sequence[str], file: str) -> dict[str, Array]:
    """Tensors by name of a file that has those of ``names`` in this order, and nothing else."""
    made: dict[str, Array] = {}
    at = 0
    for name in names:
        made[name], at = _record(data, at, f"{file}: weight '{name}'")
    if at != len(data):
        raise InvalidModelError(f"{file}: got {len(data)} bytes, wanted {at} for the {len(names)} weights of the model")
    return made


def read_folder(folder: Path, names: Sequence[str], file: str) -> dict[str, Array]:
    """Tensors by name, each of a file of its own."""
    made: dict[str, Array] = {}
    for name in names:
        what = f"{file}: weight '{name}'"
        path = file_below((folder,), name, what)
        data = memoryview(map_file(path)) if path.stat().st_size >= MAPPED else path.read_bytes()
        made[name], at = _record(data, 0, what)
        if at != len(data):
            raise InvalidModelError(f"{what}: got {len(data)} bytes, wanted {at}")
    return made


def _record(data: bytes | memoryview, at: int, what: str) -> tuple[Array, int]:
    """The tensor that begins at ``at``, and where it ends."""
    try:
        version, levels = struct.unpack_from("<IQ", data, at)
        at += 12
        if version or levels > MAX_LOD:
            raise InvalidModelError(f"{what}: got version {version} and {levels} levels, wanted version 0")
        for _ in range(levels):
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        version, size = struct.unpack_from("<Ii", data, at)
    except struct.error:
        raise InvalidModelError(f"{what}: got a file of {len(data)} bytes that ends before it") from None
    at += 8
    if version or not 0 <= size <= min(MAX_DESCRIPTION, len(data) - at):
        raise InvalidModelError(f"{what}: got version {version} and {size} bytes of description, wanted version 0")
    try:
        found = message_of(bytes(data[at : at + size]))
        dims = ints_of(found.get(2, []))
        dtype = dtype_of_number(ints_of(found.get(1, [0]))[-1], what)
    except (IrregularError, IndexError):
        raise InvalidModelError(f"{what}: got a description that is none, wanted a TensorDesc") from None
    at += size
    count_of(dims, what)
    end = at + nbytes_of(dtype, dims)
    if end > len(data):
        raise InvalidModelError(f"{what}: got {len(data) - at} bytes, wanted {end - at} for {dtype.name}{list(dims)}")
    return array_of_bytes(data[at:end], dtype, dims, what), end
