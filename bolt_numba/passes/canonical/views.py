"""Operators that move no data, or that move nothing in this graph: one spelling (Reshape), merged and dropped.

pin_shape(Reshape(x, computed))                 -> Reshape(x, constant)      with 0 and -1 for unknown dimensions
view_to_reshape(Flatten | Squeeze | Unsqueeze)  -> Reshape(x, constant)
merge_reshapes(Reshape(Reshape(x)))             -> Reshape(x)
drop_same_shape(Reshape | Expand | Tile ...)    -> x                         when no axis changes
merge_transposes(Transpose(Transpose(x)))       -> Transpose(x) | x
drop_whole(Slice | Split | Concat | Pad)        -> x                         when all of x is kept and nothing is added
merge_concats(Concat(Concat(a, b), c))          -> Concat(a, b, c)
drop_resize(Resize to the same size)            -> x
drop_expand(op(Expand(x), y))                   -> op(x, y)                  when broadcasting does the same
transpose_between_views(view(Transpose(view)))  -> Reshape(Transpose(x))     when the first view only joins axes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import Array, Dim, Shape, Sym, TensorType
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays import shape as s
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.shapes import product
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

VIEWS = (s.Reshape, s.Flatten, s.Squeeze, s.Unsqueeze)


def shape_operand(x: TensorType, wanted: Shape | None) -> Array | None:
    """The constant second operand of a Reshape from ``x`` to ``wanted``; None when no constant can say it.

    An unknown dimension becomes 0 where it is the dimension of ``x`` at the same place, and -1 once elsewhere.
    """
    if wanted is None or 0 in wanted:
        return None
    have = x.shape or ()
    numbers: list[int] = []
    for i, d in enumerate(wanted):
        if not isinstance(d, Sym):
            numbers.append(d)
        else:
            numbers.append(0 if i < len(have) and have[i] == d else -1)
    return np.array(numbers, np.int64) if numbers.count(-1) <= 1 else None


def is_free(*nodes: Node) -> bool:
    """Whether views must stay, as they may ask for what is not possible: by data, or of an axis that may not be 1."""
    return any(
        any(v is not None and v.type.value is None for v in node.inputs[1:])
        or (isinstance(node.op, s.Squeeze) and not _drops_ones(node))
        or (isinstance(node.op, s.Reshape) and not _keeps_all(node))
        for node in nodes
    )


def _drops_ones(node: Node) -> bool:
    before, after = (None if v is None else v.type.shape for v in (node.inputs[0], node.output))
    return before is not None and after is not None and product(before) == product(after)


def _keeps_all(node: Node) -> bool:
    """Whether a Reshape has the elements of its operand whatever symbols turn out as; a -1 is solved."""
    said = node.inputs[1].type.value  # type: ignore[union-attr]
    if said is None or said.dtype != object or -1 in said.tolist():  # numbers stay, and the run compares them
        return True
    before, rest = node.inputs[0].type.shape, list(node.output.type.shape or ())  # type: ignore[union-attr]
    if before is None:
        return True
    left = [d for d in before if d not in rest or rest.remove(d)]  # type: ignore[func-returns-value]
    return product(left) == product(rest)


def reshaped(b: Builder, x: Value, wanted: Shape | None) -> Value | None:
    """``x`` in another shape: itself, or a Reshape with a constant operand; None when that cannot be expressed."""
    if wanted is not None and x.type.shape == wanted:
        return x
    operand = shape_operand(x.type, wanted)
    return None if operand is None else b(s.Reshape(), x, operand)


def axis_groups(a: Shape, z: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Smallest runs of axes of ``a`` and of ``z`` with equal products, in order; axes of size 1 join a neighbour.

    None when the products cannot be compared.  ``[2, 6]`` to ``[2, 3, 2]`` gives ``[([0], [0]), ([1], [1, 2])]``.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) and j < len(z):
        left, right = [i], [j]
        p, q = a[i], z[j]
        while p != q:
            if _smaller(p, q) and i + 1 < len(a):
                i += 1
                left.append(i)
                p = p * a[i]
            elif j + 1 < len(z) and not (_smaller(p, q)):
                j += 1
                right.append(j)
                q = q * z[j]
            else:
                return None
        groups.append((left, right))
        i, j = i + 1, j + 1
    tail_a, tail_z = list(range(i, len(a))), list(range(j, len(z)))
    if any(a[k] != 1 for k in tail_a) or any(z[k] != 1 for k in tail_z):
        return None
    if groups:
        groups[-1][0].extend(tail_a)
        groups[-1][1].extend(tail_z)
    return groups


def _smaller(p: Dim, q: Dim) -> bool:
    """Whether the left product must grow to meet the right one; a symbol counts as larger than a number."""
    if isinstance(p, Sym) or isinstance(q, Sym):
        return not isinstance(p, Sym) or (isinstance(q, Sym) and len(str(q)) > len(str(p)))
    return p < q


@rule(Pat(s.Reshape, (Pat(name="x"), Pat(name="shape"))))
def pin_shape(m: Match, b: Builder) -> Result:
    operand = None if is_free(m.root) else shape_operand(m["x"].type, m.root.output.type.shape)
    if operand is None:
        return m.refuse("the shape cannot be a constant")
    old = m["shape"].const
    if old is not None and np.array_equal(old, operand) and not m.root.op.allowzero:  # type: ignore[attr-defined]
        return None
    return b(s.Reshape(), m["x"], operand)


@rule(Pat((s.Flatten, s.Squeeze, s.Unsqueeze), (Pat(name="x"),)))
def view_to_reshape(m: Match, b: Builder) -> Result:
    made = None if is_free(m.root) else reshaped(b, m["x"], m.root.output.type.shape)
    return m.refuse("the shape cannot be a constant") if made is None else made


@rule(Pat(VIEWS, (Pat(VIEWS, (Pat(name="x"),), name="inner"),)))
def merge_reshapes(m: Match, b: Builder) -> Result:
    made = None if is_free(m.root, m.node("inner")) else reshaped(b, m["x"], m.root.output.type.shape)
    return m.refuse("the shape cannot be a constant") if made is None else made


@rule(Pat((*VIEWS, s.Expand, s.Tile, s.Identity), (Pat(name="x"),)))
def drop_same_shape(m: Match, b: Builder) -> Result:
    shape = m.root.output.type.shape
    same = shape is not None and shape == m["x"].type.shape and not is_free(m.root)
    return m["x"] if same or isinstance(m.root.op, s.Identity) else None


@rule(Pat(s.Transpose, (Pat(name="x"),)))
def drop_transpose(m: Match, b: Builder) -> Result:
    perm: tuple[int, ...] = m.root.op.perm  # type: ignore[attr-defined]
    return m["x"] if perm == tuple(range(len(perm))) else None


@rule(Pat(s.Transpose, (Pat(s.Transpose, (Pat(name="x"),), name="inner"),)))
def merge_transposes(m: Match, b: Builder) -> Result:
    inner: tuple[int, ...] = m.op("inner").perm
    outer: tuple[int, ...] = m.root.op.perm  # type: ignore[attr-defined]
    perm = tuple(inner[i] for i in outer)
    return m["x"] if perm == tuple(range(len(perm))) else b(s.Transpose(perm), m["x"])


@rule(Pat((s.Slice, s.Split, s.Pad), (Pat(name="x"),)))
def drop_whole(m: Match, b: Builder) -> Result:
    x, op, shape = m["x"], m.root.op, m.root.output.type.shape
    if len(m.root.outputs) != 1:
        return None
    if isinstance(op, s.Slice) and not _positive_steps(m):
        return m.refuse("steps are not known to be positive")
    if isinstance(op, s.Pad) and not _zero(m.root.inputs[1]):
        return None
    if shape == () and is_free(m.root):
        return m.refuse("the operands may be for axes that there are not")
    return x if shape is not None and shape == x.type.shape else None


def _positive_steps(m: Match) -> bool:
    if len(m.root.inputs) < 5 or m.root.inputs[4] is None:
        return True
    steps = m.root.inputs[4].type.known
    return steps is not None and bool(np.all(steps > 0))


def _zero(value: Value | None) -> bool:
    known = None if value is None else value.type.known
    return known is not None and not np.any(known)


@rule(Pat(s.Concat))
def drop_empty_concat_operands(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    inputs = [v for v in m.root.inputs if v is not None]
    axis = op.axis
    kept = [v for v in inputs if v.type.shape is None or v.type.shape[axis] != 0]
    if not kept or len(kept) == len(inputs) > 1:
        return None
    return kept[0] if len(kept) == 1 else b(op, *kept)


@rule(Pat(s.Concat))
def merge_concats(m: Match, b: Builder) -> Result:
    op: Any = m.root.op
    operands: list[Value | None] = []
    for v in m.root.inputs:
        inner = v.node if v is not None else None
        if v is not None and inner is not None and isinstance(inner.op, s.Concat) and _same_axis(op, inner.op, v):
            if not m.sole(v):
                return m.refuse(f"%{v.name} has another reader")
            operands += inner.inputs
        else:
            operands.append(v)
    return b(op, *operands) if len(operands) > len(m.root.inputs) else None


def _same_axis(a: Any, z: Any, v: Value) -> bool:
    rank = len(v.type.shape or ())
    return bool(rank and a.axis % rank == z.axis % rank)


@rule(Pat(Resize, (Pat(name="x"),)))
def drop_resize(m: Match, b: Builder) -> Result:
    """The same size, asked for by sizes or by scales of exactly 1."""
    op: Any = m.root.op
    _, scales, sizes = (*m.root.inputs[1:], None, None, None)[:3]
    known = None if scales is None else scales.type.known
    shape = m.root.output.type.shape
    if op.coordinate_transformation_mode == "tf_crop_and_resize" or shape is None or shape != m["x"].type.shape:
        return None
    exact = sizes is not None or (known is not None and bool(np.all(known == 1)))
    return m["x"] if exact else m.refuse("the scales are not 1")


class DropExpand:
    """An operand of a pointwise operator need not be expanded when the others already have the result's shape."""

    def __call__(self, m: Match, b: Builder) -> Result:
        node = m.root
        op = node.op
        if not isinstance(op, Pointwise) or node.output.type.shape is None:
            return None
        for i, v in enumerate(node.inputs):
            if v is None or v.node is None or not isinstance(v.node.op, s.Expand):
                continue
            source = v.node.inputs[0]
            operands = [source if k == i else w for k, w in enumerate(node.inputs)]
            if source is not None and _broadcast(operands) == node.output.type.shape:
                return b(op, *operands)
        return None


