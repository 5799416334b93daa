"""Which opset a written model needs, and how to say it in an older one.

Nodes are written as the newest opset has them.  A schema holds as long as it takes the same operands, attributes and
types and means the same; the oldest that holds decides.  Below that, rows spell operands as attributes, operators with
a function body are replaced by it, and onnx.version_converter is asked last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bolt_numba.base.types import Array, MapType, NestedType, OptionalType, TensorType
from bolt_numba.converters.onnx.reading.attributes import bound, with_defaults
from bolt_numba.converters.onnx.reading.graph import function_body
from bolt_numba.converters.onnx.structure import all_nodes, subgraphs
from bolt_numba.converters.onnx.types import CODES
from bolt_numba.converters.onnx.writing.registry import schemas_by_name
from bolt_numba.ir.graph import Value

FLOOR = 18
"""The opset of a model whose nodes need no newer one: any engine of recent years reads it."""
OLDEST = 7
"""Before it, broadcasting is not numpy's."""
CHANGED: dict[str, int] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), 13),  # they flattened
    "GridSample": 20,  # other names of the modes
    "RoiAlign": 16,  # coordinates were not shifted
    "GroupNormalization": 21,  # a scale per group
    "DFT": 20,
    "Resize": 11,
    "Upsample": 99,
}
"""Operators whose meaning changed though their schema may not say so -> the opset from which it is today's."""
MAX_LISTED = 1024
"""Elements of the longest constant that is spelled as an attribute."""
IR_OF_DTYPE = {"float8": 9, "int4": 10, "uint4": 10, "float4": 11, "float8e8m0": 12, "int2": 13, "uint2": 13}
"""Element types (beginnings of their names) -> the version of the format that has them."""

_Option = onnx.defs.OpSchema.FormalParameterOption
Types = Mapping[str, TensorType]


def type_text(t: TensorType) -> str:
    """How schemas spell a type: ``tensor(float)``."""
    if isinstance(t, MapType):
        return f"map({_dtype_text(t.key)}, {type_text(t.element)})"
    if isinstance(t, NestedType):
        return f"{'optional' if isinstance(t, OptionalType) else 'seq'}({type_text(t.element)})"
    return f"tensor({_dtype_text(t.dtype)})"


def _dtype_text(dtype: Any) -> str:
    return str(onnx.TensorProto.DataType.Name(CODES[dtype])).lower()


def _formals(schema: Any, names: Sequence[str], what: str) -> Iterator[tuple[str, Any]]:
    """Names with the formal parameters that they are given for."""
    formals = getattr(schema, what)
    for i, name in enumerate(names):
        yield name, formals[min(i, len(formals) - 1)]


def _allowed(schema: Any, formal: Any) -> set[str]:
    constraint = next((c for c in schema.type_constraints if c.type_param_str == formal.type_str), None)
    return {formal.type_str} if constraint is None else set(constraint.allowed_type_strs)


def _takes(schema: Any, node: onnx.NodeProto, types: Types) -> bool:
    """Whether numbers, places and types of operands and results are what a schema wants."""
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return False
    if not schema.min_output <= len(node.output) <= schema.max_output:
        return False
    for names, what in ((node.input, "inputs"), (node.output, "outputs")):
        for name, formal in _formals(schema, names, what):
            if not name:
                if formal.option != _Option.Optional:
                    return False
            elif name in types and type_text(types[name]) not in _allowed(schema, formal):
                return False
    return True


def _same_attributes(schema: Any, newest: Any, node: onnx.NodeProto) -> bool:
    given = {a.name: a for a in node.attribute}
    for name, attribute in given.items():
        known = schema.attributes.get(name)
        if known is None or int(known.type) != attribute.type:
            return False
    for name, known in schema.attributes.items():
        if name in given:
            continue
        if known.required:
            return False
        today = newest.attributes.get(name)
        if known.default_value.type and (today is None or known.default_value != today.default_value):
            return False
    return True


def since(node: onnx.NodeProto, types: Types) -> int:
    """The oldest opset of the node's domain that has it as it is written; 0 for what no schema knows."""
    schemas = schemas_by_name(node.op_type)
    if not schemas or schemas[0].domain != node.domain:
        return 0
    newest = schemas[0]
    found: int = newest.since_version
    for schema in schemas:
        if not (_same_attributes(schema, newest, node) and _takes(schema, node, types)):
            break
        found = schema.since_version
    return max(found, _changed(node, types))


