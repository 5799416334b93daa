"""Graphs from JSON values that nobody vouches for: the reading half of `ir.store`.

Everything is checked before it is used; whatever is wrong is an InvalidModelError that says where.  Types of node
outputs are inferred again and compared with the stored ones, so a file cannot claim a shape that its operators
do not give.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba import ops
from bolt_numba.base.errors import BoltError, InvalidModelError
from bolt_numba.base.types import (
    AnyDType,
    Array,
    Dim,
    Sym,
    TensorType,
    dtype_from_name,
    map_of,
    optional_of,
    sequence_of,
    type_of,
)
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.spec import agree, verify
from bolt_numba.ops import registry

_FRESH = re.compile(r"_(\d{1,9})\b")
MAX_NESTING = 8
"""Levels of sequences and optionals of one type."""


def read_graph(found: Any, tensors: Sequence[Array]) -> Graph:
    """The graph of a document whose table of tensors has been read."""
    graph = _GraphDecoder(tensors).graph("graph", found)
    verify(graph)
    return graph


def _fail(where: str, got: object, wanted: str) -> InvalidModelError:
    text = repr(got)
    return InvalidModelError(f"{where}: got {text if len(text) <= 80 else text[:77] + '...'}, wanted {wanted}")


def _get(where: str, found: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """``found[key]``, which must be of ``kind`` exactly (a bool is no int)."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    value = found.get(key) if isinstance(found, dict) else None
    if type(value) not in kinds:
        raise _fail(f"{where}: {key}", value, " or ".join(k.__name__ for k in kinds))
    return value


def _states(where: str, found: Any) -> list[Any]:
    """Numbers of the tensors that hold what a session keeps, before the first run."""
    rows: list[Any] = _get(where, found, "states", list) if "states" in found else []
    if any(type(row) is not int for row in rows):
        raise _fail(f"{where}: states", rows, "numbers of tensors")
    return rows


class _GraphDecoder:
    """Reads graphs, nested ones too, over one table of tensors."""

    def __init__(self, tensors: Sequence[Array]) -> None:
        self.tensors = tensors

    def graph(self, where: str, found: Any) -> Graph:
        graph = Graph(_get(where, found, "name", str))
        for key, text in _get(where, found, "metadata", dict).items():
            graph.metadata[key] = text if isinstance(text, str) else str(text)
        values: list[Value] = []
        for i, row in enumerate(_get(where, found, "inputs", list)):
            here = f"{where}: input {i}"
            values.append(graph.add_input(self._name(graph, here, row), self._type(here, row)))
        for i, row in enumerate(_get(where, found, "constants", list)):
            here = f"{where}: constant {i}"
            array = self._tensor(here, _get(here, row, "tensor", int))
            name = graph.unique_name(self._name(graph, here, row))
            values.append(Value(name, type_of(array), const=array))
        for i, row in enumerate(_get(where, found, "nodes", list)):
            values += self._node(graph, f"{where}: node {i}", row, values).outputs
        for i, row in enumerate(_get(where, found, "outputs", list)):
            if not isinstance(row, list) or len(row) != 2 or not isinstance(row[1], str):
                raise _fail(f"{where}: output {i}", row, "a value and a name")
            value = self._operand(f"{where}: output {i}", row[0], values)
            if value is None:
                raise _fail(f"{where}: output {i}", row, "a value")
            graph.add_output(value, row[1])
        graph.states = [self._tensor(f"{where}: state {i}", row) for i, row in enumerate(_states(where, found))]
        return graph

    def _name(self, graph: Graph, where: str, row: Any) -> str:
        name: str = _get(where, row, "name", str)
        if not name or name in graph._names:
            raise _fail(f"{where}: name", name, "one that no other value has")
        return name

    def _tensor(self, where: str, index: int) -> Array:
        if not 0 <= index < len(self.tensors):
            raise _fail(f"{where}: tensor", index, f"under {len(self.tensors)}")
        return self.tensors[index]

    def _operand(self, where: str, index: Any, values: Sequence[Value]) -> Value | None:
        if index is None:
            return None
        if type(index) is not int or not 0 <= index < len(values):
            raise _fail(f"{where}: operand", index, f"a value defined before, under {len(values)}")
        return values[index]

    def _node(self, graph: Graph, where: str, row: Any, values: Sequence[Value]) -> Node:
        label: str = _get(where, row, "name", str)
        where = f"{where} '{label}'"
        op = self._op(where, row)
        operands = [self._operand(where, i, values) for i in _get(where, row, "inputs", list)]
        try:
            inferred = infer_types(op, [None if v is None else v.type for v in operands])
        except BoltError as error:
            raise InvalidModelError(f"{where}: {error}") from error
        except Exception as error:  # attributes that only this operator knows to be absurd
            raise InvalidModelError(f"{where}: {op.name}: {type(error).__name__}: {error}") from error
        outputs = _get(where, row, "outputs", list)
        if len(outputs) != len(inferred) or not outputs:
            raise _fail(f"{where}: number of outputs", len(outputs), str(len(inferred)))
        for i, (out, got) in enumerate(zip(outputs, inferred, strict=True)):
            stored = self._type(f"{where}: output {i}", out)
            if not agree(stored, got, set()):
                raise _fail(f"{where}: type of output {i}", str(stored), str(got))
        node = Node(op, operands, list(inferred), label)
        for i, (value, out) in enumerate(zip(node.outputs, outputs, strict=True)):
            value.name = graph.unique_name(self._name(graph, f"{where}: output {i}", out))
        graph.nodes.append(node)
        return node

    def _op(self, where: str, row: Any) -> registry.Op:
        name = _get(where, row, "op", str)
        cls = ops.find(name)
        if cls is None:
            wanted = "a registered one: import the module that registers it (docs/own-operators.md)"
            raise _fail(f"{where}: operator", name, wanted)
        given = _get(where, row, "attributes", dict)
        fields = {f.name for f in dataclasses.fields(cls)}
        if not given.keys() <= fields:
            raise _fail(f"{where}: attributes of {name}", sorted(given.keys() - fields), f"some of {sorted(fields)}")
        maker: Any = cls
        hints = _hints(maker)
        attributes = {}
        for key, found in given.items():
            attributes[key] = value = self._attribute(f"{where}: {name}.{key}", found)
            if not _conforms(value, hints[key]):
                raise _fail(f"{where}: {name}.{key}", value, str(hints[key]))
        try:
            return cls(**attributes)
        except BoltError:
            raise
        except Exception as error:
            raise InvalidModelError(f"{where}: {name} cannot be made of {sorted(attributes)}: {error}") from error

    def _attribute(self, where: str, found: Any) -> Any:
        if found is None or isinstance(found, (bool, int, float, str)):
            return found
        if isinstance(found, list):
            return tuple(self._attribute(where, v) for v in found)
        match found:
            case {"float": "nan" | "inf" | "-inf" as text}:
                return float(text)
            case {"op": _}:
                return self._op(where, found)
            case {"graph": inner}:
                return self.graph(where, inner)
            case {"dtype": _}:
                return _dtype(where, found)
            case {"scalar": int(index)}:
                array = self._tensor(where, index)
                if array.size == 1:
                    return array.reshape(-1)[0]
        raise _fail(where, found, "an attribute")

    def _type(self, where: str, row: Any, depth: int = 0) -> TensorType:
        if isinstance(row, dict) and "kind" in row:
            return self._nested(where, row, depth)
        shape = row.get("shape") if isinstance(row, dict) else ()
        dtype = _dtype(where, row)
        if shape is None:
            return TensorType(dtype, None)
        if not isinstance(shape, list) or len(shape) > 64:
            raise _fail(f"{where}: shape", shape, "at most 64 dimensions")
        return TensorType(dtype, tuple(_dim(where, d) for d in shape))

    def _nested(self, where: str, row: Any, depth: int) -> TensorType:
        if depth > MAX_NESTING:
            raise _fail(f"{where}: type", depth, f"at most {MAX_NESTING} levels")
        element = self._type(where, row.get("element"), depth + 1)
        match _get(where, row, "kind", str):
            case "sequence":
                return sequence_of(element)
            case "optional":
                return optional_of(element)
            case "map":
                return map_of(_dtype(where, {"dtype": row.get("key")}), element)
        raise _fail(f"{where}: kind", row["kind"], "sequence, optional or map")


