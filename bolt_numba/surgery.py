"""Surgery on models: simplify, fix shapes, cut parts out, choose outputs.  Every function returns a new graph.

>>> graph = bn.load("model.onnx")
>>> graph = surgery.simplify(surgery.with_shapes(graph, {"x": (1, 3, 224, 224)}))
>>> surgery.save_onnx(graph, "simple.onnx")

What comes out has the operators of the model's own kind only, so that it can be written as ONNX.  What `packed` makes
is ready for one machine instead: optimised, with weights as its kernels want them, so that loading is a map.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.budget import ask
from bolt_numba.base.config import default_threads
from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.files.mapped import check_intact
from bolt_numba.base.types import Array, Sym, type_of
from bolt_numba.converters.formats import unsupported
from bolt_numba.converters.onnx.writing.write import save_onnx, to_onnx
from bolt_numba.devices.seals import machine, marks_of, source_marks
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.packed import PackedWeights
from bolt_numba.ir.sizes import inferred, sized, with_shapes
from bolt_numba.ir.spec import agree
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.passes.pipeline import deep_clone, run_pipeline
from bolt_numba.passes.pipeline.portable import simplify
from bolt_numba.preprocessing import with_preprocessing
from bolt_numba.sessions.guesses import complete_shapes
from bolt_numba.sessions.inputs import names_of
from bolt_numba.sessions.session import Session
from bolt_numba.sessions.warming import runner_at

__all__ = [
    "channels_first", "extract", "names", "packed", "save_onnx", "simplify", "to_onnx", "unsupported", "with_names",
    "with_outputs", "with_preprocessing", "with_shapes", "with_states", "without_unused",
]  # fmt: skip


@border("without_unused")
def without_unused(graph: Graph) -> Graph:
    """Without nodes and inputs that no output depends on.  Raises DTypeError for what is no graph."""
    made = deep_clone(graph)
    made.drop_dead()
    own = made.caller_inputs
    made.inputs = [v for v in own if v.uses or made.is_output(v)] + made.inputs[len(own) :]
    return made


@border("with_states")
def with_states(graph: Graph, states: Mapping[str, str], *, initial: Mapping[str, Array] | None = None) -> Graph:
    """With inputs that come back from outputs of the run before, as the keys and values that a decoder has seen.

    states: the output that gives an input anew, by the input's name.  Callers neither give the one nor get the other:
    a session keeps them, and `Session.reset_state` begins anew.
    initial: what inputs are at first, zeros where it does not say.  It may differ in sizes that the model leaves open.

    Raises BoltError for unknown names, ShapeError for outputs of another type than their input's, and for zeros of
    unknown shape.
    """
    made, initial = deep_clone(graph), {} if initial is None else initial
    for what, given in (("states", states), ("initial", initial)):
        if not isinstance(given, Mapping):
            raise BoltError(f"{graph.called}: {what}: got a {type(given).__name__}, wanted a mapping of inputs' names")
    if unknown := [name for name in initial if name not in states]:
        raise BoltError(f"{graph.called}: initial: got {unknown}, wanted names of {list(states)}")
    for name, source in states.items():
        before, place = _end(made, "input", name), _end(made, "output", source)
        after, first = made.outputs[place], initial.get(name)
        value = made.inputs.pop(before)
        if first is None:
            shape = value.type.shape
            if shape is None or any(isinstance(d, Sym) for d in shape) or value.type.dtype == object:
                wanted = "wanted known sizes: give them by with_shapes (--shape), or what it is at first by initial"
                raise ShapeError(f"{graph.called}: state {name!r}: got {value.type}, {wanted}")
            ask(value.type.nbytes, f"{graph.called}: state {name!r}")
            first = np.zeros(value.type.dims, value.type.dtype)
        first = _array(graph, name, first)
        if not (agree(value.type, type_of(first), set()) and agree(value.type, after.type, set())):
            wanted = f"got {type_of(first)} at first and {after.type} from {source!r}, wanted {value.type}"
            raise ShapeError(f"{graph.called}: state {name!r}: {wanted}")
        made.outputs.pop(place)
        made.output_names.pop(place)
        made.inputs.append(value)
        made.outputs.append(after)
        made.output_names.append(source)
        made.states.append(first)
    return made


def _array(graph: Graph, name: str, given: Array) -> Array:
    """A copy, which the caller's writes do not change."""
    try:
        return np.array(given, order="C")
    except (TypeError, ValueError) as error:
        raise BoltError(f"{graph.called}: state {name!r}: got what is no array ({error}), wanted one") from error


def _end(graph: Graph, what: str, name: str) -> int:
    """Where an input or output of a caller is; raises BoltError where there is none of that name."""
    known = [v.name for v in graph.caller_inputs] if what == "input" else [n for n, _ in graph.caller_outputs]
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=3) or known
        raise BoltError(f"{graph.called}: state: {what}: got {name!r}, wanted {' or '.join(map(repr, near))}")
    return known.index(name)


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
        raise BoltError(f"{graph.called}: {what}: {'; '.join(lines)}")
    return [known[n] for n in names]


