"""From ONNX nodes to a `Graph`: scopes of names, subgraphs with explicit captures, functions read in place.

Local functions, and operators of the standard that have a function body and no reader, are read node by node where
they are called; no proto is ever rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import TensorType
from bolt_numba.converters.bounded import Folders, Measure
from bolt_numba.converters.builder import ForeignBuilder, ForeignNode
from bolt_numba.converters.nodes import NodeReader
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.attributes import (
    MAY_BE_ZERO,
    Attributes,
    bound,
    newest_opset,
    schema_of,
    values_of,
    with_defaults,
    without_unknown,
)
from bolt_numba.converters.onnx.reading.registry import NOT_READ, find_reader
from bolt_numba.converters.onnx.reading.tensor import array_of, dense_of
from bolt_numba.converters.onnx.structure import Functions, all_nodes, domain_of, key_of, label, opsets_of, sorted_nodes
from bolt_numba.converters.onnx.types import dtype_of, proto_of_type, type_of_proto
from bolt_numba.converters.scope import Scope, take_captures
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.shape import Unsqueeze


class FunctionScope(Scope):
    """A scope of ONNX.  opsets: versions its nodes are written for.  attributes: of the function call around them."""

    def __init__(
        self,
        graph: Graph,
        opsets: Mapping[str, int],
        attributes: Mapping[str, onnx.AttributeProto] | None = None,
        **around: Any,
    ) -> None:
        super().__init__(graph, **around)
        self.opsets, self.attributes = opsets, attributes or {}


class NodeBuilder(ForeignBuilder):
    """The builder a reader gets, which also reads subgraphs of its node.  version: the opset of the node's domain."""

    def __init__(self, owner: GraphReader, scope: FunctionScope, node: ForeignNode, what: str, version: int) -> None:
        super().__init__(scope.graph, node, what, version=version, prefix=scope.prefix)
        self._owner, self._scope, self._node = owner, scope, node

    def inline(self, graph: onnx.GraphProto, *inputs: Value) -> list[Value | None]:
        """Results of a subgraph that is read as part of this graph, with these values as its inputs."""
        return self._owner.inline(graph, self._scope, inputs)

    def inside(self, name: str) -> InnerBuilder:
        """A builder of a body that the file does not have: subgraphs can be read into it."""
        scope = FunctionScope(
            Graph(name), self._scope.opsets, self._scope.attributes, outer=self._scope, depth=self._scope.depth + 1
        )
        return InnerBuilder(self._owner, scope, self._node, self.what, self.version)

    def branches(self, *graphs: onnx.GraphProto) -> tuple[list[Graph], list[Value]]:
        """Subgraphs without inputs that all take the same captures as inputs, and those captures."""
        return self._owner.bodies(graphs, self._scope, ())

    def body(self, graph: onnx.GraphProto, inputs: Sequence[TensorType], scalars: int = 0) -> tuple[Graph, list[Value]]:
        """A subgraph with inputs of these types, which come before the captures, and the captures.

        scalars: so many of the first are; the nodes see each as one element where the graph declares an axis for it.
        """
        graphs, captures = self._owner.bodies([graph], self._scope, inputs, scalars)
        return graphs[0], captures

    def here(self, value: Value) -> Value:
        """What stands in this graph for a value of it, or of the graph around a body that is made."""
        return value


class InnerBuilder(NodeBuilder):
    """The builder of a body that is made, not read."""

    def here(self, value: Value) -> Value:
        return value if value.const is not None else self._scope.capture(value, value.name)

    def captures(self) -> list[Value]:
        """What the finished body captures, which becomes its last inputs."""
        return take_captures([self._scope])


