"""From TFLite's operators to a `Graph`: operands by the numbers of tensors, real or stored, results as declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.converters import nodes
from bolt_numba.converters.bounded import Measure
from bolt_numba.converters.flat import Table
from bolt_numba.converters.nodes import ForeignNode, NodeReader
from bolt_numba.converters.readers import Reader
from bolt_numba.converters.scope import Scope
from bolt_numba.converters.tflite.container import RESOURCES, Container, Quantisation
from bolt_numba.converters.tflite.reading.quantised import dequantised, quantised
from bolt_numba.converters.tflite.reading.registry import CUSTOM, TFLITE, cast
from bolt_numba.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.types import Array, Sym, TensorType

IGNORED = frozenset(
    {"asymmetric_quantize_inputs", "quantized_bias_type", "pot_scale_int16", "validate_indices", "weights_format"}
)
"""Options that say how LiteRT computes, not what."""


class SubgraphScope(Scope):
    """The tensors of one subgraph.  real: dequantised values by the id of the stored ones."""

    def __init__(self, graph: Graph, container: Container, table: Table, **around: Any) -> None:
        super().__init__(graph, **around)
        self.container, self.table = container, table
        self.tensors: list[Table] = table["tensors"] or []
        self.names = container.names_of(table)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.real: dict[int, Value] = {}

    def tensor(self, index: int) -> Table:
        found: Table = self.container.at(self.tensors, index, "tensor")
        return found

    def name(self, index: int) -> str:
        """The name of a tensor by its number; "" for -1, an optional operand that is left out."""
        return "" if index == -1 else str(self.container.at(self.names, index, "tensor"))

    def quantisation(self, name: str) -> Quantisation | None:
        """What the numbers of a tensor stand for."""
        return self.container.quantisation_of(self.tensors[self.number[name]], self.tensors) if name else None


class TfliteBuilder(nodes.ForeignBuilder):
    """The builder a reader gets, which also knows the tensors of its node as the file declares them.

    quantisations, result_quantisations: of operands and results, None where there is none.  stored: the operands as
    they are stored.
    """

    def __init__(
        self, owner: TfliteReader, scope: SubgraphScope, node: ForeignNode, inputs: list[Value | None], what: str
    ) -> None:
        super().__init__(scope.graph, node, what, version=node.raw["version"], prefix=scope.prefix)
        self._owner, self._scope, self._node = owner, scope, node
        self.stored = inputs
        self.quantisations = [scope.quantisation(name) for name in node.inputs]
        self.result_quantisations = [scope.quantisation(name) for name in node.outputs]

    def real(self, index: int) -> Any:
        """An operand as real numbers, dequantised once for all that read it."""
        x, q = self.stored[index], self.quantisations[index]
        if x is None or q is None or not _is_quantised(x):
            return x
        if id(x) not in self._scope.real:
            self._scope.real[id(x)] = dequantised(self, x, q)
        return self._scope.real[id(x)]

    def declared(self, index: int = 0) -> TensorType:
        """Dtype and shape of a result, as the file declares them: hints, and the target of conversions."""
        return self._owner.type_of(self._scope, self._node.outputs[index])


def _is_quantised(x: Value) -> bool:
    """Whether numbers with a scale stand for others: those of many bits do so as constants, as biases."""
    dtype = x.type.dtype
    return x.const is not None or dtype.itemsize < 4 or dtype.kind not in "iu"


class TfliteReader(NodeReader[SubgraphScope]):
    """Reads the subgraphs of one model."""

    def __init__(self, container: Container) -> None:
        super().__init__(container.file)
        self.container = container
        self._measure = Measure(container.file)

    def type_of(self, scope: SubgraphScope, name: str) -> TensorType:
        """The declared type of a tensor; sizes that are left open are symbols."""
        tensor = scope.tensors[scope.number[name]]
        dtype = self.container.dtype_of(tensor)
        sizes = self.container.shape_of(tensor)
        return TensorType(dtype, tuple(Sym(f"{name}_{i}") if d < 0 else d for i, d in enumerate(sizes)))

    def read(self, index: int, name: str) -> Graph:
        """A subgraph as a graph of its own, with its tensors' names."""
        table = self.container.at(self.container.subgraphs, index, "subgraph")
        scope = SubgraphScope(Graph(name), self.container, table)
        for number in _numbers(table["inputs"]):
            self.add_input(scope, scope.name(number), self.type_of(scope, scope.name(number)))
        self.read_body(scope)
        self.add_outputs(scope, [scope.name(number) for number in _numbers(table["outputs"])])
        return scope.graph

    def read_body(self, scope: SubgraphScope) -> None:
        """Constants and operators of a subgraph whose inputs are bound."""
        operators: list[Table] = scope.table["operators"] or []
        self._measure.add(len(operators), scope.depth, scope.table["name"] or "subgraph")
        made = {number for operator in operators for number in _numbers(operator["outputs"])}
        scope.reserve(scope.name(number) for number in sorted(made) if number >= 0)
        asked = [number for operator in operators for number in _numbers(operator["inputs"])]
        for number in dict.fromkeys([*asked, *_numbers(scope.table["outputs"])]):
            if number >= 0 and number not in made and scope.name(number) not in scope.values:
                self._add_constant_tensor(scope, number)
        self.read_nodes((self._node(operator, i, scope) for i, operator in enumerate(operators)), scope)

    def _add_constant_tensor(self, scope: SubgraphScope, number: int) -> None:
        tensor = scope.tensor(number)
        if tensor["type"] in RESOURCES:
            return
        array = self.container.array_of(tensor)
        if array is not None:
            self.add_constant(scope, scope.name(number), array)

    def _node(self, operator: Table, index: int, scope: SubgraphScope) -> ForeignNode:
        domain, op, version = self.container.code_of(operator)
        inputs, outputs = ([scope.name(number) for number in _numbers(operator[key])] for key in ("inputs", "outputs"))
        raw = {"domain": domain, "version": version, "operator": operator}
        return ForeignNode(str(index), op, inputs, outputs, raw)

    def describe(self, node: ForeignNode, scope: SubgraphScope) -> str:
        domain, version = node.raw["domain"], node.raw["version"]
        kind = "custom operator " if domain else ""
        return f"{kind}{node.op} (version {version}) at operator {scope.prefix}{node.label}"

    def results(
        self, node: ForeignNode, inputs: list[Value | None], scope: SubgraphScope, what: str
    ) -> Sequence[Value | None]:
        reader = TFLITE.find(node.raw["domain"], node.op, node.raw["version"])
        if reader is None:
            raise UnsupportedOpError(self.file, [self.describe(node, scope)])
        b = TfliteBuilder(self, scope, node, inputs, what)
        options = self._options(node, reader, what)
        kind = getattr(reader.function, "operands", "real")
        if kind == "stored" and not _is_moved(b):
            kind = "real"
        operands = inputs if kind != "real" else [b.real(i) for i in range(len(inputs))]
        made = reader.read(b, operands, options, what)
        results = [made] if isinstance(made, Value) or made is None else list(made)
        return [self._result(b, value, i, kind) for i, value in enumerate(results)]

    def _options(self, node: ForeignNode, reader: Reader, what: str) -> dict[str, Any]:
        """Fields of the options table that a reader takes; others must say nothing."""
        operator = node.raw["operator"]
        if node.raw["domain"] == CUSTOM:
            return {"options": self.container.custom_options(operator)}
        found = self.container.options_of(operator)
        if found is None:
            return {}
        kind, table = found
        defaults = {f.name: f.default for f in self.container.flat.fields[kind] if f is not None}
        options: dict[str, Any] = {}
        for name, value in table.items():
            if isinstance(value, np.ndarray):
                value = tuple(value.tolist())
            if name in reader.attributes:
                if value is not None:
                    options[name] = value
            elif name not in IGNORED and value != defaults[name]:
                raise UnsupportedOpError(what, [f"option {name} = {value}"])
        return options

    def _result(self, b: TfliteBuilder, value: Value | None, index: int, kind: str) -> Value | None:
        """A result as it is stored: quantised where it is real, whole numbers in the dtype that the file declares."""
        if value is None or not b.wants(index) or only_python(value):
            return value
        dtype = b.declared(index).dtype
        q = b.result_quantisations[index]
        if kind == "real" and q is not None and value.type.dtype.kind == "f":
            return quantised(b, value, q, dtype)  # type: ignore[no-any-return]
        if value.type.dtype != dtype and {value.type.dtype.kind, dtype.kind} <= set("iu"):
            return cast(b, value, dtype)  # type: ignore[no-any-return]
        return value


def only_python(value: Value) -> bool:
    """Whether a value is no tensor of numbers."""
    return value.type.dtype.kind == "O"


def _is_moved(b: TfliteBuilder) -> bool:
    """Whether all that is quantised among operands and results stands for the same numbers."""
    known = [q for q in (*b.quantisations, *b.result_quantisations) if q is not None]
    return all(q.is_same(known[0]) for q in known[1:])


def _numbers(found: Array | None) -> list[int]:
    return [] if found is None else [int(v) for v in found]


__all__ = ["InvalidModelError", "SubgraphScope", "TfliteBuilder", "TfliteReader"]
