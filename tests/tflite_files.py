"""TFLite files made by hand: a FlatBuffer of nested dictionaries, by the reader's own table of the schema."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.converters.flat import FlatField
from bolt_numba.converters.tflite.schema import ENUMS, TABLES
from bolt_numba.types import Array

_CODES = {"b1": "<?", "i1": "<b", "u1": "<B", "i2": "<h", "u2": "<H", "i4": "<i", "u4": "<I", "i8": "<q", "u8": "<Q",
          "f4": "<f", "f8": "<d"}  # fmt: skip
_TYPES = {"f4": "FLOAT32", "f2": "FLOAT16", "i1": "INT8", "u1": "UINT8", "i2": "INT16", "i4": "INT32", "i8": "INT64",
          "b1": "BOOL", "c8": "COMPLEX64"}  # fmt: skip


class FlatWriter:
    """Writes tables whose fields are known."""

    def __init__(self, tables: Mapping[str, Sequence[FlatField | None]]) -> None:
        self.data, self.tables_ = bytearray(8), tables

    def to_bytes(self, kind: str, row: Mapping[str, Any], identifier: bytes = b"") -> bytes:
        """A file whose root is a table."""
        self.data[4 : 4 + len(identifier)] = identifier
        struct.pack_into("<I", self.data, 0, self.table(kind, row))
        return bytes(self.data)

    def place(self, size: int) -> int:
        """Room of so many bytes, at a multiple of 8."""
        self.data += bytes(-len(self.data) % 8)
        self.data += bytes(size)
        return len(self.data) - size

    def point(self, at: int, there: int) -> None:
        struct.pack_into("<I", self.data, at, there - at)

    def table(self, kind: str, row: Mapping[str, Any]) -> int:
        fields = self.tables_[kind]
        assert row.keys() <= {f.name for f in fields if f}, (kind, row.keys())
        head = self.place(4 + 2 * len(fields))
        at = self.place(8 + 8 * len(fields))
        struct.pack_into("<HH", self.data, head, 4 + 2 * len(fields), 8 + 8 * len(fields))
        struct.pack_into("<i", self.data, at, at - head)
        for i, field in enumerate(fields):
            if field is None or row.get(field.name) is None:
                continue
            for place in (i, i - 1) if field.kind.startswith("?") else (i,):
                struct.pack_into("<H", self.data, head + 4 + 2 * place, 8 + 8 * place)
            self.field(at + 8 + 8 * i, field, row[field.name])
        return at

    def field(self, at: int, field: FlatField, value: Any) -> None:
        if field.kind.startswith("?"):
            kind, inner = value
            self.data[at - 8] = ENUMS[field.kind[1:]].index(kind)
            self.point(at, self.table(kind, inner))
        elif field.kind == "str":
            self.point(at, self.vector(value.encode() + b"\0", len(value.encode())))
        elif field.kind not in _CODES:
            self.tables(at, field, value)
        elif field.vector:
            array = np.asarray(value, field.kind)
            self.point(at, self.vector(array.tobytes(), array.size))
        else:
            number = field.names.index(value) if field.names and isinstance(value, str) else value
            struct.pack_into(_CODES[field.kind], self.data, at, number)

    def tables(self, at: int, field: FlatField, value: Any) -> None:
        if not field.vector:
            self.point(at, self.table(field.kind, value))
            return
        there = self.vector(bytes(4 * len(value)), len(value))
        self.point(at, there)
        for i, row in enumerate(value):
            self.point(there + 4 + 4 * i, self.table(field.kind, row))

    def vector(self, data: bytes, count: int) -> int:
        at = self.place(8 + len(data)) + 4
        struct.pack_into("<I", self.data, at, count)
        self.data[at + 4 : at + 4 + len(data)] = data
        return at


class TfliteFile:
    """A model under construction: subgraphs of tensors and operators, which are numbered as they come."""

    def __init__(self) -> None:
        self.codes: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = [{}]
        self.subgraphs: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}

    def subgraph(self, name: str = "") -> int:
        self.subgraphs.append({"tensors": [], "inputs": [], "outputs": [], "operators": [], "name": name})
        return len(self.subgraphs) - 1

    def tensor(self, name: str, shape: Sequence[int] = (), kind: str = "FLOAT32", graph: int = -1, **more: Any) -> int:
        tensors = self.subgraphs[graph]["tensors"]
        tensors.append({"name": name, "shape": list(shape), "type": kind, **more})
        return len(tensors) - 1

    def constant(self, name: str, data: Array, **more: Any) -> int:
        self.buffers.append({"data": np.frombuffer(data.tobytes(), np.uint8)})
        kind = more.pop("kind", _TYPES.get(data.dtype.str[1:], ""))
        shape = more.pop("shape", data.shape)
        return self.tensor(name, shape, kind, buffer=len(self.buffers) - 1, **more)

    def texts(self, name: str, texts: Sequence[str]) -> int:
        parts = [t.encode() for t in texts]
        ends = np.cumsum([4 * (len(parts) + 2), *map(len, parts)]).astype("<i4")
        raw = np.array([len(parts)], "<i4").tobytes() + ends.tobytes() + b"".join(parts)
        return self.constant(name, np.frombuffer(raw, np.uint8), kind="STRING", shape=(len(parts),))

    def operator(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: Any = None, custom: bytes | None = None
    ) -> None:
        known = name in ENUMS["BuiltinOperator"]
        code = ENUMS["BuiltinOperator"].index(name if known else "CUSTOM")
        row = {"builtin_code": code, "deprecated_builtin_code": min(code, 127)}
        self.codes.append(row | ({} if known else {"custom_code": name}))
        made: dict[str, Any] = {"opcode_index": len(self.codes) - 1, "inputs": inputs, "outputs": outputs}
        if options is not None:
            second = options[0] in ENUMS["BuiltinOptions2"]
            made["builtin_options2" if second else "builtin_options"] = options
        if custom is not None:
            made["custom_options"] = np.frombuffer(custom, np.uint8)
        self.subgraphs[-1]["operators"].append(made)

    def ends(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.subgraphs[-1].update(inputs=list(inputs), outputs=list(outputs))

    def signature(self, key: str, graph: int, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        row = {"signature_key": key, "subgraph_index": graph}
        row |= {
            kind: [{"name": name, "tensor_index": number} for name, number in found.items()]
            for kind, found in (("inputs", inputs), ("outputs", outputs))
        }
        self.more.setdefault("signature_defs", []).append(row)

    def to_bytes(self) -> bytes:
        rows = {"version": 3, "operator_codes": self.codes, "subgraphs": self.subgraphs, "buffers": self.buffers}
        return FlatWriter(TABLES).to_bytes("Model", {**rows, **self.more}, b"TFL3")
