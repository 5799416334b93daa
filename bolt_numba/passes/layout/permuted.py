"""How an operator runs on permuted operands: the same values in another order of axes, nothing else.

A `PermutedNode` says which permutation each operand and result gets, and builds the changed node.  `permuted` makes
it for one node when the permutation of one operand or result is given; None: the node needs its own order of axes.
A permutation ``p`` of a value v stands for ``Transpose(p)(v)``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import Shape as Dims
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.histogram import Histogram
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ArgMax, ArgMin, CumSum, Hardmax, LogSoftmax, Reduction, Softmax, TopK
from bolt_numba.ops.arrays.shape import Concat, Expand, Identity, Pad, Reshape, Shape, Size, Slice, Split, Tile
from bolt_numba.ops.layers.norm import LayerNormalization, LpNormalization, RMSNormalization
from bolt_numba.ops.layers.products.binary import BinaryPack
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import Op
from bolt_numba.passes.canonical.views import axis_groups, shape_operand

Perm: TypeAlias = tuple[int, ...]
Build: TypeAlias = Callable[[Builder, Sequence[Value | None]], Node]


@record(frozen=True)
class PermutedNode:
    """Permutations of operands (None: as it is) and of results, and the way to build the node on permuted operands."""

    ins: tuple[Perm | None, ...]
    outs: tuple[Perm | None, ...]
    build: Build


def identity(rank: int) -> Perm:
    return tuple(range(rank))


def compose(p: Perm, q: Perm) -> Perm:
    """``Transpose(q)(Transpose(p)(x))`` as one permutation."""
    return tuple(p[j] for j in q)


def inverse(p: Perm) -> Perm:
    return tuple(p.index(i) for i in range(len(p)))


def moves_data(p: Perm, shape: Dims) -> bool:
    """Whether transposing changes the order of elements in memory: axes of length 1 do not count."""
    kept = [a for a in p if shape[a] != 1]
    return kept != sorted(kept)


def permuted(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """The plan of ``node`` when its operand (place "in") or result ("out") number ``index`` is permuted by ``p``."""
    for kinds, rule in TABLE:
        if isinstance(node.op, kinds):
            return rule(node, place, index, p)
    return None


def _shape(v: Value | None) -> Dims | None:
    return None if v is None else v.type.shape


def _same(b: Builder, op: Op, operands: Sequence[Value | None]) -> Node:
    return b.node(op, *operands)


def _pointwise(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """All operands of full rank are permuted alike; constants of lower rank are lifted first."""
    rank = len(p)
    if any(len(_shape(v) or ()) != rank for v in node.outputs):
        return None
    ins: list[Perm | None] = []
    lifted: list[int] = []
    for i, v in enumerate(node.inputs):
        shape = _shape(v)
        if shape is None or v is None:
            return None
        if len(shape) == rank:
            ins.append(p)
            continue
        if any(d != 1 for d in shape):
            if not v.is_const:
                return None
            lifted.append(i)
        ins.append(None)

    def build(b: Builder, operands: Sequence[Value | None]) -> Node:
        made = list(operands)
        for i in lifted:
            v = made[i]
            if v is None or v.const is None:
                continue
            full = v.const.reshape((1,) * (rank - v.const.ndim) + v.const.shape).transpose(p)
            made[i] = b.const(full.reshape(_without_leading_ones(full.shape)), v.name)
        return _same(b, node.op, made)

    return PermutedNode(tuple(ins), (p,) * len(node.outputs), build)


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    first = next((i for i, d in enumerate(shape) if d != 1), max(len(shape) - 1, 0))
    return shape[first:]


def _whole(node: Node, p: Perm, build: Build) -> PermutedNode | None:
    """A plan where the first operand and all results share ``p``."""
    values = [node.inputs[0], *node.outputs]
    if any(len(_shape(v) or ()) != len(p) for v in values):
        return None
    return PermutedNode((p, *(None,) * (len(node.inputs) - 1)), (p,) * len(node.outputs), build)


def _along_axis(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """Operators with an attribute ``axis`` on which they work."""
    op: Any = node.op
    if place == "in" and index != 0:
        return None
    made = dataclasses.replace(op, axis=p.index(op.axis % len(p)))
    return _whole(node, p, lambda b, xs: _same(b, made, xs))


def _quantised(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """One scale for all, or one for each index of an axis; scales of blocks stay where they are."""
    scale = _shape(node.inputs[1])
    return None if scale is None or len(scale) > 1 else _along_axis(node, place, index, p)


def _first_only(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """What is done to each element of the first operand; the others have no axes in common with it."""
    return None if place == "in" and index else _whole(node, p, lambda b, xs: _same(b, node.op, xs))


def _by_range(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """DynamicQuantizeLinear: its scale and zero point are those of all elements."""
    if place == "out" and index:
        return None
    return PermutedNode((p,), (p, None, None), lambda b, xs: _same(b, node.op, xs))


def _counted(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """Histogram: counts do not depend on the order of the elements."""
    if place == "out" or index:
        return None
    return PermutedNode((p, None, None), (None,), lambda b, xs: _same(b, node.op, xs))


def _cumsum(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    axis = node.inputs[1].type.known if node.inputs[1] is not None else None
    if (place == "in" and index) or axis is None:
        return None
    moved = np.array(p.index(int(axis.reshape(-1)[0]) % len(p)), axis.dtype)
    return _whole(node, p, lambda b, xs: _same(b, node.op, (xs[0], b.const(moved))))


def _concat(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    op: Any = node.op
    if any(len(_shape(v) or ()) != len(p) for v in (*node.inputs, *node.outputs)):
        return None
    made = Concat(p.index(op.axis % len(p)))
    return PermutedNode((p,) * len(node.inputs), (p,), lambda b, xs: _same(b, made, xs))


def _slice(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    x, starts, ends, axes, steps = (*node.inputs, None, None)[:5]
    count = _shape(starts)
    if (place == "in" and index) or x is None or not count or not isinstance(count[0], int):
        return None
    known = np.arange(count[0]) if axes is None else axes.type.known
    if known is None:
        return None
    moved = np.array([p.index(int(a) % len(p)) for a in known], np.int64)
    dtype = np.dtype(np.int64) if starts is None else starts.type.dtype
    return _whole(node, p, lambda b, xs: _same(b, node.op, (xs[0], starts, ends, b.const(moved.astype(dtype)), steps)))


def _pad(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    _, pads, value, axes = (*node.inputs, None, None, None)[:4]
    if (place == "in" and index) or pads is None:
        return None
    known = np.arange(len(p)) if axes is None else axes.type.known
    if known is None:
        return None
    moved = np.array([p.index(int(a) % len(p)) for a in known], np.int64)
    content = pads.type.known
    if content is not None:
        full = np.zeros((2, len(p)), np.int64)
        full[:, moved] = content.reshape(2, -1)
        return _whole(node, p, lambda b, xs: _same(b, node.op, (xs[0], b.const(full.reshape(-1)), value)))
    return _whole(node, p, lambda b, xs: _same(b, node.op, (xs[0], pads, value, b.const(moved))))


def _per_axis_operand(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """Tile and Expand: the second operand has one number per axis."""
    operand = node.inputs[1]
    known = None if operand is None else operand.type.known
    if (place == "in" and index) or known is None or known.size != len(p):
        return None
    moved = known.reshape(-1)[list(p)]
    return _whole(node, p, lambda b, xs: _same(b, node.op, (xs[0], b.const(moved))))


def _reduce(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    op: Any = node.op
    axes = node.inputs[1].type.known if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if axes is None or op.noop_with_empty_axes or (place == "in" and index):
        return None
    counted = axes.reshape(-1).tolist()
    return _reduced(node, place, p, counted, lambda b, xs, moved: _same(b, op, (xs[0], b.const(moved))))


def _arg(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    op: Any = node.op
    made = functools.partial(dataclasses.replace, op)
    return _reduced(node, place, p, [op.axis], lambda b, xs, moved: _same(b, made(axis=int(moved[0])), xs))


def _reduced(node: Node, place: str, p: Perm, axes: Sequence[int], make: Callable[..., Node]) -> PermutedNode | None:
    """A plan for an operator that reduces these axes; ``make`` is given them as they are counted after permuting."""
    op: Any = node.op
    if not op.keepdims and (place == "out" or len(_shape(node.inputs[0]) or ()) != len(p)):
        return None
    moved = np.array(sorted(p.index(a % len(p)) for a in axes), np.int64)

    def build(b: Builder, xs: Sequence[Value | None]) -> Node:
        return make(b, xs, moved)

    if op.keepdims:
        return _whole(node, p, build)
    kept = [a for j, a in enumerate(p) if j not in moved]
    out = tuple(sorted(kept).index(a) for a in kept)
    return PermutedNode((p, *(None,) * (len(node.inputs) - 1)), (out,), build)


def _reshape(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """Runs of axes that are joined or split stay together; the runs may come in another order."""
    x, y = _shape(node.inputs[0]), _shape(node.outputs[0])
    if x is None or y is None or (place == "in" and index):
        return None
    near, far = (x, y) if place == "in" else (y, x)
    if len(near) != len(p):
        return None
    q = _across(near, far, p)
    source = node.inputs[0]
    if q is None or source is None:
        return None
    before, after = (p, q) if place == "in" else (q, p)
    wanted = tuple(y[i] for i in after)
    operand = shape_operand(source.type.with_shape([x[i] for i in before]), wanted)
    if operand is None:
        return None
    plan_ins = (before, *(None,) * (len(node.inputs) - 1))
    return PermutedNode(plan_ins, (after,), lambda b, xs: _same(b, Reshape(), (xs[0], b.const(operand))))


def _across(near: Dims, far: Dims, p: Perm) -> Perm | None:
    """The permutation beyond a Reshape: axes of length 1 may go anywhere, runs must stay whole and in order."""
    real_near, real_far = _real(near), _real(far)
    groups = axis_groups(tuple(near[i] for i in real_near), tuple(far[i] for i in real_far))
    if groups is None:
        return None
    of_axis = {real_near[i]: g for g, (left, _) in enumerate(groups) for i in left}
    walk = [a for a in p if a in of_axis]
    order: list[int] = []
    at = 0
    while at < len(walk):
        g = of_axis[walk[at]]
        run = [real_near[i] for i in groups[g][0]]
        if walk[at : at + len(run)] != run:
            return None
        order.append(g)
        at += len(run)
    attached = _with_ones(far, real_far)
    made = [a for g in order for i in groups[g][1] for a in attached[real_far[i]]]
    return tuple(made) if made else tuple(range(len(far)))


def _real(shape: Dims) -> list[int]:
    """Axes that matter to a Reshape: those longer than 1, and the first one, which is the batch."""
    return [i for i, d in enumerate(shape) if d != 1 or i == 0]


def _with_ones(shape: Dims, real: list[int]) -> dict[int, list[int]]:
    """Each real axis with the axes of length 1 before it; the last real axis also takes those behind it."""
    made: dict[int, list[int]] = {}
    start = 0
    for axis in real:
        made[axis] = list(range(start, axis + 1))
        start = axis + 1
    if real:
        made[real[-1]] += range(start, len(shape))
    return made


def _shape_of(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """The dimensions of the value as it was, picked from those it has now."""
    op: Any = node.op
    if place == "out" or len(_shape(node.inputs[0]) or ()) != len(p):
        return None
    if isinstance(op, Size):
        return PermutedNode((p,), (None,), lambda b, xs: _same(b, op, xs))
    picked = np.array([p.index(a) for a in range(len(p))[op.start : op.end]], np.int64)
    return PermutedNode((p,), (None,), lambda b, xs: b.node(Gather(0), b(Shape(), xs[0]), b.const(picked)))


def _trailing_norm(node: Node, place: str, index: int, p: Perm) -> PermutedNode | None:
    """Norms over the last axes let the axes before them move."""
    op: Any = node.op
    rank = len(p)
    first = op.axis % rank
    if (place == "in" and index) or p[first:] != tuple(range(first, rank)) or len(node.outputs) > 1:
        return None
    return _whole(node, p, lambda b, xs: _same(b, op, xs))


TABLE: tuple[tuple[Any, Callable[[Node, str, int, Perm], PermutedNode | None]], ...] = (
    ((Pointwise, Chain, Identity), _pointwise),
    ((Softmax, LogSoftmax, Hardmax, LpNormalization, TopK, Split, BinaryPack), _along_axis),
    ((QuantizeLinear, DequantizeLinear), _quantised),
    (DynamicQuantizeLinear, _by_range),
    (ByteTable, _first_only),
    (Histogram, _counted),
    (CumSum, _cumsum),
    (Concat, _concat),
    (Slice, _slice),
    (Pad, _pad),
    ((Tile, Expand), _per_axis_operand),
    (Reduction, _reduce),
    ((ArgMax, ArgMin), _arg),
    (Reshape, _reshape),
    ((Shape, Size), _shape_of),
    ((LayerNormalization, RMSNormalization), _trailing_norm),
)
