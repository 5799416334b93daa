"""The file format of compiled graphs: a head, the program as JSON, constants, and a CRC over all."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np

from simnpu_sdk.errors import BlobError, VersionError
from simnpu_sdk.graph import DTYPES, Graph, Op, Tensor

MAGIC = b"SIMN"
FORMAT = 3
_HEAD = struct.Struct("<4sHHIQ")
"""Magic, version of the format, nothing, bytes of the program, bytes of the constants."""


def pack(graph: Graph, chip: str, sdk_version: str) -> bytes:
    """A checked graph as bytes."""
    constants, tensors = [], []
    for t in graph.tensors:
        tensors.append([t.dtype, t.shape, t.scale, t.zero_point, t.data is not None])
        if t.data is not None:
            constants.append(np.ascontiguousarray(t.data).tobytes())
    program = {
        "chip": chip, "sdk": sdk_version, "tensors": tensors, "inputs": graph.inputs, "outputs": graph.outputs,
        "ops": [[o.kind, o.inputs, o.outputs, o.attributes] for o in graph.ops],
    }  # fmt: skip
    text, data = json.dumps(program).encode(), b"".join(constants)
    body = _HEAD.pack(MAGIC, FORMAT, 0, len(text), len(data)) + text + data
    return body + struct.pack("<I", zlib.crc32(body))


def unpack(blob: bytes, chip: str, sdk_version: str) -> Graph:
    """The graph in a blob for this chip and version.  Raises BlobError and VersionError."""
    if len(blob) < _HEAD.size + 4 or blob[:4] != MAGIC:
        raise BlobError("blob: got other bytes, wanted what the compiler makes")
    _, format_, _, text, data = _HEAD.unpack_from(blob)
    if format_ != FORMAT:
        raise VersionError(f"blob: got format {format_}, wanted {FORMAT}")
    if len(blob) != _HEAD.size + text + data + 4 or zlib.crc32(blob[:-4]) != struct.unpack("<I", blob[-4:])[0]:
        raise BlobError("blob: its checksum is wrong")
    program = json.loads(blob[_HEAD.size : _HEAD.size + text])
    if (program["chip"], program["sdk"]) != (chip, sdk_version):
        raise VersionError(f"blob: got {program['chip']} with SDK {program['sdk']}, wanted {chip} with {sdk_version}")
    graph, at = Graph(), _HEAD.size + text
    for dtype, shape, scale, zero_point, is_constant in program["tensors"]:
        made = Tensor(dtype, tuple(shape), None, tuple(scale), zero_point)
        if is_constant:
            constant = np.frombuffer(blob, DTYPES[dtype], made.nbytes // DTYPES[dtype].itemsize, at).reshape(shape)
            made, at = Tensor(dtype, made.shape, constant, made.scale, zero_point), at + made.nbytes
        graph.tensors.append(made)
    graph.ops = [Op(kind, tuple(ins), tuple(outs), attributes) for kind, ins, outs, attributes in program["ops"]]
    graph.identify_io(program["inputs"], program["outputs"])
    return graph
