"""Finds products of twofold values with weights of one magnitude a filter, which are computed on bits.

binary_conv(Conv(twofold x, w))           -> BinaryConv(BinaryPack(x), w)       x is one of -v and v, or 0 and v
binary_matmul(MatMul(twofold x, w))       -> BinaryMatMul(BinaryPack(x), w)

Twofold values are Sign(x), Where(x > c, 1, -1), Cast(x > c), Round(Clip(x, 0, 1)), times and plus numbers.  A Clip
of x that keeps both sides of c does not matter.  Sign has a third value: two packs tell where x is 0 (`BinaryPack`),
so that its sums are right, too.  Sums are of whole numbers and exact, where those of floats may round.  A Sign of NaN
is taken as 0, a Round of NaN as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, F32, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.shape import Flatten, Pad, Reshape, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.binary import (
    MOST_BITS,
    SIGN,
    WORD,
    BinaryConv,
    BinaryMatMul,
    BinaryPack,
    magnitudes,
)
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.registry import Op
from bolt_numba.passes.constants import scaled_weight
from bolt_numba.passes.recognise.absorb import pad_value, window_pads, with_pads
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule, scalar_of

COMPARISONS: dict[type[Op], str] = {p.Greater: "gt", p.GreaterOrEqual: "ge", p.Less: "lt", p.LessOrEqual: "le"}
SWAPPED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
OPPOSITE = {name: f"not_{name}" for name in SWAPPED}
AFFINE = (p.Add, p.Sub, p.Mul, p.Div, p.Neg)
MOVES = (Reshape, Flatten, Squeeze, Unsqueeze, Transpose)
TWOFOLD = (p.Sign, p.Where, p.Cast, p.Round, MaxPool, *AFFINE, *MOVES)
"""What makes, or only changes, twofold values."""
DEPTH = 8


@record(frozen=True)
class Twofold:
    """A value that has one number where x compares with the bound and another where it does not.

    numbers: off, on; off, at the bound, on for the comparison "sign".  moves: nodes that move x, the last one first.
    """

    x: Value
    compare: str
    bound: Array
    numbers: Array
    moves: tuple[Node, ...] = ()


def twofold_of(value: Value, axis: int, depth: int = DEPTH) -> Twofold | None:
    """``value`` as twofold values; axis: along which bounds may differ; None: it is nothing of the kind."""
    node = value.node
    if node is None or depth == 0 or value.type.dtype != F32 or not node.inputs or node.inputs[0] is None:
        return None
    if isinstance(node.op, AFFINE):
        return _affine(node, axis, depth)
    if isinstance(node.op, (MaxPool, *MOVES)):
        return _moved(node, axis, depth)
    source = SOURCES.get(type(node.op))
    return None if source is None else source(node, node.inputs[0], axis)


def _of_sign(node: Node, x: Value, axis: int) -> Twofold | None:
    if x.node is not None and isinstance(x.node.op, p.Relu):
        return _seen(x.node.inputs[0], "gt", _numbers(0), _numbers(0, 1))
    return _seen(x, SIGN, _numbers(0), _numbers(-1, 0, 1))


def _of_round(node: Node, x: Value, axis: int) -> Twofold | None:
    if x.node is None or x.node.op != p.Clip(0, 1):
        return None
    return _seen(x.node.inputs[0], "gt", _numbers(0.5), _numbers(0, 1))


def _of_cast(node: Node, x: Value, axis: int) -> Twofold | None:
    return _compared(x, axis, _numbers(0, 1)) if x.type.dtype == BOOL else None


def _of_where(node: Node, x: Value, axis: int) -> Twofold | None:
    on, off = (scalar_of(v) for v in node.inputs[1:3])
    if on is None or off is None or node.output.type.shape != x.type.shape:
        return None
    return _compared(x, axis, _numbers(off, on))


SOURCES: dict[Any, Callable[[Node, Value, int], Twofold | None]] = {
    p.Sign: _of_sign,
    p.Round: _of_round,
    p.Cast: _of_cast,
    p.Where: _of_where,
}


def _moved(node: Node, axis: int, depth: int) -> Twofold | None:
    """Twofold values in other places: those of x in these places."""
    found = None if node.inputs[0] is None else twofold_of(node.inputs[0], axis, depth - 1)
    if found is None or (isinstance(node.op, MOVES) and found.bound.size > 1):
        return None
    if isinstance(node.op, MaxPool) and (len(node.outputs) > 1 or not _rises(found)):
        return None
    return replace(found, moves=(node, *found.moves))


def _numbers(*numbers: float) -> Array:
    return np.array(numbers, F32)


def _rises(found: Twofold) -> bool:
    """Whether the values are in the order of x, so that the greatest of several is that of the greatest x."""
    return bool((found.numbers[-1] > found.numbers[0]) == (found.compare not in ("lt", "le")))


def _affine(node: Node, axis: int, depth: int) -> Twofold | None:
    """Twofold values times or plus one number."""
    inside = [v for v in node.inputs if v is not None and v.const is None]
    if len(inside) != 1 or inside[0].type.shape != node.output.type.shape:
        return None
    if any(scalar_of(v) is None for v in node.inputs if v is not inside[0]):
        return None
    found = twofold_of(inside[0], axis, depth - 1)
    if found is None:
        return None
    operands = [found.numbers if v is inside[0] or v is None else v.const for v in node.inputs]
    return replace(found, numbers=node.op.reference(*operands).reshape(-1))


def _compared(condition: Value, axis: int, numbers: Array) -> Twofold | None:
    """Twofold values by a comparison with constants."""
    node = condition.node
    while node is not None and isinstance(node.op, p.Not) and node.inputs[0] is not None:
        node, numbers = node.inputs[0].node, numbers[::-1]
    name = None if node is None else COMPARISONS.get(type(node.op))
    if node is None or name is None:
        return None
    x, c = node.inputs
    if x is not None and x.const is not None:
        x, c, name = c, x, SWAPPED[name]
    if x is None or c is None or c.const is None or x.type.dtype != F32 or x.type.shape != node.output.type.shape:
        return None
    shape = x.type.shape
    if shape is None or c.const.ndim > len(shape):
        return None
    whole = (1,) * (len(shape) - c.const.ndim) + c.const.shape
    if any(d != 1 for i, d in enumerate(whole) if i != axis % len(shape)) or not c.const.size:
        return None
    return _seen(x, name, c.const.reshape(-1), numbers)


def _seen(x: Value | None, compare: str, bound: Array, numbers: Array) -> Twofold | None:
    """Twofold values of x, or of what a Clip that does not touch the comparison reads."""
    if x is None or x.type.dtype != F32 or np.any(np.isnan(bound)):
        return None
    op: Any = None if x.node is None else x.node.op
    while isinstance(op, p.Clip) and x.node is not None and x.node.inputs[0] is not None:
        low, high = (-np.inf if op.lo is None else op.lo), (np.inf if op.hi is None else op.hi)
        if not (np.all(bound > low) and np.all(bound < high)):
            break
        x = x.node.inputs[0]
        op = None if x.node is None else x.node.op
    return Twofold(x, compare, bound, numbers)


def _with_unit(value: Value, axis: int) -> tuple[Twofold, bool, float] | None:
    """A twofold value, whether its numbers are 0 and v, and v; None where they are neither that nor -v and v."""
    found = twofold_of(value, axis)
    if found is None or (len(found.numbers) == 3 and found.numbers[1] != 0):
        return None
    if len(found.numbers) == 2 and found.numbers[1] == 0:
        found = replace(found, compare=OPPOSITE[found.compare], numbers=found.numbers[::-1])
    off, on = float(found.numbers[0]), float(found.numbers[-1])
    if not np.isfinite(on) or on == 0 or (off != -on and (off != 0 or len(found.numbers) == 3)):
        return None
    return found, off == 0, on


def _binary_weights(node: Node, w: Array, axis: int, factor: float) -> Array | None:
    """Weights of a node times a factor; None where a filter, along ``axis``, has several magnitudes or is too large.

    None, too, where the node has a bias that is not constant.
    """
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if w.dtype != F32 or not w.size or w.size >= MOST_BITS * w.shape[axis] or (bias is not None and bias.const is None):
        return None
    shape = [1] * w.ndim
    shape[axis] = -1
    if not np.array_equal(np.abs(w), np.broadcast_to(magnitudes(w, axis).reshape(shape), w.shape)):
        return None
    return w if factor == 1 else scaled_weight(w, np.asarray(factor))


def _packed(b: Builder, found: Twofold, axis: int) -> Value:
    x: Value = found.x
    for move in reversed(found.moves):
        x = b(move.op, x, *move.inputs[1:])
    return b(BinaryPack(axis, found.compare), x, found.bound)


def is_bare(op: Any) -> bool:
    return op.activation is None and not op.residual


@rule(Pat(Conv, (Pat((*TWOFOLD, Pad), name="pad"), const("w"))))
def binary_conv(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    x, outside, pads = m["pad"], 0.0, None
    shape, w = x.type.shape, m["w"].const
    if shape is None or w is None or not is_bare(op) or len(shape) != w.ndim:
        return None
    axis = 1 if op.layout == "NCHW" else len(shape) - 1
    if isinstance(m.op("pad"), Pad):
        value = pad_value(m.node("pad"))
        pads = window_pads(m, len(shape) - 2, op.layout)
        inner = m.node("pad").inputs[0]
        if m.op("pad").mode != "constant" or value is None or pads is None or inner is None:
            return m.refuse("not a padding of the image by a number")
        if (any(op.pads) or op.auto_pad not in ("NOTSET", "VALID")) and value != 0:
            return m.refuse("the convolution has pads of another number")
        x, outside = inner, value
    seen = _with_unit(x, axis)
    if seen is None:
        return m.refuse("the image is not twofold, -v and v or 0 and v")
    found, zero_one, factor = seen
    weights = _binary_weights(m.root, w, 0, factor)
    if weights is None or not isinstance(shape[axis], int) or (op.group > 1 and w.shape[1] % WORD):
        return m.refuse("the weights of a filter differ in magnitude, or a group is no whole words")
    if outside / factor not in (-1, 0, 1):
        return m.refuse("the padding is neither of the two numbers nor 0")
    plain = op if pads is None else with_pads(op, pads)
    made = BinaryConv(
        plain.strides, plain.pads, plain.dilations, op.group, plain.auto_pad, op.layout, zero_one=zero_one,
        outside=int(outside / factor),
    )  # fmt: skip
    return b(made, _packed(b, found, axis), weights, *m.root.inputs[2:])


@rule(Pat(MatMul, (Pat(TWOFOLD, name="x"), const("w"))))
def binary_matmul(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    shape, w = m["x"].type.shape, m["w"].const
    if not shape or w is None or w.ndim != 2 or op.trans_a or not is_bare(op):
        return None
    seen = _with_unit(m["x"], -1)
    if seen is None:
        return m.refuse("the rows are not twofold, -v and v or 0 and v")
    found, zero_one, factor = seen
    weights = _binary_weights(m.root, w.T if op.trans_b else w, 1, factor * op.alpha)
    if weights is None or not isinstance(shape[-1], int):
        return m.refuse("the weights of a column differ in magnitude")
    return b(BinaryMatMul(zero_one=zero_one), _packed(b, found, -1), weights, *m.root.inputs[2:])


def is_binary(node: Node) -> bool:
    """Whether a Conv or MatMul is a product of twofold values with weights of one magnitude a filter."""
    x, w = node.inputs[:2]
    op: Any = node.op
    if x is not None and x.node is not None and isinstance(x.node.op, Pad):
        x = x.node.inputs[0]
    if x is None or w is None or w.const is None or not isinstance(op, (Conv, MatMul)) or not x.type.shape:
        return False
    is_first = isinstance(op, Conv) and op.layout == "NCHW"
    by_row = isinstance(op, Conv) or op.trans_b
    seen = _with_unit(x, 1 if is_first else len(x.type.shape) - 1)
    return seen is not None and _binary_weights(node, w.const, 0 if by_row else w.const.ndim - 1, seen[2]) is not None


RULES: tuple[Rule, ...] = (binary_conv, binary_matmul)
