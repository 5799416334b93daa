"""The table of ONNX's readers: (domain, operator, opset) -> function that adds the nodes of one ONNX operator.

A reader that returns NotImplemented leaves the node to the operator's function body.
"""

from __future__ import annotations

import functools
from pathlib import Path

from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.readers import Readers

_A = onnx.AttributeProto
KINDS: dict[str, int] = {
    "int": _A.INT, "bool": _A.INT, "float": _A.FLOAT, "str": _A.STRING,
    "tuple[int, ...]": _A.INTS, "tuple[float, ...]": _A.FLOATS, "tuple[str, ...]": _A.STRINGS,
    "Ints": _A.INTS, "Floats": _A.FLOATS, "Texts": _A.STRINGS,
    "ManyInts": _A.INTS, "ManyFloats": _A.FLOATS,
    "AnyDType": _A.INT, "Array": _A.TENSOR, "onnx.GraphProto": _A.GRAPH, "onnx.TypeProto": _A.TYPE_PROTO,
}  # fmt: skip
"""Attribute type by annotation; `None` beside it says only that it may be missing.  Asking onnx makes all schemas."""

_PACKAGE = __name__.rpartition(".")[0]
ONNX = Readers("onnx", [f"{_PACKAGE}.{p}" for p in ("tables", "microsoft", "ml")], Path(__file__).parents[1], KINDS)
READERS = ONNX.table
reader, add_reader, find_reader, load_readers = ONNX.reader, ONNX.add, ONNX.find, ONNX.load_all
add_as_is = ONNX.add_as_is
microsoft = functools.partial(reader, domain="com.microsoft")

NOT_READ = {"GenerateProposals": "Bolt alone has this form of it, on its GPUs"}
"""Operators of Bolt in the default domain that are left out on purpose, and why."""
