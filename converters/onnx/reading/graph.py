"""From ONNX nodes to a `Graph`: scopes of names, subgraphs with explicit captures, functions read in place.

Local functions, and operators of the standard that have a function body and no reader, are read node by node where
they are called; no proto is ever rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.attributes import (
    Attributes,
    bound,
    newest_opset,
    schema_of,
    values_of,
    with_defaults,
)
from bolt_numba.converters.onnx.reading.registry import find_reader
from bolt_numba.converters.onnx.structure import (
    MAX_DEPTH,
    MAX_EXPANDED,
    Functions,
    all_nodes,
    domain_of,
    key_of,
    label,
    opsets_of,
    sorted_nodes,
)
from bolt_numba.converters.onnx.tensor import array_of, dense_of, proto_of_type, type_of_proto
from bolt_numba.errors import BoltError, InvalidModelError, UnsupportedOpError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.shape import Identity
from bolt_numba.types import TensorType, type_of


class Scope:
    """Names that nodes may read; ``captured`` holds what a subgraph reads from outside, which becomes its inputs.

    attributes: those of the function call around the nodes.  opsets: versions that the nodes are written for.
    """

    def __init__(
        self,
        graph: Graph,
        opsets: Mapping[str, int],
        *,
        outer: Scope | None = None,
        attributes: Mapping[str, onnx.AttributeProto] | None = None,
        prefix: str = "",
        depth: int = 0,
    ) -> None:
        self.graph, self.opsets, self.outer, self.prefix, self.depth = graph, opsets, outer, prefix, depth
        self.attributes = attributes or {}
        self.values: dict[str, Value | None] = {}
        self.captured: dict[int, tuple[Value, Value]] = {}
        self.shares_graph = False  # a branch read as part of the graph around it captures nothing

    def find(self, name: str) -> Value | None:
        """The value of a name; raises KeyError.  What an outer scope defines is captured, a constant is copied."""
        if name in self.values or self.outer is None:
            return self.values[name]
        found = self.outer.find(name)
        if found is not None and not self.shares_graph:
            if found.const is not None:
                found = Value(self.graph.unique_name(name), found.type, const=found.const)
            else:
                found = self._capture(found, name)
        self.values[name] = found
        return found

    def _capture(self, value: Value, name: str) -> Value:
        if id(value) not in self.captured:
            self.captured[id(value)] = (value, Value(self.graph.unique_name(name), value.type))
        return self.captured[id(value)][1]


class NodeBuilder(Builder):
    """The builder a reader gets: the graph so far, and what the node says besides operands and attributes.

    version: the opset of the node's domain.  outputs: whether each output is named, thus wanted.
    """

    def __init__(self, owner: GraphReader, scope: Scope, node: onnx.NodeProto, version: int) -> None:
        first = next((name for name in node.output if name), node.op_type)
        super().__init__(scope.graph, prefix=f"{scope.prefix}{first}/")
        self.what = f"{owner.file}: node '{scope.prefix}{label(node)}' ({node.op_type})"
        self.version = version
        self.outputs = tuple(bool(name) for name in node.output)
        self._owner, self._scope = owner, scope

    def wants(self, index: int) -> bool:
        """Whether output ``index`` is used."""
        return index < len(self.outputs) and self.outputs[index]

    def unsupported(self, what: str) -> UnsupportedOpError:
        """The error for a use of an operator that has no meaning here."""
        return UnsupportedOpError(self.what, [what])

    def invalid(self, what: str, got: object, wanted: object) -> InvalidModelError:
        """The error for a node that breaks the specification."""
        return InvalidModelError(f"{what}: got {got}, wanted {wanted}")

    def inline(self, graph: onnx.GraphProto) -> list[Value | None]:
        """Results of a subgraph that is read as part of this graph."""
        return self._owner.inline(graph, self._scope)

    def branches(self, *graphs: onnx.GraphProto) -> tuple[list[Graph], list[Value]]:
        """Subgraphs without inputs that all take the same captures as inputs, and those captures."""
        return self._owner.bodies(graphs, self._scope, ())

    def body(self, graph: onnx.GraphProto, inputs: Sequence[TensorType]) -> tuple[Graph, list[Value]]:
        """A subgraph with inputs of these types, which come before the captures, and the captures."""
        graphs, captures = self._owner.bodies([graph], self._scope, inputs)
        return graphs[0], captures


class GraphReader:
    """Reads the graph of one model; ``file`` names it in messages, ``folder`` is where external data may lie."""

    def __init__(self, file: str, folder: Path | None, functions: Functions) -> None:
        self.file, self.folder, self.functions = file, folder, functions
        self._named: dict[int, Value] = {}
        self._expanded = 0

    def read(self, proto: onnx.GraphProto, opsets: Mapping[str, int], name: str) -> Graph:
        """The graph of a model.  Initializers win over inputs of the same name."""
        graph = Graph(name)
        scope = Scope(graph, opsets)
        held = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
        for info in proto.input:
            what = f"{self.file}: input '{info.name}'"
            if info.name in held:
                continue
            if info.name in scope.values or not info.name:
                raise InvalidModelError(f"{what}: got an empty name or one used twice, wanted a name of its own")
            scope.values[info.name] = graph.add_input(info.name, type_of_proto(info.type, what))
            self._named[id(scope.values[info.name])] = graph.inputs[-1]
        self._body(proto, scope)
        return graph

    def inline(self, proto: onnx.GraphProto, outer: Scope) -> list[Value | None]:
        """Read a branch that is certain to be taken as part of the graph around it; returns its results."""
        scope = Scope(
            outer.graph,
            outer.opsets,
            outer=outer,
            attributes=outer.attributes,
            prefix=f"{outer.prefix}{proto.name or 'branch'}/",
            depth=outer.depth,
        )
        scope.shares_graph = True
        before = set(self._named)
        self._constants(proto, scope)
        self.nodes(sorted_nodes(proto.node, set(scope.values), self.file), scope)
        results = [self._find(scope, info.name, f"{self.file}: output '{info.name}'") for info in proto.output]
        for value in results:
            if value is not None and id(value) not in before:
                self._named.pop(id(value), None)
        return results

    def bodies(
        self, protos: Sequence[onnx.GraphProto], outer: Scope, inputs: Sequence[TensorType]
    ) -> tuple[list[Graph], list[Value]]:
        """Subgraphs of control flow as graphs of their own; each takes ``inputs``, then all captures in one order."""
        scopes = [self._subgraph(proto, outer, inputs) for proto in protos]
        captures = {i: pair[0] for scope in scopes for i, pair in scope.captured.items()}
        for scope in scopes:
            for i, value in captures.items():
                if i not in scope.captured:
                    scope.captured[i] = (value, Value(scope.graph.unique_name(value.name), value.type))
                scope.graph.inputs.append(scope.captured[i][1])
        return [scope.graph for scope in scopes], list(captures.values())

    def _subgraph(self, proto: onnx.GraphProto, outer: Scope, inputs: Sequence[TensorType]) -> Scope:
        graph = Graph(proto.name or "body")
        scope = Scope(graph, outer.opsets, outer=outer, attributes=outer.attributes, depth=outer.depth + 1)
        if len(proto.input) != len(inputs):
            raise InvalidModelError(
                f"{self.file}: inputs of subgraph '{graph.name}': got {len(proto.input)}, wanted {len(inputs)}"
            )
        self._count(len(proto.node), scope, graph.name)
        for info, type_ in zip(proto.input, inputs, strict=True):
            scope.values[info.name] = value = graph.add_input(info.name, type_)
            self._named[id(value)] = value
        self._body(proto, scope)
        return scope

    def _count(self, nodes: int, scope: Scope, name: str) -> None:
        """Keep nested and repeated subgraphs and functions within measure."""
        self._expanded += nodes
        if self._expanded > MAX_EXPANDED or scope.depth > MAX_DEPTH:
            raise InvalidModelError(f"{self.file}: '{name}': got too many nested or repeated graphs, wanted fewer")

    def _body(self, proto: onnx.GraphProto, scope: Scope) -> None:
        """Initializers, nodes and outputs."""
        graph = scope.graph
        for name in dict.fromkeys(name for node in proto.node for name in node.output):
            if name:
                graph.unique_name(name)  # no derived name may take it
        self._constants(proto, scope)
        own = {name for name in scope.values if name}
        self.nodes(sorted_nodes(proto.node, own, self.file), scope)
        for info in proto.output:
            value = self._find(scope, info.name, f"{self.file}: output '{info.name}'")
            if value is None:
                raise InvalidModelError(f"{self.file}: output '{info.name}': got nothing, wanted a tensor")
            graph.add_output(value, info.name)

    def _constants(self, proto: onnx.GraphProto, scope: Scope) -> None:
        for tensor in proto.initializer:
            self._constant(scope, tensor.name, array_of(tensor, self.folder, f"{self.file}: tensor '{tensor.name}'"))
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            self._constant(scope, name, dense_of(sparse, self.folder, f"{self.file}: tensor '{name}'"))

    def _constant(self, scope: Scope, name: str, data: Any) -> None:
        if not name:
            raise InvalidModelError(f"{self.file}: initializer: got no name, wanted one")
        value = Value(scope.graph.unique_name(scope.prefix + name), type_of(data), const=data)
        scope.values[name] = value
        self._named[id(value)] = value

    def _find(self, scope: Scope, name: str, what: str) -> Value | None:
        try:
            return scope.find(name)
        except KeyError:
            raise InvalidModelError(f"{what}: tensor '{name}': got no definition, wanted one") from None

    def nodes(self, nodes: Iterable[onnx.NodeProto], scope: Scope) -> None:
        """Read nodes in order; any failure names the node."""
        for node in nodes:
            what = f"{self.file}: node '{scope.prefix}{label(node)}' ({node.op_type})"
            try:
                self._node(node, scope, what)
            except UnsupportedOpError:
                raise
            except BoltError as error:
                if str(error).startswith(self.file):
                    raise
                raise type(error)(f"{what}: {error}") from error
            except Exception as error:  # a reader met something the specification does not allow
                raise InvalidModelError(f"{what}: cannot be read: {type(error).__name__}: {error}") from error

    def _node(self, node: onnx.NodeProto, scope: Scope, what: str) -> None:
        inputs = [self._find(scope, name, what) if name else None for name in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = bound(node.attribute, scope.attributes, what)
        key = key_of(node)
        if key in self.functions:
            function = self.functions[key]
            results = self._call(function, inputs, attributes, node, scope)
        else:
            results = self._operator(node, inputs, attributes, scope, what)
        self._bind(node, results, scope, what)

    def _operator(
        self, node: onnx.NodeProto, inputs: list[Value | None], attributes: Attributes, scope: Scope, what: str
    ) -> Sequence[Value | None]:
        domain = domain_of(node.domain)
        version = version_of(domain, scope.opsets)
        reader = find_reader(domain, node.op_type, version)
        if reader is not None:
            key, legacy = (domain, node.op_type, version), domain == "" and version < 6
            values = values_of(attributes, key, reader.kinds, legacy, self.folder, what)
            made = reader.read(NodeBuilder(self, scope, node, version), inputs, values, what)
            if made is not NotImplemented:
                return (made,) if isinstance(made, Value) else made
        body = function_body(domain, resolved(node, attributes), version, inputs)
        if body is None:
            raise UnsupportedOpError(self.file, [describe(node, scope.opsets)])
        schema = schema_of(domain, node.op_type, version)
        return self._call(body, inputs, with_defaults(attributes, schema), node, scope)

    def _call(
        self,
        function: onnx.FunctionProto,
        inputs: Sequence[Value | None],
        attributes: Attributes,
        node: onnx.NodeProto,
        scope: Scope,
    ) -> Sequence[Value | None]:
        """Read a function's nodes with its parameters bound to what the call gives."""
        self._count(len(function.node), scope, function.name)
        if len(inputs) > len(function.input) or len(node.output) > len(function.output):
            raise InvalidModelError(
                f"{self.file}: call '{label(node)}' of function '{function.name}': got {len(inputs)} inputs and "
                f"{len(node.output)} outputs, wanted at most {len(function.input)} and {len(function.output)}"
            )
        given = {a.name: a for a in function.attribute_proto} | attributes
        inner = Scope(
            scope.graph,
            {**scope.opsets, **opsets_of(function.opset_import, f"{self.file}: function '{function.name}'")},
            attributes=given,
            prefix=f"{scope.prefix}{label(node)}/",
            depth=scope.depth + 1,
        )
        for i, name in enumerate(function.input):
            inner.values[name] = inputs[i] if i < len(inputs) else None
        self.nodes(sorted_nodes(function.node, set(function.input), self.file), inner)
        what = f"{self.file}: function '{function.name}'"
        results = [
            self._find(inner, name, what) if wanted else None
            for name, wanted in zip(function.output, node.output, strict=False)
        ]
        passed = {id(value) for value in inputs}
        for value in results:
            if value is not None and id(value) not in passed:
                self._named.pop(id(value), None)  # made inside: takes the name that the caller gives
        return results

    def _bind(self, node: onnx.NodeProto, results: Sequence[Value | None], scope: Scope, what: str) -> None:
        """Give results the names of the node's outputs; an operand that is passed on gets a node of its own."""
        if len(results) < len(node.output) and any(node.output[len(results) :]):
            raise InvalidModelError(f"{what}: got {len(node.output)} outputs, wanted at most {len(results)}")
        for name, value in zip(node.output, results, strict=False):
            if not name:
                continue
            if value is None:
                raise UnsupportedOpError(self.file, [f"{describe(node, scope.opsets)}: output '{name}'"])
            full = scope.graph.unique_name(scope.prefix + name) if scope.prefix else name
            if id(value) in self._named or value.node is None:
                value = self._again(value, scope.graph, full)
            value.name = full
            if value.node is not None and value.index == 0:
                value.node.name = full
            self._named[id(value)] = value
            scope.values[name] = value

    def _again(self, value: Value, graph: Graph, name: str) -> Value:
        if value.const is not None:
            return Value(name, value.type, const=value.const)
        made: Value = Builder(graph)(Identity(), value, name=f"{name}/Identity")
        return made


