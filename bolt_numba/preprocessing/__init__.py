"""Preprocessing as part of a graph: what a model wants of images and sound, put before it or run alone.

>>> from bolt_numba.preprocessing import Image, with_preprocessing
>>> graph = with_preprocessing(bn.load("model.onnx"), {"input": Image(mean=0.5, std=0.5)})
>>> y = bn.compile(graph)(pixels)          # u8 [height, width, 3], of any size
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Protocol

from bolt_numba.base.border import border
from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.types import Sym, TensorType
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.sizes import inferred
from bolt_numba.passes.pipeline import deep_clone
from bolt_numba.preprocessing.audio import Audio
from bolt_numba.preprocessing.decode import open_image, open_sound
from bolt_numba.preprocessing.image import Image
from bolt_numba.preprocessing.warp import Warp, matrix_of

__all__ = ["Audio", "Image", "Steps", "Warp", "matrix_of", "open_image", "open_sound", "with_preprocessing"]


class Steps(Protocol):
    """A description of what is done to an input, as `Image`, `Audio` and `Warp` are."""

    def takes(self, name: str) -> dict[str, TensorType]:
        """Names and types of what is given in the place of an input of this name; the first has this name."""
        ...

    def fitted(self, wanted: TensorType) -> Steps:
        """The same with what it leaves open taken from the type that a model wants."""
        ...

    def build(self, b: Builder, x: Value, *others: Any) -> Value:
        """Add the steps to a graph; a value for each of what they take."""
        ...


@border("with_preprocessing")
def with_preprocessing(graph: Graph, steps: Mapping[str, Steps]) -> Graph:
    """A model that takes what the steps take, by the same names, and does the steps first.

    Raises BoltError for an unknown input or unfit steps, ShapeError where their result is not what the model takes.
    """
    made = deep_clone(graph)
    inputs = {v.name: v for v in made.caller_inputs}
    nodes: list[Node] = []
    for name, each in steps.items():
        if name not in inputs:
            near = difflib.get_close_matches(name, inputs, n=3) or list(inputs)
            raise BoltError(f"{graph.called}: input: got {name!r}, wanted {' or '.join(map(repr, near))}")
        _replace_input(made, inputs[name], each, nodes)
    made.nodes[:0] = nodes
    return inferred(made, [v.type for v in made.inputs])


def _replace_input(graph: Graph, value: Value, steps: Steps, nodes: list[Node]) -> None:
    """What read the input reads the result of the steps, which read an input of that name."""
    name = value.name
    value.name = graph.unique_name(f"{name}/prepared")
    starts = [Value(key if key == name else graph.unique_name(key), t) for key, t in steps.takes(name).items()]
    made = steps.fitted(value.type).build(Builder(graph, nodes, f"{name}/"), *starts)
    if not _fits(value.type, made.type):
        raise ShapeError(f"{graph.called}: '{name}' after its steps: got {made.type}, wanted {value.type}")
    graph.replace_uses(value, made)
    place = graph.inputs.index(value)
    graph.inputs[place : place + 1] = starts


def _fits(wanted: TensorType, made: TensorType) -> bool:
    """Whether a model that takes one type may take the other; a symbol takes any size."""
    if wanted.shape is None or made.shape is None:
        return wanted.dtype == made.dtype
    if wanted.dtype != made.dtype or len(wanted.shape) != len(made.shape):
        return False
    pairs = zip(wanted.shape, made.shape, strict=True)
    return all(a == b or isinstance(a, Sym) or isinstance(b, Sym) for a, b in pairs)
