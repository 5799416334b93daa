"""The ``.bolt`` model file: one file, weights memory-mapped, no pickle.  It stores graphs, not plans or kernels.

Layout, little-endian, version 2:

======  ====================================================================================================
offset  content
======  ====================================================================================================
0       header, 64 bytes: magic, version, crc32 of the header, offset and size of the text, offset and size
        of the data, 16 bytes of blake2b of the text
64      text: JSON in UTF-8 (`ir.encode`): the signatures, a graph for each, and the table of tensors that all graphs
        share: dtype, shape, offset, bytes, crc32; of integers of 4 bits two in a byte, the lower half first
...     data: tensors, each at a multiple of 64 bytes
======  ====================================================================================================

Native programs may follow (`ir.trailer`), which this reader passes over.

A graph that the passes have optimised may have ``packed`` beside it: weights as the kernels of one machine want them
(`ir.packed`), which are tensors, too.  They serve where they were made and are passed over elsewhere.

The text is checked against its digest and the spec, weights against their crc32 when the file is loaded
(``check_weights=False`` leaves their pages untouched).  Whatever is wrong with a file is an InvalidModelError.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import BoltError, DTypeError, InvalidModelError
from bolt_numba.base.files.mapped import aligned_copy, check_intact, drop_pages, map_file, unmapped
from bolt_numba.base.files.regular import replaced
from bolt_numba.base.types import STRING, Array, dtype_from_name
from bolt_numba.ir import MAGIC
from bolt_numba.ir.decode import read_graph
from bolt_numba.ir.encode import MAX_FILL, NIBBLES, TensorTable, graph_json, one_in_a_byte
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import MAIN, Model
from bolt_numba.ir.packed import inner_mark, packed_json, places_of, read_packed, sealed, secret
from bolt_numba.ir.trailer import programs_behind
from bolt_numba.ops.dtypes import plain_bools

VERSION = 2
ALIGN = 64
_HEADER = struct.Struct("<8sIIQQQQ16s")

Document: TypeAlias = dict[str, Any]
Source: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes]"


def _with_signatures(document: Document) -> Document:
    """Version 2 has a graph for each signature, and packed weights of each."""
    made = {k: v for k, v in document.items() if k not in ("graph", "packed")}
    made |= {"signatures": [MAIN], "graphs": [document.get("graph")]}
    return made | ({"packed": {"graphs": [document["packed"]]}} if "packed" in document else {})


UPGRADES: dict[int, Callable[[Document], Document]] = {1: _with_signatures}
"""``UPGRADES[v]`` turns the document of version v into one of version v + 1; a file of any version that leads to
`VERSION` is read."""


def is_bolt(start: bytes) -> bool:
    """Whether a file that begins with these bytes claims to be a ``.bolt`` file."""
    return start.startswith(MAGIC)


def save(model: Graph | Model, path: str | os.PathLike[str]) -> None:
    """Write a model, or a graph alone, to a file that appears complete or not at all (temporary file, then rename)."""
    if not isinstance(model, (Graph, Model)):
        raise DTypeError(f"model: got a {type(model).__name__}, wanted a Graph or a Model")
    with replaced(path) as file:
        for chunk in chunks(model):
            file.write(chunk)


def to_bytes(model: Graph | Model) -> bytes:
    """The content that `save` would write."""
    return b"".join(bytes(chunk) for chunk in chunks(model))


def load_bolt(source: Source, *, check_weights: bool = True) -> Graph:
    """The first graph of a file, the only one of most; see `load_model`."""
    return load_model(source, check_weights=check_weights).graph()


def load_model(source: Source, *, check_weights: bool = True) -> Model:
    """Read a model from a path (its weights stay mapped to the file and are read-only), bytes or a file object."""
    name, data = _content(source)
    try:
        return _parse(data, check_weights)
    except InvalidModelError as error:
        raise InvalidModelError(f"{name}: {error}") from error
    except BoltError as error:
        raise InvalidModelError(f"{name}: holds an operator that its own inputs do not fit: {error}") from error
    except Exception as error:  # whatever else a file brings about, it is the file that is wrong
        raise InvalidModelError(f"{name}: is hostile or damaged: {type(error).__name__}: {error}") from error


def chunks(model: Graph | Model) -> Iterator[bytes | memoryview]:
    """The bytes of a file, piece by piece: what is large is not copied."""
    found = model.graphs if isinstance(model, Model) else {MAIN: model}
    graphs, table = list(found.values()), TensorTable(ALIGN)
    for graph in graphs:
        check_intact([*graph.weights(), *(graph.packed.rows.values() if graph.packed else ())])
    document: Document = {"producer": "bolt-numba", "signatures": list(found)}
    document |= {"graphs": [graph_json(graph, table) for graph in graphs], "tensors": table.rows}
    is_packed = any(graph.packed is not None for graph in graphs)
    if is_packed:
        document["packed"] = packed_json([graph.packed for graph in graphs], document["graphs"], table)
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    if is_packed:
        text = sealed(text)
    start = _aligned(_HEADER.size + len(text))
    sizes = (_HEADER.size, len(text), start, table.nbytes)
    digest = hashlib.blake2b(text, digest_size=16).digest()
    bare = _HEADER.pack(MAGIC, VERSION, 0, *sizes, digest)
    yield _HEADER.pack(MAGIC, VERSION, zlib.crc32(bare), *sizes, digest)
    yield text
    yield bytes(start - _HEADER.size - len(text))
    at = 0
    for offset, array in table.arrays:
        yield bytes(offset - at)
        yield array.data
        at = offset + array.nbytes


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


def _content(source: Source) -> tuple[str, Array]:
    """Name for messages, and all bytes, 64-byte aligned."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return "model", aligned_copy(source)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            if not path.stat().st_size:
                return str(path), np.empty(0, np.uint8)
            mapped = map_file(path)
        except OSError as error:
            raise InvalidModelError(f"{path}: cannot be read: {error.strerror}") from error
        return str(path), np.frombuffer(mapped, np.uint8)
    return str(getattr(source, "name", "model")), aligned_copy(source.read())