def resolved(node: onnx.NodeProto, attributes: Attributes) -> onnx.NodeProto:
    """A copy of the node with the attributes it has where it is called; native code knows nothing of the call."""
    made = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input, output=node.output)
    for name, attribute in attributes.items():
        made.attribute.add().CopyFrom(attribute)
        made.attribute[-1].name = name
    return made


def function_body(
    domain: str, node: onnx.NodeProto, version: int, inputs: Sequence[Value | None] | None
) -> onnx.FunctionProto | None:
    """What the standard says an operator stands for, None when it is primitive.

    inputs: None to learn only whether there is a body that needs no types.
    """
    schema = schema_of(domain, node.op_type, version)
    if schema is None or schema.deprecated:
        return None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version] or schema.function_opset_versions[:1]
        raw = schema.get_function_with_opset_version(max(versions))
    elif schema.has_context_dependent_function and inputs is not None:
        known = schema.context_dependent_function_opset_versions
        types = [onnx.TypeProto() if v is None else proto_of_type(v.type) for v in inputs]
        raw = schema.get_context_dependent_function_with_opset_version(
            max([v for v in known if v <= version] or known[:1]),
            node.SerializeToString(),
            [t.SerializeToString() for t in types],
        )
    else:
        return None
    body = onnx.FunctionProto.FromString(raw)
    return body if body.node else None


