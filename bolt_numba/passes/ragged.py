"""Rows of unequal lengths as one row: which part of a graph computes the same for rows that lie one after another.

A row is a batch of one whose inputs have positions along one axis, such as the tokens of a text.  Of each node it is
shown that a result at a position depends on its operands at that position only; then rows may follow one another.
Attention is the exception, which gets the rows' lengths.  Nothing else is taken to be so.

    head, for each row -> body, for all rows at once -> tail, for each row

The head is what the body reads and does not compute itself, such as embeddings of positions, and masks, which must be
0 in a run.  The tail is what follows the body, such as a mean of all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I64, Sym, TensorType
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.byte_table import ByteTable
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import AlongAxis
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Split, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.evaluate import infer_types
from bolt_numba.ops.layers.attention.attention import FusedAttention, swapped
from bolt_numba.ops.layers.attention.ragged import RaggedAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.norm import LayerNormalization, RMSNormalization
from bolt_numba.ops.layers.products.integer_products import QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise

POSITIONS = Sym("positions")
_LAYERS = "bolt_numba.ops.layers."
"""Where operators stand that compute much: the head has none of them."""

Along: TypeAlias = "tuple[Value, int]"
"""A value and the axis of its positions, counted from the last one, which is -1."""


@record(frozen=True)
class RaggedForm:
    """A graph in three parts.

    early: what the head computes of each row for the body.  masks: what it computes, too, and must be 0, or hide later
    positions and nothing else: then attention of the body is causal.
    inputs: of the body, one row after another: inputs of the graph and what is early; the ``lengths`` of rows follow.
    results: of the body, for all rows.  bodies: where masks are 0, and causal; each with what stands for values.
    """

    head: list[Node]
    early: list[Value]
    masks: list[Value]
    inputs: list[Along]
    lengths: Value
    bodies: tuple[tuple[list[Node], dict[int, Value]], ...]
    results: list[Along]
    tail: list[Node]


def ragged_form(inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value]) -> RaggedForm | None:
    """The parts of a graph; None where it has no attention, or some of it is not shown to stay within rows."""
    attention = [node for node in nodes if isinstance(node.op, FusedAttention)]
    walk = _Walk.over(inputs, nodes) if attention else None
    if walk is None or not {id(node) for node in attention} <= {id(node) for node in walk.body}:
        return None
    tail, read = _behind(outputs, walk.nodes, walk.along)
    results = [(v, walk.along[id(v)]) for v in read if v.node is not None and id(v) in walk.along]
    kept, given = _behind([v for v, _ in results], walk.body, {id(v): 0 for v in inputs} | walk.reads)
    axes = walk.along | walk.reads
    places = [(v, axes[id(v)]) for v in given if id(v) in axes]  # others are masks, which the body does not read
    early = [v for v in given if v.node is not None]
    masks = list({id(v): v for v in walk.masks}.values())
    head, _ = _behind([*early, *masks], walk.nodes, {id(v): 0 for v in inputs})
    lengths = Value("lengths", TensorType(I64, (Sym("rows"),)))
    bodies = tuple(_body(kept, walk, lengths, causal) for causal in ((False, True) if masks else (False,)))
    return RaggedForm(head, early, masks, places, lengths, bodies, results, tail)


def _body(nodes: Sequence[Node], walk: _Walk, lengths: Value, causal: bool) -> tuple[list[Node], dict[int, Value]]:
    alias: dict[int, Value] = {}
    return [_replaced(node, walk, lengths, alias, causal) for node in nodes], alias


def _behind(
    wanted: Iterable[Value], nodes: Sequence[Node], ends: dict[int, int]
) -> tuple[list[Node], list[Value]]:
    """The nodes that values need, but for those that are ends, and the ends that they read."""
    found: dict[int, Value] = {}
    read: dict[int, Value] = {}

    def want(value: Value) -> None:
        (read if id(value) in ends else found)[id(value)] = value

    for value in wanted:
        want(value)
    kept = []
    for node in reversed(nodes):
        if any(id(v) in found for v in node.outputs):
            kept.append(node)
            for v in node.inputs:
                if v is not None and v.const is None:
                    want(v)
    return kept[::-1], list(read.values())


class _Walk:
    """What is known of the values of a graph where each row is a batch of one.

    along: values that the body has, by id: the axis of positions.  early: ids of values that follow from the inputs by
    moves and arithmetic alone.  reads: what the body reads of these, as ``along``.  masks: what attention reads.
    nodes: of the graph, but shapes of values are computed of an input, ``source``.
    """

    def __init__(self) -> None:
        self.types: dict[int, TensorType] = {}
        self.along: dict[int, int] = {}
        self.early: set[int] = set()
        self.reads: dict[int, int] = {}
        self.masks: list[Value] = []
        self.body: list[Node] = []
        self.nodes: list[Node] = []
        self.source: Along | None = None

    @classmethod
    def over(cls, inputs: Sequence[Value], nodes: Sequence[Node]) -> _Walk | None:
        walk = cls()
        for v in inputs:
            dims = v.type.shape
            if not dims or not (isinstance(dims[0], Sym) or dims[0] == 1):
                return None
            t = v.type.with_shape((1, *[POSITIONS if isinstance(d, Sym) else d for d in dims[1:]]))
            walk._note(v, t, True)
            if (axis := _only(t)) is not None:
                walk.along[id(v)], walk.source = axis, walk.source or (v, axis)
        try:
            for node in nodes:
                if isinstance(node.op, ControlFlow) or node.op.has_side_state:
                    return None
                walk._add(node)
        except BoltError:  # a batch of one is not for this graph
            return None
        return walk

    def _note(self, v: Value, t: TensorType, is_early: bool) -> None:
        self.types[id(v)] = t
        if is_early:
            self.early.add(id(v))

    def _add(self, node: Node) -> None:
        is_light = not type(node.op).__module__.startswith(_LAYERS)
        is_early = is_light and all(v is None or v.const is not None or id(v) in self.early for v in node.inputs)
        found = infer_types(node.op, [None if v is None else self.type(v) for v in node.inputs])
        sizes = [] if is_early or not node.op.reads_only_shape else self._sizes(node, found[0])
        is_early = is_early or bool(sizes)
        self.nodes += sizes or [node]
        for v, t in zip(node.outputs, found, strict=True):
            self._note(v, t, is_early)
        rule = next((rule for kinds, rule in RULES if isinstance(node.op, kinds)), None)
        axis = None if rule is None else rule(self, node)
        if axis is not None and all(_only(self.type(v)) == axis for v in node.outputs):
            self.body.append(node)
            self.along.update((id(v), axis) for v in node.outputs)

    def _sizes(self, node: Node, t: TensorType) -> list[Node]:
        """What gives the shape of a value without it; none where it has more in it than numbers and positions."""
        dims = [] if t.value is None or t.value.ndim != 1 else t.value.tolist()
        if self.source is None or not dims or any(isinstance(d, Sym) and d != POSITIONS for d in dims):
            return []
        v, axis = self.source
        count = Node(Shape(axis, axis + 1 or None), [v], [TensorType(I64, (1,))], f"{node.name}.positions")
        parts = [count.output if isinstance(d, Sym) else _constant(f"{node.name}.{d}", [d]) for d in dims]
        made = Node(Concat(0), parts, [t], node.name)
        made.outputs = node.outputs  # what reads these stays as it is
        return [count, made]

    def type(self, v: Value) -> TensorType:
        return self.types.get(id(v), v.type)

    def shape(self, v: Value | None) -> tuple[Any, ...]:
        return () if v is None else self.type(v).shape or ()

    def axis(self, v: Value | None) -> int | None:
        """Of the positions of a value that the body has."""
        return None if v is None else self.along.get(id(v))

    def places(self, axis: int, values: Iterable[Value | None]) -> bool:
        """Whether operands have their positions along this axis, or are constants without any."""
        wanted = []
        for v in values:
            if v is None:
                continue
            if v.const is not None:
                if v.const.ndim >= -axis and v.const.shape[axis] != 1:
                    return False
            elif id(v) in self.along:
                if self.along[id(v)] != axis:
                    return False
            elif id(v) not in self.early or _only_unknown(self.shape(v)) != axis or self.reads.get(id(v), axis) != axis:
                return False
            else:
                wanted.append(v)
        self.reads.update((id(v), axis) for v in wanted)
        return True


def _only(t: TensorType) -> int | None:
    """The only axis whose size is not known, if that is the positions."""
    axis = _only_unknown(t.shape or ())
    return axis if axis is not None and t.shape[axis] == POSITIONS else None  # type: ignore[index]


def _only_unknown(shape: Sequence[Any]) -> int | None:
    """The only axis whose size is not known; a run holds what the head computes against the positions of the row."""
    found = [i - len(shape) for i, d in enumerate(shape) if isinstance(d, Sym)]
    return found[0] if len(found) == 1 and 0 not in shape else None


# --- operators: the axis of the positions of all results, if each depends on its own alone --------------------------


def _pointwise(walk: _Walk, node: Node) -> int | None:
    axes = {walk.axis(v) for v in node.inputs} - {None}
    axis = axes.pop() if len(axes) == 1 else None
    return axis if axis is not None and walk.places(axis, node.inputs) else None


def _matmul(walk: _Walk, node: Node) -> int | None:
    """Rows times constant weights, whatever they are stored as."""
    op: Any = node.op
    a, *rest = node.inputs
    axis = walk.axis(a)
    if axis is None or axis > -2 or getattr(op, "trans_a", False):
        return None
    if isinstance(op, MatMulNBits):
        return axis if _are_told(rest) else None
    b = rest.pop(2 if isinstance(op, QLinearMatMul) else 0)
    scales = [rest[i] for i in (0, 1, 4, 5) if i < len(rest)] if isinstance(op, QLinearMatMul) else []
    if b is None or b.const is None or b.const.ndim != 2 or not _are_numbers(scales):
        return None
    return axis if walk.places(axis, rest) else None


def _are_told(values: Iterable[Value | None]) -> bool:
    return all(v is None or v.const is not None for v in values)


def _are_numbers(values: Iterable[Value | None]) -> bool:
    return all(v is None or (v.const is not None and v.const.size == 1) for v in values)


def _gather(walk: _Walk, node: Node) -> int | None:
    """Rows of a table."""
    op: Any = node.op
    x, indices = node.inputs
    axis = walk.axis(indices)
    if axis is None or x is None or x.const is None:
        return None
    return int(axis - (x.const.ndim - 1 - op.axis % x.const.ndim))


def _trailing(walk: _Walk, node: Node) -> int | None:
    """Norms over the axes from one on."""
    op: Any = node.op
    x, *rest = node.inputs
    axis = walk.axis(x)
    rank = len(walk.shape(x))
    if axis is None or op.axis % rank <= axis + rank or not _are_told(rest):
        return None
    return axis if walk.places(axis, rest) else None


def _beside(walk: _Walk, node: Node) -> int | None:
    """What works along another axis, of constant parameters; one scale for all has no axis."""
    op: Any = node.op
    x, *rest = node.inputs
    axis, rank = walk.axis(x), len(walk.shape(x))
    has_axis = not isinstance(op, QuantizeLinear | DequantizeLinear) or not _are_numbers(rest)
    if axis is None or (has_axis and op.axis % rank == axis + rank) or not _are_told(rest):
        return None
    return axis


def _slice(walk: _Walk, node: Node) -> int | None:
    """Along other axes, which are told."""
    x, *bounds = node.inputs
    axis, rank, axes = walk.axis(x), len(walk.shape(x)), bounds[2] if len(bounds) > 2 else None
    if axis is None or axes is None or axes.const is None or not _are_told(bounds):
        return None
    return axis if all(int(a) % rank != axis + rank for a in axes.const) else None


def _expand(walk: _Walk, node: Node) -> int | None:
    return walk.axis(node.inputs[0])


def _concat(walk: _Walk, node: Node) -> int | None:
    op: Any = node.op
    axis = _pointwise(walk, node)
    ranks = {len(walk.shape(v)) if v is not None else 0 for v in node.inputs}
    is_whole = all(v is not None and v.const is None for v in node.inputs)
    return axis if axis is not None and is_whole and op.axis % min(ranks) != axis + min(ranks) else None


def _transpose(walk: _Walk, node: Node) -> int | None:
    order, axis = node.op.axis_order, walk.axis(node.inputs[0])
    return None if axis is None or order is None else order.index(axis + len(order)) - len(order)


def _reshape(walk: _Walk, node: Node) -> int | None:
    """As many elements before the positions, and behind them."""
    x, made = node.inputs[0], walk.shape(node.output)
    axis, there = walk.axis(x), _only(walk.type(node.output))
    if axis is None or there is None:
        return None
    given = walk.shape(x)
    before = np.prod(given[: axis + len(given)]) == np.prod(made[: there + len(made)])
    return there if before and np.prod(given[axis:][1:]) == np.prod(made[there:][1:]) else None


def _rotary(walk: _Walk, node: Node) -> int | None:
    op: Any = node.op
    x, *tables = node.inputs
    axis = -3 if op.layout == "SHD" else -2
    if walk.axis(x) != axis or (len(tables) > 2 and any(v is None or v.const is None for v in tables[:2])):
        return None
    given = tables[2:] if len(tables) > 2 else tables
    is_told = all(v is not None and v.const is None for v in given)
    return axis if is_told and walk.places(-1 if len(tables) > 2 else -2, given) else None


def _attention(walk: _Walk, node: Node) -> int | None:
    op: Any = node.op
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    axes, values = RaggedAttention(op).axes, [v for v in node.inputs[:3] if v is not None]
    if any(walk.axis(v) != axis or walk.type(v).dtype != F32 for v, axis in zip(values, axes, strict=False)):
        return None
    shapes = [walk.shape(v) for v in values]
    shapes = [swapped(s) if layout == "SHD" else s for s, layout in zip(shapes, op.layouts, strict=False)]
    if any(s[:-1] != shapes[0][:-1] or len(s) < 3 or any(d != 1 for d in s[:-3]) for s in shapes):
        return None
    if (mask is not None and mask.const is None and id(mask) not in walk.early) or _is_masked(mask):
        return None
    walk.masks += [mask] if mask is not None and mask.const is None else []
    return axes[-1]


def _is_masked(mask: Value | None) -> bool:
    """Whether a constant hides something, or is of so many positions."""
    given = None if mask is None else mask.const
    return given is not None and (any(d != 1 for d in given.shape[-2:]) or bool(np.any(given)))


RULES: tuple[tuple[tuple[type, ...], Callable[[_Walk, Node], int | None]], ...] = (
    ((Pointwise, Chain, ByteTable), _pointwise),
    ((MatMul, QLinearMatMul, MatMulNBits), _matmul),
    ((Gather,), _gather),
    ((LayerNormalization, RMSNormalization), _trailing),
    ((AlongAxis, Split, QuantizeLinear, DequantizeLinear), _beside),
    ((Slice,), _slice),
    ((Expand,), _expand),
    ((Concat,), _concat),
    ((Transpose,), _transpose),
    ((Reshape,), _reshape),
    ((RotaryEmbedding,), _rotary),
    ((FusedAttention,), _attention),
)


def _replaced(node: Node, walk: _Walk, lengths: Value, alias: dict[int, Value], causal: bool) -> Node:
    """A node of the body: attention gets the lengths, and a shape that was computed becomes a constant.

    causal: whether masks hide later positions.
    """
    x, *rest = node.inputs
    if isinstance(node.op, FusedAttention):
        is_causal = node.op.causal or (causal and any(v in walk.masks for v in rest[2:]))
        op = RaggedAttention(replace(node.op, causal=is_causal))
        made = Node(op, [lengths, x, *rest[:2]], [node.output.type], node.name)
    elif isinstance(node.op, Reshape | Expand) and rest[0] is not None and rest[0].const is None:
        open_size = -1 if isinstance(node.op, Reshape) else 1
        shape = [open_size if isinstance(d, Sym) else d for d in walk.shape(node.output)]
        made = Node(type(node.op)(), [x, _constant(f"{node.name}.shape", shape)], [node.output.type], node.name)
    else:
        return node
    alias[id(node.output)] = made.output
    return made


def _constant(name: str, numbers: Sequence[int]) -> Value:
    content = np.array(numbers, I64)
    return Value(name, TensorType(I64, content.shape, content), const=content)