def _parse(data: Array, check_weights: bool) -> Model:
    version, text, weights = _sections(data)
    document = _document(version, text)
    names, graphs = _signatures(document)
    places, later, inner = places_of(document, text)
    rows = _list(document, "tensors")
    tensors = [_tensor(i, row, weights, check_weights and i not in later) for i, row in enumerate(rows)]
    key = secret() if inner else b""
    for i, mark in inner.items():
        if inner_mark(weights[rows[i]["offset"] :][: rows[i]["bytes"]].data, key) != mark:
            raise InvalidModelError(f"tensor {i}: its seal is wrong: the file was changed since it was packed")
    made = Model({name: read_graph(found, tensors) for name, found in zip(names, graphs, strict=True)})
    for graph, place in zip(made.graphs.values(), places, strict=True):
        graph.packed = read_packed(place, tensors)
    return made


def _sections(data: Array) -> tuple[int, bytes, Array]:
    """Version, graph text and data section of a file whose header is right."""
    if len(data) < _HEADER.size or not is_bolt(data[:8].tobytes()):
        raise InvalidModelError(f"header: got {len(data)} bytes that do not begin as a .bolt file, wanted {MAGIC!r}")
    fields = _HEADER.unpack(data[: _HEADER.size].tobytes())
    magic, version, crc, text_at, text_size, data_at, data_size, digest = fields
    known = sorted({VERSION, *UPGRADES})
    if version not in known:
        raise InvalidModelError(f"version: got {version}, wanted one of {known}: written by a newer bolt-numba?")
    if zlib.crc32(_HEADER.pack(magic, version, 0, *fields[3:])) != crc:
        raise InvalidModelError("header: checksum is wrong: the file is damaged")
    if len(data) < data_at + data_size:
        raise InvalidModelError(f"header: got {len(data)} bytes, wanted {data_at + data_size}: the file is cut off")
    if text_at != _HEADER.size or text_at + text_size > data_at or data_at % ALIGN:
        raise InvalidModelError(f"header: sections do not fit: got {fields[3:7]} in a file of {len(data)} bytes")
    text = data[text_at : text_at + text_size].tobytes()
    if hashlib.blake2b(text, digest_size=16).digest() != digest:
        raise InvalidModelError("graph: checksum is wrong: the file is damaged")
    if data_at + data_size != len(data):
        programs_behind(data, data_at + data_size)
    return version, text, data[data_at : data_at + data_size]


