"""Which nodes are quantised and how: layers, and the wishes of the user for each by patterns of names."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import BoltError, DTypeError, OptionError
from bolt_numba.base.options import flag_of
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.registry import result_tuple
from bolt_numba.passes.quantised.binary import is_binary
from bolt_numba.quantize.methods import KINDS, WEIGHT_KINDS, method_of


@record(frozen=True)
class Scheme:
    """How a layer is quantised.

    activations: ``"u8"``, ``"s8"``, ``"u16"``, ``"s16"`` · weights: ``"s8"`` or ``"s4"`` · per_channel: a scale for
    each filter or column · symmetric: activations have zero in the middle · method: see `methods.METHODS` ·
    results: those of convolutions are rounded, too, before what follows computes with them.
    """

    activations: str = "u8"
    weights: str = "s8"
    per_channel: bool = True
    symmetric: bool = False
    method: str = "mse"
    results: bool = True

    def __post_init__(self) -> None:
        for what, kinds in (("activations", KINDS), ("weights", WEIGHT_KINDS)):
            if getattr(self, what) not in kinds:
                raise OptionError(f"{what}: got {getattr(self, what)!r}, wanted one of {', '.join(kinds)}")
        for what in ("per_channel", "symmetric", "results"):
            flag_of(what, getattr(self, what))
        method_of(self.method)


@record(frozen=True, eq=False)
class QuantLayer:
    """A node whose operands can be quantised.

    inputs: numbers of the operands that are activations, none of a table · weight: number of the constant, None for a
    product of two activations · axis: of the weight, along which scales may differ · channel: axis of the activations
    that meets the weight · bias: number of the operand.
    """

    name: str
    op: str
    inputs: tuple[int, ...]
    weight: int | None
    axis: int | None
    channel: int
    bias: int
    node: Node

    def operand(self, number: int) -> Value:
        """An operand that is there."""
        value = self.node.inputs[number]
        assert value is not None, "layers have their operands"
        return value

    @property
    def weights(self) -> Array | None:
        """The constant; None for a product of two activations."""
        return None if self.weight is None else self.operand(self.weight).const


LEAST_WEIGHTS = 1 << 12
"""Numbers of a table, or weights of a product, under which it stays as it is where only the weights are stored."""
USUAL = 0.07
"""Root of a table's mean square, as a part of its greatest magnitude, from which 8 bits leave 30 dB."""
BIAS = 2
"""Operand of Conv, ConvTranspose and MatMul that is added."""


def layers_of(graph: Graph, *, attention: bool = False) -> list[QuantLayer]:
    """Convolutions and products of f32 with constant weights, and tables that rows are looked up in.

    attention: products of two activations, too.
    """
    found = []
    for node in graph.nodes:
        layer = _layer(node, attention)
        if layer is not None:
            found.append(layer)
    return found


def with_plain_weights(graph: Graph) -> Graph:
    """A copy in which weights and biases of layers that are computed from constants are constants.

    Files hold weights in 8 or 16 bits behind a conversion.
    """
    made = graph.clone()
    b = Builder(made)
    fixed: set[Value] = set()
    for node in made.nodes:
        known = all(v is None or v.is_const or v in fixed for v in node.inputs)
        if known and node.inputs and not node.op.has_side_state:
            fixed.update(node.outputs)
        if isinstance(node.op, (Conv, ConvTranspose, MatMul)):
            for i, value in enumerate(node.inputs[1:], 1):
                if value is not None and value in fixed:
                    node.set_input(i, b.const(_computed(value), value.name))
    made.drop_dead()
    return made


def _computed(value: Value) -> Array:
    """What a value holds that depends on constants alone."""
    if value.const is not None:
        return value.const
    assert value.node is not None, "inputs are no constants"
    given = [None if v is None else _computed(v) for v in value.node.inputs]
    return np.asarray(result_tuple(value.node.op.reference(*given))[value.index])


def is_large(w: Array | None) -> bool:
    """Whether a matrix is worth the conversion of what is read of it."""
    return w is not None and w.ndim == 2 and w.size >= LEAST_WEIGHTS


