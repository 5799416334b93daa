"""Convolutions in the place of what others write for lack of an attribute.

dilated_conv(join(Conv(part(x))))             -> Conv(x, dilations)    pixels of equal remainders as images, by moves
pad_into_integer_conv(QLinearConv(Pad(x, z))) -> QLinearConv(x, pads)  z: the zero point of x
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.quantize import QuantizeLinear
from bolt_numba.ops.arrays.shape import Pad, Reshape, Transpose
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.integer_products import QLinearConv
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.passes.quantised.conversions import is_per_tensor
from bolt_numba.passes.recognise.absorb import window_pads, with_pads
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

_CONVOLUTIONS = (Conv, QLinearConv)


def _moved(value: Value | None) -> tuple[Value, Node] | None:
    """What a Reshape of a Transpose of a Reshape reads, and the Transpose; the Reshape at last is ``value``'s."""
    last = None if value is None else value.node
    turned = None if last is None or not isinstance(last.op, Reshape) or last.operands[0] is None else last.operands[0]
    node = None if turned is None else turned.node
    if node is None or not isinstance(node.op, Transpose) or node.operands[0] is None:
        return None
    first = node.operands[0].node
    if first is None or not isinstance(first.op, Reshape) or first.operands[0] is None:
        return None
    return first.operands[0], node


def _blocks(joined: Node, joined_from: Value, result: Value, parted: Node, x: Value, part: Value) -> Any:
    """Lengths of blocks by which ``parted`` cuts x apart and ``joined`` joins a result; None where they do not."""
    rank = len(x.type.shape or ())
    count, split = rank - 2, parted.operands[0].type.shape or ()  # type: ignore[union-attr]
    whole = joined.operands[0].type.shape or ()  # type: ignore[union-attr]
    if count < 1 or len(split) != rank + count or len(whole) != rank + count:
        return None
    cut = (*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), 2 * count + 1)
    join = (count, *(a for i in range(count) for a in (count + 1 + i, i)), 2 * count + 1)
    ops: Any = parted.op, joined.op
    blocks = split[2 : 2 * count + 1 : 2]
    if ops[0].perm != cut or ops[1].perm != join or whole[:count] != blocks:
        return None
    shapes = [v.type.shape or () for v in (x, part, joined_from, result)]
    if not all(isinstance(d, int) for s in shapes for d in s[1:]) or {len(s) for s in shapes} != {rank}:
        return None
    sizes = [[d * k for d, k in zip(s[1:-1], blocks, strict=True)] for s in shapes[1:3]]
    fits = sizes[0] == list(shapes[0][1:-1]) and sizes[1] == list(shapes[3][1:-1]) and shapes[0][0] == shapes[3][0]
    return blocks if fits and split[0] == whole[count] == shapes[0][0] else None


@rule(Pat(Reshape, (Pat(Transpose, (Pat(Reshape, (Pat(name="y", sole_use=True),), sole_use=True),), sole_use=True),)))
def dilated_conv(m: Match, b: Builder) -> Result:
    behind: list[Node] = []
    node = m["y"].node
    while node is not None and _is_local(node) and node.operands[0] is not None and m.sole(node.operands[0]):
        behind.append(node)
        node = node.operands[0].node
    op: Any = None if node is None else node.op
    if node is None or not isinstance(op, _CONVOLUTIONS) or op.layout != "NHWC" or op.residual:
        return m.refuse("not of a convolution, channels last")
    if any(op.pads) or op.auto_pad not in ("NOTSET", "VALID") or set(op.strides) - {1} or set(op.dilations) - {1}:
        return m.refuse("with pads, strides or dilations of its own")
    parted, joined = _moved(node.operands[0]), _moved(m.root.output)
    if parted is None or joined is None or node.operands[0] is None:
        return m.refuse("its operand is not made by moves")
    (x, apart), (_, together) = parted, joined
    blocks = _blocks(together, m["y"], m.root.output, apart, x, node.operands[0])
    if blocks is None:
        return m.refuse("the moves do not cut pixels apart and join them again")
    made = b(replace(op, dilations=tuple(blocks), auto_pad="NOTSET"), x, *node.inputs[1:])
    for each in reversed(behind):
        made = b(each.op, made, *each.inputs[1:])
    return made


def _is_local(node: Node) -> bool:
    """Whether each element of a result depends on one element of the first operand, wherever that is."""
    op: Any = node.op
    return (isinstance(op, Pointwise) and op.arity == 1) or (isinstance(op, QuantizeLinear) and is_per_tensor(node))


@rule(Pat(QLinearConv, (Pat(Pad, (Pat(name="x"),), name="pad", where=lambda op: op.mode == "constant"),)))
def pad_into_integer_conv(m: Match, b: Builder) -> Result:
    pad = m.node("pad")
    conv: Any = m.root.op
    extra = window_pads(m, len(m["pad"].type.shape or ()) - 2, conv.layout)
    given, zero = (v.const if v is not None else None for v in ((*pad.inputs, None)[2], m.root.inputs[2]))
    if extra is None or conv.auto_pad not in ("NOTSET", "VALID"):
        return m.refuse("not a padding of the image")
    is_zero = len(pad.inputs) < 3 or pad.inputs[2] is None
    if zero is None or zero.size != 1 or (given is None and not is_zero):
        return m.refuse("by what only the run tells")
    if int(zero.reshape(())[()]) != (0 if given is None else int(given.reshape(())[()])):
        return m.refuse("not by the zero point")
    return b(with_pads(conv, extra), m["x"], *m.root.inputs[1:])


RULES: tuple[Rule, ...] = (dilated_conv, pad_into_integer_conv)
