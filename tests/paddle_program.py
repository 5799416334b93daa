"""Writes Paddle programs: `ProgramDesc` and `.pdiparams` from Python values, for tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.converters.paddle.types import NUMBERED
from bolt_numba.converters.wire import as_varint
from bolt_numba.types import Array

NUMBER = {dtype: number for number, dtype in NUMBERED.items() if number != 19}


def field(number: int, value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return as_varint(number << 3 | 2) + as_varint(len(value)) + value
    if isinstance(value, float):
        return as_varint(number << 3 | 5) + struct.pack("<f", value)
    return as_varint(number << 3) + as_varint(int(value) & (1 << 64) - 1)


class Block(int):
    """The number of a block, as an attribute."""


def attribute(name: str, value: Any) -> bytes:
    kinds: list[tuple[Any, int, int]] = [(bool, 6, 10), (Block, 8, 12), (int, 0, 3), (float, 1, 4), (str, 2, 5)]
    lists: list[tuple[Any, int, int]] = [(int, 3, 6), (float, 4, 7), (str, 5, 8)]
    is_list = isinstance(value, (tuple, list))
    values = list(value) if is_list else [value]
    _, kind, number = next(row for row in (lists if is_list else kinds) if isinstance(values[0], row[0]))
    made = b"".join(field(number, v.encode() if isinstance(v, str) else v) for v in values)
    return field(1, name.encode()) + field(2, kind) + made


def slots(number: int, given: Mapping[str, Sequence[str]]) -> bytes:
    return b"".join(
        field(number, field(1, slot.encode()) + b"".join(field(2, n.encode()) for n in names))
        for slot, names in given.items()
    )


def op(type: str, inputs: Mapping[str, Sequence[str]], outputs: Mapping[str, Sequence[str]], **attrs: Any) -> bytes:
    """An `OpDesc`."""
    made = slots(1, inputs) + slots(2, outputs) + field(3, type.encode())
    return field(4, made + b"".join(field(4, attribute(*row)) for row in attrs.items()))


def description(dtype: Any, dims: Sequence[int]) -> bytes:
    """A `TensorDesc`."""
    return field(1, NUMBER[np.dtype(dtype)]) + b"".join(field(2, d) for d in dims)


def var(
    name: str, dtype: Any, dims: Sequence[int], *, is_kept: bool = False, lod: int = 0, is_array: bool = False
) -> bytes:
    """A `VarDesc`."""
    tensor = field(1, description(dtype, dims)) + (field(2, lod) if lod else b"")
    type = field(1, 13 if is_array else 7) + field(4 if is_array else 3, tensor)
    return field(3, field(1, name.encode()) + field(2, type) + field(3, int(is_kept)))


def program(*blocks: Sequence[bytes], versions: Mapping[str, int] | None = None) -> bytes:
    """A `ProgramDesc` of blocks, each made of operations and variables."""
    made = b""
    for i, parts in enumerate(blocks):
        made += field(1, field(1, i) + field(2, i - 1) + b"".join(parts))
    pairs = (field(1, n.encode()) + field(2, field(1, v)) for n, v in (versions or {}).items())
    return made + field(4, field(1, 0)) + field(5, b"".join(field(1, pair) for pair in pairs))


def feed(name: str, column: int = 0) -> bytes:
    return op("feed", {"X": ["feed"]}, {"Out": [name]}, col=column)


def fetch(name: str, column: int = 0) -> bytes:
    return op("fetch", {"X": [name]}, {"Out": ["fetch"]}, col=column)


def record(array: Array, lod: Sequence[Sequence[int]] = ()) -> bytes:
    """A tensor as files of weights have it."""
    levels = b"".join(struct.pack(f"<Q{len(level)}Q", 8 * len(level), *level) for level in lod)
    desc = description(array.dtype, array.shape)
    return struct.pack("<IQ", 0, len(lod)) + levels + struct.pack("<Ii", 0, len(desc)) + desc + array.tobytes()