def _changed(node: onnx.NodeProto, types: Types) -> int:
    """The opset before which a node meant something else."""
    given = {a.name for a in node.attribute}
    if node.op_type == "AveragePool" and "ceil_mode" in given:
        return 19  # before, it counted what lies beyond the pads
    if node.op_type == "Mod" and "fmod" not in given and not _is_integer(types.get(node.input[0])):
        return 28  # before, floats wanted fmod
    return 1 if node.domain else CHANGED.get(node.op_type, 1)


def _is_integer(t: TensorType | None) -> bool:
    return t is None or t.dtype.kind in "iu"


def needed(graph: onnx.GraphProto, types: Types, floor: int = FLOOR) -> dict[str, int]:
    """The opset of each domain that a graph needs, of the default one at least ``floor``."""
    made = {"": floor}
    for node in all_nodes(graph.node):
        made[node.domain] = max(made.get(node.domain, 1), since(node, types))
    return made


def ir_version(opsets: Mapping[str, int], types: Types) -> int:
    """The oldest version of the format that has these opsets and element types."""
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    found = max(8, int(helper.find_min_ir_version_for(imports, ignore_unknown=True)))
    for t in types.values():
        name = "" if isinstance(t, NestedType) else _dtype_text(t.dtype)
        found = max([found, *(version for start, version in IR_OF_DTYPE.items() if name.startswith(start))])
    return found


# --- older spellings -------------------------------------------------------------------------------------------------

CALLED = {"constant_value": "value", "K": "k"}
"""Operands that were attributes of another name."""


def spell_older(graph: onnx.GraphProto, version: int, types: Types) -> None:
    """Rewrite nodes in place as an older opset has them, where a row says how and the operands are constant."""
    if version < 15:
        _whole_shapes(graph)
    constants = _constants(graph)
    for node in all_nodes(graph.node):
        _drop_defaults(node, version)
        if names := _were_attributes(node, version):
            _as_attributes(node, names, constants)
        if node.op_type == "Reshape" and version < 14 and np.all(constants.get(node.input[1], np.zeros(1))):
            del node.attribute[:]  # without a 0 in the shape, allowzero says nothing
        if node.op_type == "Split" and version < 18 and not node.domain:
            _even_split(node, types)
        if node.op_type == "Resize" and version < 13:
            _empty_operands(graph, node)


def _were_attributes(node: onnx.NodeProto, version: int) -> list[str]:
    """The attributes that an opset has in the place of operands after the first."""
    schemas, current = schemas_by_name(node.op_type), _current(node, version)
    if current is None or node.domain:
        return []
    names = (CALLED.get(each.name, each.name) for each in schemas[0].inputs[1:])
    return list(itertools.takewhile(current.attributes.__contains__, names))


def _current(node: onnx.NodeProto, version: int) -> Any:
    """The schema that an opset has of an operator; None where it has none."""
    return next((s for s in schemas_by_name(node.op_type) if s.since_version <= version), None)


def _drop_defaults(node: onnx.NodeProto, version: int) -> None:
    """Leave out attributes that the opset does not know and that only say what it does anyway."""
    schemas, current = schemas_by_name(node.op_type), _current(node, version)
    if current is None or node.domain:
        return
    for attribute in [a for a in node.attribute if a.name not in current.attributes]:
        today = schemas[0].attributes.get(attribute.name)
        if today is not None and today.default_value == attribute:
            node.attribute.remove(attribute)


def _whole_shapes(graph: onnx.GraphProto) -> None:
    """Shape with a start or an end as a Slice of the whole shape."""
    made: list[onnx.NodeProto] = []
    for node in graph.node:
        for sub in subgraphs(node):
            _whole_shapes(sub)
        ends = {a.name: a.i for a in node.attribute} if node.op_type == "Shape" and not node.domain else {}
        if ends:
            whole = f"{node.output[0]}/whole"
            made.append(helper.make_node("Shape", node.input, [whole], name=whole))
            bounds = [
                np.array([ends.get(key, other)]) for key, other in (("start", 0), ("end", np.iinfo(np.int64).max))
            ]
            names = [f"{node.output[0]}/{key}" for key in ("start", "end")]
            graph.initializer.extend(numpy_helper.from_array(b, name) for b, name in zip(bounds, names, strict=True))
            made.append(helper.make_node("Slice", [whole, *names], node.output, name=node.name))
        else:
            made.append(node)
    kept = onnx.GraphProto()
    kept.node.extend(made)
    del graph.node[:]
    graph.node.extend(kept.node)


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    """Content of the constants of a graph and its subgraphs, by their names, which are unique."""
    found = {t.name: t for t in graph.initializer}
    for node in all_nodes(graph.node):
        for sub in subgraphs(node):
            found |= {t.name: t for t in sub.initializer}
        if node.op_type == "Constant" and not node.domain:
            found |= dict(zip(node.output, (a.t for a in node.attribute if a.name == "value"), strict=False))
    small = {name: t for name, t in found.items() if math.prod(t.dims) <= MAX_LISTED and not t.external_data}
    return {name: numpy_helper.to_array(t) for name, t in small.items()}


