"""Ragged values: rows of all sequences one after the other, with how many rows each sequence has.

An input with a level of ragged structure is a list of arrays.  Inside, a value is [rows, ...], and
`PaddleReader.lengths` knows its lengths, [n] i64.  A result that has the rows of a ragged operand is ragged alike.  A
ragged output is a list again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bolt_numba.base.types import BOOL, I32, I64, TensorType
from bolt_numba.converters.builder import ints
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import CumSum, ReduceMax, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Reshape, Shape, Unsqueeze
from bolt_numba.ops.control import Loop
from bolt_numba.ops.data.sequence import ConcatFromSequence, SequenceAt, SequenceLength
from bolt_numba.ops.pointwise import Add, Cast, Less, LessOrEqual, Max, Min, Mul, Sub, Where

if TYPE_CHECKING:
    from bolt_numba.converters.paddle.reading.graph import PaddleBuilder

SHARING = ("sum", "concat", "cast", "softmax", "dropout", "lookup_table", "lookup_table_v2", "mul", "fc", "layer_norm")
"""Operators whose result has the rows of their first ragged operand, where its shape does not tell."""
FIRST = np.array([0])
"""The first axis."""


def taken_apart(b: Builder, sequence: Value) -> tuple[Value, Value]:
    """Rows and lengths of a list of arrays."""
    body = Graph("length")
    inner = Builder(body)
    turn = body.add_input("turn", TensorType(I64, ()))
    condition = body.add_input("condition", TensorType(BOOL, ()))
    given = body.add_input("sequence", sequence.type)
    body.add_output(condition, "again")
    body.add_output(inner(Gather(0), inner(Shape(), inner(SequenceAt(), given, turn)), np.array(0)), "rows")
    lengths: Value = b(Loop(body, 0), b(SequenceLength(), sequence), None, sequence)
    rows: Value = b(ConcatFromSequence(0), sequence)
    return rows, lengths


def lengths_of(b: PaddleBuilder, x: Value) -> Value:
    """Rows of each sequence of an operand, [n] i64."""
    found = b.owner.lengths.get(id(x))
    if found is None:
        raise b.unsupported(f"operand '{x.name}' that is not ragged")
    return found


class RaggedRows:
    """Which row belongs where.

    lengths, starts: of the sequences, [n].  owners, places: of each row its sequence and its place there, [rows].
    """

    def __init__(self, b: PaddleBuilder, lengths: Value) -> None:
        self.b, self.lengths = b, lengths
        ends = b(CumSum(), lengths, np.array(0))
        self.starts: Value = b(Sub(), ends, lengths)
        self.total: Value = b(ReduceSum(keepdims=False), lengths, FIRST)
        self.count: Value = b.counted(self.total)
        whole = b(LessOrEqual(), b(Unsqueeze(), ends, ints([0])), b(Unsqueeze(), self.count, ints([1])))
        self.owners: Value = b(ReduceSum(keepdims=False), b(Cast(I64), whole), ints([1]))
        self.places: Value = b(Sub(), self.count, self.per_row(self.starts))
        self.longest: Value = b(ReduceMax(keepdims=False), lengths, FIRST)

    def per_row(self, v: Value) -> Value:
        """What stands for each sequence, for each of its rows."""
        return self.b(Gather(0), v, self.owners)

    @property
    def inside(self) -> Value:
        """Which places of [n, longest] have a row."""
        places = self.b(Unsqueeze(), self.b.counted(self.longest), ints([0]))
        return self.b(Less(), places, self.b(Unsqueeze(), self.lengths, ints([1])))

    def padded(self, x: Value, fill: float | int | bool = 0) -> Value:
        """Rows as [n, longest, ...], with ``fill`` behind the shorter sequences."""
        b = self.b
        places = b(Unsqueeze(), b.counted(self.longest), ints([0]))
        at = b(Add(), b(Unsqueeze(), self.starts, ints([1])), places)
        at = b(Max(), b(Min(), at, b(Sub(), self.total, 1)), 0)
        more = b.rank_of(x) - 1
        inside = b(Reshape(), self.inside, ints([0, 0, *[1] * more])) if more else self.inside
        return b(Where(), inside, b(Gather(0), x, at), np.array(fill, x.type.dtype))

    def flat(self, x: Value) -> Value:
        """The rows of [n, longest, ...] that are no padding."""
        b = self.b
        at = b(Add(), b(Mul(), self.owners, self.longest), self.places)
        shape = b(Concat(0), ints([-1]), b(Shape(2), x)) if b.rank_of(x) > 2 else ints([-1])
        return b(Gather(0), b(Reshape(), x, shape), at)

    def short(self) -> Value:
        """Lengths as recurrent operators take them."""
        return self.b(Cast(I32), self.lengths)


def given(b: PaddleBuilder, x: Value, lengths: Value) -> Value:
    """X as a ragged result."""
    b.owner.lengths[id(x)] = lengths
    return x
