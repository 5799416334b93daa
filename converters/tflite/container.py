"""What a TFLite file holds: its subgraphs, operators and tensors, each checked when it is asked for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.files.mapped import unmapped
from bolt_numba.base.records import record
from bolt_numba.base.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    AnyDType,
    Array,
)
from bolt_numba.converters.bounded import (
    Folders,
    array_in_file,
    array_of_bytes,
    count_of,
    file_below,
    nbytes_of,
    text_of,
)
from bolt_numba.converters.flat import FlatBuffer, Table
from bolt_numba.converters.tflite.schema import ENUMS, TABLES
from bolt_numba.converters.tflite.sparse import dense_of
from bolt_numba.ops.arrays.quantize import limits

DTYPES: dict[str, AnyDType] = {
    "FLOAT32": F32, "FLOAT16": F16, "FLOAT64": F64, "BFLOAT16": BF16, "BOOL": BOOL, "STRING": STRING,
    "INT8": I8, "INT16": I16, "INT32": I32, "INT64": I64, "UINT8": U8, "UINT16": U16, "UINT32": U32, "UINT64": U64,
} | {
    key: np.dtype(getattr(ml_dtypes, name))
    for key, name in {"INT4": "int4", "UINT4": "uint4", "INT2": "int2", "FLOAT8_E4M3FN": "float8_e4m3fn",
                      "FLOAT8_E5M2": "float8_e5m2"}.items()
    if hasattr(ml_dtypes, name)
}  # fmt: skip
"""Dtypes by the schema's names.  A resource has none, nor have complex numbers, which are two values."""
COMPLEX = "COMPLEX64"
RESOURCES = ("RESOURCE", "VARIANT")
MAX_STRINGS = 1 << 24
"""Texts of one tensor."""


@record(frozen=True)
class Quantisation:
    """What stored numbers stand for: ``scale * (stored - zero_point)``.

    scale: f32 [] or [d along axis], or blocks of ``block`` numbers along it.  zero_point: i64 of the same shape.
    """

    scale: Array
    zero_point: Array
    axis: int = 0
    block: int = 0

    def is_same(self, other: Quantisation) -> bool:
        """Whether equal numbers stand for equal ones, whatever the axis."""
        return np.array_equal(self.scale, other.scale) and np.array_equal(self.zero_point, other.zero_point)