def _dtype(where: str, row: Any) -> AnyDType:
    name = _get(where, row, "dtype", str)
    try:
        return dtype_from_name(name)
    except KeyError as error:
        raise _fail(f"{where}: dtype", name, "a known one") from error


def _dim(where: str, found: Any) -> Dim:
    match found:
        case bool():
            pass
        case int() if 0 <= found < 2**63:
            return found
        case str() if found:
            return _sym(((found, 1),), 0)
        case {"terms": [_, *_] as terms, "const": int(const)}:
            rows = [(t[0], t[1]) for t in terms if isinstance(t, list) and len(t) == 2]
            good = all(isinstance(name, str) and type(factor) is int and factor for name, factor in rows)
            if good and len({name for name, _ in rows}) == len(terms):
                return _sym(tuple(rows), const)
    raise _fail(f"{where}: dimension", found, "a size or a symbol")


def _sym(terms: tuple[tuple[str, int], ...], const: int) -> Sym:
    """A stored symbol; symbols made up by inference from now on are none of those in the file."""
    for name, _ in terms:
        for number in _FRESH.findall(name):
            registry.reserve_dims(int(number))
    return Sym(terms=terms, const=const)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Annotations of the attributes; one that says nothing is taken from the default, None meaning any number."""
    scope = vars(importlib.import_module(cls.__module__)) | {"Graph": Graph}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        try:
            hint = typing.get_type_hints(_only(field.name, field.type), globalns=scope)[field.name]
        except (NameError, TypeError):
            hint = Any
        default = field.default
        if hint is Any and default is not dataclasses.MISSING:
            hint = int | float | np.number | None if default is None else type(default)
        found[field.name] = hint
    return found


def _only(name: str, annotation: Any) -> type:
    return type("Only", (), {"__annotations__": {name: annotation}})


def _conforms(value: Any, hint: Any) -> bool:
    """Whether an attribute has its annotated type; an int may stand for a float."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, (str, typing.TypeVar)):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_conforms(value, h) for h in args)
    if origin is typing.Literal:
        return any(type(value) is type(a) and value == a for a in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(args) == 2 and args[1] is Ellipsis:
            return all(_conforms(v, args[0]) for v in value)
        return len(value) == len(args) and all(map(_conforms, value, args))
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return type(value) in (int, float) or isinstance(value, np.floating)
    if hint in (int, bool, str):
        return type(value) is hint
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)
