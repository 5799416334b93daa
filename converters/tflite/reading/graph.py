"""From TFLite's operators to a `Graph`: operands by the numbers of tensors, real or stored, results as declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bolt_numba.base.budget import Budget, within
from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import I8, STRING, Array, Sym, TensorType, type_of
from bolt_numba.converters.bounded import Measure
from bolt_numba.converters.builder import ForeignBuilder, ForeignNode
from bolt_numba.converters.flat import Table
from bolt_numba.converters.nodes import NodeReader
from bolt_numba.converters.readers import Reader
from bolt_numba.converters.scope import take_captures
from bolt_numba.converters.tflite.container import COMPLEX, RESOURCES, Container
from bolt_numba.converters.tflite.reading.complexes import Complex
from bolt_numba.converters.tflite.reading.options import options_of
from bolt_numba.converters.tflite.reading.quantised import dequantised, quantised
from bolt_numba.converters.tflite.reading.registry import TFLITE, cast
from bolt_numba.converters.tflite.reading.scope import Handle, Key, SubgraphScope, Variables
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret

MAX_WORK = 1 << 24
"""Elementary operations that what initialises variables may take."""


class TfliteBuilder(ForeignBuilder):
    """The builder a reader gets, which also knows the tensors of its node as the file declares them.

    quantisations, result_quantisations: of operands and results, None where there is none.  stored: the operands as
    they are stored.  owner, scope: for readers that read subgraphs or keep state.
    """

    def __init__(
        self, owner: TfliteReader, scope: SubgraphScope, node: ForeignNode, inputs: list[Value | None], what: str
    ) -> None:
        super().__init__(scope.graph, node, what, version=node.raw["version"], prefix=scope.prefix)
        self.owner, self.scope, self._node = owner, scope, node
        self.stored = inputs
        self.quantisations = [scope.quantisation(name) for name in node.inputs]
        self.result_quantisations = [scope.quantisation(name) for name in node.outputs]

    def real(self, index: int) -> Any:
        """An operand as real numbers, dequantised once for all that read it."""
        x, q = self.stored[index], self.quantisations[index]
        if x is None or q is None or not _is_quantised(x):
            return x
        if id(x) not in self.scope.real:
            self.scope.real[id(x)] = dequantised(self, x, q)
        return self.scope.real[id(x)]

    def declared(self, index: int = 0) -> TensorType:
        """Dtype and shape of a result, as the file declares them: hints, and the target of conversions."""
        return self.owner.type_of(self.scope, self._node.outputs[index])

    def is_complex(self, index: int = 0) -> bool:
        """Whether the file declares a result complex."""
        return bool(self.scope.tensors[self.scope.number[self._node.outputs[index]]]["type"] == COMPLEX)

    def assign(self, index: int, value: Value) -> None:
        """Give the operand ``index``, a variable of the file, the value that the next run reads; a real one."""
        stored, q = self.stored[index], self.quantisations[index]
        key = self.owner.variable_of(self.scope, self._node.inputs[index])
        if stored is None or key is None:
            raise self.invalid(f"operand {index}", "no variable", "one")
        if q is not None and _is_quantised(stored):
            value = quantised(self, value, q, stored.type.dtype)
        self.owner.variables.write(self.scope, key, value)


def _is_quantised(x: Value) -> bool:
    """Whether numbers with a scale stand for others: those of many bits do so as constants, as biases."""
    dtype = x.type.dtype
    return x.const is not None or dtype.itemsize < 4 or dtype.kind not in "iu"


class TfliteReader(NodeReader[SubgraphScope]):
    """Reads the subgraphs of one model."""

    def __init__(self, container: Container) -> None:
        super().__init__(container.file)
        self.container = container
        self.variables = Variables(container.file)
        self._measure = Measure(container.file)

    # --- tensors -----------------------------------------------------------------------------------------------------

    def type_of(self, scope: SubgraphScope, name: str) -> TensorType:
        """The declared type of a tensor; sizes that are left open are symbols."""
        tensor = scope.tensors[scope.number[name]]
        dtype = self.container.dtype_of(tensor)
        sizes = self.container.shape_of(tensor)
        return TensorType(dtype, tuple(Sym(f"{name}[{i}]") if d < 0 else d for i, d in enumerate(sizes)))

    def variable_of(self, scope: SubgraphScope, name: str) -> Key | None:
        """The key of a tensor that keeps its content from run to run; None for any other."""
        number = scope.number.get(name)
        if number is None or not scope.tensors[number]["is_variable"]:
            return None
        key = "tensor", scope.index, name
        if key not in self.variables.initial:
            t = self.type_of(scope, name)
            if not t.is_static:
                raise InvalidModelError(f"{self.file}: variable '{name}': got {t}, wanted a known shape")
            q = scope.quantisation(name) if t.dtype == I8 else None
            zero = 0 if q is None or q.zero_point.size != 1 else int(q.zero_point.reshape(-1)[0])  # of bytes only
            self.variables.begin(key, t, zero)
        return key

    def find(self, scope: SubgraphScope, name: str, what: str) -> Value | None:
        if name not in scope.values:
            key = self.variable_of(scope, name)
            if key is not None:
                return self.variables.read(scope, key)
        return super().find(scope, name, what)

    def _add_constants(self, scope: SubgraphScope, operators: Sequence[Table]) -> None:
        """Bind the tensors that nodes or outputs read and no node makes."""
        made = {number for operator in operators for number in numbers(operator["outputs"])}
        scope.reserve(scope.name(number) for number in sorted(made) if number >= 0 and not scope.prefix)
        asked = [number for operator in operators for number in numbers(operator["inputs"])]
        for number in dict.fromkeys([*asked, *numbers(scope.table["outputs"])]):
            if number < 0 or number in made or scope.name(number) in scope.values:
                continue
            tensor = scope.tensor(number)
            array = None if tensor["type"] in RESOURCES else self.container.array_of(tensor)
            if array is not None and array.dtype.kind == "c":
                parts = (Value("", type_of(part), const=part) for part in (array.real.copy(), array.imag.copy()))
                scope.values[scope.name(number)] = Complex(scope.graph, *parts)
            elif array is not None:
                self.add_constant(scope, scope.name(number), array)

    # --- subgraphs ---------------------------------------------------------------------------------------------------

    def read(self, index: int, name: str, inputs: Mapping[int, str], outputs: Sequence[tuple[int, str]]) -> Graph:
        """A subgraph as a graph of its own.

        inputs, outputs: names that a signature gives to tensors; others keep theirs.
        """
        while True:
            scope = SubgraphScope(Graph(name), self.container, index)
            for number in numbers(scope.table["inputs"]):
                if number in inputs:
                    scope.rename(number, inputs[number])
                self.add_input(scope, scope.name(number), self.type_of(scope, scope.name(number)))
            self._read_body(scope)
            self._add_named_outputs(scope, outputs)
            if self.variables.settle(scope):
                return scope.graph

    def _add_named_outputs(self, scope: SubgraphScope, given: Sequence[tuple[int, str]]) -> None:
        """Outputs by the names that a signature gives, else by their own; one tensor may be several."""
        left = list(given)
        known = {number for number, _ in given}
        rows: list[tuple[int, str]] = []
        for number in numbers(scope.table["outputs"]):
            found = next((row for row in left if row[0] == number), None)
            if found is not None:
                left.remove(found)
            elif number in known or (number, scope.name(number)) in rows:
                found = number, f"{scope.name(number)}#{len(rows)}"
            rows.append(found or (number, scope.name(number)))
        for number, name in rows + left:
            value = self.find(scope, scope.name(number), f"{self.file}: output '{name}'")
            if value is None:
                raise InvalidModelError(f"{self.file}: output '{name}': got nothing, wanted a tensor")
            if not isinstance(value, Handle):
                self.container.dtype_of(scope.tensor(number))  # one without arrays cannot leave a graph
                scope.graph.add_output(value, name)

    def inline(self, scope: SubgraphScope, index: int, operands: Sequence[Value | None]) -> list[Value | None]:
        """Results of a subgraph whose nodes become part of the scope's graph."""
        label = str((self.container.subgraphs[index]["name"] or index) if index < len(self.container.subgraphs) else "")
        prefix = f"{scope.prefix}{label}/"
        inner = SubgraphScope(scope.graph, self.container, index, parent=scope, inlined=True, prefix=prefix)
        self._bind_inputs(inner, operands)
        before = set(self.named)
        self._read_body(inner)
        results = self._results_of(inner)
        for value in results:
            if value is not None and id(value) not in before:
                self.named.pop(id(value), None)
        return results

    def body(self, scope: SubgraphScope, index: int, types: Sequence[TensorType | Value | None]) -> SubgraphScope:
        """A subgraph as a graph of its own that an operator of control flow runs.

        types: of its inputs; a handle of a variable is bound as it is.  Outputs are for the caller to add.
        """
        inner = SubgraphScope(Graph(f"{scope.graph.name}/{index}"), self.container, index, parent=scope)
        names = self._bind_inputs(inner, [t if not isinstance(t, TensorType) else None for t in types])
        for name, t in zip(names, types, strict=True):
            if isinstance(t, TensorType):
                self.add_input(inner, name, t)
        return inner

    def fill(self, inner: SubgraphScope) -> list[Value | None]:
        """Read the nodes of a body; returns its results."""
        self._read_body(inner)
        return self._results_of(inner)

    def initialise(self, index: int) -> None:
        """Run a subgraph that sets variables, once for the model; they begin with what it gives them."""
        if index in self.variables.initialised:
            return
        self.variables.initialised.add(index)
        scope = SubgraphScope(Graph("initialiser"), self.container, index)
        self._bind_inputs(scope, [])
        self._read_body(scope)
        keys = list(scope.changed)
        for i, key in enumerate(keys):
            scope.graph.add_output(scope.variables[key], str(i))
        self.variables.settle(scope)
        with within(Budget(MAX_WORK)):
            made = interpret(scope.graph, {}, [str(i) for i in range(len(keys))])
        self.variables.initial.update({key: made[str(i)] for i, key in enumerate(keys)})

    def _bind_inputs(self, inner: SubgraphScope, operands: Sequence[Value | None]) -> list[str]:
        wanted = [inner.name(number) for number in numbers(inner.table["inputs"])]
        if len(wanted) != len(operands):
            what = f"{self.file}: inputs of subgraph {inner.index}"
            raise InvalidModelError(f"{what}: got {len(operands)}, wanted {len(wanted)}")
        inner.values.update({name: x for name, x in zip(wanted, operands, strict=True) if x is not None})
        return wanted

    def _results_of(self, inner: SubgraphScope) -> list[Value | None]:
        what = f"{self.file}: output of subgraph {inner.index}"
        return [self.find(inner, inner.name(number), what) for number in numbers(inner.table["outputs"])]

    def _read_body(self, scope: SubgraphScope) -> None:
        """Constants and operators of a subgraph whose inputs are bound."""
        operators: list[Table] = scope.table["operators"] or []
        self._measure.add(len(operators) + 1, scope.depth, scope.table["name"] or "subgraph")
        self._add_constants(scope, operators)
        self.read_nodes((self._node(operator, i, scope) for i, operator in enumerate(operators)), scope)

    # --- operators ---------------------------------------------------------------------------------------------------

    def _node(self, operator: Table, index: int, scope: SubgraphScope) -> ForeignNode:
        domain, op, version = self.container.code_of(operator)
        inputs, outputs = ([scope.name(number) for number in numbers(operator[key])] for key in ("inputs", "outputs"))
        raw = {"domain": domain, "version": version, "operator": operator}
        return ForeignNode(str(index), op, inputs, outputs, raw)

    def describe(self, node: ForeignNode, scope: SubgraphScope) -> str:
        return described(node.raw["domain"], node.op, node.raw["version"], node.label, scope.index)

    def results(
        self, node: ForeignNode, inputs: list[Value | None], scope: SubgraphScope, what: str
    ) -> Sequence[Value | None]:
        reader: Reader | None = TFLITE.find(node.raw["domain"], node.op, node.raw["version"])
        if reader is None:
            raise UnsupportedOpError(self.file, [self.describe(node, scope)])
        of_complex = getattr(reader.function, "of_complex", "")
        if of_complex == "whole" or not any(isinstance(x, Complex) for x in inputs):
            return self._read(reader, node, inputs, scope, what)
        b = TfliteBuilder(self, scope, node, inputs, what)
        if not of_complex or not all(b.is_complex(i) for i, name in enumerate(node.outputs) if name):
            raise UnsupportedOpError(self.file, [f"{self.describe(node, scope)} of complex numbers"])
        parts = ([getattr(x, part) if isinstance(x, Complex) else x for x in inputs] for part in ("re", "im"))
        made = (self._read(reader, node, operands, scope, what) for operands in parts)
        return [re and im and Complex(scope.graph, re, im) for re, im in zip(*made, strict=True)]

    def _read(
        self, reader: Reader, node: ForeignNode, inputs: list[Value | None], scope: SubgraphScope, what: str
    ) -> list[Value | None]:
        b = TfliteBuilder(self, scope, node, inputs, what)
        kind = getattr(reader.function, "operands", "real")
        if kind == "stored" and not _is_moved(b):
            kind = "real"
        operands = inputs if kind != "real" else [b.real(i) for i in range(len(inputs))]
        made = reader.read(b, operands, options_of(self.container, node.raw, reader, what), what)
        results = [made] if isinstance(made, Value) or made is None else list(made)
        return [self._result(b, value, i, kind) for i, value in enumerate(results)]

    def _again(self, value: Value, graph: Graph, name: str) -> Value:
        return value if isinstance(value, Handle | Complex) else super()._again(value, graph, name)

    def _result(self, b: TfliteBuilder, value: Value | None, index: int, kind: str) -> Value | None:
        """A result as it is stored: quantised where it is real, whole numbers in the dtype that the file declares."""
        if value is None or not b.wants(index) or value.type.dtype == STRING or b.is_complex(index):
            return value
        dtype = b.declared(index).dtype
        q = b.result_quantisations[index]
        if kind == "real" and q is not None and value.type.dtype.kind == "f":
            return quantised(b, value, q, dtype)
        return cast(b, value, dtype) if {value.type.dtype.kind, dtype.kind} <= set("iu") else value


def described(domain: str, op: str, version: int, place: object, subgraph: int) -> str:
    """One line about an operator."""
    kind, where = ("custom operator " if domain else ""), (f" of subgraph {subgraph}" if subgraph else "")
    return f"{kind}{op} (version {version}) at operator {place}{where}"


def _is_moved(b: TfliteBuilder) -> bool:
    """Whether all that is quantised among operands and results stands for the same numbers."""
    known = [q for q in (*b.quantisations, *b.result_quantisations) if q is not None]
    return all(q.is_same(known[0]) for q in known[1:])


def numbers(found: Array | None) -> list[int]:
    """A vector of numbers of tensors, which may be left out."""
    return [] if found is None else [int(v) for v in found]


def with_captures(scopes: Sequence[SubgraphScope]) -> tuple[list[Graph], list[Value]]:
    """The graphs of bodies, with all that any of them captures as inputs in one order, and what is captured."""
    captures = take_captures(scopes)
    return [scope.graph for scope in scopes], captures
