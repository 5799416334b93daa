"""What a GGUF file holds: keys with values, and tensors.  Each length is held against the file before it is used.

Source: ggml's specification of GGUF, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, AnyDType, Array
from bolt_numba.converters.bounded import text_of
from bolt_numba.ops.layers.products.forms import FORMS

Data: TypeAlias = "bytes | memoryview"

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS: dict[int, AnyDType] = {
    0: U8, 1: I8, 2: U16, 3: I16, 4: U32, 5: I32, 6: F32, 7: BOOL, 10: U64, 11: I64, 12: F64
}  # fmt: skip
"""Kinds of values that are numbers."""
TEXT, ARRAY = 8, 9
"""The other kinds."""
LEAST_KEY, LEAST_TENSOR = 13, 32
"""Bytes of the shortest key with its value, and of the shortest row of the table of tensors."""
MOST_KEYS, MOST_TENSORS = 1 << 16, 1 << 17
"""Many times what any model has: a million of them would take a gigabyte and many seconds."""
MOST_AXES, MOST_ALIGNED = 4, 1 << 20
TENSOR_KINDS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


@record(frozen=True)
class GgufTensor:
    """What a file says of a tensor, and its content.

    shape: the last axis lies together.  data: f32 of that shape, or u8 [rows, bytes of a row] of a form; None for a
    kind that has no meaning here.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: Array | None


@record(frozen=True)
class Gguf:
    """values: by key; a text, a number, an array, or a list of the bytes of texts."""

    file: str
    values: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def text(self, key: str, default: str | None = None) -> str:
        """A key's text, or its default.  Raises InvalidModelError."""
        found = self.values.get(key, default)
        if not isinstance(found, str):
            raise InvalidModelError(f"{self.file}: key '{key}': got {shown(found)}, wanted a text")
        return found


def shown(found: object) -> str:
    """What a key has, for messages."""
    return "none" if found is None else f"{found!s:.40}"


def read_container(data: Data, file: str) -> Gguf:
    """Keys and tensors of a file; tensors are views of its bytes.  Raises InvalidModelError."""
    return _GgufBytes(data, file).read()


def read_parts(data: Data, file: str, open_part: Callable[[str, str], Data]) -> Gguf:
    """As `read_container`; of a model in several files ``data`` is the first, whose name tells those of the others.

    open_part: the bytes of a file beside it, by its name and what messages call it.
    """
    found = read_container(data, file)
    count, tensors = found.values.get("split.count", 0), dict(found.tensors)
    if not isinstance(count, int):
        raise InvalidModelError(f"{file}: key 'split.count': got {count!s:.40}, wanted a whole number")
    if count in (0, 1):
        return found
    stem, ending = file.partition("-00001-of-")[0], f"-of-{count:05d}.gguf"
    if file != f"{stem}-00001{ending}" or found.values.get("split.no") != 0:
        raise InvalidModelError(f"{file}: got one of {count} files, wanted the first, 'NAME-00001{ending}'")
    for i in range(1, count):
        what = f"{file}: part {i + 1} of {count}"
        name = f"{stem}-{i + 1:05d}{ending}"
        part = read_container(open_part(name, what), name)
        place = part.values.get("split.no"), part.values.get("split.count")
        if place != (i, count) or tensors.keys() & part.tensors:
            got = f"split.no and split.count {place}" if place != (i, count) else "tensors that others have"
            raise InvalidModelError(f"{what}: '{name}': got {got}, wanted {(i, count)} and tensors of its own")
        tensors |= part.tensors
    wanted = found.values.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise InvalidModelError(
            f"{file}: key 'split.tensors.count': got {wanted}, wanted {len(tensors)} of all parts"
        )
    return Gguf(file, found.values, tensors)


