"""Everything that is unsupported in an ONNX file; see `converters.survey`."""

from __future__ import annotations

import contextlib

import onnx

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import TensorType
from bolt_numba.converters.bounded import Folders
from bolt_numba.converters.onnx.reading.graph import FunctionScope, GraphReader, unsupported_nodes
from bolt_numba.converters.onnx.reading.registry import load_readers
from bolt_numba.converters.onnx.structure import functions_of, opsets_of
from bolt_numba.converters.onnx.types import type_of_proto
from bolt_numba.converters.survey import Survey


def unsupported_onnx(data: bytes, folders: Folders = (), name: str = "model") -> list[str]:
    """A line for each node that has no meaning here, or is used in a way that has none; see `read_onnx`.

    Raises InvalidModelError for what is no valid model.
    """
    model = onnx.ModelProto.FromString(data)
    load_readers()
    opsets = opsets_of(model.opset_import, name) or {"": 1}
    functions = functions_of(model, name)
    reader = OnnxSurvey(name, folders, functions)
    reader.types = _declared(model)
    reader.found = unsupported_nodes(model.graph.node, opsets, functions)
    return reader.lines(lambda: reader.read(model.graph, opsets, model.graph.name or name))


def _declared(model: onnx.ModelProto) -> dict[str, TensorType]:
    """Types that the file itself, or onnx, tells of the results of nodes."""
    with contextlib.suppress(Exception):  # large models, unknown operators: then what the file says has to do
        model = onnx.shape_inference.infer_shapes(model)
    made: dict[str, TensorType] = {}
    for info in (*model.graph.value_info, *model.graph.output):
        try:
            made[info.name] = type_of_proto(info.type, info.name)
        except BoltError:
            continue
    return made


class OnnxSurvey(Survey[FunctionScope], GraphReader):
    """Reads a whole model.  types: what is declared of the values of the outermost graph."""

    types: dict[str, TensorType]

    def declared(self, name: str, scope: FunctionScope) -> TensorType:
        unknown = super().declared(name, scope)
        return unknown if scope.prefix else self.types.get(name, unknown)
