"""Adapters: files of parameters that take the place of a model's initializers in a run."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.converters.flat import FlatBuffer, FlatField
from bolt_numba.onnxruntime.errors import OrtOptionError
from bolt_numba.onnxruntime.kinds import CODES
from bolt_numba.onnxruntime.values import OrtValue, element_dtype, want

MAGIC, FORMAT = b"TORT", 1
_FIELDS = {
    "Adapter": [FlatField("format", "i4", 0), FlatField("adapter", "i4", 0), FlatField("model", "i4", 0),
                FlatField("parameters", "Parameter", (), vector=True)],
    "Parameter": [FlatField("name", "str", ""), FlatField("dims", "i8", (), vector=True), FlatField("code", "i4", 0),
                  FlatField("data", "u1", (), vector=True)],
}  # fmt: skip
"""Source: what onnxruntime writes."""


class AdapterFormat:
    """What an adapter's file holds: two versions of its maker's own, and OrtValues by the names of initializers.

    Its methods raise OrtOptionError for what no file can hold.
    """

    __slots__ = ("_format", "_parameters", "_versions")

    def __init__(self) -> None:
        self._format, self._versions, self._parameters = FORMAT, [0, 0], dict[str, OrtValue]()

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Raises OrtOptionError for a file that is none."""
        data = Path(file_path).read_bytes()
        if data[4:8] != MAGIC:
            raise OrtOptionError(f"{file_path}: adapter: got a file that begins with {data[:8]!r}, wanted an adapter's")
        held = FlatBuffer(data, _FIELDS, {}, str(file_path)).root("Adapter")
        made = AdapterFormat()
        made._format, made._versions = held["format"], [held["adapter"], held["model"]]
        made._parameters = {p["name"]: OrtValue(_array(p, str(file_path))) for p in held["parameters"]}
        return made

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Write the file."""
        Path(file_path).write_bytes(_written(self._versions, {n: v.numpy() for n, v in self._parameters.items()}))

    def get_format_version(self) -> int:
        return self._format

    def get_adapter_version(self) -> int:
        return self._versions[0]

    def set_adapter_version(self, adapter_version: int) -> None:
        self._versions[0] = _version(adapter_version)

    def get_model_version(self) -> int:
        return self._versions[1]

    def set_model_version(self, model_version: int) -> None:
        self._versions[1] = _version(model_version)

    def get_parameters(self) -> dict[str, OrtValue]:
        return dict(self._parameters)

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Tensors of numbers, by name."""
        want(Mapping, "params", params)
        for name, value in params.items():
            want(OrtValue, f"parameter '{name}'", value)
            if not value.is_tensor() or value.numpy().dtype not in CODES or value.numpy().dtype.hasobject:
                raise OrtOptionError(f"parameter '{name}': got {value.data_type()}, wanted a tensor of numbers")
        self._parameters = dict(params)


class LoraAdapter:
    """An adapter for `RunOptions.add_active_adapter`."""

    __slots__ = ("_parameters",)

    def __init__(self) -> None:
        self._parameters: dict[str, OrtValue] = {}

    def Load(self, file_path: str) -> None:  # noqa: N802  # their name
        """Read an adapter's file."""
        self._parameters = AdapterFormat.read_adapter(file_path).get_parameters()


def _version(number: int) -> int:
    if type(number) is not int or not -(2**31) <= number < 2**31:
        raise OrtOptionError(f"version: got {number!r}, wanted a number of 32 bits")
    return number


def _array(parameter: Mapping[str, Any], file: str) -> Array:
    dtype, dims = element_dtype(parameter["code"]), tuple(map(int, parameter["dims"]))
    data = np.asarray(parameter["data"], np.uint8)
    if dtype.hasobject or min(dims, default=0) < 0 or math.prod(dims) * dtype.itemsize != len(data):
        raise OrtOptionError(
            f"{file}: parameter '{parameter['name']}': got {len(data)} bytes, wanted those of {dtype}{list(dims)}"
        )
    return data.copy().view(dtype).reshape(dims)


class _TableWriter:
    """FlatBuffers from front to back: a table comes before what it points to."""

    def __init__(self) -> None:
        self.out = bytearray(8)
        self.out[4:] = MAGIC

    def pad(self, step: int, before: int = 0) -> None:
        """Until what comes ``before`` bytes later lies at a multiple of ``step``."""
        self.out += bytes(-(len(self.out) + before) % step)

    def table(self, pointer: int, words: Sequence[int]) -> int:
        """A table of words of 4 bytes to which a place points; gives the place of its first word."""
        self.pad(4)
        start, count = len(self.out), len(words)
        self.out += struct.pack(f"<{count + 2}H", 4 + 2 * count, 4 + 4 * count, *range(4, 4 + 4 * count, 4))
        self.pad(4)
        struct.pack_into("<I", self.out, pointer, len(self.out) - pointer)
        self.out += struct.pack(f"<{count + 1}i", len(self.out) - start, *words)
        return len(self.out) - 4 * count

    def vector(self, pointer: int, count: int, data: bytes | memoryview) -> int:
        """Elements to which a place points, at a multiple of 8; gives the place of the first."""
        self.pad(8, 4)
        struct.pack_into("<I", self.out, pointer, len(self.out) - pointer)
        self.out += struct.pack("<I", count)
        self.out += data
        return len(self.out) - len(data)


def _written(versions: Sequence[int], parameters: Mapping[str, Array]) -> bytes:
    file = _TableWriter()
    root = file.table(0, [FORMAT, *versions, 0])
    pointers = file.vector(root + 12, len(parameters), bytes(4 * len(parameters)))
    for i, (name, array) in enumerate(parameters.items()):
        at = file.table(pointers + 4 * i, [0, 0, CODES[array.dtype], 0])
        text = name.encode()
        file.vector(at, len(text), text + b"\0")
        file.vector(at + 4, array.ndim, np.array(array.shape, "<i8").tobytes())
        file.vector(at + 12, array.nbytes, array.tobytes())
    return bytes(file.out)
