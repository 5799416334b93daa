"""Everything that is unsupported in an ONNX file, not only what reading stops at."""

from __future__ import annotations

import contextlib
from pathlib import Path

import onnx

from bolt_numba.converters.onnx.reading.graph import GraphReader, Scope, describe, unsupported_nodes
from bolt_numba.converters.onnx.reading.registry import load_readers
from bolt_numba.converters.onnx.structure import functions_of, opsets_of
from bolt_numba.converters.onnx.tensor import type_of_proto
from bolt_numba.errors import BoltError, InvalidModelError, UnsupportedOpError
from bolt_numba.ir.graph import Value
from bolt_numba.types import F32, TensorType


def unsupported_in(model: onnx.ModelProto, folder: Path | None = None, name: str = "model") -> list[str]:
    """A line for each node that has no meaning here, or is used in a way that has none; see `read_model`.

    Raises InvalidModelError for what is no valid model.
    """
    load_readers()
    opsets = opsets_of(model.opset_import, name) or {"": 1}
    functions = functions_of(model, name)
    found = unsupported_nodes(model.graph.node, opsets, functions)
    reader = Survey(name, folder, functions)
    reader.declared = _declared(model)
    try:
        reader.read(model.graph, opsets, model.graph.name or name)
    except InvalidModelError:
        if not found and not reader.found:
            raise
    return list(dict.fromkeys([*found, *reader.found]))


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


class Survey(GraphReader):
    """Reads on behind what is unsupported, with the type that the file declares for its results.

    tainted: values that depend on such results; what fails there is no finding.
    """

    declared: dict[str, TensorType]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.found: list[str] = []
        self.tainted: dict[int, Value] = {}

    def _node(self, node: onnx.NodeProto, scope: Scope, what: str) -> None:
        tainted = any(id(scope.values.get(name)) in self.tainted for name in node.input if name)
        try:
            super()._node(node, scope, what)
        except UnsupportedOpError as error:
            if not tainted:
                line = describe(node, scope.opsets)
                self.found += [item if error.source == self.file else f"{line}: {item}" for item in error.items]
            self._stand_in(node, scope)
        except Exception:
            if not tainted:
                raise
            self._stand_in(node, scope)
        else:
            if tainted:
                self._taint(node, scope)

    def _stand_in(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Values for the results of a node that could not be read."""
        for name in node.output:
            if name:
                t = TensorType(F32, None) if scope.prefix else self.declared.get(name, TensorType(F32, None))
                scope.values[name] = Value(scope.graph.unique_name(scope.prefix + name), t)
        self._taint(node, scope)

    def _taint(self, node: onnx.NodeProto, scope: Scope) -> None:
        for name in node.output:
            value = scope.values.get(name)
            if value is not None:
                self.tainted[id(value)] = value