class GraphReader(NodeReader[FunctionScope]):
    """Reads the graph of one model; ``folders`` are where external data may lie."""

    counted = False

    def __init__(self, file: str, folders: Folders, functions: Functions) -> None:
        super().__init__(file)
        self.folders, self.functions = folders, functions
        self._measure = Measure(file)

    def read(self, proto: onnx.GraphProto, opsets: Mapping[str, int], name: str) -> Graph:
        """The graph of a model.  Initializers win over inputs of the same name."""
        graph = Graph(name)
        scope = FunctionScope(graph, opsets)
        held = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
        for info in proto.input:
            what = f"{self.file}: input '{info.name}'"
            if info.name in held:
                continue
            if info.name in scope.values or not info.name:
                raise InvalidModelError(f"{what}: got an empty name or one used twice, wanted a name of its own")
            self.add_input(scope, info.name, type_of_proto(info.type, what))
        self._body(proto, scope)
        return graph

    def inline(self, proto: onnx.GraphProto, outer: FunctionScope, inputs: Sequence[Value] = ()) -> list[Value | None]:
        """Read a subgraph that is certain to run as part of the graph around it; returns its results."""
        self._want_inputs(proto, inputs)
        scope = FunctionScope(
            outer.graph,
            outer.opsets,
            outer.attributes,
            outer=outer,
            prefix=f"{outer.prefix}{proto.name or 'branch'}/",
            depth=outer.depth,
            shares_graph=True,
        )
        before = set(self.named)
        scope.values.update(zip((info.name for info in proto.input), inputs, strict=True))
        self._constants(proto, scope)
        self._nodes(sorted_nodes(proto.node, set(scope.values), self.file), scope)
        results = [self.find(scope, info.name, f"{self.file}: output '{info.name}'") for info in proto.output]
        for value in results:
            if value is not None and id(value) not in before:
                self.named.pop(id(value), None)
        return results

    def bodies(
        self, protos: Sequence[onnx.GraphProto], outer: FunctionScope, inputs: Sequence[TensorType], scalars: int = 0
    ) -> tuple[list[Graph], list[Value]]:
        """Subgraphs of control flow as graphs of their own; each takes ``inputs``, then all captures in one order."""
        scopes = [self._subgraph(proto, outer, inputs, scalars) for proto in protos]
        captures = take_captures(scopes)
        return [scope.graph for scope in scopes], captures

    def _subgraph(
        self, proto: onnx.GraphProto, outer: FunctionScope, inputs: Sequence[TensorType], scalars: int
    ) -> FunctionScope:
        graph = Graph(proto.name or "body")
        scope = FunctionScope(graph, outer.opsets, outer.attributes, outer=outer, depth=outer.depth + 1)
        self._want_inputs(proto, inputs)
        self._measure.add(len(proto.node), scope.depth, graph.name)
        for info, type_ in zip(proto.input, inputs, strict=True):
            self.add_input(scope, info.name, type_)
        for info in proto.input[:scalars]:
            if len(info.type.tensor_type.shape.dim) == 1:
                scope.values[info.name] = Builder(graph)(Unsqueeze(), scope.values[info.name], np.array([0]))
        self._body(proto, scope)
        return scope

    def _want_inputs(self, proto: onnx.GraphProto, inputs: Sequence[Value | TensorType]) -> None:
        if len(proto.input) != len(inputs):
            raise InvalidModelError(
                f"{self.file}: inputs of subgraph '{proto.name or 'body'}': got {len(proto.input)}, "
                f"wanted {len(inputs)}"
            )

    def _body(self, proto: onnx.GraphProto, scope: FunctionScope) -> None:
        """Initializers, nodes and outputs."""
        scope.reserve(name for node in proto.node for name in node.output)
        self._constants(proto, scope)
        own = {name for name in scope.values if name}
        self._nodes(sorted_nodes(proto.node, own, self.file), scope)
        self.add_outputs(scope, [info.name for info in proto.output])

    def _constants(self, proto: onnx.GraphProto, scope: FunctionScope) -> None:
        for tensor in proto.initializer:
            self._constant(scope, tensor.name, array_of(tensor, self.folders, f"{self.file}: tensor '{tensor.name}'"))
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            self._constant(scope, name, dense_of(sparse, self.folders, f"{self.file}: tensor '{name}'"))

    def _constant(self, scope: FunctionScope, name: str, data: Any) -> None:
        if not name:
            raise InvalidModelError(f"{self.file}: initializer: got no name, wanted one")
        self.add_constant(scope, name, data)

    def _nodes(self, nodes: Iterable[onnx.NodeProto], scope: FunctionScope) -> None:
        self.read_nodes((ForeignNode(label(n), n.op_type, n.input, n.output, n) for n in nodes), scope)

    def describe(self, node: ForeignNode, scope: FunctionScope) -> str:
        return describe(node.raw, scope.opsets)

    def results(
        self, node: ForeignNode, inputs: list[Value | None], scope: FunctionScope, what: str
    ) -> Sequence[Value | None]:
        attributes = bound(node.raw.attribute, scope.attributes, what)
        function = self.functions.get(key_of(node.raw))
        if function is not None:
            return self._call(function, inputs, attributes, node, scope)
        return self._operator(node, inputs, attributes, scope, what)

    def _operator(
        self, node: ForeignNode, inputs: list[Value | None], attributes: Attributes, scope: FunctionScope, what: str
    ) -> Sequence[Value | None]:
        domain = domain_of(node.raw.domain)
        version = version_of(domain, scope.opsets)
        reader = find_reader(domain, node.op, version)
        if reader is not None:
            key, legacy = (domain, node.op, version), domain == "" and version < 6
            values = values_of(attributes, key, reader, legacy, self.folders, what)
            if not (domain or values.keys() <= reader.attributes):
                values = without_unknown(values, reader, f"{self.file}: {node.op}")
            for name in reader.dtypes & values.keys():
                is_open = values[name] == 0 and name in MAY_BE_ZERO
                values[name] = None if is_open else dtype_of(values[name], name)
            made = reader.read(NodeBuilder(self, scope, node, what, version), inputs, values, what)
            if made is not NotImplemented:
                return (made,) if isinstance(made, Value) else made
        body = function_body(domain, resolved(node.raw, attributes), version, inputs)
        if body is None:
            raise UnsupportedOpError(self.file, [self.describe(node, scope)])
        schema = schema_of(domain, node.op, version)
        return self._call(body, inputs, with_defaults(attributes, schema), node, scope)

    def _call(
        self,
        function: onnx.FunctionProto,
        inputs: Sequence[Value | None],
        attributes: Attributes,
        node: ForeignNode,
        scope: FunctionScope,
    ) -> Sequence[Value | None]:
        """Read a function's nodes with its parameters bound to what the call gives."""
        self._measure.add(len(function.node), scope.depth, function.name)
        if len(inputs) > len(function.input) or len(node.outputs) > len(function.output):
            raise InvalidModelError(
                f"{self.file}: call '{node.label}' of function '{function.name}': got {len(inputs)} inputs and "
                f"{len(node.outputs)} outputs, wanted at most {len(function.input)} and {len(function.output)}"
            )
        given = {a.name: a for a in function.attribute_proto} | attributes
        inner = FunctionScope(
            scope.graph,
            {**scope.opsets, **opsets_of(function.opset_import, f"{self.file}: function '{function.name}'")},
            given,
            prefix=f"{scope.prefix}{node.label}/",
            depth=scope.depth + 1,
        )
        for i, name in enumerate(function.input):
            inner.values[name] = inputs[i] if i < len(inputs) else None
        self._nodes(sorted_nodes(function.node, set(function.input), self.file), inner)
        what = f"{self.file}: function '{function.name}'"
        results = [
            self.find(inner, name, what) if wanted else None
            for name, wanted in zip(function.output, node.outputs, strict=False)
        ]
        passed = {id(value) for value in inputs}
        for value in results:
            if value is not None and id(value) not in passed:
                self.named.pop(id(value), None)  # made inside: takes the name that the caller gives
        return results


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
    why = "" if domain or node.op_type not in NOT_READ else f": {NOT_READ[node.op_type]}"
    opset = opsets.get(domain, "?")
    return f"{node.op_type} (domain {domain or 'ai.onnx'}, opset {opset}) at node '{label(node)}'{why}"


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
