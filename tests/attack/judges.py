"""Who is right where onnxruntime gives something else: the standard's own evaluator, and whether anybody can be.

The evaluator of onnx runs the model in f64, where tails do not cancel.  And a model whose results vary when every real
number on the way is off by a few roundings, as places of a maximum among equals, has no right result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import bolt_numba as bn
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.evaluate import evaluate
from bolt_numba.types import Array

TURNS = 6
"""How often a model is shaken: two equal numbers stay in order all the time once in 32 times."""
_WIDE = {onnx.TensorProto.FLOAT: onnx.TensorProto.DOUBLE}

Feeds = dict[str, Any]
Rng = np.random.Generator
Compare = Callable[[list[Any], list[Any]], bool]


def is_excused(model: onnx.ModelProto, feeds: Feeds, results: list[Any], compare: Compare, rng: Rng) -> str:
    """Why results that are not onnxruntime's are no mistake: "evaluator" or "jumps"; "" where nothing says so."""
    if _evaluator_agrees(model, feeds, results, compare):
        return "evaluator"
    return "jumps" if _jumps(model, feeds, compare, rng) else ""


class Erf(OpRun):
    """The evaluator's own gives f32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=["d"])(x),)


class Gelu(OpRun):
    """The evaluator's own has that Erf, whose tail cancels."""

    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * np.vectorize(math.erfc, otypes=["d"])(-x / math.sqrt(2)),)


def _evaluator_agrees(model: onnx.ModelProto, feeds: Feeds, results: list[Any], compare: Compare) -> bool:
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(_widened(model), new_ops=[Erf, Gelu]).run(
                None, {name: _wide(a) for name, a in feeds.items()}
            )
    except Exception:  # it lacks operators, and has mistakes of its own
        return False
    return compare(results, [_as(g, w) for g, w in zip(results, found, strict=True)])


def _wide(a: Any) -> Any:
    return a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a


def _as(got: Any, wanted: Any) -> Any:
    """The evaluator's array in the dtype of ours, where that is narrower."""
    wide = isinstance(wanted, np.ndarray) and wanted.dtype == np.float64
    return wanted.astype(np.asarray(got).dtype) if wide and np.asarray(got).dtype == np.float32 else wanted


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with f64 in the place of f32: its constants, and what casts make."""
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    _widen(wide.graph)
    return wide


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                _widen(a.g)
            elif a.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(a.t)
            elif a.name in ("to", "dtype"):
                a.i = _WIDE.get(a.i, a.i)
            elif node.op_type == "Constant" and a.name in ("value_float", "value_floats"):
                value = np.array(a.f if a.name == "value_float" else a.floats, np.float64)
                a.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx.TensorProto.FLOAT:
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), name))


def _jumps(model: onnx.ModelProto, feeds: Feeds, compare: Compare, rng: Rng) -> bool:
    """Whether the references give others each time that all reals are shaken; what kernels gave is not looked at."""
    try:
        graph = bn.load(model.SerializeToString())
        first, *others = (_shaken_run(graph, feeds, rng) for _ in range(TURNS))
    except Exception:
        return False
    return not all(compare(first, other) for other in others)


def _shaken_run(graph: Graph, feeds: Feeds, rng: Rng) -> list[Any]:
    """Results of the references, with noise on every operand and between nodes."""
    arrays = {id(v): _shaken(feeds[v.name], rng) for v in graph.inputs}
    arrays |= {id(v): _shaken(v.const, rng) for v in graph.constants()}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            args = [None if v is None else arrays[id(v)] for v in node.inputs]
            made: Iterable[Any]
            made = node.op.execute(args, _run_body) if isinstance(node.op, ControlFlow) else evaluate(node.op, args)
            arrays |= {id(v): _shaken(a, rng) for v, a in zip(node.outputs, made, strict=False)}
    return [arrays[id(v)] for v in graph.outputs]


def _run_body(graph: Graph, inputs: Sequence[Any]) -> list[Array]:
    made = interpret(graph, {v.name: a for v, a in zip(graph.inputs, inputs, strict=True)})
    return [made[name] for name in graph.output_names]


def _shaken(a: Any, rng: Rng) -> Any:
    if not isinstance(a, np.ndarray) or a.dtype.kind != "f":
        return a
    return (a * (1 + 16 * np.finfo(a.dtype).eps * rng.uniform(-1, 1, a.shape))).astype(a.dtype)
