"""A source format of five operators, made to show what every format shares: it joins through `FORMATS` alone.

A file is JSON, or a folder with ``model.json``; nodes may write in place; an operator whose name has a dot is the
user's; weights are in ``weights.bin`` beside it, or in a second file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bolt_numba.converters.bounded import array_of_bytes, count_of, file_below
from bolt_numba.converters.builder import ForeignBuilder, ForeignNode
from bolt_numba.converters.formats import Content, Format
from bolt_numba.converters.nodes import NodeReader
from bolt_numba.converters.readers import Readers
from bolt_numba.converters.scope import Scope
from bolt_numba.converters.survey import Survey, read_or_list
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.model import Model
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul, Relu, Sigmoid, Tanh
from bolt_numba.types import F32, Array, TensorType

TINY = Readers("tiny")


@TINY.reader("Dense")
def dense(b: ForeignBuilder, x: Value, weights: Value, bias: Value | None = None, *, transposed: bool = False) -> Any:
    return b(MatMul(trans_b=transposed), x, weights, *[] if bias is None else [bias])


@TINY.reader("Squash", since=2)
def squash(b: ForeignBuilder, x: Value, *, kind: str = "sigmoid") -> Any:
    if kind != "sigmoid":
        raise b.unsupported(f"kind {kind}")
    return b(Sigmoid(), x)


TINY.add("Relu", lambda b, x: b(Relu(), x))
TINY.add("Squash", lambda b, x: b(Tanh(), x))
TINY.add("Sum", lambda b, *terms: functools.reduce(lambda x, y: b(Add(), x, y), terms))
TINY.add("Scale", lambda b, x, *, factor: b(Mul(), x, factor), domain="user")


class TinyReader(NodeReader[Scope]):
    def results(self, node: ForeignNode, inputs: list[Value | None], scope: Scope, what: str) -> Sequence[Value | None]:
        domain, _, op = node.op.rpartition(".")
        found = TINY.find(domain, op, node.raw["version"])
        if found is None:
            raise UnsupportedOpError(self.file, [self.describe(node, scope)])
        attributes = {k: v for k, v in node.raw.items() if k not in ("op", "in", "out", "version")}
        return (found.read(ForeignBuilder(scope.graph, node, what, version=found.since), inputs, attributes, what),)

    def read(self, content: Content) -> Model:
        whole = self.part(content, "model.json") if content.is_folder else content
        made, data = json.loads(whole.data), (content.weights or self.part(content, "weights.bin")).data
        arrays = {
            name: self.array(f"{self.file}: weight '{name}'", data, *row) for name, row in made["weights"].items()
        }
        return Model({name: self.graph(name, row, made, arrays) for name, row in made["graphs"].items()})

    def part(self, content: Content, name: str) -> Content:
        return Content(file_below(content.folders, name, f"{self.file}: {name}"))

    def array(self, what: str, data: bytes, shape: list[int], at: int) -> Array:
        return array_of_bytes(data[at : at + 4 * count_of(shape, what)], F32, shape, what)

    def graph(self, name: str, found: dict[str, Any], made: dict[str, Any], arrays: dict[str, Array]) -> Graph:
        scope = Scope(Graph(name))
        for key, shape in made["inputs"].items():
            self.add_input(scope, key, TensorType(F32, tuple(shape)))
        for key, array in arrays.items():
            self.add_constant(scope, key, array)
        scope.reserve(key for row in found["nodes"] for key in row["out"])
        rows = ({"version": made["tiny"], **row} for row in found["nodes"])
        self.read_nodes((ForeignNode(row["out"][0], row["op"], row["in"], row["out"], row) for row in rows), scope)
        self.add_outputs(scope, found["outputs"])
        return scope.graph


class TinySurvey(Survey[Scope], TinyReader):
    """Reads on behind what is unsupported."""


def matches(head: bytes, path: Path | None) -> bool:
    return head.startswith(b'{"tiny"') or (path is not None and (path / "model.json").is_file())


def read(content: Content) -> Model:
    both = TinyReader(content.name), TinySurvey(content.name)
    return read_or_list(*both, lambda reader: reader.read(content))  # type: ignore[no-any-return]


FORMAT = Format(matches, read, weights=True, folders=True)
