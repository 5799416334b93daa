"""Graphs as Graphviz text.  Rendering it (``dot -Tsvg``) is left to Graphviz."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.text import const_text, op_text


@dataclass(frozen=True, slots=True)
class Mark:
    """A remark on a node, shown below its operator, and the colour that the node is filled with."""

    text: str
    colour: str = "lightyellow"


DEVICES = ("#a6cee3", "#fdbf6f", "#cab2d6", "#b2df8a", "#fb9a99", "#ffff99", "#9fd8cb", "#e0c3a8")
"""What parts of a graph for devices are filled with."""


def colour_of(node: Node) -> str:
    """The colour of a part's device, the same in all pictures; "" for other nodes."""
    return DEVICES[zlib.crc32(_device(node).encode()) % len(DEVICES)] if node.op.opaque else ""


def mark_of(node: Node, marks: Mapping[str, Mark]) -> Mark | None:
    """The mark of a node; parts for devices have one in the colour of their device."""
    mark = marks.get(node.name)
    return Mark(_device(node) if mark is None else mark.text, colour_of(node)) if node.op.opaque else mark


def _device(node: Node) -> str:
    return str(getattr(node.op, "device", ""))


def to_dot(graph: Graph, marks: Mapping[str, Mark] | None = None) -> str:
    """A ``digraph``: boxes are nodes, edges carry types, subgraphs are clusters, those of a device in its colour.

    marks: by node name; for example which kernel runs a node, how long it took, what a pass has changed.
    """
    lines = [f"digraph {_quoted(graph.name)} {{", '  node [shape=box, style="rounded,filled", fillcolor=white];']
    lines += _DotWriter(marks or {}).lines(graph, "g", "  ")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _DotWriter:
    def __init__(self, marks: Mapping[str, Mark]) -> None:
        self.marks = marks

    def lines(self, graph: Graph, prefix: str, indent: str) -> Iterator[str]:
        ids: dict[int, str] = {}
        for i, value in enumerate(graph.inputs):
            ids[id(value)] = f"{prefix}_in{i}"
            label = _quoted(f"{value.name}\n{value.type}")
            yield f"{indent}{prefix}_in{i} [shape=ellipse, fillcolor=lightblue, label={label}];"
        for i, node in enumerate(graph.nodes):
            here = f"{prefix}_{i}"
            yield f"{indent}{here} [{self._style(node)}];"
            for value in node.outputs:
                ids[id(value)] = here
            for operand in node.inputs:
                if operand is not None and operand.const is None:
                    yield f"{indent}{ids[id(operand)]} -> {here} [label={_quoted(str(operand.type))}];"
            yield from self._clusters(node, here, indent)
        for i, (value, name) in enumerate(zip(graph.outputs, graph.output_names, strict=True)):
            yield f"{indent}{prefix}_out{i} [shape=ellipse, fillcolor=lightgreen, label={_quoted(name)}];"
            if value.const is None:
                yield f"{indent}{ids[id(value)]} -> {prefix}_out{i} [label={_quoted(str(value.type))}];"

    def _style(self, node: Node) -> str:
        consts = [_const_line(i, v) for i, v in enumerate(node.inputs) if v is not None and v.const is not None]
        text = [op_text(node.op), node.name, *consts]
        mark = mark_of(node, self.marks)
        if mark is None:
            return f"label={_quoted(chr(10).join(text))}"
        return f"label={_quoted(chr(10).join([*text, mark.text]))}, fillcolor={_quoted(mark.colour)}"

    def _clusters(self, node: Node, here: str, indent: str) -> Iterator[str]:
        for name, attribute in sorted(vars(node.op).items()):
            if isinstance(attribute, Graph):
                yield f"{indent}subgraph cluster_{here}_{name} {{"
                yield f"{indent}  label={_quoted(f'{node.name}.{name}')};"
                if node.op.opaque:
                    yield f"{indent}  bgcolor={_quoted(colour_of(node))};"
                yield from self.lines(attribute, f"{here}_{name}", indent + "  ")
                yield f"{indent}}}"


def _const_line(index: int, value: Value) -> str:
    assert value.const is not None
    return f"{index}: {const_text(value.const)}"
