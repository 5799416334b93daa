"""A source format of five operators, made to show what every format shares: it joins through `FORMATS` alone.

A file is JSON: ``{"tiny": version, "inputs": {name: shape}, "weights": {name: {"shape": ..., "at": offset}},
"nodes": [{"op": ..., "in": [...], "out": [...], attributes}], "outputs": [...]}``.  Nodes may write in place; an
operator whose name has a dot is the user's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from bolt_numba.converters import Content, Format
from bolt_numba.converters.bounded import array_in_file, count_of, file_below
from bolt_numba.converters.nodes import ForeignNode, NodeBuilder, NodeReader
from bolt_numba.converters.readers import Readers
from bolt_numba.converters.scope import Scope
from bolt_numba.converters.survey import Survey
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul, Relu, Sigmoid, Tanh
from bolt_numba.types import F32, TensorType

TINY = Readers("tiny")


@TINY.reader("Dense")
def dense(b: NodeBuilder, x: Value, weights: Value, bias: Value | None = None, *, transposed: bool = False) -> Any:
    return b(MatMul(trans_b=transposed), x, weights, *[] if bias is None else [bias])


@TINY.reader("Relu")
def relu(b: NodeBuilder, x: Value) -> Any:
    return b(Relu(), x)


@TINY.reader("Squash")
def squash(b: NodeBuilder, x: Value) -> Any:
    return b(Tanh(), x)


@TINY.reader("Squash", since=2)
def squash_2(b: NodeBuilder, x: Value, *, kind: str = "sigmoid") -> Any:
    if kind not in ("sigmoid", "tanh"):
        raise b.unsupported(f"kind {kind}")
    return b(Tanh() if kind == "tanh" else Sigmoid(), x)


@TINY.reader("Sum")
def total(b: NodeBuilder, *terms: Value) -> Any:
    return functools.reduce(lambda x, y: b(Add(), x, y), terms)


@TINY.reader("Scale", domain="user")
def scale(b: NodeBuilder, x: Value, *, factor: float) -> Any:
    return b(Mul(), x, factor)


class TinyReader(NodeReader[Scope]):
    def results(self, node: ForeignNode, inputs: list[Value | None], scope: Scope, what: str) -> Sequence[Value | None]:
        domain, _, op = node.op.rpartition(".")
        found = TINY.find(domain, op, node.raw["version"])
        if found is None:
            raise UnsupportedOpError(self.file, [self.describe(node, scope)])
        attributes = {k: v for k, v in node.raw.items() if k not in ("op", "in", "out", "version")}
        return (found.read(NodeBuilder(scope.graph, node, what, version=found.since), inputs, attributes, what),)

    def read(self, content: Content) -> Graph:
        made = json.loads(content.data)
        scope = Scope(Graph(content.name))
        for name, shape in made["inputs"].items():
            self.add_input(scope, name, TensorType(F32, tuple(shape)))
        for name, row in made["weights"].items():
            what = f"{self.file}: weight '{name}'"
            path, shape = file_below(content.folder, "weights.bin", what), tuple(row["shape"])
            self.add_constant(scope, name, array_in_file(path, row["at"], 4 * count_of(shape, what), F32, shape, what))
        scope.reserve(name for row in made["nodes"] for name in row["out"])
        rows = ({"version": made["tiny"], **row} for row in made["nodes"])
        self.read_nodes((ForeignNode(row["out"][0], row["op"], row["in"], row["out"], row) for row in rows), scope)
        self.add_outputs(scope, made["outputs"])
        return scope.graph


class TinySurvey(Survey[Scope], TinyReader):
    """Reads on behind what is unsupported."""


def read(content: Content) -> Graph:
    try:
        return TinyReader(content.name).read(content)
    except UnsupportedOpError:
        survey = TinySurvey(content.name)
        raise UnsupportedOpError(content.name, survey.lines(lambda: survey.read(content))) from None


FORMAT = Format(lambda head, path: head.startswith(b'{"tiny"'), read)
