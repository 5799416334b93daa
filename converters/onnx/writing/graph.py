"""From a `Graph` to ONNX nodes: names, constants, subgraphs; what each operator becomes is in the tables.

Constants are shared by content.  Large ones stand in the outermost graph, where every subgraph may read them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from bolt_numba.base.errors import BoltError, UnsupportedOpError
from bolt_numba.base.types import I32, I64, Array, NestedType, TensorType, type_of
from bolt_numba.converters.onnx.structure import read_names
from bolt_numba.converters.onnx.types import CODES, proto_of_type
from bolt_numba.converters.onnx.writing.registry import WRITERS, Named, NoSpellingError, load_writers, schema_by_name
from bolt_numba.converters.onnx.writing.tensor import Weights, digest_of, repeated, tensor_of
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.decomposed.decompose import (
    DECOMPOSITIONS,
    WholeError,
    channels_first,
    decompose,
    load_decompositions,
    unfused,
)
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.registry import Op, result_tuple

LOCAL = 1024
"""Elements up to which a constant of a subgraph stands in the subgraph itself, where shape inference sees it."""
NEUTRAL: dict[str, Any] = {"layout": "NCHW", "auto_pad": "NOTSET", "activation": None, "residual": False}
"""Attributes of ours that ONNX has not everywhere, and what they must be where it has not."""
BY_OUTPUTS = frozenset({"indices", "stats"})
"""Attributes of ours that ONNX tells by the number of outputs."""
ALWAYS = frozenset({"axis"})
"""Attributes that are written even if they have their default, which older opsets may not share."""
_NOTHING = Named("", TensorType(np.dtype("f4"), None))


class ModelWriter:
    """What all graphs of one model share: names in use, constants, types by name, and what has no spelling."""

    def __init__(self, weights: Weights) -> None:
        load_writers()
        load_decompositions()
        self.weights = weights
        self.types: dict[str, TensorType] = {}
        self.missing: list[str] = []
        self.loose = False  # whether nodes may be left over that nobody reads
        self._names: set[str] = set()
        self._labels: set[str] = set()
        self._serial: dict[str, itertools.count[int]] = {}

    def reserve(self, name: str) -> None:
        """Keep a name for what must have it."""
        self._names.add(name)

    def unique(self, hint: str) -> str:
        """A name that no tensor of any graph has."""
        return self._unique(hint, self._names)

    def label(self, hint: str) -> str:
        """A name that no node has."""
        return self._unique(hint, self._labels)

    def _unique(self, hint: str, taken: set[str]) -> str:
        name = hint
        while name in taken or not name:
            name = f"{hint}.{next(self._serial.setdefault(hint, itertools.count(1)))}"
        taken.add(name)
        return name

    def term(self, name: str, type_: TensorType) -> Named:
        """A term whose type is kept for the choice of the opset."""
        self.types[name] = type_
        return Named(name, type_)


class GraphWriter:
    """Writes one graph; ``given`` are the terms that its inputs stand for (captures, or inputs of its own)."""

    def __init__(self, model: ModelWriter, graph: Graph, given: Sequence[Named], outer: GraphWriter | None) -> None:
        self.model, self.graph, self.outer = model, graph, outer
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.terms: dict[int, Named] = {id(v): t for v, t in zip(graph.inputs, given, strict=True)}
        self._constants: dict[Any, Named] = {}
        self._same: dict[int, tuple[Array, Named]] = {}
        self._turns: dict[str, tuple[tuple[int, ...], Named]] = {}  # by name, what a transpose of it would be
        self.base = ""
        self.reading: Node

    # --- graphs ------------------------------------------------------------------------------------------------------

    def outputs(self, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        """Write all nodes, then declare the graph's outputs under ``names``."""
        held: dict[int, str] = {}
        for value, name in zip(self.graph.outputs, names, strict=True):
            if value.node is not None:
                held.setdefault(id(value), name)
        for node in self.graph.nodes:
            self._node(node, held)
        for value, name in zip(self.graph.outputs, names, strict=True):
            if held.get(id(value)) != name and self._operand(value).name != name:
                self.emit("Identity", [self._operand(value)], [name])
        declared = zip(self.graph.outputs, names, strict=True)
        return [self.info(self.model.term(name, value.type)) for value, name in declared]

    def info(self, term: Named) -> onnx.ValueInfoProto:
        """The declaration of a tensor."""
        return onnx.ValueInfoProto(name=term.name, type=proto_of_type(term.type))

    def infos(self) -> list[onnx.ValueInfoProto]:
        """Declarations of what the nodes give."""
        names = dict.fromkeys(name for node in self.nodes for name in node.output if name)
        known = [Named(n, self.model.types[n]) for n in names if n in self.model.types]
        return [self.info(t) for t in known if t.type.shape is not None and not isinstance(t.type, NestedType)]

    def subgraph(self, graph: Graph, given: Sequence[Named], own: Sequence[TensorType]) -> onnx.GraphProto:
        """A body of control flow: its first inputs, of types ``own``, are its own; ``given`` are the captures."""
        made = onnx.GraphProto(name=self.model.label(f"{self.base}/{graph.name}"))
        inputs = [
            self.model.term(self.model.unique(v.name), t) for v, t in zip(graph.inputs[: len(own)], own, strict=True)
        ]
        inner = GraphWriter(self.model, graph, [*inputs, *given], self)
        made.input.extend(inner.info(t) for t in inputs)
        made.output.extend(inner.outputs([self.model.unique(name) for name in graph.output_names]))
        made.node.extend(inner.nodes)
        made.initializer.extend(inner.initializers)
        return made

    def inline(self, graph: Graph, given: Sequence[Named]) -> tuple[Named, ...]:
        """The nodes of a graph among those of this one; ``given`` are its inputs."""
        kept = self.base, self.reading
        self.terms.update(zip(map(id, graph.inputs), given, strict=True))
        for node in graph.nodes:
            self._node(node, {})
        self.base, self.reading = kept
        return tuple(map(self._operand, graph.outputs))

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _node(self, node: Node, held: dict[int, str]) -> None:
        self.base, self.reading = node.name or node.op.name, node
        operands = [self._operand(v) for v in node.inputs]
        start = len(self.nodes)
        try:
            results = result_tuple(self.write(node.op, *operands, types=[v.type for v in node.outputs]))
        except NoSpellingError as error:
            reason = f": {error}" if str(error) else ""
            self.model.missing.append(f"{node.op.name} at node '{node.name}'{reason}")
            # Names, so that what reads them is written, and lacks nothing of its own.
            results = tuple(self.model.term(self.model.unique(v.name), v.type) for v in node.outputs)
        wanted = [held.get(id(v)) for v in node.outputs]
        made = {name for proto in self.nodes[start:] for name in proto.output}
        if all(r.name in made for r in results):
            self._name(node.outputs, results, wanted, self.nodes[start:])
            return
        for value, result, name in zip(node.outputs, results, wanted, strict=True):  # it passes an operand on
            self.terms[id(value)] = result
            if name is not None:
                self.emit("Identity", [result], [name])

    def _name(
        self,
        values: Sequence[Value],
        results: Sequence[Named],
        wanted: Sequence[str | None],
        nodes: Sequence[onnx.NodeProto],
    ) -> None:
        """Give results the names of the values; results that nobody reads go where ONNX lets them."""
        names: dict[str, str] = {}
        for value, result, name in zip(values, results, wanted, strict=True):
            final = name if name is not None else self.model.unique(value.name)
            names[result.name] = final
            made = self.terms[id(value)] = self.model.term(final, value.type)
            if result.name in self._turns:
                perm, other = self._turns.pop(result.name)
                self._pair(made, perm, other)
        unread = {self.terms[id(v)].name for v, name in zip(values, wanted, strict=True) if not v.uses and not name}
        for node in nodes:
            for field in (node.input, node.output):
                for i, name in enumerate(field):
                    field[i] = names.get(name, name)
            _drop_unread(node, unread)

    def write(self, op: Op, *terms: Named, types: Sequence[TensorType] | None = None) -> Any:
        """Results of an operator of ours, as nodes of ONNX.

        types: those of the results; inferred where they are not given.  Raises NoSpellingError.
        """
        if types is None:
            types = result_tuple(infer_types(op, [t.type if t.name else None for t in terms]))
        made = self._stripped(op, terms)
        if made is None:
            function = WRITERS.get(type(op))
            made = self._plain_or_apart(op, terms, types) if function is None else function(self, op, *terms)
        results = result_tuple(made)
        return results[0] if len(results) == 1 else results

    def _stripped(self, op: Op, terms: Sequence[Named]) -> Any:
        """What is fused to an operator behind it, and one whose channels are last between transposes; else None."""
        values = [t if t.name else None for t in terms]
        made = self._in_words(unfused, op, values)
        return made if made is not None else self._in_words(channels_first, op, values)

    def _plain_or_apart(self, op: Op, terms: Sequence[Named], types: Sequence[TensorType]) -> Any:
        try:
            return self.plain(op, terms, types)
        except NoSpellingError as error:
            if type(op) not in DECOMPOSITIONS:
                raise
            reason = str(error)
        try:
            return self.apart(op, *terms)
        except NoSpellingError as error:
            raise NoSpellingError(reason or str(error)) from error

    def apart(self, op: Op, *terms: Named) -> Any:
        """Results of an operator in terms of others, as nodes of ONNX.  Raises NoSpellingError."""
        return self._in_words(decompose, op, [t if t.name else None for t in terms])

    def _in_words(self, function: Any, op: Op, values: Sequence[Named | None]) -> Any:
        try:
            return function(op, self, *values)
        except WholeError as error:
            raise NoSpellingError(str(error)) from error

    def __call__(self, op: Op, *operands: Any) -> Any:
        """The same for decompositions: arrays and numbers are constants, and what follows from constants is one.

        A transpose of what was turned the other way is what was there before.
        """
        like = next((x.type.dtype for x in operands if isinstance(x, Named)), None)
        terms = [self._as_term(x, like) for x in operands]
        while terms and not terms[-1].name:
            terms.pop()
        known = [t.known for t in terms if t.known is not None]
        if known and len(known) == len(terms):
            types = infer_types(op, [t.type for t in terms])
            if all(t.is_static for t in types) and sum(t.nbytes for t in types) <= sum(a.nbytes for a in known):
                self.model.loose = True  # nobody may read what it was computed from any more
                made = tuple(self.const(array) for array in result_tuple(op.reference(*known)))
                return made[0] if len(made) == 1 else made
        return self._turned(op, terms[0]) if isinstance(op, Transpose) else self.write(op, *terms)

    def _turned(self, op: Any, term: Named) -> Named:
        perm, back = self._turns.get(term.name, ((), term))
        if perm == op.perm:
            self.model.loose = True
            return back
        made: Named = self.write(op, term)
        self._pair(term, op.perm, made)
        return made

    def _pair(self, term: Named, perm: tuple[int, ...], made: Named) -> None:
        """Note that one is the other transposed."""
        self._turns[term.name] = perm, made
        self._turns[made.name] = tuple(map(perm.index, range(len(perm)))), term

    def _as_term(self, x: Any, like: Any) -> Named:
        if x is None or isinstance(x, Named):
            return x or _NOTHING
        return self.const(np.asarray(x, like if isinstance(x, (bool, int, float)) else None))

    def plain(
        self, op: Op, terms: Sequence[Named], types: Sequence[TensorType], name: str = "", **more: Any
    ) -> tuple[Named, ...]:
        """An operator whose operands and attributes are those of ONNX; ``more``: attributes that it adds or changes."""
        schema = schema_by_name(name or op.name)
        if schema is None:
            raise NoSpellingError
        count = len([t for t in terms if t.name])
        if not count <= schema.max_input:
            raise NoSpellingError(f"{count} operands")
        attributes = {f.name: getattr(op, f.name) for f in dataclasses.fields(op)} | more
        if attributes.get("auto_pad", "NOTSET") != "NOTSET":
            attributes.pop("pads", None)
        known = schema.attributes
        for key, value in attributes.items():
            ours = key not in known and key not in BY_OUTPUTS and value is not None
            if ours and (key not in NEUTRAL or value != NEUTRAL[key]):
                raise NoSpellingError(f"attribute {key} = {value}")
        given = {k: _plain_value(v) for k, v in attributes.items() if k in known and v is not None and v != ()}
        kept = {k: v for k, v in given.items() if k in ALWAYS or not _is_default(known[k], v)}
        return self.node(name or op.name, [self._as_index(schema, i, t) for i, t in enumerate(terms)], types, **kept)

    def _as_index(self, schema: Any, place: int, term: Named) -> Named:
        """An operand of 32-bit sizes or axes as ONNX wants it, where it wants 64 bits."""
        if not term.name or term.type.dtype != I32:
            return term
        wanted = schema.inputs[min(place, len(schema.inputs) - 1)].types
        if "tensor(int32)" in wanted or "tensor(int64)" not in wanted:
            return term
        made: Named = self.write(Cast(I64), term)
        return made

    def node(
        self, name: str, terms: Sequence[Named], types: Sequence[TensorType], domain: Any = "", **attributes: Any
    ) -> tuple[Named, ...]:
        """Add a node of ONNX and return its results, named for now after what is being written."""
        results = tuple(self.model.term(self.model.unique(f"{self.base}/{name}"), t) for t in types)
        self.emit(name, terms, [t.name for t in results], domain, **attributes)
        return results

    def emit(
        self, name: str, terms: Sequence[Named], outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> None:
        """Add a node whose results have these names; ``domain``: one that the onnx package has no schemas of."""
        schema = None if domain else schema_by_name(name)
        inputs = [t.name for t in terms]
        while inputs and not inputs[-1]:
            inputs.pop()
        label = self.model.label(self.base)
        made = helper.make_node(name, inputs, outputs, name=label, domain=schema.domain if schema else domain)
        for key, value in sorted(attributes.items()):
            if schema is None:
                made.attribute.append(helper.make_attribute(key, value))
                continue
            kind = int(schema.attributes[key].type)
            given = float(value) if kind == onnx.AttributeProto.FLOAT else value
            made.attribute.append(helper.make_attribute(key, given, attr_type=kind))
        self.nodes.append(made)

    # --- operands ----------------------------------------------------------------------------------------------------

    def _operand(self, value: Value | None) -> Named:
        if value is None:
            return _NOTHING
        if id(value) not in self.terms:
            assert value.const is not None, "nodes come before those that read them"
            self.terms[id(value)] = self.const(value.const, value.name)
        return self.terms[id(value)]

    def const(self, array: Any, name: str = "") -> Named:
        """A constant, one for all arrays of equal content."""
        data = np.asarray(array)
        if data.size > LOCAL and self.outer is not None:
            return self.outer.const(data, name)
        if id(data) in self._same:
            return self._same[id(data)][1]
        part = repeated(data)
        key = (data.shape if part is not None else None, *digest_of(data if part is None else part))
        if key not in self._constants:
            self._constants[key] = self._repeat(data, part, name) if part is not None else self._stored(data, name)
        self._same[id(data)] = data, self._constants[key]  # the array is kept, so that its id stays its own
        return self._constants[key]

    def _stored(self, data: Array, name: str) -> Named:
        made = self.model.term(self.model.unique(name or f"{self.base}/const"), type_of(data))
        self.initializers.append(self.model.weights.tensor(data, made.name))
        return made

    def _repeat(self, data: Array, part: Array, name: str) -> Named:
        """A constant that repeats itself, as an Expand of what it repeats; a subgraph has it in the outermost graph."""
        made = self.model.term(self.model.unique(name or f"{self.base}/const"), type_of(data))
        shape = self.const(np.array(data.shape, np.int64), f"{made.name}/shape")
        self.emit("Expand", [self.const(part, f"{made.name}/part"), shape], [made.name])
        return made

    def tensor(self, array: Array) -> onnx.TensorProto:
        """A tensor for an attribute."""
        return tensor_of(array)


def _drop_unread(node: onnx.NodeProto, unread: set[str]) -> None:
    """Leave out optional outputs that nobody reads."""
    schema = schema_by_name(node.op_type)
    if schema is None or schema.domain != node.domain:
        return
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for i, name in enumerate(node.output):
        if name in unread and i < len(schema.outputs) and schema.outputs[i].option == optional:
            node.output[i] = ""
    while len(node.output) > 1 and not node.output[-1]:
        del node.output[-1]


def _drop_loose(top: GraphWriter, wanted: set[str]) -> None:
    """Leave out nodes and constants of the outermost graph that nothing reads."""
    kept = []
    for node in reversed(top.nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= read_names(node)
    top.nodes = kept[::-1]
    top.initializers = [t for t in top.initializers if t.name in wanted]


def _plain_value(value: Any) -> Any:
    """The ONNX form of an attribute's value."""
    if isinstance(value, np.dtype):
        return CODES[value]
    if isinstance(value, (Op, Graph)):
        raise NoSpellingError(f"attribute {value}")
    return int(value) if isinstance(value, (bool, np.bool_)) else value


def _is_default(attribute: Any, value: Any) -> bool:
    if attribute.required or not attribute.default_value.type:
        return False
    default = helper.get_attribute_value(attribute.default_value)
    if isinstance(default, bytes):
        return bool(default.decode() == value)
    if isinstance(default, float):
        return bool(np.float32(value) == np.float32(default))
    return bool(default == value)


def write_graph(graph: Graph, weights: Weights) -> tuple[onnx.GraphProto, dict[str, TensorType]]:
    """A graph as ONNX, and the types of all its tensors by name.

    Raises UnsupportedOpError listing every node that ONNX has no words for.
    """
    model = ModelWriter(weights)
    for name in (*(v.name for v in graph.inputs), *graph.output_names):
        model.reserve(name)
    inputs = {v.name: v for v in graph.inputs}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if inputs.get(name, value) is not value:
            raise BoltError(f"{graph.name}: output: got the name '{name}' of an input, wanted one of its own")
    top = GraphWriter(model, graph, [model.term(v.name, v.type) for v in graph.inputs], None)
    made = onnx.GraphProto(name=graph.name or "graph")
    made.input.extend(top.info(top.terms[id(v)]) for v in graph.inputs)
    made.output.extend(top.outputs(graph.output_names))
    if model.missing:
        raise UnsupportedOpError(f"{graph.name}: as ONNX", list(dict.fromkeys(model.missing)))
    if model.loose:
        _drop_loose(top, set(graph.output_names))
    made.node.extend(top.nodes)
    made.initializer.extend(top.initializers)
    declared = {x.name for x in made.output}
    made.value_info.extend(x for x in top.infos() if x.name not in declared)
    return made, model.types
