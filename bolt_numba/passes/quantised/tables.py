"""What depends on one byte alone becomes a table of 256, filled by the references: exact.

byte_table(Q(f(DQ(x))))              -> ByteTable(x, table) | x      f: any pointwise operators and numbers, or none
byte_table_of_limits(ByteTable(Clip(x))) -> ByteTable(x, table)
drop_equal_conversions(Q(DQ(x)))     -> x                            16 bits, one scale and zero point
"""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import U8, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.byte_table import ENTRIES, ByteTable
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise import Clip
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.passes.quantised.conversions import BYTES, are_alike, dequantized, is_per_tensor, known_scale
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule

MAX_NODES = 32
"""Operators of one table: enough for any activation in its parts."""


class _Cone:
    """The nodes above a value, down to numbers and to codes that are dequantised; ``leaves``: those codes.

    Raises ValueError where there is something else.
    """

    def __init__(self, top: Value) -> None:
        self.order: list[Node] = []
        self.leaves: dict[int, Value] = {}
        self._visit(top, set())

    def _visit(self, value: Value, seen: set[int]) -> None:
        node = value.node
        if node is None:
            if value.const is None or value.const.size != 1:
                raise ValueError("depends on more than one byte")
            return
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node.op, DequantizeLinear) and not _is_number(node.inputs[0]):
            codes = node.inputs[0]
            if dequantized(value) is None or codes is None or codes.type.dtype not in BYTES:
                raise ValueError("not dequantised from bytes with one scale")
            self.leaves[id(codes)] = codes
            for operand in node.inputs[1:]:
                if operand is not None:
                    self._visit(operand, seen)
        elif not isinstance(node.op, (Pointwise, DequantizeLinear)) or len(seen) > MAX_NODES:
            raise ValueError(f"{node.op.name} is not pointwise, or one too many")
        else:
            for operand in node.inputs:
                if operand is not None:
                    self._visit(operand, seen)
        self.order.append(node)

    def results(self, last: Node) -> tuple[Value, Array]:
        """The bytes that all depends on, and the result of ``last`` for each of them."""
        source = _common(list(self.leaves.values()))
        every = np.arange(ENTRIES, dtype=U8).view(source.type.dtype)
        known = {id(source): every}
        for leaf in self.leaves.values():
            path = []
            at = leaf
            while at is not source:
                path.append(_table_of(at))
                at = _below(at)
            made = every
            for table in reversed(path):
                made = ByteTable().reference(made, table)
            known[id(leaf)] = made
        with np.errstate(all="ignore"):
            for node in (*self.order, last):
                known[id(node.output)] = node.op.reference(*(_content(v, known) for v in node.inputs))
        return source, known[id(last.output)]


def _is_number(value: Value | None) -> bool:
    return value is not None and value.const is not None and value.const.size == 1


def _content(value: Value | None, known: dict[int, Array]) -> Array | None:
    if value is None or id(value) in known:
        return None if value is None else known[id(value)]
    assert value.const is not None, "what is not computed is a number"
    return value.const.reshape(())


def _table_of(value: Value) -> Array:
    """The table by which other bytes make ``value``."""
    assert value.node is not None
    table = value.node.operands[1]
    assert table is not None
    assert table.const is not None
    return table.const


def _below(value: Value) -> Value:
    """The bytes of which a known table makes ``value``; itself where there is none."""
    node = value.node
    if node is None or not isinstance(node.op, ByteTable) or node.inputs[1] is None or node.inputs[1].const is None:
        return value
    assert node.inputs[0] is not None, "a table has operands"
    return node.inputs[0]


def _common(leaves: list[Value]) -> Value:
    """The one value that all leaves are functions of; raises ValueError where there is none."""
    if not leaves:
        raise ValueError("depends on no byte")
    chains = []
    for leaf in leaves:
        chain = [leaf]
        while (below := _below(chain[-1])) is not chain[-1]:
            chain.append(below)
        chains.append(chain)
    for value in chains[0]:
        if all(any(v is value for v in chain) for chain in chains):
            return value
    raise ValueError("depends on several bytes")


@rule(Pat(QuantizeLinear, (Pat(Pointwise, name="wide"), Pat(const=True))))
def byte_table_of_function(m: Match, b: Builder) -> Result:
    return _table(m, b)


@rule(Pat(QuantizeLinear, (Pat(DequantizeLinear, name="wide"), Pat(const=True))))
def byte_table_of_conversions(m: Match, b: Builder) -> Result:
    return _table(m, b)


def _table(m: Match, b: Builder) -> Result:
    root = m.root
    if root.output.type.dtype not in BYTES or not is_per_tensor(root):
        return m.refuse("the result is not bytes of one scale")
    if any(v is not None and v.const is None for v in root.inputs[1:]):
        return m.refuse("its scale is not known")
    try:
        source, table = _Cone(m["wide"]).results(root)
    except ValueError as error:
        return m.refuse(str(error))
    if source.type.shape != root.output.type.shape:
        return m.refuse("the result has another shape than the bytes")
    every = np.arange(ENTRIES, dtype=U8).view(source.type.dtype)
    if table.dtype == every.dtype and np.array_equal(table, every):
        return source
    return b(ByteTable(), source, np.ascontiguousarray(table))


@rule(Pat(QuantizeLinear, (Pat(DequantizeLinear, (Pat(name="x"),), name="wide"),)))
def drop_equal_conversions(m: Match, b: Builder) -> Result:
    wide = dequantized(m["wide"])
    if wide is None or not is_per_tensor(m.root) or known_scale(wide) is None:
        return m.refuse("no known scale for all")
    same = m["x"].type.dtype == m.root.output.type.dtype and are_alike(wide, m.root)
    return m["x"] if same else m.refuse("other scales")


@rule(Pat(ByteTable, (Pat(Clip, (Pat(name="x"),), name="cut"), const("table"))))
def byte_table_of_limits(m: Match, b: Builder) -> Result:
    every = np.arange(ENTRIES, dtype=U8).view(m["x"].type.dtype)
    cut = np.asarray(m.op("cut").reference(every))
    assert m["table"].const is not None, "the pattern wants a constant"
    return b(ByteTable(), m["x"], m["table"].const[cut.view(U8)])


RULES: tuple[Rule, ...] = (
    drop_equal_conversions,
    byte_table_of_function,
    byte_table_of_conversions,
    byte_table_of_limits,
)
