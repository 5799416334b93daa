"""Other sizes for the symbols of a graph, the shapes of some inputs fixed or all apart, and types inferred again."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.types import Dim, Shape, Sym, TensorType
from bolt_numba.ir.build import infer_types, merged_type
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.control import If, Loop, Scan
from bolt_numba.ops.registry import fresh_dim


@border("with_shapes")
def with_shapes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """With the shapes of some inputs fixed, and all types inferred again.

    A symbol that is given a size has it everywhere.  A size may differ from the file's where `sized` allows it.  Raises
    BoltError for an unknown input, ShapeError for a shape that contradicts the declared one or another.
    """
    graph = sized(graph, shapes)
    inputs = {v.name: v for v in graph.inputs}
    sizes: dict[Dim, Dim] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            near = difflib.get_close_matches(name, inputs, n=3) or list(inputs)
            raise BoltError(f"{graph.called}: input: got {name!r}, wanted {' or '.join(map(repr, near))}")
        _bind(name, inputs[name].type, tuple(shape), sizes)
    types = []
    for value in graph.inputs:
        t, known = value.type, shapes.get(value.name)
        if known is not None:
            t = t.with_shape(tuple(known))
        elif t.shape is not None:
            t = t.with_shape([sizes.get(d, d) for d in t.shape])
        types.append(t)
    return inferred(graph, types)


def sized(graph: Graph, *sets: Mapping[str, Sequence[int]]) -> Graph:
    """The graph for inputs of these shapes: itself, or as it is read anew for others than the file says.

    Caffe's files say sizes that a caller may change (`Graph.anew`).  A size in which sets differ becomes a symbol.
    """
    if graph.anew is None:
        return graph
    wanted: dict[str, list[int]] = {}
    for value in graph.caller_inputs:
        declared = value.type.shape or ()
        shapes = [s[value.name] for s in sets if len(s.get(value.name, ())) == len(declared)]
        own = [-1 if isinstance(d, Sym) else d for d in declared]
        found = [_one_size(d, {shape[i] for shape in shapes}) for i, d in enumerate(own)]
        if found != own:
            wanted[value.name] = found
    return graph.anew(wanted) if wanted else graph


def with_open_sizes(graph: Graph, declared: TensorType) -> TensorType:
    """The type of an input whose sizes, but for the first, may be others where `sized` allows that."""
    if graph.anew is None or declared.shape is None:
        return declared
    return declared.with_shape([d if i == 0 else fresh_dim("size") for i, d in enumerate(declared.shape)])


def _one_size(declared: int, given: set[Any]) -> int:
    """The size that all say, -1 for several; the declared one where what is said is no size."""
    if declared < 0 or not given or not all(isinstance(d, (int, np.integer)) and d > 0 for d in given):
        return declared
    return int(given.pop()) if len(given) == 1 else -1


def _bind(name: str, declared: TensorType, shape: Shape, sizes: dict[Dim, Dim]) -> None:
    """Note which symbol has which size."""
    if declared.shape is None:
        return
    fits = len(declared.shape) == len(shape)
    for old, new in zip(declared.shape, shape, strict=False):
        if not isinstance(new, (int, np.integer)) or new < 0 or (not isinstance(old, Sym) and old != new):
            fits = False
        elif isinstance(old, Sym) and sizes.setdefault(old, new) != new:
            raise ShapeError(f"input {name!r}: dimension {old}: got {new}, wanted {sizes[old]} as elsewhere")
    if not fits:
        raise ShapeError(f"input {name!r}: got shape {list(shape)}, wanted one of {declared}")


def apart(graph: Graph) -> Graph:
    """With a symbol of its own for each dimension of the inputs that only a run tells."""
    types = []
    for value in graph.inputs:
        dims = value.type.shape
        if dims is not None:
            dims = tuple(Sym(f"{value.name}.{i}") if isinstance(d, Sym) else d for i, d in enumerate(dims))
        types.append(value.type if dims is None else value.type.with_shape(dims))
    return inferred(graph, types, keeps=False)


def inferred(graph: Graph, types: Sequence[TensorType], *, keeps: bool = True) -> Graph:
    """A copy whose inputs have these types, and all that follows from them.  keeps: and from what was known before."""
    made = graph.clone()
    for value, t in zip(made.inputs, types, strict=True):
        value.type = t
    for node, old in zip(made.nodes, graph.nodes, strict=True):
        given = [None if v is None else v.type for v in node.inputs]
        try:
            node.op = _with_bodies(node.op, given, old)
            found = infer_types(node.op, given)
        except BoltError as error:
            raise type(error)(f"{graph.called}: node '{node.name}': {error}") from error
        for value, t in zip(node.outputs, found, strict=True):
            value.type = (merged_type(value.type.with_value(None), t) if keeps else None) or t
    return made


def _with_bodies(op: Any, given: Sequence[TensorType | None], old: Node) -> Any:
    """An operator of control flow with bodies for the types of what it reads; any other operator as it is."""
    before = [None if v is None else v.type for v in old.inputs]
    if isinstance(op, If):
        return _with_branches(op, _each(given[1:]))
    if isinstance(op, Loop):
        first = 2 + op.carried
        carried = _carried(op.body.inputs[2:first], before[2:first], given[2:first])
        fixed = [v.type for v in op.body.inputs[:2]]
        return replace(op, body=inferred(op.body, [*fixed, *carried, *_each(given[first:])]))
    if isinstance(op, Scan):
        states = _carried(op.body.inputs[: op.states], before[: op.states], given[: op.states])
        last = op.states + op.scans
        slices = [
            t.with_shape(None if t.shape is None else _without(t.shape, op.input_axes[i] if op.input_axes else 0))
            for i, t in enumerate(_each(given[op.states : last]))
        ]
        return replace(op, body=inferred(op.body, [*states, *slices, *_each(given[last:])]))
    return op


def _with_branches(op: If, captures: Sequence[TensorType]) -> If:
    """A branch that does not fit stays as it was: it is not taken with such shapes.  One of the two must fit."""
    made: dict[str, Graph] = {}
    for name in ("then_branch", "else_branch"):
        try:
            made[name] = inferred(getattr(op, name), captures)
        except BoltError as error:
            failed = error
    if not made:
        raise failed
    return replace(op, **made)


def _each(types: Sequence[TensorType | None]) -> list[TensorType]:
    return [t for t in types if t is not None]


def _without(shape: Shape, axis: int) -> Shape:
    place = axis % len(shape)
    return shape[:place] + shape[place + 1 :]


def _carried(
    inner: Sequence[Value], before: Sequence[TensorType | None], given: Sequence[TensorType | None]
) -> list[TensorType]:
    """Types of carried values: a dimension that all iterations keep is what the loop is given, the others stay open."""
    made = []
    for t, old, new in zip((v.type for v in inner), before, given, strict=True):
        shapes = (t.shape, None if old is None else old.shape, None if new is None else new.shape)
        if None in shapes or len({len(s) for s in shapes if s is not None}) != 1:
            made.append(t)
            continue
        dims = zip(*(s for s in shapes if s is not None), strict=True)
        made.append(t.with_shape([n if inside == o else inside for inside, o, n in dims]))
    return made