def _is_unicode(text: str) -> bool:
    """Whether files can hold a text: arguments that are no UTF-8 come as halves of pairs."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@border("with_names")
def with_names(graph: Graph, names: Mapping[str, str]) -> Graph:
    """With other names for inputs and outputs: the new one by the old one.

    Of an input that is an output under its own name both change.  Raises BoltError for unknown names, and for new ones
    that are no text, empty, or those of another tensor.
    """
    made = deep_clone(graph)
    ends = {v.name for v in made.caller_inputs} | {name for name, _ in made.caller_outputs}
    taken = set(_named(made)) - set(names)
    for old, new in names.items():
        if old not in ends:
            near = difflib.get_close_matches(str(old), ends, n=3) or sorted(ends)
            raise BoltError(f"{graph.called}: input or output: got {old!r}, wanted {' or '.join(map(repr, near))}")
        if not new or str(new) != new or new in taken or not _is_unicode(new):
            raise BoltError(f"{graph.called}: name for {old!r}: got {new!r}, wanted a text that no other tensor has")
        taken.add(new)
    for value in made.values():
        value.name = names.get(value.name, value.name)
    made.output_names = [names.get(name, name) for name in made.output_names]
    made.release_names(names)
    made.reserve_names(names.values())
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
    made = deep_clone(graph)
    format = graph.metadata.get("format")
    if names is None and format in ("caffe", "paddle"):
        raise BoltError(f"{graph.called}: channels: got them first, as in models of {format}, wanted them last")
    ends = {v.name for v in made.caller_inputs} | {name for name, _ in made.caller_outputs}
    for name in names or ():
        if name not in ends:
            near = difflib.get_close_matches(name, ends, n=3) or sorted(ends)
            raise BoltError(f"{graph.called}: input or output: got {name!r}, wanted {' or '.join(map(repr, near))}")
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
    """With these tensors as outputs, in this order; nodes that only other outputs need are dropped.

    Raises BoltError for unknown ones, DTypeError for what is no list.
    """
    made, names = deep_clone(graph), names_of(names)
    values = _find(made, names, "output")
    made.set_outputs(values, names)
    made.drop_dead()
    return made


@border("extract")
def extract(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """The part between named tensors.  No inputs: from the beginning, with the inputs that the part needs.

    What the model keeps from run to run is an input of a part.  Raises BoltError for unknown names, for an input that
    the outputs do not depend on, and when they depend on inputs of the model that are not named; DTypeError for what is
    no list of names.
    """
    inputs, outputs = names_of(inputs), names_of(outputs)
    _find(graph, [*inputs, *outputs], "tensor")
    made = with_outputs(graph, outputs)
    made.outputs, made.output_names = made.outputs[: len(outputs)], list(outputs)
    made.states = []
    reached = _named(made)
    unused = [name for name in inputs if name not in reached]
    if unused:
        raise BoltError(f"{graph.called}: input: got {unused}, wanted tensors that the outputs depend on")
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
        raise BoltError(f"{graph.called}: extract: the outputs also depend on {', '.join(open_ends)}; name them too")
    made.inputs = list(starts.values()) if inputs else needed
    unread = [v.name for v in made.inputs if not (v.uses or made.is_output(v))]
    if unread:
        raise BoltError(f"{graph.called}: input: got {unread}, wanted tensors that the outputs depend on")
    return inferred(made, [v.type for v in made.inputs])


# --- for one machine -------------------------------------------------------------------------------------------------


@border("pack")
def packed(
    graph: Graph,
    *,
    threads: Iterable[int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str = "f32",
    numerics: str = "default",
) -> Graph:
    """The optimised graph with packed weights; `bolt_numba.save` writes both into one file.

    threads: thread counts to prepare for; None: one and the default.  shapes: of inputs, where they are symbolic; what
    they leave free is guessed (`guesses.complete_shapes`).  precision, numerics: of the sessions to
    prepare for.  Others, and other threads and shapes, work, too: what they need is packed when it is needed.
    Raises ShapeError for shapes, BoltError for threads.
    """
    check_intact(graph.weights())
    graph = sized(graph, shapes or {})
    sizes = complete_shapes(graph, shapes)
    made = run_pipeline(graph, numerics="strict")  # what serves every setting
    found = made.packed = PackedWeights(machine(), sources=source_marks(made))
    for count in sorted(set(threads if threads is not None else (1, default_threads()))):
        session = Session(made, threads=count, precision=precision, numerics=numerics)
        with session._granted():
            runner, arrays = runner_at(session, sizes)
            runner.packs.pack(runner.planned_for(runner._types(arrays)).jobs)
        found.rows.update(session._packs.export())
        found.marks = marks_of(found.rows)
    return made