def _broadcast(operands: Sequence[Value | None]) -> Shape | None:
    """Shape of broadcasting as far as it is certain: a symbol only meets itself or 1."""
    rank = max(len(v.type.shape or ()) for v in operands if v is not None)
    dims: list[Dim] = [1] * rank
    for v in operands:
        if v is None or v.type.shape is None:
            return None
        for i, d in enumerate(reversed(v.type.shape)):
            if d == 1 or d == dims[-1 - i]:
                continue
            if dims[-1 - i] != 1:
                return None
            dims[-1 - i] = d
    return tuple(dims)


_JOINED = Pat(VIEWS, (Pat(name="x"),), name="joined")


@rule(Pat(VIEWS, (Pat(s.Transpose, (_JOINED,), name="moved", sole_use=True),)))
def transpose_between_views(m: Match, b: Builder) -> Result:
    x, perm = m["x"], m.op("moved").perm
    before, after = x.type.shape, m["joined"].type.shape
    groups = None if before is None or after is None else axis_groups(before, after)
    if groups is None or any(len(right) != 1 for _, right in groups) or len(groups) != len(perm):
        return m.refuse("the first view does more than joining axes")
    moved = b(s.Transpose(tuple(i for p in perm for i in groups[p][0])), x)
    made = reshaped(b, moved, m.root.output.type.shape)
    return m.refuse("the shape cannot be a constant") if made is None else made


RULES: tuple[Rule, ...] = (
    pin_shape,
    view_to_reshape,
    merge_reshapes,
    drop_same_shape,
    drop_transpose,
    merge_transposes,
    drop_whole,
    drop_resize,
    drop_empty_concat_operands,
    merge_concats,
    Rule("drop_expand", Pat(Pointwise), DropExpand()),
    transpose_between_views,
)
