"""Graphs as text: the same graph always gives the same lines.  For golden files, diffs and reading; never parsed."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from bolt_numba.base.types import Array, dtype_name
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.registry import Op

SHOWN_ELEMENTS = 8
"""Elements up to which a constant is shown by its values instead of by a digest."""


def to_text(graph: Graph) -> str:
    """One line for each input, node and output, subgraphs indented below their node; ends with a newline."""
    return "\n".join(_lines(graph, "")) + "\n"


def diff(before: str, after: str, names: tuple[str, str] = ("before", "after")) -> str:
    """Unified diff of two dumps; empty when they are equal."""
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), *names, n=2)
    return "".join(lines)


def op_text(op: Op) -> str:
    """Name and the attributes that differ from their defaults: ``Conv(strides=(2, 2))``; subgraphs are not shown."""
    parts = []
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Graph) or _is_default(field, value):
            continue
        parts.append(f"{field.name}={attribute_text(value)}")
    return f"{op.name}({', '.join(parts)})" if parts else op.name


def attribute_text(value: Any) -> str:
    """An attribute without anything that differs between two processes."""
    if isinstance(value, Op):
        return op_text(value)
    if isinstance(value, np.dtype):
        return dtype_name(value)
    if isinstance(value, tuple):
        inner = ", ".join(map(attribute_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def const_text(array: Array) -> str:
    """Type and content of a constant: its values when few, else the first digits of a digest."""
    kind = f"{dtype_name(array.dtype)}[{', '.join(map(str, array.shape))}]"
    if array.size <= SHOWN_ELEMENTS:
        return f"{kind} {' '.join(map(str, array.ravel().tolist()))}".rstrip()
    return f"{kind} #{digest(array)[:8]}"


def digest(array: Array) -> str:
    """Hexadecimal digest of dtype, shape and content."""
    state = hashlib.blake2b(f"{dtype_name(array.dtype)}{array.shape}".encode(), digest_size=16)
    if array.dtype == object:
        state.update("\0".join(map(repr, array.ravel().tolist())).encode())
    else:
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default
    return type(default) is type(value) and bool(default == value)


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    yield f"{indent}graph {graph.name}"
    for key, text in sorted(graph.metadata.items()):
        shown = text if len(text) <= 60 else f"{text[:60]!r}... ({len(text)} characters)"
        yield f"{indent}  metadata {key} = {shown!r}"
    for value in graph.inputs:
        yield f"{indent}  input %{value.name}: {value.type!s}"
    for node in graph.nodes:
        yield f"{indent}  {_node_text(node)}"
        for name, attribute in sorted(vars(node.op).items()):
            if isinstance(attribute, Graph):
                yield f"{indent}    {name} ="
                yield from _lines(attribute, indent + "      ")
    for value, name in zip(graph.outputs, graph.output_names, strict=True):
        alias = "" if name == value.name else f" as {name}"
        yield f"{indent}  output {_operand_text(value)}{alias}"


def _node_text(node: Node) -> str:
    outputs = ", ".join(f"%{v.name}: {v.type!s}" for v in node.outputs)
    return f"{outputs} = {op_text(node.op)}({', '.join(map(_operand_text, node.inputs))})"


def _operand_text(value: Value | None) -> str:
    if value is None:
        return "-"
    return f"%{value.name}" if value.const is None else f"<{const_text(value.const)}>"