class _GgufBytes:
    """Reads from ``at`` on."""

    def __init__(self, data: Data, file: str) -> None:
        self.data, self.file, self.size, self.at = data, file, len(data), 0

    def read(self) -> Gguf:
        if bytes(self.data[: len(MAGIC)]) != MAGIC:
            raise InvalidModelError(f"{self.file}: header: got {bytes(self.data[:4])!r}, wanted {MAGIC!r}")
        self.at = len(MAGIC)
        version = self._number(U32, "header: version")
        if version not in VERSIONS:
            turned = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            got = "a file of big-endian numbers" if turned else f"{version}"
            raise InvalidModelError(f"{self.file}: header: version: got {got}, wanted one of {VERSIONS}, little-endian")
        tensors = self._count("header: tensors", LEAST_TENSOR)
        keys = self._count("header: keys", LEAST_KEY)
        for what, count, most in (("tensors", tensors, MOST_TENSORS), ("keys", keys, MOST_KEYS)):
            self._want(count <= most, f"header: {what}", count, f"at most {most}")
        values: dict[str, Any] = {}
        for i in range(keys):
            key = self._text(f"key {i}")
            self._want(key not in values, f"key '{key}'", "it twice", "it once")
            values[key] = self._value(f"key '{key}'")
        return Gguf(self.file, values, self._tensors(tensors, values.get("general.alignment", 32)))

    # --- values ------------------------------------------------------------------------------------------------------

    def _value(self, what: str) -> Any:
        kind = self._number(U32, f"{what}: kind")
        if kind == TEXT:
            return self._text(what)
        if kind != ARRAY:
            self._want(kind in SCALARS, f"{what}: kind", kind, "one of GGUF's")
            return self._number(SCALARS[kind], what)
        kind = self._number(U32, f"{what}: kind of elements")
        if kind == TEXT:
            return self._texts(what)
        self._want(kind in SCALARS, f"{what}: kind of elements", kind, "numbers or texts")
        dtype = SCALARS[kind]
        count = self._count(f"{what}: elements", dtype.itemsize)
        return np.frombuffer(self._bytes(count * dtype.itemsize, what), dtype)

    def _texts(self, what: str) -> list[bytes]:
        """Bytes of texts, of which vocabularies have so many that each counts."""
        count = self._count(f"{what}: elements", 8)
        data, at, last, made = self.data, self.at, self.size - 8, []
        length: Callable[[Any, int], tuple[int]] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            end = at + 8 + length(data, at)[0] if at <= last else self.size + 1
            if end > self.size:
                raise InvalidModelError(f"{self.file}: {what}: got texts beyond {self.size} bytes, wanted them within")
            made.append(bytes(data[at + 8 : end]))
            at = end
        self.at = at
        return made

    def _text(self, what: str) -> str:
        return text_of(bytes(self._bytes(self._count(f"{what}: bytes", 1), what)), f"{self.file}: {what}")

    def _number(self, dtype: AnyDType, what: str) -> Any:
        raw = self._bytes(dtype.itemsize, what)
        self._want(dtype != BOOL or raw[0] < 2, what, raw[0], "0 or 1")
        return np.frombuffer(raw, dtype)[0].item()

    def _count(self, what: str, least: int) -> int:
        """How many of at least so many bytes follow."""
        count: int = self._number(U64, what)
        left = self.size - self.at
        self._want(count <= left // least, what, count, f"at most {left // least}, as {left} bytes are left")
        return count

    def _bytes(self, count: int, what: str) -> Data:
        self._want(count <= self.size - self.at, what, f"{count} bytes at {self.at}", f"them within {self.size}")
        self.at += count
        return self.data[self.at - count : self.at]

    def _want(self, holds: bool, what: str, got: object, wanted: object) -> None:
        if not holds:
            raise InvalidModelError(f"{self.file}: {what}: got {got}, wanted {wanted}")

    # --- tensors -----------------------------------------------------------------------------------------------------

    def _tensors(self, count: int, aligned: Any) -> dict[str, GgufTensor]:
        is_power = isinstance(aligned, int) and 0 < aligned <= MOST_ALIGNED and aligned & (aligned - 1) == 0
        self._want(is_power, "key 'general.alignment'", aligned, "a power of two")
        rows: dict[str, tuple[str, tuple[int, ...], int]] = {}
        for i in range(count):
            name = self._text(f"tensor {i}")
            what = f"tensor '{name}'"
            self._want(name not in rows, what, "it twice", "it once")
            axes = self._number(U32, f"{what}: axes")
            self._want(1 <= axes <= MOST_AXES, f"{what}: axes", axes, f"1 to {MOST_AXES}")
            sizes = tuple(self._number(U64, f"{what}: sizes") for _ in range(axes))
            kind = self._number(U32, f"{what}: kind")
            rows[name] = TENSOR_KINDS.get(kind, f"{kind}"), sizes[::-1], self._number(U64, f"{what}: offset")
            self._want(rows[name][2] % aligned == 0, f"{what}: offset", rows[name][2], f"a multiple of {aligned}")
        start = -(-self.at // aligned) * aligned
        made = {name: self._tensor(name, *row[:2], start + row[2]) for name, row in rows.items()}
        held = sum(one.data.nbytes for one in made.values() if one.data is not None)
        self._want(held <= self.size, "tensors", f"{held} bytes", f"them apart from each other within {self.size}")
        return made

    def _tensor(self, name: str, kind: str, shape: tuple[int, ...], start: int) -> GgufTensor:
        what, count, row = f"tensor '{name}'", math.prod(shape), shape[-1]
        self._want(0 < count <= 8 * self.size, f"{what}: shape", shape, f"elements that {self.size} bytes can hold")
        form, per_row = None if kind == "F32" else FORMS.get(kind), 4 * row
        if form is not None:
            self._want(row % form.block == 0, f"{what}: last size", row, f"a multiple of {form.block} for {kind}")
            per_row = row // form.block * form.size
        elif kind != "F32":
            return GgufTensor(name, kind, shape, None)
        end = start + count // row * per_row
        self._want(end <= self.size, what, f"bytes up to {end}", f"them within {self.size}: the file is cut off")
        raw = np.frombuffer(self.data, np.uint8, end - start, start)
        return GgufTensor(name, kind, shape, raw.view(F32).reshape(shape) if form is None else raw.reshape(-1, per_row))
