"""Surgery on models: simplify, fix shapes, cut parts out, choose outputs.  Every function returns a new graph.

>>> graph = bn.load("model.onnx")
>>> graph = surgery.simplify(surgery.with_shapes(graph, {"x": (1, 3, 224, 224)}))
>>> surgery.save_onnx(graph, "simple.onnx")

What comes out has the operators of the model's own kind only, so that it can be written as ONNX.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bolt_numba.base.border import border
from bolt_numba.base.mapped import check_intact
from bolt_numba.converters import unsupported
from bolt_numba.converters.onnx.writing.write import save_onnx, to_onnx
from bolt_numba.errors import BoltError, ShapeError
from bolt_numba.ir.build import Builder, infer_types, merged_type
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.control import If, Loop, Scan
from bolt_numba.passes.pipeline import Stage, deep_clone, run_pipeline
from bolt_numba.passes.portable import portable
from bolt_numba.passes.trace import Trace
from bolt_numba.types import Dim, Shape, Sym, TensorType

__all__ = [
    "channels_first", "extract", "names", "save_onnx", "simplify", "to_onnx", "unsupported", "with_outputs",
    "with_shapes", "without_unused",
]  # fmt: skip


@border("simplify")
def simplify(graph: Graph, *, growth: int = 0, trace: Trace | None = None) -> Graph:
    """The same computation in fewer nodes.

    What is constant is computed as far as the model does not grow, equal nodes are shared, nodes that do nothing or
    that nobody reads are dropped, branches that are certain are inlined, arithmetic with constants goes into weights.
    More of it is possible when shapes are known; see `with_shapes`.

    growth: bytes by which computed constants may enlarge the model, for example where weights are stored in 8 bits.
    trace: receives every rewrite.
    """
    check_intact(graph.weights())
    stage = functools.partial(portable, growth=growth)
    return run_pipeline(graph, trace=trace, stages=(Stage("canonical", (stage,)),))


@border("without_unused")
def without_unused(graph: Graph) -> Graph:
    """Without nodes and inputs that no output depends on."""
    made = deep_clone(graph)
    made.drop_dead()
    own = made.caller_inputs
    made.inputs = [v for v in own if v.uses or made.is_output(v)] + made.inputs[len(own) :]
    return made


# --- names -----------------------------------------------------------------------------------------------------------


def names(graph: Graph) -> set[str]:
    """Names of all tensors outside subgraphs."""
    return set(_named(graph))


def _named(graph: Graph) -> dict[str, Value]:
    """Tensors of a graph by name; outputs also by the names that they are given out under."""
    found = {v.name: v for v in graph.values()}
    return found | dict(zip(graph.output_names, graph.outputs, strict=True))


def _find(graph: Graph, names: Iterable[str], what: str) -> list[Value]:
    """The tensors of these names; raises BoltError naming those that do not exist, and names that are near."""
    known = _named(graph)
    lines = []
    for name in (n for n in names if n not in known):
        near = difflib.get_close_matches(name, known, n=3)
        lines.append(f"got {name!r}, wanted " + (" or ".join(map(repr, near)) if near else "the name of a tensor"))
    if lines:
        raise BoltError(f"{graph.name}: {what}: {'; '.join(lines)}")
    return [known[n] for n in names]


# --- shapes ----------------------------------------------------------------------------------------------------------


@border("with_shapes")
def with_shapes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """With the shapes of some inputs fixed, and all types inferred again.

    A symbol that is given a size has it everywhere.  Raises BoltError for an unknown input, ShapeError for a shape that
    contradicts the declared one or another.
    """
    inputs = {v.name: v for v in graph.inputs}
    sizes: dict[Dim, Dim] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            near = difflib.get_close_matches(name, inputs, n=3) or list(inputs)
            raise BoltError(f"{graph.name}: input: got {name!r}, wanted {' or '.join(map(repr, near))}")
        _bind(name, inputs[name].type, tuple(shape), sizes)
    types = []
    for value in graph.inputs:
        t, known = value.type, shapes.get(value.name)
        if known is not None:
            t = t.with_shape(tuple(known))
        elif t.shape is not None:
            t = t.with_shape([sizes.get(d, d) for d in t.shape])
        types.append(t)
    return _inferred(graph, types)


def _bind(name: str, declared: TensorType, shape: Shape, sizes: dict[Dim, Dim]) -> None:
    """Note which symbol has which size."""
    if declared.shape is None:
        return
    fits = len(declared.shape) == len(shape)
    for old, new in zip(declared.shape, shape, strict=False):
        if not isinstance(new, int) or new < 0 or (not isinstance(old, Sym) and old != new):
            fits = False
        elif isinstance(old, Sym) and sizes.setdefault(old, new) != new:
            raise ShapeError(f"input {name!r}: dimension {old}: got {new}, wanted {sizes[old]} as elsewhere")
    if not fits:
        raise ShapeError(f"input {name!r}: got shape {list(shape)}, wanted one of {declared}")


def _inferred(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """A copy whose inputs have these types, and all that follows from them."""
    made = graph.clone()
    for value, t in zip(made.inputs, types, strict=True):
        value.type = t
    for node, old in zip(made.nodes, graph.nodes, strict=True):
        given = [None if v is None else v.type for v in node.inputs]
        try:
            node.op = _with_bodies(node.op, given, old)
            found = infer_types(node.op, given)
        except BoltError as error:
            raise type(error)(f"{graph.name}: node '{node.name}': {error}") from error
        for value, t in zip(node.outputs, found, strict=True):
            value.type = merged_type(value.type.with_value(None), t) or t
    return made


def _with_bodies(op: Any, given: Sequence[TensorType | None], old: Node) -> Any:
    """An operator of control flow with bodies for the types of what it reads; any other operator as it is."""
    before = [None if v is None else v.type for v in old.inputs]
    if isinstance(op, If):
        captures = _each(given[1:])
        return replace(
            op,
            then_branch=_branch(op.then_branch, captures),
            else_branch=_branch(op.else_branch, captures),
        )
    if isinstance(op, Loop):
        first = 2 + op.carried
        carried = _carried(op.body.inputs[2:first], before[2:first], given[2:first])
        fixed = [v.type for v in op.body.inputs[:2]]
        return replace(op, body=_inferred(op.body, [*fixed, *carried, *_each(given[first:])]))
    if isinstance(op, Scan):
        states = _carried(op.body.inputs[: op.states], before[: op.states], given[: op.states])
        last = op.states + op.scans
        slices = [
            t.with_shape(None if t.shape is None else _without(t.shape, op.input_axes[i] if op.input_axes else 0))
            for i, t in enumerate(_each(given[op.states : last]))
        ]
        return replace(op, body=_inferred(op.body, [*states, *slices, *_each(given[last:])]))
    return op


def _branch(graph: Graph, captures: Sequence[TensorType]) -> Graph:
    """A branch for these captures; as it was where they do not fit, because it is not taken with such shapes."""
    try:
        return _inferred(graph, captures)
    except BoltError:
        return graph


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


# --- layouts ---------------------------------------------------------------------------------------------------------


@border("channels_first")
def channels_first(graph: Graph, names: Sequence[str] | None = None) -> Graph:
    """With inputs and outputs [n, h, w, c] given and taken as [n, c, h, w]; any number of axes from 3 on.

    For models whose images have their channels last, as TFLite's.  names: of inputs and outputs; None: all of rank 4.
    What follows an input reads it through a transpose, which goes where it costs least.  Raises BoltError for unknown
    names, and for formats whose images have their channels first already, unless names are given; ShapeError for what
    has fewer axes or an unknown rank.
    """
    format = graph.metadata.get("format")
    if names is None and format in ("caffe", "paddle"):
        raise BoltError(f"{graph.name}: channels: got them first, as in models of {format}, wanted them last")
    made = deep_clone(graph)
    ends = {v.name for v in made.caller_inputs} | {name for name, _ in made.caller_outputs}
    for name in names or ():
        if name not in ends:
            near = difflib.get_close_matches(name, ends, n=3) or sorted(ends)
            raise BoltError(f"{graph.name}: input or output: got {name!r}, wanted {' or '.join(map(repr, near))}")
    turned: list[Node] = []
    for value in made.caller_inputs:
        if _is_turned(value.name, value, names):
            _turn_input(made, value, turned)
    made.nodes[:0] = turned
    for name, value in made.caller_outputs:
        if _is_turned(name, value, names):
            _turn_output(made, made.output_names.index(name), value)
    return made


def _is_turned(name: str, value: Value, names: Sequence[str] | None) -> bool:
    rank = -1 if value.type.shape is None else len(value.type.shape)
    if names is None:
        return rank == 4
    if name in names and rank < 3:
        raise ShapeError(f"'{name}': got {value.type}, wanted a known rank of at least 3")
    return name in names


def _turn_input(graph: Graph, value: Value, turned: list[Node]) -> None:
    """The input gets its channels first; what read it reads a transpose of it."""
    name, last = value.name, value.type.shape or ()
    value.name = graph.unique_name(f"{name}/channels_last")
    start = Value(name, value.type.with_value(None).with_shape((last[0], last[-1], *last[1:-1])))
    made = Builder(graph, turned)(Transpose((0, *range(2, len(last)), 1)), start, name=value.name)
    graph.replace_uses(value, made)
    graph.inputs[graph.inputs.index(value)] = start


def _turn_output(graph: Graph, place: int, value: Value) -> None:
    rank, name = len(value.type.shape or ()), graph.output_names[place]
    if value.name == name and value.node is not None:
        value.name = graph.unique_name(f"{name}/channels_last")
    perm = (0, rank - 1, *range(1, rank - 1))
    graph.outputs[place] = Builder(graph)(Transpose(perm), value, name=graph.unique_name(f"{name}/channels_first"))


# --- parts -----------------------------------------------------------------------------------------------------------


@border("with_outputs")
def with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """With these tensors as outputs, in this order; nodes that only other outputs need are dropped."""
    made = deep_clone(graph)
    values = _find(made, names, "output")
    made.set_outputs(values, names)
    made.drop_dead()
    return made


@border("extract")
def extract(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """The part between named tensors.  No inputs: from the beginning, with the inputs that the part needs.

    What the model keeps from run to run is an input of a part.  Raises BoltError for unknown names, for an input that
    the outputs do not depend on, and when they depend on inputs of the model that are not named.
    """
    _find(graph, [*inputs, *outputs], "tensor")
    made = with_outputs(graph, outputs)
    made.outputs, made.output_names = made.outputs[: len(outputs)], list(outputs)
    made.states = []
    reached = _named(made)
    unused = [name for name in inputs if name not in reached]
    if unused:
        raise BoltError(f"{graph.name}: input: got {unused}, wanted tensors that the outputs depend on")
    starts: dict[int, Value] = {}
    for name in inputs:
        value = reached[name]
        if value.node is None and value.const is None:
            starts[id(value)] = value
            continue
        starts[id(value)] = start = Value(value.name, value.type.with_value(None))
        made.replace_uses(value, start)
        value.name = made.unique_name(f"{value.name}/cut")
    made.drop_dead()
    needed = [v for v in made.inputs if v.uses or made.is_output(v)]
    open_ends = [v.name for v in needed if id(v) not in starts]
    if inputs and open_ends:
        raise BoltError(f"{graph.name}: extract: the outputs also depend on {', '.join(open_ends)}; name them too")
    made.inputs = list(starts.values()) if inputs else needed
    unread = [v.name for v in made.inputs if not (v.uses or made.is_output(v))]
    if unread:
        raise BoltError(f"{graph.name}: input: got {unread}, wanted tensors that the outputs depend on")
    return _inferred(made, [v.type for v in made.inputs])
