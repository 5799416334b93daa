"""A part of a graph as an accelerator gets it: for the types at hand, taken apart where it lacks an operator."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from hashlib import sha256  # of OpenSSL: weights are long, and it takes a seventh of the time of Python's own
from typing import TypeAlias

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record
from bolt_numba.base.types import Dim, Sym, TensorType
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.store import chunks
from bolt_numba.passes.partition.marking import lowered
from bolt_numba.plugins.interface import Accelerator, Shapes

Ranges: TypeAlias = "tuple[tuple[tuple[int, int], ...], ...]"
"""By input: least and greatest size of each axis."""
_NUMBERED = re.compile(r"\b[A-Za-z]\w*_\d+\b")
"""Such names `fresh_dim` makes up."""


@record(frozen=True)
class Wanted:
    """A part for one plan: what must be equal for compiled code to serve.

    types: of the inputs, as it is compiled for; contents: of the inputs that decide shapes inside.  ranges: of sizes,
    where the device wants to know them.  rows: how many the plan has, and how many it is compiled for, which are more
    where they are padded; None where the plan's types are compiled for.  is_empty: whether an input has no elements,
    of which SDKs make what they like: our own program computes it, which is no failure.
    """

    types: tuple[TensorType, ...]
    contents: tuple[bytes | None, ...]
    ranges: Ranges = ()
    rows: tuple[int, int] | None = None
    is_empty: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for two that one compiled graph serves."""
        return tuple([t.shape for t in self.types]), self.contents, self.ranges


def wanted(graph: Graph, here: Sequence[TensorType], shapes: Shapes) -> Wanted:
    """What a plan asks a device for.

    graph: of the part.  here: types of its inputs in the plan, all sizes known.  shapes: what the device serves.
    """
    types = here if shapes == "fixed" else [_declared(v.type, t) for v, t in zip(graph.inputs, here, strict=True)]
    contents = [None if t.known is None else t.known.tobytes() for t in types]
    ranges: list[tuple[tuple[int, int], ...]] = []
    for t, own in zip(types, here, strict=True) if shapes == "ranges" else ():
        ranges.append(tuple(_range(d, n) for d, n in zip(t.shape or (), own.dims, strict=True)))
    return Wanted(tuple(types), tuple(contents), tuple(ranges))


def _declared(declared: TensorType, here: TensorType) -> TensorType:
    """The type that a graph declares, or that of the plan where its content matters."""
    return declared.with_value(None) if here.known is None else here


def _range(declared: Dim, size: int) -> tuple[int, int]:
    """The sizes that are compiled for at once with one: up to the next power of two."""
    if not isinstance(declared, Sym) or size < 3:
        return size, size
    greatest = 1 << (size - 1).bit_length()
    return greatest // 2 + 1, greatest


def concrete(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """A copy for these types of the inputs; what becomes known is a constant.  Inputs and outputs stay as they are.

    Raises BoltError where a node does not take the types.
    """
    made = graph.clone()
    for value, t in zip(made.inputs, types, strict=True):
        value.type = t
        _make_known(value)
    for node in made.nodes:
        for value, t in zip(node.outputs, infer_types(node.op, _types(node)), strict=True):
            value.type = t
            _make_known(value)
    made.drop_dead()
    return made


def _types(node: Node) -> list[TensorType | None]:
    return [None if v is None else v.type for v in node.operands]


def _make_known(value: Value) -> None:
    """Let nodes read a constant in the place of a value whose content is known."""
    known = value.type.known
    if known is None:
        return
    constant = Value(value.name, value.type.with_value(known), const=known)
    for node, times in list(value.uses.times.items()):
        node.replace_input(value, constant, times)


def prepared(graph: Graph, types: Sequence[TensorType], accelerator: Accelerator) -> Graph:
    """The graph for these types in operators that the accelerator has: its lowerings take apart what it refuses.

    Raises BoltError that names the first node which it refuses all the same, and why.
    """
    made = concrete(graph, types)
    if all(accelerator.supports(node) is True for node in made.nodes):
        return made
    made = lowered(made, accelerator)
    for node in made.nodes:
        reason = accelerator.supports(node)
        if reason is not True:
            raise BoltError(f"{node.op.name}: node {node.name!r} is refused: {reason or 'without a reason'}")
    return made


def digest(graph: Graph, *more: object) -> str:
    """Of all that a graph is, weights too, and of what is written as text behind it.

    Numbers of symbols that inference makes up do not count: each session of a process has others.
    """
    made = sha256()
    for chunk in chunks(_renumbered(graph)):
        made.update(chunk)
    for each in more:
        text = str(each).encode()
        made.update(len(text).to_bytes(8, "little"))
        made.update(text)
    return made.hexdigest()


def _renumbered(graph: Graph) -> Graph:
    """A graph whose numbered symbols are counted in the order in which they come; the same one where it has none."""
    values = (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))
    if all(v.type.is_static for v in values):
        return graph
    made, numbers = graph.clone(), dict[str, str]()

    def renamed(size: Dim) -> Dim:
        if not isinstance(size, Sym):
            return size
        terms = [(_NUMBERED.sub(lambda m: numbers.setdefault(m[0], f"~{len(numbers)}"), k), v) for k, v in size.terms]
        return Sym(terms=terms, const=size.const)

    for value in (*made.inputs, *(v for node in made.nodes for v in node.outputs)):
        t = value.type.with_value(None)
        value.type = t if t.shape is None else TensorType(t.dtype, tuple(map(renamed, t.shape)))
    return made
