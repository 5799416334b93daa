"""Signed activations become unsigned ones, 128 more, with zero points 128 more: that is how products multiply them.

The operators that make a value give it so, and those that read it are told its zero point.  What moves or compares
bytes does the same to unsigned ones.  A table stands only where a signed value comes in or goes out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.types import I8, U8, AnyDType, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.byte_table import ENTRIES, ByteTable
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ArgMax, ArgMin, ReduceMax, ReduceMin
from bolt_numba.ops.arrays.shape import Concat, Pad
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise import Clip, Max, Min, Where
from bolt_numba.passes.quantised.moves import KEEPING, PICKING
from bolt_numba.passes.rewrite import nested

MOVES = (*KEEPING, *PICKING, ReduceMax, ReduceMin)
"""What gives bytes of its first operand."""
HALF = 128
READS: dict[Any, tuple[tuple[int, int], ...]] = {
    QLinearConv: ((0, 2), (9, 11)), QLinearMatMul: ((0, 2), (3, 5), (9, 11)), DequantizeLinear: ((0, 2),),
}  # fmt: skip
"""Operands that may have either sign, and their zero points."""
MAKES: dict[Any, int] = {QLinearConv: 7, QLinearMatMul: 7, QuantizeLinear: 2}
"""The zero point of a result."""
MOST_OPERANDS = 12


def use_unsigned_bytes(graph: Graph) -> bool:
    """Make the signed bytes that products read unsigned, in a graph and its subgraphs; whether there were any."""
    found = False
    for each in nested(graph):
        if any(_multiplies_signed(node) for node in each.nodes):
            _Turning(each).run()
            found = True
    return found


def _multiplies_signed(node: Node) -> bool:
    """Whether a node is a product of computed signed bytes with a known zero point.

    A graph's own inputs are left to the kernels, some of which copy them anyway.
    """
    if not isinstance(node.op, (QLinearConv, QLinearMatMul)):
        return False
    x, _, zero = node.operands[:3]
    return x is not None and x.node is not None and x.type.dtype == I8 and zero is not None and zero.const is not None


def turned(array: Array) -> Array:
    """Bytes of the other sign: 128 more, or less."""
    made: Array = (array.view(U8) ^ np.uint8(HALF)).view(U8 if array.dtype == I8 else I8)
    return made


def moved(node: Node) -> tuple[int, ...]:
    """Operands whose bytes are those of the results; none where a node does more than move and compare them."""
    op: Any = node.op
    if isinstance(op, (*MOVES, Clip, Pad)) or (isinstance(op, MaxPool) and not op.indices):
        return (0,)
    if isinstance(op, Resize):
        return (0,) if op.mode == "nearest" and op.coordinate_transformation_mode != "tf_crop_and_resize" else ()
    if isinstance(op, (Concat, Max, Min)):
        return tuple(range(len(node.operands)))
    return (1, 2) if isinstance(op, Where) else ()


class _Turning:
    """Builds the nodes of a graph again.

    made: by ``id`` of a signed value, the unsigned one that stands for it.  gone: signed values that nothing computes
    any more.  wanted: those that products read, maybe after moves.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, Builder(graph, [])
        self.made: dict[int, Value] = {}
        self.again: dict[int, Value] = {}
        self.gone: set[int] = set()
        self.wanted: set[int] = set()

    def run(self) -> None:
        for node in reversed(self.graph.nodes):
            wants = self._is_wanted(node) and all(v.type.dtype == I8 for v in node.outputs)
            places = (0,) if _multiplies_signed(node) else moved(node) if wants else ()
            self.wanted |= {id(node.operands[i]) for i in places}
        replaced = []
        for node in self.graph.nodes:
            built = self._build(node)
            if built is None:
                for i, v in enumerate(node.inputs):
                    if id(v) in self.gone:
                        node.set_input(i, self._signed(v))
                self.b.nodes.append(node)
            else:
                replaced.append(node)
                self._replace(node, built)
        self.graph.outputs = [self._signed(v) if id(v) in self.gone else v for v in self.graph.outputs]
        self.graph.nodes = self.b.nodes
        for node in replaced:
            node.detach()
        self.graph.drop_dead()

    def _is_wanted(self, node: Node) -> bool:
        return any(id(v) in self.wanted for v in node.outputs)

    def _replace(self, node: Node, built: Node) -> None:
        built.name = node.name
        for old, new in zip(node.outputs, built.outputs, strict=True):
            if old.type.dtype == new.type.dtype:
                self.graph.replace_uses(old, new)
            else:
                self.made[id(old)] = new
                self.gone.add(id(old))
            new.name, old.name = old.name, new.name

    def _build(self, node: Node) -> Node | None:
        """The same node that reads or makes unsigned bytes; None where it is to stay."""
        operands: list[Any] = [*node.operands, *(None,) * (MOST_OPERANDS - len(node.operands))]
        op, wanted, table = node.op, self._is_wanted(node), None
        for data, zero in READS.get(type(op), ()):
            first = data == 0 and _multiplies_signed(node)
            point = self._turned_zero(operands[zero], operands[data + 1])
            if point is not None and (first or id(operands[data]) in self.made):
                operands[data], operands[zero] = self._unsigned(operands[data]), point
        if isinstance(op, ByteTable) and operands[1].const is not None:
            table = operands[1].const
            if id(operands[0]) in self.made:
                operands[:2] = self.made[id(operands[0])], table[np.arange(ENTRIES) ^ HALF]
                table = operands[1]
            if wanted:
                operands[1] = turned(table)
        elif isinstance(op, (ArgMax, ArgMin)) and id(operands[0]) in self.made:
            operands[0] = self.made[id(operands[0])]
        elif wanted and type(op) in MAKES:
            at = MAKES[type(op)]
            point = self._turned_zero(operands[at], operands[at - 1])
            if point is not None:
                operands[at] = point
                op = replace(op, output_dtype=None) if isinstance(op, QuantizeLinear) and op.output_dtype else op
        elif wanted and moved(node):
            op = self._move(node, operands)
        if op is node.op and all(v is w for v, w in zip(operands, node.operands, strict=False)):
            return None
        return self.b.node(op, *operands)

    def _move(self, node: Node, operands: list[Any]) -> Any:
        """The operator of unsigned bytes in the place of a move; puts these among its operands."""
        op: Any = node.op
        for i in moved(node):
            operands[i] = self._unsigned(operands[i])
        if isinstance(op, Pad) and op.mode == "constant":
            operands[2] = np.array(HALF, U8) if operands[2] is None else self._unsigned(operands[2])
        if isinstance(op, Clip):
            return Clip(*(None if v is None else v + HALF for v in (op.lo, op.hi)))
        return op

    def _turned_zero(self, zero: Value | None, scale: Value | None) -> Array | None:
        """A zero point of unsigned bytes; None where there is no such constant."""
        if zero is not None:
            return None if zero.const is None or zero.type.dtype != I8 else turned(zero.const)
        return np.array(HALF, U8) if scale is not None and scale.type.shape == () else None

    def _unsigned(self, value: Value) -> Value:
        if id(value) not in self.made:
            known = value.const
            made = self._table(value, U8) if known is None else self.b.const(turned(known), value.name)
            self.made[id(value)] = made
        return self.made[id(value)]

    def _signed(self, value: Value | None) -> Value:
        """A signed value again, for who wants it."""
        if id(value) not in self.again:
            self.again[id(value)] = self._table(self.made[id(value)], I8)
        return self.again[id(value)]

    def _table(self, value: Value, dtype: AnyDType) -> Value:
        return self.b(ByteTable(), value, (np.arange(ENTRIES, dtype=U8) ^ np.uint8(HALF)).view(dtype))