def _as_attributes(node: onnx.NodeProto, names: Sequence[str], constants: Mapping[str, Array]) -> None:
    given = list(node.input)[1:]
    if node.op_type == "Slice" and len(given) == 4 and given[3] in constants and np.all(constants[given[3]] == 1):
        given.pop()
    if any(name and name not in constants for name in given) or len(given) > len(names):
        return
    for name, key in zip(given, names, strict=False):
        if name:
            array = constants[name]
            single = key in ("value", "min", "max", "k", "ratio")
            node.attribute.append(helper.make_attribute(key, array.reshape(-1)[0].item() if single else array.tolist()))
    del node.input[1:]


def _even_split(node: onnx.NodeProto, types: Types) -> None:
    """Parts of equal size need no attribute; a smaller last part needs opset 18."""
    sizes = {t.shape for t in (types.get(name) for name in node.output) if t is not None}
    if len(sizes) == 1:
        kept = [a for a in node.attribute if a.name != "num_outputs"]
        del node.attribute[:]
        node.attribute.extend(kept)


def _empty_operands(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Opset 11 and 12 want empty tensors in place of absent ones."""
    empty = "resize/nothing"
    for i in (1, 2):
        if i < len(node.input) and not node.input[i]:
            node.input[i] = empty
    if empty in node.input and all(t.name != empty for t in graph.initializer):
        graph.initializer.append(onnx.TensorProto(name=empty, data_type=onnx.TensorProto.FLOAT, dims=[0], raw_data=b""))


def too_new(nodes: Iterable[onnx.NodeProto], version: int, types: Types) -> list[onnx.NodeProto]:
    """Nodes of the default domain that an opset does not have as they are written."""
    return [n for n in all_nodes(nodes) if not n.domain and not _holds_at(n, version, types)]


def _holds_at(node: onnx.NodeProto, version: int, types: Types) -> bool:
    """Whether an opset has a node as it is: by today's spelling, or by the older one that a row gave it."""
    current = _current(node, version)
    if current is None or version < _changed(node, types):
        return False
    newest = schemas_by_name(node.op_type)[0]
    if _same_attributes(newest, newest, node) and _takes(newest, node, types):
        return since(node, types) <= version
    return _same_attributes(current, current, node) and _takes(current, node, types)


# --- function bodies -------------------------------------------------------------------------------------------------


def expand(graph: onnx.GraphProto, version: int, types: Types) -> bool:
    """Replace nodes that an opset lacks by their function bodies, where they have one; returns whether any had."""
    made: list[onnx.NodeProto] = []
    done = False
    for node in graph.node:
        for sub in subgraphs(node):
            done |= expand(sub, version, types)
        late = not node.domain and not _holds_at(node, version, types)
        body = _body(node, types) if late else None
        made += [node] if body is None else body
        done |= body is not None
    kept = onnx.GraphProto()
    kept.node.extend(made)
    del graph.node[:]
    graph.node.extend(kept.node)
    return done


def _body(node: onnx.NodeProto, types: Types) -> list[onnx.NodeProto] | None:
    """The nodes that the standard says a node stands for."""
    schema = schemas_by_name(node.op_type)[0]
    values = [Value(name, types[name]) if name in types else None for name in node.input]
    body = function_body("", node, schema.since_version, values)
    if body is None:
        return None
    given = with_defaults({a.name: a for a in node.attribute}, schema)
    names = dict(zip(body.input, node.input, strict=False)) | dict(zip(body.output, node.output, strict=False))
    absent = dict.fromkeys(body.input, "")
    made = []
    for inner in body.node:
        label = f"{node.output[0]}/{inner.output[0]}"
        copied = onnx.NodeProto(op_type=inner.op_type, domain=inner.domain, name=label)
        for field, target in ((inner.input, copied.input), (inner.output, copied.output)):
            target.extend(names.get(n, absent.get(n, n and f"{node.output[0]}/{n}")) for n in field)
        for key, attribute in bound(inner.attribute, given, node.name).items():
            copied.attribute.add().CopyFrom(attribute)
            copied.attribute[-1].name = key
        made.append(copied)
    return made
