"""ONNX graphs of the zoo as functions of frameworks that have no reader of their own: torch, JAX, Paddle.

    python -m bench.translate MODEL.onnx FEEDS.npz STEM     # Paddle's static graph, for paddle.inference

Nothing is rewritten but what a user of the framework would have written otherwise: norms are folded into convolutions,
the error function's GELU and attention become the framework's own calls.  Imports nothing of this project.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Call:
    """A node: the operator, names of operands and results, attributes."""

    op: str
    given: list[str]
    made: list[str]
    attributes: dict[str, Any]


@dataclass
class Translation:
    """A graph while it is simplified.  ``settings``: constants that shape the program (shapes, scales, axes)."""

    steps: list[Call]
    weights: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    def maker(self, name: str, op: str) -> Call | None:
        """The step that makes a value for one reader only, where it is of this operator."""
        step = next((s for s in self.steps if name in s.made), None)
        readers = sum(s.given.count(name) for s in self.steps)
        return step if step is not None and step.op == op and readers == 1 and name not in self.outputs else None

    def drop(self, *steps: Call) -> None:
        gone = {id(s) for s in steps}
        self.steps = [s for s in self.steps if id(s) not in gone]

    def is_scalar(self, name: str, value: float) -> bool:
        array = self.weights.get(name)
        return array is not None and array.size == 1 and abs(float(array.reshape(())) - value) < 1e-6


SETTINGS = {"Reshape": (1,), "Split": (1,), "Squeeze": (1,), "Resize": (1, 2, 3), "Clip": (1, 2), "Gather": (1,)}
"""Operands that frameworks take as plain numbers where they are constants."""


def read(path: Path, *, attention: bool) -> Translation:
    """The graph with norms and GELU folded, and attention where wished."""
    onnx: Any = importlib.import_module("onnx")
    graph = onnx.load(path).graph
    steps = [
        Call(
            n.op_type, list(n.input), list(n.output), {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}
        )
        for n in graph.node
    ]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    made = Translation(steps, weights, [i.name for i in graph.input], [o.name for o in graph.output])
    fold_norms(made)
    fold_gelu(made)
    if attention:
        fold_attention(made)
    used = {name for s in made.steps for name in s.given}
    fixed = {s.given[i] for s in made.steps for i in SETTINGS.get(s.op, ()) if i < len(s.given)}
    made.settings = {n: a.tolist() for n, a in made.weights.items() if n in fixed}
    made.weights = {n: a for n, a in made.weights.items() if n in used and n not in fixed}
    return made


def fold_norms(t: Translation) -> None:
    """Conv -> BatchNormalization becomes one Conv."""
    for norm in [s for s in t.steps if s.op == "BatchNormalization"]:
        conv = t.maker(norm.given[0], "Conv")
        if conv is None:
            continue
        scale, shift, mean, var = (t.weights[n].astype("f8") for n in norm.given[1:5])
        factor = scale / np.sqrt(var + norm.attributes.get("epsilon", 1e-5))
        weight = t.weights[conv.given[1]]
        bias = t.weights[conv.given[2]] if len(conv.given) > 2 else 0.0
        names = [f"{norm.made[0]} weight", f"{norm.made[0]} bias"]
        t.weights[names[0]] = (weight * factor[:, None, None, None]).astype("f4")
        t.weights[names[1]] = ((bias - mean) * factor + shift).astype("f4")
        conv.given, conv.made = [conv.given[0], *names], norm.made
        t.drop(norm)


def fold_gelu(t: Translation) -> None:
    """((x * (erf(x / sqrt 2) + 1)) * 0.5 becomes Gelu(x)."""
    for half in [s for s in t.steps if s.op == "Mul" and t.is_scalar(s.given[1], 0.5)]:
        product = t.maker(half.given[0], "Mul")
        plus = t.maker(product.given[1], "Add") if product else None
        erf = t.maker(plus.given[0], "Erf") if plus else None
        div = t.maker(erf.given[0], "Div") if erf else None
        if product and plus and erf and div and t.is_scalar(div.given[1], 2**0.5) and div.given[0] == product.given[0]:
            half.op, half.given = "Gelu", [div.given[0]]
            t.drop(product, plus, erf, div)


def fold_attention(t: Translation) -> None:
    """softmax(q k / s [+ mask]) v becomes Attention(q, k, v[, mask])."""
    for last in [s for s in t.steps if s.op == "MatMul"]:
        softmax = t.maker(last.given[0], "Softmax")
        if softmax is None:
            continue
        add = t.maker(softmax.given[0], "Add")
        div = t.maker((add or softmax).given[0], "Div")
        first = t.maker(div.given[0], "MatMul") if div else None
        if div is None or first is None:
            continue
        scale = 1.0 / float(t.weights[div.given[1]].reshape(()))
        last.op, last.attributes = "Attention", {"scale": scale}
        last.given = [*first.given, last.given[1], *(add.given[1:] if add else [])]
        t.drop(*(s for s in (softmax, add, div, first) if s is not None))


Table = Mapping[str, Callable[..., Any]]
"""ONNX's operator -> a function of its operands and, by name, its attributes."""


def evaluate(t: Translation, table: Table, weights: Mapping[str, Any], given: Sequence[Any]) -> list[Any]:
    """Results of the graph by a framework's table; ``weights`` in the framework's own type."""
    values: dict[str, Any] = {**weights, **dict(zip(t.inputs, given, strict=True))}
    for step in t.steps:
        fixed = SETTINGS.get(step.op, ())
        operands = [
            None if not name else t.settings[name] if i in fixed and name in t.settings else values[name]
            for i, name in enumerate(step.given)
        ]
        if step.op not in table:
            raise NotImplementedError(f"{step.op}: not translated")
        made = table[step.op](*operands, **step.attributes)
        values.update(zip(step.made, made if isinstance(made, (list, tuple)) else [made], strict=False))
    return [values[name] for name in t.outputs]


def torch_module(path: Path, values: str = "float32") -> tuple[Any, list[str]]:
    """A module with the weights as buffers, and the names of its inputs.  values: what torch calls their dtype."""
    torch: Any = importlib.import_module("torch")
    made, dtype = read(path, attention=True), getattr(torch, values)
    table = importlib.import_module("bench.operators").torch_table(dtype)

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.names = list(made.weights)
            for i, array in enumerate(made.weights.values()):
                kind = dtype if array.dtype == np.float32 else None
                self.register_buffer(f"w{i}", torch.tensor(array, dtype=kind))

        def forward(self, *given: Any) -> list[Any]:
            weights = {name: getattr(self, f"w{i}") for i, name in enumerate(self.names)}
            return evaluate(made, table, weights, given)

    return Module().eval(), made.inputs


def jax_function(path: Path) -> tuple[Callable[..., list[Any]], dict[str, Any], list[str]]:
    """A function of weights and inputs, the weights, the names of the inputs."""
    made, table = read(path, attention=False), importlib.import_module("bench.operators").jax_table()

    def forward(weights: Mapping[str, Any], *given: Any) -> list[Any]:
        return evaluate(made, table, weights, given)

    return forward, made.weights, made.inputs


def tflite_bytes(path: Path, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """A TFLite file of the graph."""
    tf: Any = importlib.import_module("tensorflow")
    made, table = read(path, attention=False), importlib.import_module("bench.operators").tensorflow_table()
    weights = {name: tf.constant(array) for name, array in made.weights.items()}

    def forward(*given: Any) -> list[Any]:
        return evaluate(made, table, weights, given)

    kinds = [tf.float32 if len(shapes[name]) == 4 else tf.int32 for name in made.inputs]
    specs = [tf.TensorSpec(shapes[name], kind, name) for name, kind in zip(made.inputs, kinds, strict=True)]
    graph = tf.function(forward, input_signature=specs, autograph=False).get_concrete_function()
    content: bytes = tf.lite.TFLiteConverter.from_concrete_functions([graph]).convert()
    return content


def save_paddle(path: Path, feeds: Mapping[str, Any], stem: str) -> None:
    """Write STEM.json and STEM.pdiparams."""
    paddle: Any = importlib.import_module("paddle")
    made, table = read(path, attention=False), importlib.import_module("bench.operators").paddle_table()

    untraced = paddle.jit.not_to_static(evaluate)  # it runs while the graph is recorded, it is not part of it

    class Layer(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for i, array in enumerate(made.weights.values()):
                self.register_buffer(f"w{i}", paddle.to_tensor(array))

        def forward(self, first: Any, second: Any = None) -> list[Any]:  # it takes no open list of arguments
            given = [first] if len(made.inputs) == 1 else [first, second]
            weights = {name: getattr(self, f"w{i}") for i, name in enumerate(made.weights)}
            answers: list[Any] = untraced(made, table, weights, given)
            return answers

    kinds = {"f": "float32", "i": "int64"}
    specs = [paddle.static.InputSpec(list(feeds[n].shape), kinds[feeds[n].dtype.kind], n) for n in made.inputs]
    layer = Layer()
    layer.eval()
    paddle.jit.save(paddle.jit.to_static(layer, input_spec=specs, full_graph=True), stem)


if __name__ == "__main__":
    with np.load(sys.argv[2]) as stored:
        save_paddle(Path(sys.argv[1]), {name: stored[name] for name in stored.files}, sys.argv[3])