def _layer(node: Node, attention: bool) -> QuantLayer | None:
    op: Any = node.op
    if isinstance(op, Gather):
        table = node.operands[0]
        is_table = table is not None and _is_float(table) and is_large(table.const) and _is_even(table.const)
        return QuantLayer(node.name, op.name, (), 0, None, -1, BIAS, node) if is_table else None
    if not isinstance(op, (Conv, ConvTranspose, MatMul)) or getattr(op, "activation", None) is not None:
        return None
    if getattr(op, "residual", False):
        return None
    x, w = node.inputs[:2]
    if x is None or w is None or x.is_const or not _is_float(x) or not _is_float(w):
        return None
    if w.const is None:
        both = attention and isinstance(op, MatMul)
        return QuantLayer(node.name, op.name, (0, 1), None, None, -1, BIAS, node) if both else None
    if w.const.ndim < 2 or not np.all(np.isfinite(w.const)):
        return None
    if is_binary(node):  # that runs on bits as it is, and exactly
        return None
    if isinstance(op, MatMul):
        axis, channel = w.const.ndim - (2 if op.trans_b else 1), -2 if op.trans_a else -1
        return QuantLayer(node.name, op.name, (0,), 1, axis, channel, BIAS, node)
    along: int | None = 0 if isinstance(op, Conv) else 1 if op.group == 1 else None
    return QuantLayer(node.name, op.name, (0,), 1, along, 1 if op.layout == "NCHW" else -1, BIAS, node)


def _is_even(table: Array | None) -> bool:
    """Whether one scale holds a table's usual numbers well; False for NaN and infinities."""
    if table is None:
        return False
    reach, flat = float(np.max(np.abs(table))), table.reshape(-1)
    return 0 < reach < np.inf and float(np.vdot(flat, flat)) / flat.size >= (USUAL * reach) ** 2


def _is_float(value: Value) -> bool:
    """F32 that does not come out of integers already."""
    return value.type.dtype == F32 and (value.node is None or value.node.op.name != "DequantizeLinear")


def schemes_for(
    layers: Sequence[QuantLayer], usual: Scheme, keep: Sequence[str], overrides: Mapping[str, Any]
) -> dict[str, Scheme | None]:
    """The scheme of each layer by its name; None for one that stays float.

    keep: patterns of names (``*`` and ``?``) of layers, or of operators.  overrides: changes by pattern, as
    ``{"*head*": {"activations": "u16"}}`` or ``{"conv1": None}``; a later one wins.  Raises BoltError for a pattern
    that no layer has, and where there are no layers.
    """
    if not layers:
        raise BoltError("layers: got no convolution or product of f32 with constant weights outside of control flow")
    made: dict[str, Scheme | None] = {layer.name: usual for layer in layers}
    given: Any = keep
    if isinstance(given, str) or not isinstance(given, Iterable) or not isinstance(overrides, Mapping):
        raise DTypeError(f"keep and overrides: got {keep!r} and {overrides!r}, wanted a list of patterns and a mapping")
    keep = list(keep)
    for pattern in (*keep, *overrides):
        if not isinstance(pattern, str):
            raise DTypeError(f"keep and overrides: got pattern {pattern!r}, wanted texts")
    wishes: list[tuple[str, Any]] = [(pattern, None) for pattern in keep]
    for pattern, change in (*wishes, *overrides.items()):
        hit = [k for k in layers if fnmatch.fnmatchcase(k.name, pattern) or fnmatch.fnmatchcase(k.op, pattern)]
        if not hit:
            some = ", ".join(repr(layer.name) for layer in layers[:5])
            raise BoltError(f"layers: got pattern {pattern!r}, wanted one that fits a layer such as {some}")
        for layer in hit:
            made[layer.name] = None if change is None else _changed(made[layer.name] or usual, pattern, change)
    return made


def _changed(scheme: Scheme, pattern: str, change: Any) -> Scheme:
    names = [f.name for f in dataclasses.fields(Scheme)]
    if not isinstance(change, Mapping) or set(change) - set(names):
        raise BoltError(f"overrides: {pattern!r}: got {change!r}, wanted None or changes of {', '.join(names)}")
    return dataclasses.replace(scheme, **change)