class Container:
    """A model file.

    data: all its bytes, of which constants stay views; file: its name for messages; folders: where files lie that it
    names, None where it is no file itself.
    """

    def __init__(self, data: bytes | memoryview, file: str, folders: Folders = ()) -> None:
        self.folders = folders
        self.flat = FlatBuffer(data, TABLES, ENUMS, file)
        self.data, self.file = memoryview(data), file
        self.model = self.flat.root("Model")
        self.subgraphs: list[Table] = self.model["subgraphs"] or []
        self._buffers: list[Table] = self.model["buffers"] or []
        self._arrays: dict[Any, Array] = {}
        if not self.subgraphs:
            raise self.invalid("subgraphs", "none", "at least one")

    def invalid(self, what: str, got: object, wanted: object) -> InvalidModelError:
        return InvalidModelError(f"{self.file}: {what}: got {got}, wanted {wanted}")

    def at(self, rows: Sequence[Any] | None, index: int, what: str) -> Any:
        """The row of an index that the file gives."""
        count = 0 if rows is None else len(rows)
        if rows is None or not 0 <= index < count:
            raise self.invalid(what, index, f"one of {count}")
        return rows[index]

    def code_of(self, operator: Table) -> tuple[str, str, int]:
        """Domain, name and version of an operator: the domain is "" or "custom"."""
        row = self.at(self.model["operator_codes"], operator["opcode_index"], "operator code")
        code = max(row["builtin_code"], row["deprecated_builtin_code"])  # an older file has only the second
        names = ENUMS["BuiltinOperator"]
        name = names[code] if 0 <= code < len(names) else str(code)
        if name == "CUSTOM":
            return "custom", row["custom_code"] or "", row["version"]
        return "", name, row["version"]

    def options_of(self, operator: Table) -> tuple[str, Table] | None:
        """Kind and fields of an operator's options."""
        found: tuple[str, Table] | None = operator["builtin_options"] or operator["builtin_options2"]
        return found

    def custom_options(self, operator: Table) -> bytes:
        """Options of a custom operator, in the file or behind it."""
        start, size = operator["large_custom_options_offset"], operator["large_custom_options_size"]
        if start > 1:
            return bytes(self._behind(start, size, "custom options"))
        found = operator["custom_options"]
        return b"" if found is None else found.tobytes()

    def _behind(self, start: int, size: int, what: str) -> Array:
        if start + size > len(self.data):
            raise self.invalid(what, f"{size} bytes from {start}", f"them within {len(self.data)}")
        return self.flat.bytes[start : start + size]

    def buffer(self, index: int) -> Array | None:
        """Bytes of a buffer, None where it is empty."""
        row = self.at(self._buffers, index, "buffer")
        if row["offset"] > 1:
            return self._behind(row["offset"], row["size"], f"buffer {index}")
        data: Array | None = row["data"]
        return data if data is not None and len(data) else None

    def names_of(self, subgraph: Table) -> list[str]:
        """A name for each tensor: its own, or one with its number where that is missing or taken."""
        taken: set[str] = set()
        names = []
        for i, tensor in enumerate(subgraph["tensors"] or ()):
            name = tensor["name"] or ""
            name = f"{name or 'tensor'}#{i}" if not name or name in taken else name
            while name in taken:
                name += "#"
            taken.add(name)
            names.append(name)
        return names

    def dtype_of(self, tensor: Table) -> AnyDType:
        """Dtype of a tensor; raises UnsupportedOpError for one without arrays."""
        kind = tensor["type"]
        if kind not in DTYPES:
            raise UnsupportedOpError(self.file, [f"tensor '{tensor['name']}' of type {kind}"])
        return DTYPES[kind]

    def shape_of(self, tensor: Table) -> tuple[int, ...]:
        """The shape of a tensor; -1 where a size is left open."""
        signature, shape = tensor["shape_signature"], tensor["shape"]
        if signature is not None and len(signature):
            if shape is not None and len(shape) != len(signature):
                raise self.invalid(f"shape_signature of '{tensor['name']}'", signature.tolist(), f"{len(shape)} sizes")
            shape = signature
        sizes = () if shape is None else tuple(map(int, shape))
        if len(sizes) > 32 or any(size < -1 for size in sizes):
            raise self.invalid(f"shape of '{tensor['name']}'", sizes[:40], "at most 32 sizes, none negative")
        return sizes

    def array_of(self, tensor: Table) -> Array | None:
        """What a constant tensor holds; None for one that is computed.  Tensors of one buffer share an array."""
        data = self.buffer(tensor["buffer"]) if not tensor["external_buffer"] else self._external(tensor)
        shape = () if tensor["shape"] is None else tuple(map(int, tensor["shape"]))
        if data is None:
            return np.empty(shape, self.dtype_of(tensor)) if 0 in shape and tensor["type"] in DTYPES else None
        key = (tensor["buffer"], tensor["external_buffer"], tensor["type"], shape)
        if tensor["sparsity"] is not None:
            return self._dense(tensor, data, shape)
        if key not in self._arrays:
            self._arrays[key] = self._array(tensor, data, shape)
        return self._arrays[key]

    def _external(self, tensor: Table) -> Array:
        """Bytes of a tensor in a file beside the model, which a group of buffers names."""
        what = f"{self.file}: external data of '{tensor['name']}'"
        rows: list[Table] = self.model["external_buffers"] or []
        row = next((row for row in rows if row["id"] == tensor["external_buffer"]), None)
        if row is None:
            raise InvalidModelError(f"{what}: got {tensor['external_buffer']}, wanted one of {[r['id'] for r in rows]}")
        if row["packing"]:
            raise UnsupportedOpError(self.file, [f"tensor '{tensor['name']}' packed as {row['packing']}"])
        group = self.at(self.model["external_buffer_groups"], row["group"], "group of external buffers")
        path = file_below(self.folders, group["name"] or "", what)
        return array_in_file(path, row["offset"], row["length"], U8, (row["length"],), what)

    def _array(self, tensor: Table, data: Array, shape: tuple[int, ...]) -> Array:
        what = f"{self.file}: tensor '{tensor['name']}'"
        is_complex = tensor["type"] == COMPLEX
        count, dtype = count_of(shape, what), np.dtype(np.complex64) if is_complex else self.dtype_of(tensor)
        if dtype == STRING:
            return self._texts(data, shape, count, what)
        return array_of_bytes(unmapped(data[: nbytes_of(dtype, shape)]), dtype, shape, what)

    def _dense(self, tensor: Table, data: Array, shape: tuple[int, ...]) -> Array:
        what = f"{self.file}: sparsity of tensor '{tensor['name']}'"
        dtype = self.dtype_of(tensor)
        bits = nbytes_of(dtype, (8,))
        values = array_of_bytes(data, dtype, (len(data) * 8 // bits,), what)
        return dense_of(tensor["sparsity"], values, shape, what)

    def _texts(self, data: Array, shape: tuple[int, ...], count: int, what: str) -> Array:
        """Texts: how many, where each begins and the last ends, their bytes."""
        head = np.frombuffer(data[: len(data) // 4 * 4].tobytes(), "<i4")
        number = int(head[0]) if len(head) else 0
        ends = head[1 : number + 2]
        if number != count or number > MAX_STRINGS or len(ends) != count + 1:
            raise InvalidModelError(f"{what}: texts: got {number}, wanted {count}")
        if np.any(np.diff(ends) < 0) or ends[0] < 0 or ends[-1] > len(data):
            raise InvalidModelError(f"{what}: texts: got places {ends[:8].tolist()}, wanted them within {len(data)}")
        made = np.empty(count, dtype=object)
        made[:] = [text_of(data[a:b].tobytes(), what) for a, b in itertools.pairwise(ends)]
        return made.reshape(shape)

    def quantisation_of(self, tensor: Table, tensors: Sequence[Table]) -> Quantisation | None:
        """What the numbers of a tensor stand for, None where for themselves."""
        row = tensor["quantization"]
        if row is None or self.dtype_of_kind(tensor) not in "iuV":
            return None
        what = f"{self.file}: quantization of '{tensor['name']}'"
        if row["details"] is not None:
            return self._blockwise(row["details"], tensor, tensors, what)
        scale = row["scale"]
        if scale is None or not len(scale):
            return None
        zero = row["zero_point"]
        zero = np.zeros(len(scale), np.int64) if zero is None or not len(zero) else zero.astype(np.int64)
        if len(zero) != len(scale):
            zero = np.resize(zero, len(scale)) if len(zero) == 1 else zero
        rank = len(self.shape_of(tensor))
        axis = row["quantized_dimension"]
        if len(zero) != len(scale) or not np.all(np.isfinite(scale)):
            raise InvalidModelError(f"{what}: got {len(scale)} scales, {len(zero)} zero points, wanted finite pairs")
        self._check_zero(zero, tensor, what)
        if len(scale) == 1:
            return Quantisation(scale.astype(F32).reshape(()), zero.reshape(()))
        if not 0 <= axis < rank:
            raise InvalidModelError(f"{what}: axis: got {axis}, wanted 0 to {rank - 1}")
        return Quantisation(scale.astype(F32), zero, axis)

    def dtype_of_kind(self, tensor: Table) -> str:
        """Kind of a tensor's dtype, as NumPy names it; "" for what has none."""
        dtype = DTYPES.get(tensor["type"])
        return "" if dtype is None else "i" if "int" in dtype.name else dtype.kind

    def _check_zero(self, zero: Array, tensor: Table, what: str) -> None:
        low, high = limits(self.dtype_of(tensor))
        if np.any(zero < low) or np.any(zero > high):
            raise InvalidModelError(f"{what}: zero points: got {zero[:8].tolist()}, wanted {tensor['type']}")

    def _blockwise(
        self, details: tuple[str, Table], tensor: Table, tensors: Sequence[Table], what: str
    ) -> Quantisation:
        """One scale for each block along the last axis; scales and zero points are tensors."""
        kind, row = details
        if kind != "BlockwiseQuantization":
            raise UnsupportedOpError(self.file, [f"{kind} of tensor '{tensor['name']}'"])
        shape, block = self.shape_of(tensor), row["block_size"]
        scale = self.array_of(self.at(tensors, row["scales"], f"{what}: scales"))
        if not shape or block < 1 or shape[-1] % block or scale is None:
            raise InvalidModelError(f"{what}: block_size: got {block} for {shape}, wanted a part of the last size")
        blocks = (*shape[:-1], shape[-1] // block)
        if scale.size != math.prod(blocks) or not np.all(np.isfinite(scale.astype(F32))):
            raise InvalidModelError(f"{what}: scales: got {scale.shape}, wanted finite ones for {blocks}")
        zero = np.zeros(blocks, np.int64)
        if row["zero_points"] > 0:
            found = self.array_of(self.at(tensors, row["zero_points"], f"{what}: zero points"))
            zero = zero if found is None else found.astype(np.int64).reshape(blocks)
        self._check_zero(zero.reshape(-1), tensor, what)
        return Quantisation(scale.astype(F32).reshape(blocks), zero, len(shape) - 1, block)