def _document(version: int, text: bytes) -> Document:
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise InvalidModelError(f"graph: is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidModelError(f"graph: got a {type(document).__name__}, wanted an object")
    made: Document = document
    for step in range(version, VERSION):
        made = UPGRADES[step](made)
    return made


def _signatures(document: Document) -> tuple[list[str], list[Any]]:
    """Names of the graphs, and what is said of each."""
    names, graphs = _list(document, "signatures"), _list(document, "graphs")
    if not names or not all(isinstance(n, str) for n in names) or not len({*names}) == len(names) == len(graphs):
        raise InvalidModelError(f"graph: signatures: got {names} for {len(graphs)} graphs, wanted a name for each")
    return names, graphs


def _list(document: Document, key: str) -> list[Any]:
    found = document.get(key)
    if not isinstance(found, list):
        raise InvalidModelError(f"graph: {key}: got a {type(found).__name__}, wanted a list")
    return found


def _tensor(index: int, row: Any, data: Array, check: bool) -> Array:
    what = f"tensor {index}"
    shape = row.get("shape") if isinstance(row, dict) else None
    if not isinstance(shape, list) or len(shape) > 64 or any(type(d) is not int or d < 0 for d in shape):
        raise InvalidModelError(f"{what}: shape: got {shape}, wanted sizes")
    if "strings" in row:
        return _strings(what, row["strings"], shape)
    try:
        dtype = dtype_from_name(row.get("dtype"))
    except (KeyError, TypeError) as error:
        raise InvalidModelError(f"{what}: dtype: got {row.get('dtype')!r}, wanted a known one") from error
    at, size, crc = (row.get(key) for key in ("offset", "bytes", "crc32"))
    count = 1
    for d in shape:
        count *= d
    fill = row.get("fill") is True
    if fill and count * dtype.itemsize <= MAX_FILL:
        count = 1
    fits = type(at) is int and type(size) is int and at >= 0 and at % ALIGN == 0 and at + size <= len(data)
    halves = fits and dtype.name in NIBBLES and size == -(-count // 2)  # older files have one in a byte
    if not fits or (count * dtype.itemsize != size and not halves) or dtype == STRING:
        raise InvalidModelError(f"{what}: got offset {at} and {size} bytes for {row.get('dtype')}{shape}")
    raw = data[at : at + size]
    if check:
        if zlib.crc32(raw.data) != crc:
            raise InvalidModelError(f"{what}: checksum is wrong: the file is damaged")
        drop_pages(raw)
    raw = one_in_a_byte(raw, count, dtype).view(np.uint8) if halves else unmapped(raw)
    try:
        if fill:
            return np.broadcast_to(plain_bools(raw.view(dtype)), shape)
        return plain_bools(raw.view(dtype)).reshape(shape) if size else np.empty(shape, dtype)
    except ValueError as error:
        raise InvalidModelError(f"{what}: shape: got {shape}: {error}") from error


def _strings(what: str, texts: Any, shape: list[int]) -> Array:
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts) or len(texts) != np.prod(shape):
        raise InvalidModelError(f"{what}: strings: wanted one text for each element of {shape}")
    made = np.empty(len(texts), STRING)
    made[:] = texts
    return made.reshape(shape)


__all__ = ["MAGIC", "UPGRADES", "VERSION", "is_bolt", "load_bolt", "load_model", "save", "to_bytes"]