def describe(node: onnx.NodeProto, opsets: Mapping[str, int]) -> str:
    """One line about a node that has no meaning here."""
    domain = domain_of(node.domain)
    return f"{node.op_type} (domain {domain or 'ai.onnx'}, opset {opsets.get(domain, '?')}) at node '{label(node)}'"


def version_of(domain: str, opsets: Mapping[str, int]) -> int:
    """Version of a domain; the newest of the default one where a function of the standard does not name it."""
    version = opsets.get(domain)
    if version is None:
        version = 1 if domain else newest_opset()
    return version


def unsupported_nodes(nodes: Iterable[onnx.NodeProto], opsets: Mapping[str, int], functions: Functions) -> list[str]:
    """Descriptions of all nodes, also in subgraphs and functions, that neither a reader nor a body covers."""
    found: list[str] = []
    asked: set[tuple[Any, ...]] = set()
    stack: list[tuple[Iterable[onnx.NodeProto], Mapping[str, int]]] = [(nodes, opsets)]
    while stack:
        part, versions = stack.pop()
        for node in all_nodes(part):
            key = (*key_of(node), versions.get(domain_of(node.domain)))
            if key[:3] in functions:
                if key not in asked:
                    body = functions[key[:3]]
                    stack.append((body.node, {**opsets, **opsets_of(body.opset_import, "function")}))
            elif not _covered(node, versions, stack if key not in asked else None):
                found.append(describe(node, versions))
            asked.add(key)
    return list(dict.fromkeys(found))


def _covered(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    stack: list[tuple[Iterable[onnx.NodeProto], Mapping[str, int]]] | None,
) -> bool:
    domain = domain_of(node.domain)
    version = version_of(domain, opsets)
    if find_reader(domain, node.op_type, version) is not None:
        return True
    schema = schema_of(domain, node.op_type, version)
    if schema is None or schema.deprecated:
        return False
    body = function_body(domain, node, version, None)
    if body is not None and stack is not None:
        stack.append((body.node, {**opsets, **opsets_of(body.opset_import, "function")}))
    return bool(body is not None or schema.has_context_dependent_function)
